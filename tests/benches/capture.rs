//! Cost of the capture: a short request, and one of 200 tokens with a prompt of 4 kB. Both threads are measured, the
//! stream's and the writer's.
//!
//! `cargo bench --bench capture` prints CPU time, not elapsed: of the thread that hands over, and of the rest of the
//! process. It also prints the cost of a thousand requests a second, and the bytes on disk, in JSON Lines and
//! in Parquet. `TOKENIZER=FILE` adds blocks of its tokens. With `--shape NAME --events N` it only captures so many
//! requests of that shape, for `tests/benches/instructions`.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops where it cannot go on")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{UsageWho, getrusage};
use streamgauge::capture::recorder::CaptureRecorder;
use streamgauge::capture::stats::RecordOutcome;
use streamgauge::clock::Clock;
use streamgauge::config::{CaptureConfig as Config, CaptureFormat, CaptureTarget, SessionKey};
use streamgauge::measure::dialect;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::sample_share::SampleShare;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::{Gap, Stamp};
use streamgauge::proxy::capture_hook;

/// The program's own allocator: what one thread makes another frees.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A request that is captured.
struct Work {
    name: &'static str,
    tokens: u64,
    body: fn(u64) -> String,
}

const WORK: [Work; 2] =
    [Work { name: "capture-short", tokens: 1, body: short }, Work { name: "capture-stream", tokens: 200, body: long }];

/// Requests that are handed over between two rests: their notes fit into the queue.
const BATCH: u64 = 1_024;
const BATCHES: u64 = 20;

/// A stream of so many tokens, some 20 ms apart.
fn record(number: u64, tokens: u64) -> RequestRecord {
    let dialect = dialect::for_path("/v1/chat/completions");
    let shape = RequestShape { dialect, server: Some(("127.0.0.1".into(), 8000)), ..RequestShape::default() };
    let mut now = Stamp::from_nanos(number * 1_000_000);
    let mut observer = StreamObserver::begin(shape, b"", None, now);
    observer.request(br#"{"model":"meta-llama/Llama-3.1-8B-Instruct","stream":true,"max_tokens":200}"#);
    observer.sent(now, None);
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"" };
    observer.head(now, head, StampSource::Read);
    // Jitter as of a busy server: within some milliseconds, never twice the same.
    let mut noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..tokens {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        now = now.after(Gap::from_nanos(18_000_000 + noise % 4_000_000));
        observer.bytes(now, b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n");
    }
    observer.bytes(
        now,
        format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":900,\"completion_tokens\":{tokens}}}}}\n\n")
            .as_bytes(),
    );
    observer.end(now, Ending::Complete)
}

/// The request of the bench beside other proxies.
fn short(number: u64) -> String {
    format!(
        r#"{{"model":"meta-llama/Llama-3.1-8B-Instruct","stream":true,"temperature":0.7,"max_tokens":1024,"messages":[{{"role":"system","content":"You are a helpful assistant who answers in short sentences."}},{{"role":"user","content":"What does stream gauge {number} measure, and why is it left in the river?"}}]}}"#
    )
}

/// A prompt of 4 kB: a common system prompt, and a question of its own.
fn long(number: u64) -> String {
    let system = "You are a helpful assistant that answers in short and plain words. ".repeat(30);
    let question = format!("Question number {number} of a long and winding conversation. ").repeat(36);
    format!(
        r#"{{"model":"m","stream":true,"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}]}}"#
    )
}

fn cpu(who: UsageWho) -> f64 {
    let usage = getrusage(who).unwrap();
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    micros(usage.user_time()) + micros(usage.system_time())
}

fn capture(folder: &Path, tokenizer: Option<PathBuf>, format: CaptureFormat) -> CaptureRecorder {
    let config = Config {
        target: Some(CaptureTarget::Folder(folder.to_owned())),
        spool: PathBuf::new(),
        flush: Gap::from_millis(100),
        round: Gap::ZERO,
        block: if tokenizer.is_some() { 16 } else { 512 },
        tokenizer,
        key: None,
        rotate: false,
        session: SessionKey::Inferred,
        names: 1,
        sample: SampleShare::ALL,
        format,
        keep_bytes: 1 << 30,
        keep_age: Gap::from_millis(3_600_000),
    };
    capture_hook::start(&config, "bench", Clock::Monotonic, false).unwrap().unwrap()
}

/// Hands the requests over, and waits until they are written.
fn hand_over(capture: &CaptureRecorder, requests: &[(String, Arc<RequestRecord>)]) -> f64 {
    let own = cpu(UsageWho::RUSAGE_THREAD);
    for (body, record) in requests {
        let mut following = capture.begin_request(|_| None, 7);
        capture.push_body(&mut following, body.as_bytes());
        capture.finish_body(&mut following, record.shape.dialect);
        capture.end_request(Box::new((following, Arc::clone(record))));
    }
    let handed = cpu(UsageWho::RUSAGE_THREAD) - own;
    while capture.stats().queued() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    handed
}

fn requests(work: &Work, from: u64) -> Vec<(String, Arc<RequestRecord>)> {
    (from..from + BATCH).map(|n| ((work.body)(n), record(n, work.tokens).into())).collect()
}

fn measure(work: &Work, name: &str, tokenizer: Option<PathBuf>, format: CaptureFormat) {
    let folder = tempfile::tempdir().unwrap();
    let capture = capture(folder.path(), tokenizer, format);
    let (mut handing, mut writing) = (0.0, 0.0);
    for batch in 0..BATCHES {
        let requests = requests(work, batch * BATCH);
        let (own, all) = (cpu(UsageWho::RUSAGE_THREAD), cpu(UsageWho::RUSAGE_SELF));
        handing += hand_over(&capture, &requests);
        let rested = cpu(UsageWho::RUSAGE_THREAD) - own;
        writing += cpu(UsageWho::RUSAGE_SELF) - all - rested;
    }
    let requests = (BATCH * BATCHES) as f64;
    assert_eq!(capture.stats().count(RecordOutcome::Complete) as f64, requests, "{:?}", capture.stats().records());
    // Parquet is written when a segment is closed.
    let all = cpu(UsageWho::RUSAGE_SELF);
    capture.shutdown();
    writing += cpu(UsageWho::RUSAGE_SELF) - all;
    let bytes: u64 = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let (handing, writing) = (handing / requests, writing / requests);
    let share = (handing + writing) * 1_000.0 / 1e6 * 100.0;
    let bytes = bytes as f64 / requests;
    println!(
        "{:<16} {:<8} {name:<12} {handing:>14.2} {writing:>14.2} {share:>18.1} {bytes:>14.0}",
        work.name,
        format!("{format:?}")
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    if let Some(name) = value("--shape") {
        let events: u64 = value("--events").and_then(|n| n.parse().ok()).unwrap_or(10 * BATCH);
        for work in WORK.iter().filter(|work| work.name == name) {
            let folder = tempfile::tempdir().unwrap();
            let (capture, requests) = (capture(folder.path(), None, CaptureFormat::Jsonl), requests(work, 0));
            for batch in std::iter::repeat_n(&requests[..], (events / BATCH) as usize) {
                hand_over(&capture, batch);
            }
            capture.shutdown();
        }
        return;
    }
    let columns =
        ("request", "format", "blocks of", "hand over, µs", "write, µs", "% of a core at 1k/s", "bytes/request");
    println!(
        "{:<16} {:<8} {:<12} {:>14} {:>14} {:>18} {:>14}",
        columns.0, columns.1, columns.2, columns.3, columns.4, columns.5, columns.6
    );
    for (work, format) in WORK.iter().flat_map(|work| [(work, CaptureFormat::Jsonl), (work, CaptureFormat::Parquet)]) {
        measure(work, "512 bytes", None, format);
        if let Some(file) = std::env::var_os("TOKENIZER") {
            measure(work, "16 tokens", Some(file.into()), format);
        }
    }
}
