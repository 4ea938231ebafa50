//! Two real llama-servers behind a round-robin and behind a sticky front: what the front changes, measured and predicted.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::tempdir;

use super::awake_cores::timed_turn;
use super::clients::url;
use super::program::{ProxyProcess, json_of, streamgauge};
use super::tools;
use super::tools::Tool;

/// Conversations whose later turns are mostly cached where the earlier ones were answered. They come evenly: with Poisson
/// arrivals, which of a hundred requests meet at an engine by chance decides more than the front does. Their pauses differ,
/// so that no two conversations take turns for long.
const CONVERSATIONS: [&str; 4] = ["--isl=700", "--turns=4", "--think=lognormal:500ms:300ms", "--arrivals=constant"];
/// Prompts of which nothing is cached: they tell the cost of a long prompt from that of a cached one.
const PROMPTS: [&str; 1] = ["--isl=uniform:40:2800"];
/// Conversations per second: so few that the two engines, which share two cores, are rarely busy together. A twin has one
/// speed for both, and the front that takes turns has them busy together more often.
const RATE: f64 = 0.15;
/// Prompts per second.
const PROMPT_RATE: f64 = 0.4;
/// Rounds of every load: a machine that changes its speed changes it for what is fitted, measured and compared.
const ROUNDS: [u32; 4] = [1, 2, 3, 4];
/// Seconds of each load.
const SECONDS: f64 = 27.0;
/// Largest error of a predicted difference, as a share of the measured one.
const MAX_ERROR: f64 = 0.3;

/// Two engines behind one front.
struct Fleet {
    engines: [Tool; 2],
    /// How nginx chooses an engine; without a rule it takes turns.
    rule: &'static str,
    folder: PathBuf,
}

impl Fleet {
    /// Engines with slots for eight whole conversations, so that the fronts differ and not what the caches hold. Without a
    /// copy of the slots in main memory, which costs time of its own.
    fn start(folder: PathBuf, rule: &'static str) -> Self {
        std::fs::create_dir(&folder).unwrap();
        let flags = ["--parallel", "8", "--ctx-size", "32768", "--cache-ram", "0"];
        let fleet = Self { engines: [0, 1].map(|_| tools::llama_with(&flags)), rule, folder };
        // What an engine does only once.
        fleet.run("first", (1, &CONVERSATIONS), [1.0, 5.0]);
        fleet
    }

    fn text(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Sends a load to the front. Proxies capture it as `NAME-0` and `NAME-1`.
    fn run(&self, name: &str, (seed, load): (u32, &[&str]), [rate, seconds]: [f64; 2]) {
        let proxies = [0, 1].map(|pod| {
            ProxyProcess::with(self.engines[pod].addr, |command| {
                command.arg("--capture").arg(self.text(&format!("{name}-{pod}"))).arg("--capture-block=16");
                command.arg("--capture-key").arg(self.folder.with_file_name("key"));
                command.arg("--capture-tokenizer").arg(tools::tokenizer());
            })
        });
        let front =
            tools::nginx(&[proxies[0].addr, proxies[1].addr], self.rule, &self.folder.join(format!("nginx-{name}")));
        let tokenizer = format!("--tokenizer={}", tools::tokenizer().display());
        let flags = [
            "--model=tiny",
            "--osl=8",
            "--connections=per-session",
            &tokenizer,
            "--prompt-overhead=0",
            "--max-lag=1h",
            "--no-audit",
            &format!("--target={}", url(front.addr)),
            &format!("--rate={rate}"),
            &format!("--duration={seconds}s"),
            &format!("--seed={seed}"),
            &format!("--out={}", self.text(name)),
        ];
        let done = streamgauge(&[&["load"], load, &flags].concat());
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
        proxies.into_iter().for_each(ProxyProcess::end);
    }

    /// What the proxies captured of a load, as one trace.
    fn traffic(&self, name: &str) -> String {
        let [file, first, second] = ["traffic.jsonl.zst", "0", "1"].map(|of| self.text(&format!("{name}-{of}")));
        // A sticky front may have sent all conversations to one engine.
        let mut captures = vec![first, second];
        captures.retain(|folder| holds_a_capture(folder));
        let captures: Vec<&str> = captures.iter().map(String::as_str).collect();
        let merged = streamgauge(&[&["capture", "merge"], &captures[..], &["-o", &file]].concat());
        assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
        file
    }
}

fn holds_a_capture(folder: &str) -> bool {
    let is_segment =
        |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path().extension() == Some("zst".as_ref());
    std::fs::read_dir(folder).unwrap().any(is_segment)
}

/// Mean TTFT in milliseconds and cached tokens over runs of equally many requests.
fn figures(runs: &[String]) -> [f64; 2] {
    let reports: Vec<_> = runs.iter().map(|run| json_of(&["report", run, "--json"])).collect();
    let sum = |figure: fn(&Value) -> &Value| -> f64 {
        reports.iter().map(|report| figure(report).as_f64().unwrap_or_else(|| panic!("{report}"))).sum()
    };
    [sum(|report| &report["metrics"]["ttft"]["avg"]) / reports.len() as f64, sum(|report| &report["tokens"]["cached"])]
}

/// Simulates each round's traffic at two replicas by both routers; the runs of each.
fn simulated(twin: &str, sticky: &Fleet, folder: &Path) -> [Vec<String>; 2] {
    let routers = ["--router=round-robin", "--router=session"];
    let simulate = |round: u32| {
        let out = folder.join(format!("simulated-{round}")).display().to_string();
        // A proxy knows the conversations that come to it, so only the sticky front's captures have whole ones.
        let traffic = sticky.traffic(&format!("conversations-{round}"));
        let variants = ["--traffic", &traffic, "--replicas=2", "--out", &out, "--json"];
        json_of(&[&["twin", "run", twin], &variants[..], &routers].concat());
        out
    };
    let folders = ROUNDS.map(simulate);
    ["2-round-robin", "2-session"].map(|variant| folders.iter().map(|of| format!("{of}/{variant}")).collect())
}

#[test]
#[ignore = "takes seven minutes: tests/run --real"]
fn a_twin_predicts_what_a_sticky_front_changes_on_two_llama_servers() {
    let _turn = timed_turn();
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "a key of sixteen bytes and more").unwrap();
    let in_turns = Fleet::start(folder.path().join("in-turns"), "");
    let sticky = Fleet::start(folder.path().join("sticky"), "hash $remote_addr$remote_port;");
    for round in ROUNDS {
        // To both engines, so that an engine is as fast in the fit as beside the other one.
        in_turns.run(&format!("prompts-{round}"), (10 * round, &PROMPTS), [PROMPT_RATE, SECONDS]);
        in_turns.run(&format!("fitted-{round}"), (10 * round + 1, &CONVERSATIONS), [RATE, SECONDS]);
        // The same conversations for both fronts.
        for fleet in [&in_turns, &sticky] {
            fleet.run(&format!("conversations-{round}"), (10 * round + 2, &CONVERSATIONS), [RATE, SECONDS]);
        }
    }

    let captures = ["prompts", "fitted"].map(|load| ROUNDS.map(|round| in_turns.text(&format!("{load}-{round}-0"))));
    let captures: Vec<&str> = captures.iter().flatten().map(String::as_str).collect();
    let twin = folder.path().join("twin.json").display().to_string();
    eprintln!("{:#}", json_of(&[&["twin", "fit"], &captures[..], &["-o", &twin, "--json"]].concat()));

    let conversations = |fleet: &Fleet| ROUNDS.map(|round| fleet.text(&format!("conversations-{round}")));
    let measured = [&in_turns, &sticky].map(|fleet| figures(&conversations(fleet)));
    let predicted = simulated(&twin, &sticky, folder.path()).map(|runs| figures(&runs));
    for (at, figure) in ["mean TTFT in ms", "cached tokens"].into_iter().enumerate() {
        let [measured, predicted] = [measured, predicted].map(|of| (of[0][at], of[1][at], of[1][at] - of[0][at]));
        eprintln!("| {figure} | in turns, sticky, difference | measured {measured:.0?} | predicted {predicted:.0?} |");
        let error = predicted.2 / measured.2 - 1.0;
        assert!(error.abs() <= MAX_ERROR, "{figure}: a difference of {}, {} predicted", measured.2, predicted.2);
    }
}
