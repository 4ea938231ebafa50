//! `streamgauge load` sends by its flags: times, lengths, sessions, and shares of several machines.

use std::fs;
use std::path::Path;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use serde_json::Value;
use streamgauge::measure::time::Gap;
use streamgauge::trace_file::row::TraceEntry;

use crate::support::sending::{CommandOutput, recording_upstream, rows, run, run_json, sim, without_self_test};

const MS: u64 = 1_000_000;

/// Runs `load` with these flags, written as in a shell.
fn load(to: std::net::SocketAddr, flags: &str, out: &Path) -> CommandOutput {
    let target = format!("http://{to}");
    let fixed = ["load", "--target", &target, "--max-lag", "1h", "--out", out.to_str().unwrap()];
    let done = run(&[&fixed[..], &flags.split_whitespace().collect::<Vec<_>>()].concat());
    assert_eq!(done.code, Some(0), "{flags}: {}", done.stderr);
    done
}

fn lengths(rows: &[TraceEntry]) -> Vec<(u64, u64)> {
    rows.iter().map(|row| (row.prompt.tokens.unwrap(), row.params.max_tokens.unwrap())).collect()
}

#[test]
fn stages_and_ramps_are_sent_at_their_rates() {
    let (upstream, _) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let flags = "--stages 10@500ms,0..80@1s,20@250ms --arrivals constant --isl 4 --osl 1 --prompt-overhead 0";
    load(upstream.addr, flags, &out);
    let planned: Vec<u64> = rows(&out).iter().map(|row| row.planned.unwrap()).collect();
    // Five in the first stage, forty while the rate grows to 80, five in the last.
    assert_eq!(planned.len(), 50);
    let first: Vec<u64> = planned[..5].iter().map(|at| at / MS).collect();
    assert_eq!(first, [0, 100, 200, 300, 400]);
    for (number, at) in (0..40).zip(&planned[5..45]) {
        // The integral of 80t is 40t².
        let expected = 0.5 + f64::sqrt(f64::from(number) / 40.0);
        assert!((*at as f64 / 1e9 - expected).abs() < 1e-6, "{number}: {at}");
    }
    let last: Vec<u64> = planned[45..].iter().map(|at| at / MS).collect();
    assert_eq!(last, [1_500, 1_550, 1_600, 1_650, 1_700]);
}

#[test]
fn lengths_come_from_a_mix_or_a_file() {
    let (upstream, bodies) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    let sent = |name: &str, flags: &str| {
        let out = folder.path().join(name);
        load(upstream.addr, &format!("--concurrency 4 --requests 200 --prompt-overhead 0 {flags}"), &out);
        let bodies: Vec<Value> = bodies().iter().map(|body| serde_json::from_slice(body).unwrap()).collect();
        let length = |body: &Value| {
            let words = body["messages"][0]["content"].as_str().unwrap().split(' ').count() as u64 - 1;
            (words, body["max_tokens"].as_u64().unwrap())
        };
        let mut sent: Vec<_> = bodies.iter().map(length).collect();
        sent.sort_unstable();
        let mut reported = lengths(&rows(&out));
        reported.sort_unstable();
        assert_eq!(sent, reported, "{name}");
        sent
    };
    let chat = sent("chat", "--mix chat");
    // The medians that were measured are 1,020 and 129.
    assert!((800..1_100).contains(&chat[100].0) && chat[199].0 <= 14_050, "{:?}", chat[100]);
    let code = sent("code", "--mix code");
    assert!((1_100..1_800).contains(&code[100].0), "{:?}", code[100]);
    let short = code.iter().filter(|(_, output)| *output <= 24).count();
    assert!((130..170).contains(&short), "three quarters of replies are 24 tokens at most, here {short} of 200");
    assert!(sent("other", "--mix code --osl 9").iter().all(|(_, output)| *output == 9));
    let file = folder.path().join("lengths.csv");
    fs::write(&file, "100,1\n200,2\n300,3\n").unwrap();
    let drawn = sent("file", &format!("--lengths {}", file.display()));
    assert!(drawn.iter().all(|(input, output)| *input == output * 100 && *output <= 3), "{drawn:?}");
    assert!((1..=3).all(|output| drawn.iter().filter(|row| row.1 == output).count() > 40), "{drawn:?}");
}

#[test]
fn a_conversation_continues_a_pause_after_each_answer() {
    let server = sim(Gap::from_millis(2));
    for (how, turns) in [("--rate 20 --arrivals constant", 3), ("--concurrency 2", 4)] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let flags = format!("{how} --requests 12 --turns {turns} --think 30ms --isl 40 --osl 10");
        load(server.local_addr(), &flags, &out);
        let rows = rows(&out);
        assert_eq!(rows.len(), 12);
        for session in 0..12 / turns {
            let turns: Vec<&TraceEntry> =
                rows.iter().filter(|row| row.session.as_deref() == Some(&*session.to_string())).collect();
            let numbers: Vec<u32> = turns.iter().map(|row| row.turn.unwrap()).collect();
            assert_eq!(numbers, (0..turns.len() as u32).collect::<Vec<_>>(), "{how}");
            for pair in turns.windows(2) {
                let ended = pair[0].at + pair[0].timing.ended.unwrap();
                let planned = pair[1].planned.unwrap();
                if how.starts_with("--rate") {
                    assert_eq!(planned, ended + 30 * MS);
                } else {
                    // Where slots decide, planned is when one was free.
                    assert!(planned >= ended + 30 * MS, "{planned} {ended}");
                }
                let grown = pair[1].prompt.tokens.unwrap() - pair[0].prompt.tokens.unwrap();
                // This server's answer, as a prompt, has up to half as many tokens again as it counted.
                assert!((30..=65).contains(&grown), "10 of the answer and 40 new ones: {grown}");
            }
        }
    }
}

#[test]
fn no_turn_is_sent_that_comes_after_the_duration() {
    let server = sim(Gap::from_millis(2));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let flags = "--rate 10 --arrivals constant --duration 1s --turns 9 --isl 20 --osl 100";
    let done = load(server.local_addr(), flags, &out);
    let rows = rows(&out);
    // Nine turns of 200 ms and more each, which without answers would all come in the first moment.
    assert!(rows.iter().all(|row| row.planned.unwrap() < 1_000 * MS), "{:?}", rows.last());
    for session in 0..10 {
        let turns = rows.iter().filter(|row| row.session.as_deref() == Some(&*session.to_string()));
        let turns: Vec<u32> = turns.map(|row| row.turn.unwrap()).collect();
        assert_eq!(turns, (0..turns.len() as u32).collect::<Vec<_>>());
    }
    assert!((10..90).contains(&rows.len()), "{}", rows.len());
    assert!(done.stderr.lines().any(|line| line.starts_with("requests in 1.0 s to ")), "{}", done.stderr);
}

#[test]
fn warm_prefixes_are_in_the_cache_before_the_first_request() {
    let folder = tempfile::tempdir().unwrap();
    let first = |name: &str, flags: &str| {
        let server = sim(Gap::from_millis(1));
        let out = folder.path().join(name);
        let flags = format!(
            "--rate 50 --arrivals constant --requests 9 --isl 400 --osl 2 --shared-prefix 320 --prefix-groups 3 {flags}"
        );
        let done = load(server.local_addr(), &flags, &out);
        assert_eq!(run_json(&out)["sent"], 9, "what warms is no part of the run");
        let cached: Vec<bool> = rows(&out).iter().map(|row| row.prompt.cached >= Some(304)).collect();
        (cached, done.stderr)
    };
    let (cold, _) = first("cold", "");
    assert_eq!(cold[..3], [false; 3], "each group brings its own");
    let (warm, stderr) = first("warm", "--warm-prefixes");
    assert_eq!(warm, [true; 9]);
    assert!(stderr.contains("3 prefixes were sent before the run"), "{stderr}");
}

/// Every value of the histograms in a run's log: (name, value, count).
fn recorded(out: &Path) -> Vec<(String, Histogram<u64>)> {
    let log = fs::read(out.join("histograms.hlog")).unwrap();
    let mut deserializer = Deserializer::new();
    let mut found = Vec::new();
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(interval.encoded_histogram()).unwrap();
        let name = interval.tag().unwrap().as_str().to_owned();
        found.push((name, deserializer.deserialize(&mut &bytes[..]).unwrap()));
    }
    found
}

#[test]
fn four_processes_of_a_job_send_what_one_would_and_their_histograms_merge_to_its() {
    let (upstream, bodies) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    let target = format!("http://{}", upstream.addr);
    let flags = "--rate 40 --requests 60 --turns 2 --think 20ms --mix code --prompt-overhead 0 --max-lag 1h";
    let args = |out: &Path, more: &[&str]| {
        let fixed = ["load", "--target", &target, "--out", out.to_str().unwrap()];
        without_self_test(&[&fixed[..], more, &flags.split(' ').collect::<Vec<_>>()].concat())
    };
    let alone = folder.path().join("one");
    assert!(args(&alone, &[]).output().unwrap().status.success());
    let whole = bodies();
    let start = std::time::SystemTime::now() + std::time::Duration::from_secs(6);
    let start = humantime::format_rfc3339_millis(start).to_string();
    let parts: Vec<_> = (0..4)
        .map(|index| {
            let out = folder.path().join(index.to_string());
            let mut command = args(&out, &["--shard", "job/4", "--start-at", &start]);
            (command.env("JOB_COMPLETION_INDEX", index.to_string()).spawn().unwrap(), out)
        })
        .collect();
    let mut outs = Vec::new();
    for (child, out) in parts {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        outs.push(out);
    }
    assert_eq!((whole.len(), bodies() == whole), (60, true), "the same bytes");

    let key = |row: &TraceEntry| (row.session.clone(), row.turn, row.prompt.tokens, row.params.max_tokens);
    let mut shared: Vec<TraceEntry> = outs.iter().flat_map(|out| rows(out)).collect();
    let mut one = rows(&alone);
    shared.sort_by_key(key);
    one.sort_by_key(key);
    assert_eq!(shared.iter().map(key).collect::<Vec<_>>(), one.iter().map(key).collect::<Vec<_>>());
    let firsts =
        |rows: &[TraceEntry]| rows.iter().filter(|row| row.turn == Some(0)).map(|row| row.planned).collect::<Vec<_>>();
    assert_eq!(firsts(&shared), firsts(&one), "at the same moments of the same plan");

    // The merged histograms hold exactly what one process would have put into its own, had it seen these requests.
    let mut merged: Vec<(String, Histogram<u64>)> = Vec::new();
    for (name, histogram) in outs.iter().flat_map(|out| recorded(out)) {
        match merged.iter_mut().find(|(known, _)| *known == name) {
            Some((_, into)) => into.add(&histogram).unwrap(),
            None => merged.push((name, histogram)),
        }
    }
    let of_one = recorded(&alone);
    let counts = |all: &[(String, Histogram<u64>)]| {
        let mut counts: Vec<_> = all.iter().map(|(name, histogram)| (name.clone(), histogram.len())).collect();
        counts.sort();
        counts
    };
    assert_eq!(counts(&merged), counts(&of_one));
    let (_, e2e) = merged.iter().find(|(name, _)| name == "e2e").unwrap();
    let mut expected = e2e.clone();
    expected.clear();
    shared.iter().for_each(|row| expected.record(row.timing.ended.unwrap()).unwrap());
    assert_eq!(*e2e, expected);

    // And a report of all four has every request once.
    let paths: Vec<&str> = outs.iter().map(|out| out.to_str().unwrap()).collect();
    let mut report = crate::support::sending::program(&[&["report", "--json"], &paths[..]].concat());
    let report: Value = serde_json::from_slice(&report.output().unwrap().stdout).unwrap();
    let text = report.to_string();
    assert!(text.contains("\"success\":60"), "{text}");
}

/// The bound on the difference between the first requests of shards that start together on one machine.
const START_BOUND_NS: u64 = 100_000_000;

#[test]
fn shards_that_meet_at_a_prefix_begin_together_and_a_report_of_the_prefix_has_every_request() {
    let (upstream, bodies) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    let prefix = format!("file://{}/bucket/run-1", folder.path().display());
    let target = format!("http://{}", upstream.addr);
    let started = |name: &str, index: u64| {
        let out = folder.path().join(name);
        let fixed = ["load", "--target", &target, "--out", out.to_str().unwrap(), "--upload", &prefix];
        let flags = "--shard job/3 --start-at all --rate 30 --requests 30 --prompt-overhead 0 --max-lag 1h";
        let mut command = without_self_test(&[&fixed[..], &flags.split(' ').collect::<Vec<_>>()].concat());
        command.env("JOB_COMPLETION_INDEX", index.to_string());
        command.stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    // The last pod of a Job may come much later than the first.
    let first = started("a", 0);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(bodies().len(), 0, "nobody begins before all are there");
    let others = [started("b", 1), started("c", 2)];
    for child in std::iter::once(first).chain(others) {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(stderr.contains(&format!("uploaded to {prefix}/shard-0000")), "{stderr}");
    }
    // Each begins at the common start, and sends its first request at the planned time.
    let starts = ["a", "b", "c"].map(|name| run_json(&folder.path().join(name))["started_unix_ns"].as_u64().unwrap());
    let apart = starts.iter().max().unwrap() - starts.iter().min().unwrap();
    assert!(apart <= START_BOUND_NS, "{apart} ns apart");
    for name in ["a", "b", "c"] {
        let rows = rows(&folder.path().join(name));
        let lag = rows.iter().map(|row| row.at - row.planned.unwrap()).min().unwrap();
        assert!((1..30).contains(&rows.len()) && lag <= START_BOUND_NS, "{} rows, {lag} ns late", rows.len());
    }

    let mut report = crate::support::sending::program(&["report", "--json", &prefix]);
    let output = report.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert!(report.to_string().contains("\"success\":30"), "{report}");
    let sent = bodies();
    assert_eq!(sent.len(), 30);

    // A prefix serves one load: a pod that comes back does not send again.
    let late = started("d", 1).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&late.stderr);
    assert_eq!(late.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("remedy: give each load a prefix of its own"), "{stderr}");
    assert_eq!(bodies().len(), 0);
}

#[test]
fn a_start_of_all_shards_needs_a_place_to_meet() {
    let (upstream, _) = recording_upstream();
    let target = format!("http://{}", upstream.addr);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out").display().to_string();
    let refused = |more: &[&str]| {
        let fixed = ["load", "--target", &target, "--requests", "1", "--concurrency", "1", "--out", &out];
        let output = without_self_test(&[&fixed[..], more].concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, stderr) = refused(&["--start-at", "all"]);
    assert_eq!(
        (code, stderr.contains("--start-at all: the shards meet at the prefix of --upload")),
        (Some(2), true),
        "{stderr}"
    );
    let (code, stderr) = refused(&["--upload", "s3://user:s3cret@bucket/x"]);
    assert_eq!((code, stderr.contains("--upload"), stderr.contains("s3cret")), (Some(2), true, false), "{stderr}");
}

#[test]
fn shards_leave_out_together_the_requests_that_one_would() {
    let (upstream, _) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    let measured = |name: &str, more: &str| {
        let out = folder.path().join(name);
        load(upstream.addr, &format!("--rate 40 --requests 13 --prompt-overhead 0 --warmup 5req {more}"), &out);
        let summary = run_json(&out)["summary"].clone();
        (summary["measured"]["from"].as_u64().unwrap(), summary["outside_window"].as_u64().unwrap())
    };
    let (one, first, second) =
        (measured("one", ""), measured("first", "--shard 1/2"), measured("second", "--shard 2/2"));
    assert_eq!(one.1, 5);
    assert_eq!((first.0, second.0, first.1 + second.1), (one.0, one.0, 5));
}

#[test]
fn a_job_without_an_index_is_rejected() {
    let of = |index: Option<&str>| {
        let mut command = without_self_test(&[
            "load",
            "--target",
            "http://127.0.0.1:9",
            "--rate",
            "1",
            "--requests",
            "1",
            "--shard",
            "job/4",
        ]);
        command.env_remove("JOB_COMPLETION_INDEX");
        index.map(|index| command.env("JOB_COMPLETION_INDEX", index));
        crate::support::sending::output_of(command)
    };
    let none = of(None);
    assert_eq!(
        (none.code, none.stderr.lines().next().unwrap()),
        (Some(2), "error: --shard job/4: there is no variable JOB_COMPLETION_INDEX")
    );
    assert!(of(Some("4")).stderr.contains("JOB_COMPLETION_INDEX is not from 0 to 3"));
    assert_eq!(of(Some("3")).code, Some(3), "it went on, and found nobody");
}

#[test]
fn shapes_that_cannot_be_are_refused_by_name() {
    for (flags, message) in [
        ("--stages 10", "expected RATE@TIME or FROM..TO@TIME, as in 10@60s or 1..50@5m, not `10`"),
        ("--stages 10@1s --rate 5", "cannot be used with"),
        ("--rate 5 --requests 1 --mix talk", "chat, code, long-context, summarization"),
        ("--rate 5 --requests 1 --lengths /nowhere", "--lengths: /nowhere"),
        (
            "--rate 5 --requests 1 --lengths Cargo.toml",
            "and any CSV or JSON Lines by `--columns`; lengths are a trace, or lines of `ISL,OSL`",
        ),
        ("--rate 5 --requests 1 --think 5", "expected a time from 1ms on"),
        ("--rate 5 --requests 1 --warm-prefixes", "--shared-prefix"),
        (
            "--rate 5 --requests 1 --request-rate-ramp-duration 5",
            "error: --request-rate-ramp-duration of AIPerf is --stages",
        ),
    ] {
        let fixed = ["load", "--target", "http://127.0.0.1:9"];
        let done = run(&[&fixed[..], &flags.split(' ').collect::<Vec<_>>()].concat());
        assert_eq!(done.code, Some(2), "{flags}: {}", done.stderr);
        assert!(done.stderr.contains(message), "{flags}: {}", done.stderr);
    }
}

#[test]
fn sampling_and_own_fields_reach_the_server_and_run_json() {
    let (upstream, bodies) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let flags = "--concurrency 1 --requests 3 --isl 4 --osl 1 --prompt-overhead 0 --temperature 0.7 --top-p 0.9 --top-k 40 \
                 --body min_p=0.1 --body lora=adapter-1";
    load(upstream.addr, flags, &out);
    for body in bodies() {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let sent = ["temperature", "top_p", "top_k", "min_p", "lora"].map(|key| body[key].to_string());
        assert_eq!(sent, ["0.7", "0.9", "40", "0.1", "\"adapter-1\""]);
    }
    let run: Value = serde_json::from_str(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap();
    assert_eq!((&run["body"]["min_p"], &run["body"]["temperature"]), (&Value::from(0.1), &Value::from(0.7)));
    let sampling = run["load"]["sampling"].as_str().unwrap();
    assert!(sampling.contains("temperature 0.7") && sampling.contains("lora \"adapter-1\""), "{sampling}");
}

#[test]
fn requests_beyond_the_context_of_the_server_are_reported_before_the_run() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lengths.csv");
    fs::write(&file, "100,1\n131072,9\n").unwrap();
    let target = format!("http://{}", server.local_addr());
    let args = ["load", "--target", &target, "--rate", "20", "--requests", "8", "--lengths", file.to_str().unwrap()];
    let done = run(&[&args[..], &["--max-lag", "1h"]].concat());
    assert!(done.stderr.contains("ask for more than the server's context of 131072 tokens"), "{}", done.stderr);
    assert!(done.stderr.contains("the longest for 131081;"), "{}", done.stderr);
}

#[test]
fn a_load_at_a_rate_sends_exactly_rate_times_duration() {
    let (upstream, _) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    for (name, flags) in [("poisson", "--seed 1"), ("other", "--seed 2"), ("bursty", "--arrivals gamma:0.5")] {
        let out = folder.path().join(name);
        load(upstream.addr, &format!("--rate 40 --duration 500ms --isl 4 --osl 1 --prompt-overhead 0 {flags}"), &out);
        assert_eq!(rows(&out).len(), 20, "{name}");
    }
}

#[test]
fn real_prompts_reach_the_server_and_no_file_of_the_run() {
    let (upstream, bodies) = recording_upstream();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.json");
    let sharegpt = r#"[{"conversations": [{"from": "human", "value": "very-secret question"}, {"from": "gpt", "value": "12345678"}]},
        {"conversations": [{"from": "human", "value": "very-secret too"}, {"from": "gpt", "value": "1234"}]}]"#;
    fs::write(&file, sharegpt).unwrap();
    let out = folder.path().join("run");
    let flags = format!("--concurrency 1 --requests 3 --prompt-overhead 0 --prompts {}", file.display());
    let done = load(upstream.addr, &flags, &out);
    let bodies: Vec<Value> = bodies().iter().map(|body| serde_json::from_slice(body).unwrap()).collect();
    let sent: Vec<_> = bodies
        .iter()
        .map(|body| (body["messages"][0]["content"].as_str().unwrap(), body["max_tokens"].as_u64().unwrap()))
        .collect();
    assert_eq!(sent.iter().filter(|sent| **sent == ("very-secret question", 2)).count(), 2, "{sent:?}");
    assert!(sent.contains(&("very-secret too", 1)), "{sent:?}");
    assert!(done.stderr.contains("warning: --prompts: the target gets the text of the file"), "{}", done.stderr);
    assert!(done.stderr.contains("2 prompts, taken as ShareGPT JSON; their tokens are estimated"), "{}", done.stderr);
    for entry in fs::read_dir(&out).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let plain = zstd::decode_all(&bytes[..]).unwrap_or(bytes);
        assert!(!String::from_utf8_lossy(&plain).contains("very-secret"));
    }
    assert!(!done.stdout.contains("very-secret") && !done.stderr.contains("very-secret"));
}
