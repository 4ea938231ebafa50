//! README.md keeps its word: its examples print what it says, its settings and flags are the program's.

#![expect(clippy::unwrap_used, reason = "clippy knows tests by their attribute, and these have helpers")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use streamgauge::measure::dialect::TABLE;
use streamgauge::trace::format;

/// Flags of other programs in commands of README.md.
const OF_OTHERS: [&str; 15] = [
    "--bench",
    "--build",
    "--detach",
    "--enable-feature",
    "--file",
    "--filename",
    "--isl-block-size",
    "--now",
    "--peers",
    "--port",
    "--real",
    "--release",
    "--rounds",
    "--rows",
    "--tag",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// The fenced blocks of that language.
fn blocks(language: &str) -> Vec<String> {
    let readme = readme();
    let mut blocks = Vec::new();
    let mut rest = &*readme;
    while let Some((_, after)) = rest.split_once("\n```") {
        let (block, after) = after.split_once("\n```").unwrap();
        let (name, text) = block.split_once('\n').unwrap();
        if name == language {
            blocks.push(text.to_owned() + "\n");
        }
        rest = after;
    }
    blocks
}

/// Runs a command line as a shell in `folder` would that finds the program, and gives what its terminal shows.
fn shown(line: &str, folder: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_streamgauge"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let line = format!("exec 2>&1\n{line}");
    let output = Command::new("sh").args(["-c", &line]).env_clear().env("PATH", path).current_dir(folder).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// A folder with what the examples name.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    symlink(root().join("tests"), folder.path().join("tests")).unwrap();
    for text in blocks("yaml") {
        if let Some(name) = text.lines().next().and_then(|line| line.strip_prefix("# streamgauge.yaml")) {
            fs::write(folder.path().join("streamgauge.yaml"), &text).unwrap();
            assert_eq!(name, "");
        }
    }
    folder
}

/// Whether `text` is what `expected` says; a line `…` there stands for any number of lines, and a line that ends with
/// `…` for any that begins like it.
fn fits(text: &[&str], expected: &[&str]) -> bool {
    match (expected.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((&"…", after)), _) => (0..=text.len()).any(|skipped| fits(&text[skipped..], after)),
        (Some((line, after)), Some((first, rest))) => {
            let alike = line == first || line.strip_suffix('…').is_some_and(|start| first.starts_with(start));
            alike && fits(rest, after)
        }
        _ => false,
    }
}

#[test]
fn examples_print_what_the_readme_says() {
    let folder = place();
    let mut verbs = BTreeSet::new();
    for block in blocks("console") {
        for example in block.strip_prefix("$ ").unwrap().split("\n$ ") {
            let (command, expected) = example.split_once('\n').unwrap_or((example, ""));
            verbs.insert(command.split(' ').nth(1).unwrap().to_owned());
            let shown = shown(command, folder.path());
            let (text, expected): (Vec<_>, Vec<_>) = (shown.lines().collect(), expected.lines().collect());
            assert!(fits(&text, &expected), "$ {command}\n{shown}");
        }
    }
    for verb in ["proxy", "inspect", "report", "trace", "config", "completions"] {
        assert!(verbs.contains(verb), "no example of {verb}");
    }
}

/// The help of a verb, every flag of it in one line.
fn help(verb: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(verb.split(' ')).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The flags in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let is_flag =
        |word: &&str| word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    words.filter(is_flag).map(str::to_owned).collect()
}

#[test]
fn every_flag_is_in_the_readme_and_no_other_is() {
    let verbs = [
        "",
        "demo",
        "proxy",
        "inspect",
        "replay",
        "load",
        "sweep",
        "report",
        "sim",
        "config",
        "config schema",
        "completions",
    ];
    let of_trace = ["", " info", " convert", " cut", " scale", " merge", " anonymize", " spread", " diff", " schema"];
    let of_trace = of_trace.map(|verb| help(&format!("trace{verb}")));
    let all = flags(&[verbs.map(help).concat(), of_trace.concat()].concat());
    let mut told = flags(&readme());
    assert_eq!(all.difference(&told).collect::<Vec<_>>(), [""; 0], "not in README.md");
    OF_OTHERS.iter().for_each(|flag| _ = told.remove(*flag));
    assert_eq!(told.difference(&all).collect::<Vec<_>>(), [""; 0], "in README.md and no flags");
}

#[test]
fn the_dialects_are_those_of_the_table() {
    let readme = readme();
    let section = readme.split("## Dialects").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let told: BTreeSet<&str> =
        rows.flat_map(|cell| cell.split(['`', ',', ' '])).filter(|name| !name.is_empty()).collect();
    assert_eq!(told, TABLE.iter().map(|dialect| dialect.name).collect());
}

#[test]
fn the_formats_of_traces_are_those_of_the_table() {
    let can = |can: bool| if can { "yes" } else { "" };
    for format in format::TABLE {
        let (reads, writes) = (can(format.read.is_some()), can(format.write.is_some()));
        let row = format!("| `{}` | {reads} | {writes} | {} | {} |", format.name, format.times, format.about);
        assert!(readme().lines().any(|line| line == row), "it should say\n{row}");
    }
}

#[test]
fn the_settings_are_those_of_the_schema() {
    let schema: Value = serde_json::from_str(&shown("streamgauge config schema", &root())).unwrap();
    let proxy = flags(&help("proxy"));
    let row = |(key, property): (&String, &Value)| {
        let flag = [key.replace('_', "-"), key.trim_end_matches('s').to_owned()].map(|name| format!("--{name}"));
        let flag = flag.iter().find(|flag| proxy.contains(*flag)).unwrap();
        let default = match &property["default"] {
            Value::Null => String::new(),
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        let (variable, about) = (key.to_uppercase(), property["description"].as_str().unwrap());
        format!("| `{key}` | `{flag}` | `STREAMGAUGE_{variable}` | {default} | {about} |")
    };
    let expected: Vec<String> = schema["properties"].as_object().unwrap().iter().map(row).collect();
    let readme = readme();
    let told: Vec<&str> = readme.lines().filter(|line| line.contains(" | `STREAMGAUGE_")).collect();
    let sorted: BTreeSet<&str> = told.iter().copied().collect();
    assert_eq!(sorted, expected.iter().map(|row| &**row).collect(), "it should say\n{}", expected.join("\n"));
    assert_eq!(told.len(), sorted.len(), "each once");
}

#[test]
fn links_lead_somewhere() {
    let readme = readme();
    let targets: Vec<&str> = readme.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    assert!(targets.contains(&"tests/pictures/demo.svg"), "the picture");
    let headings =
        readme.lines().filter_map(|line| Some(line.trim_start_matches('#')).filter(|_| line.starts_with('#')));
    let anchors: Vec<String> =
        headings.map(|name| format!("#{}", name.trim().to_lowercase().replace(' ', "-"))).collect();
    for target in targets.into_iter().filter(|target| !target.starts_with("https://")) {
        let exists = if target.starts_with('#') {
            anchors.iter().any(|anchor| anchor == target)
        } else {
            root().join(target).exists()
        };
        assert!(exists, "{target}");
    }
}

#[test]
fn a_wildcard_stands_for_what_it_says_and_no_more() {
    assert!(fits(&["a", "b", "c"], &["a", "…"]) && fits(&["a", "b", "c"], &["…", "c"]) && fits(&["abc"], &["ab…"]));
    assert!(!fits(&["a", "b"], &["a"]) && !fits(&["a"], &["a", "b"]) && !fits(&["a", "b"], &["…", "c"]));
    assert!(!fits(&["ab"], &["a"]) && !fits(&[], &["a…"]));
}
