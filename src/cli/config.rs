//! `streamgauge config`: about the configuration, without running anything.

use std::process::ExitCode;

use clap::Subcommand;

use crate::config::schema;

/// Describe the configuration file
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the JSON Schema of the configuration file, for editors and CI
    Schema,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Schema => super::print(&format!("{:#}\n", schema())),
    }
}
