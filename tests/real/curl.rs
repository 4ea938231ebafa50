//! curl, as people use it: what it shows is the same with the proxy between as without.

use std::net::SocketAddr;

use super::compare::assert_same_text;
use super::http_client::curl;
use super::llama::same_each_time;
use super::processes;
use super::program::ProxyProcess;
use super::tools;

const CHAT: &str = r#"{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":30,"temperature":0,"seed":1,"cache_prompt":false,"stream":true}"#;

/// curl's output for a path, with the head.
fn shown(server: SocketAddr, path: &str, arguments: &[&str]) -> String {
    let url = format!("http://{server}{path}");
    let text = curl(&[&["--include", "--header", "Content-Type: application/json"], arguments, &[&url]].concat());
    // Hop-by-hop headers may differ.
    let of_hop = |line: &&str| !line.starts_with("Keep-Alive:") && !line.starts_with("Connection:");
    same_each_time(&text.split_inclusive('\n').filter(of_hop).collect::<String>())
}

/// The body of what curl shows.
fn body(shown: &str) -> &str {
    shown.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn curl_shows_the_same_with_the_proxy_between() {
    let _turn = processes::shared_turn();
    let llama = tools::llama();
    let proxy = ProxyProcess::to(llama.addr);
    // Above a mebibyte curl asks whether it should send the body.
    let large = tempfile::NamedTempFile::new().unwrap();
    let words = "river ".repeat(200_000);
    std::fs::write(large.path(), serde_json::json!({"content": words}).to_string()).unwrap();
    let upload = format!("@{}", large.path().display());
    let expecting = ["--header", "Expect: 100-continue", "--data-binary", &upload];
    let chat = "/v1/chat/completions";
    for (path, arguments, begins) in [
        (chat, &["--no-buffer", "--data", CHAT][..], "HTTP/1.1 200 OK\r\n"),
        (chat, &["--http1.1", "--data", CHAT], "HTTP/1.1 200 OK\r\n"),
        (chat, &["--data", "{"], "HTTP/1.1 400 Bad Request\r\n"),
        ("/v1/models", &["--head"], "HTTP/1.1 200 OK\r\n"),
        ("/v1/models", &["--request", "OPTIONS"], "HTTP/1.1 200 OK\r\n"),
        ("/tokenize", &expecting, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"),
    ] {
        let direct = shown(llama.addr, path, arguments);
        assert!(direct.starts_with(begins), "{path}: {}", &direct[..direct.len().min(200)]);
        assert_same_text(&direct, &shown(proxy.addr, path, arguments), &format!("{path} {arguments:?}"));
    }

    // llama-server has no HTTP/2, and sends chunks to a client of HTTP/1.0, which knows none: there the head is ours.
    let direct = shown(llama.addr, chat, &["--data", CHAT]);
    assert!(body(&direct).ends_with("data: [DONE]\n\n"));
    for (version, begins) in [("--http2-prior-knowledge", "HTTP/2 200 \r\n"), ("--http1.0", "HTTP/1.1 200 OK\r\n")] {
        let proxied = shown(proxy.addr, chat, &[version, "--data", CHAT]);
        assert!(proxied.starts_with(begins), "{}", &proxied[..200]);
        assert!(!proxied.contains("Transfer-Encoding"), "{}", &proxied[..200]);
        assert_same_text(body(&direct), body(&proxied), version);
    }
    proxy.settled(8);
}
