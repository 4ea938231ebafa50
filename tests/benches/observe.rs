//! Cost of understanding one event, by the shape of the event. A burst also has its chunks decoded and joined, as in a
//! proxy that forwards it.
//!
//! `cargo bench --bench observe` prints nanoseconds per event, the best of several rounds (an absolute time proves
//! nothing on a shared machine; compare rows). With `--shape NAME --events N` it only runs that shape, for
//! `tests/benches/instructions`, whose counts do repeat.

#![expect(clippy::disallowed_methods, reason = "a benchmark asks for the time")]
#![expect(clippy::print_stdout, reason = "its table is its output")]

use std::time::Instant;

use streamgauge::measure::dialect;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::Stamp;
use streamgauge::net::http1::body::ChunkWriter;
use streamgauge::net::http1::{BodyDecoder, Framing};

fn event(delta: &str, rest: &str) -> Vec<u8> {
    format!(
        "data: {{\"id\":\"chatcmpl-90902278b0c7377e\",\"object\":\"chat.completion.chunk\",\"created\":1795221312,\
         \"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\
         \"finish_reason\":null,\"token_ids\":null}}]{rest}}}\n\n"
    )
    .into_bytes()
}

/// An event with the log probability of its token, as OpenAI and vLLM write it.
fn top_1(word: &str, n: u32) -> Vec<u8> {
    let token = format!("\"token\":\"{word}\",\"logprob\":-0.{:06},\"bytes\":[{},116]", 7_919 * (n + 1), 32 + n);
    let logprobs = format!("{{\"content\":[{{{token},\"top_logprobs\":[{{{token}}}]}}]}}");
    String::from_utf8_lossy(&event(&format!("{{\"content\":\"{word}\"}}"), ""))
        .replace("\"logprobs\":null", &format!("\"logprobs\":{logprobs}"))
        .into_bytes()
}

/// (name, the reads that are fed round and round, events in them).
fn shapes() -> Vec<(&'static str, Vec<Vec<u8>>, u64)> {
    let text = |text: &str| event(&format!("{{\"content\":\"{text}\"}}"), "");
    let words = [" the", " quick", " brown", " fox", "\\n", " jumps", " over", " caf\u{e9}"];
    let steady: Vec<_> = words.iter().map(|word| text(word)).collect();
    let usage = |n: u64| {
        event(
            "{\"content\":\" a\"}",
            &format!(",\"usage\":{{\"prompt_tokens\":30,\"total_tokens\":{},\"completion_tokens\":{n}}}", 30 + n),
        )
    };
    let changing: Vec<_> = (0..8u64).map(|n| event("{\"content\":\" a\"}", &format!(",\"n\":{n}"))).collect();
    // Of two kinds by turns: what was learned of one never matches the other.
    let alternating: Vec<_> = (0..8u64)
        .map(|n| event("{\"content\":\" a\"}", if n % 2 == 0 { ",\"created_at\":7" } else { ",\"service_tier\":7" }))
        .collect();
    vec![
        ("steady", steady.clone(), 8),
        ("steady-burst", vec![steady.concat().repeat(16)], 128),
        (RELAYED, vec![steady.iter().flat_map(|event| chunked(event)).collect::<Vec<u8>>().repeat(16)], 128),
        ("varying-number", changing, 8),
        ("running-usage", (1..9).map(usage).collect(), 8),
        ("top-1-logprobs", words.iter().zip(0..).map(|(word, n)| top_1(word, n)).collect(), 8),
        (
            "token-ids",
            (1..9).map(|n| event("{\"content\":\" a\"}", &format!(",\"token_ids\":[{}]", n * 1_237))).collect(),
            8,
        ),
        ("alternating", alternating, 8),
        ("comment", vec![b": keep-alive\n\n".to_vec()], 1),
    ]
}

/// The shape whose reads are chunked.
const RELAYED: &str = "relayed-burst";

fn chunked(payload: &[u8]) -> Vec<u8> {
    let mut chunk = Vec::new();
    ChunkWriter::head(&mut chunk, payload.len());
    [&chunk[..], payload, b"\r\n"].concat()
}

/// The cost of forwarding beside understanding: a read's chunks become one.
fn relay(reads: &[Vec<u8>], rounds: u64) -> u64 {
    let (mut decoder, mut out, mut payload) = (BodyDecoder::new(Framing::Chunked), Vec::new(), Vec::new());
    let rewritten = reads.iter().map(|read| {
        for _ in 0..rounds {
            out.clear();
            let chunk_start = ChunkWriter::begin(&mut out);
            let used = decoder.decode(read, |bytes| out.extend_from_slice(bytes));
            assert_eq!(used, Ok(read.len()));
            ChunkWriter::end(&mut out, chunk_start);
        }
        let mut alone = BodyDecoder::new(Framing::Chunked);
        assert!(alone.decode(read, |bytes| payload.extend_from_slice(bytes)).is_ok());
        std::mem::take(&mut payload)
    });
    run(&rewritten.collect::<Vec<_>>(), rounds)
}

fn run(reads: &[Vec<u8>], rounds: u64) -> u64 {
    let shape = RequestShape { dialect: dialect::for_path("/v1/chat/completions"), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"" };
    observer.head(Stamp::default(), head, StampSource::Read);
    let mut now = 0;
    for _ in 0..rounds {
        for read in reads {
            now += 1_000_000;
            observer.bytes(Stamp::from_nanos(now), read);
            if let Some(progress) = observer.progress(Stamp::from_nanos(now)) {
                std::hint::black_box(progress);
            }
        }
    }
    observer.end(Stamp::from_nanos(now), Ending::UpstreamFailed).events
}

fn work(shape: &str) -> fn(&[Vec<u8>], u64) -> u64 {
    if shape == RELAYED { relay } else { run }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    if let Some(name) = value("--shape") {
        let events: u64 = value("--events").and_then(|n| n.parse().ok()).unwrap_or(10_000);
        for (_, reads, per_round) in shapes().into_iter().filter(|shape| shape.0 == name) {
            std::hint::black_box(work(name)(&reads, events / per_round));
        }
        return;
    }
    println!("{:<20} {:>12}", "shape", "ns per event");
    for (name, reads, per_round) in shapes() {
        let (rounds, run) = (200_000 / per_round, work(name));
        let best = (0..7)
            .map(|_| {
                let started_at = Instant::now();
                std::hint::black_box(run(&reads, rounds));
                started_at.elapsed().as_nanos() as f64 / (rounds * per_round) as f64
            })
            .fold(f64::INFINITY, f64::min);
        println!("{name:<20} {best:>12.1}");
    }
}
