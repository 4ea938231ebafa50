//! Lengths that a format asks of every row, and how many of them nobody knows.

use super::super::blocks::prompt_tokens;
use super::WriteError;
use crate::capture::row::TraceEntry;

/// Counts the lengths that were not known.
#[derive(Debug, Default)]
pub(super) struct RequiredLengths {
    estimated: u64,
    unknown: u64,
    zero_outputs: u64,
    from_limit: u64,
    unspecified: u64,
}

impl RequiredLengths {
    /// Prompt tokens, estimated where only bytes are known.
    pub(super) fn input(&mut self, entry: &TraceEntry) -> Result<u64, WriteError> {
        let tokens =
            prompt_tokens(entry).ok_or(WriteError::Unrepresentable("requests without a prompt length, left out"))?;
        self.estimated += u64::from(entry.prompt.tokens.is_none());
        Ok(tokens)
    }

    /// Output tokens, for a format that has to have a number: 0 where nobody counted any.
    pub(super) fn output(&mut self, entry: &TraceEntry) -> u64 {
        self.unknown += u64::from(entry.output_tokens.is_none());
        entry.output_tokens.unwrap_or(0)
    }

    /// The same for a format that AIPerf reads, too.
    pub(super) fn output_for_aiperf(&mut self, entry: &TraceEntry) -> u64 {
        let output = self.output(entry);
        self.zero_outputs += u64::from(output == 0);
        output
    }

    /// Output tokens that a load generator is to ask for: without a length it would let the model decide, and generate
    /// thousands of tokens where a client left before the first. Such a request asks for what it was allowed
    /// (`max_tokens`), and is left out where nobody knows that; of one without any sign of an end the length stays open,
    /// unless the format needs one.
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

    /// What a reader of the file has to know.
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

/// Whether a request has no token of output, and its limit stands for its output length.
pub(super) fn uses_limit_as_length(entry: &TraceEntry) -> bool {
    entry.output_tokens.unwrap_or(0) == 0 && entry.params.max_tokens.is_some_and(|tokens| tokens > 0)
}
