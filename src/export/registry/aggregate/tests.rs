//! Tests each counting rule with exact numbers.

use super::*;
use crate::config::otlp::Sampler;
use crate::export::fixtures::{NOW, record, shape};
use crate::export::registry::catalog::Convention;
use crate::export::registry::interner::LabelValue;
use crate::export::registry::snapshot::{DataPoint, PointValue};
use crate::measure::dialect;
use crate::measure::failure::FailureOrigin;
use crate::measure::record::{CountSource, Ending, Fault, Usage};
use crate::measure::slo::Slos;

fn aggregate() -> Aggregate {
    Aggregate::new(AggregateSettings::default())
}

fn of(records: &[RequestRecord]) -> Snapshot {
    let mut aggregate = aggregate();
    records.iter().for_each(|record| aggregate.record_finished(record, None, NOW));
    aggregate.snapshot(NOW)
}

fn text(value: Option<&LabelValue>) -> String {
    match value {
        Some(LabelValue::Text(text)) => text.to_string(),
        Some(LabelValue::Int(number)) => number.to_string(),
        Some(LabelValue::Bool(truth)) => truth.to_string(),
        None => "-".to_owned(),
    }
}

/// Returns every series of an instrument: the named attributes, then either count and sum (milliseconds or tokens) or
/// the count.
fn series(snapshot: &Snapshot, id: Id, names: &[&str]) -> Vec<(String, u64, f64)> {
    let one = |point: &DataPoint| {
        let labels: Vec<String> = names.iter().map(|name| text(point.label(name))).collect();
        let scale = if id.instrument().unit == "s" { 1e3 } else { 1.0 };
        let (count, sum) = match &point.data {
            PointValue::Count(count) => (*count, 0.0),
            PointValue::Histogram(histogram, _) => (histogram.count(), (histogram.sum() * scale * 1e6).round() / 1e6),
            other => panic!("{other:?}"),
        };
        (labels.join(" "), count, sum)
    };
    let mut list: Vec<_> = snapshot.points(id).iter().map(one).collect();
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list
}

fn rows<const N: usize>(rows: [(&str, u64, f64); N]) -> Vec<(String, u64, f64)> {
    rows.map(|(labels, count, sum)| (labels.to_owned(), count, sum)).into()
}

fn failed(ending: Ending, status: Option<u16>) -> RequestRecord {
    let outcome = Outcome::decide(ending, status, false, false, false);
    RequestRecord { ending, status, outcome, ..record() }
}

#[test]
fn a_success_feeds_every_latency_with_the_attributes_of_its_request() {
    let snapshot = of(&[record()]);
    let gen_ai =
        ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "server.address", "server.port"];
    let whose = "chat openai tiny llm.local 8000";
    assert_eq!(series(&snapshot, Id::RequestDuration, &gen_ai), rows([(whose, 1, 305.0)]));
    assert_eq!(series(&snapshot, Id::RequestDuration, &["error.type"]), rows([("-", 1, 305.0)]));
    assert_eq!(series(&snapshot, Id::TimeToFirstToken, &gen_ai), rows([(whose, 1, 200.0)]));
    assert_eq!(series(&snapshot, Id::TimePerOutputToken, &gen_ai), rows([(whose, 1, 21.0)]), "105 ms / (6 - 1)");
    assert_eq!(snapshot.points(Id::RequestDuration)[0].created, NOW.unix);
}

#[test]
fn a_client_sees_the_duration_the_first_chunk_and_the_time_to_each_chunk_whatever_tokens_it_has() {
    let document = RequestRecord { streamed: false, gaps: Box::default(), ..record() };
    let snapshot = of(&[record(), document]);
    let of = |id| series(&snapshot, id, &["gen_ai.request.model", "server.address"]);
    assert_eq!(of(Id::ClientDuration), rows([("tiny llm.local", 2, 610.0)]));
    assert_eq!(of(Id::ClientFirstChunk), rows([("tiny llm.local", 1, 200.0)]), "a document has no chunks");
    assert_eq!(of(Id::ClientChunkTime), rows([("tiny llm.local", 4, 100.0)]), "20 ms are not shared by two tokens");
}

#[test]
fn without_the_metrics_of_a_client_those_of_the_server_stay_and_they_begin_again_at_zero() {
    let mut aggregate = aggregate();
    let of_client = |aggregate: &Aggregate| {
        let families = aggregate.snapshot(NOW).families;
        families.iter().filter(|family| family.id.instrument().is_of_client()).count()
    };
    aggregate.record_finished(&record(), None, NOW);
    assert_eq!(of_client(&aggregate), 4);
    aggregate.apply(AggregateSettings { gen_ai_client: false, ..AggregateSettings::default() });
    aggregate.record_finished(&record(), None, NOW);
    assert_eq!(of_client(&aggregate), 0);
    assert_eq!(series(&aggregate.snapshot(NOW), Id::TimeToFirstToken, &[]), rows([("", 2, 400.0)]));
    aggregate.apply(AggregateSettings::default());
    aggregate.record_finished(&record(), None, NOW);
    assert_eq!(series(&aggregate.snapshot(NOW), Id::ClientDuration, &[]), rows([("", 1, 305.0)]));
}

#[test]
fn phases_are_measured_from_the_first_byte_of_the_request() {
    let phases = series(&of(&[record()]), Id::TimeToPhase, &["gen_ai.request.model", "phase"]);
    let expected = [
        ("tiny evidence", 1, 200.0),
        ("tiny first_byte", 1, 151.0),
        ("tiny first_output", 1, 200.0),
        ("tiny headers", 1, 150.0),
    ];
    assert_eq!(phases, rows(expected));
}

#[test]
fn gaps_are_told_apart_by_method_and_a_shared_gap_is_one_observation() {
    let snapshot = of(&[record()]);
    let gaps = series(&snapshot, Id::InterTokenLatency, &["gen_ai.request.model", "method"]);
    assert_eq!(gaps, rows([("tiny chunk", 1, 40.0), ("tiny exact", 2, 40.0), ("tiny split", 1, 10.0)]));
    // The first event's one token, then 1, 2, 1; the unknown one is omitted.
    assert_eq!(series(&snapshot, Id::TokensPerChunk, &["gen_ai.request.model"]), rows([("tiny", 4, 5.0)]));
}

#[test]
fn failures_feed_the_duration_with_their_error_and_no_latency() {
    let snapshot = of(&[
        failed(Ending::DownstreamGone, Some(200)),
        failed(Ending::UpstreamFailed, None),
        failed(Ending::TimedOut, Some(200)),
        failed(Ending::Complete, Some(200)),
        failed(Ending::Complete, Some(429)),
    ]);
    let durations = series(&snapshot, Id::RequestDuration, &["error.type"]);
    let expected = [
        ("429", 1, 305.0),
        ("client_disconnect", 1, 305.0),
        ("eof_without_finish", 1, 305.0),
        ("timeout", 1, 305.0),
        ("upstream_reset", 1, 305.0),
    ];
    assert_eq!(durations, rows(expected));
    assert_eq!(series(&snapshot, Id::ClientDuration, &["error.type"]), durations);
    for id in [
        Id::TimeToFirstToken,
        Id::TimePerOutputToken,
        Id::TimeToPhase,
        Id::InterTokenLatency,
        Id::TokensPerChunk,
        Id::ClientFirstChunk,
        Id::ClientChunkTime,
    ] {
        assert!(snapshot.points(id).is_empty(), "{id:?}");
    }
}

#[test]
fn streams_terminate_for_a_reason_with_or_without_a_token() {
    let mut unanswered = failed(Ending::TimedOut, None);
    unanswered.streamed = false;
    unanswered.times.first_token = None;
    let fault = RequestRecord { fault: Some(Fault { event: 3, kind: None }), ..failed(Ending::Complete, Some(200)) };
    let refused = RequestRecord { streamed: false, ..failed(Ending::Complete, Some(404)) };
    let document = RequestRecord { streamed: false, ..record() };
    let records = [record(), record(), failed(Ending::DownstreamGone, Some(200)), unanswered, fault, refused, document];
    let terminations = series(&of(&records), Id::Terminations, &["reason", "first_token"]);
    let expected = [
        ("client_disconnect true", 1, 0.0),
        ("done true", 2, 0.0),
        ("error_event true", 1, 0.0),
        ("timeout false", 1, 0.0),
    ];
    assert_eq!(terminations, rows(expected));
}

#[test]
fn tokens_per_second_need_two_tokens() {
    let counted = |tokens| {
        let output_tokens = Some(TokenCount { tokens, source: CountSource::Usage });
        of(&[RequestRecord { output_tokens, ..record() }])
    };
    for (tokens, expected) in [(0, None), (1, None), (2, Some(105.0)), (106, Some(1.0))] {
        let tpot = series(&counted(tokens), Id::TimePerOutputToken, &[]);
        assert_eq!(tpot.first().map(|(_, _, sum)| *sum), expected, "{tokens}");
    }
    let unknown = of(&[RequestRecord { output_tokens: None, ..record() }]);
    assert!(unknown.points(Id::TimePerOutputToken).is_empty() && unknown.points(Id::StreamTokens).is_empty());
}

#[test]
fn usage_is_reported_where_it_is_known_and_is_never_zero_for_unknown() {
    let partial = RequestRecord { usage: Usage { output: Some(0), ..Usage::default() }, ..record() };
    let unknown = RequestRecord { usage: Usage::default(), ..record() };
    let usage = series(&of(&[record(), partial, unknown]), Id::TokenUsage, &["gen_ai.token.type"]);
    assert_eq!(usage, rows([("input", 1, 100.0), ("output", 2, 6.0)]));
    let cancelled = of(&[failed(Ending::DownstreamGone, Some(200))]);
    assert_eq!(series(&cancelled, Id::TokenUsage, &[]).len(), 2, "what the server counted, it counted");
}

#[test]
fn the_latest_convention_splits_usage_into_instruments_of_its_own() {
    let mut aggregate =
        Aggregate::new(AggregateSettings { convention: Convention::Latest, ..AggregateSettings::default() });
    let mut written = record();
    written.usage.cache_write = Some(30);
    aggregate.record_finished(&written, None, NOW);
    let snapshot = aggregate.snapshot(NOW);
    for id in [Id::TokenUsage, Id::ClientDuration, Id::ClientFirstChunk, Id::ClientChunkTime] {
        assert!(snapshot.points(id).is_empty(), "{id:?}");
    }
    for (id, count, millis) in
        [(Id::InferenceDuration, 1, 305.0), (Id::InferenceFirstChunk, 1, 200.0), (Id::InferenceChunkTime, 4, 100.0)]
    {
        assert_eq!(series(&snapshot, id, &["gen_ai.request.model"]), rows([("tiny", count, millis)]), "{id:?}");
    }
    assert_eq!(series(&snapshot, Id::InputTokens, &["gen_ai.operation.name"]), rows([("chat", 1, 100.0)]));
    assert_eq!(series(&snapshot, Id::OutputTokens, &[]), rows([("", 1, 6.0)]));
    for (id, tokens) in [(Id::UsageInput, 100), (Id::UsageCached, 64), (Id::UsageCacheWrite, 30), (Id::UsageOutput, 6)]
    {
        assert_eq!(series(&snapshot, id, &["gen_ai.token.modality"]), rows([("unknown", tokens, 0.0)]));
    }
    assert!(snapshot.points(Id::UsageReasoning).is_empty());
    assert_eq!(series(&snapshot, Id::TimeToFirstToken, &[]).len(), 1, "server metrics keep their names");
}

#[test]
fn progress_moves_the_counters_and_the_end_adds_the_rest() {
    let mut aggregate = aggregate();
    let progress = |tokens, source| Progress {
        shape: Arc::new(shape("tiny")),
        gaps: record().gaps,
        stalls: 2,
        tokens: TokenCount { tokens, source },
        chunk_overheads: [10_000][..].into(),
    };
    aggregate.record_progress(&progress(3, CountSource::Chunks), NOW);
    let during = aggregate.snapshot(NOW);
    assert_eq!(series(&during, Id::StreamTokens, &["source"]), rows([("chunks", 3, 0.0)]));
    assert_eq!(series(&during, Id::InterTokenLatency, &["method"])[0], ("chunk".to_owned(), 1, 40.0));
    let chunks =
        series(&during, Id::ClientChunkTime, &["gen_ai.operation.name", "gen_ai.provider.name", "server.port"]);
    assert_eq!(chunks, rows([("chat openai 8000", 4, 100.0)]));

    let end = RequestRecord { tokens_reported: 3, gaps: Box::default(), stalls: 1, ..record() };
    aggregate.record_finished(&end, None, NOW);
    let snapshot = aggregate.snapshot(NOW);
    let tokens = series(&snapshot, Id::StreamTokens, &["gen_ai.request.model", "source"]);
    assert_eq!(tokens, rows([("tiny chunks", 3, 0.0), ("tiny usage", 3, 0.0)]));
    assert_eq!(series(&snapshot, Id::Stalls, &["gen_ai.request.model"]), rows([("tiny", 3, 0.0)]));
    let chunk = series(&snapshot, Id::ProxyOverhead, &["stage"])[0].clone();
    assert_eq!(chunk, ("chunk".to_owned(), 3, 0.06));

    let fewer = RequestRecord { tokens_reported: 100, ..record() };
    aggregate.record_finished(&fewer, None, NOW);
    assert_eq!(series(&aggregate.snapshot(NOW), Id::StreamTokens, &[])[1].1, 3, "a counter never goes down");
}

#[test]
fn verdicts_are_counted_with_all_results_from_the_first_request_on() {
    let slos = ["fast: ttft<=300ms e2e<=1s", "strict: ttft<=100ms tpot<=15ms e2e<=1s", "huge[model=big-*]: e2e<=1s"];
    let slos = Arc::new(Slos::new(slos.map(|slo| slo.parse().unwrap()).into()).unwrap());
    let judged = |record: RequestRecord| RequestRecord { slos: Arc::clone(&slos), ..record };
    let document = RequestRecord { streamed: false, ..record() };
    let snapshot = of(&[judged(record()), judged(failed(Ending::TimedOut, Some(200))), judged(document)]);
    let results = series(&snapshot, Id::SloRequests, &["gen_ai.request.model", "slo", "result"]);
    let expected = [
        ("tiny fast excluded", 1, 0.0),
        ("tiny fast met", 1, 0.0),
        ("tiny fast missed", 1, 0.0),
        ("tiny strict excluded", 1, 0.0),
        ("tiny strict met", 0, 0.0),
        ("tiny strict missed", 2, 0.0),
    ];
    assert_eq!(results, rows(expected));
    let violations = series(&snapshot, Id::SloViolations, &["slo", "objective"]);
    let expected = [("fast error", 1, 0.0), ("strict error", 1, 0.0), ("strict tpot", 1, 0.0), ("strict ttft", 1, 0.0)];
    assert_eq!(violations, rows(expected));
    let tokens = series(&snapshot, Id::SloTokens, &["slo"]);
    assert_eq!(tokens, rows([("fast", 6, 0.0), ("strict", 0, 0.0)]));
}

#[test]
fn limits_of_objectives_are_bounds_of_their_histograms() {
    let slos = Slos::new(vec!["x: ttft<=123ms ttfo<=234ms itl.p99<=45ms itl<=17ms e2e<=3s".parse().unwrap()]);
    let slos = Arc::new(slos.unwrap());
    let mut aggregate = Aggregate::new(AggregateSettings { slos, ..AggregateSettings::default() });
    aggregate.record_finished(&record(), None, NOW);
    let snapshot = aggregate.snapshot(NOW);
    let added = |id: Id| {
        let PointValue::Histogram(histogram, _) = &snapshot.points(id)[0].data else { panic!() };
        let catalog = id.instrument().layout(&Slos::default()).unwrap();
        let added: Vec<f64> =
            histogram.layout().bounds().iter().copied().filter(|bound| !catalog.bounds().contains(bound)).collect();
        added
    };
    assert_eq!(added(Id::TimeToFirstToken), [0.123]);
    assert_eq!(added(Id::TimeToPhase), [0.123, 0.234]);
    assert_eq!(added(Id::InterTokenLatency), [0.045]);
    assert_eq!(added(Id::TimePerOutputToken), [0.017]);
    assert_eq!(added(Id::RequestDuration), [3.0]);
}

#[test]
fn overheads_are_told_apart_by_stage() {
    let overheads = series(&of(&[record()]), Id::ProxyOverhead, &["stage"]);
    assert_eq!(overheads, rows([("chunk", 2, 0.05), ("request", 1, 0.04), ("response_head", 1, 0.05)]));
}

#[test]
fn plain_http_feeds_http_and_nothing_else() {
    let mut plain = record();
    plain.streamed = false;
    plain.shape = Arc::new(RequestShape { method: "BREW".into(), ..RequestShape::default() });
    let snapshot = of(&[plain, record()]);
    let names = ["http.request.method", "url.scheme", "http.route", "http.response.status_code", "error.type"];
    let http = series(&snapshot, Id::HttpDuration, &names);
    let expected = [("POST http /v1/chat/completions 200 -", 1, 305.0), ("_OTHER http - 200 -", 1, 305.0)];
    assert_eq!(http, rows(expected));
    assert_eq!(series(&snapshot, Id::RequestDuration, &[])[0].1, 1);
    let alone = of(&[RequestRecord { shape: Arc::default(), ..record() }]);
    let families: Vec<Id> = alone.families.iter().map(|family| family.id).collect();
    assert_eq!(families, [Id::HttpDuration, Id::HttpResponses]);
}

/// Returns the counted responses as `model traffic status_class answered_by fault`.
fn responses(snapshot: &Snapshot) -> Vec<(String, u64)> {
    let names = ["gen_ai.request.model", "traffic", "status_class", "answered_by", "fault"];
    let counted = series(snapshot, Id::HttpResponses, &names).into_iter();
    counted.map(|(labels, count, _)| (labels, count)).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_response_counts_by_who_answered_and_whose_fault_it_is() {
    use FailureOrigin::{Client, Proxy, Upstream};
    let local = |status, origin| RequestRecord { local_reply: Some(origin), ..failed(Ending::Complete, Some(status)) };
    let cases = [
        (record(), "tiny inference 2xx upstream -"),
        (failed(Ending::Complete, Some(200)), "tiny inference 2xx upstream upstream"),
        (failed(Ending::DownstreamGone, Some(200)), "tiny inference 2xx upstream client"),
        (failed(Ending::TimedOut, Some(200)), "tiny inference 2xx upstream proxy"),
        (failed(Ending::Complete, Some(404)), "_other inference 4xx upstream client"),
        (failed(Ending::Complete, Some(503)), "_other inference 5xx upstream upstream"),
        (failed(Ending::DownstreamGone, Some(503)), "_other inference 5xx upstream upstream"),
        (local(502, Upstream), "_other inference 5xx proxy upstream"),
        (local(503, Proxy), "_other inference 5xx proxy proxy"),
        (local(400, Client), "_other inference 4xx proxy client"),
        (failed(Ending::DownstreamGone, None), "_other inference none - client"),
        (failed(Ending::UpstreamFailed, None), "_other inference none - upstream"),
        (
            RequestRecord { shape: Arc::default(), ..failed(Ending::Complete, Some(503)) },
            "- other 5xx upstream upstream",
        ),
    ];
    for (record, expected) in cases {
        assert_eq!(responses(&of(&[record])), [(expected.to_owned(), 1)]);
    }
}

#[test]
fn the_usual_series_of_responses_are_there_before_the_first_failure() {
    let mut aggregate = Aggregate::new(AggregateSettings::default());
    aggregate.declare_overflow_series(NOW);
    let points = |aggregate: &Aggregate| aggregate.snapshot(NOW).points(Id::HttpResponses).len();
    assert_eq!((points(&aggregate), responses(&aggregate.snapshot(NOW))), (5, vec![]));
    (0..3).for_each(|_| aggregate.record_finished(&record(), None, NOW));
    aggregate.declare_overflow_series(NOW);
    assert_eq!(points(&aggregate), 10, "five of the model, too");
    assert_eq!(responses(&aggregate.snapshot(NOW)), [("tiny inference 2xx upstream -".to_owned(), 3)]);
}

#[test]
fn a_server_that_makes_statuses_up_adds_no_series() {
    let answered = |status| failed(Ending::Complete, Some(status));
    let records: Vec<_> = (200..999).map(answered).collect();
    let snapshot = of(&records);
    let known = |id, label: &str| series(&snapshot, id, &[label]).into_iter().map(|row| row.0).collect::<Vec<_>>();
    let statuses = known(Id::HttpDuration, "http.response.status_code");
    assert!(statuses.len() < 80, "{statuses:?}");
    assert!(["200", "404", "499", "529", "400", "500"].iter().all(|status| statuses.iter().any(|is| is == status)));
    assert!(!["299", "430", "599", "600"].iter().any(|status| statuses.iter().any(|is| is == status)));
    assert!(known(Id::RequestDuration, "error.type").len() < 80);
}

#[test]
fn a_model_gets_its_series_with_its_first_answer() {
    let asks = |model: &str, status| {
        let shape = Arc::new(RequestShape { dialect: dialect::named("openai.chat"), ..shape(model) });
        RequestRecord { shape, ..failed(Ending::Complete, Some(status)) }
    };
    let mut aggregate = Aggregate::new(AggregateSettings { max_models: 2, ..AggregateSettings::default() });
    for record in [asks("a", 404), asks("b", 200), asks("a", 404), asks("b", 500), asks("c", 200), asks("d", 200)] {
        aggregate.record_finished(&record, None, NOW);
    }
    let models = series(&aggregate.snapshot(NOW), Id::RequestDuration, &["gen_ai.request.model", "error.type"]);
    let counts: Vec<_> = models.iter().map(|(labels, count, _)| (labels.as_str(), *count)).collect();
    let expected = [
        ("_other 404", 2),
        ("_other eof_without_finish", 1),
        ("b 500", 1),
        ("b eof_without_finish", 1),
        ("c eof_without_finish", 1),
    ];
    assert_eq!(counts, expected);
    assert_eq!(["b", "a"].map(|model| aggregate.display_name(model)), ["b".into(), "_other".into()]);
}

#[test]
fn exemplars_lead_to_kept_traces_only() {
    let trace = RequestTrace::begin(&Sampler::default(), None, None);
    let mut aggregate = aggregate();
    aggregate.record_finished(&record(), None, NOW);
    let exemplars = |aggregate: &Aggregate, id| match &aggregate.snapshot(NOW).points(id)[0].data {
        PointValue::Histogram(_, exemplars) => exemplars.clone(),
        other => panic!("{other:?}"),
    };
    assert!(exemplars(&aggregate, Id::TimeToFirstToken).is_empty());
    aggregate.record_finished(&record(), Some(&trace), NOW);
    let before = exemplars(&aggregate, Id::TimeToFirstToken);
    let [(bucket, exemplar)] = before[..] else { panic!("{before:?}") };
    assert_eq!((bucket, exemplar.value, exemplar.trace_id), (8, 0.2, trace.trace_id), "0.1 < 0.2 <= 0.25");
    assert_eq!(exemplar.unix, NOW.unix - 60_000_000_000 + 1_305_000_000);
    let mut earlier = record();
    earlier.times.ended = earlier.times.received.after(Gap::from_millis(300));
    aggregate.record_finished(&earlier, Some(&RequestTrace::begin(&Sampler::default(), None, None)), NOW);
    assert_eq!(exemplars(&aggregate, Id::TimeToFirstToken), before, "an exemplar only makes room for a later one");
    assert_eq!(exemplars(&aggregate, Id::InterTokenLatency)[0].1.value, 0.03, "the longest of its method");
    assert_eq!(exemplars(&aggregate, Id::HttpDuration)[0].1.span_id, trace.server_span);
}

#[test]
fn another_provider_can_be_named() {
    let mut aggregate =
        Aggregate::new(AggregateSettings { provider: Some("vllm".to_owned()), ..AggregateSettings::default() });
    aggregate.record_finished(&record(), None, NOW);
    let provider = series(&aggregate.snapshot(NOW), Id::TimeToFirstToken, &["gen_ai.provider.name"]);
    assert_eq!(provider, rows([("vllm", 1, 200.0)]));
}

#[test]
fn providers_have_the_names_of_the_conventions() {
    let settings = AggregateSettings::default();
    let of = |name| settings.provider_of(dialect::TABLE.iter().find(|dialect| dialect.name == name).unwrap());
    assert_eq!(["bedrock.invoke", "gemini", "anthropic.messages"].map(of), ["aws.bedrock", "gcp.gemini", "anthropic"]);
}

#[test]
fn requests_that_differ_in_one_label_are_of_different_kinds_however_many_there_are() {
    let plain = || RequestRecord { shape: Arc::default(), ..record() };
    let asks = |change: fn(&mut RequestShape)| {
        let mut shape = shape("tiny");
        change(&mut shape);
        RequestRecord { shape: Arc::new(shape), ..record() }
    };
    let elsewhere = |port| {
        let shape = RequestShape { server: Some(("llm.local".into(), port)), ..shape("tiny") };
        RequestRecord { shape: Arc::new(shape), ..record() }
    };
    let mut records = vec![
        record(),
        failed(Ending::Complete, Some(200)),
        plain(),
        asks(|shape| shape.model = Some("small".into())),
        asks(|shape| shape.dialect = dialect::named("openai.completions")),
        asks(|shape| shape.method = "PUT".into()),
        asks(|shape| shape.server = None),
        RequestRecord { status: Some(201), ..record() },
    ];
    records.extend((1..600).map(elsewhere));
    let once = of(&records);
    let thrice = of(&[&records[..], &records, &records].concat());
    for family in &once.families {
        let after = thrice.points(family.id);
        assert_eq!(after.len(), family.points.len(), "{:?}", family.id);
        for (one, three) in family.points.iter().zip(after) {
            assert_eq!(one.labels, three.labels);
            let counts = [one, three].map(|point| match &point.data {
                PointValue::Count(count) => *count,
                PointValue::Histogram(histogram, _) => histogram.count(),
                other => panic!("{other:?}"),
            });
            assert_eq!(counts[0] * 3, counts[1], "{:?} {:?}", family.id, one.labels);
        }
    }
    // Counted alone, each record gets the series that it gets beside the others.
    let durations: usize = once.points(Id::RequestDuration).len();
    assert_eq!(durations, 5 + 599, "neither a status nor a method is a label of these");
    assert_eq!(once.points(Id::HttpDuration).len(), 5);
}

#[test]
fn new_rules_hold_for_requests_of_a_kind_that_has_been_counted() {
    let mut aggregate = aggregate();
    aggregate.record_finished(&record(), None, NOW);
    aggregate.apply(AggregateSettings { provider: Some("vllm".to_owned()), ..AggregateSettings::default() });
    aggregate.record_finished(&record(), None, NOW);
    let provider = series(&aggregate.snapshot(NOW), Id::TimeToFirstToken, &["gen_ai.provider.name"]);
    assert_eq!(provider, rows([("openai", 1, 200.0), ("vllm", 1, 200.0)]));
}
