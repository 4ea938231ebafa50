//! Classes of requests, from the client's head and body to labels, SLOs, captured rows and reports.

use serde_json::json;
use streamgauge::trace_file::row::TraceEntry;
use tempfile::TempDir;

use crate::support::captured::{answer, page, proxy, rows, server, until};

const CANARY: &str = "sk-canary-93b1f0";
const CLASSES: &str = "tier=header:x-tier;team=body:metadata.team;tenant=key:sha;inference_objective";
const SLOS: &str = "gold[tier=gold]: ttft<=1h;other[tier=_other]: ttft<=1h";

/// A request with these header lines and this team in its body.
fn request(head: &str, team: &str) -> String {
    let messages = [json!({"role": "user", "content": "hello"})];
    let body = json!({"model": "m", "stream": true, "messages": messages, "metadata": {"team": team}}).to_string();
    let length = body.len();
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{head}\r\n{body}")
}

/// The labels of every series of an instrument, ordered.
fn series(metrics: &str, name: &str) -> Vec<String> {
    let begin = format!("{name}{{");
    let mut series: Vec<_> = metrics.lines().filter(|line| line.starts_with(&begin)).map(str::to_owned).collect();
    series.sort();
    series
}

#[test]
fn a_class_is_a_label_an_slo_selector_and_a_field_of_the_capture() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(3));
    let settings = [("classes", CLASSES), ("slos", SLOS), ("max_class_values", "2")];
    let proxy = proxy(upstream.addr, folder.path(), &settings);
    let key = format!("Authorization: Bearer {CANARY}\r\n");
    for (head, team) in [
        (format!("X-Tier: gold\r\nX-Gateway-Inference-Objective: chat\r\n{key}"), "red"),
        (format!("x-api-key: {CANARY}\r\nx-tier: silver\r\n"), "blue"),
        (String::new(), "green"),
        ("X-Tier: two words\r\n".to_owned(), "red"),
    ] {
        assert_eq!(proxy.client().send(request(&head, team)).response().status(), 200);
    }
    let name = "streamgauge_slo_requests_total";
    until("the requests count", || page(&proxy, "/metrics").matches("result=\"met\",").count() == 2);
    let metrics = page(&proxy, "/metrics");
    drop(proxy);

    let rows = rows(folder.path());
    let of = |row: &TraceEntry, name: &str| row.class.get(name).map(|value| value.to_string());
    let tiers: Vec<_> = rows.iter().map(|row| of(row, "tier")).collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(tiers, [some("gold"), some("silver"), None, some("_other")]);
    let teams: Vec<_> = rows.iter().map(|row| of(row, "team").unwrap()).collect();
    assert_eq!(teams, ["red", "blue", "green", "red"], "a capture has every value");
    assert_eq!(of(&rows[0], "inference_objective"), some("chat"));
    let tenant = of(&rows[0], "tenant").unwrap();
    assert_eq!((tenant.len(), of(&rows[1], "tenant"), of(&rows[2], "tenant")), (16, Some(tenant.clone()), None));

    let met: Vec<_> = series(&metrics, name).into_iter().filter(|line| line.contains("result=\"met\"")).collect();
    let expected = [
        format!(
            "{name}{{gen_ai_request_model=\"m\",slo=\"gold\",result=\"met\",\
             inference_objective=\"chat\",team=\"red\",tenant=\"{tenant}\",tier=\"gold\"}} 1"
        ),
        format!("{name}{{gen_ai_request_model=\"m\",slo=\"other\",result=\"met\",team=\"red\",tier=\"_other\"}} 1"),
    ];
    assert_eq!(met, expected);
    let durations = series(&metrics, "gen_ai_server_request_duration_seconds_count");
    assert!(durations.iter().any(|line| line.contains("team=\"_other\"")), "a third value is above the limit");
    assert!(!metrics.contains("green"));
    let connections = series(&metrics, "http_server_request_duration_seconds_count");
    assert!(connections.iter().all(|line| !line.contains("tier=")), "plain HTTP is not divided: {connections:?}");
    let written = format!("{metrics}{}", serde_json::to_string(&rows).unwrap());
    assert!(!written.contains(CANARY) && !written.contains("two words"));
}

#[test]
fn the_limits_in_a_requests_header_judge_it_live_in_the_capture_and_in_a_report_and_hostile_ones_count() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(3));
    let proxy = proxy(upstream.addr, folder.path(), &[("slos", "request: ttft<=header tpot<=header target=95%")]);
    for head in [
        "X-SLO-TTFT-ms: 3600000\r\nx-slo-tpot-ms: 3600000\r\n",
        "x-llm-d-slo-ttft-ms: 0.001\r\n",
        "x-slo-ttft-ms: -1\r\nx-slo-tpot-ms: 1e9\r\n",
        "",
    ] {
        assert_eq!(proxy.client().send(request(head, "red")).response().status(), 200);
    }
    until("the requests count", || {
        page(&proxy, "/metrics").contains("http_server_request_duration_seconds_count{http_request_method=\"POST\",url_scheme=\"http\",http_route=\"/v1/chat/completions\",http_response_status_code=\"200\"} 4")
    });
    let metrics = page(&proxy, "/metrics");
    drop(proxy);
    let count =
        |labels: &str| format!("streamgauge_slo_requests_total{{gen_ai_request_model=\"m\",slo=\"request\",{labels}}}");
    for line in [
        format!("{} 1", count("result=\"met\"")),
        format!("{} 1", count("result=\"missed\"")),
        "streamgauge_slo_violations_total{gen_ai_request_model=\"m\",slo=\"request\",objective=\"ttft\"} 1".to_owned(),
        "streamgauge_slo_invalid_limits_total{objective=\"ttft\"} 1".to_owned(),
        "streamgauge_slo_invalid_limits_total{objective=\"tpot\"} 1".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    let limits: Vec<_> = rows(folder.path())
        .iter()
        .map(|row| row.slo.as_deref().map_or((None, None), |slo| (slo.ttft, slo.tpot)))
        .collect();
    let hour = Some(3_600_000_000_000);
    assert_eq!(limits, [(hour, hour), (Some(1_000), None), (None, None), (None, None)]);

    let args = ["report", folder.path().to_str().unwrap(), "--slo", "request: ttft<=header tpot<=header", "--json"];
    let report = std::process::Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(args).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let goodput = &report["goodput"][0];
    assert_eq!((&goodput["counted"], &goodput["met"]), (&json!(2), &json!(1)), "{goodput}");
    assert_eq!(goodput["missed"], json!({"ttft": 1}));
}

#[test]
fn without_classes_nothing_of_a_request_becomes_a_label() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(3));
    let proxy = proxy(upstream.addr, folder.path(), &[]);
    proxy.client().send(request("X-Tier: gold\r\n", "red")).response();
    until("the request counts", || page(&proxy, "/metrics").contains("gen_ai_server_request_duration_seconds_count{"));
    assert!(!page(&proxy, "/metrics").contains("gold"));
    drop(proxy);
    assert!(rows(folder.path())[0].class.is_empty());
}
