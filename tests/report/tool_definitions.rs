//! `report --definitions`: from a tool's own records, our formulas compute the summary that the tool wrote of that run.

use std::fs;
use std::path::Path;

use serde_json::Value;
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::slo::Slos;
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::report::Report;
use streamgauge::report::accumulate::{Accumulator, AccumulatorSettings};
use streamgauge::report::aiperf::Aiperf;
use streamgauge::report::definitions::Definitions;
use streamgauge::report::request_view::RequestView;
use streamgauge::trace_file::gaps::pack;
use streamgauge::trace_file::row::{PromptShape, Timing, TraceEntry, TransferStats};

const SECOND: f64 = 1e9;
const MILLI: f64 = 1e6;

fn file(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results").join(name)).unwrap()
}

/// One request as a tool recorded it; times in nanoseconds.
struct Recorded {
    start: f64,
    ttft: f64,
    gaps: Vec<f64>,
    tokens: u64,
    input: u64,
}

impl Recorded {
    fn row(&self) -> TraceEntry {
        let nanos = |value: f64| value.round() as u64;
        let events: Vec<_> = self.gaps.iter().map(|gap| TokenEvent::new(Gap::from_nanos(nanos(*gap)), None)).collect();
        let last = self.ttft + self.gaps.iter().sum::<f64>();
        TraceEntry {
            at: nanos(self.start),
            stream: Some(true),
            status: Some(200),
            outcome: Some(Outcome::Success),
            output_tokens: Some(self.tokens),
            output_source: Some(CountSource::Usage),
            prompt: PromptShape { tokens: Some(self.input), ..PromptShape::default() },
            timing: Timing {
                first_token: Some(nanos(self.ttft)),
                first_output: Some(nanos(self.ttft)),
                // Usage and the end mark come after the last token.
                ended: Some(nanos(last) + 5_000_000),
                gaps: Some(pack(&events)),
                ..Timing::default()
            },
            ..TraceEntry::default()
        }
    }

    fn request(&self) -> RequestView {
        RequestView::from_row(self.row(), 0, None).unwrap()
    }
}

fn report(definitions: Definitions, recorded: &[Recorded]) -> Value {
    let mut fold = Accumulator::new(AccumulatorSettings { definitions, ..AccumulatorSettings::default() });
    recorded.iter().for_each(|recorded| fold.add(&recorded.request()).unwrap());
    let percentiles = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0];
    serde_json::from_str(&Report::of(&mut fold, Vec::new(), &percentiles).json()).unwrap()
}

/// A request as AIPerf wrote it down, with how its bytes went.
fn of_aiperf(line: &Value, zero: u64) -> RequestView {
    let of = |tag: &str| line["metrics"][tag]["value"].as_f64().unwrap();
    let at = |name: &str| line["metadata"][name].as_u64().unwrap() - zero;
    let nanos = |tag: &str| (of(tag) * MILLI).round() as u64;
    let recorded = Recorded {
        start: at("request_start_ns") as f64,
        ttft: of("time_to_first_token") * MILLI,
        gaps: numbers(&line["metrics"]["inter_chunk_latency"]["value"]).iter().map(|gap| gap * MILLI).collect(),
        tokens: of("output_sequence_length") as u64,
        input: of("input_sequence_length") as u64,
    };
    let mut row = recorded.row();
    let (sent, waited) = (nanos("http_req_sending"), nanos("http_req_waiting"));
    row.planned = Some(at("credit_issued_ns"));
    row.params.max_tokens = Some(100);
    row.prompt.source = Some(CountSource::Usage);
    row.timing.sent = Some(sent);
    // As the times of its tokens are: what came at once is to end at once.
    row.timing.ended = Some((at("request_end_ns") - row.at + 500) / 1_000 * 1_000);
    row.transfer = Some(Box::new(TransferStats {
        connecting: Some(nanos("http_req_connecting")),
        head: Some(at("request_ack_ns") - row.at),
        first_byte: Some(sent + waited),
        sent: Some((of("http_req_data_sent") * 1024.0).round() as u64),
        received: Some((of("http_req_data_received") * 1024.0).round() as u64),
        reads: Some(of("http_req_chunks_received") as u32),
    }));
    RequestView::from_row(row, 0, None).unwrap()
}

/// Within what rounding to microseconds explains.
fn near(ours: &Value, theirs: &Value, what: &str) {
    let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
    assert!((ours - theirs).abs() <= theirs.abs() * 1e-4 + 0.002, "{what}: {ours}, the tool said {theirs}");
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn from_vllms_records_come_vllms_figures() {
    let theirs: Value = serde_json::from_str(&file("vllm_bench_serve.json")).unwrap();
    let of = |name: &str| numbers(&theirs[name]);
    let (starts, ttfts, lens, inputs) = (of("start_times"), of("ttfts"), of("output_lens"), of("input_lens"));
    let recorded: Vec<Recorded> = (0..starts.len())
        .map(|at| Recorded {
            start: starts[at] * SECOND,
            ttft: ttfts[at] * SECOND,
            gaps: numbers(&theirs["itls"][at]).iter().map(|gap| gap * SECOND).collect(),
            tokens: lens[at] as u64,
            input: inputs[at] as u64,
        })
        .collect();
    assert_eq!(recorded.len(), 40);
    let ours = report(Definitions::Vllm, &recorded);
    for (metric, name) in [("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")] {
        for (stat, key) in [("avg", "mean"), ("p50", "median"), ("std", "std"), ("p90", "p90"), ("p99", "p99")] {
            near(&ours["metrics"][metric][stat], &theirs[format!("{key}_{name}_ms")], &format!("{key} {name}"));
        }
    }
    assert_eq!(
        (&ours["tokens"]["input"], &ours["tokens"]["output"]),
        (&theirs["total_input_tokens"], &theirs["total_output_tokens"])
    );
}

#[test]
fn from_aiperfs_records_come_aiperfs_figures() {
    let theirs: Value = serde_json::from_str(&file("profile_export_aiperf.json")).unwrap();
    let record = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let of = |tag: &str| line["metrics"][tag]["value"].as_f64().unwrap();
        Recorded {
            start: (line["metadata"]["request_start_ns"].as_u64().unwrap() - 1_795_221_711_000_000_000) as f64,
            ttft: of("time_to_first_token") * MILLI,
            gaps: numbers(&line["metrics"]["inter_chunk_latency"]["value"]).iter().map(|gap| gap * MILLI).collect(),
            tokens: of("output_sequence_length") as u64,
            input: of("input_sequence_length") as u64,
        }
    };
    let recorded: Vec<Recorded> = file("profile_export.jsonl").lines().map(record).collect();
    assert_eq!(recorded.len(), 40);
    let ours = report(Definitions::Aiperf, &recorded);
    for (metric, tag) in [
        ("ttft", "time_to_first_token"),
        ("ttfo", "time_to_first_output_token"),
        ("second_token", "time_to_second_token"),
        ("itl", "inter_token_latency"),
        ("gap", "inter_chunk_latency"),
        ("e2e", "request_latency"),
        ("isl", "input_sequence_length"),
        ("osl", "output_sequence_length"),
    ] {
        for stat in ["count", "avg", "min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max", "std"] {
            near(&ours["metrics"][metric][stat], &theirs[tag][stat], &format!("{tag} {stat}"));
        }
    }
    let rate = &ours["metrics"]["tokens_per_second_per_user"];
    near(&rate["avg"], &theirs["output_token_throughput_per_user"]["avg"], "tokens/s per user");
    near(&ours["seconds"], &theirs["benchmark_duration"]["avg"], "duration");
    // Its rates are over the phase, which began some milliseconds before the first request.
    for (rate, tag) in [
        ("requests", "request_throughput"),
        ("output_tokens", "output_token_throughput"),
        ("total_tokens", "total_token_throughput"),
    ] {
        let ratio = ours["throughput"][rate].as_f64().unwrap() / theirs[tag]["avg"].as_f64().unwrap();
        assert!((1.0..1.000_5).contains(&ratio), "{tag}: {ratio} of what the tool said");
    }
}

#[test]
fn from_aiperfs_records_comes_every_number_of_its_summary() {
    let document: Value = serde_json::from_str(&file("profile_export_aiperf.json")).unwrap();
    let zero = 1_795_221_711_000_000_000;
    let mut aiperf = Aiperf::new(false);
    for line in file("profile_export.jsonl").lines() {
        aiperf.add(&of_aiperf(&serde_json::from_str(line).unwrap(), zero), true, zero);
    }
    let [_, summary, _] = aiperf.render(&[], &[]);
    let ours: Value = serde_json::from_str(&summary).unwrap();
    let metrics: Vec<_> =
        document.as_object().unwrap().iter().filter(|(_, metric)| metric["unit"].is_string()).collect();
    assert_eq!(metrics.len(), 62);
    for (tag, metric) in metrics {
        for (stat, theirs) in metric.as_object().unwrap().iter().filter(|(_, value)| value.is_number()) {
            let own = ours[tag][stat].as_f64().unwrap_or_else(|| panic!("{tag} has no {stat}"));
            let theirs = theirs.as_f64().unwrap();
            // Its window begins some milliseconds before the first request, which moves what is weighted by time.
            let share = if tag.starts_with("effective_") { 0.03 } else { 0.001 };
            assert!((own - theirs).abs() <= theirs.abs() * share + 0.002, "{tag} {stat}: {own}, AIPerf said {theirs}");
        }
    }
}

/// A reply of these tokens, the first after 100 ms, then one event every 10 ms, with an end 5 ms after the last.
fn reply(tokens: u64, events: usize) -> TraceEntry {
    let gaps = vec![10.0 * MILLI; events - 1];
    Recorded { start: 0.0, ttft: 100.0 * MILLI, gaps, tokens, input: 7 }.row()
}

fn figures(definitions: Definitions, rows: impl IntoIterator<Item = TraceEntry>, slo: Option<&str>) -> Value {
    let slos = Slos::new(slo.iter().map(|slo| slo.parse().unwrap()).collect()).unwrap();
    let mut fold = Accumulator::new(AccumulatorSettings { definitions, slos, ..AccumulatorSettings::default() });
    rows.into_iter().for_each(|row| fold.add(&RequestView::from_row(row, 0, None).unwrap()).unwrap());
    serde_json::from_str(&Report::of(&mut fold, Vec::new(), &[50.0]).json()).unwrap()
}

#[test]
fn each_tool_has_its_own_time_per_token() {
    // Seven tokens in four events: 100 ms, then 30 ms, then 5 ms to the end.
    let of = |definitions, metric: &str| figures(definitions, [reply(7, 4)], None)["metrics"][metric]["avg"].as_f64();
    use Definitions::{Aiperf, Guidellm, Otel, Sglang, Vllm};
    assert_eq!([Aiperf, Vllm].map(|tool| of(tool, "e2e")), [Some(130.0); 2], "to the last token");
    assert_eq!([Sglang, Guidellm, Otel].map(|tool| of(tool, "e2e")), [Some(135.0); 3], "to the end");
    let tpot = [Some(5.0), Some(35.0 / 6.0), Some(130.0 / 7.0), Some(35.0 / 6.0), None];
    for (tool, expected) in [Vllm, Sglang, Guidellm, Otel, Aiperf].into_iter().zip(tpot) {
        let tpot = of(tool, "tpot");
        assert!(
            tpot.zip(expected).map_or(tpot == expected, |(ours, of)| (ours - of).abs() < 1e-5),
            "{tool:?}: {tpot:?}"
        );
    }
    assert_eq!(
        [Vllm, Sglang, Aiperf, Guidellm, Otel].map(|tool| of(tool, "itl")),
        [Some(10.0), Some(10.0), Some(5.0), Some(5.0), None]
    );
}

#[test]
fn a_reply_of_one_token_has_no_time_between_tokens_and_one_of_one_event_has_one_of_zero() {
    for tool in [Definitions::Aiperf, Definitions::Vllm, Definitions::Sglang, Definitions::Guidellm] {
        let one = &figures(tool, [reply(1, 1)], None)["metrics"];
        assert!(one.get("itl").is_none() && one["ttft"]["avg"] == 100.0, "{tool:?}: {one}");
        // This metric is per token of a request, not per gap.
        let (several, metric) = (
            &figures(tool, [reply(7, 1)], None)["metrics"],
            if tool == Definitions::Vllm || tool == Definitions::Sglang { "tpot" } else { "itl" },
        );
        let expected = if tool == Definitions::Sglang { 5.0 / 6.0 } else { 0.0 };
        assert!((several[metric]["avg"].as_f64().unwrap() - expected).abs() < 1e-5, "{tool:?}: {several}");
    }
}

#[test]
fn guidellm_counts_a_request_as_often_as_it_has_tokens() {
    // Of 2 tokens 10 ms apart and of 9 in as many: weights of 1 and 8, and of 2 and 9.
    let metrics = &figures(Definitions::Guidellm, [reply(2, 2), reply(9, 2)], None)["metrics"];
    let near = |metric: &str, expected: f64| {
        assert!((metrics[metric]["avg"].as_f64().unwrap() - expected).abs() < 1e-4, "{metric}: {metrics}")
    };
    near("itl", (10.0 + 8.0 * 10.0 / 8.0) / 9.0);
    near("tpot", (110.0 + 110.0) / 11.0);
    assert_eq!((&metrics["itl"]["p50"], &metrics["ttft"]["count"]), (&1.25.into(), &2.into()));
    let unlikely = figures(Definitions::Guidellm, [reply(u64::MAX, 2)], None);
    assert_eq!(unlikely["metrics"]["itl"]["count"], 1 << 16, "a count that is made up takes no room");
}

#[test]
fn sglang_counts_the_requested_tokens_if_the_server_sent_no_count() {
    let output_tokens = |source| {
        let mut row = reply(7, 4);
        (row.output_source, row.params.max_tokens) = (Some(source), Some(16));
        figures(Definitions::Sglang, [row], None)["tokens"]["output"].as_u64().unwrap()
    };
    use CountSource::{Chunks, ContinuousUsage, Ids, Tokenizer, Usage};
    assert_eq!([Usage, ContinuousUsage, Ids, Tokenizer, Chunks].map(output_tokens), [7, 7, 16, 16, 16]);
}

#[test]
fn a_reply_that_is_no_stream_has_what_a_tool_makes_of_its_end() {
    let whole = |tool| {
        let row = TraceEntry {
            stream: Some(false),
            timing: Timing { ended: Some(140_000_000), ..Timing::default() },
            ..reply(7, 1)
        };
        let metrics = &figures(tool, [row], None)["metrics"];
        ["ttft", "tpot", "itl", "e2e"].map(|metric| metrics[metric]["avg"].as_f64())
    };
    use Definitions::{Aiperf, Guidellm, Otel, Sglang, Vllm};
    assert_eq!([Aiperf, Vllm, Otel].map(whole), [[None, None, None, Some(140.0)]; 3]);
    assert_eq!(whole(Sglang), [Some(140.0), None, None, Some(140.0)]);
    assert_eq!(whole(Guidellm), [None, Some(20.0), None, Some(140.0)]);
}

#[test]
fn a_reply_of_one_token_meets_an_objective_of_time_per_token_but_not_aiperfs() {
    let met = |tool| figures(tool, [reply(1, 1)], Some("x: tpot<=50ms"))["goodput"][0]["met"].as_u64().unwrap();
    assert_eq!([Definitions::Vllm, Definitions::Streamgauge, Definitions::Aiperf].map(met), [1, 1, 0]);
}

#[test]
fn what_failed_or_was_left_is_in_the_time_of_the_rates_and_in_no_latency() {
    for tool in Definitions::ALL {
        let failed = |at: u64, outcome| TraceEntry { at, outcome: Some(outcome), ..reply(7, 4) };
        let rows = [reply(7, 4), failed(1_000_000_000, Outcome::Failed), failed(1_865_000_000, Outcome::Cancelled)];
        let report = figures(tool, rows, None);
        assert_eq!((&report["metrics"]["ttft"]["count"], &report["seconds"]), (&1.into(), &2.0.into()), "{tool:?}");
        assert_eq!(
            (&report["throughput"]["requests"], &report["tokens"]["output"]),
            (&0.5.into(), &7.into()),
            "{tool:?}"
        );
    }
}
