//! `streamgauge config`: describes the configuration; runs nothing.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum, ValueHint};

use super::terminal;
use super::verb_help::VerbHelp;
use crate::config::{ConfigSource, RawSettings, schema};
use crate::export::slo_files::SloFileFormat;

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
        SLO_TO_FILE,
        ("Validate a configuration file", "streamgauge proxy --config streamgauge.yaml --check"),
    ],
};

pub(super) const SUBVERBS: [(&str, VerbHelp); 2] = [
    ("schema", VerbHelp { flags: &[], examples: &[SCHEMA_TO_FILE, LIST_KEYS] }),
    ("slo", VerbHelp { flags: &["format", "config", "slo"], examples: &[SLO_TO_FILE] }),
];

const SCHEMA_TO_FILE: (&str, &str) =
    ("Write the schema for an editor", "streamgauge config schema > streamgauge.schema.json");
const LIST_KEYS: (&str, &str) = ("List every key", "streamgauge config schema | jq '.properties | keys'");
const SLO_TO_FILE: (&str, &str) = (
    "Write the SLOs for another SLO tool",
    "streamgauge config slo --format sloth --config streamgauge.yaml > slo.yml",
);

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the JSON Schema of the configuration file, for editors and CI
    ///
    /// The schema has the type, the description, the bounds and the default of every key. An editor that reads it completes
    /// keys and marks wrong values.
    Schema,
    /// Print the SLOs of a configuration as a file of Sloth, Pyrra or OpenSLO
    ///
    /// The SLOs come from the flags, STREAMGAUGE_SLOS or the configuration file, as for `streamgauge proxy`. The objective of
    /// a file is the SLO's target, 99% if it names none.
    Slo(SloArgs),
}

#[derive(Debug, clap::Args)]
struct SloArgs {
    /// Write a file for this tool
    #[arg(long, value_name = "TOOL")]
    format: SloTool,

    /// Read the SLOs from this YAML file; STREAMGAUGE_CONFIG names it too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Write this SLO instead of the file's, e.g. 'chat: ttft<=500ms target=99.5%'; may be repeated
    #[arg(long, value_name = "SLO")]
    slo: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SloTool {
    /// Sloth, specification prometheus/v1
    Sloth,
    /// Pyrra, pyrra.dev/v1alpha1: one document per SLO
    Pyrra,
    /// OpenSLO, openslo/v1
    Openslo,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Schema => terminal::print(&format!("{:#}\n", schema())),
        Verb::Slo(args) => slo(args),
    }
}

fn slo(args: SloArgs) -> anyhow::Result<ExitCode> {
    let settings = RawSettings { slos: args.slo, ..RawSettings::default() };
    let slos = ConfigSource::from_process(settings, args.config).load_slos()?;
    if slos.iter().next().is_none() {
        return Ok(terminal::usage_error(&"no SLO is configured; remedy: --slo 'chat: ttft<=500ms', or --config FILE"));
    }
    let format = match args.format {
        SloTool::Sloth => SloFileFormat::Sloth,
        SloTool::Pyrra => SloFileFormat::Pyrra,
        SloTool::Openslo => SloFileFormat::OpenSlo,
    };
    let documents = match format.documents(&slos) {
        Ok(documents) => documents,
        Err(problem) => return Ok(terminal::usage_error(&problem)),
    };
    let options = || serde_saphyr::ser_options! { prefer_block_scalars: false };
    let yaml = |document| serde_saphyr::to_string_with_options(document, options());
    let documents: Result<Vec<String>, _> = documents.iter().map(yaml).collect();
    terminal::print(&documents.context("cannot write YAML")?.join("---\n"))
}
