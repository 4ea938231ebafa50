//! The capture of a run has the requests of its load and no probe, and matches what was sent row by row.

use std::path::Path;

use serde_json::Value;
use streamgauge::measure::time::Gap;
use streamgauge::trace_file::row::TraceEntry;

use crate::support::PATIENCE;
use crate::support::captured::{counted, page, proxy, rows, until};
use crate::support::sending::{run, sim};
use crate::support::upstream::{Upstream, reports};

/// Runs a verb against a capturing proxy in front of `server` and returns the rows.
///
/// Two of its prompts are probes: they show what the server adds to each prompt.
fn captured(server: std::net::SocketAddr, folder: &Path, args: &[&str]) -> Vec<TraceEntry> {
    let proxy = proxy(server, folder, &[]);
    let target = format!("http://{}", proxy.addr);
    let done = run(&[args, &["--target", &target, "--max-lag", "1h"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    // The response is sent before its record is counted.
    until("both probes are counted", || counted(&page(&proxy, "/metrics"), "probe") == 2);
    assert!(proxy.stop(PATIENCE));
    rows(folder)
}

#[test]
fn probes_are_counted_and_in_no_capture() {
    let server = sim(Gap::from_millis(1));
    let folder = tempfile::tempdir().unwrap();
    let load = ["load", "--rate", "50", "--requests", "5", "--isl", "40", "--osl", "3"];
    let rows = captured(server.local_addr(), folder.path(), &load);
    let lengths: Vec<_> = rows.iter().map(|row| (row.prompt.tokens, row.output_tokens)).collect();
    assert_eq!(lengths, [(Some(40), Some(3)); 5]);
}

#[test]
fn the_proxy_forwards_the_mark_of_a_probe() {
    let (seen, has_seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        seen(conn.request().unwrap().head);
        conn.send("HTTP/1.1 204 No Content\r\n\r\n");
    });
    let folder = tempfile::tempdir().unwrap();
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Streamgauge-Probe: 1\r\nContent-Length: 2\r\n\r\n{}";
    proxy.client().send(head).response();
    assert!(has_seen().contains("X-Streamgauge-Probe: 1\r\n"));
    until("the probe is counted", || counted(&page(&proxy, "/metrics"), "probe") == 1);
}

#[test]
fn the_capture_of_a_replay_is_the_trace_row_by_row_though_its_turns_drift() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let server = sim(Gap::from_millis(1));
    let load = [
        "load",
        "--rate",
        "60",
        "--requests",
        "60",
        "--turns",
        "4",
        "--think",
        "30ms",
        "--isl",
        "150",
        "--osl",
        "normal:30:10",
    ];
    let rows = captured(server.local_addr(), &first, &load);
    assert_eq!(rows.len(), 60);
    // Slower, so that every later turn comes later.
    let server = sim(Gap::from_millis(4));
    let rows = captured(server.local_addr(), &second, &["replay", first.to_str().unwrap()]);
    assert_eq!(rows.len(), 60);
    let done = run_diff(&first, &second);
    let exact = |side: &str| done[side]["exact_share"].as_f64();
    assert_eq!((&done["joined"], exact("output")), (&60.into(), Some(1.0)), "{done}");
}

fn run_diff(a: &Path, b: &Path) -> Value {
    let args = ["trace", "diff", a.to_str().unwrap(), b.to_str().unwrap(), "--json"];
    let done = crate::support::sending::output_of(crate::support::sending::program(&args));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}
