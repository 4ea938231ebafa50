//! `streamgauge config`: describes the configuration; runs nothing.

use std::process::ExitCode;

use clap::Subcommand;

use super::verb_help::VerbHelp;
use crate::config::schema;

/// Describe the configuration file of `streamgauge proxy`
///
/// `streamgauge proxy --check` validates a configuration and prints its values. src/config/README.md lists all settings.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &[],
    examples: &[
        SCHEMA_TO_FILE,
        LIST_KEYS,
        ("Validate a configuration file", "streamgauge proxy --config streamgauge.yaml --check"),
    ],
};

pub(super) const SUBVERBS: [(&str, VerbHelp); 1] =
    [("schema", VerbHelp { flags: &[], examples: &[SCHEMA_TO_FILE, LIST_KEYS] })];

const SCHEMA_TO_FILE: (&str, &str) =
    ("Write the schema for an editor", "streamgauge config schema > streamgauge.schema.json");
const LIST_KEYS: (&str, &str) = ("List every key", "streamgauge config schema | jq '.properties | keys'");

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the JSON Schema of the configuration file, for editors and CI
    ///
    /// The schema has the type, the description, the bounds and the default of every key. An editor that reads it completes
    /// keys and marks wrong values.
    Schema,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Schema => crate::cli::terminal::print(&format!("{:#}\n", schema())),
    }
}
