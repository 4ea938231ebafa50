//! Maps other load generators' flags to ours, for error messages.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::command;

/// vLLM's `vllm bench serve`.
const VLLM: &str = "vllm bench";
/// NVIDIA's AIPerf.
const AIPERF: &str = "AIPerf";
const GUIDELLM: &str = "GuideLLM";
/// NVIDIA's predecessor of AIPerf.
const GENAI_PERF: &str = "genai-perf";

/// The other tool's flag, the tool, and our equivalent.
const ALIASES: &[(&str, &str, &str)] = &[
    ("--api-key", AIPERF, "--api-key-env NAME"),
    ("--arrival-pattern", AIPERF, "--arrivals"),
    ("--arrival-smoothness", AIPERF, "--arrivals gamma:SHAPE"),
    ("--artifact-dir", AIPERF, "--out DIR"),
    ("--backend", VLLM, "--dialect, as in openai.chat"),
    ("--backend-type", GUIDELLM, "--dialect, as in openai.chat"),
    ("--base-url", VLLM, "--target URL"),
    ("--bench-params", VLLM, "`streamgauge sweep --matrix FILE`"),
    ("--benchmark-duration", AIPERF, "--duration, as in 60s"),
    ("--burstiness", VLLM, "--arrivals gamma:SHAPE"),
    ("--concurrency-max", AIPERF, "`streamgauge sweep --concurrencies`, as in 1..64"),
    ("--concurrency-min", AIPERF, "`streamgauge sweep --concurrencies`, as in 1..64"),
    ("--concurrency-ramp-duration", AIPERF, "--stages FROM..TO@TIME"),
    ("--concurrency-steps", AIPERF, "`streamgauge sweep --concurrencies`, as in 1..64"),
    ("--connection-reuse-strategy", AIPERF, "--connections"),
    ("--constraint", GUIDELLM, "--requests or --duration"),
    ("--conversation-num", AIPERF, "--requests, which counts every turn"),
    ("--conversation-turn-delay-mean", AIPERF, "--think"),
    ("--conversation-turn-delay-stddev", AIPERF, "--think normal:MEAN:SD"),
    ("--conversation-turn-mean", AIPERF, "--turns"),
    ("--conversation-turn-stddev", AIPERF, "--turns normal:MEAN:SD"),
    ("--cooldown-percent", GUIDELLM, "--cooldown, a time"),
    ("--custom-dataset-type", AIPERF, "`streamgauge replay TRACE`, which finds the format out"),
    ("--custom-endpoint", AIPERF, "--dialect, as in openai.chat"),
    ("--custom-output-len", VLLM, "--osl"),
    ("--data", GUIDELLM, "--isl and --osl, or `streamgauge replay TRACE`"),
    ("--dataset-name", VLLM, "--isl and --osl, or `streamgauge replay TRACE`"),
    ("--dataset-path", VLLM, "`streamgauge replay TRACE`"),
    ("--default-over-saturation", GUIDELLM, "what `streamgauge sweep --find-max` does"),
    ("--detect-saturation", GUIDELLM, "what `streamgauge sweep --find-max` does"),
    ("--e2e-sla-ms", AIPERF, "`streamgauge sweep --find-max`, as in 'e2e.p99<=5s'"),
    ("--endpoint", VLLM, "--dialect, as in openai.chat"),
    ("--endpoint-type", AIPERF, "--dialect, as in openai.chat"),
    ("--fixed-schedule", AIPERF, "`streamgauge replay TRACE`, which keeps the trace's times"),
    ("--fixed-schedule-end-offset", AIPERF, "--to, as in 60s, of `streamgauge replay TRACE`"),
    ("--fixed-schedule-start-offset", AIPERF, "--from, as in 10s, of `streamgauge replay TRACE`"),
    ("--force-min-tokens", AIPERF, "--exact-output on"),
    ("--goodput", VLLM, "--slo, as in 'chat: ttft<=500ms tpot<=50ms'"),
    ("--gpu-telemetry", AIPERF, "--server-metrics URL, of a DCGM exporter"),
    ("--hf-output-len", VLLM, "--osl"),
    ("--host", VLLM, "--target URL"),
    ("--ignore-eos", VLLM, "--exact-output on"),
    ("--input-file", AIPERF, "`streamgauge replay TRACE`"),
    ("--input-len", VLLM, "--isl"),
    ("--input-tokens-mean", AIPERF, "--isl"),
    ("--input-tokens-stddev", AIPERF, "--isl normal:MEAN:SD"),
    ("--insecure", VLLM, "--target-ca FILE, with the server's certificate"),
    ("--isl-max", AIPERF, "`streamgauge sweep --matrix FILE`"),
    ("--isl-min", AIPERF, "`streamgauge sweep --matrix FILE`"),
    ("--isl-osl-pairs", AIPERF, "`streamgauge sweep --matrix FILE`, or --lengths"),
    ("--isl-stddev", AIPERF, "--isl normal:MEAN:SD"),
    ("--itl-sla-ms", AIPERF, "`streamgauge sweep --find-max`, as in 'itl.p99<=50ms'"),
    ("--label", VLLM, "--meta KEY=VALUE"),
    ("--max-concurrency", VLLM, "--concurrency, or --max-in-flight beside --rate"),
    ("--max-requests", GUIDELLM, "--requests"),
    ("--max-seconds", GUIDELLM, "--duration, as in 60s"),
    ("--max-workers", AIPERF, "--workers"),
    ("--measurement-interval", GENAI_PERF, "--duration, as in 60s"),
    ("--metadata", VLLM, "--meta KEY=VALUE"),
    ("--metric-percentiles", VLLM, "`streamgauge report --percentiles`"),
    ("--model-names", AIPERF, "--model"),
    ("--no-server-metrics", AIPERF, "what is done without --server-metrics"),
    ("--num-conversations", AIPERF, "--requests, which counts every turn"),
    ("--num-prefix-prompts", AIPERF, "--prefix-groups"),
    ("--num-prompts", VLLM, "--requests"),
    ("--num-requests", AIPERF, "--requests"),
    ("--num-sessions", AIPERF, "--requests, which counts every turn"),
    ("--num-users", AIPERF, "--concurrency, with --turns and --think"),
    ("--num-warmup-requests", AIPERF, "--warmup, as in 10req"),
    ("--num-warmup-sessions", AIPERF, "--warmup, as in 10req"),
    ("--num-warmups", VLLM, "--warmup, as in 10req"),
    ("--open-loop-replay", AIPERF, "what `streamgauge replay TRACE` always is"),
    ("--osl-max", AIPERF, "`streamgauge sweep --matrix FILE`"),
    ("--osl-min", AIPERF, "`streamgauge sweep --matrix FILE`"),
    ("--osl-stddev", AIPERF, "--osl normal:MEAN:SD"),
    ("--output", GUIDELLM, "--out DIR"),
    ("--output-artifact-dir", AIPERF, "--out DIR"),
    ("--output-dir", GUIDELLM, "--out DIR"),
    ("--output-formats", GUIDELLM, "--out-format"),
    ("--output-len", VLLM, "--osl"),
    ("--output-path", GUIDELLM, "--out DIR"),
    ("--output-tokens-mean", AIPERF, "--osl"),
    ("--output-tokens-mean-deterministic", GENAI_PERF, "--exact-output on"),
    ("--output-tokens-stddev", AIPERF, "--osl normal:MEAN:SD"),
    ("--percentile-metrics", VLLM, "`streamgauge report --percentiles`, of all metrics"),
    ("--plot-timeline", VLLM, "`streamgauge report --html`"),
    ("--port", VLLM, "--target URL"),
    ("--prefix-prompt-length", AIPERF, "--shared-prefix"),
    ("--prefix-prompt-pool-size", AIPERF, "--prefix-groups"),
    ("--prefix-repetition-num-prefixes", VLLM, "--prefix-groups"),
    ("--prefix-repetition-output-len", VLLM, "--osl"),
    ("--prefix-repetition-prefix-len", VLLM, "--shared-prefix"),
    ("--prefix-repetition-suffix-len", VLLM, "--isl, which has the --shared-prefix in it"),
    ("--processor", GUIDELLM, "--tokenizer FILE"),
    ("--profile", GUIDELLM, "--arrivals constant or poisson with --rate, or --concurrency"),
    ("--profile-export-file", AIPERF, "--out DIR"),
    ("--profile-export-prefix", AIPERF, "--out DIR"),
    ("--prompt-input-tokens-mean", AIPERF, "--isl"),
    ("--prompt-input-tokens-stddev", AIPERF, "--isl normal:MEAN:SD"),
    ("--prompt-output-tokens-mean", AIPERF, "--osl"),
    ("--prompt-output-tokens-stddev", AIPERF, "--osl normal:MEAN:SD"),
    ("--prompt-prefix-length", AIPERF, "--shared-prefix"),
    ("--prompt-prefix-pool-size", AIPERF, "--prefix-groups"),
    ("--public-dataset", AIPERF, "`streamgauge replay TRACE`"),
    ("--ramp-up-end-rps", VLLM, "--stages FROM..TO@TIME"),
    ("--ramp-up-start-rps", VLLM, "--stages FROM..TO@TIME"),
    ("--ramp-up-strategy", VLLM, "--stages FROM..TO@TIME"),
    ("--rampup", GUIDELLM, "--stages FROM..TO@TIME"),
    ("--random-input-len", VLLM, "--isl"),
    ("--random-output-len", VLLM, "--osl"),
    ("--random-prefix-len", VLLM, "--shared-prefix"),
    ("--random-range-ratio", VLLM, "--isl uniform:A:B"),
    ("--random-seed", AIPERF, "--seed"),
    ("--rate-type", GUIDELLM, "--arrivals constant or poisson with --rate, or --concurrency"),
    ("--replay-speedup", AIPERF, "`streamgauge replay --speed`"),
    ("--request-cancellation-delay", AIPERF, "--cancel-after"),
    ("--request-cancellation-rate", AIPERF, "--cancel-rate, as in 20%"),
    ("--request-count", AIPERF, "--requests"),
    ("--request-format", GUIDELLM, "--dialect, as in openai.chat"),
    ("--request-rate", VLLM, "--rate, and with inf --concurrency N --requests N"),
    ("--request-rate-mode", AIPERF, "--arrivals"),
    ("--request-rate-ramp-duration", AIPERF, "--stages FROM..TO@TIME"),
    ("--request-rate-series", AIPERF, "--stages RATE@TIME,RATE@TIME"),
    ("--request-timeout-seconds", AIPERF, "--timeout, as in 60s"),
    ("--request-type", GUIDELLM, "--dialect, as in openai.chat"),
    ("--result-dir", VLLM, "--out DIR"),
    ("--result-filename", VLLM, "--out DIR"),
    ("--resume", VLLM, "what `streamgauge sweep` does when it is given the same --out"),
    ("--save-detailed", VLLM, "--out DIR"),
    ("--save-result", VLLM, "--out DIR"),
    ("--scenario", GUIDELLM, "`streamgauge sweep --matrix FILE`"),
    ("--search-metric", AIPERF, "`streamgauge sweep --find-max`"),
    ("--search-recipe", AIPERF, "`streamgauge sweep --find-max`"),
    ("--search-sla", AIPERF, "`streamgauge sweep --find-max`"),
    ("--search-space", AIPERF, "`streamgauge sweep --find-max`"),
    ("--self-timed", VLLM, "`streamgauge replay TRACE`, which keeps the trace's times"),
    ("--seq-dist", AIPERF, "--lengths FILE, with lines of ISL,OSL"),
    ("--sequence-distribution", AIPERF, "--lengths FILE, with lines of ISL,OSL"),
    ("--served-model-name", VLLM, "--model"),
    ("--service-kind", GENAI_PERF, "--dialect, as in openai.chat"),
    ("--session-turn-delay-mean", AIPERF, "--think"),
    ("--session-turn-delay-stddev", AIPERF, "--think normal:MEAN:SD"),
    ("--session-turns-mean", AIPERF, "--turns"),
    ("--session-turns-stddev", AIPERF, "--turns normal:MEAN:SD"),
    ("--shared-system-prompt-length", AIPERF, "--shared-prefix"),
    ("--sharegpt-output-len", VLLM, "--osl"),
    ("--slice-duration", AIPERF, "`streamgauge report --slice`, with --out-format aiperf-timeslices for its file"),
    ("--slo-attainment-fraction", AIPERF, "--fail-if, as in 'goodput<95%'"),
    ("--strategy", GUIDELLM, "--arrivals constant or poisson with --rate, or --concurrency"),
    ("--stream", AIPERF, "what is done without --no-stream"),
    ("--streaming", AIPERF, "what is done without --no-stream"),
    ("--synthesis-output-len-multiplier", AIPERF, "`streamgauge trace scale`, before `streamgauge replay TRACE`"),
    ("--synthesis-prefix-len-multiplier", AIPERF, "`streamgauge trace scale`, before `streamgauge replay TRACE`"),
    ("--synthesis-prefix-root-multiplier", AIPERF, "`streamgauge trace scale`, before `streamgauge replay TRACE`"),
    ("--synthesis-prompt-len-multiplier", AIPERF, "`streamgauge trace scale`, before `streamgauge replay TRACE`"),
    ("--synthesis-speedup-ratio", AIPERF, "`streamgauge replay --speed`"),
    ("--synthetic-input-tokens-mean", AIPERF, "--isl"),
    ("--synthetic-input-tokens-stddev", AIPERF, "--isl normal:MEAN:SD"),
    ("--tpot-sla-ms", AIPERF, "`streamgauge sweep --find-max`, as in 'tpot.p99<=50ms'"),
    ("--ttft-sla-ms", AIPERF, "`streamgauge sweep --find-max`, as in 'ttft.p99<=500ms'"),
    ("--url", AIPERF, "--target URL"),
    ("--url-strategy", AIPERF, "--target, which may be repeated and takes turns"),
    ("--vllm-burstiness", AIPERF, "--arrivals gamma:SHAPE"),
    ("--warmup-concurrency", AIPERF, "--warmup, which has the run's own load"),
    ("--warmup-duration", AIPERF, "--warmup, as in 30s"),
    ("--warmup-interval", GENAI_PERF, "--warmup, as in 30s"),
    ("--warmup-percent", GUIDELLM, "--warmup, a time or a number as in 100req"),
    ("--warmup-request-count", AIPERF, "--warmup, as in 10req"),
    ("--warmup-request-rate", AIPERF, "--warmup, which has the run's own load"),
    ("--workers-max", AIPERF, "--workers"),
    ("--workload-iters", VLLM, "`streamgauge sweep --rates` or --concurrencies"),
    ("--workload-var", VLLM, "`streamgauge sweep --rates` or --concurrencies"),
    ("-m", AIPERF, "--model"),
];

/// Verbs that suggest equivalents for other tools' flags and for each other's.
pub(in crate::cli) const VERBS_WITH_ALIASES: [&str; 4] = ["load", "replay", "sweep", "report"];

/// A one-line suggestion for a flag of another tool or another verb.
pub(in crate::cli) fn suggest(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    if let Some((flag, tool, ours)) = ALIASES.iter().find(|(flag, ..)| *flag == typed.as_str()) {
        return Some(format!("error: {flag} of {tool} is {ours} here"));
    }
    let whole = command();
    let has = |verb: &&&str| {
        let flags = whole.find_subcommand(verb).into_iter().flat_map(clap::Command::get_arguments);
        flags.filter_map(clap::Arg::get_long).any(|flag| typed.strip_prefix("--") == Some(flag))
    };
    let verbs: Vec<String> =
        VERBS_WITH_ALIASES.iter().filter(has).map(|verb| format!("`streamgauge {verb}`")).collect();
    (!verbs.is_empty()).then(|| format!("error: {typed} is no flag here, but one of {}", verbs.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(verb: &str) -> Vec<String> {
        let mut whole = command();
        let verb = whole.find_subcommand_mut(verb).unwrap();
        verb.get_arguments().filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
    }

    #[test]
    fn every_answer_is_a_flag_of_ours_and_no_question_is() {
        let ours = [flags("load"), flags("replay")].concat();
        let others = [flags("report"), flags("sweep")].concat();
        assert!(ALIASES.is_sorted());
        for (flag, _, answer) in ALIASES {
            assert!(!ours.contains(&(*flag).to_owned()), "{flag} is ours");
            let named = answer.split([' ', '`', ',']).filter(|word| word.starts_with("--"));
            let known = |word: &str| ours.iter().chain(&others).any(|flag| flag == word);
            assert!(named.clone().all(known), "{answer}");
            assert!(named.count() > 0 || answer.contains("`streamgauge "), "{answer}");
        }
    }

    #[test]
    fn only_flags_of_other_tools_are_answered() {
        let suggestion = |args: &[&str]| {
            let error = command().try_get_matches_from([&["streamgauge"], args].concat()).unwrap_err();
            suggest(&error)
        };
        let typed = ["load", "--target", "http://h", "--request-rate", "5"];
        assert_eq!(
            suggestion(&typed).as_deref(),
            Some("error: --request-rate of vllm bench is --rate, and with inf --concurrency N --requests N here")
        );
        for (typed, ours) in [
            (["--input-tokens-mean", "550"], "--input-tokens-mean of AIPerf is --isl here"),
            (["--input-tokens-stddev", "9"], "--input-tokens-stddev of AIPerf is --isl normal:MEAN:SD here"),
            (["--warmup-interval", "5000"], "--warmup-interval of genai-perf is --warmup, as in 30s here"),
            (["--measurement-interval", "9"], "--measurement-interval of genai-perf is --duration, as in 60s here"),
            (["--service-kind", "openai"], "--service-kind of genai-perf is --dialect, as in openai.chat here"),
            (["-m", "llama"], "-m of AIPerf is --model here"),
        ] {
            let args = [&["load", "--target", "http://h"], &typed[..]].concat();
            assert_eq!(suggestion(&args), Some(format!("error: {ours}")), "{typed:?}");
        }
        let joined = ["load", "--target", "http://h", "--num-prompts=5"];
        assert_eq!(suggestion(&joined).as_deref(), Some("error: --num-prompts of vllm bench is --requests here"));
        assert_eq!(suggestion(&["load", "--request-ratio", "5"]), None);
        let of_load = suggestion(&["replay", "t", "--target", "http://h", "--isl", "5"]);
        assert_eq!(
            of_load.as_deref(),
            Some("error: --isl is no flag here, but one of `streamgauge load` and `streamgauge sweep`")
        );
    }
}
