//! Two real llama-servers behind a round-robin and behind a sticky front: what the front changes, measured and predicted.

use std::path::Path;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::clients::url;
use super::program::{ProxyProcess, json_of, streamgauge};
use super::tools::Tool;
use super::{processes, tools};

/// Conversations whose later turns are mostly cached where the earlier ones were answered.
const CONVERSATIONS: [&str; 6] =
    ["--model=tiny", "--isl=220", "--osl=8", "--turns=4", "--think=500ms", "--connections=per-session"];
/// Conversations per second of the fitted load, for one server.
const RATE: f64 = 0.4;
/// Largest error of a predicted difference, as a share of the measured one.
const MOST: f64 = 0.3;

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
        seed: u32,
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
        let done = streamgauge(&[&["load"], &CONVERSATIONS[..], &flags].concat());
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
#[ignore = "takes three minutes: tests/run --real"]
fn a_twin_predicts_what_a_sticky_front_changes_on_two_llama_servers() {
    let _turn = processes::exclusive_turn();
    let pods = Pods { engines: [tools::llama(), tools::llama()], folder: tempdir().unwrap() };
    std::fs::write(pods.folder.path().join("key"), "a key of sixteen bytes and more").unwrap();
    // What an engine does only once.
    pods.run("first", 1, [1.0, 5.0], nginx(""));
    pods.run("fitted", 2, [RATE, 40.0], only_first);
    // The same conversations for both fronts.
    pods.run("turns", 3, [2.0 * RATE, 60.0], nginx(""));
    pods.run("sticky", 3, [2.0 * RATE, 60.0], nginx("hash $remote_addr$remote_port;"));

    let (fitted, twin) = (pods.text("fitted-0"), pods.text("twin.json"));
    eprintln!("{:#}", json_of(&["twin", "fit", &fitted, "-o", &twin, "--json"]));
    // A proxy knows the conversations that come to it, so only the sticky front's captures have whole ones.
    let [traffic, simulated] = [pods.text("traffic.jsonl.zst"), pods.text("simulated")];
    let merged = streamgauge(&["capture", "merge", &pods.text("sticky-0"), &pods.text("sticky-1"), "-o", &traffic]);
    assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    let routers = ["--router=round-robin", "--router=session"];
    let variants = ["--traffic", &traffic, "--replicas=2", "--out", &simulated, "--json"];
    json_of(&[&["twin", "run", &twin], &variants[..], &routers].concat());

    let measured = ["turns", "sticky"].map(|name| figures(&pods.text(name)));
    let predicted = ["2-round-robin", "2-session"].map(|name| figures(&format!("{simulated}/{name}")));
    for (at, figure) in ["mean TTFT in ms", "cached tokens"].into_iter().enumerate() {
        let [measured, predicted] = [measured, predicted].map(|of| (of[0][at], of[1][at], of[1][at] - of[0][at]));
        eprintln!("| {figure} | in turns, sticky, difference | measured {measured:.0?} | predicted {predicted:.0?} |");
        let ratio = predicted.2 / measured.2;
        assert!((1.0 - MOST..=1.0 + MOST).contains(&ratio), "{figure}: {predicted:?} predicted, {measured:?} measured");
    }
}
