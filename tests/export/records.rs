//! A fixed set of requests as the proxy reports them: several models, endings, speeds and statuses.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use streamgauge::clock::Clock;
use streamgauge::config::otlp::Sampler;
use streamgauge::export::registry::aggregate::{Aggregate, AggregateSettings};
use streamgauge::export::registry::catalog::Convention;
use streamgauge::export::registry::snapshot::{Snapshot, TimePoint};
use streamgauge::export::trace_context::RequestTrace;
use streamgauge::measure::dialect;
use streamgauge::measure::observer::{Progress, StreamObserver};
use streamgauge::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::slo::Slos;
use streamgauge::measure::time::{Gap, Stamp};

/// Properties of one request.
pub(crate) struct Plan<'a> {
    pub(crate) model: &'a str,
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    /// Milliseconds to the first token, and between tokens.
    pub(crate) ttft: u64,
    pub(crate) gaps: &'a [u64],
    pub(crate) usage: bool,
    pub(crate) finished: bool,
    pub(crate) ending: Ending,
    pub(crate) begins: Stamp,
}

/// Objectives that are in force in every test.
pub(crate) fn slos() -> Arc<Slos> {
    let list = ["interactive: ttft<=333ms itl.p90<=27ms e2e<=9s", "tiny[model=tiny]: tpot<=30ms exclude=cancelled"];
    Arc::new(Slos::new(list.map(|slo| slo.parse().unwrap()).into()).unwrap())
}

/// Runs a plan through the observer.
pub(crate) fn observe(plan: &Plan<'_>) -> (Vec<Progress>, RequestRecord) {
    let shape = RequestShape {
        dialect: dialect::for_path(plan.path),
        method: "POST".into(),
        server: Some(("llm.local".into(), 8000)),
        ..RequestShape::default()
    };
    let mut now = plan.begins;
    let mut observer = StreamObserver::begin(shape, b"", None, now).with_slos(slos(), Gap::from_millis(400));
    observer.request(serde_json::json!({"model": plan.model, "stream": true}).to_string().as_bytes());
    now = now.after(Gap::from_nanos(1_250_000));
    observer.sent(now, Some(Gap::from_nanos(43_000)));
    let content_type: &[u8] = if plan.status == 200 { b"text/event-stream" } else { b"application/json" };
    let head = ResponseHead { status: plan.status, content_type, content_encoding: b"" };
    observer.head(now, head, StampSource::Kernel);
    observer.head_forwarded(Gap::from_nanos(21_000));
    let mut progress = Vec::new();
    if plan.status == 200 {
        let finish = plan.finished.then_some("stop");
        for (at, gap) in std::iter::once(&plan.ttft).chain(plan.gaps).enumerate() {
            now = now.after(Gap::from_millis(*gap));
            let finish = finish.filter(|_| at == plan.gaps.len());
            let choice = serde_json::json!({"index": 0, "delta": {"content": "x"}, "finish_reason": finish});
            let event = serde_json::json!({"id": "c-1", "model": plan.model, "choices": [choice]});
            observer.bytes(now, format!("data: {event}\n\n").as_bytes());
            observer.forwarded(Gap::from_nanos(30_000 + at as u64));
            progress.extend(observer.progress(now));
        }
        if plan.usage {
            let usage = serde_json::json!({"prompt_tokens": 77, "completion_tokens": plan.gaps.len() + 3});
            let event = serde_json::json!({"choices": [], "usage": usage});
            observer.bytes(now, format!("data: {event}\n\ndata: [DONE]\n\n").as_bytes());
        }
    }
    (progress, observer.end(now.after(Gap::from_millis(3)), plan.ending))
}

/// Everything that a fixed set of 300 requests comes to, with exemplars for a third of them.
pub(crate) fn snapshot(convention: Convention) -> Snapshot {
    let settings = AggregateSettings { slos: slos(), convention, max_models: 4, ..AggregateSettings::default() };
    let mut aggregate = Aggregate::new(settings);
    let moment = TimePoint { stamp: Stamp::from_nanos(90_000_000_000), unix: 1_763_000_000_123_456_789 };
    let mut random = rand_pcg::Pcg64::seed_from_u64(2026);
    for number in 0..300 {
        let begins = Stamp::from_nanos(5_000_000_000 + number as u64 * 250_000_000);
        let (progress, record) = request(&mut random, number, begins);
        let trace = number.is_multiple_of(3).then(|| RequestTrace::begin(&Sampler::default(), None, None));
        progress.iter().for_each(|progress| aggregate.record_progress(progress, moment));
        aggregate.record_finished(&record, trace.as_ref(), moment);
    }
    let mut later = moment;
    later.unix += 10_000_000_000;
    aggregate.snapshot(later)
}

/// One of the set, at random.
pub(crate) fn request(random: &mut impl rand::Rng, number: usize, begins: Stamp) -> (Vec<Progress>, RequestRecord) {
    let models = ["tiny", "llama-3.3-70b", "quoted \"model\"", "back\\slash\nand line", "fifth", "sixth"];
    let gaps: Vec<u64> = (0..random.random_range(0..120)).map(|_| random.random_range(0..60)).collect();
    let endings = [Ending::Complete, Ending::DownstreamGone, Ending::UpstreamFailed, Ending::TimedOut];
    let ending = if number.is_multiple_of(4) { endings[random.random_range(0..4)] } else { Ending::Complete };
    observe(&Plan {
        model: models[random.random_range(0..models.len())],
        path: ["/v1/chat/completions", "/v1/completions", "/health"]
            [random.random_range(0..3) * usize::from(number > 9)],
        status: [200, 200, 200, 404, 503][random.random_range(0..5)],
        ttft: random.random_range(1..900),
        gaps: &gaps,
        usage: random.random_bool(0.7),
        finished: random.random_bool(0.9),
        ending,
        begins,
    })
}

/// The moment that it is.
pub(crate) fn now() -> TimePoint {
    TimePoint::now(&Clock::Monotonic)
}
