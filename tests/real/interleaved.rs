//! Sends one load with AIPerf, vLLM's own benchmark and `streamgauge load`, in turns against one vLLM behind one proxy.
//! Compares each tool's report with ours by its definitions.
//!
//! Runs differ, so each tool is run several times, forwards and backwards in turns. Our median over the runs has to be
//! within the tool's own spread (max - min of its reports) of the tool's median. A client's own work may add 1 ms or 1
//! %.
//!
//! A client that takes more of the machine leaves less for the engine and its HTTP server. Then they are slower, and
//! not the client's clock. So a latency is compared after subtracting the proxy's of that run, which is one for all of
//! them. A rate is compared as its requests in flight, rate times E2E, because a closed loop has always as many.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tempfile::tempdir;

use super::clients::{median, of_aiperf, of_vllm_bench, url};
use super::program::{ProxyProcess, count, streamgauge, sum};
use super::{processes, tools};

/// Runs of each.
const ROUNDS: usize = 5;
/// The load of the other tools in `tests/tools/start`.
const LOAD: [&str; 4] = ["--requests=40", "--concurrency=4", "--isl=50", "--osl=100"];

/// The unit of a figure, and its counterpart.
#[derive(Clone, Copy)]
enum Kind {
    /// Milliseconds, beside what the proxy has under this name.
    Latency(&'static str),
    /// Milliseconds that begin before the client has sent the request, beside the proxy's value of this name.
    Whole(&'static str),
    /// Per second.
    Rate,
    Tokens,
}

impl Kind {
    /// How far two tools may be apart without a spread, in that figure.
    fn allowance(self, reported: f64, compared: f64) -> f64 {
        match self {
            Self::Latency(_) | Self::Whole(_) => f64::max(1.0, reported / 100.0),
            Self::Rate => compared / 100.0,
            Self::Tokens => 0.0,
        }
    }

    /// How far the runs of one tool are apart, in the figure that is compared.
    fn spread(self, reported: Over, compared: f64) -> f64 {
        match self {
            Self::Rate => (reported.max - reported.min) / reported.median * compared,
            _ => reported.max - reported.min,
        }
    }

    fn of_proxy(self) -> Option<&'static str> {
        match self {
            Self::Latency(name) | Self::Whole(name) => Some(name),
            Self::Rate | Self::Tokens => None,
        }
    }
}

/// One number, and where it stands in the result of each.
struct Figure {
    name: &'static str,
    kind: Kind,
    ours: &'static str,
    aiperf: &'static str,
    vllm: fn(&Value) -> Option<f64>,
}

const FIGURES: [Figure; 8] = [
    Figure {
        name: "TTFT, mean ms",
        kind: Kind::Whole("gen_ai_server_time_to_first_token_seconds"),
        ours: "/metrics/ttft/avg",
        aiperf: "/time_to_first_token/avg",
        vllm: |document| document["mean_ttft_ms"].as_f64(),
    },
    Figure {
        name: "ITL, mean ms",
        kind: Kind::Latency("streamgauge_stream_inter_token_latency_seconds"),
        ours: "/metrics/itl/avg",
        aiperf: "/inter_token_latency/avg",
        vllm: |document| document["mean_itl_ms"].as_f64(),
    },
    Figure {
        name: "TPOT, mean ms",
        kind: Kind::Latency("gen_ai_server_time_per_output_token_seconds"),
        ours: "/metrics/tpot/avg",
        // It has none.
        aiperf: "/tpot",
        vllm: |document| document["mean_tpot_ms"].as_f64(),
    },
    Figure {
        name: "E2E, mean ms",
        kind: Kind::Whole("gen_ai_server_request_duration_seconds"),
        ours: "/metrics/e2e/avg",
        aiperf: "/request_latency/avg",
        vllm: |document| document["mean_e2el_ms"].as_f64(),
    },
    Figure {
        name: "requests/s",
        kind: Kind::Rate,
        ours: "/throughput/requests",
        aiperf: "/request_throughput/avg",
        vllm: |document| document["request_throughput"].as_f64(),
    },
    Figure {
        name: "output tokens/s",
        kind: Kind::Rate,
        ours: "/throughput/output_tokens",
        aiperf: "/output_token_throughput/avg",
        vllm: |document| document["output_throughput"].as_f64(),
    },
    Figure {
        name: "ISL p50",
        kind: Kind::Tokens,
        ours: "/metrics/isl/p50",
        aiperf: "/input_sequence_length/p50",
        vllm: |document| lengths(&document["input_lens"]),
    },
    Figure {
        name: "OSL p50",
        kind: Kind::Tokens,
        ours: "/metrics/osl/p50",
        aiperf: "/output_sequence_length/p50",
        vllm: |document| lengths(&document["output_lens"]),
    },
];

fn lengths(all: &Value) -> Option<f64> {
    Some(median(all.as_array()?.iter().filter_map(Value::as_f64)))
}

/// E2E among [`FIGURES`].
const E2E: usize = 3;

/// One run: every figure of [`FIGURES`], the proxy's measurements, and the client's time before sending.
struct Ran {
    figures: Vec<Option<f64>>,
    proxy: Vec<Option<f64>>,
    before: f64,
}

impl Ran {
    /// The value of a figure that is compared.
    fn compared(&self, at: usize) -> Option<f64> {
        let (figure, proxy) = (self.figures[at]?, self.proxy[at]);
        Some(match FIGURES[at].kind {
            Kind::Latency(_) => figure - proxy?,
            Kind::Whole(_) => figure - self.before - proxy?,
            Kind::Rate => figure * self.figures[E2E]? / 1e3,
            Kind::Tokens => figure,
        })
    }
}

/// Sums and counts of the proxy's latencies so far.
fn clocks(proxy: &ProxyProcess) -> Vec<Option<(f64, f64)>> {
    let table = proxy.scrape();
    let of = |figure: &Figure| {
        let name = figure.kind.of_proxy()?;
        Some((sum(&table, name, &[]) * 1e3, count(&table, name, &[]) as f64))
    };
    FIGURES.iter().map(of).collect()
}

/// The proxy's means, in milliseconds, while `run` runs.
fn observing<T>(proxy: &ProxyProcess, run: impl FnOnce() -> T) -> (T, Vec<Option<f64>>) {
    let began = clocks(proxy);
    let done = run();
    let grown = began.into_iter().zip(clocks(proxy)).map(|(began, ended)| {
        let ((sum, count), (sum_after, count_after)) = (began?, ended?);
        Some((sum_after - sum) / (count_after - count))
    });
    (done, grown.collect())
}

fn result(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn aiperf(proxy: &ProxyProcess) -> Ran {
    let folder = tempdir().unwrap();
    let ((), measured) =
        observing(proxy, || tools::run("aiperf", &[&url(proxy.addr), folder.path().to_str().unwrap()]));
    let document = result(&folder.path().join("profile_export_aiperf.json"));
    let figures = FIGURES.iter().map(|figure| document.pointer(figure.aiperf)?.as_f64()).collect();
    Ran { figures, proxy: measured, before: median(of_aiperf(folder.path()).values().map(|times| times.before)) }
}

fn vllm_bench(proxy: &ProxyProcess) -> Ran {
    let folder = tempdir().unwrap();
    let ((), measured) =
        observing(proxy, || tools::run("vllm-bench", &[&url(proxy.addr), folder.path().to_str().unwrap()]));
    let document = result(&folder.path().join("vllm_bench.json"));
    let figures = FIGURES.iter().map(|figure| (figure.vllm)(&document)).collect();
    Ran { figures, proxy: measured, before: median(of_vllm_bench(folder.path()).values().map(|times| times.before)) }
}

fn printed(arguments: &[&str]) -> Vec<u8> {
    let done = streamgauge(arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// Ours, by the definitions of AIPerf and by those of vLLM's benchmark. The others leave it to the server's template to
/// make prompts longer, and so does this.
fn ours(proxy: &ProxyProcess) -> [Ran; 2] {
    let folder = tempdir().unwrap();
    let (out, tokenizer) = (folder.path().join("run"), tools::tokenizer());
    let (out, tokenizer) = (out.to_str().unwrap(), tokenizer.to_str().unwrap());
    let flags = ["--model=tiny", "--prompt-overhead=0", "--no-audit", "--tokenizer", tokenizer, "--out", out];
    let url = url(proxy.addr);
    let load = [&["load", "--target", &url], &LOAD[..], &flags].concat();
    let (_, measured) = observing(proxy, || printed(&load));
    ["aiperf", "vllm"].map(|definitions| {
        let output = printed(&["report", out, "--json", "--definitions", definitions]);
        let report: Value = serde_json::from_slice(&output).unwrap();
        let figures = FIGURES.iter().map(|figure| report.pointer(figure.ours)?.as_f64()).collect();
        Ran { figures, proxy: measured.clone(), before: 0.0 }
    })
}

/// The values of one figure over the runs: median, least and greatest.
#[derive(Clone, Copy)]
struct Over {
    median: f64,
    min: f64,
    max: f64,
}

fn over(runs: &[Ran], of: impl Fn(&Ran) -> Option<f64>) -> Option<Over> {
    let values: Vec<f64> = runs.iter().filter_map(of).collect();
    let (min, max) = (values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max));
    (values.len() == runs.len()).then(|| Over { median: median(values), min, max })
}

fn shown(over: Option<Over>) -> String {
    over.map_or_else(String::new, |of| format!("{:.2} ({:.2} to {:.2})", of.median, of.min, of.max))
}

/// Adds two cells to a row; what is wrong if ours is too far off.
fn compare(row: &mut String, figure: &Figure, at: usize, theirs: &[Ran], ours: &[Ran]) -> Option<String> {
    let (reported, own) = (over(theirs, |ran| ran.figures[at]), over(ours, |ran| ran.figures[at]));
    if reported.is_none() {
        row.push_str(" – | – |");
        return None;
    }
    _ = write!(row, " {} | {} |", shown(reported), shown(own));
    let (reported, theirs, own) =
        (reported?, over(theirs, |ran| ran.compared(at))?, over(ours, |ran| ran.compared(at))?);
    let apart = (own.median - theirs.median).abs();
    let most = figure.kind.spread(reported, theirs.median) + figure.kind.allowance(reported.median, theirs.median);
    let message = || format!("{}: {:.3} and ours {:.3}, {most:.3} is the most", figure.name, theirs.median, own.median);
    (apart > most).then(message)
}

#[test]
#[ignore = "needs vLLM and AIPerf: tests/run --real"]
fn aiperf_and_vllm_bench_agree_with_report_by_their_definitions() {
    let _turn = processes::exclusive_turn();
    let vllm = tools::vllm();
    let proxy = ProxyProcess::to(vllm.addr);
    // Warm-up: an engine's one-time work.
    ours(&proxy);
    let (mut of_aiperf, mut of_vllm, mut as_aiperf, mut as_vllm) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for turn in 0..3 {
            match if round % 2 == 0 { turn } else { 2 - turn } {
                0 => of_aiperf.push(aiperf(&proxy)),
                1 => of_vllm.push(vllm_bench(&proxy)),
                _ => {
                    let [by_aiperf, by_vllm] = ours(&proxy);
                    as_aiperf.push(by_aiperf);
                    as_vllm.push(by_vllm);
                }
            }
        }
    }
    eprintln!(
        "| median (min to max) of {ROUNDS} runs | AIPerf | ours by its definitions | vLLM bench | ours by its definitions |"
    );
    eprintln!("|---|---|---|---|---|");
    let before = |runs: &[Ran]| shown(over(runs, |ran| Some(ran.before)));
    eprintln!("| before the request had left, ms | {} | | {} | |", before(&of_aiperf), before(&of_vllm));
    let mut far = Vec::new();
    for (at, figure) in FIGURES.iter().enumerate() {
        let mut row = format!("| {} |", figure.name);
        far.extend(compare(&mut row, figure, at, &of_aiperf, &as_aiperf).map(|message| format!("AIPerf, {message}")));
        far.extend(compare(&mut row, figure, at, &of_vllm, &as_vllm).map(|message| format!("vLLM bench, {message}")));
        eprintln!("{row}");
        if figure.kind.of_proxy().is_some() {
            let all = [&of_aiperf, &as_aiperf, &of_vllm, &as_vllm];
            let proxy = all.map(|runs| shown(over(runs, |ran| ran.proxy[at])));
            eprintln!("| the same by the proxy | {} |", proxy.join(" | "));
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}
