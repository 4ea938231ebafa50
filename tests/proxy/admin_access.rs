//! Access to the admin port: tokens, client certificates, roles, and the pages that a kubelet may read without either.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use streamgauge::config::ConfigSource;
use streamgauge::config::RawSettings;
use streamgauge::proxy::Proxy;

use crate::support::captured::{run_without_capture, until};
use crate::support::client::{Client, Response};
use crate::support::http2::{Pki, client_config, client_config_with_certificate};
use crate::support::privacy::assert_silent;
use crate::support::proxy::TestProxy;
use crate::support::unused_address;
use crate::support::upstream::Upstream;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const FULL: &str = "canary7f3a-full-access";
const METRICS: &str = "canary7f3a-metrics-only";
/// Every path that shows something; `/api/live` never ends.
const PATHS: [&str; 6] = ["/", "/api/state", "/api/history", "/page/page.js", "/nothing", "/api/live?x"];

/// A folder with both tokens, and the settings that name them.
fn tokens() -> (tempfile::TempDir, [String; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, token: &str| {
        let file = folder.path().join(name);
        fs::write(&file, format!("{token}\n")).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let files = [write("full", FULL), write("metrics", METRICS)];
    (folder, files)
}

fn ask(admin: SocketAddr, path: &str, fields: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    Client::connect(admin).send(request).response()
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn a_token_opens_what_its_role_reads_and_nothing_opens_without_one() {
    let (_folder, [full, metrics]) = tokens();
    let settings = [("admin_token_file", &*full), ("admin_metrics_token_file", &metrics)];
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &settings);
    let status = |path: &str, fields: &str| ask(proxy.admin, path, fields).status();
    let basic =
        |password: &str| format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(format!("me:{password}")));
    for fields in [bearer(FULL), bearer(FULL).replace("Bearer", "bearer"), basic(FULL)] {
        assert_eq!((status("/metrics", &fields), status("/api/state", &fields)), (200, 200), "{fields}");
    }
    for fields in [bearer(METRICS), basic(METRICS)] {
        assert_eq!(status("/metrics", &fields), 200, "{fields}");
        for path in PATHS {
            assert_eq!(status(path, &fields), 403, "{path} {fields}");
        }
    }
    let twice = bearer(FULL) + &bearer(FULL);
    let wrong = ["".to_owned(), bearer(""), bearer("wrong"), bearer(&FULL[1..]), bearer(&format!("{FULL}x")), twice];
    for fields in wrong.into_iter().chain([
        basic("wrong"),
        "Authorization: Basic !\r\n".to_owned(),
        bearer(FULL).replace("Bearer", "Digest"),
    ]) {
        for path in PATHS.into_iter().chain(["/metrics"]) {
            let refused = ask(proxy.admin, path, &fields);
            assert_eq!(refused.status(), 401, "{path} {fields}");
            assert!(
                refused.head.contains("\r\nwww-authenticate: Bearer realm=\"streamgauge\"\r\n"),
                "{}",
                refused.head
            );
            assert!(
                refused.head.contains("\r\nwww-authenticate: Basic realm=\"streamgauge\""),
                "a browser asks its user"
            );
            assert_silent(&refused.body, path);
        }
    }
    assert_eq!(status("/api/state", &(bearer(FULL) + "Host: evil.example\r\n")), 421, "a token of another page");
}

#[test]
fn a_probe_needs_no_token_and_learns_no_reason_without_one() {
    let (_folder, [full, _]) = tokens();
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::with(nobody, &[("admin_token_file", &full)]);
    Client::connect(proxy.addr).send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").response();
    assert_eq!(ask(proxy.admin, "/livez", "").status(), 200);
    assert_eq!(ask(proxy.admin, "/livez", &bearer("wrong")).status(), 200);
    until("the upstream is known to be gone", || ask(proxy.admin, "/readyz", "").status() == 503);
    let (without, with) = (ask(proxy.admin, "/readyz", ""), ask(proxy.admin, "/readyz", &bearer(FULL)));
    assert_eq!(without.text(), r#"{"reason":null,"status":"not ready"}"#);
    assert!(with.text().contains(&format!("cannot connect to {nobody}")), "{}", with.text());
}

#[test]
fn tokens_are_read_again_and_an_unusable_file_changes_nothing() {
    let (_folder, [full, _]) = tokens();
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &[("admin_token_file", &full)]);
    let status = |token: &str| ask(proxy.admin, "/metrics", &bearer(token)).status();
    let (old, new) = (FULL, "another-token-of-32-characters-ab");
    // Both at once, while clients change theirs.
    fs::write(&full, format!("{old}\n\n  {new}  \n")).unwrap();
    proxy.renew();
    until("the new token is known", || status(new) == 200);
    assert_eq!(status(old), 200);
    fs::write(&full, new).unwrap();
    proxy.renew();
    until("the old token is forgotten", || status(old) == 401);
    let failed = || {
        let text = ask(proxy.admin, "/metrics", &bearer(new)).text();
        text.contains("streamgauge_reload_success{subject=\"certificates\"} 0\n")
    };
    fs::write(&full, "short").unwrap();
    proxy.renew();
    until("the failure shows", failed);
    assert_eq!(status(new), 200);
}

#[test]
fn a_token_file_that_cannot_be_used_keeps_the_proxy_from_starting_and_is_not_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let many = "0123456789abcdef\n".repeat(17);
    let long = "x".repeat(1_025);
    for (text, problem) in [
        ("", "the token file has 0 tokens; write one token per line"),
        (" \n\n", "the token file has 0 tokens"),
        (&*many, "the token file has 17 tokens"),
        ("0123456789abcdef\ncanary7f3a", "token 2 of the token file is not of 16 to 1024 visible ASCII characters"),
        ("canary7f3a canary7f3a", "token 1 of the token file is not of"),
        (&long, "token 1 of the token file is not of"),
        ("canary7f3a-canary7f3a-é", "token 1 of the token file is not of"),
    ] {
        fs::write(&file, text).unwrap();
        let variables = [("UPSTREAM", "http://127.0.0.1:9"), ("LISTEN", "127.0.0.1:0"), ("ADMIN", "127.0.0.1:0")];
        let token = ("ADMIN_TOKEN_FILE", file.to_str().unwrap());
        let variables = variables.into_iter().chain([token]);
        let variables = variables.map(|(name, value)| (format!("STREAMGAUGE_{name}"), value.to_owned()));
        let loaded = ConfigSource::new(RawSettings::default(), None, variables).load().unwrap();
        let checked = Proxy::check(&loaded.config, &loaded.otlp).unwrap_err().to_string();
        let error = Proxy::start(loaded.config, &loaded.otlp).err().unwrap();
        assert!(error.is_config_error());
        assert_eq!(error.to_string(), checked);
        assert!(checked.starts_with(&format!("admin_token_file: {problem}")), "{checked}");
        assert_silent(&checked, "the error");
    }
}

#[test]
fn a_token_is_in_no_log_and_on_no_page() {
    let (_folder, [full, metrics]) = tokens();
    let files = [format!("--admin-token-file={full}"), format!("--admin-metrics-token-file={metrics}")];
    let mut run =
        run_without_capture(Upstream::answering(OK).addr, &["--log-level=debug", "--access-log", &files[0], &files[1]]);
    for path in PATHS.into_iter().chain(["/metrics", "/livez", "/readyz", "/config", "/log-level"]) {
        if path != "/api/live?x" {
            assert_silent(ask(run.admin, path, &bearer(FULL)).body, path);
        }
        assert_silent(ask(run.admin, path, &bearer("canary7f3a-wrong")).body, path);
    }
    fs::write(&full, "canary7f3a").unwrap();
    until("the unusable file is logged", || run.log().contains("the old ones stay in force"));
    run.terminate();
    assert!(run.log().contains("admin_token_file: token 1 of the token file is not of"), "{}", run.log());
    assert_silent(run.log(), "the log");
}

/// One exchange over TLS; the error of the handshake.
fn ask_tls(admin: SocketAddr, tls: ClientConfig, path: &str, fields: &str) -> std::io::Result<String> {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(tls), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(admin).unwrap());
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

fn is(reply: &str, status: u16) -> bool {
    reply.starts_with(&format!("HTTP/1.1 {status} "))
}

#[test]
fn a_client_certificate_opens_everything_and_a_probe_needs_none() {
    let (pki, strangers) = (Pki::new(), Pki::new());
    let (_folder, [_, metrics]) = tokens();
    let (cert, key, ca) = (pki.text("server.pem"), pki.text("server.key"), pki.text("ca.pem"));
    let settings = [("admin_tls_cert", &*cert), ("admin_tls_key", &key), ("admin_tls_client_ca", &ca)];
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &settings);
    let (known, nobody) = (client_config_with_certificate(&pki, &[]), client_config(&pki, &[]));
    let reply = ask_tls(proxy.admin, known.clone(), "/api/state", "").unwrap();
    assert!(is(&reply, 200) && reply.contains("\"in_flight\""), "{reply}");
    assert!(is(&ask_tls(proxy.admin, nobody.clone(), "/livez", "").unwrap(), 200), "a kubelet has no certificate");
    let refused = ask_tls(proxy.admin, nobody.clone(), "/metrics", &bearer(FULL)).unwrap();
    assert!(is(&refused, 403) && refused.contains("needs a client certificate"), "{refused}");
    assert!(!refused.to_lowercase().contains("www-authenticate"), "no token would help");
    // A certificate of another authority ends the handshake.
    fs::copy(pki.path("ca.pem"), strangers.path("ca.pem")).unwrap();
    let stranger = client_config_with_certificate(&strangers, &[]);
    assert!(ask_tls(proxy.admin, stranger, "/livez", "").is_err());
    // Bytes in clear get no reply.
    let mut clear = TcpStream::connect(proxy.admin).unwrap();
    clear.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let _reset = clear.read_to_end(&mut bytes).is_ok();
    assert!(!bytes.starts_with(b"HTTP/"), "{bytes:?}");
    // HTTP/2 is not negotiated.
    assert!(is(&ask_tls(proxy.admin, client_config(&pki, &["h2", "http/1.1"]), "/livez", "").unwrap(), 200));
    // A certificate or a token suffices.
    let both = TestProxy::with(
        Upstream::answering(OK).addr,
        &[&settings[..], &[("admin_metrics_token_file", &metrics)]].concat(),
    );
    assert!(is(&ask_tls(both.admin, nobody.clone(), "/metrics", &bearer(METRICS)).unwrap(), 200));
    assert!(is(&ask_tls(both.admin, nobody, "/api/state", &bearer(METRICS)).unwrap(), 403));
    assert!(is(&ask_tls(both.admin, known, "/api/state", &bearer(METRICS)).unwrap(), 200));
}

#[test]
fn a_renewed_certificate_of_the_admin_port_is_shown_and_its_end_too() {
    let pki = Pki::new();
    let (cert, key) = (pki.text("server.pem"), pki.text("server.key"));
    let settings = [("admin_tls_cert", &*cert), ("admin_tls_key", &key)];
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &settings);
    let trusted = client_config(&pki, &[]);
    let scrape = ask_tls(proxy.admin, trusted.clone(), "/metrics", "").unwrap();
    assert!(scrape.contains("streamgauge_tls_certificate_not_after_seconds{setting=\"admin_tls_cert\"} "), "{scrape}");
    // From an authority that the client does not trust.
    let other = Pki::new();
    fs::copy(other.path("server.key"), pki.path("server.key")).unwrap();
    fs::copy(other.path("server.pem"), pki.path("server.pem")).unwrap();
    proxy.renew();
    until("the new certificate is shown", || ask_tls(proxy.admin, trusted.clone(), "/livez", "").is_err());
    assert!(is(&ask_tls(proxy.admin, client_config(&other, &[]), "/livez", "").unwrap(), 200));
}
