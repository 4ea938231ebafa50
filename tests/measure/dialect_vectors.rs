//! Every recorded vector matches its expectation, however its bytes are split.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use serde_json::Value;
use streamgauge::inspect::inspection::{Inspection, RecordedExchange, inspect};
use streamgauge::measure::dialect::{Routes, TABLE};
use streamgauge::measure::shape::RequestShape;

use crate::support::http2;
use crate::support::proxy::TestProxy;
use crate::support::upstream::{Upstream, reports};

/// The keys of an expectation that are an answer of `inspect --json`.
const KEYS: [&str; 18] = [
    "dialect",
    "events",
    "comments",
    "first_token_event",
    "first_evidence_event",
    "first_output_event",
    "last_token_event",
    "token_events",
    "evidence_events",
    "output_tokens",
    "output_tokens_from",
    "tokens_by_event",
    "input_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "finish",
    "error",
    "complete",
];

struct Vector {
    name: String,
    body: Vec<u8>,
    expect: Value,
}

fn vectors() -> Vec<Vector> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let mut vectors = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".expect.json")) else {
            continue;
        };
        let expect: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let body = std::fs::read(folder.join(expect["vector"].as_str().unwrap())).unwrap();
        vectors.push(Vector { name: name.to_owned(), body, expect });
    }
    assert!(vectors.len() >= 57, "only {} vectors under {}", vectors.len(), folder.display());
    vectors
}

impl Vector {
    fn text(&self, key: &str) -> &str {
        self.expect[key].as_str().unwrap_or("")
    }

    fn path(&self) -> &str {
        self.expect["request"]["path"].as_str().unwrap()
    }

    /// The body in the reads of its segments, or in three.
    fn pieces(&self) -> Vec<&[u8]> {
        let third = self.body.len().div_ceil(3);
        let Some(segments) = self.expect["segments"].as_array() else { return self.body.chunks(third).collect() };
        let mut rest = &self.body[..];
        let pieces = segments.iter().map(|length| rest.split_off(..length.as_u64().unwrap() as usize).unwrap());
        let pieces = pieces.collect();
        assert!(rest.is_empty(), "{}: the segments do not add up", self.name);
        pieces
    }

    fn inspect(&self, reads: &[&[u8]]) -> Inspection {
        let request = self.expect["request"]["body"].to_string();
        let exchange = RecordedExchange {
            head: RequestShape::of("POST", self.path().split('?').next().unwrap(), &Routes::default()),
            request: request.as_bytes(),
            content_type: self.text("content_type"),
            content_encoding: self.text("content_encoding"),
        };
        inspect(&exchange, reads.iter().copied()).0
    }

    fn check(&self, reads: &[&[u8]], cut: &str) {
        let answer = serde_json::to_value(self.inspect(reads)).unwrap();
        assert_eq!(answer.as_object().unwrap().len(), KEYS.len(), "the keys of inspect --json are a contract");
        for key in KEYS {
            assert_eq!(answer[key], self.expect[key], "{} of {}, {cut}", key, self.name);
        }
    }
}

#[test]
fn every_vector_means_what_it_should_when_fed_whole() {
    for vector in vectors() {
        vector.check(&[&vector.body], "whole");
    }
}

#[test]
fn every_vector_means_the_same_byte_by_byte() {
    for vector in vectors() {
        let bytes: Vec<&[u8]> = vector.body.chunks(1).collect();
        vector.check(&bytes, "byte by byte");
    }
}

#[test]
fn every_vector_means_the_same_by_its_segments() {
    let segmented = vectors().into_iter().filter(|vector| vector.expect["segments"].is_array());
    let checked = segmented.inspect(|vector| vector.check(&vector.pieces(), "by segments")).count();
    assert!(checked >= 6, "{checked} vectors have segments");
}

#[test]
fn every_vector_means_the_same_when_cut_in_two_anywhere() {
    for vector in vectors() {
        vector.check(&[&vector.body], "whole");
        let whole = vector.inspect(&[&vector.body]);
        for at in 0..=vector.body.len() {
            let (first, second) = vector.body.split_at(at);
            assert_eq!(vector.inspect(&[first, second]), whole, "{} cut at {at}", vector.name);
        }
    }
}

#[test]
fn every_vector_means_the_same_under_random_cuts() {
    use proptest::prelude::*;
    let vectors = vectors();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(400));
    let strategy = (0..vectors.len(), proptest::collection::vec(any::<prop::sample::Index>(), 0..20));
    runner
        .run(&strategy, |(which, cuts)| {
            let vector = &vectors[which];
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(vector.body.len() + 1)).collect();
            cuts.sort_unstable();
            let mut reads = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([vector.body.len()]) {
                reads.push(&vector.body[from..cut]);
                from = cut;
            }
            vector.check(&reads, "random cuts");
            Ok(())
        })
        .unwrap();
}

const ADDING: &str = "adding a dialect is one file, one row of TABLE and its vectors under tests/data/vectors";

#[test]
fn adding_a_dialect_is_one_file_one_row_and_its_vectors() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/measure/dialect");
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("const DIALECT: Dialect") {
            files.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    let rows: BTreeSet<_> = TABLE.iter().map(|dialect| dialect.name.replace('.', "_")).collect();
    assert_eq!(files, rows, "{ADDING}: these are the files, and the rows by name");
    let spoken: BTreeSet<_> = vectors().iter().map(|vector| vector.text("dialect").replace('.', "_")).collect();
    assert_eq!(rows, spoken, "{ADDING}: these are the rows, and the dialects of the vectors");
    let front_page = std::fs::read_to_string(folder.join("mod.rs")).unwrap();
    let page: Vec<_> = front_page.lines().filter_map(|line| line.strip_prefix("//! | ")).collect();
    for dialect in TABLE {
        let name = format!("`{}`", dialect.name);
        assert!(page.iter().any(|row| row.contains(&name)), "the front page's table has no row of {name}");
    }
}

/// Compares what is exported of the one request that went through with the expectation.
fn check_exported(vector: &Vector, proxy: &TestProxy) {
    let (last, expect) = (proxy.last_request(), &vector.expect);
    let outcome = match (expect["complete"].as_bool().unwrap(), expect["error"].is_null()) {
        (true, _) => "success",
        (false, true) => "truncated",
        (false, false) => "failed",
    };
    let source = match vector.text("output_tokens_from") {
        "" => Value::Null,
        "cumulative" => "continuous_usage".into(),
        "details" | "eval_count" => "usage".into(),
        same => same.into(),
    };
    let dialect = TABLE.iter().find(|dialect| dialect.name == vector.text("dialect")).unwrap();
    let name = &vector.name;
    assert_eq!(last["outcome"], outcome, "{name}");
    assert_eq!(last["route"], dialect.route, "{name}");
    assert_eq!((&last["output_tokens"], &last["output_tokens_from"]), (&expect["output_tokens"], &source), "{name}");
    let streamed_token = !expect["first_token_event"].is_null();
    assert_eq!(last["ttft_ms"].is_number(), streamed_token, "{name} and its time to first token");
    let model = &expect["request"]["body"]["model"];
    if model.is_string() {
        assert_eq!(&last["model"], model, "{name}");
    }
}

#[test]
fn every_vector_is_exported_as_it_should_be_when_it_goes_through_the_proxy() {
    for vector in vectors().into_iter().filter(|vector| vector.text("dialect") != "triton.grpc") {
        let encoding = match vector.text("content_encoding") {
            "" => String::new(),
            coding => format!("Content-Encoding: {coding}\r\n"),
        };
        let kind = vector.text("content_type");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{encoding}Transfer-Encoding: chunked\r\n\r\n");
        let pieces: Vec<Vec<u8>> = vector.pieces().into_iter().map(<[u8]>::to_vec).collect();
        let upstream = Upstream::start(move |mut conn| {
            while conn.request().is_some() {
                conn.send(&head);
                pieces.iter().for_each(|piece| _ = conn.chunk(piece));
                conn.send("0\r\n\r\n");
            }
        });
        let proxy = TestProxy::with(upstream.addr, &[("workers", "1")]);
        let (path, body) = (vector.path(), vector.expect["request"]["body"].to_string());
        let mut client = proxy.client();
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(client.response().body, vector.body, "{}: not a byte is changed", vector.name);
        check_exported(&vector, &proxy);
    }
}

/// gRPC's messages, each compressed by itself.
fn each_compressed(encoding: &str, body: &[u8]) -> Vec<u8> {
    let (mut rest, mut out) = (body, Vec::new());
    while let Some(head) = rest.split_off(..5) {
        let length = u32::from_be_bytes(head[1..].try_into().unwrap());
        let plain = rest.split_off(..length as usize).unwrap();
        let message = match encoding {
            "gzip" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "zstd" => zstd::encode_all(plain, 3).unwrap(),
            // An unknown coding.
            _ => plain.iter().map(|byte| !byte).collect(),
        };
        out.push(1);
        out.extend_from_slice(&(message.len() as u32).to_be_bytes());
        out.extend_from_slice(&message);
    }
    assert!(rest.is_empty(), "the body is whole messages");
    out
}

/// A gRPC exchange through a proxy, its messages compressed in both directions or in neither; nothing is changed.
fn called(vector: &Vector, encoding: Option<&'static str>) -> TestProxy {
    // ModelInferRequest{1: "vllm_model", 3: "q1"}
    let message = b"\0\0\0\0\x10\x0a\x0avllm_model\x1a\x02q1";
    let (body, message) = match encoding {
        None => (vector.body.clone(), message.to_vec()),
        Some(encoding) => (each_compressed(encoding, &vector.body), each_compressed(encoding, message)),
    };
    let pieces: Vec<Bytes> = body.chunks(body.len().div_ceil(3)).map(Bytes::copy_from_slice).collect();
    let (report, got) = reports();
    let addr = http2::upstream(None, move |request, _| {
        report(request.into_body());
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let mut response = Response::builder().header("content-type", "application/grpc");
        if let Some(encoding) = encoding {
            response = response.header("grpc-encoding", encoding);
        }
        (response.body(pieces.clone()).unwrap(), Some(trailers))
    });
    let proxy = TestProxy::with(addr, &[("upstream_http", "http2"), ("workers", "1")]);
    let mut request = Request::post(format!("http://proxy.test{}", vector.path()))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let reply = http2::request(proxy.addr, None, request.body(message.clone().into()).unwrap(), None);
    assert_eq!((&reply.body[..], &got()[..]), (&body[..], &message[..]), "{}: not a byte is changed", vector.name);
    proxy
}

fn grpc_vectors() -> impl Iterator<Item = Vector> {
    vectors().into_iter().filter(|vector| vector.text("dialect") == "triton.grpc")
}

#[test]
fn every_grpc_vector_is_exported_as_it_should_be_over_http2_compressed_or_not() {
    for vector in grpc_vectors() {
        for encoding in [None, Some("gzip"), Some("deflate"), Some("zstd")] {
            let proxy = called(&vector, encoding);
            check_exported(&vector, &proxy);
            assert_eq!(proxy.last_request()["model"], "vllm_model", "{encoding:?}");
        }
    }
}

#[test]
fn grpc_messages_in_a_coding_that_is_not_known_pass_and_are_no_failure() {
    for vector in grpc_vectors() {
        let last = called(&vector, Some("unheard-of")).last_request();
        assert_eq!((&last["outcome"], &last["output_tokens"]), (&Value::from("success"), &Value::Null));
        assert_eq!(last["unread"], "coding");
    }
}

#[test]
fn a_request_is_exported_with_the_unparsed_parts_of_its_reply() {
    let answer = |fields: &str, body: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Type: {fields}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    for (answer, events, unread) in [
        (answer("text/event-stream", "data: {}\n\ndata: {\n\ndata: [DONE]\n\n"), 1, Value::Null),
        (answer("text/event-stream\r\nContent-Encoding: gzip", "data: [DONE]\n\n"), 0, "coding".into()),
        (answer("application/json", "{]"), 0, "malformed".into()),
    ] {
        let upstream = Upstream::answering(&*answer);
        let proxy = TestProxy::new(upstream.addr);
        proxy.client().send(crate::support::client::chat("{\"stream\":true}")).response();
        let last = proxy.last_request();
        assert_eq!((&last["malformed_events"], &last["unread"]), (&Value::from(events), &unread), "{answer}");
    }
}

#[test]
fn a_route_of_the_configuration_gives_a_path_its_dialect() {
    let event = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\ndata: [DONE]\n\n";
    let kind = "Content-Type: text/event-stream";
    let upstream =
        Upstream::answering(format!("HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {}\r\n\r\n{event}", event.len()));
    for (routes, route) in [("/custom/*=openai.completions", "/v1/completions"), ("/other=openai.chat", "")] {
        let proxy = TestProxy::with(upstream.addr, &[("routes", routes), ("workers", "1")]);
        let body = "{\"model\":\"mine\"}";
        let head = format!("POST /custom/talk?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        proxy.client().send(head + body).response();
        let last = proxy.last_request();
        let known = !route.is_empty();
        assert_eq!((&last["route"], &last["outcome"]), (&Value::from(route), &Value::from("success")));
        assert_eq!((last["model"].is_string(), last["ttft_ms"].is_number()), (known, known), "{routes}");
    }
}
