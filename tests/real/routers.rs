//! Two real llama-servers behind a round-robin and behind a sticky front: what the front changes, measured and predicted.

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::awake_cores::AwakeCores;
use super::clients::url;
use super::program::{ProxyProcess, json_of, streamgauge};
use super::tools::Tool;
use super::{processes, tools};

/// Conversations whose later turns are mostly cached where the earlier ones were answered.
const CONVERSATIONS: [&str; 3] = ["--isl=700", "--turns=4", "--think=500ms"];
/// Prompts of which nothing is cached: they tell the cost of a long prompt from that of a cached one.
const PROMPTS: [&str; 1] = ["--isl=uniform:40:2800"];
/// Conversations per second.
const RATE: f64 = 0.3;
/// Seconds of each load of conversations.
const SECONDS: f64 = 100.0;
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

    /// Sends a load to nginx, which chooses an engine by `rule`, or takes turns without one. Proxies capture it as
    /// `NAME-0` and `NAME-1`.
    fn run(&self, name: &str, (seed, load): (u32, &[&str]), [rate, seconds]: [f64; 2], rule: &'static str) {
        let proxies = [0, 1].map(|pod| {
            ProxyProcess::with(self.engines[pod].addr, |command| {
                command.arg("--capture").arg(self.folder.path().join(format!("{name}-{pod}")));
                command.arg("--capture-key").arg(self.folder.path().join("key")).arg("--capture-block=16");
                command.arg("--capture-tokenizer").arg(tools::tokenizer());
            })
        });
        let folder = self.folder.path().join(format!("nginx-{name}"));
        let front = tools::nginx(&[proxies[0].addr, proxies[1].addr], rule, &folder);
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
}

/// Engines with room for four whole conversations, so that the fronts differ and not what the caches hold. Without a copy of
/// the slots in main memory, which costs time of its own.
fn engines() -> [Tool; 2] {
    [0, 1].map(|_| tools::llama_with(&["--ctx-size", "16384", "--cache-ram", "0"]))
}

/// Mean TTFT in milliseconds and cached tokens of a run.
fn figures(run: &str) -> [f64; 2] {
    let report = json_of(&["report", run, "--json"]);
    let of = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{report}"));
    [of(&report["metrics"]["ttft"]["avg"]), of(&report["tokens"]["cached"])]
}

#[test]
#[ignore = "takes six minutes: tests/run --real"]
fn a_twin_predicts_what_a_sticky_front_changes_on_two_llama_servers() {
    let (_turn, _cores) = (processes::exclusive_turn(), AwakeCores::start());
    let mut pods = Pods { engines: engines(), folder: tempdir().unwrap() };
    std::fs::write(pods.folder.path().join("key"), "a key of sixteen bytes and more").unwrap();
    // What an engine does only once.
    pods.run("first", (1, &CONVERSATIONS), [1.0, 5.0], "");
    // To both engines, which share cores: an engine is as fast in the fit as beside the other one.
    pods.run("prompts", (5, &PROMPTS), [1.6, 60.0], "");
    pods.run("fitted", (2, &CONVERSATIONS), [RATE, SECONDS], "");
    // The same conversations for both fronts, and engines that know none of them.
    pods.run("turns", (3, &CONVERSATIONS), [RATE, SECONDS], "");
    pods.engines = engines();
    pods.run("second", (4, &CONVERSATIONS), [1.0, 5.0], "");
    pods.run("sticky", (3, &CONVERSATIONS), [RATE, SECONDS], "hash $remote_addr$remote_port;");

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
    // The size of the difference in time is printed only: the fronts are measured minutes apart, and the machine changes
    // its speed meanwhile.
    assert!(time.0 < 0.0 && time.1 < 0.0, "{time:?}: a sticky front makes first tokens faster");
    assert!((cached.1 / cached.0 - 1.0).abs() <= MAX_ERROR, "{cached:?} cached tokens measured and predicted");
}
