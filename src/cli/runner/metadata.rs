//! The metadata in `run.json`, known before the run starts: command line, workload, targets, machine, and server
//! information. It contains no header values and no keys.

use std::collections::BTreeMap;
use std::{env, fs, iter, thread};

use serde_json::{Map, Value, json};

use super::CLOSED_LOOP_KEY;
use super::calibrate::PromptCalibration;
use super::flags::RunnerArgs;
use super::self_test::SelfTestFindings;
use super::spec::WorkloadSpec;
use crate::measure::time::Window;
use crate::replay::sender::run::LoopMode;
use crate::replay::sender::target::TargetUrl;
use crate::replay::server::info::ServerInfo;
use crate::report::run_file::{ShardOfRun, VERSION};

/// The values of this flag are never stored.
const SECRET_FLAG: &str = "--header";

/// All metadata. `engines` follows the order of the targets.
pub(super) fn run_metadata(
    args: &RunnerArgs,
    spec: &WorkloadSpec,
    (targets, engines): (&[TargetUrl], &[ServerInfo]),
    (added, words): (u64, PromptCalibration),
    window: Window,
    audit: Option<SelfTestFindings>,
) -> Value {
    let names =
        args.connections.headers.iter().filter_map(|line| Some(line.split_once(':')?.0.trim().to_ascii_lowercase()));
    let reported = targets.iter().zip(engines).filter(|(_, info)| !info.is_empty());
    let engines: BTreeMap<String, &ServerInfo> = reported.map(|(target, info)| (target.to_string(), info)).collect();
    let shard = Some(spec.plan.shard).filter(|shard| shard.count > 1);
    json!({
        "streamgauge_run": VERSION,
        "version": env!("CARGO_PKG_VERSION"),
        "command": own_command(),
        "machine": machine(),
        "meta": args.output.meta.iter().cloned().collect::<BTreeMap<_, _>>(),
        "engines": engines,
        "trace": spec.trace,
        "load": spec.load,
        "shard": shard.map(|shard| ShardOfRun { index: shard.index + 1, count: shard.count }),
        "trace_digest": spec.digest,
        "trace_window": window,
        "targets": targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "header_names": names.collect::<Vec<_>>(),
        "body": args.requests.body.recorded(),
        "seed": args.requests.seed,
        "stretch": spec.plan.stretch,
        "slots": spec.slots,
        "warm_prefixes": !spec.warmup_rows.is_empty(),
        "prompt_overhead": added,
        "prompt_words": words,
        "audit": audit,
        "arrivals": spec.offered_rates,
        CLOSED_LOOP_KEY: spec.arrivals == LoopMode::Closed,
        "slos": args.evaluation.slos.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// This process's command line, with header values removed.
pub(in crate::cli) fn own_command() -> Vec<String> {
    command(env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()))
}

/// The command line, with header values removed.
fn command(typed: impl Iterator<Item = String>) -> Vec<String> {
    let name = |line: &str| line.split_once(':').map_or("…".to_owned(), |(name, _)| format!("{}: …", name.trim()));
    let mut of_header = false;
    let shown = typed.map(|word| match word.strip_prefix(SECRET_FLAG).and_then(|rest| rest.strip_prefix('=')) {
        _ if std::mem::replace(&mut of_header, word == SECRET_FLAG) => name(&word),
        Some(line) => format!("{SECRET_FLAG}={}", name(line)),
        None => word,
    });
    iter::once("streamgauge".to_owned()).chain(shown).collect()
}

/// The load generator's hardware and system. The host name is omitted, because results are shared.
pub(in crate::cli) fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (cpus, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let after = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
    };
    let kibibytes = after(&memory, "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
    let facts = [
        ("os", Some(json!(env::consts::OS))),
        ("kernel", Some(read("/proc/sys/kernel/osrelease").trim()).filter(|text| !text.is_empty()).map(Value::from)),
        ("arch", Some(json!(env::consts::ARCH))),
        ("cpu", after(&cpus, "model name").map(Value::from)),
        ("cores", thread::available_parallelism().ok().map(|cores| json!(cores.get()))),
        ("memory_bytes", kibibytes.map(|kibibytes| json!(kibibytes.saturating_mul(1_024)))),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_the_lines_of_its_headers() {
        let typed =
            "load --header|authorization: Bearer very-secret|--header=x-key: very-secret|--rate|5|--header|very-secret";
        let shown = command(typed.replacen(' ', "|", 1).split('|').map(str::to_owned));
        let expected = "streamgauge|load|--header|authorization: …|--header=x-key: …|--rate|5|--header|…";
        assert_eq!(shown.join("|"), expected);
    }
}
