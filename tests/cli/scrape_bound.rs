//! `proxy --check` prints the most that a scrape can hold.

use std::process::Command;

use crate::support::captured::{page, until};
use crate::support::proxy::TestProxy;
use crate::support::upstream::Upstream;

/// A stream with usage.
const EVENTS: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
const SLO: &str = "chat: ttft<=1s itl.p99<=50ms";
const CLASSES: &str = "tier=header:x-tier;team=header:x-team";

fn upstream() -> Upstream {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream";
    Upstream::answering(format!("{head}\r\nContent-Length: {}\r\n\r\n{EVENTS}", EVENTS.len()))
}

/// The line of `--check` that starts with `begin`, without it.
fn check(settings: &[(&str, &str)], begin: &str) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(["proxy", "--check", "--upstream=http://127.0.0.1:9"]).env_clear();
    command.envs(settings.iter().map(|(key, value)| (format!("STREAMGAUGE_{}", key.to_uppercase()), value)));
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    output.lines().find_map(|line| line.strip_prefix(begin)).map(str::to_owned)
}

fn numbers(line: &str) -> Vec<usize> {
    line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect()
}

/// Series and bytes that `--check` prints.
fn bound(settings: &[(&str, &str)]) -> (usize, usize) {
    let numbers = numbers(&check(settings, "# scrape: at most ").unwrap());
    (numbers[0], numbers[1])
}

/// Series and bytes of a scrape, once it has all of `awaited`.
fn scrape(proxy: &TestProxy, awaited: &[&str]) -> (usize, usize) {
    let mut text = String::new();
    until("every request is exported", || {
        text = page(proxy, "/metrics");
        awaited.iter().all(|part| text.contains(part))
    });
    (text.lines().filter(|line| !line.starts_with('#')).count(), text.len())
}

/// A request of this model, with these header lines.
fn request(model: &str, head: &str) -> String {
    let body = format!("{{\"model\":\"{model}\",\"stream\":true,\"messages\":[]}}");
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n{head}\r\n{body}", body.len())
}

#[test]
fn a_real_scrape_is_within_the_bound_and_the_bound_follows_the_models() {
    let settings = [("slos", SLO), ("max_models", "2")];
    let upstream = upstream();
    let proxy = TestProxy::with(upstream.addr, &settings);
    // One connection: the events of two workers have no order, and "three" could become a model before "two".
    let mut client = proxy.client();
    for model in ["one", "two", "three"] {
        assert_eq!(client.send(request(model, "")).response().status(), 200);
    }
    let (series, bytes) = scrape(&proxy, &["gen_ai_request_model=\"two\"", "gen_ai_request_model=\"_other\""]);
    let (most_series, most_bytes) = bound(&settings);
    assert!(series > 300 && series <= most_series, "{series} of {most_series}");
    assert!(bytes <= most_bytes, "{bytes} of {most_bytes}");
    let of = |models| bound(&[("slos", SLO), ("max_models", models)]).0;
    assert!(of("1") < most_series && most_series < of("64"));
}

#[test]
fn classes_multiply_a_real_scrape_and_the_bound() {
    let plain = [("slos", SLO), ("max_models", "1"), ("max_class_values", "2")];
    let classes = [&plain[..], &[("classes", CLASSES)]].concat();
    let upstream = upstream();
    let proxy = TestProxy::with(upstream.addr, &classes);
    let of = |field: &str, values: [&str; 4]| values.map(|value| format!("{field}: {value}\r\n"));
    for tier in of("x-tier", ["", "gold", "silver", "bronze"]) {
        for team in of("x-team", ["", "red", "blue", "green"]) {
            assert_eq!(proxy.client().send(request("m", &format!("{tier}{team}"))).response().status(), 200);
        }
    }
    let last =
        "streamgauge_slo_output_tokens_total{gen_ai_request_model=\"m\",slo=\"chat\",team=\"_other\",tier=\"_other\"}";
    let (series, bytes) = scrape(&proxy, &[last]);
    let ((most_series, most_bytes), (most_plain, _)) = (bound(&classes), bound(&plain));
    assert!(series <= most_series && bytes <= most_bytes, "{series} of {most_series}, {bytes} of {most_bytes}");
    // One model has about 280 series; each of the 16 combinations has its own.
    assert!(series > 16 * 200 && most_plain < most_series, "{series}, {most_plain} of {most_series}");
}

#[test]
fn check_states_what_classes_cost() {
    let plain = [("max_models", "4")];
    let classes = [("max_models", "4"), ("classes", CLASSES), ("max_class_values", "20")];
    let line = check(&classes, "# classes: ").unwrap();
    assert_eq!(numbers(&line), [484, bound(&classes).0 - bound(&plain).0]);
    assert!(numbers(&line)[1] > 10 * 2_001, "the instruments of streams reach their limit: {line}");
    assert_eq!(check(&plain, "# classes: "), None);
}
