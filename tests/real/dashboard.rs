//! Every query of the boards, of dashboards/README.md and of the rules, sent to backends with data of real proxies.
//! These are Prometheus with both kinds of histograms, with either, and VictoriaMetrics with OTLP.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::http_client::{get, json as json_of, post};
use super::processes::{self, ChildProcess, SOON, address, until};
use super::promql::{PromQl, Sampled, encoded};
use super::support::client::{Client, chat};
use super::support::upstream::Upstream;
use super::tools;

/// The traffic is there at once; the rest is scrapes, and what the demo's clients do seldom.
const LIMIT: Duration = Duration::from_secs(300);

/// Parts of queries for which 0 is an answer too, with the reason.
const MAY_BE_ZERO: [(&str, &str); 9] = [
    ("queue_depth", "nothing waits for the disk"),
    ("fault=\"proxy\"", "no limit of the proxy is reached"),
    ("vllm:", "the page of a real vLLM is that of an idle one"),
    ("llamacpp:", "the page of a real llama-server is that of an idle one"),
    ("sglang:num_retracted_reqs", "nothing is preempted on the page"),
    ("$run\", gen_ai_request_model=~\"$model\", reason!~", "the server of the run breaks nothing off"),
    ("paused_requests", "nothing is preempted on the page"),
    ("capture_uploads", "no segment of the run closes before its end"),
    ("capture_spool", "no closed segment waits for its upload"),
];

/// Parts of queries that VictoriaMetrics cannot answer here, with the reason.
const NOT_PUSHED: [(&str, &str); 3] = [
    ("=~\"$engine\"", "servers are scraped; they push no metrics"),
    ("label_values({__name__", "servers are scraped; they push no metrics"),
    ("(changes(process_start_time_seconds", "a process that starts anew pushes another series"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// A query as a file has it, and where it is from.
#[derive(Clone, Debug)]
struct Query {
    place: String,
    text: String,
    exemplar: bool,
}

/// The boards' queries, those of their annotations, and those that fill their variables.
fn of_boards() -> Vec<Query> {
    let files = fs::read_dir(root().join("dashboards")).unwrap().map(|entry| entry.unwrap().path());
    let mut queries = Vec::new();
    for path in files.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        let board: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let mut query = |place: &Value, expr: &Value, exemplar: bool| {
            let (board, place) = (board["title"].as_str().unwrap(), place.as_str().unwrap());
            let text = expr.as_str().unwrap().to_owned();
            queries.push(Query { place: format!("{board}: {place}"), text, exemplar });
        };
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                query(&panel["title"], &target["expr"], target["exemplar"] == true);
            }
        }
        for annotation in board["annotations"]["list"].as_array().unwrap().iter().filter(|one| one["expr"].is_string())
        {
            query(&annotation["name"], &annotation["expr"], false);
        }
        for variable in board["templating"]["list"].as_array().unwrap().iter().filter(|one| one["type"] == "query") {
            query(&variable["name"], &variable["query"]["query"], false);
        }
    }
    assert!(queries.len() > 200, "{queries:?}");
    queries
}

/// The queries of dashboards/README.md: lines of its PromQL that are no comments.
fn of_manual() -> Vec<Query> {
    let chapter = read("dashboards/README.md");
    let blocks = chapter.split("\n```promql\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let lines = blocks.flat_map(str::lines).filter(|line| !line.starts_with('#') && !line.is_empty());
    let queries: Vec<Query> = lines.map(|line| other("the manual", line)).collect();
    assert!(queries.len() >= 10, "{queries:?}");
    queries
}

/// The rules' recorded queries; `promtool test rules` tests their alerts.
fn of_rules() -> Vec<Query> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/prometheus/rules.yml")).unwrap();
    let rules = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let recorded = rules.filter(|rule| !rule["record"].is_null());
    recorded.map(|rule| other("the rules", rule["expr"].as_str().unwrap())).collect()
}

fn other(place: &str, text: &str) -> Query {
    Query { place: place.to_owned(), text: text.to_owned(), exemplar: false }
}

/// The alternatives of a query at its outermost level: each generation of a server's names has to answer.
fn alternatives(query: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, byte) in query.bytes().enumerate() {
        match byte {
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth -= 1,
            b' ' if depth == 0 && query[at..].starts_with(" or ") => {
                found.push(&query[start..at]);
                start = at + 4;
            }
            _ => {}
        }
    }
    found.push(&query[start..]);
    found
}

/// Something that answers PromQL, and the queries that it has not answered yet.
struct Backend {
    name: &'static str,
    promql: PromQl,
    silent: Vec<Query>,
}

impl Backend {
    /// A query as Grafana sends it, if every variable but those of jobs and runs is "All".
    fn filled(&self, query: &str) -> String {
        let mut filled = query.replace("$__rate_interval", "20s");
        for name in ["$cluster", "$namespace", "$pod", "$instance", "$model", "$slo", "$engine"] {
            filled = filled.replace(name, ".*");
        }
        // "All" of these is every value.
        for (name, metric, label) in
            [("$job", "streamgauge_proxy_resource_limit", "job"), ("$run", "streamgauge_replay_sent_total", "instance")]
        {
            if filled.contains(name) {
                let values = self.promql.api("query", &format!("count by ({label}) ({metric})"));
                let values = values["result"].as_array().unwrap().iter();
                let values: Vec<&str> = values.filter_map(|one| one["metric"][label].as_str()).collect();
                filled = filled.replace(name, &values.join("|"));
            }
        }
        match filled.strip_prefix("label_values(") {
            None => filled,
            Some(values) => {
                let (metric, label) = values.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
                // Without the label there is one group without a name.
                format!("count by ({label}) ({metric}) unless count({metric})")
            }
        }
    }

    /// True if a query has a number for an answer, other than 0 unless 0 is an answer too.
    fn answers(&self, query: &str) -> bool {
        let zero = MAY_BE_ZERO.iter().any(|(part, _)| query.contains(part));
        self.promql.query(&self.filled(query)).iter().any(|sample| match sample.value {
            Sampled::Number(number) => number.is_finite() && (zero || number != 0.0),
            Sampled::Native(_) => true,
        })
    }

    /// True if an exemplar of the last minutes belongs to a query.
    fn has_exemplar(&self, query: &str) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let query = encoded(&self.filled(query));
        let path = format!("/api/v1/query_exemplars?query={query}&start={}&end={now}", now - 600);
        let answer = json_of(&get(self.promql.addr, &path));
        let series = answer["data"].as_array().unwrap_or_else(|| panic!("{answer}"));
        series
            .iter()
            .flat_map(|one| one["exemplars"].as_array().unwrap())
            .any(|one| one["labels"]["trace_id"].is_string())
    }

    fn ask(&mut self) {
        let mut silent = std::mem::take(&mut self.silent);
        silent.retain(|query| !self.answers(&query.text) || query.exemplar && !self.has_exemplar(&query.text));
        self.silent = silent;
    }
}

/// A server whose responses reason, report the ids of their tokens, or that prompts came from its cache and went to it.
fn reasoning() -> Upstream {
    let answer = |name: &str| {
        let body = read(&format!("tests/data/vectors/{name}.sse"));
        let body = body.replace("\"cached_tokens\":", "\"created_cache_tokens\":1,\"cached_tokens\":");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length";
        format!("{head}: {}\r\n\r\n{body}", body.len())
    };
    let answers =
        ["07_vllm_chat_reasoning", "05_vllm_chat_token_ids_stream_interval", "02_openai_chat_usage_only_last_chunk"];
    let answers = answers.map(answer);
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

/// A key and a certificate in a folder, as arguments of a proxy.
fn certificate(folder: &Path) -> [String; 2] {
    let pair = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let files = [("tls-cert", params.self_signed(&pair).unwrap().pem()), ("tls-key", pair.serialize_pem())];
    files.map(|(name, pem)| {
        let path = folder.join(name);
        fs::write(&path, pem).unwrap();
        format!("--{name}={}", path.display())
    })
}

#[test]
fn every_query_returns_data_of_real_proxies() {
    let _turn = processes::shared_turn();
    let directory = tempfile::tempdir().unwrap();
    let [demo_listen, demo_admin, listen, admin, thinker, thinker_admin] = [(); 6].map(|()| address());
    let [lost_listen, lost_admin, run_admin, nobody] = [(); 4].map(|()| address());
    let victoria = tools::victoria(&directory.path().join("victoria"));

    // Every program pushes its metrics too, with the labels of a place that the scrapes have. Spans go nowhere.
    let telemetry = |job: &str, instance: SocketAddr| {
        let place = format!("job={job},instance={instance},cluster=lab,namespace=models,pod=chat-0");
        vec![
            ("OTEL_RESOURCE_ATTRIBUTES", place),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("http://{}/opentelemetry/v1/metrics", victoria.addr)),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{nobody}/v1/traces")),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1000".to_owned()),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500".to_owned()),
        ]
    };
    // Clients that leave, replies that break off, and an SLO that is missed.
    let newest = |instance| {
        let names = ("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental".to_owned());
        [telemetry("streamgauge", instance), vec![names]].concat()
    };
    let _demo = program(&["demo"], demo_listen, demo_admin, &newest(demo_admin));
    let server = reasoning();
    let upstream = format!("--upstream=http://{}", server.addr);
    let capture = format!("--capture=file://{}", directory.path().join("bucket").display());
    let spool = format!("--capture-spool={}", directory.path().join("spool").display());
    let slos = ["--slo=thinks: ttft<=1s", "--slo=own: ttft<=header"];
    let arguments = ["proxy", &upstream, slos[0], slos[1], "--class=tier=header:x-tier", &capture, &spool];
    let proxy =
        |also: &[&str]| program(&[&arguments[..], also].concat(), listen, admin, &telemetry("streamgauge", admin));
    let before = proxy(&[]);
    // A second proxy of that server, with the newest names.
    let _thinker = program(&["proxy", &upstream], thinker, thinker_admin, &newest(thinker_admin));
    // A proxy that has a certificate, and no server.
    let [tls_cert, tls_key] = certificate(directory.path());
    let dead_upstream = format!("--upstream=http://{nobody}");
    let arguments_of_lost = ["proxy", &dead_upstream, &tls_cert, &tls_key];
    let _lost = program(&arguments_of_lost, lost_listen, lost_admin, &telemetry("streamgauge", lost_admin));
    let _run = ChildProcess::start("streamgauge", Path::new(env!("CARGO_BIN_EXE_streamgauge")), |command| {
        let target = format!("http://{demo_listen}");
        command.args(["load", "--rate", "2", "--duration", "1h", "--no-audit", "--target", &target]);
        command.args(["--slo", "run: ttft<=10s"]).arg(format!("--admin={run_admin}"));
        // Its streams stall, and some of its clients leave.
        command.args(["--header", "x-sim-fault: stall=1200ms@10"]);
        command.args(["--cancel-rate", "10%", "--cancel-after", "2tok"]).envs(telemetry("runs", run_admin));
    });
    let engines = tools::engines();
    let pages = fs::read_dir(root().join("tests/data/server_metrics")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let pages = pages.map(|path| format!("engines={}/{}", engines.addr, path.file_stem().unwrap().to_string_lossy()));

    let mut targets: Vec<String> = pages.collect();
    targets.extend([demo_admin, admin, thinker_admin, lost_admin].map(|admin| admin.to_string()));
    targets.push(format!("runs={run_admin}"));
    let place = ("LABELS", "cluster: lab, namespace: models, pod: chat-0");
    let started = ["both", "classic", "native"]
        .map(|kinds| tools::prometheus_with(&directory.path().join(kinds), &targets, &[place, ("HISTOGRAMS", kinds)]));
    let [both, classic, native] = started.each_ref().map(|tool| PromQl { addr: tool.addr, more: "" });
    // Left alone it holds back what is younger than half a minute.
    let pushed = PromQl { addr: victoria.addr, more: "&latency_offset=1s" };

    let boards = of_boards();
    let without_exemplars: Vec<Query> = boards.iter().map(|query| Query { exemplar: false, ..query.clone() }).collect();
    let generations = boards.iter().filter(|query| query.text.contains("=~\"$engine\""));
    let generations = generations.flat_map(|query| {
        alternatives(&query.text).into_iter().map(|text| other(&query.place, text)).collect::<Vec<_>>()
    });
    let all = [boards.clone(), generations.collect(), of_manual(), of_rules()].concat();
    let mut of_push = without_exemplars.clone();
    of_push.retain(|query| !NOT_PUSHED.iter().any(|(part, _)| query.text.contains(part)));
    let mut backends = [
        Backend { name: "Prometheus", promql: both, silent: all },
        Backend { name: "Prometheus, classic histograms", promql: classic, silent: without_exemplars.clone() },
        Backend { name: "Prometheus, native histograms", promql: native, silent: without_exemplars },
        Backend { name: "VictoriaMetrics, OTLP", promql: pushed, silent: of_push },
    ];

    // It restarts, which the boards show.
    for backend in &backends {
        until("the first life is seen", SOON, || {
            backend.answers(&format!("streamgauge_build_info{{instance=\"{admin}\"}}"))
        });
    }
    drop(before);
    let _proxy = proxy(&[]);
    let body = json!({"model": "thinker", "stream": true, "messages": [{"role": "user", "content": "How deep?"}]});
    let started_at = Instant::now();
    while backends.iter().any(|backend| !backend.silent.is_empty()) {
        if started_at.elapsed() > LIMIT {
            let silent = backends.iter().flat_map(|backend| backend.silent.iter().map(move |query| (backend, query)));
            let silent: Vec<String> =
                silent.map(|(backend, query)| format!("{}: {}: {}", backend.name, query.place, query.text)).collect();
            panic!("without an answer:\n{}", silent.join("\n"));
        }
        for proxy in [listen, thinker] {
            assert_eq!(post(proxy, "/v1/chat/completions", &body).status(), 200);
            // The limit in its header is no number.
            let invalid = chat(&body.to_string()).replacen("\r\n", "\r\nx-slo-ttft-ms: soon\r\n", 1);
            assert_eq!(Client::connect(proxy).send(invalid).response().status(), 200);
        }
        backends.iter_mut().for_each(Backend::ask);
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_query_is_split_at_its_outermost_alternatives() {
    assert_eq!(alternatives("a{x=\" or \"} / (b or c) or sum(d) or e"), ["a{x=\" or \"} / (b or c)", "sum(d)", "e"]);
}
