//! Two real llama-servers behind a round-robin and behind a sticky front: what the front changes, measured and predicted.

use std::path::Path;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::clients::url;
use super::program::{ProxyProcess, json_of, streamgauge};
use super::tools::Tool;
use super::{processes, tools};

/// Conversations whose later turns are mostly cached where the earlier ones were answered.
const CONVERSATIONS: [&str; 3] = ["--isl=220", "--turns=4", "--think=500ms"];
/// Prompts of which nothing is cached: they tell the cost of a long prompt from that of a cached one.
const PROMPTS: [&str; 1] = ["--isl=uniform:40:900"];
/// Conversations per second.
const RATE: f64 = 0.8;
/// Largest error of the predicted difference in cached tokens, as a share of the measured one.
const MAX_ERROR: f64 = 0.3;

/// Two engines, each behind a proxy of its own, and the files of the test.
struct Pods {
    engines: [Tool; 2],
    folder: TempDir,
}

impl Pods {
    fn text(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Sends a load to what `front` makes of two proxies that capture it as `NAME-0` and `NAME-1`.
    fn run(
        &self,
        name: &str,
        (seed, load): (u32, &[&str]),
        [rate, seconds]: [f64; 2],
        front: impl FnOnce(&[ProxyProcess; 2], &Path) -> Front,
    ) {
        let proxies = [0, 1].map(|pod| {
            ProxyProcess::with(self.engines[pod].addr, |command| {
                command.arg("--capture").arg(self.folder.path().join(format!("{name}-{pod}")));
                command.arg("--capture-key").arg(self.folder.path().join("key")).arg("--capture-block=16");
                command.arg("--capture-tokenizer").arg(tools::tokenizer());
            })
        });
        let front = front(&proxies, &self.folder.path().join(format!("nginx-{name}")));
        let tokenizer = format!("--tokenizer={}", tools::tokenizer().display());
        let flags = [
            "--model=tiny",
            "--osl=8",
            "--connections=per-session",
            &tokenizer,
            "--prompt-overhead=0",
            "--max-lag=1h",
            "--no-audit",
            &format!("--target={}", front.url),
            &format!("--rate={rate}"),
            &format!("--duration={seconds}s"),
            &format!("--seed={seed}"),
            &format!("--out={}", self.text(name)),
        ];
        let done = streamgauge(&[&["load"], load, &flags].concat());
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
        proxies.into_iter().for_each(ProxyProcess::end);
    }
}

/// Where a load is sent; nginx lives as long.
struct Front {
    url: String,
    _nginx: Option<Tool>,
}

fn only_first(proxies: &[ProxyProcess; 2], _: &Path) -> Front {
    Front { url: url(proxies[0].addr), _nginx: None }
}

/// nginx with this rule for its choice; without one it takes turns.
fn nginx(rule: &'static str) -> impl FnOnce(&[ProxyProcess; 2], &Path) -> Front {
    move |proxies, folder| {
        let nginx = tools::nginx(&[proxies[0].addr, proxies[1].addr], rule, folder);
        Front { url: url(nginx.addr), _nginx: Some(nginx) }
    }
}

/// Mean TTFT in milliseconds and cached tokens of a run.
fn figures(run: &str) -> [f64; 2] {
    let report = json_of(&["report", run, "--json"]);
    let of = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{report}"));
    [of(&report["metrics"]["ttft"]["avg"]), of(&report["tokens"]["cached"])]
}

#[test]
#[ignore = "takes four minutes: tests/run --real"]
fn a_twin_predicts_the_cached_tokens_that_a_sticky_front_adds_on_two_llama_servers() {
    let _turn = processes::exclusive_turn();
    let mut pods = Pods { engines: [tools::llama(), tools::llama()], folder: tempdir().unwrap() };
    std::fs::write(pods.folder.path().join("key"), "a key of sixteen bytes and more").unwrap();
    // What an engine does only once.
    pods.run("first", (1, &CONVERSATIONS), [1.0, 5.0], nginx(""));
    pods.run("prompts", (5, &PROMPTS), [2.0, 40.0], only_first);
    pods.run("fitted", (2, &CONVERSATIONS), [RATE / 2.0, 60.0], only_first);
    // The same conversations for both fronts, and engines that know none of them.
    pods.run("turns", (3, &CONVERSATIONS), [RATE, 60.0], nginx(""));
    pods.engines = [tools::llama(), tools::llama()];
    pods.run("second", (4, &CONVERSATIONS), [1.0, 5.0], nginx(""));
    pods.run("sticky", (3, &CONVERSATIONS), [RATE, 60.0], nginx("hash $remote_addr$remote_port;"));

    let (captures, twin) = ([pods.text("prompts-0"), pods.text("fitted-0")], pods.text("twin.json"));
    eprintln!("{:#}", json_of(&["twin", "fit", &captures[0], &captures[1], "-o", &twin, "--json"]));
    // A proxy knows the conversations that come to it, so only the sticky front's captures have whole ones.
    let [traffic, simulated] = [pods.text("traffic.jsonl.zst"), pods.text("simulated")];
    let merged = streamgauge(&["capture", "merge", &pods.text("sticky-0"), &pods.text("sticky-1"), "-o", &traffic]);
    assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    let routers = ["--router=round-robin", "--router=session"];
    let variants = ["--traffic", &traffic, "--replicas=2", "--out", &simulated, "--json"];
    json_of(&[&["twin", "run", &twin], &variants[..], &routers].concat());

    let measured = ["turns", "sticky"].map(|name| figures(&pods.text(name)));
    let predicted = ["2-round-robin", "2-session"].map(|name| figures(&format!("{simulated}/{name}")));
    let [time, cached] = [(0, "mean TTFT in ms"), (1, "cached tokens")].map(|(at, figure)| {
        let [measured, predicted] = [measured, predicted].map(|of| (of[0][at], of[1][at], of[1][at] - of[0][at]));
        eprintln!("| {figure} | in turns, sticky, difference | measured {measured:.0?} | predicted {predicted:.0?} |");
        (measured.2, predicted.2)
    });
    // The difference in time is printed only: what remains of it beside the wait in queues is a few noisy milliseconds.
    assert!(time.0 < 0.0, "a sticky front makes first tokens faster");
    assert!((cached.1 / cached.0 - 1.0).abs() <= MAX_ERROR, "{cached:?} cached tokens measured and predicted");
}
