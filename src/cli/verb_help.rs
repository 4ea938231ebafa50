//! One verb's share of the help: its most useful flags and its examples.

use clap::Command;

/// Reference to the manual, for a reader with the binary alone.
const MANUAL: &str = "`streamgauge help verbs` prints the manual.";

/// How many examples `-h` shows; `--help` shows all.
const SHORT_EXAMPLES: usize = 3;

/// The help of a verb beyond its flags and its description.
#[derive(Debug)]
pub(super) struct VerbHelp {
    /// Names of the flags that `-h` shows, without their dashes.
    pub(super) flags: &'static [&'static str],
    /// The most useful first: a task, and the command line for it.
    pub(super) examples: &'static [(&'static str, &'static str)],
}

impl VerbHelp {
    /// Adds the examples, and hides other flags from `-h`. `path` is the command line up to this verb.
    pub(super) fn add_to(&self, command: Command, path: &str) -> Command {
        let rest = if command.has_subcommands() { "the full text" } else { "every flag" };
        let short =
            format!("{}\n\n`{path} --help` has {rest}; {MANUAL}", examples(self.examples.iter().take(SHORT_EXAMPLES)));
        let details = command.get_after_long_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        let long = format!("{details}{}\n\n{MANUAL}", examples(self.examples.iter()));
        let is_short = |arg: &clap::Arg| arg.get_long().is_none_or(|name| self.flags.contains(&name));
        let command = command.mut_args(|arg| {
            let hidden = !is_short(&arg);
            arg.hide_short_help(hidden)
        });
        command.after_help(short).after_long_help(long)
    }
}

/// Renders tasks and their command lines.
pub(super) fn examples<'a>(examples: impl Iterator<Item = &'a (&'a str, &'a str)>) -> String {
    let text: Vec<String> = examples.map(|(task, command)| format!("  {task}:\n    {command}")).collect();
    format!("Examples:\n{}", text.join("\n\n"))
}
