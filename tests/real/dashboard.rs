//! Every query of the board, of dashboards/README.md and of the rules, asked of a Prometheus that scrapes real proxies at work.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http_client::{get, post};
use super::processes::{self, ChildProcess, SOON, address, until};
use super::promql::{PromQl, Sampled};
use super::support::upstream::Upstream;
use super::tools;

/// The traffic is there at once; the rest is scrapes, and what the demo's clients do seldom.
const LIMIT: Duration = Duration::from_secs(300);

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The values of this key anywhere in there.
fn strings(key: &str, within: &Value, found: &mut Vec<String>) {
    match within {
        Value::Array(items) => items.iter().for_each(|item| strings(key, item, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => found.push(text.clone()),
                    _ => strings(key, value, found),
                }
            }
        }
        _ => {}
    }
}

/// The board's queries as Grafana sends them, and those that fill its variables.
fn of_board() -> Vec<String> {
    let board: Value = serde_json::from_str(&read("dashboards/streamgauge.json")).unwrap();
    let mut queries = Vec::new();
    strings("expr", &board, &mut queries);
    assert!(queries.len() > 40, "{queries:?}");
    for variable in board["templating"]["list"].as_array().unwrap() {
        let Some(values) = variable["query"]["query"].as_str() else { continue };
        let (metric, label) = values.strip_prefix("label_values(").unwrap().split_once(", ").unwrap();
        queries.push(format!("count by ({}) ({metric})", label.strip_suffix(')').unwrap()));
    }
    queries
        .iter()
        .map(|query| {
            [("$__rate_interval", "20s"), ("$model", ".*"), ("$slo", ".*")]
                .iter()
                .fold(query.clone(), |query, (name, value)| query.replace(name, value))
        })
        .collect()
}

/// The queries of dashboards/README.md: lines of its PromQL that are no comments.
fn of_manual() -> Vec<String> {
    let chapter = read("dashboards/README.md");
    let blocks = chapter.split("\n```promql\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let lines = blocks.flat_map(str::lines).filter(|line| !line.starts_with('#') && !line.is_empty());
    let queries: Vec<String> = lines.map(str::to_owned).collect();
    assert!(queries.len() >= 10, "{queries:?}");
    queries
}

/// What the rules record; what they alert on is `promtool test rules`' to try.
fn of_rules() -> Vec<String> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/prometheus/rules.yml")).unwrap();
    let rules = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let recorded = rules.filter(|rule| !rule["record"].is_null());
    recorded.map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect()
}

/// A server whose replies reason, and tell the ids of their tokens.
fn reasoning() -> Upstream {
    let answer = |name: &str| {
        let body = read(&format!("tests/data/vectors/{name}.sse"));
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length";
        format!("{head}: {}\r\n\r\n{body}", body.len())
    };
    let answers = ["07_vllm_chat_reasoning", "05_vllm_chat_token_ids_stream_interval"].map(answer);
    Upstream::start(move |mut conn| {
        let mut answers = answers.iter().cycle();
        while conn.request().is_some() {
            conn.send(answers.next().unwrap());
        }
    })
}

/// Our program with these arguments, ready when its admin port is.
fn program(arguments: &[&str], listen: SocketAddr, admin: SocketAddr, environment: &[(&str, String)]) -> ChildProcess {
    let running = ChildProcess::start("streamgauge", Path::new(env!("CARGO_BIN_EXE_streamgauge")), |command| {
        command.args(arguments).arg(format!("--listen={listen}")).arg(format!("--admin={admin}"));
        command.envs(environment.iter().cloned());
    });
    running.ready(admin, || get(admin, "/livez").status() == 200)
}

/// Whether a query has a number above zero for an answer; that nothing waits is an answer too.
fn tells(promql: &PromQl, query: &str) -> bool {
    let least = if query.contains("queue_depth") { 0.0 } else { f64::MIN_POSITIVE };
    promql.query(query).iter().any(|sample| matches!(sample.value, Sampled::Number(number) if number >= least))
}

#[test]
fn every_query_returns_data_of_real_proxies() {
    let _turn = processes::shared_turn();
    let directory = tempfile::tempdir().unwrap();
    let [demo_listen, demo_admin, listen, admin, run_admin, nobody] = [(); 6].map(|()| address());

    // Clients that leave, replies that break off, an SLO that is missed, and a collector that is not there.
    let demo = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{nobody}")),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1000".to_owned()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500".to_owned()),
        // The other proxy has the names of every day.
        ("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental".to_owned()),
    ];
    let _demo = program(&["demo"], demo_listen, demo_admin, &demo);
    let server = reasoning();
    let upstream = format!("--upstream=http://{}", server.addr);
    let capture = format!("--capture={}", directory.path().join("capture").display());
    let proxy = || program(&["proxy", &upstream, "--slo=thinks: ttft<=1s", &capture], listen, admin, &[]);
    let before = proxy();
    let _run = ChildProcess::start("streamgauge", Path::new(env!("CARGO_BIN_EXE_streamgauge")), |command| {
        let target = format!("http://{demo_listen}");
        command.args(["load", "--rate", "2", "--duration", "1h", "--no-audit", "--target", &target]);
        command.arg(format!("--admin={run_admin}"));
    });

    let prometheus = tools::prometheus(directory.path(), &[demo_admin, admin, run_admin]);
    let promql = PromQl { addr: prometheus.addr, more: "" };

    // It restarts, which the board shows.
    until("the first life is scraped", SOON, || tells(&promql, &format!("up{{instance=\"{admin}\"}}")));
    drop(before);
    let _proxy = proxy();
    let mut silent = [of_board(), of_manual(), of_rules()].concat();
    // Without TLS there is no certificate: tests/proxy/operating_metrics.rs has one.
    silent.retain(|query| !query.contains("streamgauge_tls_certificate_not_after_seconds"));
    let asked = json!({"model": "thinker", "stream": true, "messages": [{"role": "user", "content": "How deep?"}]});
    let begun = Instant::now();
    while !silent.is_empty() {
        assert!(begun.elapsed() < LIMIT, "without an answer:\n{}", silent.join("\n"));
        assert_eq!(post(listen, "/v1/chat/completions", &asked).status(), 200);
        silent.retain(|query| !tells(&promql, query));
        std::thread::sleep(Duration::from_millis(200));
    }
}
