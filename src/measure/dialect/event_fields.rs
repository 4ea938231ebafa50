//! Fields of events in OpenAI's APIs, as far as any tool's first-token rule needs them.
//!
//! A [`Delta`](super::Delta) has this program's reading of an event; other tools check other fields. [`EventFields`]
//! takes four bytes and holds no text, so it can be stored per event. Collecting the fields parses the event in full,
//! so only `inspect` and reports do it, never the proxy.

use serde_json::Value;

/// A field that an event may contain. With several choices only the first in the event counts, as in all tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A non-empty list of choices.
    Choices,
    /// The object type of a chat chunk.
    ChatChunk,
    /// A role.
    Role,
    /// Non-empty content.
    Content,
    /// Empty content without a role: a token whose text the server holds back.
    HeldBack,
    /// Text in the field `reasoning`.
    Reasoning,
    /// Text in the field `reasoning_content`.
    ReasoningContent,
    /// A non-empty list of tool calls.
    ToolCalls,
    /// A tool's name or arguments.
    ToolText,
    /// A function call, the predecessor of tool calls.
    FunctionCall,
    /// Text of a completion.
    Text,
    /// A text delta of the Responses API.
    OutputText,
    /// A reasoning delta of the Responses API.
    ReasoningText,
    /// A reasoning-summary delta of the Responses API.
    ReasoningSummary,
    /// A function-arguments delta of the Responses API.
    FunctionArguments,
    /// A usage report.
    Usage,
    /// A usage report that contains only zeros.
    ZeroUsage,
}

impl FieldKind {
    /// Returns a description that fits after "an event with".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Choices => "any choice",
            Self::ChatChunk => "the object chat.completion.chunk",
            Self::Role => "a role",
            Self::Content => "content",
            Self::HeldBack => "empty content without a role",
            Self::Reasoning => "reasoning",
            Self::ReasoningContent => "reasoning_content",
            Self::ToolCalls => "a tool call",
            Self::ToolText => "a tool's name or arguments",
            Self::FunctionCall => "a function call",
            Self::Text => "text",
            Self::OutputText => "output text",
            Self::ReasoningText => "reasoning text",
            Self::ReasoningSummary => "a reasoning summary",
            Self::FunctionArguments => "a function's arguments",
            Self::Usage => "a usage",
            Self::ZeroUsage => "a usage of zeros",
        }
    }
}

/// The set of fields in one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFields(u32);

impl EventFields {
    /// Reads the fields of an event; the set is empty if the payload is not a JSON object.
    pub fn of(data: &[u8]) -> Self {
        let event: Value = serde_json::from_slice(data).unwrap_or_default();
        let mut facts = Self::default();
        let choice = &event["choices"][0];
        facts.note(FieldKind::Choices, choice.is_object());
        facts.note(FieldKind::ChatChunk, event["object"] == "chat.completion.chunk");
        facts.note(FieldKind::Text, is_text(&choice["text"]) || is_text(&event["text"]));
        facts.chat(&choice["delta"]);
        facts.response(&event);
        let counts = ["prompt_tokens", "completion_tokens"].map(|key| event["usage"][key].as_u64());
        let is_usage = counts.iter().any(Option::is_some);
        facts.note(FieldKind::Usage, is_usage);
        facts.note(FieldKind::ZeroUsage, is_usage && counts.iter().all(|count| count.unwrap_or(0) == 0));
        facts
    }

    /// True if the event has this field.
    pub const fn has(self, what: FieldKind) -> bool {
        self.0 & (1 << what as u32) != 0
    }

    fn note(&mut self, what: FieldKind, holds: bool) {
        self.0 |= u32::from(holds) << what as u32;
    }

    fn chat(&mut self, delta: &Value) {
        let (content, role) = (&delta["content"], !delta["role"].is_null());
        self.note(FieldKind::Role, role);
        self.note(FieldKind::Content, is_text(content));
        self.note(FieldKind::HeldBack, content == "" && !role);
        self.note(FieldKind::Reasoning, is_text(&delta["reasoning"]));
        self.note(FieldKind::ReasoningContent, is_text(&delta["reasoning_content"]));
        let calls = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let shows = |call: &Value| ["name", "arguments"].iter().any(|key| is_text(&call["function"][key]));
        self.note(FieldKind::ToolCalls, !calls.is_empty());
        self.note(FieldKind::ToolText, calls.iter().any(shows));
        self.note(FieldKind::FunctionCall, delta["function_call"].is_object());
    }

    fn response(&mut self, event: &Value) {
        let kind = match event["type"].as_str() {
            Some("response.output_text.delta") => FieldKind::OutputText,
            Some("response.reasoning_text.delta") => FieldKind::ReasoningText,
            Some("response.reasoning_summary_text.delta") => FieldKind::ReasoningSummary,
            Some("response.function_call_arguments.delta") => FieldKind::FunctionArguments,
            _ => return,
        };
        self.note(kind, is_text(&event["delta"]));
    }
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(event: &str) -> Vec<&'static str> {
        use FieldKind::*;
        let all = [
            Choices,
            ChatChunk,
            Role,
            Content,
            HeldBack,
            Reasoning,
            ReasoningContent,
            ToolCalls,
            ToolText,
            FunctionCall,
            Text,
            OutputText,
            ReasoningText,
            ReasoningSummary,
            FunctionArguments,
            Usage,
            ZeroUsage,
        ];
        let facts = EventFields::of(event.as_bytes());
        all.into_iter().filter(|what| facts.has(*what)).map(FieldKind::words).collect()
    }

    #[test]
    fn an_event_holds_what_is_in_its_fields() {
        let delta = |delta: &str| holds(&format!(r#"{{"choices":[{{"delta":{{{delta}}}}}]}}"#))[1..].to_vec();
        assert_eq!(delta(r#""role":"assistant","content":"""#), ["a role"]);
        assert_eq!(delta(r#""content":"""#), ["empty content without a role"]);
        assert_eq!(delta(r#""role":null,"content":"a""#), ["content"]);
        assert_eq!(delta(r#""reasoning":"a","reasoning_content":null"#), ["reasoning"]);
        assert_eq!(delta(r#""reasoning_content":"a""#), ["reasoning_content"]);
        assert_eq!(delta(r#""tool_calls":[{"index":0}]"#), ["a tool call"]);
        let arguments = r#""tool_calls":[{"function":{"arguments":"{"}}]"#;
        assert_eq!(delta(arguments), ["a tool call", "a tool's name or arguments"]);
        assert_eq!(delta(r#""function_call":{"name":"f"}"#), ["a function call"]);
        assert_eq!(holds(r#"{"choices":[{"text":"a"}]}"#), ["any choice", "text"]);
        assert_eq!(holds(r#"{"text":"a"}"#), ["text"]);
        assert_eq!(holds(r#"{"object":"chat.completion.chunk","choices":[]}"#), ["the object chat.completion.chunk"]);
        assert_eq!(holds(r#"{"usage":{"prompt_tokens":0}}"#), ["a usage", "a usage of zeros"]);
        assert_eq!(holds(r#"{"usage":{"prompt_tokens":3}}"#), ["a usage"]);
        for (kind, words) in [
            ("output_text", "output text"),
            ("reasoning_text", "reasoning text"),
            ("reasoning_summary_text", "a reasoning summary"),
            ("function_call_arguments", "a function's arguments"),
        ] {
            let event = |text: &str| format!(r#"{{"type":"response.{kind}.delta","delta":"{text}"}}"#);
            assert_eq!((holds(&event("a")), holds(&event(""))), (vec![words], vec![]));
        }
        assert_eq!(holds(r#"{"usage":{"output_tokens":3}}"#), [""; 0], "another API's");
        for nothing in ["[DONE]", "7", "[]", "{\"choices\":{}}", "{\"usage\":null}", "\u{0}"] {
            assert_eq!(holds(nothing), [""; 0], "{nothing}");
        }
    }
}
