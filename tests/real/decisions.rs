//! Decisions about a real vLLM. It is not worse than itself, but is with ten milliseconds more, or with half the
//! sequences. A plan for AIPerf's load holds when it is run.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::awake_cores::timed_turn;
use super::clients::url;
use super::processes::address;
use super::program::streamgauge;
use super::tools;

/// Rounds at one time: the median of TTFT differs by 9 % from side to side, so the interval of 16 is 5 % to each side.
const ROUNDS_AT_ONCE: usize = 16;
/// Rounds in turns. With Holm's adjustment over 14 figures, the interval of five pairs is 6.1 standard errors long on
/// each side, that of eight 4.3.
const ROUNDS_IN_TURNS: usize = 8;
/// What `compare` takes without a margin.
const WORSE: &str = "5%";
/// Twice that, and twice the interval of the median of TTFT.
const NOT_WORSE: &str = "10%";
/// A third of a load that the tiny model carries with room to spare.
const LIGHT: [&str; 5] = ["--rate=4", "--isl=64", "--osl=32", "--duration=15s", "--warmup=2s"];
/// Between the sides at one time, which send the same requests: longer than a prefill, shorter than a gap.
const OFFSET: Duration = Duration::from_millis(80);
/// As many streams as the larger engine has sequences, and twice those of the smaller one.
const SATURATING: [&str; 4] = ["--concurrency=8", "--isl=64", "--osl=64", "--duration=8s"];
/// A run counts on a busy machine too: what is sent late is part of the latency from its planned time.
const ALWAYS_VALID: [&str; 2] = ["--max-lag=1h", "--no-audit"];

/// A folder of runs.
struct Runs(TempDir);

impl Runs {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `load` against a server of the tiny model.
    fn load(&self, name: &str, server: SocketAddr, round: usize, load: &[&str]) {
        let tokenizer = tools::tokenizer();
        let (tokenizer, out) = (format!("--tokenizer={}", tokenizer.display()), self.path(&format!("{name}-{round}")));
        let (seed, out) = (format!("--seed={round}"), format!("--out={}", out.display()));
        let (target, flags) = (url(server), ["--model=tiny", &tokenizer, &seed, &out]);
        let done = streamgauge(&[&["load", "--target", &target], load, &flags, &ALWAYS_VALID].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Runs `load` of all sides at one time, so that the machine is as fast for each.
    fn load_at_once(&self, sides: &[(&str, SocketAddr)], round: usize, load: &[&str]) {
        thread::scope(|scope| {
            for (at, (name, server)) in (0..).zip(sides) {
                scope.spawn(move || {
                    thread::sleep(OFFSET * at);
                    self.load(name, *server, round, load);
                });
            }
        });
    }

    /// The verdict on these rounds of two sides, and those on some of its figures.
    fn verdict(&self, sides: [&str; 2], rounds: usize, margin: &str, named: &[&str]) -> (String, Vec<String>) {
        let side = |name| (1..=rounds).map(move |round| format!("{name}-{round}"));
        let runs: Vec<String> = side(sides[0]).chain(["--".to_owned()]).chain(side(sides[1])).collect();
        let path = |run: &String| if run == "--" { run.clone() } else { self.path(run).display().to_string() };
        let runs: Vec<String> = runs.iter().map(path).collect();
        let flags = ["compare", "--json", "--margin", margin];
        let done = streamgauge(&[&flags[..], &runs.iter().map(String::as_str).collect::<Vec<_>>()].concat());
        let comparison: Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&done.stderr)));
        let of = |value: &Value| value["verdict"]["verdict"].as_str().unwrap_or_default().to_owned();
        let figures = comparison["figures"].as_array().unwrap();
        for figure in figures {
            let name = figure["figure"].as_str().unwrap();
            let [before, after, change] = ["before", "after", "change"].map(|key| &figure[key]);
            eprintln!("| {} → {} | {name} | {before} | {after} | {change} | {} |", sides[0], sides[1], of(figure));
        }
        let verdict = |name: &&str| of(figures.iter().find(|figure| figure["figure"] == *name).unwrap());
        (of(&comparison), named.iter().map(verdict).collect())
    }
}

/// Passes bytes on, those of replies `delay` later.
fn delayed(server: SocketAddr, delay: Duration) -> SocketAddr {
    let addr = address();
    let listener = TcpListener::bind(addr).unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(upstream) = TcpStream::connect(server) else { continue };
            let _without_delay = client.set_nodelay(true).is_ok() && upstream.set_nodelay(true).is_ok();
            let (from_client, to_server) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            pass(from_client, to_server, Duration::ZERO);
            pass(upstream, client, delay);
        }
    });
    addr
}

/// Copies until the end of either side, each piece `delay` after it was read.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (pieces, due) = mpsc::sync_channel::<(Instant, Vec<u8>)>(1024);
    thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if pieces.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (at, piece) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        // The other side may have closed.
        _ = to.shutdown(Shutdown::Write).is_ok();
    });
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn vllm_is_not_worse_than_itself_and_ten_milliseconds_more_are_worse() {
    let _turn = timed_turn();
    // All sides send the same prompts, and none may find those of another in the cache.
    let (vllm, runs) = (tools::vllm_with_flags(&["--no-enable-prefix-caching"]), Runs(tempdir().unwrap()));
    let slow = delayed(vllm.addr, Duration::from_millis(10));
    // Warm-up: an engine's one-time work.
    runs.load("first", vllm.addr, 0, &LIGHT);
    for round in 1..=ROUNDS_AT_ONCE {
        // No side is always the first.
        let mut sides = [("one", vllm.addr), ("slow", slow), ("other", vllm.addr)];
        sides.rotate_left(round % 3);
        runs.load_at_once(&sides, round, &LIGHT);
    }
    // Its tails may be undecided: a p99 of 60 requests varies by more than the margin.
    let verdict = |side, margin, figures: &[&str]| runs.verdict(["one", side], ROUNDS_AT_ONCE, margin, figures);
    let (all, medians) = verdict("other", NOT_WORSE, &["ttft.p50", "itl.p50", "e2e.p50"]);
    assert_ne!(all, "worse");
    assert_eq!(medians, ["not_worse"; 3]);
    assert_ne!(verdict("other", WORSE, &[]).0, "worse");
    assert_eq!(verdict("slow", WORSE, &["ttft.p50"]), ("worse".to_owned(), vec!["worse".to_owned()]));
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn vllm_with_half_the_sequences_is_worse() {
    let _turn = timed_turn();
    let runs = Runs(tempdir().unwrap());
    for (name, sequences) in [("eight", "--max-num-seqs=8"), ("four", "--max-num-seqs=4")] {
        let vllm = tools::vllm_with_flags(&[sequences]);
        for round in 0..=ROUNDS_IN_TURNS {
            runs.load(name, vllm.addr, round, &SATURATING);
        }
    }
    let verdict = runs.verdict(["eight", "four"], ROUNDS_IN_TURNS, WORSE, &["ttft.p50"]);
    assert_eq!(verdict, ("worse".to_owned(), vec!["worse".to_owned()]));
}
