//! Servers' finish reasons.

use crate::measure::usage::FinishReason;

/// Maps a server's finish reason to the common vocabulary; `None` if the text is empty (not finished).
pub fn finish_reason(raw: &str) -> Option<FinishReason> {
    Some(match raw {
        "" => return None,
        "stop" | "end_turn" | "stop_sequence" | "eos_token" | "STOP" | "eos" | "word" | "completed" | "COMPLETE"
        | "FINISHED" | "STOP_CRITERIA_MET" => FinishReason::Stop,
        "length"
        | "max_tokens"
        | "MAX_TOKENS"
        | "model_context_window_exceeded"
        | "limit"
        | "max_output_tokens"
        | "LENGTH" => FinishReason::Length,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::Tool,
        "content_filter"
        | "refusal"
        | "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "guardrail_intervened"
        | "content_filtered"
        | "CONTENT_FILTERED"
        | "ERROR_TOXIC" => FinishReason::Filter,
        "abort" | "cancelled" => FinishReason::Abort,
        "error" | "ERROR" => FinishReason::Error,
        _ => FinishReason::Other,
    })
}
