//! Settings that the admin port shows and changes at run time: `/config` and `/log-level`.

use std::fs;

use crate::support::captured::{RunningProxy, run_without_capture, until};
use crate::support::client::{Client, Response};
use crate::support::privacy::assert_silent;
use crate::support::upstream::Upstream;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A request to the log level.
fn request(run: &RunningProxy, method: &str, fields: &str, body: &str) -> Response {
    let length = body.len();
    let head = format!("{method} /log-level HTTP/1.1\r\nHost: localhost:9464\r\nContent-Length: {length}\r\n");
    Client::connect(run.admin).send(format!("{head}Connection: close\r\n{fields}\r\n{body}")).response()
}

fn put(run: &RunningProxy, body: &str) -> u16 {
    request(run, "PUT", "", body).status()
}

fn level(run: &RunningProxy) -> String {
    request(run, "GET", "", "").text()
}

#[test]
fn the_log_level_changes_at_run_time_until_the_configuration_is_loaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gauge.yaml");
    fs::write(&file, "stall: 1s\n").unwrap();
    let run = run_without_capture(Upstream::answering(OK).addr, &[&format!("--config={}", file.display())]);
    let shown = |line: &str| run.page("/config").lines().any(|shown| shown == line);
    assert_eq!(level(&run), r#"{"level":"info"}"#);
    assert!(shown("log_level: info  # default"));
    assert_eq!(put(&run, "error\n"), 200);
    assert_eq!(level(&run), r#"{"level":"error"}"#);
    assert!(shown("log_level: error  # the admin port"), "{}", run.page("/config"));
    // The reload resets the level first, so its own line at `info` is logged.
    fs::write(&file, "stall: 2s\n").unwrap();
    until("the configuration is loaded again", || run.page("/config").contains("\nstall: 2s  # file "));
    until("the level is the configuration's", || level(&run) == r#"{"level":"info"}"#);
    assert!(shown("log_level: info  # default"));
    until("the reload is logged", || run.log().contains("the configuration was loaded again"));
    for (word, status) in [("debug", 200), ("WARN", 200), ("verbose", 400), ("", 400), (&"x".repeat(65), 400)] {
        assert_eq!(put(&run, word), status, "{word}");
    }
    assert_eq!(level(&run), r#"{"level":"warn"}"#, "what is no level changes nothing");
    assert!(run.log().contains("the admin port changed the log level"), "{}", run.log());
}

#[test]
fn settings_that_wait_for_a_restart_are_named_until_the_file_has_their_old_values_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gauge.yaml");
    fs::write(&file, "max_connections: 11\nstall: 1s\n").unwrap();
    let run = run_without_capture(Upstream::answering(OK).addr, &[&format!("--config={}", file.display())]);
    let shown = |line: &str| run.page("/config").lines().any(|shown| shown == line);
    let pending = "# restart pending: the new values of max_connections are not in force";
    assert!(!run.page("/config").contains("restart pending"));
    fs::write(&file, "max_connections: 12\nstall: 2s\n").unwrap();
    until("what can be loaded is", || run.page("/config").contains("\nstall: 2s  # file "));
    assert!(
        shown(pending) && run.page("/config").contains("\nmax_connections: 11  # file "),
        "{}",
        run.page("/config")
    );
    fs::write(&file, "max_connections: 11\nstall: 3s\n").unwrap();
    until("the old value is back", || run.page("/config").contains("\nstall: 3s  # file "));
    assert!(!shown(pending), "{}", run.page("/config"));
}

#[test]
fn a_level_that_is_off_logs_nothing() {
    let run = run_without_capture(Upstream::answering(OK).addr, &[]);
    assert_eq!(put(&run, "error"), 200);
    let lines = || run.log().matches("the admin port changed").count();
    assert_eq!(put(&run, "debug"), 200);
    until("the change to debug is logged", || lines() == 1);
}

#[test]
fn a_page_of_another_site_changes_nothing() {
    let run = run_without_capture(Upstream::answering(OK).addr, &[]);
    for fields in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://localhost:1\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\nOrigin: http://localhost:9464\r\n",
    ] {
        assert_eq!(request(&run, "PUT", fields, "debug").status(), 403, "{fields}");
        assert_eq!(request(&run, "POST", fields, "debug").status(), 403, "a form sends no other method: {fields}");
    }
    let preflight =
        request(&run, "OPTIONS", "Origin: http://evil.example\r\nAccess-Control-Request-Method: PUT\r\n", "");
    assert_eq!(preflight.status(), 405);
    assert!(!preflight.head.to_lowercase().contains("access-control-allow"), "{}", preflight.head);
    for method in ["POST", "PATCH", "DELETE"] {
        assert_eq!(request(&run, method, "", "debug").status(), 405, "{method}");
    }
    assert_eq!(level(&run), r#"{"level":"info"}"#);
    for fields in ["Sec-Fetch-Site: same-origin\r\nOrigin: http://localhost:9464\r\n", "Sec-Fetch-Site: none\r\n"] {
        assert_eq!(request(&run, "PUT", fields, "debug").status(), 200, "{fields}");
    }
}

#[test]
fn the_configuration_in_force_names_each_origin_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (file, token) = (folder.path().join("gauge.yaml"), folder.path().join("token"));
    fs::write(&token, "canary7f3a-of-a-token-file").unwrap();
    fs::write(&file, format!("stall: 2s\nadmin_metrics_token_file: {}\n", token.display())).unwrap();
    let under = [
        "env",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:9/v1/traces?token=canary7f3a",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://user:canary7f3a@127.0.0.1:9/v1/metrics",
        "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20canary7f3a",
        "STREAMGAUGE_DRAIN=3m",
    ];
    let full = folder.path().join("full");
    fs::write(&full, "canary7f3a-of-the-full-role").unwrap();
    let arguments = [format!("--config={}", file.display()), format!("--admin-token-file={}", full.display())];
    let run = crate::support::captured::run_under(
        &under,
        Upstream::answering(OK).addr,
        &folder.path().join("capture"),
        &[&arguments[0], &arguments[1], "--slo=chat: ttft<=1s"],
    );
    let config = |token: &str| {
        let head = "GET /config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer ";
        Client::connect(run.admin).send(format!("{head}{token}\r\n\r\n")).response()
    };
    assert_eq!(config("canary7f3a-of-a-token-file").status(), 403, "the role of /metrics sees no settings");
    let shown = config("canary7f3a-of-the-full-role");
    assert!(shown.head.contains("content-type: text/plain"), "{}", shown.head);
    let text = shown.text();
    for line in [
        format!("stall: 2s  # file {}:1", file.display()),
        "drain: 3m  # env STREAMGAUGE_DRAIN".to_owned(),
        format!("admin_token_file: {}  # flag --admin-token-file", full.display()),
        "# OTLP traces: http/protobuf to http://127.0.0.1:9/v1/traces with headers authorization".to_owned(),
    ] {
        assert!(text.lines().any(|shown| shown.starts_with(&line)), "{line} in {text}");
    }
    assert_silent(&text, "/config");
    // A setting that needs a restart is shown as it is in force, with the place where that value came from.
    let changed = format!("stall: 3s\nadmin_metrics_token_file: {}\nmax_connections: 7\n", token.display());
    fs::write(&file, changed).unwrap();
    let now = || config("canary7f3a-of-the-full-role").text();
    until("the rest is in force", || now().contains("\nstall: 3s  # file "));
    assert!(now().contains("\nmax_connections: 20000  # default\n"), "{}", now());
}
