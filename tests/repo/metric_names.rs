//! Every file that names a metric names one of the catalog, and dashboards/README.md lists all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use streamgauge::export::prometheus::name;
use streamgauge::export::registry::catalog::{Convention, Instrument, InstrumentKind, TABLE, attribute};
use streamgauge::export::registry::error_type::TERMINATIONS;

/// Words that begin like a metric and are none.
const NO_METRICS: [&str; 13] = [
    // The name of a recording rule where autoscalers allow no colon.
    "streamgauge_autoscaling_concurrency",
    "gen_ai_latest_experimental",
    // A setting, and what the names of the metrics begin with that it turns off.
    "gen_ai_client",
    "gen_ai.client",
    "streamgauge.yaml",
    "streamgauge.service",
    "streamgauge.socket",
    "streamgauge.fish",
    "process.pid",
    "process.executable.name",
    attribute::SLOS_MET,
    attribute::SLOS_MISSED,
    attribute::SLO_VIOLATIONS,
];

/// Attributes of every `gen_ai.*` instrument, as dashboards/README.md calls them.
const THE_FIVE: &str =
    "`gen_ai.operation.name`, `gen_ai.provider.name`, `gen_ai.request.model`, `server.address`, `server.port`";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn chapter() -> String {
    fs::read_to_string(root().join("dashboards/README.md")).unwrap()
}

/// An instrument's row in dashboards/README.md.
fn row(instrument: &Instrument) -> String {
    let kind = match instrument.kind {
        InstrumentKind::Counter | InstrumentKind::ObservedCounter => "counter",
        InstrumentKind::UpDownCounter => "up-down counter",
        InstrumentKind::Gauge => "gauge",
        InstrumentKind::Info => "info",
        InstrumentKind::Histogram(_) => "histogram",
    };
    let labels: Vec<String> = instrument.attributes.iter().map(|name| format!("`{name}`")).collect();
    let labels = labels.join(", ").replace(THE_FIVE, "the five");
    let (otel, prometheus) = (instrument.name, name::sample(instrument));
    let unit = if instrument.unit.is_empty() { String::new() } else { format!("`{}`", instrument.unit) };
    format!("| `{otel}` | `{prometheus}` | {kind} | {unit} | {labels} | {} |", instrument.description)
}

/// The rows under a heading, up to the next heading of any depth.
fn rows(chapter: &str, heading: &str) -> Vec<String> {
    let (_, section) = chapter.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no `{heading}`"));
    let lines = section.lines().take_while(|line| !line.starts_with('#'));
    lines.filter(|line| line.starts_with("| `")).map(str::to_owned).collect()
}

#[test]
fn the_manual_lists_every_instrument_as_the_catalog_has_it() {
    let chapter = chapter();
    assert!(chapter.contains(&format!("\"the five\" are the labels {THE_FIVE}.")));
    let endings = TERMINATIONS.map(|ending| format!("`{ending}`")).join(", ");
    assert!(chapter.contains(&format!("by how it ended: {endings}.")), "{endings}");
    let of = |only: fn(&&Instrument) -> bool| TABLE.iter().filter(only).map(row).collect::<Vec<_>>();
    let expected = of(|instrument| instrument.is_in(Convention::Frozen));
    assert_eq!(rows(&chapter, "## Metrics"), expected, "it should say\n{}", expected.join("\n"));
    let expected = of(|instrument| !instrument.is_in(Convention::Frozen));
    assert_eq!(rows(&chapter, "### Newest names"), expected, "it should say\n{}", expected.join("\n"));
}

/// Every name that a metric or an attribute of ours goes by, in OpenTelemetry and in Prometheus.
fn known() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = NO_METRICS.map(str::to_owned).into();
    for instrument in TABLE {
        let family = name::family(instrument);
        known.extend([instrument.name.to_owned(), family.clone(), name::sample(instrument)]);
        known.insert(name::otlp_translated_sample(instrument));
        if matches!(instrument.kind, InstrumentKind::Histogram(_)) {
            known.extend(["bucket", "sum", "count"].map(|part| format!("{family}_{part}")));
        }
        for attribute in instrument.attributes {
            known.extend([(*attribute).to_owned(), attribute.replace('.', "_")]);
        }
    }
    known
}

/// The words of a text that look like names of ours and are none.
fn strangers(text: &str) -> Vec<String> {
    let known = known();
    let is_ours = |word: &str| {
        ["gen_ai", "streamgauge", "http.server", "http_server", "process"]
            .iter()
            .any(|prefix| word.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(['.', '_'])))
    };
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
    let words = words.map(|word| word.trim_end_matches('.')).filter(|word| is_ours(word) && !known.contains(*word));
    words.map(str::to_owned).collect()
}

/// The files of a folder and of those below it; none if there is no such folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn whatever_names_a_metric_names_one_that_is_exported() {
    let root = root();
    let surfaces = ["dashboards", "deploy"].map(|folder| files(&root.join(folder))).concat();
    for path in surfaces.into_iter().chain([root.join("README.md")]) {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        assert_eq!(strangers(&text), [""; 0], "in {}", path.display());
    }
}

/// Instruments that no board shows, with the reason.
const NOT_SHOWN: [(&str, &str); 7] = [
    ("streamgauge.proxy.refused_connections", "only in transparent mode; a mistake of a rule, which the reply names"),
    ("gen_ai.client.operation.duration", "for the boards of others; ours show the server's"),
    ("gen_ai.client.operation.time_to_first_chunk", "the same"),
    ("gen_ai.client.operation.time_per_output_chunk", "the same: ours show the latency of each token"),
    ("gen_ai.client.inference.duration", "the same"),
    ("gen_ai.client.inference.time_to_first_chunk", "the same"),
    ("gen_ai.client.inference.time_per_output_chunk", "the same"),
];

#[test]
fn every_instrument_is_on_a_board_or_listed_with_a_reason() {
    let boards =
        files(&root().join("dashboards")).into_iter().filter(|path| path.extension().is_some_and(|e| e == "json"));
    let boards: Vec<serde_json::Value> =
        boards.map(|path| serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()).collect();
    let panels = boards.iter().flat_map(|board| board["panels"].as_array().unwrap());
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    // Metrics of the rules alone have no panel.
    let queries =
        targets.map(|target| target["expr"].as_str().unwrap()).filter(|query| !query.contains("label_replace"));
    let queries: Vec<&str> = queries.collect();
    let words: BTreeSet<&str> =
        queries.iter().flat_map(|query| query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))).collect();
    for instrument in TABLE {
        let family = name::family(instrument);
        let names = ["", "_bucket", "_sum", "_count"].map(|part| format!("{family}{part}"));
        let shown = names.iter().chain([&name::sample(instrument)]).any(|name| words.contains(&**name));
        let listed = NOT_SHOWN.iter().any(|(name, _)| *name == instrument.name);
        assert!(shown != listed, "{}: shown on a board {shown}, listed {listed}", instrument.name);
    }
}

#[test]
fn a_name_that_is_not_exported_is_found() {
    let text = "rate(gen_ai_server_time_to_first_token_seconds_bucket[5m]) / streamgauge_slo_request_total, the \
                process.cpu.time of `gen_ai.server.ttft`, and in streamgauge.yaml process_open_fds.";
    assert_eq!(strangers(text), ["streamgauge_slo_request_total", "gen_ai.server.ttft"]);
}
