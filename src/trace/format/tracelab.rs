//! TraceLab's agent sessions: JSON Lines, a round of the model per row, times of its events. Rows have no block ids, but
//! the split of their prompts into cached and new tokens, from which ids are derived within each session.

use serde::de::IgnoredAny;

use super::super::blocks::mooncake_scheme;
use super::super::json::{NestedRow, parse, row};
use super::super::json_values::StringOrNumber;
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::azure::unix_nanos;
use super::time_zero::TimeZero;
use super::{ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, has_keys, rows, stream};
use crate::trace_file::header::{BlockScheme, BlockScope, LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "tracelab",
    aliases: &[],
    about: "TraceLab agent sessions: JSON Lines of rounds, block ids derived from their cached tokens",
    time_unit: "the wall clock",
    detected_by: "rows with `round_index` and `newly_append_tokens`",
    keys: &["session_id", "round_index", "input_tokens_total", "prefix_tokens", "newly_append_tokens", "timing_events"],
    detect: |source| has_keys(source, &["session_id", "round_index", "newly_append_tokens", "timing_events"], &[]),
    read: Some(read),
    write: None,
    unsupported_reason: "weka holds the same sessions, and is written",
    fields: EntryFields::NONE,
    has_wall_clock: true,
    delta_fields: None,
};

/// The block size that AIPerf takes.
const BLOCK_TOKENS: u32 = 64;
const INPUT_EVENTS: [&str; 2] = ["user_message", "tool_result"];
const OUTPUT_EVENTS: [&str; 3] = ["text", "reasoning", "tool_call"];

row!(Row {
    session_id: StringOrNumber,
    round_index: IgnoredAny,
    model: String,
    input_tokens_total: u64,
    prefix_tokens: u64,
    newly_append_tokens: IgnoredAny,
    output_tokens: u64,
    reasoning_output_tokens: u64,
    timing_events: Vec<NestedRow<TimingEvent>>,
});
row!(TimingEvent { event_type: String, timestamp: String });

/// When a round was sent, and when its last output came, in nanoseconds since 1970.
fn span(row: &Row) -> Option<(u64, Option<u64>)> {
    let times = |kinds: &'static [&'static str]| {
        row.timing_events.iter().flatten().filter_map(move |NestedRow(event)| {
            let kind = event.event_type.as_deref()?;
            if kinds.contains(&kind) { unix_nanos(event.timestamp.as_deref()?) } else { None }
        })
    };
    // A request cannot be sent before the last of several tool results.
    let sent = times(&INPUT_EVENTS).max().or_else(|| times(&OUTPUT_EVENTS).min())?;
    Some((sent, times(&OUTPUT_EVENTS).max()))
}

/// The last round of a session.
#[derive(Clone, Default)]
struct LastRound {
    turn: u32,
    ended: u64,
    /// Block ids of its prompt, as runs of consecutive ids: (first, count).
    runs: Vec<(u64, u64)>,
}

/// Keeps the first `retained` ids of `runs` and adds new ones up to `blocks`.
fn continue_runs(runs: &mut Vec<(u64, u64)>, retained: u64, blocks: u64, next: &mut u64) {
    let mut left = retained.min(blocks);
    runs.retain_mut(|(_, count)| {
        *count = (*count).min(left);
        left -= *count;
        *count > 0
    });
    let added = blocks - (retained.min(blocks) - left);
    if added > 0 {
        runs.push((*next, added));
        *next += added;
    }
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let size = options.block_size.unwrap_or(BLOCK_TOKENS);
    header.blocks = Some(BlockScheme { last: LastBlock::Dropped, scope: BlockScope::Session, ..mooncake_scheme(size) });
    let sample = stream.sample_lines().filter_map(|line| parse::<Row>(line, &ConversionLosses::default()).ok());
    header.started_unix_ns = sample.filter_map(|row| Some(span(&row)?.0)).min();
    let (zero, counted) = (TimeZero::new(header.started_unix_ns, &losses), losses.clone());
    let (mut sessions, mut next): (SessionTable<LastRound>, u64) = (SessionTable::new(&losses), 1);
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        let Some((sent, ended)) = span(&row) else {
            counted.count("rounds without a time, left out");
            return Ok(None);
        };
        let StringOrNumber(session) = row.session_id.ok_or_else(|| TraceProblem::missing("session_id"))?;
        let tokens = row.input_tokens_total.ok_or_else(|| TraceProblem::missing("input_tokens_total"))?;
        if tokens > MAX_TOKENS {
            return Err(TraceProblem::in_field("input_tokens_total", "more than ten million tokens"));
        }
        let cached = row.prefix_tokens.map(|prefix| prefix.min(tokens));
        let before = sessions.get(&session).cloned();
        let mut round = before.clone().unwrap_or_default();
        round.turn = before.as_ref().map_or(0, |before| before.turn.saturating_add(1));
        continue_runs(&mut round.runs, cached.unwrap_or(0) / u64::from(size), tokens / u64::from(size), &mut next);
        round.ended = ended.unwrap_or(sent);
        let mut entry = TraceEntry {
            at: zero.since(sent),
            model: row.model,
            output_tokens: row.output_tokens.map(|text| text.saturating_add(row.reasoning_output_tokens.unwrap_or(0))),
            reasoning_tokens: row.reasoning_output_tokens,
            turn: Some(round.turn),
            think: before.map(|before| sent.saturating_sub(before.ended)),
            prompt: PromptShape { tokens: Some(tokens), cached, ..PromptShape::default() },
            ..TraceEntry::default()
        };
        entry.prompt.blocks = round.runs.iter().flat_map(|(first, count)| *first..*first + *count).collect();
        entry.timing.ended = ended.map(|ended| ended.saturating_sub(sent));
        sessions.insert(&session, round);
        entry.session = Some(session);
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}

/// Longest prompt, so that a wrong count cannot fill memory with block ids.
const MAX_TOKENS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_keeps_the_cached_blocks_of_the_one_before_and_gets_new_ones() {
        let (mut runs, mut next) = (Vec::new(), 1);
        continue_runs(&mut runs, 0, 3, &mut next);
        assert_eq!(runs, [(1, 3)]);
        continue_runs(&mut runs, 3, 5, &mut next);
        assert_eq!(runs, [(1, 3), (4, 2)]);
        continue_runs(&mut runs, 4, 6, &mut next);
        assert_eq!(runs, [(1, 3), (4, 1), (6, 2)], "the fifth block is new");
        continue_runs(&mut runs, 100, 2, &mut next);
        assert_eq!((runs, next), (vec![(1, 2)], 8), "a compacted prompt");
    }
}
