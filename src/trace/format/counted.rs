//! Lengths that a format asks of every row, and how many of them nobody knows.

use super::super::blocks::prompt_tokens;
use super::WriteError;
use crate::capture::format::Entry;

/// Counts the lengths that were not known.
#[derive(Debug, Default)]
pub(super) struct Counted {
    estimated: u64,
    unknown: u64,
    silent: u64,
    refused: u64,
}

impl Counted {
    /// Prompt tokens, estimated where only bytes are known.
    pub(super) fn input(&mut self, entry: &Entry) -> Result<u64, WriteError> {
        let tokens = prompt_tokens(entry).ok_or(WriteError::Unfit("requests without a prompt length, left out"))?;
        self.estimated += u64::from(entry.prompt.tokens.is_none());
        Ok(tokens)
    }

    /// Output tokens, for a format that has to have a number: 0 where nobody counted any.
    pub(super) fn output(&mut self, entry: &Entry) -> u64 {
        self.unknown += u64::from(entry.output_tokens.is_none());
        entry.output_tokens.unwrap_or(0)
    }

    /// The same for a format that AIPerf reads, too.
    pub(super) fn output_for_aiperf(&mut self, entry: &Entry) -> u64 {
        let output = self.output(entry);
        self.refused += u64::from(output == 0);
        output
    }

    /// Output tokens, for AIPerf alone: of a file in which one row asks for none it reads no row.
    pub(super) fn one_or_more(&mut self, entry: &Entry) -> Option<u64> {
        self.silent += u64::from(entry.output_tokens == Some(0));
        entry.output_tokens.filter(|tokens| *tokens > 0)
    }

    /// What a reader of the file has to know.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let counts = [
            (self.estimated, "requests have no prompt tokens: a quarter of their bytes was taken"),
            (self.unknown, "requests have no output length, and were written as answers of no token"),
            (self.silent, "answers of no token have no length: AIPerf asks for one at least"),
            (self.refused, "answers are of no token: AIPerf asks for one at least, and refuses the file"),
        ];
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"))
    }
}
