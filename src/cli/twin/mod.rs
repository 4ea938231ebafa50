//! `streamgauge twin`: fits engines to a capture, and runs traffic through them in virtual time.

mod figures;
mod fit;
mod result_notes;
mod run;
mod table;
mod variant;

pub(super) use fit::FitsDocument;
pub(super) use table::VariantsDocument;

use std::process::ExitCode;

use clap::Subcommand;

use super::terminal::print;
use super::verb_help::VerbHelp;
use crate::twin::model::TwinModel;
pub(super) use run::COPY_OFFSET;
pub(super) use table::held_out;

pub(super) const HELP: VerbHelp = VerbHelp { flags: &[], examples: &[FIT, RUN] };

const FIT: (&str, &str) = ("Fit a twin to a capture", "streamgauge twin fit capture/ -o twin.json");

const RUN: (&str, &str) = (
    "Compare one to eight replicas on a captured day",
    "streamgauge twin run twin.json --traffic capture/ --replicas 1..8",
);

/// The help of every verb below `twin`.
pub(super) const SUBVERBS: [(&str, VerbHelp); 3] = [
    (
        "fit",
        VerbHelp {
            flags: &["output", "server-metrics", "json"],
            examples: &[
                FIT,
                (
                    "Fit with the cache size that vLLM's metrics page states",
                    "streamgauge twin fit capture/ --server-metrics page.txt -o twin.json",
                ),
            ],
        },
    ),
    (
        "run",
        VerbHelp {
            flags: &["traffic", "replicas", "router", "set", "slo", "out"],
            examples: &[
                RUN,
                (
                    "Compare routers under twice the traffic",
                    "streamgauge twin run twin.json --traffic capture/ --scale 2x \\
      --replicas 4 --router round-robin --router prefix",
                ),
                (
                    "Halve the KV cache and write a run that `report` reads",
                    "streamgauge twin run twin.json --traffic capture/ \\
      --set kv-blocks=8192 -o half",
                ),
                (
                    "Lose a replica after ten minutes, with a start-up of three",
                    "streamgauge twin run twin.json --traffic capture/ --replicas 3 \\
      --fail replica=1,at=10m --start-up 3m",
                ),
            ],
        },
    ),
    (
        "schema",
        VerbHelp {
            flags: &[],
            examples: &[("Write the schema for an editor", "streamgauge twin schema > twin.schema.json")],
        },
    ),
];

/// Simulate captured traffic: other replicas, routers, caches
///
/// A twin is a file of engines with continuous batching, a prefix cache and a cost model, fitted to rows of captures or
/// runs. It runs in virtual time, without servers. Every result is SIMULATED and marked so.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Fit(fit::FitArgs),
    Run(Box<run::RunArgs>),
    /// Print the JSON Schema of twin.json
    ///
    /// It covers every parameter of an engine, the held-out errors of its fit, and the ranges of what is undetermined.
    Schema,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::Fit(args) => fit::run(args),
        Verb::Run(args) => run::run(args),
        Verb::Schema => print(&format!("{:#}\n", TwinModel::schema().as_value())),
    }
}
