//! Help in two lengths: `-h` fits on a screen, `--help` is complete.
//!
//! A verb names the flags that `-h` shows, so a new flag is in `--help` alone until its verb names it.
//! Each example is written once, as a [`VerbHelp`], and a test parses all of them.

use clap::Command;

use super::verb_help::VerbHelp;
use super::{
    compare, completions, config, demo, doctor, inspect, load, manual, plan, proxy, replay, report, schema, sim, sweep,
    top, trace, twin,
};

/// The help of `streamgauge` itself.
const PROGRAM: VerbHelp = VerbHelp {
    flags: &[],
    examples: &[
        ("Try it with a simulated server and clients, without a GPU", "streamgauge demo"),
        (
            "Measure the server on port 8000; clients use port 8080, metrics are on 9464",
            "streamgauge proxy --upstream http://127.0.0.1:8000",
        ),
        (
            "Find the highest request rate at which a server meets an SLO",
            "streamgauge sweep --target http://127.0.0.1:8000 --out limit \\
      --find-max 'ttft.p99<=500ms tpot.p99<=50ms'",
        ),
        (
            "Replay a trace at its recorded times and measure the responses",
            "streamgauge replay trace.jsonl --target http://127.0.0.1:8000",
        ),
        (
            "Report a run's latencies and the share of good requests",
            "streamgauge report run1 --slo 'chat: ttft<=500ms tpot<=50ms'",
        ),
        ("Explain a recorded response, event by event", "streamgauge inspect reply.sse --path /v1/chat/completions"),
        ("Describe a traffic trace, ours or a public one", "streamgauge trace info conversation_trace.jsonl"),
        ("Run a simulated inference server to test against", "streamgauge sim"),
    ],
};

/// The help of every verb.
const VERBS: [(&str, VerbHelp); 18] = [
    ("demo", demo::HELP),
    ("proxy", proxy::HELP),
    ("inspect", inspect::HELP),
    ("replay", replay::HELP),
    ("load", load::HELP),
    ("sweep", sweep::HELP),
    ("report", report::HELP),
    ("compare", compare::HELP),
    ("plan", plan::HELP),
    ("trace", trace::HELP),
    ("twin", twin::HELP),
    ("sim", sim::HELP),
    ("config", config::HELP),
    ("doctor", doctor::HELP),
    ("schema", schema::HELP),
    ("top", top::HELP),
    ("completions", completions::HELP),
    ("help", manual::HELP),
];

/// Adds examples and shortens `-h`, for the program and every verb below it.
pub(super) fn add(command: Command) -> Command {
    let mut command = PROGRAM.add_to(command, "streamgauge");
    for (verb, help) in VERBS {
        command = command.mut_subcommand(verb, |command| help.add_to(command, &format!("streamgauge {verb}")));
    }
    for (parent, subverbs) in
        [("trace", &trace::SUBVERBS[..]), ("config", &config::SUBVERBS), ("twin", &twin::SUBVERBS)]
    {
        for (verb, help) in subverbs {
            let path = format!("streamgauge {parent} {verb}");
            command = command
                .mut_subcommand(parent, |parent| parent.mut_subcommand(verb, |command| help.add_to(command, &path)));
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::super::verb_help::examples;
    use super::*;

    fn all() -> impl Iterator<Item = (Vec<&'static str>, &'static VerbHelp)> {
        let verbs = VERBS.iter().map(|(verb, help)| (vec![*verb], help));
        let of_trace = trace::SUBVERBS.iter().map(|(verb, help)| (vec!["trace", *verb], help));
        let of_config = config::SUBVERBS.iter().map(|(verb, help)| (vec!["config", *verb], help));
        let of_twin = twin::SUBVERBS.iter().map(|(verb, help)| (vec!["twin", *verb], help));
        [(vec![], &PROGRAM)].into_iter().chain(verbs).chain(of_trace).chain(of_config).chain(of_twin)
    }

    /// The command lines of ours in an example: words of a shell, split at its operators.
    fn command_lines(text: &str) -> Vec<Vec<String>> {
        let (mut lines, mut words, mut word, mut is_quoted) = (Vec::new(), Vec::new(), String::new(), false);
        let text = text.replace("\\\n", " ").replace("<(", " | ").replace(')', " ");
        for c in text.chars().chain(['\n']) {
            match c {
                '\'' => is_quoted = !is_quoted,
                _ if is_quoted => word.push(c),
                ' ' | '|' | '>' | '\n' => {
                    words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                    if c != ' ' {
                        lines.push(std::mem::take(&mut words));
                    }
                }
                _ => word.push(c),
            }
        }
        lines
            .into_iter()
            .filter(|words: &Vec<String>| words.first().is_some_and(|word| word == "streamgauge"))
            .collect()
    }

    #[test]
    fn every_example_parses() {
        for (path, help) in all() {
            for (task, example) in help.examples {
                let lines = command_lines(example);
                assert!(!lines.is_empty(), "{path:?}: {example}");
                for words in lines {
                    let parsed = super::super::command().try_get_matches_from(&words);
                    assert!(
                        parsed.is_ok(),
                        "{task}: {words:?}\n{}",
                        parsed.err().map(|e| e.to_string()).unwrap_or_default()
                    );
                }
            }
        }
    }

    #[test]
    fn an_example_is_copied_as_it_is_from_a_screen_of_eighty_columns() {
        for (_, help) in all() {
            let text = examples(help.examples.iter());
            let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{long:?}");
        }
    }

    #[test]
    fn every_short_flag_exists_and_every_verb_has_help() {
        let whole = super::super::command();
        let mut known = 0;
        for (path, help) in all() {
            let find = |command: &'_ Command, verb: &str| command.find_subcommand(verb).cloned();
            let command = path.iter().try_fold(whole.clone(), |command, verb| find(&command, verb)).unwrap();
            known += 1;
            for flag in help.flags {
                assert!(command.get_arguments().any(|arg| arg.get_long() == Some(flag)), "{path:?} --{flag}");
            }
        }
        let below = |command: &Command| command.get_subcommands().count();
        let verbs = 1 + below(&whole) + whole.get_subcommands().map(below).sum::<usize>();
        assert_eq!(known, verbs);
    }
}
