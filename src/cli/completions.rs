//! `streamgauge completions`: completion scripts for shells.

use std::process::ExitCode;

use clap_complete::Shell;

use super::verb_help::VerbHelp;

/// Print a completion script for a shell
///
/// The script completes verbs, flags, file names and the values of flags that have a fixed list.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell that reads the script
    shell: Shell,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &[],
    examples: &[
        ("Complete in this bash, until it exits", "source <(streamgauge completions bash)"),
        (
            "Install for every fish",
            "streamgauge completions fish \\
      > ~/.config/fish/completions/streamgauge.fish",
        ),
        ("Write the script of zsh, for a folder in fpath", "streamgauge completions zsh > _streamgauge"),
    ],
};

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "streamgauge", &mut script);
    crate::cli::terminal::print(&String::from_utf8_lossy(&script))
}
