//! Token counts of a local tokenizer for servers that report none: off the path of the stream, and no text is kept.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use streamgauge::measure::dialect::Routes;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{CountSource, Ending, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::text_collector::TextBudget;
use streamgauge::measure::time::Stamp;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;
use tokenizers::Tokenizer;

use crate::support::client::{Client, chat};
use crate::support::proxy::TestProxy;
use crate::support::upstream::Upstream;

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const DONE: &str = "data: [DONE]\n\n";

/// The file in the tests' data.
fn file() -> String {
    format!("{}/tests/data/tokenizers/tiny.json", env!("CARGO_MANIFEST_DIR"))
}

/// The library's own counts for these texts, each by itself.
fn counted(texts: &[&str]) -> u64 {
    let mut tokenizer = Tokenizer::from_file(file()).unwrap();
    tokenizer.with_padding(None).with_truncation(None).unwrap();
    texts.iter().map(|text| tokenizer.encode(*text, false).unwrap().len() as u64).sum()
}

fn event(choice: u64, delta: Value) -> String {
    format!("data: {}\n\n", json!({"id": "c", "choices": [{"index": choice, "delta": delta}]}))
}

fn usage(tokens: u64) -> String {
    format!("data: {}\n\n", json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}}))
}

/// A server that answers each request with these chunks.
fn upstream(chunks: Vec<String>) -> Upstream {
    Upstream::start(move |mut conn| {
        while conn.request().is_some() {
            conn.send(HEAD);
            chunks.iter().for_each(|chunk| _ = conn.chunk(chunk));
            conn.send("0\r\n\r\n");
        }
    })
}

/// A proxy that has the tokenizer for `llama-*`, to such a server.
fn proxy(chunks: Vec<String>) -> (TestProxy, Upstream) {
    let upstream = upstream(chunks);
    let tokenizer = format!("llama-*={}", file());
    (TestProxy::with(upstream.addr, &[("tokenizers", &tokenizer)]), upstream)
}

fn ask(proxy: &TestProxy, model: &str) -> String {
    let body = json!({"model": model, "stream": true, "messages": []}).to_string();
    proxy.client().send(chat(&body)).response().text()
}

/// Everything under a path of the admin port.
fn page(proxy: &TestProxy, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    Client::connect(proxy.admin).send(request).response().text()
}

/// Output tokens on `/metrics`, once there are any: their source, and their number.
fn tokens(proxy: &TestProxy) -> Vec<(String, u64)> {
    for _ in 0..500 {
        let page = page(proxy, "/metrics");
        let of_tokens = page.lines().filter(|line| line.starts_with("streamgauge_stream_output_tokens_total{"));
        let one = |line: &str| {
            let source = line.split("source=\"").nth(1)?.split('"').next()?;
            Some((source.to_owned(), line.rsplit(' ').next()?.parse().ok()?))
        };
        let tokens: Vec<(String, u64)> = of_tokens.filter_map(one).collect();
        if !tokens.is_empty() {
            return tokens;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Vec::new()
}

/// The counts of a stream of these chunks, requested from this model.
fn measured(model: &str, chunks: Vec<String>) -> Vec<(String, u64)> {
    let (proxy, _upstream) = proxy(chunks.clone());
    assert_eq!(ask(&proxy, model), chunks.concat(), "the stream is untouched");
    tokens(&proxy)
}

fn by(source: &str, tokens: u64) -> Vec<(String, u64)> {
    vec![(source.to_owned(), tokens)]
}

#[test]
fn where_the_server_does_not_count_the_tokenizer_does() {
    // The merges of the tokenizer reach over the events' bounds, and so must the count.
    let texts = ["Deriv", "ative Work", "s sha", "ll \"mean\"\n", "é", "🙂", " such"];
    let whole = texts.concat();
    let apart = counted(&texts);
    let exact = counted(&[&whole]);
    assert!(exact != apart && exact != texts.len() as u64, "{exact} {apart}");
    let mut chunks = vec![event(0, json!({"role": "assistant", "content": ""}))];
    chunks.extend(texts.iter().map(|text| event(0, json!({"content": text}))));
    chunks.push(DONE.to_owned());
    assert_eq!(measured("llama-3", chunks), by("tokenizer", exact));
}

#[test]
fn a_captured_row_has_the_tokenizers_count_too() {
    let upstream = upstream(vec![event(0, json!({"content": "Derivative Works shall"})), DONE.to_owned()]);
    let (folder, tokenizer) = (tempfile::tempdir().unwrap(), format!("llama-*={}", file()));
    let capture = folder.path().to_str().unwrap();
    let proxy = TestProxy::with(upstream.addr, &[("tokenizers", &tokenizer), ("capture", capture)]);
    ask(&proxy, "llama-3");
    assert!(proxy.stop(Duration::from_secs(10)));
    let rows: Vec<TraceEntry> = TraceReader::open(folder.path()).unwrap().map(Result::unwrap).collect();
    let counts: Vec<_> = rows.iter().map(|row| (row.output_tokens, row.output_source)).collect();
    assert_eq!(counts, [(Some(counted(&["Derivative Works shall"])), Some(CountSource::Tokenizer))]);
}

#[test]
fn the_servers_own_count_goes_before() {
    let text = event(0, json!({"content": "some text of the server"}));
    assert_eq!(measured("llama-3", vec![text, usage(77), DONE.to_owned()]), by("usage", 77));
    let ids = json!({"choices": [{"index": 0, "delta": {"content": "some"}, "token_ids": [1, 2, 3]}]});
    assert_eq!(measured("llama-3", vec![format!("data: {ids}\n\n"), DONE.to_owned()]), by("ids", 3));
}

#[test]
fn a_model_without_a_tokenizer_is_counted_by_its_events() {
    let chunks = vec![event(0, json!({"content": "Derivative Works"})), DONE.to_owned()];
    assert_eq!(measured("mistral", chunks), by("chunks", 1));
}

#[test]
fn choices_reasoning_and_tools_are_counted_apart() {
    let call = |arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
    let chunks = vec![
        event(0, json!({"reasoning_content": "Derivative "})),
        event(1, json!({"reasoning_content": "another "})),
        event(0, json!({"reasoning_content": "thoughts"})),
        event(1, json!({"content": "shall"})),
        event(0, json!({"content": "Works"})),
        event(0, call("{\"such\":")),
        event(0, call("\"conditions\"}")),
        DONE.to_owned(),
    ];
    let texts = ["Derivative thoughts", "another ", "shall", "Works", "{\"such\":\"conditions\"}"];
    assert_eq!(measured("llama-3", chunks), by("tokenizer", counted(&texts)));
}

#[test]
fn text_past_its_bound_is_counted_by_its_events() {
    let chunks: Vec<String> = (0..3).map(|_| event(0, json!({"content": "such ".repeat(80_000)}))).collect();
    assert_eq!(measured("llama-3", chunks), by("chunks", 3));
}

#[test]
fn a_stream_that_dies_is_counted_as_far_as_it_came() {
    let upstream = Upstream::start(|mut conn| {
        conn.request().unwrap();
        conn.send(HEAD);
        conn.chunk(event(0, json!({"content": "Derivative Works shall"})));
    });
    let proxy = TestProxy::with(upstream.addr, &[("tokenizers", &format!("*={}", file()))]);
    proxy.client().send(chat("{\"stream\":true}")).response();
    assert_eq!(tokens(&proxy), by("tokenizer", counted(&["Derivative Works shall"])));
}

#[test]
fn pending_counts_are_exported_before_shutdown() {
    let chunks = [event(0, json!({"content": "such ".repeat(10_000)})), DONE.to_owned()];
    let upstream = Upstream::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n{}",
        chunks.concat().len(),
        chunks.concat()
    ));
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--access-log", "--log-format=json"]);
    command.arg(format!("--upstream=http://{}", upstream.addr)).arg(format!("--tokenizer=*={}", file()));
    let mut proxy = command.env_clear().stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(proxy.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    let forwarding = lines.find(|line| line.contains("forwarding")).unwrap();
    let listen = forwarding.split("\"listen\":\"").nth(1).unwrap().split('"').next().unwrap();
    let reply = Client::connect(listen.parse().unwrap()).send(chat("{\"stream\":true}")).response();
    assert_eq!(reply.text(), chunks.concat());
    kill(Pid::from_raw(proxy.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let access = lines.find(|line| line.contains("tokens_from")).expect("the request is logged");
    assert!(access.contains("\"tokens_from\":\"tokenizer\""), "{access}");
    assert_eq!(proxy.wait().unwrap().code(), Some(0));
}

#[test]
fn no_text_is_anywhere_but_in_the_stream() {
    let canary = "CANARY-93b1f0";
    let chunks = vec![event(0, json!({"reasoning": canary})), event(0, json!({"content": canary})), DONE.to_owned()];
    let (proxy, _upstream) = proxy(chunks);
    assert!(ask(&proxy, "llama-3").contains(canary));
    assert_eq!(tokens(&proxy), by("tokenizer", 2 * counted(&[canary])));
    for path in ["/metrics", "/api/state", "/", "/readyz"] {
        assert!(!page(&proxy, path).contains(canary), "{path}");
    }
}

#[test]
fn a_file_that_is_no_tokenizer_is_named_and_nothing_of_it_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let start = |path: &Path| {
        let tokenizer = format!("--tokenizer=llama-*={}", path.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.args(["proxy", "--upstream=http://127.0.0.1:9", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
        let done = command.arg(tokenizer).env_clear().output().unwrap();
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8(done.stderr).unwrap()
    };
    let (absent, other) = (folder.path().join("absent.json"), folder.path().join("other.json"));
    std::fs::write(&other, "{\"secret\": 1}").unwrap();
    let begin = |path: &Path| format!("cannot use {} as the tokenizer of llama-* (--tokenizer): ", path.display());
    let stderr = start(&absent);
    assert!(stderr.contains(&(begin(&absent) + "No such file or directory")), "{stderr}");
    let stderr = start(&other);
    let expected = begin(&other) + "expected a tokenizer.json as Hugging Face's tokenizers write it";
    assert!(stderr.contains(&expected) && !stderr.contains("secret"), "{stderr}");
}

/// The text that a tokenizer would get of a vector, if the stream ended after so many bytes.
fn text_after(expect: &Value, body: &[u8], length: usize) -> Option<Vec<String>> {
    let path = expect["request"]["path"].as_str().unwrap().split('?').next().unwrap();
    let shape = RequestShape::of("POST", path, &Routes::default());
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    observer.request(expect["request"]["body"].to_string().as_bytes());
    let head = ResponseHead {
        status: 200,
        content_type: expect["content_type"].as_str().unwrap().as_bytes(),
        content_encoding: expect["content_encoding"].as_str().unwrap_or("").as_bytes(),
    };
    observer.head(Stamp::default(), head, StampSource::Read);
    observer.collect_text(&TextBudget::default());
    observer.bytes(Stamp::default(), &body[..length]);
    let (_, text) = observer.end_with_text(Stamp::default(), Ending::UpstreamFailed);
    text.map(|text| text.parts().map(str::to_owned).collect())
}

#[test]
fn every_dialect_without_counts_of_its_own_hands_out_its_text() {
    let mut longest = BTreeMap::<String, Vec<String>>::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vectors")).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_str().unwrap().ends_with(".expect.json") {
            continue;
        }
        let expect: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let body = std::fs::read(path.with_file_name(expect["vector"].as_str().unwrap())).unwrap();
        for length in (0..=body.len()).filter(|at| *at % 64 == 0 || body.get(at.wrapping_sub(1)) == Some(&b'\n')) {
            let Some(text) = text_after(&expect, &body, length) else { continue };
            assert!(!text.concat().is_empty(), "{}: a token event without text", path.display());
            let known = longest.entry(expect["dialect"].as_str().unwrap().to_owned()).or_default();
            if text.concat().len() > known.concat().len() {
                *known = text;
            }
        }
    }
    let dialects: Vec<(&str, String)> = longest.iter().map(|(name, text)| (&**name, text.join("|"))).collect();
    let expected = [
        ("anthropic.messages", "Looking.|{\"port\": \"Oslo\"}"),
        ("bedrock.converse", "Iron gate"),
        ("ollama.chat", "Let me see|Two cups"),
        ("ollama.generate", "Rain on tin"),
        ("openai.chat", "get_tide|{\"port\": \"Oslo\"}"),
        ("openai.completions", " low tide at"),
        ("openai.responses", "Recall|North wind"),
    ];
    assert_eq!(dialects, expected.map(|(name, text)| (name, text.to_owned())));
}
