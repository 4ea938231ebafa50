//! `streamgauge help`: the help of a verb, or a chapter of the manual.
//!
//! The chapters are the README files of the repository, so the program and the repository cannot disagree. Some of their
//! sections are topics too. No topic has the name of a verb: `help proxy` is the verb's help.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueHint;

use super::verb_help::VerbHelp;

/// Print the help of a verb, or a chapter of the manual
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A verb with its subcommands, or a topic of the manual [default: list both]
    topic: Vec<String>,

    /// Write manual pages (man) of each verb and topic into this folder, e.g. /usr/local/share/man/man1
    #[arg(long, value_name = "DIR", conflicts_with = "topic", value_hint = ValueHint::DirPath)]
    man: Option<PathBuf>,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &[],
    examples: &[
        ("List the verbs and the topics of the manual", "streamgauge help"),
        ("Print the help of a verb", "streamgauge help replay"),
        ("Read a chapter of the manual", "streamgauge help metrics"),
        ("Write manual pages for `man`", "streamgauge help --man ~/.local/share/man/man1"),
    ],
};

/// A chapter that `help` prints.
struct Chapter {
    topic: &'static str,
    /// From the root of the repository.
    path: &'static str,
    about: &'static str,
    text: &'static str,
}

macro_rules! chapter {
    ($topic:literal, $path:literal, $about:literal) => {
        Chapter {
            topic: $topic,
            path: $path,
            about: $about,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $path)),
        }
    };
}

const CHAPTERS: [Chapter; 17] = [
    chapter!("overview", "README.md", "what the program does, costs and does not do"),
    chapter!("verbs", "src/cli/README.md", "every verb, with real output"),
    chapter!("deploying", "deploy/README.md", "systemd, compose, Kubernetes, OTLP, sizing, troubleshooting"),
    chapter!("runbook", "deploy/prometheus/README.md", "every alert: symptom, where to look, likely cause, remedy"),
    chapter!("settings", "src/config/README.md", "file, environment, flags, defaults"),
    chapter!("metrics", "dashboards/README.md", "every instrument, the boards, PromQL"),
    chapter!("definitions", "src/measure/README.md", "TTFT, ITL, TPOT, goodput; SLOs"),
    chapter!("dialects", "src/measure/dialect/README.md", "the APIs that are understood"),
    chapter!("transparency", "src/proxy/README.md", "what the proxy never does; privacy, limits, restarts, errors"),
    chapter!("capture", "src/capture/README.md", "what a capture holds and what it does not"),
    chapter!("data", "src/export/README.md", "data protection: each field, what it reveals, how to have less"),
    chapter!("formats", "src/trace/format/README.md", "the formats of traces that are read and written"),
    chapter!("results", "src/report/README.md", "result files of other tools, read and written by a report"),
    chapter!("twins", "src/twin/README.md", "a copy of an engine: fit, run, routers, error, limits"),
    chapter!("benchmarks", "tests/benches/README.md", "cost beside other proxies and load generators"),
    chapter!("code", "src/README.md", "rooms, arrows, dependencies and their reasons"),
    chapter!("tests", "tests/README.md", "where a test belongs, and how to run one"),
];

/// Sections that are topics of their own: topic, chapter, heading.
const SECTIONS: [(&str, &str, &str); 3] = [
    ("sizing", "deploying", "## Sizing and cardinality"),
    ("troubleshooting", "deploying", "## Troubleshooting"),
    ("upgrade", "deploying", "## Upgrade"),
];

/// Every topic, with its text.
fn topics() -> impl Iterator<Item = (&'static str, &'static str)> {
    let chapters = CHAPTERS.iter().map(|chapter| (chapter.topic, chapter.text));
    let sections = SECTIONS.iter().filter_map(|(topic, chapter, heading)| {
        let chapter = CHAPTERS.iter().find(|other| other.topic == *chapter)?;
        Some((*topic, section(chapter.text, heading)?))
    });
    chapters.chain(sections)
}

/// The part of a chapter from this heading to the next of its level.
fn section<'a>(text: &'a str, heading: &str) -> Option<&'a str> {
    let begin = text.find(&format!("\n{heading}\n"))? + 1;
    let end = text[begin..].find("\n## ").map_or(text.len(), |end| begin + end + 1);
    Some(&text[begin..end])
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.man {
        return write_man_pages(folder);
    }
    match &*args.topic {
        [] => crate::cli::terminal::print(&overview()),
        [topic] if let Some((_, text)) = topics().find(|(name, _)| name == topic) => crate::cli::terminal::print(text),
        verb => Ok(verb_help(verb)),
    }
}

/// Writes a page for the program, each verb and each topic.
fn write_man_pages(folder: &Path) -> anyhow::Result<ExitCode> {
    let problem = || format!("{}: cannot write manual pages", folder.display());
    std::fs::create_dir_all(folder).with_context(problem)?;
    clap_mangen::generate_to(super::command(), folder).with_context(problem)?;
    for (topic, text) in topics() {
        std::fs::write(folder.join(format!("streamgauge-{topic}.1")), man_page(topic, text)).with_context(problem)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A chapter as it is: tables and examples keep their lines.
fn man_page(topic: &str, text: &str) -> String {
    let mut page = format!(".TH streamgauge-{topic} 1\n.nf\n");
    for line in text.lines() {
        // A dot or an apostrophe at the start of a line is a request, and a backslash an escape.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        _ = writeln!(page, "{guard}{}", line.replace('\\', "\\e").replace('-', "\\-")).is_ok();
    }
    page
}

/// The program's own help, then the topics.
fn overview() -> String {
    let mut text = format!("{}\nTopics of the manual (`streamgauge help TOPIC`):\n", super::command().render_help());
    for Chapter { topic, path, about, .. } in &CHAPTERS {
        // A string takes every line.
        _ = writeln!(text, "  {topic:<15} {about} ({path})").is_ok();
    }
    for (topic, chapter, _) in SECTIONS {
        _ = writeln!(text, "  {topic:<15} a section of `{chapter}`").is_ok();
    }
    text
}

/// Prints the same as `VERB --help`; an unknown verb is an error with the topics.
fn verb_help(verb: &[String]) -> ExitCode {
    let line = ["streamgauge"].into_iter().chain(verb.iter().map(|word| &**word)).chain(["--help"]);
    let Err(error) = super::command().try_get_matches_from(line) else { return ExitCode::SUCCESS };
    // A closed pipe leaves no reader.
    error.print().ok();
    if error.exit_code() != 0 {
        let topics: Vec<&str> = topics().map(|(topic, _)| topic).collect();
        crate::cli::terminal::eprint_line(&format!("\nTopics of the manual: {}", topics.join(", ")));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(super::exit_code::EXIT_USAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_topic_hides_a_verb() {
        let command = super::super::command();
        let verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert!(topics().all(|(topic, _)| !verbs.contains(&topic)));
    }

    #[test]
    fn a_section_is_a_topic_from_its_heading_to_the_next() {
        assert_eq!(topics().count(), CHAPTERS.len() + SECTIONS.len());
        let text = "# A\n\n## B\n\nb\n\n### C\n\n## D\nd\n";
        assert_eq!(section(text, "## B"), Some("## B\n\nb\n\n### C\n\n"));
        assert_eq!(section(text, "## D"), Some("## D\nd\n"));
        assert_eq!(section(text, "## E"), None);
    }

    #[test]
    fn a_line_of_a_chapter_is_no_request_of_man() {
        assert_eq!(man_page("x", ".a\\b\n'c"), ".TH streamgauge-x 1\n.nf\n\\&.a\\eb\n\\&'c\n");
    }
}
