//! The admin port over real sockets, with a client that reads raw bytes.

use std::io::Read;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::config::otlp::OtlpConfig;
use crate::export::control::queue::Reporter;
use crate::export::control::run_status::RunInfo;
use crate::export::control::thread::{ControlPlane, RuntimeSettings};
use crate::export::fixtures::{record, shape, spread};
use crate::export::registry::aggregate;
use crate::export::registry::gauges::Gauges;
use crate::measure::record::{Ending, Outcome, RequestRecord};
use crate::measure::shape::RequestShape;
use crate::measure::time::Gap;

struct TestServer {
    address: SocketAddr,
    reporter: Reporter,
    gauges: std::sync::Arc<Gauges>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

async fn start(rules: RuntimeSettings) -> TestServer {
    start_before(rules, None).await
}

async fn start_before(rules: RuntimeSettings, upstream: Option<&str>) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = upstream.map(str::to_owned);
    let plane = ControlPlane::new(rules, &OtlpConfig::from_environment(|_| None).0, None, upstream, Clock::Monotonic);
    let (reporter, gauges) = (plane.reporter(), plane.gauges());
    let (stop, stopped) = oneshot::channel();
    let stopping = async { stopped.await.unwrap_or_default() };
    let task = tokio::spawn(plane.run(Some(listener), stopping, Gap::from_millis(1_000)));
    TestServer { address, reporter, gauges, stop, task }
}

struct TestReply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl TestReply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl TestServer {
    async fn send(&self, request: &str) -> TestReply {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).await.unwrap();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.contains("transfer-encoding: chunked\r\n");
        TestReply { status, head, body: if chunked { dechunked(&bytes[end..]) } else { bytes[end..].to_vec() } }
    }

    async fn get(&self, path: &str, fields: &str) -> TestReply {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}\r\n")).await
    }
}

fn dechunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
}

#[tokio::test]
async fn a_scrape_has_what_was_reported_just_before() {
    let plane = start(RuntimeSettings::default()).await;
    plane.reporter.finished(record().into());
    let reply = plane.get("/metrics", "").await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{}", reply.head);
    let text = String::from_utf8(reply.body).unwrap();
    for line in [
        "gen_ai_server_time_to_first_token_seconds_count{gen_ai_operation_name=\"chat\",",
        "http_server_active_requests{http_request_method=\"POST\",url_scheme=\"http\"} 0\n",
        "streamgauge_export_dropped_total{exporter=\"queue\",reason=\"queue_full\"} 0\n",
        concat!("streamgauge_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n"),
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_open_fds ",
        "process_start_time_seconds ",
        "streamgauge_stream_active{phase=\"waiting\"} 0\n",
        "streamgauge_proxy_upstream_connections{state=\"idle\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[tokio::test]
async fn a_scraper_gets_the_format_and_the_coding_that_it_asks_for() {
    let plane = start(RuntimeSettings::default()).await;
    let openmetrics = plane.get("/metrics", "accept: application/openmetrics-text\r\n").await;
    assert!(openmetrics.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(openmetrics.body.ends_with(b"# EOF\n"));
    let protobuf = "accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
        encoding=delimited\r\naccept-encoding: gzip\r\n";
    let zipped = plane.get("/metrics", protobuf).await;
    assert!(zipped.head.contains("content-encoding: gzip\r\n") && zipped.head.contains("encoding=delimited\r\n"));
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&zipped.body[..]).read_to_end(&mut plain).unwrap();
    assert!(plain.windows(22).any(|window| window == b"streamgauge_build_info"));
}

#[tokio::test]
async fn gzip_is_sent_to_those_who_take_it() {
    let plane = start(RuntimeSettings::default()).await;
    for (accepted, zipped) in [
        ("gzip", true),
        ("deflate, gzip;q=0.5", true),
        ("GZIP", true),
        ("*", true),
        ("br;q=1.0, *;q=0.1", true),
        ("identity", false),
        ("br", false),
        ("gzip;q=0", false),
        ("gzip; Q = 0", false),
        ("gzip;q=0, *;q=1", false),
    ] {
        let reply = plane.get("/metrics", &format!("accept-encoding: {accepted}\r\n")).await;
        assert_eq!((reply.status, reply.head.contains("content-encoding: gzip\r\n")), (200, zipped), "{accepted}");
        assert!(reply.head.contains("vary: accept, accept-encoding\r\n"), "{}", reply.head);
    }
}

#[tokio::test]
async fn a_page_of_somebody_elses_name_reads_nothing_and_no_reply_is_sniffed() {
    let rules = RuntimeSettings { admin_hosts: ["gauge".to_owned()].into(), ..RuntimeSettings::default() };
    let plane = start(rules).await;
    plane.reporter.finished(record().into());
    let get_with_host = async |path: &str, host: &str| {
        plane
            .send(&format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\naccept: text/html\r\n\r\n"))
            .await
    };
    let paths = [
        "/",
        "/metrics",
        "/livez",
        "/readyz",
        "/api/state",
        "/api/requests",
        "/api/live",
        "/api/history",
        "/page/page.js",
        "/no",
    ];
    for path in paths {
        let refused = get_with_host(path, "evil.example:9464").await;
        assert_eq!(refused.status, 421, "{path}");
        assert!(!String::from_utf8_lossy(&refused.body).contains("tiny"), "{path}");
        assert!(refused.head.contains("x-content-type-options: nosniff\r\n"), "{path}: {}", refused.head);
    }
    for path in paths.into_iter().filter(|path| *path != "/api/live") {
        let reply = get_with_host(path, "gauge:9464").await;
        assert_ne!(reply.status, 421, "{path}");
        assert!(reply.head.contains("x-content-type-options: nosniff\r\n"), "{path}: {}", reply.head);
    }
}

#[tokio::test]
async fn readiness_says_why_not() {
    let plane = start(RuntimeSettings::default()).await;
    let ready = async || {
        let reply = plane.get("/readyz", "").await;
        (reply.status, reply.json()["reason"].as_str().map(str::to_owned))
    };
    assert_eq!(plane.get("/livez", "").await.status, 200);
    assert_eq!(ready().await, (503, Some("the proxy takes no requests: it is starting or draining".to_owned())));
    plane.gauges.set_ready(true);
    assert_eq!(ready().await, (200, None));
    plane.gauges.set_upstream(Err("refused".to_owned()));
    assert_eq!(ready().await, (503, Some("the upstream cannot be reached: refused".to_owned())));
    plane.gauges.set_upstream(Ok(()));
    assert_eq!(ready().await.0, 200);
}

#[tokio::test]
async fn the_state_tells_the_last_requests_without_what_was_said() {
    let rules = RuntimeSettings { config_digest: "abc".to_owned(), ..RuntimeSettings::default() };
    let plane = start_before(rules, Some("http://llm.invalid:8000")).await;
    let (outcome, ending) = (Outcome::Failed, Ending::UpstreamFailed);
    let unknown = std::sync::Arc::new(shape("made up"));
    plane.reporter.finished(RequestRecord { outcome, ending, status: None, shape: unknown, ..record() }.into());
    (0..60).for_each(|_| plane.reporter.finished(record().into()));
    let plain = RequestRecord { shape: std::sync::Arc::new(RequestShape::default()), output_tokens: None, ..record() };
    plane.reporter.finished(plain.into());
    let mut open = plane.gauges.add_thread().request("POST");
    open.set_model(Some("tiny"));
    open.set_stream_phase(false);
    let state = plane.get("/api/state", "").await.json();
    assert_eq!(state["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((state["config_digest"].as_str(), state["ready"].as_bool()), (Some("abc"), Some(false)));
    assert_eq!(state["upstream"]["url"], "http://llm.invalid:8000");
    let in_flight = serde_json::json!({
        "requests": 1, "waiting": 1, "streaming": 0,
        "by_model": {"tiny": 1}, "streams_by_model": {"tiny": {"waiting": 1, "streaming": 0}},
    });
    assert_eq!(state["in_flight"], in_flight);
    let recent = state["recent"].as_array().unwrap();
    assert_eq!(recent.len(), 50);
    assert_eq!((&recent[0]["model"], &recent[0]["output_tokens"]), (&Value::Null, &Value::Null));
    let mut second = recent[1].clone();
    second.as_object_mut().unwrap().remove("ended_unix_ms");
    let expected = serde_json::json!({
        "trace_id": null, "response_id": "chatcmpl-1", "model": "tiny", "route": "/v1/chat/completions", "status": 200,
        "outcome": "success", "local_reply": false, "fault": null, "missed_slos": [], "ttft_ms": 200.0, "tpot_ms": 20.0,
        "longest_gap_ms": 40.0, "duration_ms": 305.0,
        "phases_ms": {"sent": 1.0, "head": 150.0, "first_token": 200.0, "first_output": 200.0, "last_token": 300.0},
        "engine_prefill_ms": 120.0,
        "input_tokens": 100, "cached_tokens": 64, "output_tokens": 6, "output_tokens_from": "usage",
        "malformed_events": 0, "unread": null, "request_unread": null, "write_blocked_ms": 0.0,
    });
    assert_eq!(second, expected);
}

#[tokio::test]
async fn a_reader_of_requests_gets_each_once_with_the_slos_that_it_missed() {
    let slos = crate::measure::slo::Slos::new(vec!["fast: ttft<=100ms".parse().unwrap()]).unwrap();
    let plane = start(RuntimeSettings::default()).await;
    let first = RequestRecord { slos: slos.into(), response_id: Some("a\u{200b}".into()), ..record() };
    plane.reporter.finished(first.into());
    let all = plane.get("/api/requests", "").await.json();
    let ids = |reply: &Value| -> Vec<String> {
        let requests = reply["requests"].as_array().unwrap().iter();
        requests.map(|request| request["response_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((ids(&all), all["whole"].as_bool()), (vec![r"a\u{200b}".to_owned()], Some(true)));
    assert_eq!(all["requests"][0]["missed_slos"], serde_json::json!(["fast"]));
    (0..2).for_each(|_| plane.reporter.finished(record().into()));
    let next = all["next"].as_str().unwrap();
    let new = plane.get(&format!("/api/requests?after={next}"), "").await.json();
    assert_eq!((ids(&new), new["whole"].as_bool()), (vec!["chatcmpl-1".to_owned(); 2], Some(false)));
    let next = new["next"].as_str().unwrap();
    assert_eq!(ids(&plane.get(&format!("/api/requests?after={next}"), "").await.json()), [""; 0]);
    for useless in ["1-1", "x", ""] {
        let reply = plane.get(&format!("/api/requests?after={useless}"), "").await.json();
        assert_eq!((ids(&reply).len(), reply["whole"].as_bool()), (3, Some(true)), "{useless}");
    }
}

/// Waits until the history contains this many requests, and returns the whole history.
async fn history_with(plane: &TestServer, requests: u64) -> Value {
    loop {
        let history = plane.get("/api/history", "").await.json();
        let seconds = history["seconds"].as_array().unwrap().iter();
        let counted = seconds.filter_map(|second| second["figures"]["requests"].as_u64()).sum::<u64>();
        assert!(counted <= requests, "{counted} of {requests}");
        if counted == requests {
            return history;
        }
        Clock::Monotonic.sleep(Gap::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_live_reader_is_told_once_a_second_what_happened() {
    let slos = crate::measure::slo::Slos::new(vec!["fast: ttft<=300ms".parse().unwrap()]).unwrap();
    let plane =
        start(RuntimeSettings { aggregate: aggregate::AggregateSettings::default(), ..RuntimeSettings::default() })
            .await;
    plane.reporter.finished(record().into());
    history_with(&plane, 1).await;
    let mut socket = TcpStream::connect(plane.address).await.unwrap();
    socket.write_all(b"GET /api/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    let n = socket.read(&mut buffer).await.unwrap();
    text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
    let slos = std::sync::Arc::new(slos);
    (0..4).for_each(|_| {
        plane.reporter.finished(RequestRecord { slos: std::sync::Arc::clone(&slos), ..record() }.into());
    });
    let count = |value: &Value| value.as_u64().unwrap();
    // The four may fall into two seconds; one of those then has none.
    let events = loop {
        let n = socket.read(&mut buffer).await.unwrap();
        assert!(n > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        let events: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
        let counted = events.iter().map(|event| count(&event["all"]["last_1s"]["requests"])).sum::<u64>();
        assert!(counted <= 4, "not the one before: {text}");
        let last = &events[events.len() - 1]["all"]["last_1s"];
        // On a stalled machine the window may be longer than a second.
        if counted == 4 && count(&last["requests"]) == 0 && last["seconds"].as_f64().unwrap().round() == 1.0 {
            break events;
        }
    };
    // They are the history's seconds.
    let history = history_with(&plane, 5).await;
    for event in &events {
        let mut seconds = history["seconds"].as_array().unwrap().iter();
        let same = seconds.find(|second| second["unix_ms"] == event["unix_ms"]).unwrap();
        let requests = same["figures"]["requests"].as_u64().unwrap_or_default();
        assert_eq!(requests, count(&event["all"]["last_1s"]["requests"]));
    }
    let last_event = &events[events.len() - 1];
    let (quiet, window) = (&last_event["models"]["tiny"]["last_1s"], &last_event["models"]["tiny"]["last_10s"]);
    assert_eq!((&quiet["ttft_ms"], &quiet["requests_per_s"]), (&Value::Null, &0.0.into()));
    assert_eq!(quiet["seconds"].as_f64().unwrap().round(), 1.0);
    let seconds = window["seconds"].as_f64().unwrap();
    assert_eq!((window["requests_per_s"].as_f64().unwrap() * seconds).round(), 4.0);
    assert_eq!((window["tokens_per_s"].as_f64().unwrap() * seconds).round(), 24.0);
    assert_eq!(window["terminations"], serde_json::json!({"done": 4}));
    for (key, millis) in [("ttft_ms", 200.0), ("tpot_ms", 21.0)] {
        let p50 = window[key]["p50"].as_f64().unwrap();
        assert!((p50 / millis - 1.0).abs() < 0.091, "{key} {p50}");
    }
    let slo = &last_event["slos"]["fast"]["last_10s"];
    assert_eq!((slo["met"].as_u64(), slo["met_ratio"].as_f64()), (Some(4), Some(1.0)));
    assert_eq!(last_event["in_flight"]["requests"], 0);
}

#[tokio::test]
async fn what_the_page_asks_for_in_a_second_is_small_with_a_thousand_models() {
    let aggregate = aggregate::AggregateSettings { max_models: 1_000, ..aggregate::AggregateSettings::default() };
    let plane = start(RuntimeSettings { aggregate, ..RuntimeSettings::default() }).await;
    let names: Vec<String> =
        (0..1_000).map(|model| format!("organisation/some-model-{model:04}-instruct-fp8")).collect();
    for (place, name) in (0..).zip(&names) {
        plane.reporter.finished(spread(name, place).into());
    }
    // All requests fall into one or two seconds. A page that polls every second gets at most this much at once.
    let all = history_with(&plane, 1_000).await;
    let size = |reply: &Value| reply.to_string().len();
    assert!(size(&all) * 60 < 1_000_000, "{} bytes", size(&all));
    let ttft = |second: &Value| second["figures"]["ttft"].as_array().map_or(0, Vec::len);
    let longest = all["seconds"].as_array().unwrap().iter().map(ttft).max();
    assert!(longest > Some(100), "the distributions are as long as they get: {longest:?}");
    let model = all["models"][0].as_str().unwrap().replace('/', "%2F");
    let one = plane.get(&format!("/api/history?model={model}"), "").await.json();
    assert!(size(&one) * 60 < 1_000_000, "{} bytes", size(&one));
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut plain).unwrap();
    plain
}

#[tokio::test]
async fn a_browser_gets_the_page_which_may_load_nothing_from_elsewhere() {
    let plane = start(RuntimeSettings::default()).await;
    let browser = "accept: text/html,*/*;q=0.8\r\n";
    let page = plane.get("/", browser).await;
    assert!(page.body.starts_with(b"<!doctype html>") && page.head.contains("content-type: text/html; charset=utf-8"));
    let policy = page.head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"] {
        assert!(policy.contains(rule), "{rule} in {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http") && !policy.contains('*'), "{policy}");
    for field in ["vary: accept, accept-encoding\r\n", "x-content-type-options: nosniff\r\n"] {
        assert!(page.head.contains(field), "{field} in {}", page.head);
    }
    let zipped = plane.get("/", &format!("{browser}accept-encoding: gzip\r\n")).await;
    assert!(zipped.head.contains("content-encoding: gzip\r\n"));
    assert_eq!(unpacked(&zipped.body), page.body);
    for other in ["", "accept: */*\r\n"] {
        let list = plane.get("/", other).await;
        assert!(list.head.contains("content-type: text/plain") && list.head.contains("vary: accept\r\n"));
    }
}

#[tokio::test]
async fn a_part_of_the_page_that_the_browser_has_is_not_sent_again() {
    let plane = start(RuntimeSettings::default()).await;
    let script = plane.get("/page/uPlot.js", "accept-encoding: gzip\r\n").await;
    assert!(script.head.contains("content-type: text/javascript; charset=utf-8\r\n"), "{}", script.head);
    assert!(script.head.contains("cache-control: no-cache\r\n") && script.head.contains("content-security-policy: "));
    assert_eq!(unpacked(&script.body), plane.get("/page/uPlot.js", "").await.body);
    // This client lower-cases the whole head.
    let tag = script.head.lines().find_map(|line| line.strip_prefix("etag: w/")).unwrap();
    let same = plane.get("/page/uPlot.js", &format!("if-none-match: \"x\", {tag}\r\n")).await;
    assert_eq!((same.status, same.body.len()), (304, 0));
    assert!(same.head.contains(&format!("etag: w/{tag}\r\n")));
    assert_eq!(plane.get("/page/page.js", &format!("if-none-match: {tag}\r\n")).await.status, 200);
    assert_eq!(plane.get("/page/nothing.js", "").await.status, 404);
}

#[tokio::test]
async fn the_history_has_what_was_before_anybody_asked_and_then_only_what_is_new() {
    let slos = crate::measure::slo::Slos::new(vec!["fast[model=tiny]: ttft<=300ms".parse().unwrap()]).unwrap();
    let aggregate = aggregate::AggregateSettings { slos: slos.into(), ..aggregate::AggregateSettings::default() };
    let plane =
        start_before(RuntimeSettings { aggregate, ..RuntimeSettings::default() }, Some("http://127.0.0.1:9")).await;
    plane.gauges.set_ready(true);
    plane.gauges.set_upstream(Err("refused".to_owned()));
    let mut open = plane.gauges.add_thread().request("POST");
    open.set_model(Some("tiny"));
    open.set_stream_phase(false);
    let history = async |query: &str| plane.get(&format!("/api/history{query}"), "").await.json();
    let seconds = |reply: &Value| reply["seconds"].as_array().unwrap().clone();
    let requests = |second: &Value| second["figures"]["requests"].as_u64().unwrap_or_default();
    let mut reported = 0;
    // On a stalled machine they could fall into two seconds.
    let (reply, second) = loop {
        (0..4).for_each(|_| plane.reporter.finished(record().into()));
        reported += 4;
        let reply = loop {
            let reply = history("?model=tiny").await;
            if seconds(&reply).iter().map(requests).sum::<u64>() == reported {
                break reply;
            }
            Clock::Monotonic.sleep(Gap::from_millis(50)).await;
        };
        if let Some(second) = seconds(&reply).into_iter().find(|second| requests(second) == 4) {
            break (reply, second);
        }
    };
    let expected = serde_json::json!({
        "open": [1, 1, 0], "requests": 4, "tokens": 24, "ttft": [-19, 4], "itl": [-54, 8, -12, 4, -2, 4],
        "tpot": [-45, 4], "ended": {"done": 4}, "responses": {"2xx": 4},
    });
    assert_eq!(second["figures"], expected);
    assert_eq!((&reply["models"], &reply["models_left_out"]), (&serde_json::json!(["tiny"]), &0.into()));
    assert_eq!((&reply["whole"], &reply["ready"], &reply["simulated"]), (&true.into(), &true.into(), &false.into()));
    let upstream = &reply["upstream"];
    assert_eq!(
        (upstream["url"].as_str(), upstream["state"].as_str()),
        (Some("http://127.0.0.1:9"), Some("unreachable"))
    );
    assert_eq!(upstream["reason"], "refused");
    assert!(upstream["since_unix_ms"].as_u64().unwrap() >= reply["run"].as_u64().unwrap());

    let all = history("").await;
    assert_eq!(seconds(&all).iter().map(requests).sum::<u64>(), reported);
    plane.gauges.set_simulated();
    let next = reply["next"].as_str().unwrap();
    let new = history(&format!("?model=tiny&after={next}")).await;
    assert_eq!((&new["whole"], &new["simulated"]), (&false.into(), &true.into()));
    assert_eq!(seconds(&new).iter().map(requests).sum::<u64>(), 0);
    assert_eq!(new["models"], Value::Null, "they have not changed");
    let (run, _) = next.split_once('-').unwrap();
    for useless in [format!("{run}-99999999"), "1-1".to_owned(), "x".to_owned()] {
        assert_eq!(history(&format!("?after={useless}")).await["whole"], true, "{useless}");
    }
    let stranger = history("?model=nobody").await;
    assert!(seconds(&stranger).iter().all(|second| second["figures"].is_null()));
    // The last two seconds, and those that had ended by then.
    let times = |reply: &Value| -> Vec<u64> {
        seconds(reply).iter().map(|second| second["unix_ms"].as_u64().unwrap()).collect()
    };
    let all = times(&history("").await);
    let until = all[all.len() - 1];
    assert_eq!(times(&history(&format!("?seconds=1&until={until}")).await), [until]);
    assert_eq!(times(&history(&format!("?until={}", all[0])).await), [all[0]]);
    assert_eq!(times(&history("?seconds=2&until=1").await), [0; 0]);
    let reply = history("?seconds=1").await;
    assert_eq!(
        reply["slo_limits"]["fast"],
        serde_json::json!([{"metric": "ttft", "percentile": null, "limit_ms": 300.0}])
    );
    assert_eq!(history("?model=huge").await["slo_limits"], serde_json::json!({}), "it judges another model");
    assert_eq!(reply["instance"]["service.instance.id"].as_str().map(str::len), Some(36));
    let zipped = plane.get("/api/history", "accept-encoding: gzip\r\n").await;
    assert!(zipped.head.contains("content-encoding: gzip\r\n"));
    assert_eq!(serde_json::from_slice::<Value>(&unpacked(&zipped.body)).unwrap()["run"], reply["run"]);
}

#[tokio::test]
async fn a_live_reader_that_does_not_read_is_cut_off() {
    let plane = start(RuntimeSettings::default()).await;
    // Open requests of many models make each event larger than the kernel's and the server's buffers.
    let levels = plane.gauges.add_thread();
    let _open: Vec<_> = (0..2_000)
        .map(|model| {
            let mut open = levels.request("POST");
            open.set_model(Some("tiny"));
            plane.reporter.finished(RequestRecord { shape: shape_of(model), ..record() }.into());
            open
        })
        .collect();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1024).unwrap();
    let mut socket = socket.connect(plane.address).await.unwrap();
    socket.write_all(b"GET /api/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let cut = async {
        // A closed connection answers our bytes with a reset.
        while socket.try_write(b"\r\n").is_ok() {
            (0..100).for_each(|model| {
                plane.reporter.finished(RequestRecord { shape: shape_of(model), ..record() }.into());
            });
            Clock::Monotonic.sleep(Gap::from_millis(200)).await;
        }
    };
    assert!(Clock::Monotonic.timeout(Gap::from_millis(60_000), cut).await.is_some(), "never cut off");
}

fn shape_of(model: usize) -> std::sync::Arc<RequestShape> {
    std::sync::Arc::new(shape(&format!("model-{model:0>200}")))
}

#[tokio::test]
async fn only_reading_is_allowed_and_unknown_paths_are_told() {
    let plane = start(RuntimeSettings::default()).await;
    let posted =
        plane.send("POST /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(posted.status, 405);
    assert!(posted.head.contains("allow: get, head\r\n"));
    let unknown = plane.get("/nothing?here", "").await;
    assert_eq!((unknown.status, unknown.json()["error"].as_str()), (404, Some("no such path")));
    let index = plane.get("/", "").await;
    let index = String::from_utf8(index.body).unwrap();
    assert!(index.contains("\n/metrics      metrics, for Prometheus\n"));
    let paths = unknown.json()["paths"].to_string();
    for path in ["/config", "/log-level"] {
        assert!(!index.contains(path) && !paths.contains(path), "a process without control does not serve {path}");
    }
    let head = plane.send("HEAD /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.head.contains("content-length: "));
}

#[tokio::test]
async fn whoever_has_asked_for_nothing_the_longest_makes_room_for_one_more() {
    let plane = start(RuntimeSettings::default()).await;
    let connect = async || TcpStream::connect(plane.address).await.unwrap();
    let ask = async |socket: &mut TcpStream| {
        socket.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        socket.read(&mut [0; 512]).await.unwrap()
    };
    let mut live = connect().await;
    live.write_all(b"GET /api/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(live.read(&mut [0; 8]).await.unwrap() > 0);
    let (mut scraper, mut silent) = (connect().await, Vec::new());
    for _ in 2..super::MAX_CONNECTIONS {
        silent.push(connect().await);
    }
    assert!(ask(&mut scraper).await > 0);
    for _ in 0..3 {
        assert_eq!(plane.get("/livez", "").await.status, 200);
        silent.push(connect().await);
    }
    for socket in &mut silent[..3] {
        assert_eq!(socket.read(&mut [0]).await.unwrap(), 0, "they were there first");
    }
    assert!(ask(&mut scraper).await > 0 && live.read(&mut [0; 8]).await.unwrap() > 0, "they asked");
}

#[tokio::test]
async fn a_request_that_panics_costs_its_reply_and_not_the_connection() {
    let plane = start(RuntimeSettings::default()).await;
    plane.gauges.set_run_info(RunInfo {
        name: String::new(),
        targets: String::new(),
        planned: None,
        duration: None,
        status: Box::new(|| panic!("a test of what a panic costs")),
    });
    let mut socket = TcpStream::connect(plane.address).await.unwrap();
    let requests = "GET /api/state HTTP/1.1\r\nhost: localhost\r\n\r\n\
        GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    socket.write_all(requests.as_bytes()).await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 500 Internal Server Error\r\n"), "{text}");
    assert!(
        text.contains("\r\n\r\n{\"error\":\"internal error; the log has the panic\"}HTTP/1.1 200 OK\r\n"),
        "{text}"
    );
    assert_eq!(text.matches("x-content-type-options: nosniff\r\n").count(), 2, "{text}");
}

#[tokio::test]
async fn it_stops_when_told() {
    let plane = start(RuntimeSettings::default()).await;
    assert_eq!(plane.get("/livez", "").await.status, 200);
    plane.stop.send(()).unwrap();
    let stopped = Clock::Monotonic.timeout(Gap::from_millis(5_000), plane.task).await;
    stopped.unwrap().unwrap();
    assert!(TcpStream::connect(plane.address).await.is_err());
}
