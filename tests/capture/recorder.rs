//! The capture behind a running proxy: what it records, what it omits, and what a kill or a full disk loses.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use streamgauge::capture::message::MAX_STREAM_GAPS;
use streamgauge::measure::record::{CountSource, Ending, FinishReason, Outcome};
use streamgauge::trace_file::gaps;
use streamgauge::trace_file::header::{BlockIds, BlockScope, BlockUnit, LastBlock};
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;
use tempfile::TempDir;

use crate::support::PATIENCE;
use crate::support::captured::{HEAD, answer, counted, event, page, proxy, rows, run, server, until};
use crate::support::client::chat;
use crate::support::upstream::{Upstream, reports};

#[test]
fn a_request_becomes_a_row_with_its_shape() {
    let folder = TempDir::new().unwrap();
    // More than the timeline holds at a time, in several reads: nothing comes before the client has what came before.
    let (received, has_received) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        // The proxy reports the send time a moment late.
        std::thread::sleep(Duration::from_millis(100));
        conn.send(HEAD);
        for (n, chunk) in answer(300).into_iter().enumerate() {
            conn.chunk(chunk);
            if n % 100 == 99 {
                has_received();
            }
        }
        conn.send("0\r\n\r\n");
    });
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    let body = json!({
        "model": "org/model", "stream": true, "max_tokens": 500, "temperature": 0.5, "n": 1, "min_tokens": 2,
        "ignore_eos": true, "logprobs": true, "tools": [{"type": "function"}],
        "response_format": {"type": "json_object"},
        "messages": [{"role": "user", "content": "x".repeat(2_000)}],
    });
    let mut client = proxy.client();
    let head = client.send(chat(&body.to_string())).head();
    for last in [99, 199, 299] {
        client.has(&format!("t{last} "));
        received(());
    }
    client.body_of(head);
    drop(proxy);
    let mut reader = TraceReader::open(folder.path()).unwrap();
    let header = reader.header().clone();
    let blocks = header.blocks.unwrap();
    assert_eq!((blocks.size, blocks.unit), (512, BlockUnit::Bytes));
    assert_eq!((blocks.last, blocks.ids, blocks.scope), (LastBlock::Dropped, BlockIds::Chained, BlockScope::Trace));
    assert!(header.started_unix_ns.unwrap() > 1_700_000_000_000_000_000 && blocks.key.is_some());
    let row = reader.next().unwrap().unwrap();
    assert!(reader.next().is_none() && reader.damage().is_empty());
    assert_eq!(row.route.as_deref(), Some("/v1/chat/completions"));
    assert_eq!((row.dialect.as_deref(), row.model.as_deref()), (Some("openai.chat"), Some("org/model")));
    assert_eq!((row.stream, row.params.max_tokens, row.params.n), (Some(true), Some(500), Some(1)));
    assert_eq!((row.params.temperature, row.params.min_tokens), (Some(0.5), Some(2)));
    let params = (row.params.ignore_eos, row.params.logprobs, row.params.tools, row.params.structured);
    assert_eq!(params, (Some(true), Some(true), Some(true), Some(true)));
    assert_eq!((row.prompt.tokens, row.prompt.source), (Some(7), Some(CountSource::Usage)));
    assert_eq!(row.prompt.cached, Some(3));
    assert!((2_000..2_100).contains(&row.prompt.bytes.unwrap()));
    assert_eq!(row.prompt.blocks.len() as u64, row.prompt.bytes.unwrap() / 512);
    assert_eq!((row.turn, row.think, row.in_flight), (Some(0), None, Some(0)));
    assert_eq!((row.status, row.ending, row.outcome), (Some(200), Some(Ending::Complete), Some(Outcome::Success)));
    assert_eq!(row.finish, Some(FinishReason::Stop));
    assert_eq!((row.output_tokens, row.output_source), (Some(300), Some(CountSource::Usage)));
    assert_eq!(row.reasoning_tokens, Some(100));
    assert_eq!((row.abort_tokens, row.upstream), (None, Some(upstream.addr.to_string())));
    let timing = row.timing;
    assert!(timing.sent > Some(0) && timing.sent < timing.first_token && timing.first_token < timing.ended);
    assert_eq!(timing.first_token, timing.first_output);
    let gaps = gaps::unpack(&timing.gaps.unwrap()).unwrap();
    assert_eq!((gaps.len(), timing.lost_gaps), (299, None));
    let all: u64 = gaps.iter().map(|event| event.gap().as_nanos()).sum();
    assert!(all <= timing.ended.unwrap() - timing.first_token.unwrap() + 1_000);
}

#[test]
fn the_next_message_is_the_next_turn_and_shares_blocks() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(2));
    let proxy = proxy(upstream.addr, folder.path(), &[("capture_block", "16")]);
    let mut messages = vec![json!({"role": "system", "content": "s".repeat(100)})];
    for turn in 0..3 {
        messages.push(json!({"role": "user", "content": format!("question {turn}")}));
        proxy.client().send(chat(&json!({"model": "m", "stream": true, "messages": messages}).to_string())).response();
        messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
    }
    let other = json!({"messages": [messages[0], {"role": "user", "content": "another"}], "stream": true});
    proxy.client().send(chat(&other.to_string())).response();
    drop(proxy);
    let rows = rows(folder.path());
    assert_eq!(rows.iter().map(|row| row.turn.unwrap()).collect::<Vec<_>>(), [0, 1, 2, 0]);
    assert!(rows[1].session == rows[0].session && rows[2].session == rows[0].session);
    assert!(rows[3].session != rows[0].session);
    // A client that has the whole answer may speak before the proxy has called it ended: no pause then.
    let ended = |turn: usize| rows[turn].at + rows[turn].timing.ended.unwrap();
    let pause = |turn: usize| rows[turn].at.saturating_sub(ended(turn - 1));
    let thinks = rows.iter().map(|row| row.think).collect::<Vec<_>>();
    assert_eq!(thinks, [None, Some(pause(1)), Some(pause(2)), None], "from an answer's end to what is said next");
    let blocks = |row: usize| &rows[row].prompt.blocks;
    assert!(blocks(1).starts_with(blocks(0)), "a longer conversation begins with the shorter");
    let shared = blocks(0).iter().zip(blocks(3)).take_while(|(a, b)| a == b).count();
    assert!((100 / 16..blocks(0).len()).contains(&shared), "{shared}");
}

#[test]
fn a_session_is_identified_by_a_header_or_a_field() {
    let with_id = |id: &str| json!({"messages": [], "metadata": {"user_id": id}});
    for (setting, head, body, empty) in [
        ("header:x-session", "X-Session: alice\r\n", json!({"messages": []}), ("X-Session: \r\n", with_id(""))),
        ("body:metadata.user_id", "", with_id("alice"), ("", with_id(""))),
    ] {
        let folder = TempDir::new().unwrap();
        let upstream = server(answer(1));
        let proxy = proxy(upstream.addr, folder.path(), &[("capture_session", setting)]);
        // A request without a name has no session.
        for (head, body) in [(head, &body), (head, &body), (empty.0, &empty.1), (empty.0, &empty.1)] {
            let request = chat(&body.to_string()).replacen("\r\n", &format!("\r\n{head}"), 1);
            proxy.client().send(request).response();
        }
        proxy.client().send(chat("{\"messages\":[]}")).response();
        drop(proxy);
        let rows = rows(folder.path());
        let turns: Vec<_> = rows.iter().map(|row| row.turn).collect();
        assert_eq!(turns, [Some(0), Some(1), None, None, None], "{setting}");
        assert!(rows[0].session == rows[1].session && rows[2..].iter().all(|row| row.session.is_none()));
    }
}

#[test]
fn a_row_has_the_concurrent_requests_and_three_first_token_times() {
    let folder = TempDir::new().unwrap();
    let reasoning = json!({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]});
    let (received, has_received) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send(HEAD);
        conn.chunk(format!("data: {reasoning}\n\n"));
        has_received();
        conn.chunk(event("yes"));
        // The first client waits for more until it leaves.
        conn.closed();
    });
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    let asks = || {
        let mut client = proxy.client();
        client.send(chat("{\"stream\":true,\"messages\":[]}")).has("hm");
        received(());
        client.has("yes");
        client
    };
    let (first, second) = (asks(), asks());
    drop((first, second));
    assert!(proxy.stop(PATIENCE));
    let rows = rows(folder.path());
    assert_eq!(rows.iter().map(|row| row.in_flight).collect::<Vec<_>>(), [Some(0), Some(1)]);
    for row in rows {
        let [evidence, token, output] = [row.timing.evidence, row.timing.first_token, row.timing.first_output];
        assert!(evidence.is_some() && evidence == token && token < output, "{:?}", row.timing);
    }
}

#[test]
fn every_gap_has_the_token_count_of_its_later_event() {
    let folder = TempDir::new().unwrap();
    let counted = |tokens: u64| {
        let usage = json!({"prompt_tokens": 9, "completion_tokens": tokens});
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": usage}))
    };
    let upstream = server([2, 5, 6, 10].map(counted).to_vec());
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    let body = json!({"stream": true, "messages": [],
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    proxy.client().send(chat(&body.to_string())).response();
    drop(proxy);
    let row = rows(folder.path()).remove(0);
    let gaps = gaps::unpack(row.timing.gaps.as_ref().unwrap()).unwrap();
    assert_eq!(row.timing.first_tokens, Some(2));
    assert_eq!(gaps.iter().map(|event| event.tokens()).collect::<Vec<_>>(), [Some(3), Some(1), Some(4)]);
    assert_eq!((row.output_tokens, row.output_source), (Some(10), Some(CountSource::ContinuousUsage)));
}

#[test]
fn gaps_beyond_the_bound_are_counted_and_plain_http_is_no_row() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(MAX_STREAM_GAPS + 9));
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    proxy.client().send(chat("{}").replace("/v1/chat/completions", "/files/of-somebody")).response();
    proxy.client().send(chat("{\"stream\":true,\"messages\":[]}")).response();
    drop(proxy);
    let rows = rows(folder.path());
    assert_eq!(rows.len(), 1);
    let (count, lost) = (gaps::unpack(rows[0].timing.gaps.as_ref().unwrap()).unwrap().len(), rows[0].timing.lost_gaps);
    // One read may bring more than the timeline holds; the lost gaps are then counted.
    assert!(
        count <= MAX_STREAM_GAPS && count as u64 + lost.unwrap() == MAX_STREAM_GAPS as u64 + 8,
        "{count} kept, {lost:?} lost"
    );
    assert_eq!(rows[0].output_tokens, Some(MAX_STREAM_GAPS as u64 + 9));
}

#[test]
fn a_models_name_is_written_from_the_configured_success_on() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(1));
    let proxy = proxy(upstream.addr, folder.path(), &[("capture_names", "3")]);
    let mut client = proxy.client();
    for _ in 0..4 {
        client.send(chat("{\"model\":\"rare\",\"stream\":true,\"messages\":[]}")).response();
    }
    drop(proxy);
    let rows = rows(folder.path());
    let models: Vec<_> = rows.iter().map(|row| row.model.as_deref().unwrap()).collect();
    assert_eq!(models, ["_other", "_other", "rare", "rare"]);
}

#[test]
fn a_client_disconnect_is_recorded_with_what_the_client_received() {
    let folder = TempDir::new().unwrap();
    let upstream = Upstream::start(|mut conn| {
        conn.request();
        conn.send(HEAD);
        (0..3).for_each(|_| _ = conn.chunk(event("x")));
        conn.closed();
    });
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    let mut client = proxy.client();
    client.send(chat("{\"stream\":true,\"messages\":[]}")).head();
    client.at_least(3 * event("x").len());
    drop(client);
    assert!(proxy.stop(PATIENCE));
    let row = rows(folder.path()).remove(0);
    assert_eq!((row.ending, row.outcome), (Some(Ending::DownstreamGone), Some(Outcome::Cancelled)));
    assert_eq!(row.abort_tokens, Some(3));
}

/// OpenAI's clients close at `[DONE]` and do not wait for the end of the body; others close at the finish reason.
#[test]
fn a_client_that_closes_after_a_finished_stream_has_not_aborted_it() {
    let (all, folder) = (answer(3), TempDir::new().unwrap());
    for (name, chunks) in [("done", &all[..]), ("finish", &all[..4]), ("usage", &all[..5])] {
        let (folder, sent) = (folder.path().join(name), chunks.to_vec());
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(HEAD);
            sent.iter().for_each(|chunk| _ = conn.chunk(chunk));
            conn.closed();
        });
        let proxy = proxy(upstream.addr, &folder, &[]);
        let mut client = proxy.client();
        client.send(chat("{\"stream\":true,\"messages\":[]}")).head();
        client.has(chunks.last().unwrap());
        drop(client);
        until("it is counted", || page(&proxy, "/metrics").contains("stream_terminations_total{"));
        let metrics = page(&proxy, "/metrics");
        let ended = metrics.lines().find(|line| line.starts_with("streamgauge_stream_terminations_total{")).unwrap();
        assert!(ended.contains("reason=\"done\""), "{name}: {ended}");
        assert!(proxy.stop(PATIENCE));
        let row = rows(&folder).remove(0);
        let end = (row.ending, row.outcome, row.abort_tokens);
        assert_eq!(end, (Some(Ending::DownstreamGone), Some(Outcome::Success), None), "{name}");
    }
}

#[test]
fn fifty_kills_under_load_cost_only_what_was_not_yet_due() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(3));
    let (mut due, mut sent) = (0, 0);
    for kill in 0..50 {
        let mut child = run(upstream.addr, folder.path(), &["--capture-flush=10ms"]);
        let done = Arc::new(AtomicUsize::new(0));
        let (listen, answered) = (child.listen, Arc::clone(&done));
        let load = std::thread::spawn(move || {
            let request = chat("{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
            let Ok(mut stream) = TcpStream::connect(listen) else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while stream.write_all(request.as_bytes()).is_ok() {
                let mut line = String::new();
                while line != "0\r\n" {
                    line.clear();
                    if !matches!(reader.read_line(&mut line), Ok(1..)) {
                        return;
                    }
                }
                if !matches!(reader.read_line(&mut line), Ok(1..)) {
                    return;
                }
                answered.fetch_add(1, Ordering::AcqRel);
            }
        });
        // Until something has been written: what was answered before is counted by the capture itself.
        let written = loop {
            let written = counted(&child.page("/metrics"), "whole") as usize;
            if written > kill % 7 {
                break written;
            }
        };
        child.child.kill().unwrap();
        child.child.wait().unwrap();
        load.join().unwrap();
        due += written;
        sent += done.load(Ordering::Acquire);
        let mut reader = TraceReader::open(folder.path()).unwrap();
        let row_count = reader.by_ref().filter(|row| row.is_ok()).count();
        assert!(row_count >= due, "{row_count} of {due} that were written, after {} kills", kill + 1);
        // A request may be written and its answer's end not seen by the client.
        assert!(row_count <= sent + kill + 1, "{row_count} of {sent}");
    }
}

#[test]
fn a_disk_that_takes_nothing_costs_records_and_no_stream_and_is_used_again_when_it_does() {
    let folder = TempDir::new().unwrap();
    let inner = folder.path().join("capture");
    let upstream = server(answer(2));
    let proxy = proxy(upstream.addr, &inner, &[("capture_flush", "10ms")]);
    let counted = |reason: &str| counted(&page(&proxy, "/metrics"), reason);
    let ask_until = |reason: &str| {
        let before = counted(reason);
        for _ in 0..2_000 {
            let answer = proxy.client().send(chat("{\"stream\":true,\"messages\":[]}")).response();
            assert!(answer.text().ends_with("data: [DONE]\n\n"));
            if counted(reason) > before {
                return;
            }
        }
        panic!("no record was ever counted as {reason}");
    };
    fs::remove_dir_all(&inner).unwrap();
    // A folder that is only gone is made again.
    fs::write(&inner, "").unwrap();
    ask_until("disk");
    fs::remove_file(&inner).unwrap();
    ask_until("whole");
    drop(proxy);
    assert!(!rows(&inner).is_empty());
}

#[test]
fn a_folder_that_cannot_be_used_is_named_at_the_start() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(1));
    let _first = proxy(upstream.addr, folder.path(), &[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--upstream=http://127.0.0.1:9"]);
    let done = command.arg(format!("--capture={}", folder.path().display())).env_clear().output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    let expected =
        format!("cannot capture into {} (--capture): another process captures into it", folder.path().display());
    assert!(stderr.contains(&expected) && done.status.code() == Some(1), "{stderr}");
}

#[test]
fn defaults_of_a_request_are_inferred_from_its_reply() {
    let plain = |status: &str| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        )
    };
    let stream = format!("{}0\r\n\r\n", HEAD.replace("Transfer", "Connection: close\r\nTransfer"));
    for (answer, streamed) in [(plain("200 OK"), Some(false)), (stream, Some(true)), (plain("400 Bad Request"), None)] {
        let folder = TempDir::new().unwrap();
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(&answer);
        });
        let proxy = proxy(upstream.addr, folder.path(), &[]);
        proxy.client().send(chat("{\"messages\":[]}")).response();
        assert!(proxy.stop(PATIENCE));
        assert_eq!(rows(folder.path()).remove(0).stream, streamed);
    }
}

#[test]
fn a_prompt_beyond_the_bound_is_a_row_without_blocks_and_is_counted() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(1));
    let proxy = proxy(upstream.addr, folder.path(), &[("capture_flush", "10ms")]);
    // A body with a higher ratio than any text would not be decompressed at all.
    let words: String = (0..1_300_000).map(|n| format!("{n} ")).collect();
    let body = json!({"stream": true, "messages": [{"role": "user", "content": words}]});
    let packed = zstd::stream::encode_all(body.to_string().as_bytes(), 1).unwrap();
    let fields = format!("Host: a\r\nContent-Encoding: zstd\r\nContent-Length: {}", packed.len());
    let packed = [format!("POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes(), &packed].concat();
    for (count, request) in [(1, chat(&body.to_string()).into_bytes()), (2, packed)] {
        proxy.client().send(request).response();
        until("it is counted", || counted(&page(&proxy, "/metrics"), "oversize") == count);
    }
    drop(proxy);
    let rows = rows(folder.path());
    let bare =
        |row: &TraceEntry| row.prompt.blocks.is_empty() && row.prompt.bytes.is_none() && row.output_tokens == Some(1);
    assert!(rows.len() == 2 && rows.iter().all(bare));
}

#[test]
fn a_request_of_two_hundred_tokens_takes_less_than_its_share_of_disk() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(200));
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    let mut client = proxy.client();
    for n in 0..200 {
        let body = json!({"model": "m", "stream": true, "max_tokens": 200,
            "messages": [{"role": "user", "content": format!("{n} {}", "x".repeat(4_000))}]});
        client.send(chat(&body.to_string())).response();
    }
    drop(proxy);
    let rows = rows(folder.path());
    let bytes: u64 = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let gaps: usize = rows.iter().map(|row| row.timing.gaps.as_ref().unwrap().len()).sum();
    assert_eq!(rows.len(), 200);
    let (per_request, per_token) = (bytes as f64 / 200.0, gaps as f64 / (200.0 * 199.0));
    assert!(per_request <= 1_200.0, "{per_request} bytes per request");
    assert!(per_token <= 3.0, "{per_token} bytes per token");
}
