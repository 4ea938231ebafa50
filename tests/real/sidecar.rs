//! The end of a pod of `deploy/kubernetes/sidecar.yaml`: what vLLM waits for before it stops.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::gauge::Gauge;
use super::machine::{self, SOON, until};
use super::parts;
use super::support::client::Client;
use super::talk::request;

/// The script of vLLM's `preStop`, for another admin port, and at once: nobody's clients need to hear of it here.
fn script(admin: u16) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes/sidecar.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(path).unwrap()).unwrap();
    let vllm = &documents[0]["spec"]["template"]["spec"]["containers"][0];
    let script = vllm["lifecycle"]["preStop"]["exec"]["command"][4].as_str().unwrap();
    assert!(script.starts_with("sleep 5;") && script.contains("127.0.0.1:9464/"), "{script}");
    script.replace("sleep 5;", "").replace(":9464/", &format!(":{admin}/"))
}

#[test]
fn a_pod_that_stops_waits_for_its_open_streams_and_no_longer() {
    let _turn = machine::beside();
    let sim = parts::sim(&[]);
    let gauge = Gauge::to(sim.addr);
    let asked = json!({"model": "sim", "stream": true, "messages": [{"role": "user", "content": "How deep?"}]});
    let held = request("/v1/chat/completions", &asked).replacen("\r\n\r\n", "\r\nx-sim-fault: stall=60s@3\r\n\r\n", 1);
    let mut client = Client::connect(gauge.addr);
    client.send(held).head();

    let curl = parts::program("curl");
    let tools = Path::new(curl.get_program()).parent().unwrap().to_owned();
    let mut waiting = Command::new("sh")
        .args(["-c", &script(gauge.admin.port())])
        .env("PATH", format!("{}:/usr/bin:/bin", tools.display()))
        .spawn()
        .unwrap();
    // Long enough for two looks.
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(waiting.try_wait().unwrap().is_none(), "it does not wait for the stream");
    drop(client);
    until("the last stream has ended, and the wait with it", SOON, || waiting.try_wait().unwrap().is_some());
}
