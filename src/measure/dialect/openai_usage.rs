//! The usage object of OpenAI's events. Each count has a slot, so that a skeleton can treat it as variable.

use super::believed;
use super::document_reply::is_report;
use crate::measure::json_walker::JsonWalker;
use crate::measure::usage::Usage;

/// Slots of the counts. Lower slots belong to the event.
const INPUT: u8 = 3;
const OUTPUT: u8 = 4;
const CACHED: u8 = 5;
const CACHE_HITS: u8 = 6;
const REASONING: u8 = 7;
const REASONING_BESIDE: u8 = 8;
const CACHE_WRITE: u8 = 9;

/// The raw counts of a usage object, by slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageCounts([Option<u64>; 7]);

impl UsageCounts {
    pub(super) fn set(&mut self, slot: u8, count: Option<u64>) {
        if let Some(stored) = self.0.get_mut(usize::from(slot.wrapping_sub(INPUT))) {
            *stored = believed(count);
        }
    }

    fn read(&mut self, slot: u8, walk: &mut JsonWalker<'_>) -> Option<()> {
        self.set(slot, walk.number_in(slot)?);
        Some(())
    }

    /// Takes a count of a details object; keeps an earlier value if this one is not a count.
    fn read_detail(&mut self, slot: u8, walk: &mut JsonWalker<'_>) -> Option<()> {
        let before = *self;
        self.read(slot, walk)?;
        self.0.iter_mut().zip(before.0).for_each(|(count, before)| *count = count.or(before));
        Some(())
    }

    /// The usage; `None` if all counts are zero, which some servers send on every event.
    pub(super) fn report(self) -> Option<Usage> {
        let [input, output, cached, cache_hits, reasoning, reasoning_beside, cache_write] = self.0;
        let (cached, reasoning) = (cached.or(cache_hits), reasoning.or(reasoning_beside));
        let usage = Usage { input, cached, cache_write, output, reasoning };
        Some(usage).filter(is_report)
    }
}

/// Takes a usage object.
pub(super) fn usage(walk: &mut JsonWalker<'_>) -> Option<UsageCounts> {
    let mut counts = UsageCounts::default();
    walk.object(|key, walk| match key {
        b"prompt_tokens" => counts.read(INPUT, walk),
        b"completion_tokens" => counts.read(OUTPUT, walk),
        b"prompt_tokens_details" => walk.object(|key, walk| match key {
            b"cached_tokens" => counts.read_detail(CACHED, walk),
            // vLLM's name.
            b"created_cache_tokens" => counts.read_detail(CACHE_WRITE, walk),
            _ => walk.skip(),
        }),
        b"completion_tokens_details" => walk.object(|key, walk| match key {
            b"reasoning_tokens" => counts.read_detail(REASONING, walk),
            _ => walk.skip(),
        }),
        // SGLang has it at the top level.
        b"reasoning_tokens" => counts.read(REASONING_BESIDE, walk),
        // DeepSeek's name.
        b"prompt_cache_hit_tokens" => counts.read(CACHE_HITS, walk),
        _ => walk.skip(),
    })?;
    Some(counts)
}
