//! `streamgauge top`: instances of every state in one table, worst first.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::captured::until;
use crate::support::client::chat;
use crate::support::http2::Pki;
use crate::support::proxy::TestProxy;
use crate::support::unused_address;
use crate::support::upstream::Upstream;

const TOKEN: &str = "canary7f3a-of-the-full-role";

fn top(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.arg("top").args(arguments).env_clear().stdin(Stdio::null()).output().unwrap()
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    serde_json::from_slice(&top(&[&["--once", "--json"], arguments].concat()).stdout).unwrap()
}

/// A server that answers one chunk of text, or 500 to a request for the model `broken`.
pub(super) fn server() -> Upstream {
    Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            if body.contains("broken") {
                conn.send("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n");
                continue;
            }
            conn.send(crate::support::captured::HEAD);
            conn.chunk(crate::support::captured::event("a"));
            conn.chunk("data: [DONE]\n\n");
            conn.send("0\r\n\r\n");
        }
    })
}

pub(super) fn ask(proxy: &TestProxy, model: &str) {
    let body = format!(r#"{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"x"}}]}}"#);
    proxy.client().send(chat(&body)).response();
}

#[test]
fn the_worst_instance_comes_first_and_each_says_why() {
    let upstream = server();
    let (_held, nobody) = unused_address();
    let good = TestProxy::with(upstream.addr, &[("slos", "chat: ttft<=1h")]);
    let (slow, failing) =
        (TestProxy::with(upstream.addr, &[("slos", "chat: ttft<=1ns")]), TestProxy::new(upstream.addr));
    let names = [&good, &slow, &failing].map(|proxy| proxy.admin.to_string());
    let unused = nobody.to_string();
    let addresses = [&*names[0], &names[1], &names[2], &unused];
    // The window is ten seconds, so requests are sent until one table shows all of them.
    let mut shown = Vec::new();
    until("a window has the requests of all", || {
        ask(&good, "tiny");
        ask(&slow, "tiny");
        ask(&failing, "broken");
        shown = rows(&addresses);
        shown.len() == 4 && shown.iter().filter(|row| row["reason"].is_null()).count() == 1
    });
    let statuses: Vec<_> = shown.iter().map(|row| (row["instance"].as_str(), row["status"].as_str())).collect();
    let expected = [(&*unused, "bad"), (&names[2], "bad"), (&names[1], "warning"), (&names[0], "ok")];
    assert_eq!(statuses, expected.map(|(instance, status)| (Some(instance), Some(status))));
    assert!(shown[0]["reason"].as_str().unwrap().starts_with("cannot connect: Connection refused"), "{shown:?}");
    assert!(shown[0]["figures"].is_null());
    assert!(shown[1]["figures"]["failures"]["upstream"].as_u64() > Some(0), "{shown:?}");
    assert_eq!(
        (&shown[2]["reason"], &shown[2]["figures"]["goodput"]["chat"]),
        (&"chat is below 99 %".into(), &0.0.into())
    );
    assert_eq!((&shown[3]["model"], &shown[3]["figures"]["goodput"]["chat"]), (&"tiny".into(), &1.0.into()));
    assert!(shown[3]["figures"]["ttft_ms"]["p99"].as_f64() > Some(0.0) && shown[3]["upstream"] == "reachable");
    let table = top(&[&["--once"], &addresses[..]].concat());
    let text = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.status.code(), Some(1), "an instance cannot be read");
    assert!(text.lines().nth(1).unwrap().starts_with(&format!("✗  {unused} ")) && !text.contains('\u{1b}'), "{text}");
    assert_eq!(top(&["--once", &names[0]]).status.code(), Some(0));
}

#[test]
fn the_row_of_all_models_has_the_sessions_of_the_capture() {
    let (upstream, folder) = (server(), tempfile::tempdir().unwrap());
    let capture = folder.path().join("capture").display().to_string();
    let proxy = TestProxy::with(upstream.addr, &[("slos", "chat: ttft<=1h"), ("capture", &capture)]);
    let address = proxy.admin.to_string();
    let mut shown = Vec::new();
    until("a window has both models, and a session has ended its first turn", || {
        ask(&proxy, "one");
        ask(&proxy, "two");
        shown = rows(&[&address]);
        shown.len() == 3 && shown.iter().any(|row| row["sessions"].is_object())
    });
    let (all, of_models): (Vec<_>, Vec<_>) = shown.iter().partition(|row| row["model"].is_null());
    assert!(all[0]["sessions"]["count"].as_u64() > Some(0), "{shown:?}");
    assert_eq!(all[0]["sessions"]["goodput"], serde_json::json!({"chat": 1.0}), "every request met the SLO");
    assert!(of_models.len() == 2 && of_models.iter().all(|row| row["sessions"].is_null()), "{shown:?}");
}

#[test]
fn a_protected_instance_is_read_with_the_token_and_its_authority() {
    let (pki, folder) = (Pki::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let file = file.to_str().unwrap();
    let (cert, key, ca) = (pki.text("server.pem"), pki.text("server.key"), pki.text("ca.pem"));
    let settings = [("admin_token_file", file), ("admin_tls_cert", &*cert), ("admin_tls_key", &key)];
    let proxy = TestProxy::with(server().addr, &settings);
    let url = format!("https://{}", proxy.admin);
    let reason = |arguments: &[&str]| {
        let rows = rows(&[&[&*url], arguments].concat());
        (rows[0]["status"] == "ok", rows[0]["reason"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(reason(&["--ca", &ca, "--token-file", file]), (true, String::new()));
    assert_eq!(reason(&["--ca", &ca]), (false, "answered 401: it asks for a token".to_owned()));
    let other = Pki::new();
    let (ok, why) = reason(&["--ca", &other.text("ca.pem"), "--token-file", file]);
    assert!(!ok && why.contains("--ca names the certificates to trust"), "{why}");
}

#[test]
fn an_address_that_is_no_admin_port_is_a_row_and_a_wrong_command_line_is_an_error() {
    let html = Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let rows = rows(&[&html.addr.to_string()]);
    assert_eq!(rows[0]["reason"], "the reply is not that of an admin port");
    let outcome_of = |arguments: &[&str]| {
        let output = top(arguments);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, stderr) = outcome_of(&["127.0.0.1:9"]);
    assert!(
        code == Some(2) && stderr.ends_with("is no terminal, where the table could update; remedy: --once\n"),
        "{stderr}"
    );
    let (code, stderr) = outcome_of(&["--once", "http://u:canary7f3a@127.0.0.1"]);
    assert!(code == Some(2) && !stderr.contains("canary7f3a"), "{stderr}");
    let (code, stderr) = outcome_of(&["--once", "--token-file", "canary7f3a", "127.0.0.1:9"]);
    assert!(
        code == Some(2) && stderr.contains("--token-file: cannot read") && !stderr.contains("canary7f3a"),
        "{stderr}"
    );
}
