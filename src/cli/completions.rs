//! `streamgauge completions`: what a shell needs to complete a command line.

use std::process::ExitCode;

use clap_complete::Shell;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  source <(streamgauge completions bash)")]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "streamgauge", &mut script);
    super::print(&String::from_utf8_lossy(&script))
}
