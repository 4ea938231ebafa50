//! Writes rows as texts for AIPerf's `single_turn` and `multi_turn`. The words are those of a replay
//! ([`prompt_text`](super::super::prompt_text)), so prompts share exactly the prefixes that they share in the trace.
//!
//! A row of `single_turn` is a complete prompt. A turn of `multi_turn` is the added text, because AIPerf sends the
//! earlier prompts and the server's replies again. The added text of a complete row is its length beyond the previous
//! prompt and reply. A row that is not longer, or whose blocks differ from the previous prompt, starts a new session.

use std::io::Write as _;

use serde::Serialize;

use super::super::blocks::chained_ids;
use super::super::entry_fields::EntryFields;
use super::super::prompt_text::{PromptGenerator, PromptRow, TokenizationModel};
use super::super::session_table::SessionTable;
use super::super::vocabulary::Vocabulary;
use super::required_lengths::{RequiredLengths, uses_limit_as_length};
use super::{ConversionLosses, FormatWriter, ScaledTime, TraceOutput, TraceProblem, WriteError};
use crate::trace_file::header::{BlockScheme, TraceHeader, TurnContent};
use crate::trace_file::row::TraceEntry;

/// Fields that text with a length and times preserves. The words encode the block ids.
pub(super) const SUPPORTED_FIELDS: EntryFields = EntryFields::PROMPT_TOKENS
    .union(EntryFields::BLOCKS)
    .union(EntryFields::OUTPUT)
    .union(EntryFields::SESSION)
    .union(EntryFields::TURN)
    .union(EntryFields::THINK)
    .union(EntryFields::MIN_TOKENS)
    .union(EntryFields::N)
    .union(EntryFields::TEMPERATURE)
    .union(EntryFields::IGNORE_EOS);

/// Maximum tokens of a written prompt, so that its line stays readable.
const MAX_PROMPT_TOKENS: u64 = 1 << 21;

#[derive(Serialize)]
struct TurnLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<ScaledTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<ScaledTime>,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_length: Option<u64>,
    #[serde(skip_serializing_if = "ExtraParams::is_empty")]
    extra: ExtraParams,
}

/// Fields that AIPerf copies into the request unchanged.
#[derive(Default, PartialEq, Serialize)]
struct ExtraParams {
    #[serde(skip_serializing_if = "Option::is_none")]
    min_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ignore_eos: Option<bool>,
}

impl ExtraParams {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Serialize)]
struct ConversationLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    turns: [TurnLine<'a>; 1],
}

/// The turn before, as needed to write the next one.
#[derive(Clone, Copy)]
struct PreviousTurn {
    /// Tokens of the prompt and its reply.
    tokens: u64,
    /// Number of the prompt's full blocks, and the id of the last.
    blocks: usize,
    last: Option<u64>,
    /// Number of restarts of the session.
    part: u32,
}

struct AiperfTextWriter {
    out: TraceOutput,
    content: PromptGenerator,
    /// Generator for prompts with only a byte count, which excludes any template.
    byte_content: PromptGenerator,
    /// Tokens that a chat template adds to each prompt.
    overhead: u64,
    blocks: Option<BlockScheme>,
    /// True if a line is a conversation; true if its rows are complete prompts.
    is_multi_turn: bool,
    has_full_turns: bool,
    sessions: SessionTable<PreviousTurn>,
    forgotten: ConversionLosses,
    notes: Vec<String>,
    rows: u64,
    lengths: RequiredLengths,
    restarted: u64,
}

pub(super) fn write_single_turn(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    if header.turns == TurnContent::Delta {
        let problem =
            TraceProblem::new("its rows are whole prompts, and later turns of this trace hold only what was added");
        return Err(problem.with_remedy("write multi_turn, or make them whole with --whole-turns"));
    }
    Ok(Box::new(AiperfTextWriter::new(header, out, false)))
}

pub(super) fn write_multi_turn(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let mut texts = AiperfTextWriter::new(header, out, true);
    texts.notes.push("a line per turn: AIPerf puts those of one session together".to_owned());
    Ok(Box::new(texts))
}

impl AiperfTextWriter {
    fn new(header: &TraceHeader, out: TraceOutput, multi: bool) -> Self {
        let (forgotten, blocks) = (ConversionLosses::default(), header.blocks.clone());
        let content = PromptGenerator::new(Vocabulary::default(), blocks.clone(), None, 0);
        Self {
            out,
            byte_content: content.clone(),
            content,
            overhead: 0,
            blocks,
            is_multi_turn: multi,
            has_full_turns: header.turns == TurnContent::Full,
            sessions: SessionTable::new(&forgotten),
            forgotten,
            notes: vec!["prompts are words made from block ids and lengths; AIPerf needs --fixed-schedule".to_owned()],
            rows: 0,
            lengths: RequiredLengths::default(),
            restarted: 0,
        }
    }

    /// The previous turn of the session; restarts the session if the row does not continue it.
    fn previous_turn(&mut self, entry: &TraceEntry, tokens: u64) -> Option<PreviousTurn> {
        let mut previous = *self.sessions.get(entry.session.as_deref()?)?;
        let id = |place: usize| self.blocks.as_ref().and_then(|blocks| chained_ids(blocks, entry).nth(place));
        let repeats = previous.blocks == 0 || id(previous.blocks - 1) == previous.last;
        if self.is_multi_turn && self.has_full_turns && !(repeats && tokens > previous.tokens) {
            (previous.tokens, previous.part) = (0, previous.part + 1);
            self.restarted += 1;
        }
        Some(previous)
    }

    fn record_turn(&mut self, entry: &TraceEntry, tokens: u64, part: u32) {
        let Some(session) = &entry.session else { return };
        let blocks = self.content.full_blocks(entry).len();
        let last = self.blocks.as_ref().and_then(|of| chained_ids(of, entry).take(blocks).last());
        let tokens = tokens.saturating_add(entry.output_tokens.unwrap_or(0));
        self.sessions.insert(session, PreviousTurn { tokens, blocks, last, part });
    }
}

impl FormatWriter for AiperfTextWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = match self.lengths.input(entry)? {
            0 => return Err(WriteError::Unrepresentable("requests with an empty prompt, left out")),
            MAX_PROMPT_TOKENS.. => {
                return Err(WriteError::Unrepresentable("requests of more than 2 million tokens, left out"));
            }
            tokens => tokens,
        };
        let output_length = self.lengths.requested_output(entry, false)?;
        let before = self.previous_turn(entry, tokens);
        let part = before.map_or(0, |previous| previous.part);
        let begins = before.is_none_or(|previous| self.is_multi_turn && self.has_full_turns && previous.tokens == 0);
        let row = PromptRow { entry, number: self.rows, pass: 0 };
        let (content, overhead) = match entry.prompt.tokens {
            Some(_) => (&self.content, self.overhead),
            None => (&self.byte_content, 0),
        };
        let text = match before.filter(|_| self.is_multi_turn && self.has_full_turns && !begins) {
            Some(previous) => content.text_tail(&row, (tokens - previous.tokens).saturating_sub(overhead).max(1)),
            None => content.text(&row),
        };
        self.rows += 1;
        let name = entry.session.as_deref();
        let renamed = name.filter(|_| part > 0).map(|name| format!("{name}#{part}"));
        let session = renamed.as_deref().or(name);
        let delay = entry.think.filter(|_| !begins).map(ScaledTime::millis);
        let params = &entry.params;
        let turn = TurnLine {
            session_id: session.filter(|_| !self.is_multi_turn),
            timestamp: delay.is_none().then(|| ScaledTime::millis(entry.at)),
            delay,
            text,
            output_length,
            extra: ExtraParams {
                min_tokens: params.min_tokens,
                n: params.n,
                temperature: params.temperature,
                ignore_eos: params.ignore_eos,
            },
        };
        if self.is_multi_turn {
            super::write_line(&mut self.out, &ConversationLine { session_id: session, turns: [turn] })?;
        } else {
            super::write_line(&mut self.out, &turn)?;
        }
        self.record_turn(entry, tokens, part);
        Ok(())
    }

    fn derived_fields(&self, entry: &TraceEntry) -> EntryFields {
        if uses_limit_as_length(entry) { EntryFields::MAX_TOKENS } else { EntryFields::NONE }
    }

    fn reserve_overhead(&mut self, overhead: u64) -> bool {
        self.content = self
            .byte_content
            .clone()
            .with_tokenization(TokenizationModel { template_tokens: overhead, tokens_per_word: 1.0 });
        self.overhead = overhead;
        true
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        if self.restarted > 0 {
            let what = "turns do not repeat the turns before them, and begin new sessions";
            self.notes.push(format!("{} {what}", self.restarted));
        }
        self.notes.extend(self.forgotten.list().into_iter().map(|(what, count)| format!("{count} {what}")));
        Ok(self.notes)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{ConversionSummary, FORMATS, ReadOptions, by_name, convert, detect};
    use super::*;
    use crate::trace::Trace;
    use crate::trace::input::InputSource;
    use crate::trace::output;
    use crate::trace_file::header::{BlockIds, BlockScope, BlockUnit, LastBlock};

    const SECOND: u64 = 1_000_000_000;

    fn header(turns: TurnContent) -> TraceHeader {
        let blocks = BlockScheme {
            size: 4,
            unit: BlockUnit::Tokens,
            last: LastBlock::Kept,
            ids: BlockIds::Chained,
            scope: BlockScope::Trace,
            key: None,
        };
        TraceHeader { blocks: Some(blocks), turns, ..TraceHeader::new("test") }
    }

    /// A row of a session: second, tokens in and out, and block ids.
    fn row(session: &str, at: u64, (tokens, output): (u64, u64), ids: &[u64]) -> TraceEntry {
        let mut entry = TraceEntry { at: at * SECOND, output_tokens: Some(output), ..TraceEntry::default() };
        entry.session = (!session.is_empty()).then(|| session.to_owned());
        (entry.prompt.tokens, entry.prompt.blocks) = (Some(tokens), ids.to_vec());
        entry
    }

    /// The lines written in a format, the summary of the conversion, and the trace read back.
    fn written(format: &str, turns: TurnContent, rows: &[TraceEntry]) -> (Vec<Value>, ConversionSummary, Trace) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        let entries: Vec<_> = rows.iter().cloned().map(Ok).collect();
        let mut trace = Trace {
            header: header(turns),
            entries: Box::new(entries.into_iter()),
            losses: ConversionLosses::default(),
        };
        let converted = convert(&mut trace, by_name(format).unwrap(), output::create(&path).unwrap()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let source = InputSource::open(&path).unwrap();
        let known = detect(&source).unwrap();
        assert_eq!(known.name, format);
        (lines, converted, (known.read.unwrap())(source, &ReadOptions::default()).unwrap())
    }

    fn read(trace: Trace) -> Vec<TraceEntry> {
        trace.entries.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn a_prompt_is_the_words_of_its_blocks_with_its_time_length_and_parameters() {
        let mut rows = [row("", 1, (6, 9), &[46, 7]), row("a", 2, (4, 0), &[46])];
        (rows[0].params.temperature, rows[0].params.max_tokens) = (Some(0.5), Some(10));
        rows[1].params.max_tokens = Some(50);
        let (lines, converted, back) = written("single_turn", TurnContent::Full, &rows);
        let text = lines[0]["text"].as_str().unwrap();
        assert_eq!((&text[..16], text.len()), (" our fox rod nor", 6 * 4));
        let first = json!({"timestamp": 1_000, "text": text, "output_length": 9, "extra": {"temperature": 0.5}});
        assert_eq!(lines[0], first);
        // AIPerf rejects a length of 0, and lets the model decide for a row without one.
        assert_eq!(lines[1]["output_length"], 50);
        assert_eq!(converted.losses.list(), [("params.max_tokens".to_owned(), 1)]);
        let limit = "1 requests ended before a token: what they were allowed (max_tokens) is their output length";
        assert_eq!(converted.notes[1], limit);
        assert_eq!(back.header.turns, TurnContent::Full, "no row is put after another");
        let back = read(back);
        assert_eq!((back[0].prompt.bytes, back[0].params.temperature), (Some(24), Some(0.5)));
    }

    #[test]
    fn a_turn_is_what_it_adds_to_what_was_said_and_waits_as_long_as_its_user_thought() {
        let mut rows = [
            row("a", 1, (8, 4), &[1, 2]),
            row("b", 2, (5, 1), &[1, 3]),
            row("a", 30, (20, 6), &[1, 2, 4, 5, 6]),
            row("b", 40, (8, 1), &[1, 3, 7]),
        ];
        rows[2].think = Some(7 * SECOND / 2);
        let (lines, converted, back) = written("multi_turn", TurnContent::Full, &rows);
        let (single, ..) = written("single_turn", TurnContent::Full, &rows);
        // 20 tokens are the 8 and 4 before and 8 new ones: the last of the complete prompt.
        for (at, new) in [8, 5, 8, 2].into_iter().enumerate() {
            let text = lines[at]["turns"][0]["text"].as_str().unwrap();
            assert_eq!(text.len(), new * 4);
            assert!(single[at]["text"].as_str().unwrap().ends_with(text));
        }
        let turn_at = |at: usize| (&lines[at]["session_id"], &lines[at]["turns"][0]);
        let text = &lines[2]["turns"][0]["text"];
        assert_eq!(turn_at(2), (&json!("a"), &json!({"delay": 3_500, "text": text, "output_length": 6})));
        assert_eq!((turn_at(3).0, &turn_at(3).1["timestamp"]), (&json!("b"), &json!(40_000)));
        assert_eq!(converted.losses.list(), []);
        assert_eq!(back.header.turns, TurnContent::Delta);
        let back: Vec<_> = read(back).into_iter().map(|row| (row.session, row.turn, row.at / SECOND)).collect();
        let of = |session: &str, turn, at| (Some(session.to_owned()), Some(turn), at);
        // A turn that waits for a reply arrives no earlier than its pause after the previous turn.
        assert_eq!(back, [of("a", 0, 1), of("b", 0, 2), of("a", 1, 4), of("b", 1, 40)]);
    }

    #[test]
    fn a_turn_that_repeats_something_else_or_is_not_longer_begins_a_session_of_its_own() {
        let rows = [
            row("a", 1, (8, 4), &[1, 2]),
            row("a", 2, (20, 1), &[1, 9, 9, 9, 9]),
            row("a", 3, (24, 1), &[1, 9, 9, 9, 9, 9]),
            row("a", 4, (25, 1), &[1, 9, 9, 9, 9, 9, 9]),
        ];
        let (lines, converted, _) = written("multi_turn", TurnContent::Full, &rows);
        let turns: Vec<_> = lines
            .iter()
            .map(|line| (line["session_id"].as_str().unwrap(), line["turns"][0]["text"].as_str().unwrap().len() / 4))
            .collect();
        assert_eq!(turns, [("a", 8), ("a#1", 20), ("a#1", 3), ("a#2", 25)]);
        let anew = "2 turns do not repeat the turns before them, and begin new sessions";
        assert!(converted.notes.iter().any(|note| note == anew), "{:?}", converted.notes);
    }

    #[test]
    fn turns_that_hold_only_what_was_added_are_written_as_they_are_and_never_as_whole_prompts() {
        let rows = [row("a", 1, (8, 4), &[]), row("a", 2, (3, 1), &[])];
        let (lines, ..) = written("multi_turn", TurnContent::Delta, &rows);
        let words = |line: &Value| line["turns"][0]["text"].as_str().unwrap().len() / 4;
        assert_eq!((words(&lines[0]), words(&lines[1])), (8, 3));
        let refused =
            write_single_turn(&header(TurnContent::Delta), Box::new(std::io::sink())).err().unwrap().to_string();
        assert!(refused.contains("hold only what was added; write multi_turn"), "{refused}");
    }

    #[test]
    fn what_nobody_could_send_is_left_out_and_counted() {
        let rows =
            [row("", 1, (0, 1), &[]), row("", 1, (u64::MAX, 1), &[]), TraceEntry::default(), row("", 1, (1, 1), &[])];
        let (lines, converted, _) = written("single_turn", TurnContent::Full, &rows);
        assert_eq!((lines.len(), converted.written, converted.losses.list().len()), (1, 1, 3));
        assert!(
            FORMATS
                .iter()
                .all(|format| format.write.is_some() == format.unsupported_reason.is_empty() || format.read.is_none())
        );
    }
}
