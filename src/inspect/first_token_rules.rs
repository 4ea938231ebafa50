//! First-token definitions of other benchmark tools, as data.
//!
//! A rule is a list of fields; the first event with any of them is the tool's first token. The rules follow the
//! sources of AIPerf 0.13.0, vLLM 0.33.0 (Python) and its Rust client, SGLang 0.5.23, GuideLLM 0.8.1, GenAI-Bench and
//! inference-perf 0.7.0.

use crate::measure::dialect::event_fields::{EventFields, FieldKind};

/// One benchmark tool.
#[derive(Debug)]
pub struct BenchmarkTool {
    /// Machine-readable name.
    pub key: &'static str,
    /// Display name.
    pub name: &'static str,
    /// Its rule per dialect name.
    rules: &'static [(&'static str, FirstTokenRule)],
}

/// Condition for the first-token event.
#[derive(Clone, Copy, Debug)]
pub struct FirstTokenRule {
    /// Fields of which any one suffices.
    pub any: &'static [FieldKind],
    /// Field without which the tool ignores the event.
    pub only: Option<FieldKind>,
}

const CHAT: &str = "openai.chat";
const COMPLETIONS: &str = "openai.completions";
const RESPONSES: &str = "openai.responses";
const SGLANG: &str = "sglang.generate";

/// Accepts the first event with any of these fields.
const fn any(any: &'static [FieldKind]) -> FirstTokenRule {
    FirstTokenRule { any, only: None }
}

/// All tools.
pub static PEERS: &[BenchmarkTool] = {
    use FieldKind::*;
    &[
        BenchmarkTool {
            key: "aiperf",
            name: "AIPerf",
            rules: &[
                (
                    CHAT,
                    FirstTokenRule { any: &[Content, Reasoning, ReasoningContent, ToolText], only: Some(ChatChunk) },
                ),
                (COMPLETIONS, any(&[Text])),
                (RESPONSES, any(&[OutputText, ReasoningText, ReasoningSummary, FunctionArguments])),
            ],
        },
        BenchmarkTool {
            key: "vllm_bench_py",
            name: "vLLM bench",
            rules: &[
                (CHAT, any(&[Content, Reasoning, ToolCalls, FunctionCall, HeldBack])),
                (COMPLETIONS, any(&[Choices])),
                (RESPONSES, any(&[OutputText, ReasoningText])),
            ],
        },
        BenchmarkTool {
            key: "vllm_bench_rs",
            name: "vLLM bench (Rust)",
            rules: &[(CHAT, any(&[Choices])), (COMPLETIONS, any(&[Choices]))],
        },
        BenchmarkTool {
            key: "sglang_bench",
            name: "SGLang bench",
            rules: &[
                (CHAT, any(&[Content, Reasoning, ReasoningContent])),
                (COMPLETIONS, any(&[Text])),
                (SGLANG, any(&[Text])),
            ],
        },
        BenchmarkTool {
            key: "guidellm",
            name: "GuideLLM",
            rules: &[
                (CHAT, any(&[Content, Reasoning, ReasoningContent, ToolCalls])),
                (COMPLETIONS, any(&[Text])),
                (RESPONSES, any(&[OutputText, ReasoningSummary, FunctionArguments])),
            ],
        },
        BenchmarkTool {
            key: "genai_bench",
            name: "GenAI-Bench",
            rules: &[(CHAT, any(&[Content, Reasoning, ReasoningContent]))],
        },
        BenchmarkTool { key: "inference_perf", name: "inference-perf", rules: &[(CHAT, any(&[Content]))] },
    ]
};

impl BenchmarkTool {
    /// The tool's rule for a dialect; `None` if it does not support that dialect.
    pub fn rule(&self, dialect: &str) -> Option<FirstTokenRule> {
        self.rules.iter().find(|(spoken, _)| *spoken == dialect).map(|(_, rule)| *rule)
    }
}

impl FirstTokenRule {
    /// The index of the first-token event, from 0, and the field that decided.
    pub fn first(self, events: impl IntoIterator<Item = EventFields>) -> Option<(u64, FieldKind)> {
        (0..).zip(events).find_map(|(at, facts)| Some((at, self.field_of(facts)?)))
    }

    fn field_of(self, facts: EventFields) -> Option<FieldKind> {
        let seen = self.only.is_none_or(|only| facts.has(only));
        self.any.iter().copied().find(|what| seen && facts.has(*what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first-token index per tool key, for events of a dialect.
    fn first_tokens(dialect: &str, events: &[&str]) -> Vec<(&'static str, Option<u64>)> {
        let facts = || events.iter().map(|event| EventFields::of(event.as_bytes()));
        let first = |peer: &BenchmarkTool| Some((peer.key, peer.rule(dialect)?.first(facts()).map(|(at, _)| at)));
        PEERS.iter().filter_map(first).collect()
    }

    #[test]
    fn each_tool_has_its_own_first_token() {
        let chunk = |delta: &str| {
            format!(r#"{{"object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{{delta}}}}}]}}"#)
        };
        let events = [
            r#": {"object":"","choices":[]}"#.to_owned(),
            chunk(r#""role":"assistant","content":"""#),
            chunk(r#""content":"""#),
            chunk(r#""tool_calls":[{"index":0,"id":"x"}]"#),
            chunk(r#""tool_calls":[{"function":{"arguments":"{"}}]"#),
            chunk(r#""reasoning_content":"a""#),
            chunk(r#""content":"b""#),
        ];
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let expected = [
            ("aiperf", Some(4)),
            ("vllm_bench_py", Some(2)),
            ("vllm_bench_rs", Some(1)),
            ("sglang_bench", Some(5)),
            ("guidellm", Some(3)),
            ("genai_bench", Some(5)),
            ("inference_perf", Some(6)),
        ];
        assert_eq!(first_tokens("openai.chat", &events), expected);
        assert_eq!(first_tokens("openai.chat", &events[..1]), expected.map(|(key, _)| (key, None)));
    }

    #[test]
    fn aiperf_looks_only_at_what_says_that_it_is_a_chunk() {
        let events = [r#"{"object":"chunk","choices":[{"delta":{"content":"a"}}]}"#];
        assert_eq!(first_tokens("openai.chat", &events)[..2], [("aiperf", None), ("vllm_bench_py", Some(0))]);
    }

    #[test]
    fn a_peer_has_no_first_token_in_a_dialect_that_it_does_not_speak() {
        let response = |kind: &str| format!(r#"{{"type":"response.{kind}.delta","delta":"a"}}"#);
        let events = ["reasoning_text", "reasoning_summary_text", "output_text"].map(response);
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let expected = [("aiperf", Some(0)), ("vllm_bench_py", Some(0)), ("guidellm", Some(1))];
        assert_eq!(first_tokens("openai.responses", &events), expected);
        assert_eq!(
            first_tokens("sglang.generate", &[r#"{"text":""}"#, r#"{"text":"a"}"#]),
            [("sglang_bench", Some(1))]
        );
        assert_eq!(first_tokens("anthropic.messages", &events), []);
        let silent = [r#"{"choices":[{"text":""}]}"#, r#"{"choices":[{"text":"a"}]}"#];
        let expected = [
            ("aiperf", Some(1)),
            ("vllm_bench_py", Some(0)),
            ("vllm_bench_rs", Some(0)),
            ("sglang_bench", Some(1)),
            ("guidellm", Some(1)),
        ];
        assert_eq!(first_tokens("openai.completions", &silent), expected);
    }
}
