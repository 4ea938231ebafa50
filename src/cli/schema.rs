//! `streamgauge schema`: JSON Schemas of the documents that this program prints, writes and serves.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::verb_help::VerbHelp;
use super::{demo, doctor, terminal, top, twin};
use crate::capture::manifest::HourManifest;
use crate::export::admin;
use crate::export::engine_metrics::EngineResponse;
use crate::inspect::inspection::Inspection;
use crate::report::Report;
use crate::report::compare::history::RunHistory;
use crate::report::compare::json::ComparisonDocument;
use crate::report::compare::level_comparison::LevelComparisonsDocument;
use crate::report::peer_summary::PeerSummaryDocument;
use crate::report::plan::CapacityPlan;
use crate::report::plan::simulated::SimulatedPlan;
use crate::report::run_file::RunFile;
use crate::report::sweep::Sweep;
use crate::report::sweep::file::SweepFile;
use crate::sim::SendLogPage;
use crate::trace::diff::TraceDiff;
use crate::trace::info::TraceInfo;
use crate::trace::reuse::ReuseReport;
use crate::trace_file::server_metrics::{Scrape, ScrapesHeader};

/// Print the JSON Schema of a document, or list the documents
///
/// `config schema`, `trace schema` and `twin schema` print the schemas of the files that people and other programs write.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The document [default: list all]
    #[arg(value_name = "DOCUMENT", value_parser = PossibleValuesParser::new(DOCUMENTS.map(|document| document.name)), hide_possible_values = true)]
    document: Option<String>,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &[],
    examples: &[
        ("List the documents", "streamgauge schema"),
        ("Write the schema of a report for a validator", "streamgauge schema report > report.schema.json"),
    ],
};

/// One kind of JSON document.
struct JsonDocument {
    name: &'static str,
    /// Where the document comes from.
    source: &'static str,
    schema: fn() -> Schema,
}

/// All kinds, in the order of the verbs.
const DOCUMENTS: [JsonDocument; 28] = [
    document::<demo::DemoSummary<'static>>("demo", "`demo --json`"),
    document::<Inspection>("inspect", "`inspect --json`"),
    JsonDocument {
        name: "run",
        source: "run.json of a run, also `replay --json` and `load --json`; the keys that reports read",
        schema: schema_of_read::<RunFile>,
    },
    document::<ScrapesHeader>("server-metrics-header", "the first line of server_metrics.jsonl.zst of a run"),
    document::<Scrape>("server-metrics", "a further line of server_metrics.jsonl.zst"),
    document::<SweepFile>("sweep-file", "sweep.json of a sweep"),
    document::<Sweep>("sweep", "`sweep --json`, and `report --json` of a sweep"),
    document::<Report>("report", "`report --json` of runs and captures"),
    document::<PeerSummaryDocument<'static>>("peer-summary", "`report --json` of another tool's summary"),
    document::<ComparisonDocument<'static>>("compare", "`compare --json`"),
    document::<LevelComparisonsDocument<'static>>("compare-sweeps", "`compare --json` of two sweeps"),
    document::<RunHistory>("compare-trend", "`compare --trend --json`"),
    document::<CapacityPlan>("plan", "`plan --json`"),
    document::<SimulatedPlan>("plan-twin", "`plan --twin --json`"),
    document::<TraceInfo>("trace-info", "`trace info --json`"),
    document::<TraceDiff>("trace-diff", "`trace diff --json`"),
    document::<ReuseReport>("trace-reuse", "`trace reuse --json`"),
    document::<HourManifest>("hour-manifest", "`_manifest-*.json` of an hour in the bucket of a capture"),
    document::<twin::FitsDocument<'static>>("twin-fit", "`twin fit --json`"),
    document::<twin::VariantsDocument<'static>>("twin-run", "`twin run --json`"),
    document::<Vec<doctor::DoctorFinding>>("doctor", "`doctor --json`"),
    document::<Vec<top::TopRow>>("top", "`top --once --json`"),
    document::<admin::state::StateResponse<'static>>("api-state", "`/api/state` of the admin port"),
    document::<admin::live::LiveEvent<'static>>("api-live", "an event of `/api/live`"),
    document::<admin::history::HistoryResponse<'static>>("api-history", "`/api/history`"),
    document::<SendLogPage<'static>>("sim-sends", "`/sim/sends` of `sim`"),
    document::<EngineResponse>("api-engine", "`/api/engine`"),
    document::<admin::requests::RequestsResponse>("api-requests", "`/api/requests`"),
];

const fn document<T: JsonSchema>(name: &'static str, source: &'static str) -> JsonDocument {
    JsonDocument { name, source, schema: schema_of::<T> }
}

/// The schema of what serde writes: a field that may be left out is not required.
fn schema_of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}

/// The schema of what serde reads: a field with a default is not required.
fn schema_of_read<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let document = args.document.as_deref().and_then(|name| DOCUMENTS.iter().find(|document| document.name == name));
    terminal::print(&match document {
        Some(document) => format!("{:#}\n", (document.schema)().as_value()),
        None => DOCUMENTS.iter().map(|document| format!("{:<21} {}\n", document.name, document.source)).collect(),
    })
}
