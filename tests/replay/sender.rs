//! A replay sends the requests of its trace, and its result accounts for every request.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use rustls::{ServerConnection, StreamOwned};
use serde_json::Value;
use streamgauge::cli::runner::figures::RunTotals;
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::record::{Ending, FinishReason, Outcome};
use streamgauge::measure::time::{Gap, Window};
use streamgauge::net::tls::{self, ClientCertificates, TlsIdentity};
use streamgauge::replay::plan::schedule::{ReplayPlan, Shard};
use streamgauge::replay::request::encoder::CancelPolicy;
use streamgauge::replay::result::output::RunOutput;
use streamgauge::replay::sender::run::RunCommand;
use streamgauge::replay::{ClientAbort, ConnectionReuse};
use streamgauge::report::Report;
use streamgauge::report::accumulate::Accumulator;
use streamgauge::report::metric::ReportMetric;
use streamgauge::sim::{SimOptions, SimServer};
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::{Timing, TraceEntry};

use crate::support::captured::until;
use crate::support::http2::Pki;
use crate::support::replay::{Settings, replay, row, start};
use crate::support::unused_address;
use crate::support::upstream::{Upstream, reports};

fn fast() -> SimOptions {
    let cost = CostModel { prefill_per_second: 50_000_000, step_base: Gap::from_millis(1), ..CostModel::default() };
    SimOptions { engine: EngineOptions { cost, ..EngineOptions::default() }, ..SimOptions::default() }
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\n")
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn completions() -> Settings {
    Settings { dialect: Some("openai.completions"), ..Settings::default() }
}

#[test]
fn lengths_are_exact_at_a_server_that_counts_them() {
    let server = SimServer::bind(fast(), "127.0.0.1:0".parse().unwrap()).unwrap().spawn().unwrap();
    let rows: Vec<TraceEntry> = (1..=20).map(|number| row(number, number * 7)).collect();
    let (ended, rows) = replay(rows, server.local_addr(), completions());
    assert_eq!((ended.outcome.sent, ended.count(Outcome::Success)), (20, 20));
    let mut totals = ended.totals.requests;
    let fidelity = Report::of(&mut totals, Vec::new(), &[50.0]).fidelity.unwrap();
    let total = &totals.total;
    let exact = [fidelity.isl, fidelity.osl].map(|length| length.map(|length| (length.compared, length.exact_share)));
    assert_eq!(exact, [Some((20, 1.0)); 2]);
    assert_eq!(total.samples[ReportMetric::Output as usize].sum(), 7 * 210);
    assert!(rows.iter().all(|row| row.finish == Some(FinishReason::Length) && row.prompt.tokens == Some(8)));
    assert_eq!(total.samples[ReportMetric::Itl as usize].len(), 7 * 210 - 20, "a gap before every token but the first");
}

#[test]
fn rows_are_written_during_the_run() {
    let upstream = Upstream::answering(format!("{STREAM}0\r\n\r\n"));
    let folder = tempfile::tempdir().unwrap();
    let output = RunOutput::new(folder.path(), TraceHeader::new("test")).unwrap();
    // The file has the first record before the second request is due.
    let run = start(vec![row(0, 1), row(600_000, 1)], upstream.addr, completions(), Some(output));
    let file = folder.path().join("records.jsonl.zst");
    // Until a row is there the file has nothing that could be read.
    until("a row is in it", || TraceReader::open(&file).map_or(0, Iterator::count) > 0);
    assert!(!run.run.is_over());
    run.run.send_command(RunCommand::Halt);
    run.finish();
    assert_eq!(TraceReader::open(&file).unwrap().count(), 1);
}

#[test]
fn every_request_is_accounted_for_whatever_becomes_of_it() {
    let upstream = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let whole = |status: &str, body: &str| {
                format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            };
            match body["max_tokens"].as_u64().unwrap() {
                1 => _ = conn.send(whole("503 Busy", "{}")),
                2 => return conn.reset(),
                3 => return,
                4 => {
                    conn.send(STREAM);
                    conn.chunk(event("a"));
                    return;
                }
                5 => _ = conn.closed(),
                6 => _ = conn.send("HTTP/1.1 junk\r\n\r\n"),
                8 => {
                    conn.send(STREAM);
                    conn.chunk(event("a") + "data: {\"error\":{\"message\":\"no memory\",\"type\":\"internal\"}}\n\n");
                    conn.send("0\r\n\r\n");
                }
                _ => {
                    conn.send(STREAM);
                    conn.chunk(event("a") + "data: [DONE]\n\n");
                    conn.send("0\r\n\r\n");
                }
            }
        }
    });
    let rows = (1..=8).map(|output| row(output, output)).collect();
    let settings = Settings { timeout: Some(Gap::from_millis(2_000)), ..completions() };
    let (ended, rows) = replay(rows, upstream.addr, settings);
    let outcomes: Vec<Outcome> = rows.iter().map(|row| row.outcome.unwrap()).collect();
    use Outcome::*;
    assert_eq!(outcomes, [Failed, Failed, Failed, Truncated, Failed, Failed, Success, Failed]);
    let RunTotals { requests: Accumulator { total, .. }, counts, .. } = &ended.totals;
    let errors: Vec<(&str, u64)> = counts.errors.iter().map(|(name, count)| (*name, *count)).collect();
    assert_eq!(errors, [("closed", 2), ("error_event", 1), ("malformed", 1), ("reset", 1), ("timeout", 1)]);
    assert_eq!(total.statuses.get(&503), Some(&1));
    assert_eq!(total.samples[ReportMetric::Ttft as usize].len(), 1, "only the success has a TTFT");
    assert_eq!(upstream.heads().len(), 8, "nothing is sent twice");
}

#[test]
fn a_reply_before_the_whole_request_is_read_is_the_answer() {
    let upstream = Upstream::start(|mut conn| {
        conn.head();
        conn.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n");
        // The rest of the request is never read.
        let _silence = conn.stream.set_read_timeout(None);
        std::thread::sleep(std::time::Duration::from_secs(60));
    });
    // More than the sockets between the two hold.
    let mut large = row(0, 1);
    large.prompt.tokens = Some(4_000_000);
    let (ended, rows) = replay(vec![large], upstream.addr, completions());
    assert_eq!(
        (rows[0].status, rows[0].outcome),
        (Some(413), Some(Outcome::Refused)),
        "{:?}",
        ended.totals.counts.errors
    );
    assert_eq!((rows[0].timing.sent, rows[0].ending), (None, Some(Ending::Complete)));
}

#[test]
fn a_target_that_is_not_there_fails_every_request_and_no_other() {
    let (_held, nowhere) = unused_address();
    let (ended, rows) = replay(vec![row(0, 1), row(1, 1)], nowhere, completions());
    assert_eq!((ended.totals.counts.errors.get("connect"), rows.len()), (Some(&2), 2));
    assert!(rows.iter().all(|row| row.status.is_none() && row.timing.sent.is_none()));
    let transfers = rows.iter().map(|row| row.transfer.as_ref().unwrap());
    assert!(transfers.into_iter().all(|transfer| transfer.connecting > Some(0) && transfer.received.is_none()));
}

#[test]
fn a_row_has_the_bytes_reads_and_times_of_its_transfer() {
    let (report, sizes) = reports();
    let upstream = Upstream::start(move |mut conn| {
        let Some(request) = conn.request() else { return };
        conn.send(STREAM);
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":3}}}"#;
        let (first, last) = (": nothing yet\n\n".to_owned(), event("a") + usage + "\n\ndata: [DONE]\n\n");
        report((request.body.len() as u64, (first.len() + last.len()) as u64));
        conn.chunk(first);
        // The pause makes the rest another read.
        std::thread::sleep(std::time::Duration::from_millis(500));
        conn.chunk(last);
        conn.send("0\r\n\r\n");
    });
    let (_, rows) = replay(vec![row(0, 1)], upstream.addr, completions());
    let (transfer, timing) = (rows[0].transfer.as_ref().unwrap(), &rows[0].timing);
    let (sent, received) = sizes();
    assert_eq!((transfer.sent, transfer.received), (Some(sent), Some(received)));
    assert!(
        transfer.head <= transfer.first_byte && transfer.first_byte < timing.first_token,
        "{transfer:?}, {timing:?}"
    );
    // The end of the body may come with the last of it or by itself, and brings nothing.
    assert_eq!(transfer.reads, Some(2));
    assert!(transfer.connecting.is_some());
    assert_eq!((rows[0].output_tokens, rows[0].reasoning_tokens), (Some(5), Some(3)));
}

#[test]
fn a_row_that_cannot_be_sent_breaks_the_run_off_and_keeps_what_was_sent() {
    let upstream = Upstream::answering("HTTP/1.1 204 No Content\r\n\r\n");
    let unknown = TraceEntry { dialect: Some("gemini".to_owned()), ..row(20, 1) };
    let ended = start(vec![row(0, 1), unknown, row(40, 1)], upstream.addr, Settings::default(), None).finish();
    let broken = ended.outcome.error.as_ref().unwrap().to_string();
    assert!(broken.starts_with("no requests can be made in the dialect `gemini`"), "{broken}");
    assert_eq!((ended.outcome.sent, ended.totals.requests.total.requests()), (1, 1));
}

/// An upstream whose streams go on until the client leaves, and the tokens that each was sent.
fn endless() -> (Upstream, impl Fn() -> u64) {
    let (report, left) = reports();
    let upstream = Upstream::start(move |mut conn| {
        assert!(conn.request().is_some());
        conn.send(STREAM);
        let mut tokens = 0;
        while conn.chunk(event("a")) {
            tokens += 1;
            // A client that is late to read finds few more.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        report(tokens);
    });
    (upstream, left)
}

#[test]
fn a_captured_client_leaves_again_at_the_token_where_it_left() {
    let (upstream, left) = endless();
    let timing = Timing { sent: Some(0), ended: Some(9_000_000_000), ..Timing::default() };
    let entry = TraceEntry { ending: Some(Ending::DownstreamGone), abort_tokens: Some(5), timing, ..row(0, 5) };
    let (_, rows) = replay(vec![entry], upstream.addr, completions());
    assert_eq!((rows[0].outcome, rows[0].ending), (Some(Outcome::Cancelled), Some(Ending::DownstreamGone)));
    assert!((5..15).contains(&rows[0].output_tokens.unwrap()), "{:?}", rows[0].output_tokens);
    assert!(left() >= 5, "the server learned of it");
}

/// Earlier versions wrote an abort for each client that closed first.
#[test]
fn a_captured_client_that_closed_after_its_whole_reply_gets_it_whole_again() {
    let server = SimServer::bind(fast(), "127.0.0.1:0".parse().unwrap()).unwrap().spawn().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let row = |at: u64, more: &str| {
        format!(
            "{{\"at\":{at},\"prompt\":{{\"tokens\":8}},\"status\":200,\"ending\":\"downstream_gone\",\
             \"output_tokens\":5,\"abort_tokens\":5,\"timing\":{{\"ended\":1000000}}{more}}}\n"
        )
    };
    let rows = [
        row(0, r#","outcome":"success","finish":"stop""#),
        row(1, r#","outcome":"success""#),
        row(2, r#","outcome":"cancelled","finish":"length""#),
        row(3, r#","outcome":"cancelled","finish":"stop","params":{"n":2}"#),
        row(4, r#","outcome":"cancelled","finish":"abort""#),
        row(5, r#","outcome":"cancelled""#),
    ];
    let header = serde_json::to_string(&TraceHeader::new("streamgauge 0.1.0")).unwrap();
    std::fs::write(&path, format!("{header}\n{}", rows.concat())).unwrap();
    let rows: Vec<TraceEntry> = TraceReader::open(&path).unwrap().map(Result::unwrap).collect();
    let aborts: Vec<_> = rows.iter().map(|row| row.abort_tokens).collect();
    assert_eq!(aborts, [None, None, None, Some(5), Some(5), Some(5)]);
    let (_, rows) = replay(rows[..3].to_vec(), server.local_addr(), completions());
    let ends: Vec<_> = rows.iter().map(|row| (row.outcome, row.ending, row.output_tokens)).collect();
    assert_eq!(ends, [(Some(Outcome::Success), Some(Ending::Complete), Some(5)); 3]);
}

#[test]
fn a_share_of_clients_can_be_made_to_leave() {
    let (upstream, left) = endless();
    let cancel = Some(CancelPolicy { rate: 1.0, after: ClientAbort::After(Gap::from_millis(50)) });
    let (_, rows) = replay(vec![row(0, 9)], upstream.addr, Settings { cancel, ..completions() });
    assert_eq!(rows[0].outcome, Some(Outcome::Cancelled));
    assert!(left() > 0);
}

#[test]
fn a_turn_waits_for_the_answer_before_it_and_then_for_its_pause() {
    let server = SimServer::bind(fast(), "127.0.0.1:0".parse().unwrap()).unwrap().spawn().unwrap();
    let turn = |at, turn, think: Option<u64>| TraceEntry {
        session: Some("s".to_owned()),
        turn: Some(turn),
        think: think.map(|think| think * 1_000_000),
        ..row(at, 30)
    };
    // As if no answer took any time: the second turn would be due in the middle of the first answer.
    let rows = vec![turn(0, 0, None), turn(5, 1, Some(5)), turn(45, 2, Some(40))];
    let (ended, rows) = replay(rows, server.local_addr(), completions());
    assert_eq!(ended.count(Outcome::Success), 3, "{:?}", ended.totals.counts);
    for (pair, think) in rows.windows(2).zip([5_000_000, 40_000_000]) {
        let ended = pair[0].at + pair[0].timing.ended.unwrap();
        assert_eq!(pair[1].planned, Some(ended + think));
    }
}

#[test]
fn shards_send_the_same_bytes_as_one() {
    let bodies = |shard: Shard| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let upstream = Upstream::start(move |mut conn| {
            while let Some(request) = conn.request() {
                log.lock().unwrap().push(request.body);
                conn.send("HTTP/1.1 204 No Content\r\n\r\n");
            }
        });
        let rows = (0..12).map(|number| row(number, 1 + number)).collect();
        replay(rows, upstream.addr, Settings { plan: ReplayPlan { shard, ..ReplayPlan::default() }, ..completions() });
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort();
        seen
    };
    let whole = bodies(Shard::default());
    let mut parts: Vec<_> = (0..3).flat_map(|index| bodies(Shard { index, count: 3 })).collect();
    parts.sort();
    assert_eq!((whole.len(), parts == whole), (12, true));
}

#[test]
fn connections_are_kept_or_not_as_wanted() {
    let used = |connections| {
        let upstream = Upstream::answering("HTTP/1.1 204 No Content\r\n\r\n");
        let rows = (0..4).map(|number| row(number * 150, 1)).collect();
        replay(rows, upstream.addr, Settings { connections, ..completions() });
        upstream.connections()
    };
    assert_eq!(used(ConnectionReuse::Fresh), 4);
    assert!(used(ConnectionReuse::Reuse) < 4);
}

#[test]
fn a_target_may_speak_tls() {
    let pki = Pki::new();
    let (cert, key) = (pki.path("server.pem"), pki.path("server.key"));
    let server =
        tls::server(TlsIdentity { cert: &cert, key: &key }, ClientCertificates::Ignored, &["http/1.1"]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let server = Arc::new(server);
        for socket in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&server)).unwrap();
            std::thread::spawn(move || {
                let mut stream = StreamOwned::new(connection, socket.unwrap());
                // A request comes whole: it is small, and one write.
                while stream.read(&mut [0; 4_096]).is_ok_and(|read| read > 0) {
                    let body = event("a") + &event("b") + "data: [DONE]\n\n";
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
                    write!(stream, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
                }
            });
        }
    });
    let settings = Settings { ca: Some(pki.path("ca.pem")), ..completions() };
    let (ended, rows) = replay((0..3).map(|number| row(number * 80, 2)).collect(), addr, settings.clone());
    assert_eq!(ended.count(Outcome::Success), 3, "{:?}", ended.totals.counts);
    assert!(rows.iter().all(|row| row.output_tokens == Some(2)));
    let others = Pki::new();
    let (ended, _) = replay(vec![row(0, 2)], addr, Settings { ca: Some(others.path("ca.pem")), ..settings });
    assert_eq!(ended.totals.counts.errors.get("connect"), Some(&1), "whom nobody vouches for is not asked");
}

#[test]
fn warm_up_and_cool_down_are_sent_and_not_in_the_figures() {
    let server = SimServer::bind(fast(), "127.0.0.1:0".parse().unwrap()).unwrap().spawn().unwrap();
    let rows = (0..10).map(|number| row(number * 10, 2)).collect();
    let measured = Window { from: 30_000_000, to: Some(80_000_000) };
    let (ended, rows) = replay(rows, server.local_addr(), Settings { measured, ..completions() });
    assert_eq!((rows.len(), ended.totals.requests.total.requests(), ended.totals.counts.outside_window), (10, 5, 5));
}

#[test]
fn goodput_is_judged_from_the_planned_moment() {
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(200));
            conn.send(STREAM);
            conn.chunk(event("a") + "data: [DONE]\n\n");
            conn.send("0\r\n\r\n");
        }
    });
    let rows = (0..6).map(|_| row(0, 1)).collect();
    let settings = Settings { slots: Some(1), slos: vec!["s: ttft<=700ms"], ..completions() };
    let (ended, rows) = replay(rows, upstream.addr, settings);
    let limit = 700_000_000;
    let from_sent = |row: &TraceEntry| row.timing.first_token.unwrap() - row.timing.sent.unwrap();
    let from_planned = |row: &TraceEntry| row.at + row.timing.first_token.unwrap() - row.planned.unwrap();
    let good = rows.iter().filter(|row| from_planned(row) <= limit).count() as u64;
    let goodput = &ended.totals.requests.total.goodput[0];
    assert!(good <= 3 && (goodput.counted, goodput.met) == (6, good), "{good} of {goodput:?}");
    let held_back = |row: &TraceEntry| from_sent(row) <= limit && from_planned(row) > limit;
    assert!(rows.iter().any(held_back), "by itself it would have met it: {rows:?}");
}
