//! The file of `vllm bench serve --save-result --save-detailed` (0.32), from our records and by its definitions.
//! Embedding runs use that tool's embedding format.
//!
//! `request_rate` is the configured rate of a load. For a replayed trace, a shard or several stages it is the plan's
//! rate, and one rising stage has the `ramp_up_*` of a linear ramp. Unknown values appear as that tool writes them:
//! texts are empty, `label` is null, and `burstiness` is 1 except for gamma gaps. `start_times` are seconds since the
//! run's start. `request_goodput` is present if the run has exactly one SLO. Slots add `client_queue_time`, and an open
//! loop adds `e2el_including_client_queue`, as that tool does on request. A failed request has latency 0, as in that
//! tool, and the other values as far as it got.
//!
//! Two groups of fields are omitted, because that tool reads them from other sources. These are `spec_decode_*` and
//! `diffusion_*` from the server's metrics, and `probe_*` from extra requests. Later versions add `server_queue_times`
//! and `server_ttfts` from a response's optional `metrics` object, which records do not contain.

use serde_json::{Value, json};

use super::accumulate::SloCounts;
use super::definitions::Definitions;
use super::request_view::RequestView;
use super::source::ReportSource;
use super::tool_column::ToolColumn;
use super::tool_fields::{ToolFields, failure_text, python_timestamp};
use crate::measure::calendar::utc;
use crate::measure::time::{Gap, Stamp, extend_span};

/// File name.
pub const FILE: &str = "vllm_bench_serve.json";

/// Percentiles in the summary.
const PERCENTILES: [u32; 3] = [50, 90, 99];
/// Maximum number of one-second buckets (a day), and maximum number of ramp steps.
const MAX_SECONDS: usize = 86_400;

/// Collects requests and renders the file. The file lists all values of all requests, so all stay in memory.
#[derive(Debug, Default)]
pub struct Vllm {
    model: Option<String>,
    dialect: Option<String>,
    rows: Vec<VllmRow>,
    planned: Option<(Stamp, Stamp)>,
    window: Option<(Stamp, Stamp)>,
}

/// One request; times in seconds.
#[derive(Debug)]
struct VllmRow {
    start: f64,
    queued: f64,
    ttft: f64,
    itls: Vec<f64>,
    latency: f64,
    tpot: Option<f64>,
    input: u64,
    output: u64,
    /// Empty for a success.
    error: String,
}

/// Arrival rate, in the tool's terms.
struct VllmRate {
    /// Requests per second; `None` for all at once or for a ramp.
    rate: Option<f64>,
    burstiness: f64,
    /// (start rate, end rate, seconds).
    ramp: Option<(f64, f64, f64)>,
}

impl Vllm {
    /// Adds a request.
    pub fn add(&mut self, request: &RequestView) {
        let times = Definitions::Vllm.times(request, request.sent);
        let secs = |gap: Option<Gap>| gap.map_or(0.0, Gap::as_secs);
        let whole = request.succeeded();
        self.model = self.model.take().or_else(|| request.model.clone());
        self.dialect = self.dialect.take().or_else(|| request.dialect.clone());
        self.planned = Some(extend_span(self.planned, request.started(), request.started()));
        self.window = Some(extend_span(self.window, request.sent, request.ended.unwrap_or(request.sent)));
        self.rows.push(VllmRow {
            start: request.sent.since(Stamp::default()).as_secs(),
            queued: request.planned.map_or(0.0, |planned| request.sent.since(planned).as_secs()),
            ttft: secs(times.ttft),
            itls: request.events.iter().map(|event| event.gap().as_secs()).collect(),
            latency: if whole { secs(times.e2e) } else { 0.0 },
            tpot: times.tpot.map(Gap::as_secs),
            input: request.input.unwrap_or(0),
            output: Definitions::Vllm.tokens(request).filter(|_| whole).unwrap_or(0),
            error: if whole { String::new() } else { failure_text(request) },
        });
    }

    /// Renders the file with requests in plan order.
    pub fn render(mut self, sources: &[ReportSource], goodput: &[SloCounts]) -> String {
        self.rows.sort_by(|a, b| (a.start - a.queued).total_cmp(&(b.start - b.queued)));
        let began = sources.iter().filter_map(|source| source.started_unix_ns).min().unwrap_or(0);
        let slots = sources.iter().filter_map(|source| source.slots).max();
        let backend = self.dialect.as_deref().map_or("openai-chat", backend);
        let model = self.model.clone().unwrap_or_default();
        let rate = self.rate(sources);
        let mut fields = ToolFields::default();
        fields.put("date", json!(utc(began).replace(['-', ':'], "").replace('T', "-").replace('Z', "")));
        fields.put("endpoint_type", json!(backend));
        fields.put("backend", json!(backend));
        fields.put("label", Value::Null);
        fields.put("model_id", json!(model));
        fields.put("tokenizer_id", json!(model));
        fields.put("num_prompts", json!(self.rows.len()));
        fields.put("request_rate", rate.rate.map_or(json!("inf"), |rate| json!(rate)));
        fields.put("burstiness", json!(rate.burstiness));
        fields.put("max_concurrency", json!(slots));
        if let Some((from, to, _)) = rate.ramp {
            fields.put("ramp_up_strategy", json!("linear"));
            fields.put("ramp_up_start_rps", json!(from as u64));
            fields.put("ramp_up_end_rps", json!(to as u64));
        }
        let of_text = backend != "openai-embeddings";
        self.totals(&mut fields, of_text, goodput);
        if let Some((from, to, seconds)) = rate.ramp {
            let reached = |rate: u64| began + ((rate as f64 - from).max(0.0) / (to - from) * seconds * 1e9) as u64;
            let event = |rate: u64| json!({"rps": rate, "timestamp": python_timestamp(reached(rate))});
            fields.put(
                "rps_change_events",
                json!((from as u64..=to as u64).take(MAX_SECONDS).map(event).collect::<Vec<_>>()),
            );
        }
        let good = || self.rows.iter().filter(|row| row.error.is_empty());
        let column = |of: fn(&VllmRow) -> f64| ToolColumn(good().map(of).collect());
        if of_text {
            put_percentiles(&mut fields, "ttft", &column(|row| row.ttft));
            put_percentiles(&mut fields, "tpot", &ToolColumn(good().filter_map(|row| row.tpot).collect()));
            put_percentiles(&mut fields, "itl", &ToolColumn(good().flat_map(|row| row.itls.iter().copied()).collect()));
        }
        put_percentiles(&mut fields, "e2el", &column(|row| row.latency));
        if slots.is_some() {
            put_percentiles(&mut fields, "client_queue_time", &column(|row| row.queued));
            if rate.rate.is_some() {
                put_percentiles(&mut fields, "e2el_including_client_queue", &column(|row| row.latency + row.queued));
            }
        }
        // Numbers and texts always serialize.
        serde_json::to_string(&fields).unwrap_or_default()
    }

    /// Writes the totals and the per-request lists.
    fn totals(&self, fields: &mut ToolFields, of_text: bool, goodput: &[SloCounts]) {
        let duration = seconds(self.window);
        let per_second = |number: u64| if duration > 0.0 { number as f64 / duration } else { 0.0 };
        let good = || self.rows.iter().filter(|row| row.error.is_empty());
        let completed = good().count() as u64;
        let (input, output): (u64, u64) = (good().map(|row| row.input).sum(), good().map(|row| row.output).sum());
        let each = |of: fn(&VllmRow) -> Value| Value::Array(self.rows.iter().map(of).collect());
        fields.put("duration", json!(duration));
        fields.put("completed", json!(completed));
        if !of_text {
            fields.put("total_input_tokens", json!(input));
            // Each of our embedding requests has exactly one input sequence.
            fields.put("total_input_sequences", json!(completed));
            fields.put("request_throughput", json!(per_second(completed)));
            fields.put("input_sequence_throughput", json!(per_second(completed)));
            fields.put("total_token_throughput", json!(per_second(input)));
            fields.put("input_lens", each(|row| json!(row.input)));
            fields.put("latencies", each(|row| json!(row.latency)));
            fields.put("queue_times", each(|row| json!(row.queued)));
            fields.put("errors", each(|row| json!(row.error)));
            return;
        }
        let met = if let [only] = goodput { json!(per_second(only.met)) } else { Value::Null };
        fields.put("failed", json!(self.rows.len() as u64 - completed));
        fields.put("total_input_tokens", json!(input));
        fields.put("total_output_tokens", json!(output));
        fields.put("request_throughput", json!(per_second(completed)));
        fields.put("request_goodput", met);
        fields.put("output_throughput", json!(per_second(output)));
        fields.put("total_token_throughput", json!(per_second(input + output)));
        fields.put("input_lens", each(|row| json!(row.input)));
        fields.put("output_lens", each(|row| json!(row.output)));
        fields.put("ttfts", each(|row| json!(row.ttft)));
        fields.put("itls", each(|row| json!(row.itls)));
        fields.put("latencies", each(|row| json!(row.latency)));
        fields.put("start_times", each(|row| json!(row.start)));
        fields.put("queue_times", each(|row| json!(row.queued)));
        fields.put("generated_texts", each(|_| json!("")));
        fields.put("errors", each(|row| json!(row.error)));
        let (tokens, open) = self.peaks();
        fields.put("max_output_tokens_per_s", json!(tokens as f64));
        fields.put("max_concurrent_requests", json!(open));
        fields.put("rtfx", json!(0.0));
    }

    /// Returns the maximum number of token chunks and of open requests within one second, in seconds counted from the
    /// first success.
    fn peaks(&self) -> (u64, u64) {
        let good = || self.rows.iter().filter(|row| row.error.is_empty());
        let first = good().map(|row| row.start).fold(f64::INFINITY, f64::min);
        let (mut tokens, mut open) = (Vec::new(), Vec::new());
        for row in good() {
            let start = row.start - first;
            let seconds = start as usize..=((start + row.latency) as usize).min(MAX_SECONDS);
            seconds.for_each(|second| count(&mut open, second));
            let mut at = start + row.ttft;
            for gap in std::iter::once(0.0).chain(row.itls.iter().copied()) {
                at += gap;
                count(&mut tokens, at as usize);
            }
        }
        let most = |counts: Vec<u64>| counts.into_iter().max().unwrap_or(0);
        (most(tokens), most(open))
    }

    fn rate(&self, sources: &[ReportSource]) -> VllmRate {
        let arrivals = sources.first().map_or(&Value::Null, |source| &source.arrivals);
        let burstiness = arrivals["burstiness"].as_f64().unwrap_or(1.0);
        let of = |rate, ramp| VllmRate { rate, burstiness, ramp };
        let span = seconds(self.planned);
        if span == 0.0 || sources.iter().any(|source| source.closed_loop) {
            return of(None, None);
        }
        let only = arrivals["stages"].as_array().filter(|stages| stages.len() == 1).map(|stages| &stages[0]);
        let stage = only.and_then(|stage| Some((stage["from"].as_f64()?, stage["to"].as_f64()?)));
        let length = only.and_then(|stage| stage["seconds"].as_f64());
        match (stage, length) {
            (Some((from, to)), _) if from == to => of(Some(from), None),
            (Some((from, to)), Some(seconds)) if from < to => of(None, Some((from, to, seconds))),
            _ => of(Some((self.rows.len() - 1) as f64 / span), None),
        }
    }
}

fn seconds(span: Option<(Stamp, Stamp)>) -> f64 {
    span.map_or(0.0, |(first, last)| last.since(first).as_secs())
}

/// Writes the statistics of a column in seconds.
fn put_percentiles(fields: &mut ToolFields, name: &str, column: &ToolColumn) {
    let stats = column.stats();
    fields.put(&format!("mean_{name}_ms"), json!(stats.mean() * 1e3));
    fields.put(&format!("median_{name}_ms"), json!(stats.percentile(50.0) * 1e3));
    fields.put(&format!("std_{name}_ms"), json!(stats.std() * 1e3));
    for percent in PERCENTILES {
        fields.put(&format!("p{percent}_{name}_ms"), json!(stats.percentile(percent.into()) * 1e3));
    }
}

/// Returns the tool's backend name for a dialect, or the dialect's own name if it has none.
fn backend(dialect: &str) -> &str {
    match dialect {
        "openai.chat" => "openai-chat",
        "openai.completions" => "openai",
        "openai.responses" => "openai-responses",
        "openai.embeddings" => "openai-embeddings",
        other => other,
    }
}

/// Increments the bucket of a second.
fn count(buckets: &mut Vec<u64>, second: usize) {
    if second < MAX_SECONDS {
        buckets.resize(buckets.len().max(second + 1), 0);
        buckets[second] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::record::{CountSource, Outcome};
    use crate::measure::timeline::TokenEvent;
    use crate::trace_file::gaps::pack;
    use crate::trace_file::row::{PromptShape, Timing, TraceEntry};

    /// A request sent 0.25 s late at `second`, with three tokens half a second apart and the first after one second.
    fn row(second: u64, outcome: Outcome) -> TraceEntry {
        let gap = TokenEvent::new(Gap::from_millis(500), Some(1));
        TraceEntry {
            at: second * 1_000_000_000,
            planned: Some(second * 1_000_000_000 - 250_000_000),
            stream: Some(true),
            status: Some(200),
            dialect: Some("openai.chat".to_owned()),
            outcome: Some(outcome),
            output_tokens: Some(3),
            output_source: Some(CountSource::Usage),
            prompt: PromptShape { tokens: Some(7), ..PromptShape::default() },
            timing: Timing {
                first_token: Some(1_000_000_000),
                ended: Some(2_100_000_000),
                gaps: Some(pack(&[gap, gap])),
                ..Timing::default()
            },
            ..TraceEntry::default()
        }
    }

    fn file(rows: impl IntoIterator<Item = TraceEntry>, source: ReportSource) -> Value {
        let mut vllm = Vllm::default();
        rows.into_iter().for_each(|row| vllm.add(&RequestView::from_row(row, 0, None).unwrap()));
        serde_json::from_str(&vllm.render(&[source], &[])).unwrap()
    }

    #[test]
    fn a_failure_has_what_came_and_no_latency_and_is_in_no_total() {
        let document = file([row(5, Outcome::Success), row(6, Outcome::Truncated)], ReportSource::default());
        assert_eq!((&document["latencies"], &document["ttfts"]), (&json!([2.0, 0.0]), &json!([1.0, 1.0])));
        assert_eq!((&document["itls"][1], &document["output_lens"]), (&json!([0.5, 0.5]), &json!([3, 0])));
        assert_eq!(document["errors"], json!(["", "truncated: status 200"]));
        assert_eq!(
            (&document["completed"], &document["failed"], &document["total_input_tokens"]),
            (&json!(1), &json!(1), &json!(7))
        );
        assert_eq!((&document["mean_e2el_ms"], &document["mean_tpot_ms"]), (&json!(2_000.0), &json!(500.0)));
    }

    #[test]
    fn seconds_are_counted_from_the_first_success() {
        let mut odd = row(6, Outcome::Success);
        odd.at += 400_000_000;
        // Counted from the first success, its tokens fall into seconds 1, 1 and 2, and the other's into 2, 2 and 3.
        let document = file([odd, row(5, Outcome::Success)], ReportSource::default());
        assert_eq!(document["start_times"], json!([5.0, 6.4]), "in the order of the plan");
        assert_eq!(
            (&document["max_output_tokens_per_s"], &document["max_concurrent_requests"]),
            (&json!(3.0), &json!(2))
        );
    }

    #[test]
    fn the_rate_is_what_was_asked_for_and_else_that_of_the_plan() {
        let rows = || [row(5, Outcome::Success), row(7, Outcome::Success)];
        let started_unix_ns = Some(1_795_221_711_000_000_000);
        let of = |arrivals: Value| file(rows(), ReportSource { arrivals, started_unix_ns, ..ReportSource::default() });
        let steady = of(json!({"burstiness": 0.5, "stages": [{"from": 10.0, "to": 10.0, "seconds": null}]}));
        assert_eq!((&steady["request_rate"], &steady["burstiness"]), (&json!(10.0), &json!(0.5)));
        let unknown = of(Value::Null);
        assert_eq!((&unknown["request_rate"], &unknown["burstiness"]), (&json!(0.5), &json!(1.0)));
        assert!(unknown.get("ramp_up_strategy").is_none() && unknown.get("rps_change_events").is_none());
        let ramp = of(json!({"burstiness": 1.0, "stages": [{"from": 1.0, "to": 3.0, "seconds": 4.0}]}));
        assert_eq!((&ramp["request_rate"], &ramp["ramp_up_strategy"]), (&json!("inf"), &json!("linear")));
        assert_eq!((&ramp["ramp_up_start_rps"], &ramp["ramp_up_end_rps"]), (&json!(1), &json!(3)));
        let steps = ramp["rps_change_events"].as_array().unwrap();
        assert_eq!(steps.iter().map(|step| step["rps"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(steps[0]["timestamp"], "2026-11-21T00:41:51.000000");
        let closed = file(rows(), ReportSource { closed_loop: true, slots: Some(2), ..ReportSource::default() });
        assert_eq!((&closed["request_rate"], &closed["max_concurrency"]), (&json!("inf"), &json!(2)));
    }

    #[test]
    fn with_slots_there_is_how_long_requests_waited_for_one() {
        let rows = || [row(5, Outcome::Success), row(7, Outcome::Success)];
        let document = file(rows(), ReportSource { slots: Some(2), ..ReportSource::default() });
        assert_eq!(document["mean_client_queue_time_ms"], 250.0);
        assert_eq!(document["p99_e2el_including_client_queue_ms"], 2_250.0);
        let closed = file(rows(), ReportSource { slots: Some(2), closed_loop: true, ..ReportSource::default() });
        assert!(
            closed.get("p99_e2el_including_client_queue_ms").is_none() && closed["std_client_queue_time_ms"] == 0.0
        );
        assert!(file(rows(), ReportSource::default()).get("mean_client_queue_time_ms").is_none());
    }

    #[test]
    fn of_embeddings_it_has_other_fields() {
        let mut row = row(5, Outcome::Success);
        (row.dialect, row.stream) = (Some("openai.embeddings".to_owned()), Some(false));
        let document = file([row], ReportSource::default());
        assert_eq!(
            (&document["backend"], &document["total_input_sequences"]),
            (&json!("openai-embeddings"), &json!(1))
        );
        assert_eq!((&document["input_lens"], &document["mean_e2el_ms"]), (&json!([7]), &json!(2_100.0)));
        for key in ["failed", "ttfts", "total_output_tokens", "mean_ttft_ms", "rtfx"] {
            assert!(document.get(key).is_none(), "{key}");
        }
    }
}
