//! Prompts in a capture: every way to send them, blocks of tokens, rounding, and the key of the day.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::{HeaderMap, Request, Response};
use serde_json::{Value, json};
use streamgauge::capture::key::CaptureKey;
use streamgauge::capture::message::CaptureHandle;
use streamgauge::capture::recorder::CaptureRecorder;
use streamgauge::capture::retention::Retention;
use streamgauge::capture::settings::{CaptureSettings, SessionField};
use streamgauge::capture::stats::RecordOutcome;
use streamgauge::clock::{Clock, ManualClock};
use streamgauge::measure::dialect::{Routes, named};
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{CountSource, Ending, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::sample_share::SampleShare;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::Gap;
use streamgauge::trace_file::gaps;
use streamgauge::trace_file::header::{BlockUnit, LastBlock};
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::{PartKind, PromptPart, TraceEntry};
use tempfile::TempDir;
use tokenizers::Tokenizer;

use crate::support::captured::{HEAD, answer, event, proxy, rows, server, until};
use crate::support::client::chat;
use crate::support::http2;
use crate::support::upstream::Upstream;

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers/tiny.json");

fn chat_body(text: &str) -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": text}]})
}

/// A request whose body is coded.
fn coded(coding: &str, body: &[u8]) -> Vec<u8> {
    let head = chat("").replace("Content-Length: 0", &format!("Content-Length: {}", body.len()));
    let head = head.replacen("\r\n", &format!("\r\nContent-Encoding: {coding}\r\n"), 1);
    [head.as_bytes(), body].concat()
}

#[test]
fn a_prompt_is_the_same_plain_packed_and_over_http2() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(2));
    let proxy = proxy(upstream.addr, folder.path(), &[("capture_block", "16"), ("capture_session", "header:x-none")]);
    let body = chat_body(&"plain words ".repeat(40)).to_string();
    proxy.client().send(chat(&body)).response();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(body.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::stream::encode_all(body.as_bytes(), 3).unwrap();
    for (coding, body) in
        [("gzip", &gzip), ("zstd", &zstd), ("gzip", &gzip[..gzip.len() / 2].to_vec()), ("x-own", &gzip)]
    {
        proxy.client().send(coded(coding, body)).response();
    }
    let request = Request::post("http://proxy.test/v1/chat/completions").body(Bytes::from(body)).unwrap();
    assert_eq!(http2::request(proxy.addr, None, request, None).status, 200);
    drop(proxy);
    let rows = rows(folder.path());
    assert_eq!(rows.len(), 6);
    let prompt = |row: usize| (rows[row].prompt.bytes, rows[row].prompt.blocks.clone());
    assert_eq!(prompt(0).1.len() as u64, prompt(0).0.unwrap() / 16);
    for (row, how) in [(1, "gzip"), (2, "zstd"), (5, "HTTP/2")] {
        assert_eq!(prompt(row), prompt(0), "{how}");
        assert_eq!(rows[row].model.as_deref(), Some("m"), "{how}");
    }
    for (row, how) in [(3, "half of it"), (4, "an unknown coding")] {
        assert_eq!(prompt(row), (None, vec![]), "{how}");
        assert_eq!((rows[row].prompt.tokens, rows[row].output_tokens), (Some(7), Some(2)), "{how}: the answer is told");
    }
}

/// Its tree would take hundreds of megabytes and a tenth of a second.
#[test]
fn a_prompt_that_costs_more_than_its_bytes_grant_is_a_row_without_blocks() {
    let prompt = |values: &str| format!("{{\"model\":\"m\",\"prompt\":[{values}1]}}").into_bytes();
    let packed = |values: &str| zstd::encode_all(&prompt(values)[..], 3).unwrap();
    let ids: String = (0..40_000_u32).map(|id| format!("{},", id * 3 % 100_000)).collect();
    let server = Upstream::answering(format!("{}0\r\n\r\n", HEAD));
    let folder = TempDir::new().unwrap();
    let proxy = proxy(server.addr, folder.path(), &[]);
    let bodies = [packed(&"1,".repeat(2 << 20)), packed(&"{},".repeat(1 << 20)), packed(&ids)];
    for body in &bodies {
        let request = String::from_utf8_lossy(&coded("zstd", b"")).replace("/v1/chat/completions", "/v1/completions");
        let head = request.replace("Content-Length: 0", &format!("Content-Length: {}", body.len()));
        assert_eq!(proxy.client().send(head).send(body).response().status(), 200);
    }
    assert!(proxy.stop(crate::support::PATIENCE));
    let blocks: Vec<_> = rows(folder.path()).iter().map(|row| row.prompt.blocks.is_empty()).collect();
    assert_eq!(blocks, [true, true, false], "a prompt of token ids is hashed");
}

#[test]
fn a_request_that_continues_a_stored_response_joins_its_session_and_shares_no_prefix() {
    let folder = TempDir::new().unwrap();
    let count = AtomicUsize::new(0);
    let upstream = Upstream::start(move |mut conn| {
        while conn.request().is_some() {
            let id = format!("resp_CANARY_{}", count.fetch_add(1, Ordering::Relaxed));
            let text = json!([{"type": "message", "content": [{"type": "output_text", "text": "What more?"}]}]);
            let body = json!({"id": id, "object": "response", "status": "completed", "output": text}).to_string();
            let head = format!("content-type: application/json\r\ncontent-length: {}", body.len());
            conn.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"));
        }
    });
    let proxy = proxy(upstream.addr, folder.path(), &[("capture_block", "16")]);
    let mut client = proxy.client();
    let more = "a long request, word by word the same";
    for (input, before) in [
        (json!("a beginning"), None),
        (json!("another one"), None),
        (json!(more), Some("resp_CANARY_0")),
        (json!([{"role": "user", "content": more}]), Some("resp_CANARY_1")),
        (json!(more), Some("resp_CANARY_2")),
    ] {
        let mut body = json!({"model": "m", "input": input});
        body.as_object_mut().unwrap().extend(before.map(|id| ("previous_response_id".to_owned(), json!(id))));
        client.send(chat(&body.to_string()).replace("/v1/chat/completions", "/v1/responses")).response();
    }
    drop(proxy);
    let rows = rows(folder.path());
    assert_eq!(rows.iter().map(|row| row.turn.unwrap()).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
    let session = |row: usize| rows[row].session.as_deref().unwrap();
    assert!(
        session(0) != session(1) && session(2) == session(0) && session(3) == session(1) && session(4) == session(0)
    );
    let [one, other] = [2, 4].map(|row: usize| rows[row].prompt.blocks.last().unwrap());
    assert_ne!(one, other, "the same words after something else");
    assert!(!format!("{rows:?}").contains("CANARY"));
}

#[test]
fn a_call_over_grpc_is_a_row_of_its_times_without_its_prompt() {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vectors/55_triton_grpc_model_stream_infer.bin");
    let stream = Bytes::from(fs::read(vectors).unwrap());
    let upstream = http2::upstream(None, move |_, _| {
        let mut ending = HeaderMap::new();
        ending.insert("grpc-status", "0".parse().unwrap());
        let response = Response::builder().header("content-type", "application/grpc");
        (response.body(vec![stream.slice(..100), stream.slice(100..)]).unwrap(), Some(ending))
    });
    let folder = TempDir::new().unwrap();
    let proxy = proxy(upstream, folder.path(), &[("upstream_http", "http2")]);
    // model_name: "net", id: "CANARY".
    let message = b"\x0a\x03net\x1a\x06CANARY";
    let body = [&[0, 0, 0, 0, message.len() as u8], &message[..]].concat();
    let request = Request::post("http://proxy.test/inference.GRPCInferenceService/ModelStreamInfer")
        .header("content-type", "application/grpc")
        .body(Bytes::from(body))
        .unwrap();
    assert_eq!(http2::request(proxy.addr, None, request, None).status, 200);
    drop(proxy);
    let row = rows(folder.path()).remove(0);
    assert_eq!((row.dialect.as_deref(), row.model.as_deref()), (Some("triton.grpc"), Some("net")));
    assert_eq!((row.stream, row.output_tokens, row.output_source), (Some(true), Some(2), Some(CountSource::Chunks)));
    assert!(row.timing.first_token.is_some() && row.timing.sent.is_some());
    assert_eq!(row.prompt, streamgauge::trace_file::row::PromptShape::default());
}

#[test]
fn media_are_recorded_by_kind_bytes_and_pixels_in_every_dialect() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(1));
    let proxy = proxy(upstream.addr, folder.path(), &[("capture_block", "16")]);
    let head = [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &640_u32.to_be_bytes(), &480_u32.to_be_bytes()].concat();
    let png = STANDARD.encode([&head[..], &[7; 4_001], b"CANARY"].concat());
    let other = STANDARD.encode([&head[..], &[8; 4_001], b"CANARY"].concat());
    let url = format!("data:image/png;base64,{png}");
    let part = |kind, bytes, size| PromptPart { kind, bytes, size };
    let image = part(PartKind::Image, Some(head.len() as u64 + 4_007), Some((640, 480)));
    let elsewhere = |kind| part(kind, None, None);
    let body_of = |parts: Value| json!({"messages": [{"role": "user", "content": parts}]});
    let of_url = |url: &str| {
        body_of(json!([{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]))
    };
    let requests = [
        ("/v1/chat/completions", of_url(&url), vec![image.clone()]),
        ("/v1/chat/completions", of_url(&format!("data:image/png;base64,{other}")), vec![image.clone()]),
        (
            "/v1/chat/completions",
            body_of(json!([
                {"type": "input_audio", "input_audio": {"data": STANDARD.encode([9; 1_000]), "format": "wav"}},
                {"type": "video_url", "video_url": {"url": "https://CANARY/film.mp4"}},
                {"type": "file", "file": {"file_id": "file-CANARY"}},
            ])),
            vec![part(PartKind::Audio, Some(1_000), None), elsewhere(PartKind::Video), elsewhere(PartKind::File)],
        ),
        (
            "/v1/messages",
            body_of(json!([
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png}},
                {"type": "image", "source": {"type": "url", "url": "https://CANARY/x.png"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
            ])),
            vec![image.clone(), elsewhere(PartKind::Image)],
        ),
        (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
            vec![image.clone()],
        ),
        ("/api/generate", json!({"prompt": "what is it?", "images": [png]}), vec![image.clone()]),
        ("/generate", json!({"text": "<image>", "image_data": png, "sampling_params": {}}), vec![image]),
    ];
    let mut client = proxy.client();
    for (path, body, _) in &requests {
        client.send(chat(&body.to_string()).replace("/v1/chat/completions", path)).response();
    }
    drop(proxy);
    let rows = rows(folder.path());
    for (row, (path, body, parts)) in rows.iter().zip(&requests) {
        assert_eq!(&row.prompt.parts, parts, "{path}: {}", body.to_string().len());
        assert!(row.prompt.bytes.unwrap() < 400, "what is no text is no bytes of it: {path} {:?}", row.prompt.bytes);
    }
    assert_eq!(rows.len(), requests.len());
    let [one, other] = [0, 1].map(|row: usize| &rows[row].prompt.blocks);
    let shared = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    assert!((1..one.len()).contains(&shared), "what is seen is a part of the prefix: {shared} of {}", one.len());
    let written = fs::read_dir(folder.path()).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
    let plain: Vec<u8> = written.flat_map(|bytes| zstd::stream::decode_all(&bytes[..]).unwrap_or(bytes)).collect();
    assert!(!String::from_utf8_lossy(&plain).contains("CANARY"));
}

/// The library's own counts for these texts, each by itself.
fn counted(texts: &[&str]) -> u64 {
    let mut tokenizer = Tokenizer::from_file(TOKENIZER).unwrap();
    tokenizer.with_padding(None).with_truncation(None).unwrap();
    texts.iter().map(|text| tokenizer.encode(*text, false).unwrap().len() as u64).sum()
}

#[test]
fn with_a_tokenizer_blocks_are_of_tokens_and_it_counts_where_the_server_does_not() {
    let folder = TempDir::new().unwrap();
    let uncounted = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            conn.send(HEAD);
            conn.chunk(event("x"));
            if request.head.contains("/v1/completions") {
                conn.chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":77,\"completion_tokens\":1}}\n\n");
            }
            conn.send("0\r\n\r\n");
        }
    });
    let proxy = proxy(uncounted.addr, folder.path(), &[("capture_tokenizer", TOKENIZER)]);
    let text = "Derivative Works shall mean any work, CANARY or not. ".repeat(20);
    let longer = format!("{text}And more of it.");
    for text in [&text, &longer] {
        proxy.client().send(chat(&chat_body(text).to_string())).response();
    }
    let completion = json!({"model": "m", "stream": true, "prompt": text}).to_string();
    proxy.client().send(chat(&completion).replace("/v1/chat/completions", "/v1/completions")).response();
    drop(proxy);
    let header = TraceReader::open(folder.path()).unwrap().header().blocks.clone().unwrap();
    assert_eq!((header.unit, header.size, header.last), (BlockUnit::Tokens, 16, LastBlock::Dropped));
    let rows = rows(folder.path());
    let expected = counted(&["role", "user", "content", &text]);
    assert_eq!((rows[0].prompt.tokens, rows[0].prompt.source), (Some(expected), Some(CountSource::Tokenizer)));
    assert_eq!(rows[0].prompt.blocks.len() as u64, expected / 16);
    let shared = rows[0].prompt.blocks.iter().zip(&rows[1].prompt.blocks).take_while(|(a, b)| a == b).count();
    assert!(shared >= rows[0].prompt.blocks.len() - 1 && rows[1].prompt.blocks.len() >= shared);
    assert_eq!((rows[2].prompt.tokens, rows[2].prompt.source), (Some(77), Some(CountSource::Usage)));
    assert_eq!(rows[2].prompt.blocks.len() as u64, counted(&[&text]) / 16, "ids are of the tokenizer's tokens");
    // A server counts what it makes of a chat as well: that is no row of impossible length.
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let info = command.args(["trace", "info", "--json"]).arg(folder.path()).env_clear().output().unwrap();
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert!(info["requests"] == 3 && !info["warnings"].to_string().contains("lengths"), "{}", info["warnings"]);
    for file in fs::read_dir(folder.path()).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        let plain = zstd::stream::decode_all(&bytes[..]).unwrap_or(bytes);
        assert!(!String::from_utf8_lossy(&plain).contains("CANARY"));
    }
}

#[test]
fn a_tokenizer_that_cannot_be_used_is_named_at_the_start() {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--upstream=http://127.0.0.1:9"]);
    command.arg(format!("--capture={}", folder.path().display())).arg("--capture-tokenizer=/absent.json");
    let done = command.env_clear().output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    let expected = "cannot use /absent.json as the tokenizer of the capture (--capture-tokenizer): No such file";
    assert!(stderr.contains(expected) && done.status.code() == Some(2), "{stderr}");
}

#[test]
fn rounding_leaves_times_and_lengths_in_steps() {
    const STEP: u64 = 20_000_000;
    let folder = TempDir::new().unwrap();
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            conn.send(HEAD);
            for chunk in answer(9) {
                conn.chunk(chunk);
                std::thread::sleep(std::time::Duration::from_millis(7));
            }
            conn.send("0\r\n\r\n");
        }
    });
    let proxy = proxy(upstream.addr, folder.path(), &[("capture_round", "20ms")]);
    for length in [1, 700, 3_333] {
        proxy.client().send(chat(&chat_body(&"x".repeat(length)).to_string())).response();
    }
    drop(proxy);
    let rows = rows(folder.path());
    assert_eq!(rows.len(), 3);
    for row in &rows {
        let timing = &row.timing;
        let after = [timing.sent, timing.evidence, timing.first_token, timing.first_output, timing.ended];
        let times = [Some(row.at), row.think].into_iter().chain(after).flatten();
        assert!(times.clone().count() >= 6 && times.into_iter().all(|time| time % STEP == 0), "{row:?}");
        let gaps = gaps::unpack(timing.gaps.as_ref().unwrap()).unwrap();
        assert!(gaps.len() == 8 && gaps.iter().all(|event| event.gap().as_nanos() % STEP == 0));
        assert!(gaps.iter().any(|event| event.gap() > Gap::ZERO));
    }
    let lengths = rows.iter().map(|row| (row.prompt.bytes.unwrap(), row.prompt.blocks.len()));
    assert_eq!(lengths.collect::<Vec<_>>(), [(512, 0), (512, 1), (3_072, 6)]);
    // The server reported 7, of which 3 from its cache.
    assert!(rows.iter().all(|row| (row.prompt.tokens, row.prompt.cached) == (Some(128), Some(0))));
}

/// A capture without a proxy, on a clock of its own.
struct Alone {
    capture: CaptureRecorder,
    clock: ManualClock,
}

impl Alone {
    fn new(folder: &Path, flush: Gap) -> Self {
        Self::keeping(folder, flush, Gap::from_nanos(u64::MAX))
    }

    fn keeping(folder: &Path, flush: Gap, age: Gap) -> Self {
        Self::start(folder, (flush, age), None, ManualClock::new())
    }

    fn start(folder: &Path, (flush, age): (Gap, Gap), key: Option<PathBuf>, clock: ManualClock) -> Self {
        let settings = CaptureSettings {
            folder: folder.to_owned(),
            flush,
            round: Gap::ZERO,
            key,
            rotate: true,
            block: 16,
            names: 1,
            sample: SampleShare::ALL,
            parquet: false,
            session: Some(SessionField::Header("x-user".to_owned())),
            upload: None,
            retention: Retention { bytes: u64::MAX, age },
        };
        let capture = CaptureRecorder::start(settings, None, Clock::Manual(clock.clone())).unwrap();
        Self { capture, clock }
    }

    /// A request that was sent and is not yet answered.
    fn asks(&self) -> (CaptureHandle, Box<StreamObserver>) {
        let shape = RequestShape::of("POST", "/v1/chat/completions", &Routes::default());
        let now = Clock::Manual(self.clock.clone()).now();
        let mut following = self.capture.begin_request(|name| (name == "x-user").then_some(b"alice"), 0);
        let body = chat_body(&"the same words ".repeat(20)).to_string();
        self.capture.push_body(&mut following, body.as_bytes());
        self.capture.finish_body(&mut following, named("openai.chat"));
        (following, StreamObserver::begin(shape, b"", None, now))
    }

    fn ends(&self, (following, mut observer): (CaptureHandle, Box<StreamObserver>)) {
        let now = Clock::Manual(self.clock.clone()).now();
        let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"" };
        observer.head(now, head, StampSource::Read);
        self.capture.end_request(Box::new((following, observer.end(now, Ending::Complete))));
    }

    /// Waits until so many rows are written.
    fn written(&self, rows: u64) {
        until("it is written", || {
            self.clock.advance(Gap::from_millis(10));
            self.capture.stats().count(RecordOutcome::Complete) == rows
        });
    }
}

#[test]
fn processes_with_one_key_change_the_key_of_the_day_at_the_same_moment() {
    const DAY: u64 = 20_000;
    let folder = TempDir::new().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "the key of the fleet").unwrap();
    let root = CaptureKey::load_or_create(folder.path(), Some(&key)).unwrap();
    let rows = [10, 2].map(|seconds| {
        let to_midnight = Gap::from_millis(seconds * 1_000);
        let clock = ManualClock::starting_at(DAY * 86_400_000_000_000 - to_midnight.as_nanos());
        let pod = folder.path().join(seconds.to_string());
        let limits = (Gap::from_millis(10), Gap::from_nanos(u64::MAX));
        let alone = Alone::start(&pod, limits, Some(key.clone()), clock);
        alone.ends(alone.asks());
        alone.written(1);
        // The clock's advance by `written` is far below this.
        alone.clock.advance(to_midnight);
        alone.ends(alone.asks());
        alone.written(2);
        alone.capture.shutdown();
        let mut segments: Vec<_> = fs::read_dir(&pod).unwrap().map(|file| file.unwrap().path()).collect();
        segments.retain(|path| path.to_str().unwrap().ends_with(".zst"));
        segments.sort();
        let of_day = segments.iter().map(|path| {
            let mut reader = TraceReader::open(path).unwrap();
            let key = reader.header().blocks.clone().unwrap().key.unwrap();
            let row = reader.next().unwrap().unwrap();
            (key, row.session.unwrap(), row.prompt.blocks)
        });
        of_day.collect::<Vec<_>>()
    });
    assert_eq!(rows[0], rows[1]);
    let keys: Vec<&str> = rows[0].iter().map(|(key, ..)| &**key).collect();
    assert_eq!(keys, [DAY - 1, DAY].map(|day| root.for_day(day).id()));
    assert_ne!(rows[0][0].1, rows[0][1].1);
}

#[test]
fn each_day_has_a_key_of_its_own_and_nothing_is_the_same_on_both() {
    let folder = TempDir::new().unwrap();
    let alone = Alone::new(folder.path(), Gap::from_millis(10));
    alone.ends(alone.asks());
    alone.written(1);
    let over_midnight = alone.asks();
    // When this is written, what was asked before it has been digested.
    alone.ends(alone.asks());
    alone.written(2);
    alone.clock.advance(Gap::from_millis(24 * 3_600_000));
    alone.ends(over_midnight);
    alone.ends(alone.asks());
    alone.written(4);
    alone.capture.shutdown();
    let mut segments: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    segments.retain(|path| path.to_str().unwrap().ends_with(".zst"));
    segments.sort();
    let days: Vec<(Option<String>, Vec<TraceEntry>)> = segments
        .iter()
        .map(|path| {
            let mut reader = TraceReader::open(path).unwrap();
            let key = reader.header().blocks.clone().unwrap().key;
            (key, reader.by_ref().map(Result::unwrap).collect())
        })
        .collect();
    let [(first_key, first), (second_key, second)] = &days[..] else { panic!("{} segments", days.len()) };
    assert!(first_key.is_some() && second_key.is_some() && first_key != second_key);
    assert!(!first[0].prompt.blocks.is_empty() && first[0].prompt.blocks == first[1].prompt.blocks);
    assert!(first[0].session.is_some() && first[0].session == first[1].session && first[1].turn == Some(1));
    let [midnight, next] = &second[..] else { panic!("{} rows", second.len()) };
    assert!(midnight.prompt.blocks.is_empty(), "ids of yesterday's key are no link to today");
    assert_eq!(midnight.prompt.bytes, first[0].prompt.bytes, "how long it was still is known");
    assert_eq!(next.prompt.blocks.len(), first[0].prompt.blocks.len());
    assert!(next.prompt.blocks.iter().all(|id| !first[0].prompt.blocks.contains(id)));
    assert!(midnight.session == next.session && next.session != first[0].session);
}

#[test]
fn what_is_too_old_is_removed_though_nothing_more_comes() {
    let folder = TempDir::new().unwrap();
    let alone = Alone::keeping(folder.path(), Gap::from_millis(10), Gap::from_millis(80));
    alone.ends(alone.asks());
    alone.written(1);
    // Files have the machine's time; the minutes between two looks are the clock's.
    until("no segment is left", || {
        alone.clock.advance(Gap::from_millis(60_000));
        let mut files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        files.all(|path| path.extension().is_none_or(|end| end != "zst"))
    });
}

#[test]
fn a_row_waits_for_the_flush_interval_and_a_kill_loses_no_more() {
    let folder = TempDir::new().unwrap();
    let alone = Alone::new(folder.path(), Gap::from_millis(500));
    alone.ends(alone.asks());
    // A tenth of the time is for the way from the stream to here.
    alone.clock.advance(Gap::from_millis(449));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(alone.capture.stats().count(RecordOutcome::Complete), 0, "not before it is over");
    let mut late = 0;
    while alone.capture.stats().count(RecordOutcome::Complete) == 0 {
        alone.clock.advance(Gap::from_millis(1));
        std::thread::sleep(std::time::Duration::from_millis(1));
        late += 1;
    }
    // The thread looks when it has time to: this is of a machine that gives it none for five seconds.
    assert!(late < 5_000, "{late} ms after it was over");
    assert_eq!(rows(folder.path()).len(), 1, "and it is there before anything ends");
}
