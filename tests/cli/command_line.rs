//! The command line of the real program: output word by word, exit codes.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The program's result.
#[derive(Debug, PartialEq, Eq)]
struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(args).env_clear().current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Done {
    finish(program(args), b"")
}

fn finish(mut command: Command, stdin: &[u8]) -> Done {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // A program that does not read its stdin may be gone by now.
    child.stdin.take().unwrap().write_all(stdin).ok();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn inspect(args: &[&str], stdin: &[u8]) -> Done {
    finish(
        program(&[&["inspect", "-", "--path=/v1/chat/completions", "--content-type=text/event-stream"], args].concat()),
        stdin,
    )
}

/// An event of a chat stream with that content.
fn chunk(content: &str) -> String {
    let chunk = serde_json::json!({"choices": [{"index": 0, "delta": {"content": content}}]});
    format!("data: {chunk}\n\n")
}

#[test]
fn help_and_version_go_to_stdout_and_teach() {
    let help = run(&["--help"]);
    assert_eq!((help.code, &*help.stderr), (Some(0), ""));
    for verb in ["demo", "proxy", "inspect", "sim", "config", "completions"] {
        assert!(help.stdout.contains(&format!("\n  {verb} ")), "{verb} is not in\n{}", help.stdout);
    }
    assert!(help.stdout.contains("\n    streamgauge proxy --upstream http://127.0.0.1:8000\n"), "{}", help.stdout);
    let first = help.stdout.split("Examples:").nth(1).unwrap();
    assert_eq!(first.lines().nth(2).map(str::trim), Some("streamgauge demo"), "{first}");
    let version = run(&["-V"]);
    assert_eq!(version, Done { code: Some(0), stdout: "streamgauge 0.1.0\n".to_owned(), stderr: String::new() });
    let proxy = run(&["proxy", "--help"]).stdout;
    assert!(proxy.contains("[default: 127.0.0.1:8080]"), "{proxy}");
    assert!(proxy.contains("Every setting is a flag (--upstream-http)"), "{proxy}");
}

/// The verbs that a help lists under "Commands:".
fn verbs_of(help: &str) -> Vec<&str> {
    let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default().lines().take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|verb| !matches!(*verb, "" | "help")).collect()
}

/// The help of a verb on a terminal of eighty columns.
fn help_of(path: &[&str], flag: &str) -> String {
    let mut command = program(&[path, &[flag]].concat());
    command.env("COLUMNS", "80");
    let done = finish(command, b"");
    assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{path:?} {flag}");
    done.stdout
}

#[test]
fn the_short_help_of_every_verb_fits_on_a_screen_and_has_examples() {
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    let mut at = 0;
    while let Some(path) = paths.get(at).cloned() {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let (short, long) = (help_of(&path, "-h"), help_of(&path, "--help"));
        // A usage line is not wrapped by clap, but by the terminal.
        let lines: usize = short.lines().map(|line| line.chars().count().div_ceil(80).max(1)).sum();
        assert!(lines <= 45, "{path:?}: {lines} lines\n{short}");
        assert!(short.len() < long.len(), "{path:?}: -h is not shorter than --help");
        for help in [&short, &long] {
            let examples = help.split("\nExamples:\n").nth(1).unwrap_or_else(|| panic!("{path:?} has no examples"));
            assert!(examples.contains("\n    streamgauge ") || examples.contains("(streamgauge "), "{examples}");
        }
        assert!(short.contains(" --help` has ") && short.contains("`streamgauge help verbs`"), "{path:?}: {short}");
        let below = verbs_of(&long).into_iter().map(|verb| [&path[..], &[verb]].concat());
        paths.extend(below.map(|path| path.into_iter().map(str::to_owned).collect()));
        at += 1;
    }
    let walked = |path: [&str; 2]| paths.iter().any(|walked| *walked == path);
    assert!(walked(["trace", "convert"]) && walked(["config", "schema"]), "{paths:?}");
}

#[test]
fn wrong_usage_ends_with_two_and_nothing_on_stdout() {
    for (args, word) in [
        (&[][..], "Usage: streamgauge"),
        (&["prxy"], "a similar subcommand exists: 'proxy'"),
        (&["proxy", "--lisen=x"], "a similar argument exists: '--listen'"),
        (&["proxy", "--log-format=xml"], "[possible values: text, json]"),
        (&["inspect", "x"], "--path <PATH>"),
    ] {
        let done = run(args);
        assert_eq!((done.code, &*done.stdout), (Some(2), ""), "{args:?}");
        assert!(done.stderr.contains(word), "{}", done.stderr);
    }
}

#[test]
fn check_prints_what_is_in_force_and_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("gauge.yaml"),
        "upstream: http://127.0.0.1:8000\nstall: 500ms\nslos:\n  - 'chat: ttft<=500ms'\n  - 'all: e2e<=1m'\n",
    )
    .unwrap();
    let mut command = program(&["proxy", "--check", "--config=gauge.yaml", "--workers=2", "--access-log"]);
    command.current_dir(folder.path());
    command.env("STREAMGAUGE_STALL", "750ms").env("STREAMGAUGE_DRIAN", "1m");
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret").env("OTEL_TRACES_EXPORTER", "none");
    let stdout = "\
# Streamgauge 0.1.0, configuration 2c321f97e384cde5
listen: 127.0.0.1:8080  # default
admin: 127.0.0.1:9464  # default
admin_hosts: none  # default
admin_tls_cert: null  # default
admin_tls_key: null  # default
admin_tls_client_ca: null  # default
admin_token_file: null  # default
admin_metrics_token_file: null  # default
admin_insecure: false  # default
upstream: http://127.0.0.1:8000  # file gauge.yaml:1
transparent: false  # default
max_destinations: 64  # default
upstream_http: auto  # default
upstream_connect_timeout: 5s  # default
upstream_ca: null  # default
upstream_cert: null  # default
upstream_key: null  # default
upstream_server_name: null  # default
engine_metrics: null  # default
tls_cert: null  # default
tls_key: null  # default
tls_client_ca: null  # default
headers: none  # default
ask_usage: false  # default
workers: 2  # flag --workers
max_head_bytes: 65536  # default
head_timeout: 30s  # default
idle_timeout: 10m  # default
max_streams: 10000  # default
max_connections: 20000  # default
drain: 10m  # default
routes: []  # default
slos:  # file gauge.yaml:3
  - \"chat: ttft<=500ms\"
  - \"all: e2e<=1m\"
classes: []  # default
max_class_values: 20  # default
stall: 750ms  # env STREAMGAUGE_STALL
tokenizers: []  # default
max_models: 64  # default
provider: null  # default
gen_ai_client: true  # default
tail_keep: none  # default
trace_probes: false  # default
capture: null  # default
capture_spool: capture-spool  # default
capture_flush: 1s  # default
capture_round: \"0\"  # default
capture_tokenizer: null  # default
capture_block: 512  # default
capture_key: null  # default
capture_key_rotate: false  # default
capture_session: inferred  # default
capture_names: 1  # default
capture_sample: 100%  # default
capture_format: jsonl  # default
capture_keep_bytes: 10737418240  # default
capture_keep_age: 168h  # default
access_log: true  # flag --access-log
log_format: text  # default
log_level: info  # default
# OTLP metrics: http/protobuf to http://collector:4318/v1/metrics with headers authorization every 1m
# OTLP traces: off by OTEL_TRACES_EXPORTER
# OTLP logs: http/protobuf to http://collector:4318/v1/logs with headers authorization every 1s
# scrape: at most 293939 series and 143697072 bytes of text, if every model of max_models has every route, status and ending (names of 64 bytes)
";
    let stderr =
        "warning: STREAMGAUGE_DRIAN is not a setting and is ignored; did you mean STREAMGAUGE_DRAIN?\n".to_owned();
    assert_eq!(finish(command, b""), Done { code: Some(0), stdout: stdout.to_owned(), stderr });
}

#[test]
fn an_invalid_configuration_exits_with_2_and_reports_every_error() {
    let mut command = program(&["proxy", "--check", "--listen=:80"]);
    command.env("STREAMGAUGE_STALL", "0");
    let stderr = "\
error: the configuration is not valid
  --listen: expected an address and a port, as in 127.0.0.1:8080, or 0.0.0.0:8080 for every interface, found `:80`
  upstream: expected the inference server's URL, as in --upstream http://127.0.0.1:8000, or --transparent for redirected connections
  STREAMGAUGE_STALL: expected a time from 1ms to 24h, as in 30s, found `0`
";
    assert_eq!(finish(command, b""), Done { code: Some(2), stdout: String::new(), stderr: stderr.to_owned() });
}

#[test]
fn check_tries_the_files_that_a_start_would_use() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rubbish"), "{}").unwrap();
    let cannot = "error: cannot set up TLS: ";
    for (settings, expected) in [
        (
            &["--tls-cert=rubbish", "--tls-key=rubbish"][..],
            format!("{cannot}certificate rubbish: no certificate in PEM\n"),
        ),
        (&["--upstream-ca=rubbish"], format!("{cannot}certificate authority rubbish: no certificate in PEM\n")),
        (&["--tokenizer=m=absent"], "error: cannot use absent as the tokenizer of m (--tokenizer): ".to_owned()),
        (&["--tokenizer=m=rubbish"], "error: cannot use rubbish as the tokenizer of m (--tokenizer): ".to_owned()),
        (
            &["--capture=shapes", "--capture-tokenizer=rubbish"],
            "error: cannot use rubbish as the tokenizer of the capture (--capture-tokenizer): ".to_owned(),
        ),
        (
            &["--capture=rubbish/shapes"],
            "error: cannot capture into rubbish/shapes (--capture): it is, or lies in, a file; remedy: ".to_owned(),
        ),
        (
            &["--capture=shapes", "--capture-key=absent"],
            "error: cannot capture into shapes (--capture): the key in absent: No such file".to_owned(),
        ),
    ] {
        let mut command = program(&[&["proxy", "--check", "--upstream=https://127.0.0.1:8000"], settings].concat());
        command.current_dir(folder.path());
        let done = finish(command, b"");
        assert_eq!((done.code, &*done.stdout), (Some(2), ""), "{settings:?}");
        assert!(done.stderr.starts_with(&expected), "{}", done.stderr);
    }
    let mut command = program(&["proxy", "--check", "--upstream=http://127.0.0.1:8000", "--capture=shapes/in"]);
    command.current_dir(folder.path());
    assert_eq!(finish(command, b"").code, Some(0), "a folder that can be made");
    assert!(!folder.path().join("shapes").exists(), "nothing is written");
}

#[test]
fn the_long_version_names_the_build_and_its_target() {
    let Done { code, stdout, stderr } = run(&["--version"]);
    let inner = stdout.strip_prefix("streamgauge 0.1.0 (").and_then(|rest| rest.strip_suffix(")\n")).unwrap();
    let (build, target) = inner.split_once(", ").unwrap();
    let is_commit = build.len() == 12 && build.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Continuous integration builds releases of its checkout, and a developer's tests are no release.
    assert!(is_commit || build == "development build", "{build}");
    assert!(target.starts_with(std::env::consts::ARCH) && target.contains("linux"), "{target}");
    assert_eq!((code, &*stderr), (Some(0), ""));
}

#[test]
fn a_section_of_the_manual_is_a_topic() {
    let printed = run(&["help", "sizing"]);
    let chapter = run(&["help", "deploying"]).stdout;
    assert!(printed.stdout.starts_with("## Sizing and cardinality\n") && chapter.contains(&printed.stdout));
    assert!(printed.stdout.len() < chapter.len() / 2, "{}", printed.stdout);
}

#[test]
fn help_writes_a_manual_page_for_each_verb_and_topic() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert_eq!(run(&["help", "--man", pages.to_str().unwrap()]).code, Some(0));
    let names: Vec<String> =
        std::fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    for name in ["streamgauge.1", "streamgauge-proxy.1", "streamgauge-config-slo.1", "streamgauge-trace-convert.1"] {
        assert!(names.iter().any(|other| other == name), "{name}: {names:?}");
    }
    let page = std::fs::read_to_string(pages.join("streamgauge-proxy.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("\\-\\-max\\-streams"), "{page}");
    let chapter = std::fs::read_to_string(pages.join("streamgauge-metrics.1")).unwrap();
    assert!(chapter.starts_with(".TH streamgauge-metrics 1\n.nf\n# ") && chapter.len() > 10_000, "{chapter}");
    let refused = run(&["help", "--man", "/proc/none"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.starts_with("error: /proc/none: cannot write manual pages: "), "{}", refused.stderr);
}

#[test]
fn a_start_names_version_slos_and_collector_and_a_collector_that_is_not_there() {
    // Bound and not listening: the port refuses connections, and no other program can take it.
    let closed = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    closed.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let nobody = closed.local_addr().unwrap().as_socket().unwrap();
    let mut command = program(&["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--slo=chat: ttft<=1s"]);
    command.arg("--upstream=http://127.0.0.1:9").arg("--slo=whole: e2e<=9s");
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{nobody}"));
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap())).map(Result::unwrap);
    // The control thread tries the collector while the workers start: either line may come first.
    let (mut start, mut warning) = (None, None);
    while start.is_none() || warning.is_none() {
        let line = lines.next().expect("both lines before the end of the log");
        match line {
            line if line.contains("forwarding") => start = Some(line),
            line if line.contains("the OTLP collector cannot be reached") => warning = Some(line),
            _ => {}
        }
    }
    let (start, warning) = (start.unwrap(), warning.unwrap());
    let version = env!("CARGO_PKG_VERSION");
    for part in
        [format!("version=\"{version}\""), "slos=\"chat, whole\"".into(), format!("collector=\"http://{nobody}\"")]
    {
        assert!(start.contains(&part), "{part} in {start}");
    }
    // The first export is a minute away, so the proxy tries the collector at the start.
    assert!(warning.contains(&nobody.to_string()) && warning.contains("Connection refused"), "{warning}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_schema_is_printed() {
    let published = include_str!("../data/config.schema.json");
    assert_eq!(run(&["config", "schema"]), Done { code: Some(0), stdout: published.to_owned(), stderr: String::new() });
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let done = run(&["completions", shell]);
        assert_eq!((done.code, &*done.stderr), (Some(0), ""));
        assert!(done.stdout.contains("upstream-http"), "{shell}");
    }
}

#[test]
fn inspect_shows_a_timeline_and_a_summary() {
    let done = run(&["inspect", "tests/data/vectors/01_openai_chat_basic.sse", "--path=/v1/chat/completions?x=1"]);
    let stdout = "\
event  meaning                                                  as sent
0      names the reply, names the model, only a role: no token  {\"id\":\"chatcmpl-a1\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"demo-8b\",\"choices…
1      first token, evidence, output: text                      …ex\":0,\"delta\":{\"content\":\"River\"},\"logprobs\":null,\"finish_reason\":null}]}
2      text                                                     …ta\":{\"content\":\" stones\"},\"logprobs\":null,\"finish_reason\":null}]}
3      text                                                     …ta\":{\"content\":\".\"},\"logprobs\":null,\"finish_reason\":null}]}
4      finished: stop (stop)                                    …dex\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}
5      end of stream                                            [DONE]

dialect       openai.chat
events        6 (3 with text, 3 that prove a token), 0 comments
first token   event 1: text
last token    event 3
output tokens 3, by the number of events, an estimate
input tokens  not reported
finish        choice 0: stop (stop)
other tools   have another first token; --explain gives the reason: vLLM bench (Rust) event 0
complete      yes
";
    let stderr = "note: taken as text/event-stream by the file's name; --content-type overrides it\n".to_owned();
    assert_eq!(done, Done { code: Some(0), stdout: stdout.to_owned(), stderr });
}

#[test]
fn inspect_as_json_has_the_answer_and_nothing_else() {
    let vectors = "tests/data/vectors";
    let expected: Value =
        serde_json::from_slice(&std::fs::read(format!("{vectors}/59_gzip_sse_sync_flush.expect.json")).unwrap())
            .unwrap();
    let path = format!("--path={}", expected["request"]["path"].as_str().unwrap());
    let body = std::fs::read(format!("{vectors}/{}", expected["vector"].as_str().unwrap())).unwrap();
    let half = body.len() / 2;
    let segments = format!("--segments={half},{}", body.len() - half);
    let args =
        ["inspect", "-", &path, "--json", "--content-encoding=gzip", "--content-type=text/event-stream", &segments];
    let done = finish(program(&args), &body);
    assert_eq!((done.code, &*done.stderr), (Some(0), ""));
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    for (key, value) in answer.as_object().unwrap() {
        assert_eq!(*value, expected[key], "{key}");
    }
}

#[test]
fn inspect_explains_why_a_reply_is_incomplete() {
    let complete = |args: &[&str], stdin: &[u8]| {
        let done = inspect(args, stdin);
        assert_eq!((done.code, &*done.stderr), (Some(0), ""));
        done.stdout.lines().last().unwrap().to_owned()
    };
    let text = chunk("a");
    assert_eq!(
        complete(&[], text.as_bytes()),
        "complete      no: it ends without a finish reason for every choice and without an end mark"
    );
    assert_eq!(
        complete(&["--content-encoding=gzip"], text.as_bytes()),
        "complete      no: the bytes do not follow the Content-Encoding; --content-encoding sets another"
    );
    let huge = chunk(&"x".repeat(1 << 21));
    let segments = format!("--segments=1000,{}", huge.len() - 1000);
    assert_eq!(
        complete(&[&segments], huge.as_bytes()),
        "complete      no: an event is larger than 1 MiB, and nothing after it was read"
    );
    let error = "data: {\"error\":{\"message\":\"out of memory\",\"type\":\"Oom\",\"code\":500}}\n\n";
    let done = inspect(&[], error.as_bytes());
    assert!(done.stdout.contains("\nerror         event 0: out of memory, type Oom, code 500\n"), "{}", done.stdout);
    assert!(done.stdout.ends_with("\ncomplete      no: the server reported an error\n"), "{}", done.stdout);
    let document = finish(program(&["inspect", "-", "--path=/v1/completions"]), b" {\"choices\":[");
    assert_eq!(document.stderr, "note: taken as application/json by its first bytes; --content-type overrides it\n");
    assert!(
        document
            .stdout
            .ends_with("\ncomplete      no: the body is not framed as its content type requires, or not complete\n")
    );
}

#[test]
fn no_stream_can_drive_the_terminal() {
    let hostile = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\u{200b}\r\u{7f}\u{e0041}";
    let raw = format!("event: {hostile}\ndata: {hostile}\n\n");
    let finish = serde_json::json!({"choices": [{"index": 0, "delta": {}, "finish_reason": hostile}]});
    let error = serde_json::json!({"error": {"message": hostile, "type": hostile, "code": hostile}});
    let stream = format!("{raw}{}data: {finish}\n\ndata: {error}\n\n", chunk(hostile));
    let is_harmless = |c: char| c == '\n' || !(c.is_control() || "\u{202e}\u{200b}\u{e0041}".contains(c));
    for args in [&[][..], &["--json"]] {
        let done = inspect(args, stream.as_bytes());
        assert_eq!(done.code, Some(0));
        assert!(done.stdout.chars().all(is_harmless), "{:?}", done.stdout);
        if !args.is_empty() {
            let answer: Value = serde_json::from_str(&done.stdout).unwrap();
            assert_eq!(answer["error"]["message"], hostile, "escaping changes no value");
        }
    }
    let path = format!("--path=/{hostile}");
    let done = finish_quietly(&path);
    assert!(done.stderr.chars().all(is_harmless), "{:?}", done.stderr);
}

fn finish_quietly(path: &str) -> Done {
    finish(program(&["inspect", "-", path, "--content-type=text/plain"]), b"")
}

#[test]
fn an_unknown_path_is_plain_http_and_the_dialects_are_listed() {
    let done = finish_quietly("--path=/v1/models");
    let stderr = "\
note: /v1/models is plain HTTP: forwarded, not understood. Understood are:
  openai.chat (/v1/chat/completions)
  openai.completions (/v1/completions)
  openai.responses (/v1/responses)
  openai.embeddings (/v1/embeddings)
  anthropic.messages (/v1/messages)
  triton.generate (/v2/models/{model}/generate_stream)
  triton.grpc (/inference.GRPCInferenceService/ModelStreamInfer)
  tgi.stream (/generate_stream)
  vllm.generate (/inference/v1/generate)
  ollama.chat (/api/chat)
  ollama.generate (/api/generate)
  llamacpp.completion (/completion)
  gemini (/models/{model}:streamGenerateContent)
  bedrock.converse (/model/{model}/converse-stream)
  bedrock.invoke (/model/{model}/invoke-with-response-stream)
  rerank (/rerank)
  sglang.generate (/generate)
  lmdeploy.generate (/generate)
";
    assert_eq!((done.code, &*done.stderr), (Some(0), stderr));
    assert!(done.stdout.starts_with("dialect       none: plain HTTP\n"), "{}", done.stdout);
    assert!(done.stdout.ends_with("complete      not known: plain HTTP is not understood\n"), "{}", done.stdout);
}

#[test]
fn inspect_fails_on_what_it_cannot_read() {
    let absent = run(&["inspect", "absent.sse", "--path=/v1/completions"]);
    let stderr = "error: cannot read absent.sse: No such file or directory (os error 2)\n".to_owned();
    assert_eq!(absent, Done { code: Some(1), stdout: String::new(), stderr });
    let short = inspect(&["--segments=1,2"], b"data: x\n\n");
    let stderr = "error: --segments add up to 3 bytes, the body has 9\n".to_owned();
    assert_eq!(short, Done { code: Some(1), stdout: String::new(), stderr });
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = program(&["inspect", "-", "--path=/v1/completions", "--content-type=text/event-stream"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"data: [DONE]\n\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_trusted_certificates_one_remedy_is_logged() {
    let nowhere = |args: &[&str]| {
        let mut command = program(&[&["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"], args].concat());
        command.envs([("SSL_CERT_FILE", "/nowhere/file"), ("SSL_CERT_DIR", "/nowhere/folder")]);
        command
    };
    // A proxy starts without its collector; only `--check` reports it beforehand.
    let mut to_collector = nowhere(&["--upstream=http://127.0.0.1:8000", "--check"]);
    to_collector.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318");
    for command in [nowhere(&["--upstream=https://localhost:8000"]), to_collector] {
        let done = finish(command, b"");
        assert_eq!((done.code, &*done.stdout), (Some(2), ""));
        assert_eq!(
            done.stderr,
            "error: cannot set up TLS: the system has no trusted certificates: install ca-certificates, or name a file \
             with --upstream-ca, and for a collector with OTEL_EXPORTER_OTLP_CERTIFICATE\n"
        );
    }
}
