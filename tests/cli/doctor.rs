//! `streamgauge doctor` and `proxy --check --strict`.

use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::s3::S3Server;
use crate::support::upstream::Upstream;

/// Runs the program with only these variables.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(arguments).env_clear().envs(variables.iter().copied()).output().unwrap()
}

/// The exit code, and (status, evidence, remedy) of each finding by its check.
fn findings(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, Vec<[String; 4]>) {
    let output = run(&[&["doctor", "--json"], arguments].concat(), variables);
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let row = |finding: &Value| ["check", "status", "evidence", "remedy"].map(|key| text(finding, key));
    (output.status.code().unwrap(), list.iter().map(row).collect())
}

fn finding<'a>(found: &'a [[String; 4]], check: &str) -> [&'a str; 3] {
    let [_, rest @ ..] = found.iter().find(|row| row[0] == check).unwrap_or_else(|| panic!("{check}: {found:?}"));
    rest.each_ref().map(String::as_str)
}

/// A server that takes connections, and its URL.
fn server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

const FREE: [&str; 2] = ["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"];

#[test]
fn a_machine_on_which_everything_can_be_reached_has_no_problem() {
    let ((_server, upstream), (_collector, collector)) = (server(), server());
    let arguments = [&FREE[..], &["--upstream", &upstream]].concat();
    let (code, found) = findings(&arguments, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector)]);
    assert_eq!(code, 0, "{found:?}");
    assert_eq!(finding(&found, "upstream")[..2], ["ok", &*format!("{upstream} accepts connections")]);
    assert_eq!(finding(&found, "collector")[..2], ["ok", &*format!("{collector} accepts connections")]);
    assert_eq!(finding(&found, "listen")[0], "ok");
    for check in ["configuration", "descriptors", "cpu limit", "huge pages", "rtprio", "time stamps", "admin"] {
        let [status, evidence, remedy] = finding(&found, check);
        assert!(!evidence.is_empty() && (status != "warning" || !remedy.is_empty()), "{check}: {found:?}");
    }
}

#[test]
fn what_cannot_be_reached_is_a_problem_with_a_remedy_and_exit_code_1() {
    let arguments = [&FREE[..], &["--upstream=http://127.0.0.1:9"]].concat();
    let endpoint = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
    let (code, found) = findings(&arguments, &endpoint);
    let refused = "cannot connect to http://127.0.0.1:9: Connection refused (os error 111)";
    let remedy = "start the inference server, or correct upstream";
    assert_eq!((code, finding(&found, "upstream")), (1, ["problem", refused, remedy]));
    assert_eq!(finding(&found, "collector")[..2], ["problem", refused]);
    let text = run(&[&["doctor"], &arguments[..]].concat(), &endpoint);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(&format!("✗ problem  upstream        {refused}\n")), "{text}");
    assert!(text.contains(&format!("  remedy: {remedy}\n")), "{text}");
}

#[test]
fn a_collectors_port_of_the_other_protocol_is_a_warning_also_for_a_strict_check() {
    let (_server, upstream) = server();
    let arguments = [&FREE[..], &["--upstream", &upstream]].concat();
    let warned = |variables: &[(&str, &str)]| {
        let (_, found) = findings(&arguments, variables);
        let warning = found.into_iter().find(|row| row[0] == "configuration" && row[1] == "warning");
        let strict = run(&[&["proxy", "--check", "--strict"], &arguments[..]].concat(), variables);
        assert_eq!(strict.status.code(), Some(if warning.is_some() { 2 } else { 0 }));
        warning.map(|row| row[2].clone()).unwrap_or_default()
    };
    let (endpoint, protocol) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL");
    let http = warned(&[(endpoint, "http://127.0.0.1:4317")]);
    let expected = "the OTLP endpoint http://127.0.0.1:4317 has the port of grpc, and the protocol is http/protobuf; \
                    remedy: OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or the other port";
    assert_eq!(http, expected);
    assert!(
        warned(&[(endpoint, "http://127.0.0.1:4318"), (protocol, "grpc")]).contains("has the port of http/protobuf")
    );
    assert_eq!(warned(&[(endpoint, "http://127.0.0.1:4317"), (protocol, "grpc")]), "");
}

#[test]
fn the_page_of_the_engines_metrics_is_read() {
    use std::io::{Read as _, Write as _};
    let ((_server, upstream), (page, url)) = (server(), server());
    let answers = std::thread::spawn(move || {
        let (mut socket, _) = page.accept().unwrap();
        let _read = socket.read(&mut [0; 4_096]).unwrap();
        let text = "vllm:num_requests_waiting 3\nvllm:num_requests_running 2\n";
        write!(socket, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len()).unwrap();
    });
    let found = |url: &str| findings(&[&FREE[..], &["--upstream", &upstream, "--engine-metrics", url]].concat(), &[]).1;
    assert_eq!(finding(&found(&url), "engine metrics"), ["ok", &*format!("{url}/metrics has 2 known figures"), ""]);
    answers.join().unwrap();
    let down = found("http://127.0.0.1:9/stats");
    let refused = "http://127.0.0.1:9/stats: cannot connect: Connection refused (os error 111)";
    assert_eq!(finding(&down, "engine metrics")[..2], ["warning", refused]);
    assert!(finding(&down, "engine metrics")[2].contains("correct engine_metrics"), "{down:?}");
}

/// Answers every request with this, and keeps their heads.
fn storage(status: u16, body: &str) -> Upstream {
    let head = format!("HTTP/1.1 {status} S\r\nContent-Type: application/xml\r\nContent-Length: {}", body.len());
    Upstream::answering(format!("{head}\r\n\r\n{body}"))
}

#[test]
fn the_bucket_of_the_capture_is_only_listed_and_a_refusal_to_list_is_a_warning() {
    let (_server, upstream) = server();
    let bucket = |storage: &Upstream| {
        let endpoint = format!("http://{}", storage.addr);
        let arguments = [&FREE[..], &["--upstream", &upstream, "--capture=s3://bucket/prefix"]].concat();
        let (code, found) = findings(&arguments, &S3Server::variables(&endpoint, "canary7f3a"));
        assert!(!format!("{found:?}").contains("canary7f3a"), "{found:?}");
        (code, finding(&found, "bucket").map(str::to_owned))
    };
    let empty = "<ListBucketResult><Name>bucket</Name><Prefix>prefix/</Prefix><KeyCount>0</KeyCount>\
                 <IsTruncated>false</IsTruncated></ListBucketResult>";
    let open = storage(200, empty);
    let listed = ["ok", "s3://bucket/prefix answers, and its objects may be listed", ""].map(str::to_owned);
    assert_eq!(bucket(&open), (0, listed));
    let heads = open.heads();
    assert_eq!(heads.len(), 1, "{heads:?}");
    let target = heads[0].split(' ').nth(1).unwrap();
    assert!(
        heads[0].starts_with("GET ") && target.starts_with("/bucket?") && target.contains("list-type=2"),
        "{heads:?}"
    );
    assert!(target.contains("prefix=prefix%2F"), "{heads:?}");
    let denied = storage(403, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>");
    let (code, [status, evidence, remedy]) = bucket(&denied);
    assert_eq!(
        (code, &*status, &*evidence),
        (0, "warning", "s3://bucket/prefix answers, and its objects may not be listed")
    );
    assert_eq!(remedy, "none if the credentials may put and get objects; else allow it in the bucket's policy");
    let gone = storage(404, "<Error><Code>NoSuchBucket</Code><Message>no</Message></Error>");
    let (code, [status, evidence, remedy]) = bucket(&gone);
    assert_eq!((code, &*status), (1, "problem"));
    assert_eq!(evidence, "s3://bucket/prefix: there is no such object or bucket (NoSuchBucket)");
    assert_eq!(remedy, "correct capture, or the credentials in the environment");
}

#[test]
fn a_port_in_use_and_an_open_admin_port_are_warnings() {
    let ((_server, upstream), (_other, other)) = (server(), server());
    let listen = format!("--listen={}", other.trim_start_matches("http://"));
    let open = ["--upstream", &upstream, &listen, "--admin=0.0.0.0:0", "--admin-insecure"];
    let (code, found) = findings(&open, &[]);
    let [status, evidence, remedy] = finding(&found, "listen");
    assert!(status == "warning" && evidence.ends_with(" is in use") && remedy.contains("change listen"), "{found:?}");
    let [status, evidence, remedy] = finding(&found, "admin");
    assert!(evidence.contains("has no access control") && remedy.contains("admin_token_file"), "{found:?}");
    assert_eq!((code, status), (0, "warning"));
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let (_, found) = findings(&[&open[..4], &["--admin-token-file", token.to_str().unwrap()]].concat(), &[]);
    let [status, evidence, _] = finding(&found, "admin");
    assert!(status == "ok" && evidence.ends_with("asks for a token or a client certificate"), "{found:?}");
}

#[test]
fn an_invalid_configuration_does_not_hide_the_state_of_the_machine() {
    let (code, found) = findings(&["--slo=chat: speed<=1s"], &[]);
    let [status, evidence, _] = finding(&found, "configuration");
    assert!(code == 1 && status == "problem" && evidence.contains("--upstream") && evidence.contains("--slo"));
    assert!(!finding(&found, "descriptors")[1].is_empty());
    assert!(found.iter().all(|row| row[0] != "upstream"));
    assert_eq!(run(&["doctor", "--nonsense"], &[]).status.code(), Some(2));
}

#[test]
fn credentials_of_the_exporter_are_in_no_finding() {
    let (_server, upstream) = server();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:canary7f3a@127.0.0.1:9/?token=canary7f3a"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20canary7f3a,x-canary7f3a=%zz"),
    ];
    let arguments = [&FREE[..], &["--upstream", &upstream]].concat();
    for more in [&["doctor"][..], &["doctor", "--json"]] {
        let output = run(&[more, &arguments].concat(), &variables);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("OTEL_EXPORTER_OTLP") && !text.contains("canary7f3a"), "{text}");
    }
}

#[test]
fn a_strict_check_fails_on_a_warning_and_a_plain_one_does_not() {
    let check = |more: &[&str]| {
        let arguments = [&["proxy", "--check", "--upstream=http://127.0.0.1:9"], more].concat();
        run(&arguments, &[("STREAMGAUGE_NONSENSE", "1")])
    };
    assert_eq!(check(&[]).status.code(), Some(0));
    let strict = check(&["--strict"]);
    let stderr = String::from_utf8(strict.stderr).unwrap();
    assert_eq!((strict.status.code(), strict.stdout.is_empty()), (Some(2), true));
    assert!(stderr.contains("STREAMGAUGE_NONSENSE") && stderr.contains("error: --strict: "), "{stderr}");
    let clean = run(&["proxy", "--check", "--strict", "--upstream=http://127.0.0.1:9"], &[]);
    assert_eq!(clean.status.code(), Some(0));
    assert_eq!(run(&["proxy", "--strict", "--upstream=http://127.0.0.1:9"], &[]).status.code(), Some(2));
}
