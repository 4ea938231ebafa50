//! A pod of `deploy/kustomize/overlays/vllm`: what vLLM is started with, and what it waits for before it stops.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::http_client::{get_with, post, request};
use super::pod;
use super::processes::{self, SOON, until};
use super::program::{ProxyProcess, sum};
use super::support::client::Client;
use super::tools;

/// The Deployment and the Service.
fn documents() -> Vec<Value> {
    ["overlays/vllm/engine.yaml", "base/service.yaml"].iter().flat_map(|file| read(file)).collect()
}

fn read(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize").join(file);
    serde_saphyr::from_multiple(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The script of vLLM's `preStop`, for another admin port, and at once: no client must notice the stop here.
fn script(admin: u16) -> String {
    let documents = documents();
    let vllm = &documents[0]["spec"]["template"]["spec"]["containers"][0];
    let script = vllm["lifecycle"]["preStop"]["exec"]["command"][4].as_str().unwrap();
    assert!(script.starts_with("sleep 5;") && script.contains("127.0.0.1:9464/"), "{script}");
    script.replace("sleep 5;", "").replace(":9464/", &format!(":{admin}/"))
}

#[test]
fn a_pod_that_stops_waits_for_its_open_streams_and_no_longer() {
    let _turn = processes::shared_turn();
    let sim = tools::sim(&[]);
    let proxy = ProxyProcess::to(sim.addr);
    let body = json!({"model": "sim", "stream": true, "messages": [{"role": "user", "content": "How deep?"}]});
    let held = request("/v1/chat/completions", &body).replacen("\r\n\r\n", "\r\nx-sim-fault: stall=60s@3\r\n\r\n", 1);
    let mut client = Client::connect(proxy.addr);
    client.send(held).head();

    let curl = tools::program("curl");
    let tools = Path::new(curl.get_program()).parent().unwrap().to_owned();
    let mut waiting = Command::new("sh")
        .args(["-c", &script(proxy.admin.port())])
        .env("PATH", format!("{}:/usr/bin:/bin", tools.display()))
        .spawn()
        .unwrap();
    // Long enough for two looks.
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(waiting.try_wait().unwrap().is_none(), "it does not wait for the stream");
    drop(client);
    until("the last stream has ended, and the wait with it", SOON, || waiting.try_wait().unwrap().is_some());
}

/// llm-d-router's `pkg/epp/framework/plugins/datalayer/source/http/client.go`: a GET by Go's client with its own fields,
/// on a connection that it keeps.
#[test]
fn the_scrape_of_an_endpoint_picker_passes_unchanged_and_is_no_inference() {
    const FIELDS: &str = "User-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n";
    let _turn = processes::shared_turn();
    let sim = tools::sim(&[]);
    let proxy = ProxyProcess::with(sim.addr, |command| {
        command.args(["--class=inference_objective", "--slo=chat: ttft<=1s"]);
    });
    let direct = get_with(sim.addr, "/metrics", FIELDS);
    assert!(direct.text().contains("\nvllm:num_requests_waiting{"), "{}", direct.text());
    let mut picker = proxy.client();
    for _ in 0..3 {
        let scrape = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n{FIELDS}\r\n", proxy.addr);
        let passed = picker.send(scrape).response();
        assert_eq!((passed.status(), &passed.body), (200, &direct.body));
        assert_eq!(passed.field("content-type"), direct.field("content-type"));
    }
    let body =
        json!({"model": "sim", "stream": true, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]});
    let routed = "\r\nx-gateway-inference-objective: gold\r\nx-gateway-destination-endpoint: 10.0.0.7:8000\r\n\r\n";
    let chat = request("/v1/chat/completions", &body).replacen("\r\n\r\n", routed, 1);
    assert_eq!(proxy.client().send(chat).response().status(), 200);

    let table = proxy.settled(4);
    let responses = |traffic| sum(&table, "streamgauge_http_responses_total", &[("traffic", traffic)]);
    assert_eq!((responses("other"), responses("inference"), responses("probe")), (3.0, 1.0, 0.0));
    let ended = |labels: &[(&str, &str)]| sum(&table, "streamgauge_stream_terminations_total", labels);
    assert_eq!((ended(&[]), ended(&[("inference_objective", "gold")])), (1.0, 1.0), "of the one stream");
    assert_eq!(sum(&table, "streamgauge_slo_requests_total", &[]), 1.0);
}

/// The picker of the Gateway API Inference Extension, by its own code (`tests/tools/endpoint_picker`).
#[test]
#[ignore = "needs vLLM and Go: tests/run --real"]
fn an_endpoint_picker_reads_vllm_through_the_proxy_as_it_reads_it_directly() {
    const SCRAPES: &str = "20";
    let _turn = processes::shared_turn();
    let vllm = tools::vllm();
    let proxy = ProxyProcess::to(vllm.addr);
    let read = |addr: SocketAddr| {
        let output = tools::program("endpoint-picker").args([&addr.to_string(), SCRAPES]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut state: Value = serde_json::from_slice(&output.stdout).unwrap();
        state.as_object_mut().unwrap().remove("UpdateTime");
        state
    };
    let (direct, passed) = (read(vllm.addr), read(proxy.addr));
    assert_eq!(passed, direct);
    let number = |key: &str| passed[key].as_u64().unwrap_or_else(|| panic!("{key}: {passed}"));
    assert!(number("CacheBlockSize") > 0 && number("CacheNumBlocks") > 0, "{passed}");
    let table = proxy.settled(20);
    assert_eq!(sum(&table, "streamgauge_http_responses_total", &[("traffic", "other")]), 20.0);
    assert_eq!(sum(&table, "streamgauge_http_responses_total", &[]), 20.0);
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn vllm_starts_with_the_environment_that_the_manifest_gives_it() {
    let _turn = processes::shared_turn();
    let mut documents = documents();
    let mut environment = pod::environment(&documents, "vllm");
    // The tiny model is no model of a cache.
    environment.remove("HF_HOME");
    let vllm = tools::vllm_with(&environment).unwrap_or_else(|ended| panic!("{ended}"));
    let proxy = ProxyProcess::to(vllm.addr);
    let body = json!({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "How deep?"}]});
    assert_eq!(post(proxy.addr, "/v1/chat/completions", &body).status(), 200);
    drop(vllm);
    // A Service of vLLM's own name, with service links, is what keeps it from starting.
    documents[1]["metadata"]["name"] = "vllm".into();
    environment.extend(pod::of_services(&documents));
    let ended = tools::vllm_with(&environment).err().unwrap();
    assert!(ended.contains("VLLM_PORT"), "{ended}");
}
