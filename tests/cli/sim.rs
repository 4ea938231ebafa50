//! The simulated server over real sockets: vLLM's shapes, every fault, and hostile clients.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::sim::{RunningServer, SimOptions, SimServer};

use super::schemas::problems;

/// Steps of a millisecond, so that a test takes a few of them.
fn quick() -> SimOptions {
    let cost = CostModel {
        prefill_per_second: 1_000_000,
        step_base: Gap::from_millis(1),
        step_per_seq: Gap::from_nanos(1_000),
        ..CostModel::default()
    };
    SimOptions { engine: EngineOptions { cost, ..EngineOptions::default() }, ..SimOptions::default() }
}

fn with_engine(engine: EngineOptions) -> SimOptions {
    SimOptions { engine, ..quick() }
}

fn start(options: SimOptions) -> RunningServer {
    SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap()
}

/// A client that shows what came over the wire and hides nothing.
struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    /// The body in the chunks it came in; one piece if it had a length.
    chunks: Vec<String>,
    /// The body ended as its head had promised.
    complete: bool,
}

impl Client {
    fn new(to: &RunningServer) -> Self {
        Self::connect(to.local_addr())
    }

    fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    fn post(&mut self, path: &str, headers: &str, body: &Value) -> Answer {
        self.send_post(path, headers, body);
        self.answer().unwrap()
    }

    fn send_post(&mut self, path: &str, headers: &str, body: &Value) {
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        self.send((head + &body).as_bytes());
    }

    fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: sim\r\n\r\n").as_bytes());
        self.answer().unwrap()
    }

    /// Reads the head of an answer: its status and its text in lower case.
    fn head(&mut self) -> std::io::Result<(u16, String)> {
        let mut head = String::new();
        loop {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if head.ends_with("\r\n\r\n") {
                break;
            }
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok((status, head.to_lowercase()))
    }

    /// Reads one chunk; `None` is the last.
    fn chunk(&mut self) -> std::io::Result<Option<String>> {
        let mut size = String::new();
        if self.stream.read_line(&mut size)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk)?;
        assert_eq!(&chunk[size..], b"\r\n");
        chunk.truncate(size);
        Ok((size > 0).then(|| String::from_utf8(chunk).unwrap()))
    }

    fn answer(&mut self) -> std::io::Result<Answer> {
        let (status, head) = self.head()?;
        let mut answer = Answer { status, head, chunks: Vec::new(), complete: true };
        if let Some((_, rest)) = answer.head.split_once("content-length: ") {
            let mut body = vec![0; rest.split("\r\n").next().unwrap().parse().unwrap()];
            self.stream.read_exact(&mut body)?;
            answer.chunks.push(String::from_utf8(body).unwrap());
            return Ok(answer);
        }
        loop {
            match self.chunk() {
                Ok(Some(chunk)) => answer.chunks.push(chunk),
                Ok(None) => return Ok(answer),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    answer.complete = false;
                    return Ok(answer);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    answer.complete = false;
                    answer.head.push_str("(reset)");
                    return Ok(answer);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the end of the connection: `Ok(0)` after a FIN, an error after a reset.
    fn ended(&mut self) -> std::io::Result<usize> {
        self.stream.read(&mut [0])
    }
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.chunks.concat()).unwrap()
    }

    /// The data of every event but `[DONE]`, which has to be the last. One chunk is one event.
    fn events(&self) -> Vec<Value> {
        let data: Vec<&str> = self.chunks.iter().map(|chunk| data(chunk)).collect();
        let (done, rest) = data.split_last().unwrap();
        assert_eq!(*done, "[DONE]");
        rest.iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

fn data(chunk: &str) -> &str {
    let data = chunk.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
    assert!(!data.contains('\n'), "one chunk is one event");
    data
}

fn chat(tokens: u32, more: Value) -> Value {
    let mut body = json!({
        "model": "sim", "stream": true, "max_tokens": tokens, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Where does the secretword river rise?"}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn content(event: &Value) -> &str {
    event["choices"][0]["delta"]["content"].as_str().unwrap()
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The value of a metric's line without labels other than the two that every line has.
fn metric(sim: &RunningServer, name: &str) -> f64 {
    let page = Client::new(sim).get("/metrics");
    assert_eq!(page.status, 200);
    let page = page.chunks.concat();
    let line = page.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn plain(name: &str) -> String {
    format!("vllm:{name}{{engine=\"0\",model_name=\"sim\"}}")
}

fn ended_as(reason: &str) -> String {
    format!("vllm:request_success_total{{engine=\"0\",model_name=\"sim\",finished_reason=\"{reason}\"}}")
}

/// Waits until a metric has a value, which it has to reach.
fn wait_for(sim: &RunningServer, name: &str, value: f64) {
    for _ in 0..2_000 {
        if metric(sim, name) == value {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{name} is {} and not {value}", metric(sim, name));
}

#[test]
fn a_streamed_chat_is_a_role_then_tokens_then_usage_then_done() {
    let sim = start(quick());
    let answer = Client::new(&sim).post(
        CHAT,
        "x-request-id: abc\r\n",
        &chat(3, json!({"stream_options": {"include_usage": true}})),
    );
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/event-stream; charset=utf-8\r\n"));
    assert!(answer.head.contains("server: streamgauge-sim (simulated)\r\n"));
    assert!(answer.head.contains("transfer-encoding: chunked\r\n"));
    let events = answer.events();
    assert_eq!(events.len(), 5);
    for event in &events {
        assert_eq!(event["id"], "chatcmpl-abc");
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["model"], "sim");
    }
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(!content(&events[1]).starts_with(' ') && content(&events[2]).starts_with(' '));
    let reasons: Vec<_> = events[..4].iter().map(|event| event["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(reasons, [None, None, None, Some("length")]);
    assert_ne!(content(&events[3]), "", "the finish is on the last token");
    assert!(events[..4].iter().all(|event| event.get("usage").is_none()));
    assert_eq!(events[4]["choices"], json!([]));
    // "user\n", 37 bytes and "\n" are 43 bytes, so 11 tokens.
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14,
                       "prompt_tokens_details": {"cached_tokens": 0}});
    assert_eq!(events[4]["usage"], usage);
    assert_eq!(events[4]["system_fingerprint"], "streamgauge-sim");
}

#[test]
fn a_streamed_completion_has_no_role_and_no_usage_unless_requested() {
    let sim = start(quick());
    let body = json!({"prompt": "low", "stream": true, "max_tokens": 3, "ignore_eos": true});
    let events = Client::new(&sim).post(COMPLETIONS, "", &body).events();
    assert_eq!(events.len(), 3);
    for event in &events {
        assert_eq!(event["object"], "text_completion");
        assert!(event["id"].as_str().unwrap().starts_with("cmpl-"));
        assert!(event["choices"][0]["text"].as_str().unwrap().starts_with(' '));
    }
    assert_eq!(events[2]["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_reply_that_is_not_streamed_has_the_same_content_in_one_piece() {
    let sim = start(quick());
    let streamed = Client::new(&sim).post(CHAT, "", &chat(9, json!({"seed": 7}))).events();
    let streamed: String = streamed.iter().map(content).collect();
    let answer = Client::new(&sim).post(CHAT, "", &chat(9, json!({"seed": 7, "stream": false})));
    assert!(answer.head.contains("content-type: application/json\r\n"));
    assert!(answer.head.contains("server: streamgauge-sim (simulated)\r\n"));
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    assert_eq!(body["choices"][0]["message"]["content"], streamed);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 9);
    assert_eq!(body["usage"]["total_tokens"], 20);
    assert_eq!(body["system_fingerprint"], "streamgauge-sim");
    let body = json!({"prompt": ["one", "another"], "max_tokens": 2, "ignore_eos": true, "n": 2});
    let body = Client::new(&sim).post(COMPLETIONS, "", &body).json();
    let indices: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(body["usage"]["prompt_tokens"], 3);
    assert_eq!(body["usage"]["completion_tokens"], 8);
}

#[test]
fn continuous_usage_counts_every_event_of_its_choice() {
    let sim = start(with_engine(EngineOptions { tokens_per_step: 3, ..quick().engine }));
    let usage = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = Client::new(&sim).post(CHAT, "", &chat(9, usage)).events();
    let counts: Vec<_> = events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [0, 1, 4, 7, 9, 9]);
    assert_eq!(content(&events[2]).split_whitespace().count(), 3);
    assert_eq!(events[2]["usage"], json!({"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}));
}

#[test]
fn two_choices_interleave_and_share_their_prompt() {
    let sim = start(quick());
    let more = json!({"n": 2, "stream_options": {"include_usage": true}});
    let events = Client::new(&sim).post(CHAT, "", &chat(3, more)).events();
    let order: Vec<_> = events[..8].iter().map(|event| event["choices"][0]["index"].as_u64().unwrap()).collect();
    assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(events[8]["usage"]["prompt_tokens"], 11);
    assert_eq!(events[8]["usage"]["completion_tokens"], 6);
    assert_ne!(content(&events[2]), content(&events[3]), "choices are different texts");
}

#[test]
fn the_seed_makes_the_text_and_the_length_and_the_prompt_does_not() {
    let sim = start(quick());
    let text = |seed: u64| {
        let body = chat(400, json!({"seed": seed, "ignore_eos": false}));
        let events = Client::new(&sim).post(CHAT, "", &body).events();
        let last = events.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"] == "stop", content(last).is_empty());
        events.iter().map(content).collect::<String>()
    };
    let texts: Vec<_> = (0..6).map(text).collect();
    assert_eq!(text(3), texts[3]);
    assert!(texts.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(texts.iter().all(|text| !text.contains("secretword")));
}

#[test]
fn the_stream_interval_holds_tokens_back_but_not_the_first_and_the_last() {
    let sim = start(quick());
    let events = Client::new(&sim).post(CHAT, "", &chat(11, json!({"stream_interval": 4}))).events();
    let tokens: Vec<_> = events[1..].iter().map(|event| content(event).split_whitespace().count()).collect();
    assert_eq!(tokens, [1, 4, 4, 2]);
}

#[test]
fn token_ids_are_as_many_as_the_tokens() {
    let sim = start(quick());
    let more = json!({"return_token_ids": true, "stream_interval": 5});
    let events = Client::new(&sim).post(CHAT, "", &chat(7, more)).events();
    let ids: Vec<_> =
        events[1..].iter().map(|event| event["choices"][0]["token_ids"].as_array().unwrap().len()).collect();
    assert_eq!(ids, [1, 5, 1]);
}

#[test]
fn a_connection_is_kept_and_used_again() {
    let sim = start(quick());
    let mut client = Client::new(&sim);
    for _ in 0..3 {
        assert_eq!(client.post(CHAT, "", &chat(2, json!({}))).events().len(), 3);
        assert_eq!(client.get("/health").status, 200);
    }
}

#[test]
fn a_model_of_several_names_answers_to_each() {
    let sim = start(SimOptions { models: vec!["a".to_owned(), "b".to_owned()], ..quick() });
    let mut client = Client::new(&sim);
    let listed = client.get("/v1/models").json();
    assert_eq!((&listed["data"][0]["id"], &listed["data"][1]["id"]), (&json!("a"), &json!("b")));
    let mut answer = |model: &str| client.post(CHAT, "", &chat(1, json!({"model": model, "stream": false})));
    assert_eq!((answer("b").json()["model"].clone(), answer("").json()["model"].clone()), (json!("b"), json!("a")));
    assert_eq!(answer("sim").status, 404);
}

#[test]
fn the_small_pages_identify_the_server() {
    let sim = start(quick());
    let mut client = Client::new(&sim);
    let models = client.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "sim");
    assert_eq!(models["data"][0]["owned_by"], "streamgauge-sim (simulated)");
    assert_eq!(models["data"][0]["max_model_len"], 131_072);
    assert!(client.get("/version").json()["version"].as_str().unwrap().ends_with("+streamgauge-sim"));
    let metrics = client.get("/metrics");
    assert!(metrics.head.contains("server: streamgauge-sim (simulated)"));
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"));
}

#[test]
fn the_metrics_count_what_was_served() {
    let sim = start(quick());
    Client::new(&sim).post(CHAT, "", &chat(5, json!({})));
    Client::new(&sim).post(CHAT, "", &chat(7, json!({"stream": false})));
    assert_eq!(metric(&sim, &plain("generation_tokens_total")), 12.0);
    assert_eq!(metric(&sim, &plain("prompt_tokens_total")), 22.0);
    assert_eq!(metric(&sim, &plain("time_to_first_token_seconds_count")), 2.0);
    assert_eq!(metric(&sim, &plain("inter_token_latency_seconds_count")), 10.0);
    assert_eq!(metric(&sim, &plain("e2e_request_latency_seconds_count")), 2.0);
    assert_eq!(metric(&sim, &ended_as("length")), 2.0);
    assert_eq!(metric(&sim, &plain("num_requests_running")), 0.0);
    assert_eq!(metric(&sim, &plain("kv_cache_usage_perc")), 0.0);
}

#[test]
fn a_known_prefix_makes_the_first_token_earlier_by_its_prefill() {
    let cost = CostModel { prefill_per_second: 10_000, ..quick().engine.cost };
    let sim = start(SimOptions { per_request_metrics: true, ..with_engine(EngineOptions { cost, ..quick().engine }) });
    let ask = || {
        let body = json!({
            "prompt": "x".repeat(4_000), "stream": true, "max_tokens": 2, "ignore_eos": true,
            "stream_options": {"include_usage": true},
        });
        Client::new(&sim).post(COMPLETIONS, "", &body).events().pop().unwrap()
    };
    // 1,000 tokens at 10 per ms, and a step; then all but 8 of them from 62 blocks of 16.
    let (cold, warm) = (ask(), ask());
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(cold["metrics"]["time_to_first_token_ms"], 101.001);
    assert_eq!(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 992);
    assert_eq!(warm["metrics"]["time_to_first_token_ms"], 1.801);
    assert_eq!(metric(&sim, &plain("prefix_cache_queries_total")), 2_000.0);
    assert_eq!(metric(&sim, &plain("prefix_cache_hits_total")), 992.0);
}

#[test]
fn a_client_that_goes_away_frees_its_slot() {
    let sim = start(with_engine(EngineOptions { max_num_seqs: 1, ..quick().engine }));
    let mut leaving = Client::new(&sim);
    leaving.send_post(CHAT, "", &chat(100_000, json!({})));
    leaving.head().unwrap();
    leaving.chunk().unwrap();
    drop(leaving);
    assert_eq!(Client::new(&sim).post(CHAT, "", &chat(2, json!({}))).events().len(), 3);
    assert_eq!(metric(&sim, &ended_as("abort")), 1.0);
    assert_eq!(metric(&sim, &ended_as("length")), 1.0);
}

#[test]
fn so_does_one_that_waits_for_a_reply_in_one_piece() {
    let sim = start(with_engine(EngineOptions { max_num_seqs: 1, ..quick().engine }));
    let mut leaving = Client::new(&sim);
    leaving.send_post(CHAT, "", &chat(100_000, json!({"stream": false})));
    wait_for(&sim, &plain("num_requests_running"), 1.0);
    drop(leaving);
    wait_for(&sim, &ended_as("abort"), 1.0);
    assert_eq!(metric(&sim, &plain("num_requests_running")), 0.0);
}

#[test]
fn a_full_queue_is_a_503() {
    let sim = start(with_engine(EngineOptions { max_num_seqs: 1, max_waiting: 0, ..quick().engine }));
    let mut first = Client::new(&sim);
    first.send_post(CHAT, "", &chat(100_000, json!({})));
    first.head().unwrap();
    first.chunk().unwrap();
    let refused = Client::new(&sim).post(CHAT, "", &chat(2, json!({})));
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["type"], "ServiceUnavailableError");
}

#[test]
fn a_client_that_does_not_read_loses_no_token_and_slows_no_other() {
    let cost = CostModel { step_base: Gap::from_nanos(1_000), ..quick().engine.cost };
    let sim = start(with_engine(EngineOptions { cost, ..quick().engine }));
    let tokens = 60_000;
    let mut lazy = Client::new(&sim);
    socket2::SockRef::from(lazy.stream.get_ref()).set_recv_buffer_size(64 << 10).unwrap();
    lazy.send_post(CHAT, "", &chat(tokens, json!({"stream_options": {"include_usage": true}})));
    wait_for(&sim, &plain("generation_tokens_total"), f64::from(tokens));
    let events = lazy.answer().unwrap().events();
    let (usage, deltas) = events.split_last().unwrap();
    let words: usize = deltas.iter().map(|event| content(event).split_whitespace().count()).sum();
    assert_eq!(words, 60_000);
    assert_eq!(usage["usage"]["completion_tokens"], tokens);
    assert!(deltas.len() < 60_000, "what nobody reads is merged");
}

#[test]
fn a_stall_is_a_gap_before_its_token() {
    let sim = start(quick());
    let answer =
        Client::new(&sim).post(CHAT, "x-request-id: stalled\r\nx-sim-fault: stall=300ms@3\r\n", &chat(5, json!({})));
    assert_eq!(answer.events().len(), 6);
    let planned = planned(&sim, "stalled");
    let gaps: Vec<_> = planned.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() == 4 && gaps[1] >= 301_000_000, "{gaps:?}");
}

/// A server of its own process, which ends with the test.
struct SimProcess(Child);

impl Drop for SimProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_twin_is_served_over_http_with_its_own_steps_and_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("twin.json");
    let twin =
        r#"{"streamgauge_twin": 1, "engines": [{"model": "river", "parameters": {"step_base": {"value": 2e7}}}]}"#;
    std::fs::write(&path, twin).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(["sim", "--listen", "127.0.0.1:0", "--twin"]).arg(&path).stderr(Stdio::piped());
    let mut process = SimProcess(command.spawn().unwrap());
    let mut lines = BufReader::new(process.0.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line = line.unwrap();
        line.strip_prefix("listening on http://")?.strip_suffix("/v1")?.parse::<SocketAddr>().ok()
    });
    let address = address.unwrap();
    let mut client = Client::connect(address);
    let answer = client.post(CHAT, "x-request-id: twin\r\n", &chat(6, json!({ "model": "river" })));
    assert_eq!(answer.status, 200);
    let planned = planned_at(address, "twin");
    let gaps: Vec<_> = planned.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() == 5 && gaps.iter().all(|gap| *gap >= 20_000_000), "{gaps:?}");
}

/// When the engine had each token of a stream, in nanoseconds.
fn planned(sim: &RunningServer, id: &str) -> Vec<u64> {
    planned_at(sim.local_addr(), id)
}

fn planned_at(sim: SocketAddr, id: &str) -> Vec<u64> {
    let sends = Client::connect(sim).get(&format!("/sim/sends?id={id}")).json();
    assert_eq!((&sends["simulated"], problems("sim-sends", &sends)), (&json!(true), vec![]));
    let tokens = sends["events"].as_array().unwrap().iter().filter(|event| event["tokens"] != 0);
    tokens.map(|event| event["planned_ns"].as_u64().unwrap()).collect()
}

#[test]
fn a_reset_comes_after_its_token_and_is_a_reset() {
    let sim = start(quick());
    let mut client = Client::new(&sim);
    let answer = client.post(CHAT, "x-sim-fault: reset@5\r\n", &chat(50, json!({})));
    assert!(!answer.complete && answer.head.ends_with("(reset)"), "{answer:?}");
    assert_eq!(answer.chunks.len(), 6, "the role and five tokens");
    wait_for(&sim, &ended_as("abort"), 1.0);
}

#[test]
fn a_close_comes_after_its_token_and_is_no_reset() {
    let sim = start(quick());
    let mut client = Client::new(&sim);
    let answer = client.post(CHAT, "x-sim-fault: close@5\r\n", &chat(50, json!({})));
    assert!(!answer.complete && !answer.head.ends_with("(reset)"), "{answer:?}");
    assert_eq!(answer.chunks.len(), 6);
    wait_for(&sim, &ended_as("abort"), 1.0);
}

#[test]
fn a_cut_at_zero_comes_after_the_head() {
    let sim = start(quick());
    for fault in ["reset@0", "close@0"] {
        let answer = Client::new(&sim).post(CHAT, &format!("x-sim-fault: {fault}\r\n"), &chat(50, json!({})));
        assert_eq!((answer.status, answer.chunks.len(), answer.complete), (200, 0, false));
    }
    let answer = Client::new(&sim).post(CHAT, "x-sim-fault: error@0\r\n", &chat(50, json!({})));
    assert_eq!(answer.events()[0]["error"]["code"], 500);
}

#[test]
fn an_error_in_the_stream_is_an_event_and_then_done() {
    let sim = start(quick());
    let mut client = Client::new(&sim);
    let events = client.post(CHAT, "x-sim-fault: error@3\r\n", &chat(50, json!({}))).events();
    assert_eq!(events.len(), 5, "the role, three tokens, and the error");
    let error = json!({"message": "Internal server error (simulated)", "type": "InternalServerError",
                       "param": null, "code": 500});
    assert_eq!(events[4]["error"], error);
    assert_eq!(client.get("/health").status, 200, "the connection lives on");
    wait_for(&sim, &ended_as("error"), 1.0);
}

#[test]
fn without_a_stream_faults_cut_the_whole_reply() {
    let sim = start(quick());
    let body = chat(5, json!({"stream": false}));
    let answer = Client::new(&sim).post(CHAT, "x-sim-fault: error@3\r\n", &body);
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["type"], "InternalServerError");
    for (fault, kind) in [("reset@3", ErrorKind::ConnectionReset), ("close@3", ErrorKind::UnexpectedEof)] {
        let mut client = Client::new(&sim);
        client.send_post(CHAT, &format!("x-sim-fault: {fault}\r\n"), &body);
        assert_eq!(client.answer().unwrap_err().kind(), kind);
    }
}

#[test]
fn slow_headers_come_late_and_a_status_comes_instead() {
    let sim = start(quick());
    let started = metric(&sim, &plain("num_requests_running"));
    let mut slow = Client::new(&sim);
    slow.stream.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    slow.send_post(CHAT, "x-sim-fault: slow-headers=1s\r\n", &chat(2, json!({})));
    let early = slow.head().unwrap_err();
    assert_eq!(early.kind(), ErrorKind::WouldBlock);
    assert_eq!(metric(&sim, &plain("num_requests_running")), started, "the engine has not heard of it");
    slow.stream.get_ref().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(slow.answer().unwrap().events().len(), 3);
    let answer = Client::new(&sim).post(CHAT, "x-sim-fault: status=429\r\n", &chat(2, json!({})));
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json()["error"]["code"], 429);
}

#[test]
fn a_hangup_is_a_complete_reply_and_then_the_end_unannounced() {
    for (options, fault) in
        [(quick(), "x-sim-fault: hangup\r\n"), (SimOptions { hangup_after_stream: true, ..quick() }, "")]
    {
        let sim = start(options);
        let mut client = Client::new(&sim);
        let answer = client.post(CHAT, fault, &chat(4, json!({})));
        assert!(answer.complete && !answer.head.contains("connection:"), "{answer:?}");
        assert_eq!(answer.events().len(), 5);
        assert_eq!(client.ended().unwrap(), 0);
    }
    let sim = start(quick());
    let mut client = Client::new(&sim);
    let answer = client.post(CHAT, "x-sim-fault: hangup\r\n", &chat(4, json!({"stream": false})));
    assert!(answer.complete && !answer.head.contains("connection:"));
    assert_eq!(client.ended().unwrap(), 0);
}

#[test]
fn a_bad_fault_is_answered_with_the_grammar() {
    let sim = start(quick());
    let answer = Client::new(&sim).post(CHAT, "x-sim-fault: stall=2s@4, explode@3\r\n", &chat(2, json!({})));
    assert_eq!(answer.status, 400);
    let body = answer.json();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("`explode@3`") && message.contains("stall=DURATION@TOKEN"), "{message}");
}

#[test]
fn an_idle_connection_is_closed() {
    let sim = start(SimOptions { idle_timeout: Gap::from_millis(400), ..quick() });
    let mut used = Client::new(&sim);
    assert_eq!(used.post(CHAT, "", &chat(2, json!({}))).events().len(), 3);
    assert_eq!(used.ended().unwrap(), 0);
    let mut silent = Client::new(&sim);
    assert_eq!(silent.ended().unwrap(), 0);
    let mut halting = Client::new(&sim);
    halting.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost:");
    assert_eq!(halting.ended().unwrap(), 0);
}

#[test]
fn the_exact_cadence_is_kept_and_every_send_is_on_record() {
    let cadence = 5_000_000;
    let sim = start(with_engine(EngineOptions { exact_cadence: Some(Gap::from_nanos(cadence)), ..quick().engine }));
    let clients: Vec<_> = (0..16)
        .map(|stream| {
            let mut client = Client::new(&sim);
            let id = format!("x-request-id: beat {stream}\r\n");
            client.send_post(CHAT, &id, &chat(20, json!({"stream_options": {"include_usage": true}})));
            client
        })
        .collect();
    for mut client in clients {
        assert_eq!(client.answer().unwrap().events().len(), 22);
    }
    for stream in 0..16 {
        let sends = Client::new(&sim).get(&format!("/sim/sends?id=beat%20{stream}")).json();
        assert_eq!(sends["exact_cadence_ns"], cadence);
        assert_eq!(sends["unlisted"], 0);
        assert!(sends["origin_unix_ns"].as_u64().unwrap() > 1_700_000_000_000_000_000);
        let events = sends["events"].as_array().unwrap();
        let tokens: Vec<_> = events.iter().map(|event| event["tokens"].as_u64().unwrap()).collect();
        assert_eq!(tokens, [&[0][..], &[1; 20], &[0, 0]].concat(), "the role, 20 tokens, usage and [DONE]");
        let time = |event: &Value, name: &str| event[name].as_u64().unwrap();
        let first = time(&events[1], "planned_ns");
        for (k, event) in events[1..21].iter().enumerate() {
            assert_eq!(time(event, "planned_ns"), first + k as u64 * cadence);
        }
        for event in events {
            assert!(time(event, "planned_ns") <= time(event, "began_ns"), "nothing is early");
            assert!(time(event, "began_ns") <= time(event, "ended_ns"));
        }
        assert!(events.windows(2).all(|pair| time(&pair[0], "ended_ns") <= time(&pair[1], "began_ns")));
    }
}

#[test]
fn http2_by_prior_knowledge_carries_the_same_events() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let sim = start(quick());
    let runtime = streamgauge::sim::runtime().unwrap();
    let ask = |fault: &'static str, tokens| {
        let addr = sim.local_addr();
        runtime.block_on(async move {
            let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
            let (mut send, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let body = Full::new(bytes::Bytes::from(chat(tokens, json!({})).to_string()));
            let request = http::Request::post(format!("http://{addr}{CHAT}")).header("x-sim-fault", fault);
            let mut body = send.send_request(request.body(body).unwrap()).await.unwrap().into_body();
            let (mut text, mut failed) = (String::new(), false);
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap()),
                    Err(_) => failed = true,
                }
                if failed {
                    break;
                }
            }
            (text.matches("data: ").count(), text.ends_with("data: [DONE]\n\n"), failed)
        })
    };
    assert_eq!(ask("", 4), (6, true, false));
    assert_eq!(ask("reset@2", 4), (3, false, true));
}

#[test]
fn hostile_requests_get_an_answer_or_the_door() {
    let sim = start(SimOptions { max_body: 10_000, ..quick() });
    let raw = |bytes: &[u8]| {
        let mut client = Client::new(&sim);
        // The server may close while this is still writing.
        client.stream.get_mut().write_all(bytes).ok();
        client.stream.get_mut().shutdown(Shutdown::Write).ok();
        client.head().map(|(status, _)| status).ok()
    };
    let post = |body: &str| {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: sim\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut client = Client::new(&sim);
        client.send((head + body).as_bytes());
        client.answer().unwrap()
    };
    assert_eq!(raw(b"\0\xFF\x16\x03 nonsense\r\n\r\n"), Some(400));
    assert_eq!(raw(b"PRI * nothing\r\n\r\n"), None);
    assert_eq!(raw(b"P"), None);
    let mut long = b"GET /health HTTP/1.1\r\nx: ".to_vec();
    long.resize(1 << 20, b'y');
    assert_eq!(raw(&long), Some(431));
    for bad in ["", "{", "[]", "null", "\"\\ud800\"", r#"{"messages":{}}"#, &"[".repeat(9_000)] {
        let answer = post(bad);
        assert_eq!(answer.status, 400, "{bad}");
        assert_eq!(answer.json()["error"]["type"], "BadRequestError");
    }
    let unknown = post(r#"{"model":"gpt-9","messages":[{"role":"user","content":"x"}]}"#);
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (404, &json!("model")));
    assert_eq!(post(&"x".repeat(10_001)).status, 413);
    let mut chunked = Client::new(&sim);
    chunked.send(format!("POST {CHAT} HTTP/1.1\r\nhost: sim\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes());
    chunked.send(format!("2711\r\n{}\r\n0\r\n\r\n", "x".repeat(0x2711)).as_bytes());
    assert_eq!(chunked.head().unwrap().0, 413);
    let mut client = Client::new(&sim);
    assert_eq!(client.get("/nowhere").status, 404);
    assert_eq!(client.get("/sim/sends?id=nobody").status, 404);
    assert_eq!(client.get("/sim/sends").status, 404);
    assert_eq!(client.get(CHAT).status, 405);
    assert_eq!(client.post("/metrics", "", &json!({})).status, 405);
    let long_id = format!("x-request-id: {}\r\n", "z".repeat(5_000));
    assert_eq!(client.post(CHAT, &long_id, &chat(1, json!({}))).events().len(), 2);
    assert_eq!(metric(&sim, &plain("num_requests_running")), 0.0);
}

#[test]
fn a_server_that_stops_closes_its_streams() {
    let sim = start(quick());
    let mut client = Client::new(&sim);
    client.send_post(CHAT, "", &chat(100_000, json!({})));
    client.head().unwrap();
    sim.stop().unwrap();
    while client.chunk().is_ok_and(|chunk| chunk.is_some()) {}
    assert!(!matches!(client.ended(), Ok(1..)));
}

#[test]
fn the_future_of_a_server_can_move_between_threads() {
    fn moves<T: Send>(_: T) {}
    let server = SimServer::bind(quick(), SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    moves(server.run(std::future::ready(())));
}
