//! Flags of other load generators, answered with ours of the same meaning.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// vLLM's `vllm bench serve`.
const VLLM: &str = "vllm bench";
/// NVIDIA's AIPerf.
const AIPERF: &str = "AIPerf";
/// GuideLLM.
const GUIDELLM: &str = "GuideLLM";

/// Their flag, whose it is, and what does the same here.
const TABLE: &[(&str, &str, &str)] = &[
    ("--api-key", AIPERF, "--api-key-env NAME"),
    ("--arrival-pattern", AIPERF, "--arrivals"),
    ("--arrival-smoothness", AIPERF, "--arrivals gamma:SHAPE"),
    ("--artifact-dir", AIPERF, "--out DIR"),
    ("--backend", VLLM, "--dialect, as in openai.chat"),
    ("--base-url", VLLM, "--target URL"),
    ("--benchmark-duration", AIPERF, "--duration, as in 60s"),
    ("--burstiness", VLLM, "--arrivals gamma:SHAPE"),
    ("--connection-reuse-strategy", AIPERF, "--connections"),
    ("--conversation-num", AIPERF, "--requests, which counts every turn"),
    ("--conversation-turn-delay-mean", AIPERF, "--think"),
    ("--conversation-turn-mean", AIPERF, "--turns"),
    ("--cooldown-percent", GUIDELLM, "--cooldown, a time"),
    ("--custom-dataset-type", AIPERF, "`streamgauge replay TRACE`, which finds the format out"),
    ("--data", GUIDELLM, "--isl and --osl, or `streamgauge replay TRACE`"),
    ("--dataset-path", VLLM, "`streamgauge replay TRACE`"),
    ("--endpoint", VLLM, "--dialect, as in openai.chat"),
    ("--endpoint-type", AIPERF, "--dialect, as in openai.chat"),
    ("--fixed-schedule", AIPERF, "`streamgauge replay TRACE`, which keeps the trace's times"),
    ("--fixed-schedule-end-offset", AIPERF, "--to, as in 60s, of `streamgauge replay TRACE`"),
    ("--fixed-schedule-start-offset", AIPERF, "--from, as in 10s, of `streamgauge replay TRACE`"),
    ("--force-min-tokens", AIPERF, "--exact-output on"),
    ("--goodput", VLLM, "--slo, as in 'chat: ttft<=500ms tpot<=50ms'"),
    ("--host", VLLM, "--target URL"),
    ("--ignore-eos", VLLM, "--exact-output on"),
    ("--input-file", AIPERF, "`streamgauge replay TRACE`"),
    ("--input-len", VLLM, "--isl"),
    ("--isl-stddev", AIPERF, "--isl normal:MEAN:SD"),
    ("--max-concurrency", VLLM, "--concurrency, or --max-in-flight beside --rate"),
    ("--max-requests", GUIDELLM, "--requests"),
    ("--max-seconds", GUIDELLM, "--duration, as in 60s"),
    ("--max-workers", AIPERF, "--workers"),
    ("--metadata", VLLM, "--meta KEY=VALUE"),
    ("--metric-percentiles", VLLM, "`streamgauge report --percentiles`"),
    ("--model-names", AIPERF, "--model"),
    ("--no-server-metrics", AIPERF, "what is done without --server-metrics"),
    ("--num-conversations", AIPERF, "--requests, which counts every turn"),
    ("--num-prefix-prompts", AIPERF, "--prefix-groups"),
    ("--num-prompts", VLLM, "--requests"),
    ("--num-requests", AIPERF, "--requests"),
    ("--num-sessions", AIPERF, "--requests, which counts every turn"),
    ("--num-warmup-requests", AIPERF, "--warmup, as in 10req"),
    ("--num-warmups", VLLM, "--warmup, as in 10req"),
    ("--osl-stddev", AIPERF, "--osl normal:MEAN:SD"),
    ("--output-artifact-dir", AIPERF, "--out DIR"),
    ("--output-dir", GUIDELLM, "--out DIR"),
    ("--output-formats", GUIDELLM, "--out-format"),
    ("--output-len", VLLM, "--osl"),
    ("--output-path", GUIDELLM, "--out DIR"),
    ("--output-tokens-mean", AIPERF, "--osl"),
    ("--output-tokens-stddev", AIPERF, "--osl normal:MEAN:SD"),
    ("--port", VLLM, "--target URL"),
    ("--prefix-prompt-length", AIPERF, "--shared-prefix"),
    ("--prefix-prompt-pool-size", AIPERF, "--prefix-groups"),
    ("--prefix-repetition-num-prefixes", VLLM, "--prefix-groups"),
    ("--prefix-repetition-output-len", VLLM, "--osl"),
    ("--prefix-repetition-prefix-len", VLLM, "--shared-prefix"),
    ("--processor", GUIDELLM, "--tokenizer FILE"),
    ("--profile", GUIDELLM, "--arrivals constant or poisson with --rate, or --concurrency"),
    ("--prompt-input-tokens-mean", AIPERF, "--isl"),
    ("--prompt-input-tokens-stddev", AIPERF, "--isl normal:MEAN:SD"),
    ("--prompt-output-tokens-mean", AIPERF, "--osl"),
    ("--prompt-output-tokens-stddev", AIPERF, "--osl normal:MEAN:SD"),
    ("--prompt-prefix-length", AIPERF, "--shared-prefix"),
    ("--prompt-prefix-pool-size", AIPERF, "--prefix-groups"),
    ("--ramp-up-end-rps", VLLM, "--stages FROM..TO@TIME"),
    ("--ramp-up-start-rps", VLLM, "--stages FROM..TO@TIME"),
    ("--ramp-up-strategy", VLLM, "--stages FROM..TO@TIME"),
    ("--rampup", GUIDELLM, "--stages FROM..TO@TIME"),
    ("--random-input-len", VLLM, "--isl"),
    ("--random-output-len", VLLM, "--osl"),
    ("--random-prefix-len", VLLM, "--shared-prefix"),
    ("--random-seed", AIPERF, "--seed"),
    ("--rate-type", GUIDELLM, "--arrivals constant or poisson with --rate, or --concurrency"),
    ("--replay-speedup", AIPERF, "`streamgauge replay --speed`"),
    ("--request-cancellation-delay", AIPERF, "--cancel-after"),
    ("--request-cancellation-rate", AIPERF, "--cancel-rate, as in 20%"),
    ("--request-count", AIPERF, "--requests"),
    ("--request-rate", VLLM, "--rate"),
    ("--request-rate-mode", AIPERF, "--arrivals"),
    ("--request-rate-ramp-duration", AIPERF, "--stages FROM..TO@TIME"),
    ("--request-rate-series", AIPERF, "--stages RATE@TIME,RATE@TIME"),
    ("--request-timeout-seconds", AIPERF, "--timeout, as in 60s"),
    ("--request-type", GUIDELLM, "--dialect, as in openai.chat"),
    ("--result-dir", VLLM, "--out DIR"),
    ("--save-detailed", VLLM, "--out DIR"),
    ("--save-result", VLLM, "--out DIR"),
    ("--search-recipe", AIPERF, "`streamgauge sweep --find-max`"),
    ("--search-sla", AIPERF, "`streamgauge sweep --find-max`"),
    ("--self-timed", VLLM, "`streamgauge replay TRACE`, which keeps the trace's times"),
    ("--served-model-name", VLLM, "--model"),
    ("--session-turn-delay-mean", AIPERF, "--think"),
    ("--session-turns-mean", AIPERF, "--turns"),
    ("--session-turns-stddev", AIPERF, "--turns normal:MEAN:SD"),
    ("--shared-system-prompt-length", AIPERF, "--shared-prefix"),
    ("--slice-duration", AIPERF, "`streamgauge report --slice`"),
    ("--streaming", AIPERF, "what is done without --no-stream"),
    ("--synthesis-speedup-ratio", AIPERF, "`streamgauge replay --speed`"),
    ("--synthetic-input-tokens-mean", AIPERF, "--isl"),
    ("--synthetic-input-tokens-stddev", AIPERF, "--isl normal:MEAN:SD"),
    ("--url", AIPERF, "--target URL"),
    ("--vllm-burstiness", AIPERF, "--arrivals gamma:SHAPE"),
    ("--warmup-duration", AIPERF, "--warmup, as in 30s"),
    ("--warmup-percent", GUIDELLM, "--warmup, a time or a number as in 100req"),
    ("--warmup-request-count", AIPERF, "--warmup, as in 10req"),
    ("--workers-max", AIPERF, "--workers"),
];

/// One line for whoever typed another tool's flag.
pub(in crate::cli) fn answer(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return None };
    let (flag, tool, ours) = TABLE.iter().find(|(flag, ..)| *flag == typed.as_str())?;
    (error.kind() == ErrorKind::UnknownArgument).then(|| format!("error: {flag} of {tool} is {ours} here"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn flags(verb: &str) -> Vec<String> {
        let mut whole = command();
        let verb = whole.find_subcommand_mut(verb).unwrap();
        verb.get_arguments().filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
    }

    #[test]
    fn every_answer_is_a_flag_of_ours_and_no_question_is() {
        let ours = [flags("load"), flags("replay")].concat();
        let others = [flags("report"), flags("sweep")].concat();
        assert!(TABLE.is_sorted());
        for (flag, _, answer) in TABLE {
            assert!(!ours.contains(&(*flag).to_owned()), "{flag} is ours");
            let named = answer.split([' ', '`', ',']).filter(|word| word.starts_with("--"));
            let known = |word: &str| ours.iter().chain(&others).any(|flag| flag == word);
            assert!(named.clone().all(known), "{answer}");
            assert!(named.count() > 0 || answer.contains("streamgauge replay"), "{answer}");
        }
    }

    #[test]
    fn only_flags_of_other_tools_are_answered() {
        let said = |args: &[&str]| {
            let error = command().try_get_matches_from([&["streamgauge"], args].concat()).unwrap_err();
            answer(&error)
        };
        let typed = ["load", "--target", "http://h", "--request-rate", "5"];
        assert_eq!(said(&typed).as_deref(), Some("error: --request-rate of vllm bench is --rate here"));
        let joined = ["load", "--target", "http://h", "--num-prompts=5"];
        assert_eq!(said(&joined).as_deref(), Some("error: --num-prompts of vllm bench is --requests here"));
        assert_eq!(said(&["load", "--request-ratio", "5"]), None);
    }
}
