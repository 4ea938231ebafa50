//! Requests of a trace as the twin reads them: lengths, prefixes and sessions.

use crate::engine::{EngineFinish, EngineJob, EnginePrompt};
use crate::measure::record::FinishReason;
use crate::measure::time::{Gap, Stamp};
use crate::stats::hash::combine;
use crate::trace_file::blocks::{block_tokens, chained_ids, hash_text, prompt_tokens};
use crate::trace_file::header::BlockScheme;
use crate::trace_file::row::TraceEntry;

/// One request of the traffic.
#[derive(Clone, Debug)]
pub struct TwinRequest {
    /// Arrival.
    pub at: Stamp,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Output tokens; of an aborted request, those that the client waited for.
    pub output_tokens: u32,
    /// The client leaves before the response ends.
    pub aborts: bool,
    /// Hash of its session.
    pub session: Option<u64>,
    /// Time between the end of the session's previous response and this request.
    pub think: Option<Gap>,
    /// The row.
    pub entry: TraceEntry,
}

impl TwinRequest {
    /// Reads a row; `None` if it does not state both lengths, or generates no text.
    pub fn from_row(entry: TraceEntry) -> Option<Self> {
        let prompt = prompt_tokens(&entry).or(entry.wanted.input_tokens)?;
        let aborts = entry.is_aborted() || entry.wanted.abort_tokens.is_some();
        let aborted_at = entry.abort_tokens.or(entry.wanted.abort_tokens).filter(|_| aborts);
        let output = aborted_at.or(entry.output_tokens).or(entry.wanted.output_tokens).or(entry.params.max_tokens)?;
        if output == 0 && !aborts {
            return None;
        }
        let size = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX).max(1);
        Some(Self {
            at: Stamp::from_nanos(entry.at),
            prompt_tokens: size(prompt),
            output_tokens: size(output),
            aborts,
            session: entry.session.as_deref().map(hash_text),
            think: entry.think.map(Gap::from_nanos).filter(|_| entry.turn.is_some_and(|turn| turn > 0)),
            entry,
        })
    }

    /// The prompt as an engine with blocks of `engine_block` tokens sees it. Each block of the trace gives several blocks
    /// of the engine, or several give one.
    pub fn engine_prompt(&self, scheme: Option<&BlockScheme>, engine_block: u32) -> EnginePrompt {
        let tokens = self.prompt_tokens;
        let Some(scheme) = scheme.filter(|_| !self.entry.prompt.blocks.is_empty()) else {
            return EnginePrompt { tokens, ..EnginePrompt::default() };
        };
        let (theirs, ours) = (block_tokens(scheme), u64::from(engine_block));
        let most = u64::from(tokens) / ours;
        let ids: Vec<u64> = chained_ids(scheme, &self.entry).collect();
        let covered = most.min(ids.len() as u64 * theirs / ours);
        let hash = |block: u64| {
            let last = ((block + 1) * ours - 1) / theirs;
            combine(ids[usize::try_from(last).unwrap_or(usize::MAX).min(ids.len() - 1)], (block + 1) * ours)
        };
        EnginePrompt { tokens, chain: (0..covered).map(hash).collect() }
    }

    /// The job of an engine that serves the whole request.
    pub fn job(&self, prompt: EnginePrompt) -> EngineJob {
        let ending = match (self.aborts, self.entry.finish) {
            (true, _) => EngineFinish::Abort,
            (false, Some(FinishReason::Length)) => EngineFinish::Length,
            (false, _) => EngineFinish::Stop,
        };
        EngineJob { prompt, output_tokens: self.output_tokens, ending, stall: None, transferred: false }
    }

    /// Tokens of KV cache that the request needs at its end.
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.output_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::record::{Ending, Outcome};
    use crate::trace_file::header::{BlockIds, BlockScope, BlockUnit, LastBlock};
    use crate::trace_file::row::PromptShape;

    fn row(tokens: u64, blocks: &[u64]) -> TraceEntry {
        let prompt = PromptShape { tokens: Some(tokens), blocks: blocks.to_vec(), ..PromptShape::default() };
        TraceEntry { prompt, output_tokens: Some(7), ..TraceEntry::default() }
    }

    fn scheme(size: u32) -> BlockScheme {
        let (unit, last, ids, scope) = (BlockUnit::Tokens, LastBlock::Kept, BlockIds::Chained, BlockScope::Trace);
        BlockScheme { size, unit, last, ids, scope, key: None }
    }

    fn chain(tokens: u64, blocks: &[u64], theirs: u32, ours: u32) -> Vec<u64> {
        let request = TwinRequest::from_row(row(tokens, blocks)).unwrap();
        request.engine_prompt(Some(&scheme(theirs)), ours).chain.to_vec()
    }

    #[test]
    fn blocks_of_a_trace_become_blocks_of_the_engine() {
        let (a, b) = (chain(1_000, &[1, 2], 512, 16), chain(1_000, &[1, 3], 512, 16));
        assert_eq!((a.len(), b.len()), (62, 62));
        assert_eq!(a[..32], b[..32], "the first 512 tokens are equal");
        assert_ne!(a[32], b[32]);
        let (a, b) = (chain(64, &[1, 2, 3, 4], 16, 32), chain(64, &[1, 2, 3, 5], 16, 32));
        assert_eq!((a.len(), a[0] == b[0], a[1] == b[1]), (2, true, false));
        assert_eq!(chain(1_000, &[1], 512, 16).len(), 32, "only what has ids");
    }

    #[test]
    fn a_row_without_lengths_is_no_request() {
        assert!(TwinRequest::from_row(TraceEntry::default()).is_none());
        let unknown = TraceEntry { output_tokens: None, ..row(10, &[]) };
        assert!(TwinRequest::from_row(unknown).is_none());
        assert_eq!(TwinRequest::from_row(row(10, &[])).unwrap().kv_tokens(), 17);
    }

    #[test]
    fn a_client_that_left_takes_the_tokens_that_it_waited_for() {
        let (ending, outcome) = (Some(Ending::DownstreamGone), Some(Outcome::Cancelled));
        let left = TraceEntry { ending, outcome, abort_tokens: Some(3), ..row(10, &[]) };
        let request = TwinRequest::from_row(left).unwrap();
        assert_eq!((request.output_tokens, request.aborts), (3, true));
    }
}
