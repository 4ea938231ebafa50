//! Lengths that a format requires in every row, and counts of the unknown ones.

use super::super::blocks::prompt_tokens;
use super::WriteError;
use crate::trace_file::row::TraceEntry;

#[derive(Debug, Default)]
pub(super) struct RequiredLengths {
    estimated: u64,
    unknown: u64,
    zero_outputs: u64,
    from_limit: u64,
    unspecified: u64,
}

impl RequiredLengths {
    /// Prompt tokens, estimated if only bytes are known.
    pub(super) fn input(&mut self, entry: &TraceEntry) -> Result<u64, WriteError> {
        let tokens =
            prompt_tokens(entry).ok_or(WriteError::Unrepresentable("requests without a prompt length, left out"))?;
        self.estimated += u64::from(entry.prompt.tokens.is_none());
        Ok(tokens)
    }

    /// Output tokens for formats that require a number; 0 if unknown.
    pub(super) fn output(&mut self, entry: &TraceEntry) -> u64 {
        self.unknown += u64::from(entry.output_tokens.is_none());
        entry.output_tokens.unwrap_or(0)
    }

    /// Like [`output`](Self::output), for a format that AIPerf reads too; also counts zero lengths.
    pub(super) fn output_for_aiperf(&mut self, entry: &TraceEntry) -> u64 {
        let output = self.output(entry);
        self.zero_outputs += u64::from(output == 0);
        output
    }

    /// Output tokens that a load generator requests. Without a length, the model decides, and may generate thousands of
    /// tokens for a client that left before the first. A request without output tokens therefore uses its limit
    /// (`max_tokens`), and is skipped if it has none. If a row has no result at all, its length stays open, unless the
    /// format requires one.
    pub(super) fn requested_output(&mut self, entry: &TraceEntry, is_needed: bool) -> Result<Option<u64>, WriteError> {
        if let Some(tokens) = entry.output_tokens.filter(|tokens| *tokens > 0) {
            return Ok(Some(tokens));
        }
        if uses_limit_as_length(entry) {
            self.from_limit += 1;
            return Ok(entry.params.max_tokens);
        }
        let has_ended = entry.output_tokens.is_some() || entry.outcome.is_some() || entry.ending.is_some();
        if is_needed || has_ended || entry.status.is_some() || entry.abort_tokens.is_some() {
            return Err(WriteError::Unrepresentable(
                "requests without an output token and without max_tokens, left out",
            ));
        }
        self.unspecified += 1;
        Ok(None)
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let counts = [
            (self.estimated, "requests have no prompt tokens: a quarter of their bytes was taken"),
            (self.unknown, "requests have no output length, and were written as answers of no token"),
            (
                self.from_limit,
                "requests ended before a token: what they were allowed (max_tokens) is their output length",
            ),
            (self.unspecified, "requests have no output length: AIPerf lets the model decide"),
            (self.zero_outputs, "answers are of no token: AIPerf asks for one at least, and refuses the file"),
        ];
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"))
    }
}

/// True if the limit replaces the output length, because the request has no output tokens.
pub(super) fn uses_limit_as_length(entry: &TraceEntry) -> bool {
    entry.output_tokens.unwrap_or(0) == 0 && entry.params.max_tokens.is_some_and(|tokens| tokens > 0)
}
