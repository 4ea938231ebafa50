//! `streamgauge replay` and `load` on the command line: output, files, exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustls::ServerConnection;
use serde_json::Value;
use streamgauge::measure::time::Gap;
use streamgauge::net::tls::{ClientCertificates, TlsIdentity, server};
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;

use crate::support::http2::Pki;
use crate::support::sending::{output_of, program, recording_upstream, rows, run, run_json, sim, without_self_test};
use crate::support::unused_address;
use crate::support::upstream::Upstream;

const MOONCAKE: &str = "tests/data/traces/mooncake/conversation_first60s.jsonl";

#[test]
fn mooncakes_first_minute_is_sent_whole_and_every_length_is_exact() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let (out, target) = (folder.path().join("run"), format!("http://{}/v1", server.local_addr()));
    let out_text = out.to_str().unwrap();
    let secret = "authorization: Bearer very-secret";
    let done = run(&[
        "replay",
        MOONCAKE,
        "--target",
        &target,
        "--speed",
        "60",
        "--json",
        "--out",
        out_text,
        "--header",
        secret,
        "--max-lag",
        "1h",
        "--slo",
        "all: ttft<=1h",
        "--meta",
        "gpu=none",
        "--meta",
        "flags=--max-num-seqs 8=x",
    ]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(report["meta"], serde_json::json!({"gpu": "none", "flags": "--max-num-seqs 8=x"}));
    assert_eq!(report["command"].as_array().unwrap()[..3], ["streamgauge", "replay", MOONCAKE]);
    assert!(
        report["machine"]["cores"].as_u64() >= Some(1) && report["machine"]["os"].is_string(),
        "{}",
        report["machine"]
    );
    let engine = &report["engines"][target.trim_end_matches("/v1")];
    assert!(engine["/version"]["version"].as_str().unwrap().ends_with("+streamgauge-sim"), "{engine}");
    assert_eq!((&engine["/v1/models"]["id"], engine.as_object().unwrap().len()), (&"sim".into(), 2), "{engine}");
    let summary = &report["summary"];
    assert_eq!((&report["sent"], &summary["requests"]), (&162.into(), &162.into()));
    assert_eq!(summary["outcomes"], serde_json::json!({"success": 162}));
    // The trace's values, to the token; the two of the chat template were found and left out.
    assert_eq!((&summary["tokens"]["input"], &report["prompt_overhead"]), (&2_209_273.into(), &2.into()));
    assert_eq!(summary["tokens"]["output"], 58_039);
    let exact = serde_json::json!({
        "compared": 162, "exact_share": 1.0, "mean_error": 0.0, "mean_absolute_error": 0.0, "ks": 0.0,
    });
    let fidelity = &summary["fidelity"];
    assert_eq!(
        (&fidelity["isl"], &fidelity["osl"], &fidelity["prefix"]["repeated_blocks"]),
        (&exact, &exact, &203.into())
    );
    assert_eq!(summary["goodput"][0]["met"], 162);
    // 203 blocks of 512 are shared in the trace; the server's blocks of 16 match a little of the next one, if by chance.
    let cached = summary["tokens"]["cached"].as_u64().unwrap();
    assert!((203 * 512 - 162 * 16..=203 * 512).contains(&cached), "{cached}");
    let rows = rows(&out);
    assert_eq!(rows.len(), 162);
    assert_eq!(rows.iter().filter_map(|row| row.planned).max(), Some(57_000 * 1_000_000 / 60));
    assert_eq!(serde_json::from_str::<Value>(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap(), report);
    assert_eq!(report["header_names"][0], "authorization");
    for file in fs::read_dir(&out).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(11).any(|window| window == b"very-secret"));
    }
    assert!(!(done.stdout + &done.stderr).contains("very-secret"));
    let again = run(&["replay", MOONCAKE, "--target", &target, "--out", out_text, "--prompt-overhead", "0"]);
    assert_eq!(again.code, Some(2));
    assert!(again.stderr.contains("it holds a result already; name another folder"), "{}", again.stderr);
}

#[test]
fn public_traces_are_sent_as_they_are() {
    let server = sim(Gap::from_millis(1));
    let target = format!("http://{}", server.local_addr());
    for (trace, flags, requests) in [
        // Wall-clock times, no block ids.
        ("azure/conv2023_first300s.csv", &["--to", "5s", "--speed", "10"][..], 4),
        // Sessions whose turns wait for each other: what they would take is the agents' time, so it is cut short.
        ("kv-cache-tester", &["--speed", "1000", "--models", "*=sim", "--sessions", "timed"], 17),
        ("bailian/handmade_schema.jsonl", &["--speed", "1000", "--sessions", "timed"], 3),
    ] {
        let path = format!("tests/data/traces/{trace}");
        let done = run(&[&["replay", &path, "--target", &target, "--json", "--max-lag", "1h"], flags].concat());
        assert_eq!(done.code, Some(0), "{trace}: {}", done.stderr);
        let report: Value = serde_json::from_str(&done.stdout).unwrap();
        let summary = &report["summary"];
        assert_eq!(summary["outcomes"], serde_json::json!({"success": requests}), "{trace}: {}", done.stderr);
        let fidelity = &summary["fidelity"];
        assert_eq!(
            (&fidelity["isl"]["compared"], &fidelity["isl"]["exact_share"]),
            (&requests.into(), &1.0.into()),
            "{trace}"
        );
        assert_eq!(fidelity["osl"]["exact_share"], 1.0, "{trace}: {fidelity}");
    }
}

#[test]
fn the_loss_of_a_torn_trace_is_reported_and_the_rest_is_sent() {
    let server = sim(Gap::from_millis(1));
    let target = format!("http://{}", server.local_addr());
    let folder = tempfile::tempdir().unwrap();
    let torn = folder.path().join("torn.jsonl");
    let header = serde_json::to_string(&TraceHeader::new("test")).unwrap();
    let row = TraceEntry { output_tokens: Some(3), ..TraceEntry::default() };
    let row = serde_json::to_string(&row).unwrap();
    fs::write(&torn, [&*header, &row, &row, row.trim_end_matches('}')].join("\n")).unwrap();
    let flags = ["--json", "--max-lag", "1h", "--models", "*=sim"];
    let done = run(&[&["replay", torn.to_str().unwrap(), "--target", &target], &flags[..]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(serde_json::from_str::<Value>(&done.stdout).unwrap()["sent"], 2);
    assert!(done.stderr.contains("note: not converted: its last line is torn (1)\n"), "{}", done.stderr);
}

#[test]
fn spread_batches_are_sent_between_their_ticks() {
    let (upstream, _) = recording_upstream();
    let (folder, target) = (tempfile::tempdir().unwrap(), format!("http://{}", upstream.addr));
    let planned = |name: &str, flags: &[&str]| {
        let out = folder.path().join(name);
        let fixed = ["replay", MOONCAKE, "--target", &target, "--to", "12s", "--speed", "12", "--max-lag", "1h"];
        let done = run(&[&fixed[..], &["--prompt-overhead", "0", "--out", out.to_str().unwrap()], flags].concat());
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        rows(&out).iter().map(|row| row.planned.unwrap()).collect::<Vec<_>>()
    };
    // The trace's clock ticks every three seconds, and is a millisecond early now and then: here every quarter of one.
    const EARLY: u64 = 100_000;
    let tick = |at: &u64| (at + EARLY) / 250_000_000;
    let (plain, spread) = (planned("plain", &[]), planned("spread", &["--spread"]));
    assert!(plain.iter().all(|at| (at + EARLY) % 250_000_000 <= EARLY), "batches: {plain:?}");
    assert_eq!(spread.iter().map(tick).collect::<Vec<_>>(), plain.iter().map(tick).collect::<Vec<_>>());
    let distinct: std::collections::BTreeSet<_> = spread.iter().collect();
    assert_eq!(distinct.len(), plain.len(), "no two at the same moment");
    // Within a tick they are everywhere: some in each third of it.
    for third in 0..3 {
        let within = spread.iter().filter(|at| *at % 250_000_000 * 3 / 250_000_000 == third).count();
        assert!(within * 10 >= spread.len(), "{third}: {within} of {}", spread.len());
    }
    assert_eq!(planned("again", &["--spread"]), spread, "by the seed alone");
}

#[test]
fn a_target_for_a_model_has_its_requests_and_no_others() {
    let ((one, one_got), (other, other_got), (rest, rest_got)) =
        (recording_upstream(), recording_upstream(), recording_upstream());
    let folder = tempfile::tempdir().unwrap();
    let rows = (0..12).map(|number| {
        let model = ["gpt-4", "gpt-4o", "claude"][number % 3];
        format!(
            "{{\"at\":{},\"model\":\"{model}\",\"prompt\":{{\"tokens\":4}},\"output_tokens\":1}}\n",
            number * 1_000_000
        )
    });
    let trace = folder.path().join("trace.jsonl");
    let header = "{\"streamgauge_trace\":1,\"source\":\"test\"}\n".to_owned();
    fs::write(&trace, header + &rows.collect::<String>()).unwrap();
    let target = |model: &str, upstream: &Upstream| format!("{model}http://{}", upstream.addr);
    let targets = [target("big=", &one), target("gpt-*=", &other), target("", &rest)];
    let flags = ["--prompt-overhead", "0", "--max-lag", "1h", "--models", "gpt-4=big"];
    let fixed = ["replay", trace.to_str().unwrap(), "--target", &targets[0], "--target", &targets[1]];
    let done = run(&[&fixed[..], &flags, &["--target", &targets[2]]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let models = |bodies: Vec<Vec<u8>>| {
        let of = |body: &Vec<u8>| serde_json::from_slice::<Value>(body).unwrap()["model"].as_str().unwrap().to_owned();
        bodies.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(models(one_got()), ["big"; 4]);
    assert_eq!(models(other_got()), ["gpt-4o"; 4]);
    assert_eq!(models(rest_got()), ["claude"; 4]);
    let nobody = run(&[&fixed[..], &flags].concat());
    assert_eq!(nobody.code, Some(2));
    assert!(nobody.stderr.contains("no --target is for the model `claude`"), "{}", nobody.stderr);
}

#[test]
fn wrong_usage_ends_with_two_and_shows_no_secret() {
    let target = ["--target", "http://127.0.0.1:9"];
    let folder = tempfile::tempdir().unwrap();
    let huge = folder.path().join("huge.jsonl");
    let row = r#"{"timestamp":0,"input_length":1152921504606846976,"output_length":1,"hash_ids":[]}"#;
    fs::write(&huge, row).unwrap();
    let huge = huge.to_str().unwrap();
    let empty = folder.path().join("empty.jsonl");
    fs::write(&empty, "\n").unwrap();
    let empty = empty.to_str().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let pipe = pipe.to_str().unwrap();
    for (args, problem) in [
        (&["replay", "/nowhere"][..], "/nowhere"),
        (&["replay", "Cargo.toml"], "Cargo.toml"),
        (&["replay", empty], "there is nothing in it"),
        (&["replay", pipe], "pipe can be read once, and the trace is read several times; write it to a file first"),
        (&["replay", "-"], "stdin can be read once"),
        (&["replay", MOONCAKE, "--from", "2h"], "there is no row between --from and --to"),
        (&["replay", MOONCAKE, "--header", "Bearer very-secret"], "--header: expected `name: value`"),
        (&["replay", MOONCAKE, "--target", "http://me:very-secret@h"], "--target: expected a URL without credentials"),
        (&["replay", MOONCAKE, "--dialect", "gemini"], "no requests can be made in the dialect `gemini`"),
        (&["replay", MOONCAKE, "--speed", "2", "--rate", "2"], "cannot be used with"),
        (&["replay", MOONCAKE, "--api-key-env", "NOT_THERE"], "there is no variable NOT_THERE"),
        (
            &["replay", MOONCAKE, "--warmup", "200req"],
            "--warmup leaves nothing: the plan has no more than 200 requests",
        ),
        (
            &["replay", MOONCAKE, "--tokenizer", "tests/data/tokenizers/tiny.json"],
            "cannot use tests/data/tokenizers/tiny.json as",
        ),
        (&["replay", MOONCAKE, "--start-at", "2020-01-01T00:00:00Z"], "--start-at has passed"),
        (&["replay", MOONCAKE, "--start-at", "tomorrow"], "expected a moment in UTC, as in 2026-11-21T12:00:00Z"),
        (&["replay", MOONCAKE, "--target", "http://h:99999"], "--target: expected a port from 1 to 65535"),
        (
            &["replay", MOONCAKE, "--target", "http://h/v1/chat/completions"],
            "--target: expected the server's URL without",
        ),
        (&["replay", MOONCAKE, "--target-ca", "ca.pem"], "--target-ca is for https"),
        (&["replay", MOONCAKE, "--warmup", "2h"], "leave nothing: the last request is sent after 57.0s"),
        (&["replay", MOONCAKE, "--warmup", "20s", "--cooldown", "40s"], "leave nothing"),
        (&["replay", MOONCAKE, "--duration", "0s"], "expected a time above 0"),
        (&["replay", MOONCAKE, "--timeout", "0s"], "expected a time above 0"),
        (&["replay", MOONCAKE, "--workers", "1000"], "1000 is not in 1..=256"),
        (&["replay", MOONCAKE, "--as-fast-as-possible", "--concurrency", "2", "--spread"], "cannot be used with"),
        (&["load", "--concurrency", "2", "--requests", "9", "--arrivals", "constant"], "cannot be used with"),
        (&["load", "--concurrency", "2", "--requests", "9", "--cooldown", "1s"], "--cooldown needs a known end"),
        (&["load", "--concurrency", "2", "--requests", "9", "--warmup", "9req"], "--warmup leaves nothing"),
        (&["load", "--concurrency", "2", "--duration", "9s", "--warmup", "9s"], "leave nothing"),
        (&["load", "--rate", "2", "--requests", "9", "--shared-prefix", "600"], "--shared-prefix 600 is longer than"),
        (&["load", "--rate", "5"], "--requests"),
        (&["load", "--num-prompts", "5"], "error: --num-prompts of vllm bench is --requests here\n"),
        (&["load", "--requests", "5"], "--rate"),
        (
            &["replay", huge],
            "request 0 of the plan has a prompt of 1152921504606846976 tokens, and none of more than 16777216 is made",
        ),
    ] {
        let done = run(&[args, &target].concat());
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(problem) && !done.stderr.contains("very-secret"), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn a_target_that_cannot_be_reached_ends_with_three() {
    let done = run(&["replay", MOONCAKE, "--target", "http://127.0.0.1:9"]);
    assert_eq!(done.code, Some(3));
    assert!(done.stderr.starts_with("error: cannot reach http://127.0.0.1:9: "), "{}", done.stderr);
}

#[test]
fn a_certificate_error_names_the_remedy() {
    let pki = Pki::new();
    let serve = |name: &str| {
        let (cert, key) = (pki.path(&format!("{name}.pem")), pki.path(&format!("{name}.key")));
        let identity = TlsIdentity { cert: &cert, key: &key };
        let tls = Arc::new(server(identity, ClientCertificates::Ignored, &["http/1.1"]).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut connection = ServerConnection::new(Arc::clone(&tls)).unwrap();
                _ = connection.complete_io(&mut socket.unwrap()).is_ok();
            }
        });
        url
    };
    let (secret, authority) = (serve("server"), serve("ca"));
    let plain = sim(Gap::from_millis(1));
    let plain = format!("https://{}", plain.local_addr());
    let others = Pki::new();
    let (ca, its_own) = (others.path("ca.pem"), pki.path("ca.pem"));
    for (target, ca, hint) in [
        (&secret, &ca, "; --target-ca names the certificates to trust"),
        (&plain, &ca, "; it does not speak TLS: try http://"),
        (&authority, &its_own, "; it shows the certificate of an authority, and needs one of its own (CA:FALSE)"),
    ] {
        let done = run(&["replay", MOONCAKE, "--target", target, "--target-ca", ca.to_str().unwrap()]);
        assert_eq!(done.code, Some(3), "{}", done.stderr);
        assert!(done.stderr.contains(hint), "{}", done.stderr);
    }
}

#[test]
fn a_run_without_a_complete_reply_is_invalid_and_says_where_to_look() {
    let answers = [
        ("404 Not Found", "4 of 4 were answered 404; look at the path of --target"),
        ("307 Temporary Redirect", "4 of 4 were answered 307; send to where it points"),
        ("401 Unauthorized", "4 of 4 were answered 401; look at --api-key-env"),
        ("500 Internal Server Error", "4 of 4 were answered 500; look at the server's log"),
    ];
    for (status, cause) in answers {
        let upstream = Upstream::start(move |mut conn| {
            while conn.request().is_some() {
                conn.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes());
            }
        });
        let target = format!("http://{}", upstream.addr);
        let load = ["load", "--target", &target, "--concurrency", "2", "--requests", "4", "--prompt-overhead", "0"];
        let done = run(&load);
        assert_eq!(done.code, Some(3), "{}", done.stderr);
        let line = format!("not valid: no request has a whole answer: {cause}");
        assert!(done.stderr.contains(&line), "{}", done.stderr);
    }
}

#[test]
fn replies_that_are_all_truncated_are_reported_with_the_cause() {
    let server = sim(Gap::from_millis(20));
    let target = format!("http://{}", server.local_addr());
    let load = ["load", "--target", &target, "--concurrency", "2", "--requests", "4", "--osl", "50"];
    for (flags, cause) in [
        (["--timeout", "200ms"], "4 of 4 ended with timeout; a reply takes longer than --timeout"),
        (["--header", "x-sim-fault: reset@5"], "4 of 4 ended with reset; the server breaks replies off"),
    ] {
        let done = run(&[&load[..], &flags].concat());
        assert_eq!(done.code, Some(3), "{}", done.stderr);
        let line = format!("not valid: no request has a whole answer: {cause}");
        assert!(done.stderr.contains(&line), "{}", done.stderr);
    }
}

#[test]
fn a_server_that_answers_with_something_else_than_output_makes_a_run_not_valid() {
    let load = |kind: &'static str, body: &'static str| {
        let upstream = Upstream::start(move |mut conn| {
            while conn.request().is_some() {
                let head = format!("content-type: {kind}\r\ncontent-length: {}", body.len());
                conn.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes());
            }
        });
        let target = format!("http://{}", upstream.addr);
        let args = ["--concurrency", "2", "--requests", "4", "--prompt-overhead", "0", "--slo", "fast: ttft<=10s"];
        run(&[&["load", "--target", &target][..], &args].concat())
    };
    for (kind, body) in
        [("text/html", "<html>Welcome</html>"), ("text/event-stream", "data: [DONE]\n\n"), ("application/json", "")]
    {
        let done = load(kind, body);
        assert_eq!(done.code, Some(3), "{kind}: {}", done.stderr);
        assert!(done.stderr.contains("not valid: none of 4 responses contained output; check"), "{}", done.stderr);
    }
    // An answer without a token count is still an answer.
    let done =
        load("application/json", r#"{"choices":[{"index":0,"message":{"content":"Yes"},"finish_reason":"stop"}]}"#);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stdout.contains("4 of 4 whole answers have neither a token nor a count of tokens"), "{}", done.stdout);
}

#[test]
fn a_server_that_speaks_only_http2_is_named_as_such() {
    let upstream = Upstream::start(|mut conn| {
        // The server finds no HTTP/2 preface, and sends SETTINGS and a GOAWAY.
        conn.request();
        conn.send(b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\x01");
    });
    let target = format!("http://{}", upstream.addr);
    let done = run(&["load", "--target", &target, "--rate", "50", "--requests", "2", "--prompt-overhead", "0"]);
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    let verdict = done.stderr.lines().find(|line| line.starts_with("not valid: no request was answered: 2 of 2 "));
    assert!(verdict.is_some_and(|line| line.ends_with("HTTP/2 alone is not supported")), "{}", done.stderr);
}

#[test]
fn a_server_that_does_not_answer_the_first_request_is_named_during_the_wait() {
    let upstream = Upstream::start(|mut conn| while conn.request().is_some() {});
    let target = format!("http://{}", upstream.addr);
    let done = run(&["load", "--target", &target, "--rate", "5", "--requests", "1", "--timeout", "3500ms"]);
    let line = format!("waiting for the first answer of {target}, for 3.50s at most (--timeout)");
    assert!(done.stderr.contains(&line) && done.code == Some(3), "{}", done.stderr);
}

#[test]
fn a_run_whose_result_cannot_be_written_is_still_reported() {
    let server = sim(Gap::from_millis(1));
    let target = format!("http://{}", server.local_addr());
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    // A folder stands where the file is to be written first.
    fs::create_dir_all(out.join("run.json.part")).unwrap();
    let load = ["load", "--target", &target, "--concurrency", "2", "--requests", "4", "--osl", "5", "--out"];
    let done = run(&[&load[..], &[out.to_str().unwrap()]].concat());
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    assert!(done.stdout.contains("requests     4 success"), "{}", done.stdout);
    assert!(done.stderr.contains("not valid: the result is not whole: cannot write "), "{}", done.stderr);
    let again = run(&[&load[..], &[out.to_str().unwrap()]].concat());
    assert_eq!(again.code, Some(2), "{}", again.stderr);
    assert!(again.stderr.contains("it holds the records of a run that did not end"), "{}", again.stderr);
    assert_eq!(rows(&out).len(), 4);
}

#[test]
fn why_a_run_is_invalid_is_reported_even_if_stdout_fails() {
    let upstream = Upstream::answering("HTTP/1.1 429 Busy\r\ncontent-length: 0\r\n\r\n");
    let target = format!("http://{}", upstream.addr);
    let mut load =
        without_self_test(&["load", "--target", &target, "--concurrency", "1", "--requests", "2", "--osl", "5"]);
    load.stdout(fs::File::create("/dev/full").unwrap());
    let done = output_of(load);
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    assert!(done.stderr.contains("2 of 2 were answered 429"), "{}", done.stderr);
    assert!(done.stderr.contains("error: cannot write to stdout: No space left"), "{}", done.stderr);
}

#[test]
fn a_server_that_accepts_no_connections_is_not_reported_as_a_slow_sender() {
    let (socket, address) = unused_address();
    // One connection waits to be taken, which is the one by which the server is tried; the next is not answered.
    socket.listen(0).unwrap();
    let target = format!("http://{address}");
    let load = ["load", "--target", &target, "--rate", "50", "--requests", "9", "--prompt-overhead", "0"];
    let done = run(&[&load[..], &["--connect-timeout", "500ms", "--timeout", "2s", "--max-lag", "400ms"]].concat());
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    assert!(done.stderr.contains("(--max-lag); connections took so long to be made; look at "), "{}", done.stderr);
    assert!(!done.stderr.contains("this machine cannot carry the plan"), "{}", done.stderr);
}

#[test]
fn clients_that_all_leave_early_make_no_run_invalid() {
    let server = sim(Gap::from_millis(20));
    let target = format!("http://{}", server.local_addr());
    let load = ["load", "--target", &target, "--concurrency", "2", "--requests", "4", "--osl", "50"];
    let done = run(&[&load[..], &["--cancel-rate", "100%", "--cancel-after", "2tok", "--max-lag", "1h"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stdout.contains("4 cancelled"), "{}", done.stdout);
}

#[test]
fn the_first_requests_of_a_closed_load_can_be_left_out_by_their_number() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let (out, target) = (folder.path().join("run"), format!("http://{}", server.local_addr()));
    let load = ["load", "--target", &target, "--concurrency", "2", "--requests", "12", "--osl", "4", "--workers", "1"];
    let done = run(&[&load[..], &["--warmup", "5req", "--json", "--out", out.to_str().unwrap()]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    let all = rows(&out);
    assert_eq!((&report["summary"]["requests"], &report["summary"]["outside_window"]), (&7.into(), &5.into()));
    assert_eq!(report["summary"]["measured"]["from"], all[5].planned.unwrap(), "it opens with the sixth");
    let read = output_of(program(&["report", out.to_str().unwrap()]));
    assert!(
        read.stdout.contains("12 requests sent") && read.stdout.contains("requests     7 success"),
        "{}",
        read.stdout
    );
    assert!(!read.stdout.contains("the first requests met a cold server"), "{}", read.stdout);
}

#[test]
fn shards_that_begin_at_one_time_send_together_what_one_would() {
    let server = sim(Gap::from_millis(1));
    let (folder, target) = (tempfile::tempdir().unwrap(), format!("http://{}", server.local_addr()));
    let start = std::time::SystemTime::now() + std::time::Duration::from_secs(6);
    let start = humantime::format_rfc3339_millis(start).to_string();
    let flags =
        ["--speed", "60", "--max-lag", "1h", "--target", &target, "--prompt-overhead", "2", "--start-at", &start];
    let parts: Vec<_> = (1..=4)
        .map(|part| {
            let out = folder.path().join(part.to_string());
            let shard = [format!("{part}/4"), out.to_str().unwrap().to_owned()];
            let own = ["replay", MOONCAKE, "--shard", &shard[0], "--out", &shard[1]];
            (without_self_test(&[&own[..], &flags].concat()).spawn().unwrap(), out)
        })
        .collect();
    let mut sent = Vec::new();
    let mut began = Vec::new();
    for (child, out) in parts {
        assert!(child.wait_with_output().unwrap().status.success());
        began.push(
            *TraceReader::open(&out.join("records.jsonl.zst")).unwrap().header().started_unix_ns.as_ref().unwrap(),
        );
        sent.extend(rows(&out).into_iter().map(|row| (row.planned, row.prompt.tokens, row.output_tokens)));
    }
    let trace = fs::read_to_string(MOONCAKE).unwrap();
    let mut planned: Vec<_> = trace
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            let at = row["timestamp"].as_f64().unwrap() * 1e6 * (1.0 / 60.0);
            (Some(at.round() as u64), row["input_length"].as_u64(), row["output_length"].as_u64())
        })
        .collect();
    sent.sort_unstable();
    planned.sort_unstable();
    assert_eq!(sent, planned);
    let spread = began.iter().max().unwrap() - began.iter().min().unwrap();
    assert!(spread < 1_000_000_000, "four processes began {spread} ns apart");
    let shards = ["1", "2", "3", "4"].map(|part| folder.path().join(part));
    let [one, together] = [&shards[..1], &shards[..]].map(|shards| {
        let paths = shards.iter().map(|shard| shard.to_str().unwrap());
        let report = output_of(program(&["report"].into_iter().chain(paths).collect::<Vec<_>>())).stdout;
        report.lines().find(|line| line.starts_with("in flight ")).unwrap().to_owned()
    });
    assert!(one.ends_with(" at most") && together.ends_with(" at most at each source by itself"), "{together}");
}

#[test]
fn a_goodput_that_is_too_low_ends_with_one() {
    let server = sim(Gap::from_millis(2));
    let target = format!("http://{}", server.local_addr());
    let load = ["load", "--target", &target, "--concurrency", "2", "--requests", "6", "--isl", "8", "--osl", "3"];
    let judged = |slo: &str| run(&[&load[..], &["--slo", slo, "--fail-if", "goodput<95%"]].concat());
    let done = judged("s: ttft<=1us");
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stdout.contains("s: 0 of 6 met it (0.0 %"), "{}", done.stdout);
    assert_eq!(judged("s: ttft<=1h").code, Some(0));
}

#[test]
fn load_follows_its_law_and_shares_prefixes() {
    let server = sim(Gap::from_millis(1));
    let (folder, target) = (tempfile::tempdir().unwrap(), format!("http://{}", server.local_addr()));
    let out = folder.path().join("run");
    let done = run(&[
        "load",
        "--target",
        &target,
        "--rate",
        "40",
        "--arrivals",
        "constant",
        "--requests",
        "20",
        "--isl",
        "400",
        "--osl",
        "5",
        "--shared-prefix",
        "320",
        "--max-lag",
        "1h",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let rows = rows(&out);
    let planned: Vec<u64> = rows.iter().map(|row| row.planned.unwrap() / 1_000_000).collect();
    let mut sorted = planned;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..20).map(|number| number * 25).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.prompt.tokens == Some(400) && row.output_tokens == Some(5)));
    assert!(rows.iter().filter(|row| row.prompt.cached >= Some(304)).count() >= 15, "{rows:?}");
}

#[test]
fn a_first_signal_ends_with_a_valid_partial_result_and_a_second_ends_at_once() {
    let server = sim(Gap::from_millis(50));
    let target = format!("http://{}", server.local_addr());
    for signals in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        // Replies take half a second if they may end, and hours are planned.
        let osl = if signals == 1 { "10" } else { "10000" };
        let mut child = without_self_test(&[
            "load",
            "--target",
            &target,
            "--rate",
            "50",
            "--duration",
            "2h",
            "--isl",
            "8",
            "--osl",
            osl,
            "--json",
            "--max-lag",
            "1h",
            "--prompt-overhead",
            "0",
            "--out",
            out.to_str().unwrap(),
        ])
        .spawn()
        .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("requests in 7200.0 s"), "{line}");
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        let signal = || kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
        signal();
        while !line.starts_with("stopping: ") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the program ended");
        }
        assert!(line.ends_with("Ctrl-C cuts them\n"), "{line}");
        if signals == 2 {
            signal();
        }
        let mut report = String::new();
        child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!((child.wait().unwrap().success(), &report["stopped"]), (true, &true.into()));
        let (sent, outcomes) = (report["sent"].as_u64().unwrap(), &report["summary"]["outcomes"]);
        let expected = if signals == 1 { "success" } else { "failed" };
        assert!(sent > 5 && outcomes == &serde_json::json!({expected: sent}), "{report}");
        assert_eq!(rows(&out).len() as u64, sent, "every request has its row");
    }
}

#[test]
fn the_self_test_runs_at_the_planned_rate_and_its_findings_are_in_the_result() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let (out, target) = (folder.path().join("run"), format!("http://{}", server.local_addr()));
    let load =
        ["load", "--target", &target, "--rate", "40", "--arrivals", "constant", "--requests", "21", "--osl", "5"];
    let load = [&load[..], &["--out", out.to_str().unwrap(), "--max-lag", "1h"]].concat();
    let done = output_of(program(&load));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("audit: 40 requests/s of 5 tokens, "), "{}", done.stderr);
    let audit = &run_json(&out)["audit"];
    let tried = serde_json::json!({"requests_per_second": 40.0, "events_per_second": 200.0, "streams": 4.0});
    assert_eq!((&audit["probed"], &audit["planned"], audit["tokens_per_request"].as_u64()), (&tried, &tried, Some(5)));
    assert_eq!(audit["beat"], 20_000_000);
    // Two seconds of it, four gaps each; how long they were is the machine's.
    assert_eq!((audit["lag"]["count"].as_u64(), audit["observed"]["count"].as_u64()), (Some(80), Some(320)));
    assert!(audit["cpu_us_per_event"].as_f64().unwrap() > 0.0);
    assert_eq!(rows(&out).len(), 21, "what was tried is no part of the run");
}

#[test]
fn a_plan_of_long_replies_is_tried_with_as_many_streams_open_as_it_has() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let (out, target) = (folder.path().join("run"), format!("http://{}", server.local_addr()));
    let load = ["load", "--target", &target, "--concurrency", "40", "--requests", "41", "--osl", "200"];
    let done = output_of(program(&[&load[..], &["--out", out.to_str().unwrap(), "--max-lag", "1h"]].concat()));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let audit = &run_json(&out)["audit"];
    // A token every 20 ms: ten replies a second of 200 tokens. Twenty of 50 tokens are tried, and so twenty are held.
    let planned = serde_json::json!({"requests_per_second": 10.0, "events_per_second": 2_000.0, "streams": 40.0});
    let tried = serde_json::json!({"requests_per_second": 20.0, "events_per_second": 2_000.0, "streams": 40.0});
    assert_eq!((&audit["planned"], &audit["probed"]), (&planned, &tried));
    assert!(audit["most_open"].as_u64().unwrap() >= 30, "{audit}");
}

#[test]
fn a_strict_run_that_this_machine_cannot_carry_sends_nothing() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let (out, target) = (folder.path().join("run"), format!("http://{}", server.local_addr()));
    let load = ["load", "--target", &target, "--rate", "40", "--requests", "21", "--max-lag", "1ns"];
    let done = output_of(program(&[&load[..], &["--strict", "--out", out.to_str().unwrap()]].concat()));
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    assert!(
        done.stderr.contains("error: --strict: on this machine requests would be sent late, p99 "),
        "{}",
        done.stderr
    );
    assert!(!out.exists());
}

#[test]
fn a_run_without_a_self_test_says_so() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let (out, target) = (folder.path().join("run"), format!("http://{}", server.local_addr()));
    let load = ["load", "--target", &target, "--rate", "40", "--requests", "3", "--max-lag", "1h"];
    let done = run(&[&load[..], &["--out", out.to_str().unwrap()]].concat());
    assert!(done.stderr.contains("no audit: what this machine adds to the figures is unknown"), "{}", done.stderr);
    assert_eq!(run_json(&out)["audit"], Value::Null);
}
