//! `streamgauge demo`: the figures on the screen are those of its own run.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use streamgauge::clock::Clock;
use streamgauge::measure::time::Gap;

use crate::support::client::{Client, chat};

pub(crate) const FREE_PORTS: [&str; 2] = ["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"];

/// A demo that runs.
pub(crate) struct Demo {
    child: Child,
    stdout: ChildStdout,
    stderr: BufReader<Box<dyn Read>>,
    /// Output so far.
    log: String,
}

/// A demo's result.
pub(crate) struct Done {
    code: Option<i32>,
    pub(crate) stdout: String,
    stderr: String,
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.arg("demo").args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn start(args: &[&str]) -> Demo {
    let mut child = program(args).spawn().unwrap();
    let stderr = child.stderr.take().unwrap();
    Demo::of(child, Box::new(stderr))
}

impl Demo {
    fn of(mut child: Child, stderr: Box<dyn Read>) -> Self {
        let stdout = child.stdout.take().unwrap();
        Self { child, stdout, stderr: BufReader::new(stderr), log: String::new() }
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it has ended; it said:\n{}", self.log);
        self.log += &line;
        line
    }

    /// The first line to come that has `part`.
    fn until(&mut self, part: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Where clients connect and where metrics are.
    pub(crate) fn addresses(&mut self) -> [SocketAddr; 2] {
        ["  proxy ", "  metrics "].map(|name| {
            let line = self.until(name);
            let (_, rest) = line.split_once("http://").unwrap();
            rest[..rest.find([',', '/']).unwrap()].parse().unwrap()
        })
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn end(mut self) -> Done {
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        let code = self.child.wait().unwrap().code();
        // A terminal whose other side is gone is an error to read from.
        let mut rest = Vec::new();
        self.stderr.read_to_end(&mut rest).ok();
        Done { code, stdout, stderr: self.log + &String::from_utf8(rest).unwrap() }
    }
}

/// One scrape; `None` without a listener.
fn scrape(admin: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(admin).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.contains("process_start_time_seconds").then_some(text)
}

/// The sum of all samples of a series.
fn sum(scrape: &str, name: &str, label: &str) -> u64 {
    let of_series = scrape.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    of_series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// A request for so many tokens, a hundred a second and no fewer.
fn endless(tokens: u32) -> String {
    let body = json!({
        "model": "sim-chat", "stream": true, "ignore_eos": true, "max_tokens": tokens,
        "messages": [{"role": "user", "content": "x"}],
    });
    chat(&body.to_string())
}

#[test]
fn the_summary_agrees_with_a_scrape() {
    let mut demo = start(&[&FREE_PORTS[..], &["--for=3s", "--json"]].concat());
    let [proxy, admin] = demo.addresses();
    // One of our own is open when it stops asking, so that there is time to look.
    let mut client = Client::connect(proxy);
    client.send(endless(350)).head();
    demo.until("stopping: ");
    // No request follows: the number of all, ended and open, is final. One that ends during a scrape can be in neither of
    // its numbers.
    let scrapes: Vec<String> = std::iter::from_fn(|| scrape(admin)).collect();
    let last = scrapes.last().unwrap();
    let done = demo.end();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let summary: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(summary["simulated"], true);
    let count = |of: &Value, key: &str| of[key].as_u64().unwrap();
    let all = &summary["all"];
    let ended = |scrape: &str, label: &str| sum(scrape, "gen_ai_server_request_duration_seconds_count", label);
    let most = |label: &str| {
        let all = |scrape: &String| ended(scrape, label) + sum(scrape, "http_server_active_requests", "");
        scrapes.iter().map(all).max().unwrap()
    };
    let requests = count(all, "requests");
    let bounds = ended(last, "")..=most("");
    assert!(ended(last, "") > 0 && bounds.contains(&requests), "{bounds:?} requests, {requests} reported");
    let models = summary["models"].as_object().unwrap();
    for (model, figures) in models {
        let label = format!("gen_ai_request_model=\"{model}\"");
        let bounds = ended(last, &label)..=most(&label);
        assert!(bounds.contains(&count(figures, "requests")), "{model}: {bounds:?} {figures}");
        let tokens = count(figures, "tokens");
        let scraped = sum(last, "streamgauge_stream_output_tokens_total", &label);
        assert!(tokens > 0 && tokens >= scraped, "{model}: {scraped} {figures}");
    }
    assert!(last.contains("gen_ai_provider_name=\"simulated\"") && !last.contains("\"openai\""), "{last}");
    for key in ["requests", "tokens"] {
        let of_models: u64 = models.values().map(|figures| count(figures, key)).sum();
        assert_eq!(of_models, count(all, key), "{key}");
    }
    let judged = ["met", "missed", "excluded"].map(|result| count(&all["goodput"], result));
    assert_eq!(judged.iter().sum::<u64>(), requests);
    // A step of the simulated server takes 10 ms and a little.
    assert!(all["itl_ms"]["p50"].as_f64().unwrap() > 9.0, "{all}");
    assert!(all["ttft_ms"]["p50"].as_f64().unwrap() > 9.0, "{all}");
}

#[test]
fn every_figure_is_labelled_and_the_suggested_commands_work() {
    let mut demo = start(&FREE_PORTS);
    let [proxy, _] = demo.addresses();
    demo.until("curl http://127.0.0.1");
    demo.until("    -d '");
    demo.line();
    let (_, body) = demo.log.rsplit_once("-d '").unwrap();
    let mut client = Client::connect(proxy);
    let reply = client.send(chat(body.trim_end().trim_end_matches('\''))).response();
    assert!(reply.head.starts_with("HTTP/1.1 200 ") && reply.head.contains("(simulated)"), "{}", reply.head);
    assert!(reply.text().ends_with("data: [DONE]\n\n"), "{}", reply.text());
    let first = demo.until(" requests, ");
    assert!(first.starts_with("SIMULATED, "), "{first}");
    demo.signal(Signal::SIGTERM);
    let done = demo.end();
    assert_eq!(done.code, Some(0));
    assert!(done.stderr.starts_with("SIMULATED: "), "{}", done.stderr);
    assert!(done.stdout.starts_with("SIMULATED, "), "{}", done.stdout);
    assert!(!done.stderr.contains(['\u{1b}', '\r']) && !done.stdout.contains('\u{1b}'), "it is no terminal");
    assert!(!done.stderr.contains("ERROR") && !done.stderr.contains("WARN"), "{}", done.stderr);
    let row = |name: &str| {
        let line = done.stdout.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let requests: Vec<u64> = row("requests").iter().map(|number| number.parse().unwrap()).collect();
    let (all, models) = requests.split_last().unwrap();
    assert_eq!(models.iter().sum::<u64>(), *all);
    assert!(*all > 0);
    assert_eq!(row("in flight").last().unwrap(), "0");
}

#[test]
fn a_terminal_gets_one_table_in_place_and_colour_unless_it_is_not_wanted() {
    let shown = |variables: &[(&str, &str)]| {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let mut command = program(&FREE_PORTS);
        command.envs(variables.iter().copied()).stderr(slave);
        let child = command.spawn().unwrap();
        // It holds the terminal's other side, which has to close with the child.
        drop(command);
        let mut demo = Demo::of(child, Box::new(File::from(master)));
        (0..2).for_each(|_| _ = demo.until("SIMULATED, "));
        demo.signal(Signal::SIGTERM);
        demo.end()
    };
    let plain = shown(&[("NO_COLOR", "1")]);
    assert_eq!(plain.code, Some(0));
    let frames: Vec<&str> = plain.stderr.split("SIMULATED, ").skip(1).collect();
    let height = frames[0].lines().count();
    let (first, second) = (frames[0], frames[1]);
    assert!(first.contains("\nin flight ") && second.contains("\nin flight "), "{}", plain.stderr);
    assert!(first.contains("\u{1b}[?7h\r\u{1b}[") && first.ends_with("A\u{1b}[J\u{1b}[?7l"), "{first:?}");
    let up = first.rsplit_once("\r\u{1b}[").unwrap().1.strip_suffix("A\u{1b}[J\u{1b}[?7l").unwrap();
    assert_eq!(up.parse::<usize>().unwrap(), height - 1, "back to the line that the table began on");
    assert!(!plain.stderr.contains("\u{1b}[1m"));
    assert!(shown(&[]).stderr.contains("\u{1b}[1m"));
}

#[test]
fn a_second_signal_does_not_wait_for_open_requests() {
    // It would wait for five seconds. A machine that is busy elsewhere may have to try again.
    let is_quick = || {
        let mut demo = start(&FREE_PORTS);
        let [proxy, _] = demo.addresses();
        let mut client = Client::connect(proxy);
        client.send(endless(100_000)).head();
        demo.signal(Signal::SIGINT);
        demo.until("stopping: ");
        let started_at = Clock::Monotonic.now();
        demo.signal(Signal::SIGINT);
        let done = demo.end();
        assert_eq!(done.code, Some(0));
        assert!(done.stdout.starts_with("SIMULATED, "), "{}", done.stdout);
        Clock::Monotonic.now().since(started_at) < Gap::from_millis(4_000)
    };
    assert!((0..3).any(|_| is_quick()));
}

#[test]
fn a_taken_default_port_is_replaced_and_a_taken_requested_port_is_an_error() {
    // The ports are taken, by this test or by another process.
    let _held = ["127.0.0.1:8080", "127.0.0.1:9464"].map(TcpListener::bind);
    let mut demo = start(&["--for=1ms"]);
    let [proxy, admin] = demo.addresses();
    assert!(proxy.port() != 8080 && admin.port() != 9464 && proxy != admin, "{proxy} {admin}");
    assert_eq!(demo.end().code, Some(0));

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (flag, other) in [("listen", "admin"), ("admin", "listen")] {
        let output = program(&[&format!("--{flag}={address}"), &format!("--{other}=127.0.0.1:0")]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let expected = format!(
            "error: cannot listen on {address} (--{flag}): Address already in use (os error 98); remedy: stop what listens \
             there, or choose another address\n"
        );
        assert_eq!((output.status.code(), stderr), (Some(1), expected));
    }
    let output = program(&["--listen=8080"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("--listen: expected an address and a port, as in 127.0.0.1:8080"), "{stderr}");
}
