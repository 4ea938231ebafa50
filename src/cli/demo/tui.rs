//! The demo's screen: a table in place on a terminal, a line at a time elsewhere, and the summary.

use std::collections::BTreeMap;
use std::io;

use comfy_table::{Attribute, Cell, CellAlignment, Table, presets};
use schemars::JsonSchema;
use serde::Serialize;

use super::{OBJECTIVES, SLO_NAME};
use crate::cli::status_block::StatusBlock;
use crate::export::control::live_view::{LatencyQuantiles, LiveSnapshot, WindowGoodput, WindowStats};

/// Where progress is shown.
pub(super) struct DemoScreen {
    colourful: bool,
    standing: StatusBlock,
}

impl DemoScreen {
    pub(super) fn of_stderr() -> Self {
        Self { colourful: crate::cli::terminal::supports_colour(&io::stderr()), standing: StatusBlock::on_stderr() }
    }

    /// Shows the figures: latencies and rates since `then`, counts since `began`.
    pub(super) fn show(&mut self, now: &LiveSnapshot, then: &LiveSnapshot, began: &LiveSnapshot) {
        if !self.standing.is_terminal() {
            crate::cli::terminal::eprint_line(&line(now, then, began));
            return;
        }
        let (age, recent) = (now.at.since(began.at).as_secs(), now.at.since(then.at).as_secs());
        let title = format!("SIMULATED, {age:.0} s; latencies and rates are of the last {recent:.0} s");
        self.standing.replace(&format!("{title}\n\n{}", table(now, then, began, self.colourful)));
    }

    /// Takes the table off the terminal.
    pub(super) fn clear(&mut self) {
        self.standing.clear();
    }
}

/// The whole run, for people.
pub(super) fn summary(ended: &LiveSnapshot, began: &LiveSnapshot) -> String {
    let goodput = ended.goodput(SLO_NAME, None, began);
    format!(
        "SIMULATED, {:.1} s: times of a cost model, which say nothing about any hardware.\n\n{}\n\
         {} of {} requests met {OBJECTIVES}; {} came whole or without text and are not judged.\n",
        ended.at.since(began.at).as_secs(),
        table(ended, began, began, crate::cli::terminal::supports_colour(&io::stdout())),
        goodput.met,
        goodput.met + goodput.missed,
        goodput.excluded,
    )
}

/// The whole run as one JSON object.
#[derive(Serialize, JsonSchema)]
pub(in crate::cli) struct DemoSummary<'a> {
    /// Always true: the server is simulated.
    simulated: bool,
    slo: &'a str,
    all: DemoMetrics,
    models: BTreeMap<&'a str, DemoMetrics>,
}

#[derive(Serialize, JsonSchema)]
struct DemoMetrics {
    #[serde(flatten)]
    window: WindowStats,
    goodput: WindowGoodput,
}

/// The whole run, for programs.
pub(super) fn json(ended: &LiveSnapshot, began: &LiveSnapshot) -> String {
    let figures =
        |model| DemoMetrics { window: ended.window(model, began), goodput: ended.goodput(SLO_NAME, model, began) };
    let models = ended.active_models(began).into_iter().map(|model| (model, figures(Some(model)))).collect();
    let summary = DemoSummary { simulated: true, slo: OBJECTIVES, all: figures(None), models };
    // Our own structures with string keys always serialise.
    serde_json::to_string_pretty(&summary).unwrap_or_default() + "\n"
}

/// The figures of all models in one line.
fn line(now: &LiveSnapshot, then: &LiveSnapshot, began: &LiveSnapshot) -> String {
    let window = now.window(None, then);
    format!(
        "SIMULATED, {:.0} s: {} requests, {} open, TTFT p50 {} p99 {} ms, ITL p50 {} p99 {} ms, {:.0} tokens/s, \
         goodput {:.1}/s",
        now.at.since(began.at).as_secs(),
        now.window(None, began).requests,
        now.in_flight.requests,
        millis(window.ttft_ms, |ttft| ttft.p50),
        millis(window.ttft_ms, |ttft| ttft.p99),
        millis(window.itl_ms, |itl| itl.p50),
        millis(window.itl_ms, |itl| itl.p99),
        window.tokens_per_s,
        now.goodput(SLO_NAME, None, then).goodput_requests_per_s,
    )
}

/// A column for each model that has been asked for, and one for all: latencies and rates since `then`, counts since
/// `began`.
fn table(now: &LiveSnapshot, then: &LiveSnapshot, began: &LiveSnapshot, colourful: bool) -> String {
    let endings = now.window(None, began).terminations;
    let names = ROW_LABELS.map(str::to_owned).into_iter().chain(endings.keys().map(|how| format!("ended: {how}")));
    let mut columns = vec![(String::new(), names.collect())];
    for model in now.active_models(began).into_iter().map(Some).chain([None]) {
        let run = now.window(model, began);
        let mut figures = figures(now, then, model, run.requests);
        figures.extend(endings.keys().map(|how| run.terminations.get(how).map_or("-".to_owned(), u64::to_string)));
        columns.push((model.unwrap_or("all").to_owned(), figures));
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|(name, _)| Cell::new(name).add_attribute(Attribute::Bold)));
    for row in 0..columns[0].1.len() {
        table.add_row(columns.iter().map(|(_, column)| &column[row]));
    }
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    if colourful {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Labels of a model's rows.
const ROW_LABELS: [&str; 10] = [
    "requests",
    "in flight",
    "TTFT p50, ms",
    "TTFT p90, ms",
    "TTFT p99, ms",
    "ITL p50, ms",
    "ITL p99, ms",
    "tokens per second",
    "goodput per second",
    "met the SLO",
];

/// See [`FIGURES`].
fn figures(now: &LiveSnapshot, then: &LiveSnapshot, model: Option<&str>, requests: u64) -> Vec<String> {
    let open =
        model.map_or(now.in_flight.requests, |model| now.in_flight.by_model.get(model).copied().unwrap_or_default());
    let (window, goodput) = (now.window(model, then), now.goodput(SLO_NAME, model, then));
    vec![
        requests.to_string(),
        open.to_string(),
        millis(window.ttft_ms, |ttft| ttft.p50),
        millis(window.ttft_ms, |ttft| ttft.p90),
        millis(window.ttft_ms, |ttft| ttft.p99),
        millis(window.itl_ms, |itl| itl.p50),
        millis(window.itl_ms, |itl| itl.p99),
        format!("{:.0}", window.tokens_per_s),
        format!("{:.1}", goodput.goodput_requests_per_s),
        goodput.met_ratio.map_or("-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0)),
    ]
}

/// A latency with three digits or more; `-` where there is none.
fn millis(quantiles: Option<LatencyQuantiles>, which: fn(LatencyQuantiles) -> f64) -> String {
    match quantiles.map(which) {
        None => "-".to_owned(),
        Some(millis) if millis < 99.95 => format!("{millis:.1}"),
        Some(millis) => format!("{millis:.0}"),
    }
}
