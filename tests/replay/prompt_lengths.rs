//! Prompts have the planned length by the server's count: exactly with `/tokenize`, on average with `usage` alone. The
//! result names the method.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::support::sending::{CommandOutput, rows, run, run_json};
use crate::support::upstream::{Conn, Request, Upstream, field};

/// Tokens that a server adds to every prompt.
const ADDED: u64 = 5;

/// The ids of a word's tokens at some server.
type Pieces = fn(&str) -> Vec<u64>;

/// A server that counts like this, and all prompts that it got.
struct Server {
    upstream: Upstream,
    prompts: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// `usage` counts the tokens of a text, and `tokenize` answers what is asked of that path.
    fn start(
        usage: impl Fn(&str) -> u64 + Send + Sync + 'static,
        tokenize: impl Fn(&mut Conn, &Request) -> bool + Send + Sync + 'static,
    ) -> Self {
        let prompts = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&prompts);
        let upstream = Upstream::start(move |mut conn| {
            while let Some(request) = conn.request() {
                if request.head.starts_with("POST /tokenize ") {
                    if !tokenize(&mut conn, &request) {
                        return;
                    }
                    continue;
                }
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                let prompt = body["messages"][0]["content"].as_str().unwrap().to_owned();
                let usage = json!({"choices": [], "usage": {"prompt_tokens": usage(&prompt), "completion_tokens": 1}});
                log.lock().unwrap().push(prompt);
                let token = json!({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}]});
                let stream = format!("data: {token}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
                answer(&mut conn, "200 OK\r\ncontent-type: text/event-stream", &stream);
            }
        });
        Self { upstream, prompts }
    }

    /// The prompts of the last so many requests, in the order of their coming.
    fn last(&self, number: usize) -> Vec<String> {
        let prompts = self.prompts.lock().unwrap();
        prompts[prompts.len() - number..].to_vec()
    }

    fn tokenize_heads(&self) -> Vec<String> {
        let heads = self.upstream.heads();
        heads.into_iter().filter(|head| head.starts_with("POST /tokenize ")).collect()
    }

    fn url(&self) -> String {
        format!("http://{}", self.upstream.addr)
    }
}

fn answer(conn: &mut Conn, head: &str, body: &str) -> bool {
    conn.send(format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

fn not_found(conn: &mut Conn, _: &Request) -> bool {
    answer(conn, "404 Not Found", "{}")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ').skip(1)
}

/// Every word with this letter in it is in letters, and every other one token.
fn without(letter: char, word: &str) -> Vec<u64> {
    let whole = || vec![word.bytes().fold(1_000, |id, byte| id * 256 + u64::from(byte))];
    if word.contains(letter) { word.bytes().map(u64::from).collect() } else { whole() }
}

fn ids(text: &str, pieces: Pieces) -> Vec<u64> {
    words(text).flat_map(pieces).collect()
}

/// The server's count of a text in these pieces.
fn usage(pieces: Pieces) -> impl Fn(&str) -> u64 {
    move |text| ADDED + ids(text, pieces).len() as u64
}

/// Three tokens for two words.
fn three_for_two(text: &str) -> u64 {
    ADDED + (words(text).count() as u64 * 3).div_ceil(2)
}

/// Sends rows of so many tokens and these blocks of 64 tokens, one after the other.
fn sent(target: &str, out: &Path, lengths: &[(u64, &[u64])], more: &[&str]) -> (CommandOutput, Value) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let blocks = json!({"size": 64, "unit": "tokens", "last": "kept", "ids": "chained", "scope": "trace"});
    let header = json!({"streamgauge_trace": 1, "source": "test", "blocks": blocks});
    let row = |(at, (tokens, blocks)): (usize, &(u64, &[u64]))| json!({"at": at * 1_000, "model": "m", "prompt": {"tokens": tokens, "blocks": blocks}, "output_tokens": 1});
    let lines = [header].into_iter().chain(lengths.iter().enumerate().map(row)).map(|line| line.to_string() + "\n");
    fs::write(&trace, lines.collect::<String>()).unwrap();
    let fixed = ["replay", trace.to_str().unwrap(), "--target", target, "--out", out.to_str().unwrap()];
    let done = run(&[&fixed[..], &["--as-fast-as-possible", "--concurrency", "1"], more].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    (done, run_json(out))
}

fn shared(a: &str, b: &str) -> usize {
    words(a).zip(words(b)).take_while(|(a, b)| a == b).count()
}

#[test]
fn where_a_word_is_more_than_a_token_prompts_have_so_many_words_fewer_and_share_what_they_shared() {
    let server = Server::start(three_for_two, not_found);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let lengths: [(u64, &[u64]); 4] = [(65, &[]), (305, &[1, 2, 3, 4, 5]), (605, &[1, 2, 6, 7]), (306, &[])];
    let (done, run_file) = sent(&server.url(), &out, &lengths, &[]);
    let counted: Vec<_> = rows(&out).iter().map(|row| row.prompt.tokens.unwrap()).collect();
    assert_eq!(counted, [65, 305, 605, 307], "no word comes nearer to 306");
    let prompts = server.last(4);
    assert_eq!(prompts.iter().map(|prompt| three_for_two(prompt)).collect::<Vec<_>>(), counted);
    // Two blocks of 64 tokens are 128 tokens, which are 85 words.
    assert_eq!((shared(&prompts[1], &prompts[2]), shared(&prompts[0], &prompts[3])), (85, 0));
    let tried: Vec<_> = [96, 192, 384, 768].map(|planned| json!({"planned": planned, "counted": planned + 1})).into();
    let expected = json!({
        "source": null, "number": 201, "tokens_per_word": 1.5, "probed": tried, "mean_absolute_error": 1.0,
    });
    assert_eq!((&run_file["prompt_words"], &run_file["prompt_overhead"]), (&expected, &ADDED.into()));
    let note = "note: the server counts 1.50 tokens for a word and adds 5 to every prompt: prompts have as many words as \
                make them as long as planned on average; 4 that were tried, of 96 to 768 tokens, came out 1.0 off on \
                average; --tokenizer with its tokenizer.json makes them exact\n";
    assert!(done.stderr.contains(note), "{}", done.stderr);
    assert!(!done.stderr.contains("/tokenize"), "a server without it is nothing to talk of: {}", done.stderr);
    assert_eq!(run_file["summary"]["fidelity"]["isl"]["mean_absolute_error"], 0.25, "and so it is in the run");
    let longest = server.prompts.lock().unwrap().iter().map(|prompt| words(prompt).count()).max();
    assert_eq!(longest, Some(509), "768 tokens: what is asked before fits where a run's prompts do");
}

#[test]
fn prompts_of_uneven_words_match_the_plan_on_average_and_the_result_has_the_deviation() {
    let server = Server::start(usage(|word| without('a', word)), not_found);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let lengths = [(2_000, &[][..]); 30];
    let (_, run_file) = sent(&server.url(), &out, &lengths, &[]);
    let (words, isl) = (&run_file["prompt_words"], &run_file["summary"]["fidelity"]["isl"]);
    // Two more tokens for every word with an `a`, which are some of four.
    let each = words["tokens_per_word"].as_f64().unwrap();
    assert!((1.3..1.7).contains(&each), "{words}");
    let tried = words["probed"].as_array().unwrap();
    let off = |row: &Value| row["counted"].as_u64().unwrap().abs_diff(row["planned"].as_u64().unwrap()) as f64;
    let mean = tried.iter().map(off).sum::<f64>() / 4.0;
    assert_eq!((tried.len(), words["mean_absolute_error"].as_f64()), (4, Some(mean)));
    assert!(mean > 0.0 && isl["exact_share"].as_f64().unwrap() < 1.0, "{run_file}");
    // One is off by some thirty, and the mean of thirty by six: both are drawn by the seed, and the same every time.
    let (mean, error) = (isl["mean_error"].as_f64().unwrap(), isl["mean_absolute_error"].as_f64().unwrap());
    assert!(mean.abs() < 12.0 && error < 60.0, "{isl}");
}

/// Answers in the form of a server, and refuses what is not asked in it.
fn form(name: &'static str, pieces: Pieces) -> impl Fn(&mut Conn, &Request) -> bool {
    move |conn, request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let text = |key: &str| body[key].as_str().map(|text| ids(text, pieces));
        let body = match name {
            // Its own beginning of a text, unless that is not wanted; an object names the model that there is.
            "vllm" => text("prompt").filter(|_| body["model"] == "m").map(|mut ids| {
                if body["add_special_tokens"] != false {
                    ids.insert(0, 1);
                }
                json!({"count": ids.len(), "max_model_len": 4_096, "tokens": ids, "token_strs": null})
            }),
            "sglang" => text("prompt").map(|ids| json!({"tokens": ids, "count": ids.len(), "max_model_len": 4_096})),
            // A body without text has no tokens.
            "llama.cpp" => Some(json!({"tokens": text("content").unwrap_or_default()})),
            "tgi" => text("inputs").map(|ids| {
                let token = |(at, id)| json!({"id": id, "text": " the", "start": at * 4, "stop": at * 4 + 4});
                (0_u64..).zip([1].into_iter().chain(ids)).map(token).collect()
            }),
            _ => None,
        };
        match body {
            Some(body) => answer(conn, "200 OK\r\ncontent-type: application/json", &body.to_string()),
            None => answer(conn, "422 Unprocessable Entity", r#"{"error":"missing field"}"#),
        }
    }
}

#[test]
fn by_the_tokenize_of_any_server_prompts_are_exact_to_the_token() {
    let lengths: [(u64, &[u64]); 4] = [(65, &[]), (305, &[1, 2, 3, 4, 5]), (604, &[1, 2, 6, 7]), (6, &[1])];
    for (name, requests) in [("vllm", 2), ("sglang", 2), ("llama.cpp", 3), ("tgi", 4)] {
        let pieces: Pieces = |word| without('e', word);
        let server = Server::start(usage(pieces), form(name, pieces));
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let secret = ["--header", "authorization: Bearer very-secret"];
        let (done, run_file) = sent(&server.url(), &out, &lengths, &secret);
        let prompts = server.last(4);
        let counted: Vec<_> = prompts.iter().map(|prompt| usage(pieces)(prompt)).collect();
        assert_eq!(counted, lengths.map(|(tokens, _)| tokens), "{name}");
        assert!(prompts.iter().all(|prompt| !prompt.contains('e')), "{name}: {prompts:?}");
        assert_eq!(shared(&prompts[1], &prompts[2]), 128, "{name}: two blocks of 64");
        assert_eq!(run_file["summary"]["fidelity"]["isl"]["exact_share"], 1.0);
        let number = run_file["prompt_words"]["number"].as_u64().unwrap();
        let expected = json!({
            "source": "tokenize", "number": number, "tokens_per_word": 1.0, "probed": [], "mean_absolute_error": null,
        });
        assert_eq!((&run_file["prompt_words"], (100..201).contains(&number)), (&expected, true), "{name}");
        let note = format!("the server's /tokenize: {number} of 201 words are one token each; prompts are exact\n");
        assert!(done.stderr.contains(&note), "{name}: {}", done.stderr);
        let heads = server.tokenize_heads();
        assert_eq!(heads.len(), requests, "{name}: {heads:?}");
        assert!(heads.iter().all(|head| field(head, "authorization") == Some("Bearer very-secret")));
        let written = fs::read_dir(&out).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
        let all = [done.stdout.into_bytes(), done.stderr.into_bytes()].into_iter().chain(written);
        assert!(all.into_iter().all(|bytes| !bytes.windows(11).any(|window| window == b"very-secret")));
    }
}

#[test]
fn words_for_several_models_are_one_token_at_each() {
    let a: Pieces = |word| without('a', word);
    let e: Pieces = |word| without('e', word);
    let (one, other) = (Server::start(usage(a), form("sglang", a)), Server::start(usage(e), form("tgi", e)));
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let row = |(at, model)| json!({"at": at, "model": model, "prompt": {"tokens": 100}, "output_tokens": 1});
    let rows = (0..6).zip(["m", "n"].into_iter().cycle()).map(row);
    let lines = [json!({"streamgauge_trace": 1, "source": "test"})].into_iter().chain(rows);
    fs::write(&trace, lines.map(|line| line.to_string() + "\n").collect::<String>()).unwrap();
    let targets = [format!("m={}", one.url()), format!("n={}", other.url())];
    let done = run(&[
        "replay",
        trace.to_str().unwrap(),
        "--target",
        &targets[0],
        "--target",
        &targets[1],
        "--max-lag",
        "1h",
        "--json",
    ]);
    assert!(done.stderr.contains("the /tokenize of all 2 models: "), "{}", done.stderr);
    let run_file: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(run_file["summary"]["fidelity"]["isl"]["exact_share"], 1.0, "{}", done.stderr);
    for server in [&one, &other] {
        assert!(server.last(3).iter().all(|prompt| !prompt.contains(['a', 'e'])));
    }
}

#[test]
fn each_models_server_is_probed_for_its_token_counts() {
    let (one, other) =
        (Server::start(three_for_two, not_found), Server::start(|text| 2 + 2 * words(text).count() as u64, not_found));
    let folder = tempfile::tempdir().unwrap();
    let (trace, out) = (folder.path().join("trace.jsonl"), folder.path().join("run"));
    let row = |(at, model)| json!({"at": at, "model": model, "prompt": {"tokens": 302}, "output_tokens": 1});
    let rows = (0..6).zip(["m", "n"].into_iter().cycle()).map(row);
    let lines = [json!({"streamgauge_trace": 1, "source": "test"})].into_iter().chain(rows);
    fs::write(&trace, lines.map(|line| line.to_string() + "\n").collect::<String>()).unwrap();
    let targets = [format!("m={}", one.url()), format!("n={}", other.url())];
    let target = ["--target", &targets[0], "--target", &targets[1]];
    let more = ["--max-lag", "1h", "--out", out.to_str().unwrap()];
    let done = run(&[&["replay", trace.to_str().unwrap()], &target[..], &more].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(one.last(3).iter().map(|prompt| words(prompt).count()).collect::<Vec<_>>(), [198; 3], "297 of 3 for 2");
    assert_eq!(other.last(3).iter().map(|prompt| words(prompt).count()).collect::<Vec<_>>(), [150; 3], "300 of 2");
    let run_file = &run_json(&out);
    let (words, others) = (&run_file["prompt_words"], &run_file["prompt_words"]["other_models"]);
    assert_eq!((&run_file["prompt_overhead"], &words["tokens_per_word"]), (&ADDED.into(), &1.5.into()));
    assert_eq!(
        (&others[0]["model"], &others[0]["prompt_overhead"], &others[0]["tokens_per_word"]),
        (&"n".into(), &2.into(), &2.0.into())
    );
    assert!(done.stderr.contains("m: note: the server counts 1.50 tokens for a word and adds 5 "), "{}", done.stderr);
    assert!(done.stderr.contains("n: note: the server counts 2.00 tokens for a word and adds 2 "), "{}", done.stderr);
}

#[test]
fn a_useless_tokenize_endpoint_changes_and_delays_nothing() {
    const LENGTHS: [(u64, &[u64]); 2] = [(65, &[]), (305, &[1, 2])];
    let with = |tokenize: fn(&mut Conn, &Request) -> bool| {
        // The server counts one token per word, whatever its tokenizer reports.
        let server = Server::start(|text| words(text).count() as u64, tokenize);
        let folder = tempfile::tempdir().unwrap();
        let (done, run_file) = sent(&server.url(), &folder.path().join("run"), &LENGTHS, &[]);
        assert_eq!(run_file["prompt_words"]["source"], Value::Null, "{}", done.stderr);
        assert!(!server.tokenize_heads().is_empty());
        // Each trace has a name of its own.
        let notes: Vec<&str> = done.stderr.lines().filter(|line| !line.contains(" is taken as ")).collect();
        (server.last(2), notes.join("\n").replace(&server.url(), "URL"))
    };
    let right = with(not_found);
    let hostile: [fn(&mut Conn, &Request) -> bool; 12] = [
        |conn, _| answer(conn, "405 Method Not Allowed", ""),
        |conn, _| answer(conn, "401 Unauthorized", r#"{"error":"no"}"#),
        |conn, _| answer(conn, "500 Internal Server Error", "Traceback"),
        |conn, _| answer(conn, "302 Found\r\nlocation: /tokenize", ""),
        |conn, _| answer(conn, "200 OK", "<html>"),
        |conn, _| answer(conn, "200 OK", &"[".repeat(1 << 19)),
        |conn, _| answer(conn, "200 OK\r\ncontent-encoding: gzip", r#"{"tokens":[1]}"#),
        // A list of the right length, and one that is as long as may be.
        |conn, _| answer(conn, "200 OK", &json!({"count": 604, "tokens": vec![7; 604]}).to_string()),
        |conn, _| answer(conn, "200 OK", &json!({"tokens": (0..150_000).collect::<Vec<u64>>()}).to_string()),
        |_, _| false,
        // One never answers; one answers for ever.
        |conn, _| conn.closed().is_some_and(|_| false),
        |conn, _| {
            conn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            while conn.chunk("[".repeat(1 << 16)) {}
            false
        },
    ];
    let tried: Vec<_> = hostile.into_iter().map(|tokenize| thread::spawn(move || with(tokenize))).collect();
    for (number, tried) in tried.into_iter().enumerate() {
        assert_eq!(tried.join().unwrap(), right, "answer {number}");
    }
}

#[test]
fn too_few_single_token_words_are_reported_and_counted_by_usage() {
    let pieces: Pieces = |word| if word == "the" { vec![1] } else { word.bytes().map(u64::from).collect() };
    let server = Server::start(usage(pieces), form("vllm", pieces));
    let folder = tempfile::tempdir().unwrap();
    let (done, run_file) = sent(&server.url(), &folder.path().join("run"), &[(305, &[])], &[]);
    let note = "note: the server's /tokenize: of 201 short words 1 are one token each, and 16 are needed";
    assert!(done.stderr.contains(note), "{}", done.stderr);
    assert_eq!((&run_file["prompt_words"]["source"], &run_file["prompt_words"]["number"]), (&Value::Null, &201.into()));
    assert!(run_file["prompt_words"]["tokens_per_word"].as_f64().unwrap() > 2.9);
}

#[test]
fn a_tokenize_that_its_usage_gives_the_lie_to_is_not_called_exact() {
    let pieces: Pieces = |word| without('e', word);
    let server = Server::start(three_for_two, form("vllm", pieces));
    let folder = tempfile::tempdir().unwrap();
    let (done, run_file) = sent(&server.url(), &folder.path().join("run"), &[(305, &[])], &[]);
    assert!(done.stderr.contains("words are one token each\nnote: the server counts 1.50 tokens"), "{}", done.stderr);
    assert_eq!(run_file["summary"]["fidelity"]["isl"]["exact_share"], 1.0, "usage is what counts");
}

#[test]
fn with_a_given_overhead_no_probe_is_sent() {
    let server = Server::start(three_for_two, form("vllm", |word| without('e', word)));
    let folder = tempfile::tempdir().unwrap();
    let (_, run_file) =
        sent(&server.url(), &folder.path().join("run"), &[(20, &[]), (30, &[])], &["--prompt-overhead", "5"]);
    let posted = server.upstream.heads().into_iter().filter(|head| head.starts_with("POST "));
    assert_eq!(posted.count(), 2);
    assert_eq!(server.last(2).iter().map(|prompt| words(prompt).count()).collect::<Vec<_>>(), [15, 25]);
    assert_eq!((&run_file["prompt_overhead"], &run_file["prompt_words"]["tokens_per_word"]), (&5.into(), &1.0.into()));
}
