//! Twins of real engines: fitted to the capture of one load, they predict others.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::aiperf_trace::trace;
use super::awake_cores::timed_turn;
use super::clients::url;
use super::program::{ProxyProcess, json_of, streamgauge};
use super::tools;
use super::tools::Tool;

const MOONCAKE: &str = "tests/data/traces/mooncake/conversation_first300s.jsonl";
/// Prompts and responses of the fitted load. The tiny models hold 2,048 tokens.
const LENGTHS: [&str; 2] =
    ["--isl=lognormal:median=100:sigma=0.7:min=8:max=600", "--osl=lognormal:median=48:sigma=0.6:min=4:max=200"];
const LONGER: [&str; 2] =
    ["--isl=lognormal:median=250:sigma=0.5:min=8:max=1000", "--osl=lognormal:median=96:sigma=0.6:min=4:max=300"];
const PREFIXES: [&str; 3] = ["--isl=200", "--osl=32", "--shared-prefix=128"];
/// Figures whose errors are stated.
const FIGURES: [(&str, &str); 6] =
    [("ttft", "p50"), ("itl", "p50"), ("e2e", "p50"), ("ttft", "p99"), ("itl", "p99"), ("e2e", "p99")];
/// Largest median error over the loads: of medians, and of tails, which stalls of the machine make.
const MAX_MEDIAN_ERRORS: [f64; 2] = [0.25, 0.6];
/// Largest median error of the goodput, as a share of all requests.
const MAX_GOODPUT_ERROR: f64 = 0.2;
/// Largest error of the throughput of a full engine: within an hour one load filled vLLM with 1,365 to 1,641 tokens/s.
const MAX_THROUGHPUT_ERROR: f64 = 0.4;

/// An engine, and what it is asked.
struct Subject<'a> {
    name: &'a str,
    engine: &'a Tool,
    /// Requests per second that it carries with room to spare.
    rate: f64,
    /// Requests per second that it does not carry.
    overload: f64,
    folder: TempDir,
}

impl Subject<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Sends a load through a proxy that captures it.
    fn capture(&self, name: &str, verb: &[&str], rate: f64) {
        let proxy = ProxyProcess::with(self.engine.addr, |command| {
            // One key, so that block ids of several captures are of one kind.
            command.arg("--capture").arg(self.path(name)).arg("--capture-key").arg(self.path("key"));
        });
        let tokenizer = tools::tokenizer();
        let (target, tokenizer) = (url(proxy.addr), format!("--tokenizer={}", tokenizer.display()));
        let rate = format!("--rate={rate}");
        let flags = ["--target", &target, &tokenizer, &rate, "--prompt-overhead=0", "--max-lag=1h", "--no-audit"];
        let done = streamgauge(&[verb, &flags].concat());
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
        proxy.end();
    }

    fn load(&self, name: &str, lengths: &[&str], rate: f64, duration: &str) {
        // No two loads have a prompt in common.
        let seed = format!("--seed={}", name.bytes().map(u64::from).sum::<u64>());
        let duration = format!("--duration={duration}");
        self.capture(name, &[&["load", "--model=tiny", &duration, &seed], lengths].concat(), rate);
    }

    fn fit(&self) -> Value {
        let captures = [self.text("fitted"), self.text("queueing")];
        json_of(&["twin", "fit", &captures[0], &captures[1], "-o", &self.text("twin.json"), "--json"])
    }

    /// An SLO that 90 % of the fitted load's requests meet in TTFT, and 90 % in TPOT.
    fn slo(&self) -> String {
        let report = json_of(&["report", &self.text("fitted"), "--json"]);
        let [ttft, tpot] = ["ttft", "tpot"].map(|figure| report["metrics"][figure]["p90"].as_f64().unwrap());
        format!("--slo=held: ttft<={ttft:.3}ms tpot<={tpot:.3}ms")
    }

    /// Reports of a captured load and of its simulation.
    fn reports(&self, name: &str) -> [Value; 2] {
        let slo = self.slo();
        let (capture, simulated) = (self.text(name), self.text(&format!("simulated-{name}")));
        json_of(&["twin", "run", &self.text("twin.json"), "--traffic", &capture, "--out", &simulated, "--json"]);
        [&capture, &simulated].map(|path| json_of(&["report", path, "--json", &slo]))
    }

    /// Relative errors of [`FIGURES`] for one load, and the difference of the goodput.
    fn errors(&self, name: &str) -> ([f64; 6], f64) {
        let [measured, predicted] = self.reports(name);
        let shares = [&measured, &predicted].map(|report| report["goodput"][0]["share"].as_f64().unwrap());
        eprintln!("| {} | {name} | goodput | {:.3} | {:.3} | |", self.name, shares[0], shares[1]);
        let errors = FIGURES.map(|(figure, percentile)| {
            let [measured, predicted] = [&measured, &predicted].map(|report| &report["metrics"][figure][percentile]);
            let error = predicted.as_f64().unwrap() / measured.as_f64().unwrap() - 1.0;
            eprintln!(
                "| {} | {name} | {figure} {percentile} | {measured} | {predicted} | {:+.0} % |",
                self.name,
                100.0 * error
            );
            error
        });
        (errors, shares[1] - shares[0])
    }

    /// Output tokens per second under a load that the engine does not carry, measured and predicted.
    fn saturation(&self) -> [f64; 2] {
        self.load("overloaded", &LONGER, self.overload / 2.0, "15s");
        self.reports("overloaded").map(|report| report["throughput"]["output_tokens"].as_f64().unwrap())
    }

    fn is_predicted(&self) {
        std::fs::write(self.path("key"), "a key of sixteen bytes and more").unwrap();
        // Warm-up: an engine's one-time work.
        self.load("first", &LENGTHS, self.rate, "5s");
        self.load("fitted", &LENGTHS, self.rate, "60s");
        // A light load does not show how many sequences run at once.
        self.load("queueing", &LENGTHS, self.overload, "8s");
        eprintln!("{:#}", self.fit());
        self.load("half the rate", &LENGTHS, self.rate / 2.0, "40s");
        self.load("half as much again", &LENGTHS, self.rate * 1.5, "40s");
        self.load("longer", &LONGER, self.rate / 2.0, "40s");
        self.load("shared prefixes", &PREFIXES, self.rate, "40s");
        let (scaled, cut) = (self.text("scaled.jsonl.zst"), self.text("cut.jsonl.zst"));
        let lengths = ["--isl", "0.0078125x", "--osl", "0.0625x"];
        trace(&[&["scale", MOONCAKE, "--output-format", "streamgauge", "--output", &scaled], &lengths[..]].concat());
        trace(&["cut", &scaled, "--from", "0s", "--to", "60s", "--output", &cut]);
        self.capture("Mooncake", &["replay", &cut, "--dialect=openai.completions", "--models=*=tiny"], self.rate);

        let loads = ["half the rate", "half as much again", "longer", "shared prefixes", "Mooncake"];
        let errors = loads.map(|load| self.errors(load));
        let medians: Vec<f64> = (0..FIGURES.len()).map(|figure| median(errors.map(|of| of.0[figure].abs()))).collect();
        let goodput = median(errors.map(|of| of.1.abs()));
        eprintln!("| {} | median of all loads | goodput | | | {goodput:.3} |", self.name);
        for ((figure, percentile), error) in FIGURES.into_iter().zip(&medians) {
            eprintln!("| {} | median of all loads | {figure} {percentile} | | | {:.0} % |", self.name, 100.0 * error);
        }
        let [measured, predicted] = self.saturation();
        eprintln!("| {} | saturated | output tokens/s | {measured:.0} | {predicted:.0} | |", self.name);
        for ((figure, percentile), error) in FIGURES.into_iter().zip(&medians) {
            let most = if percentile == "p50" { MAX_MEDIAN_ERRORS[0] } else { MAX_MEDIAN_ERRORS[1] };
            assert!(*error < most, "{figure} {percentile}: {error}");
        }
        assert!(goodput < MAX_GOODPUT_ERROR, "{goodput}");
        assert!(
            (predicted / measured - 1.0).abs() < MAX_THROUGHPUT_ERROR,
            "{measured} tokens/s, {predicted} predicted"
        );
    }
}

fn median<const N: usize>(mut values: [f64; N]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[N / 2]
}

#[test]
#[ignore = "takes five minutes: tests/run --real"]
fn a_twin_of_llama_server_predicts_other_loads() {
    let _turn = timed_turn();
    let llama = tools::llama();
    let subject =
        Subject { name: "llama-server", engine: &llama, rate: 4.0, overload: 20.0, folder: tempdir().unwrap() };
    subject.is_predicted();
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn a_twin_of_vllm_predicts_other_loads() {
    let _turn = timed_turn();
    let vllm = tools::vllm();
    Subject { name: "vLLM", engine: &vllm, rate: 6.0, overload: 60.0, folder: tempdir().unwrap() }.is_predicted();
}
