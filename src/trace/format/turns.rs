//! AIPerf's `single_turn` and `multi_turn`: prompts as texts, of which only the lengths are stored. `text_writer`
//! writes both.
//!
//! A row of `single_turn` is a complete prompt, even in a session; a turn of `multi_turn` is the added text. A session
//! may begin with a system prompt, which is not sent alone but with the first request.

use std::collections::VecDeque;

use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{LenientNumber, StringOrNumber, TextSize};
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::{
    ConversionLosses, EntryFields, InputSource, TraceFormat, has_keys, nanos, rows_of_lines, stream, text_writer,
};
use crate::trace_file::header::{TraceHeader, TurnContent};
use crate::trace_file::row::{PartKind, PromptPart, PromptShape, RequestParams, TraceEntry};

pub(super) const SINGLE: TraceFormat = TraceFormat {
    name: "single_turn",
    aliases: &[],
    about: "AIPerf single_turn: JSON Lines, texts made of words (only lengths are read)",
    time_unit: "milliseconds",
    detected_by: "rows with `text`, `texts`, `image` or the like",
    keys: &["text"],
    detect: |source| CONTENT_KEYS.iter().any(|key| has_keys(source, &[key], &["input_length", "schema"])),
    read: Some(|source, _| read(source, &SINGLE)),
    write: Some(text_writer::write_single_turn),
    unsupported_reason: "",
    fields: text_writer::SUPPORTED_FIELDS,
    has_wall_clock: false,
    delta_fields: None,
};

pub(super) const MULTI: TraceFormat = TraceFormat {
    name: "multi_turn",
    aliases: &[],
    about: "AIPerf multi_turn: JSON Lines of sessions, texts made of words (only lengths are read)",
    time_unit: "milliseconds",
    detected_by: "rows with `turns`",
    keys: &["session_id", "turns"],
    detect: |source| has_keys(source, &["turns"], &[]),
    read: Some(|source, _| read(source, &MULTI)),
    write: Some(text_writer::write_multi_turn),
    unsupported_reason: "",
    fields: text_writer::SUPPORTED_FIELDS,
    has_wall_clock: false,
    delta_fields: Some(EntryFields::NONE),
};

const CONTENT_KEYS: [&str; 8] = ["text", "texts", "image", "images", "audio", "audios", "video", "videos"];

row!(Turn {
    text: TextSize,
    texts: TextSize,
    image: TextSize,
    images: TextSize,
    audio: TextSize,
    audios: TextSize,
    video: TextSize,
    videos: TextSize,
    timestamp: LenientNumber,
    delay: LenientNumber,
    session_id: StringOrNumber,
    output_length: u64,
    model: String,
    role: String,
    extra: NestedRow<Extra>,
});

row!(Extra { min_tokens: u64, n: u64, temperature: f64, ignore_eos: bool });

row!(Conversation { session_id: StringOrNumber, turns: Vec<NestedRow<Turn>> });

impl Turn {
    fn bytes(&self) -> u64 {
        [&self.text, &self.texts].into_iter().flatten().map(|text| text.bytes).sum()
    }

    /// True for a system prompt, which is not sent alone.
    fn is_system(&self) -> bool {
        let media = [&self.image, &self.images, &self.audio, &self.audios, &self.video, &self.videos];
        let sent = self.timestamp.is_some() || self.delay.is_some() || self.output_length.is_some();
        self.role.as_deref() == Some("system") && !sent && self.extra.is_none() && media.iter().all(|m| m.is_none())
    }
}

/// Maximum parts of one kind kept per request; real requests have fewer.
const MAX_PARTS: u64 = 1_000;

fn read(source: InputSource, format: &'static TraceFormat) -> Result<Trace, Error> {
    let lines = stream(source, format)?.lines();
    let losses = ConversionLosses::default();
    let multi = format.name == MULTI.name;
    let header = TraceHeader {
        turns: if multi { TurnContent::Delta } else { TurnContent::Full },
        ..TraceHeader::new(format.name)
    };
    let sessions = SessionTable::new(&losses);
    let mut turns = TurnReader { losses: losses.clone(), sessions, number: 0 };
    let entries = rows_of_lines(lines, move |line, pending| turns.read_line(line, multi, pending));
    Ok(Trace { header, entries, losses })
}

struct TurnReader {
    losses: ConversionLosses,
    /// Arrival and number of the previous turn.
    sessions: SessionTable<(u64, u32)>,
    number: u64,
}

impl TurnReader {
    fn read_line(&mut self, line: &[u8], multi: bool, rows: &mut VecDeque<TraceEntry>) -> Result<(), TraceProblem> {
        self.number += 1;
        if !multi {
            let turn: Turn = parse(line, &self.losses)?;
            rows.push_back(self.turn(turn, None, 0)?);
            return Ok(());
        }
        let conversation: Conversation = parse(line, &self.losses)?;
        let session =
            conversation.session_id.map_or_else(|| format!("line-{}", self.number), |StringOrNumber(session)| session);
        let turns = conversation.turns.ok_or_else(|| TraceProblem::missing("turns"))?;
        let begins = self.sessions.get(&session).is_none();
        let hoisted =
            matches!(&turns[..], [NestedRow(first), NestedRow(next), ..] if first.is_system() && !next.is_system());
        let mut turns = turns.into_iter().map(|NestedRow(turn)| turn);
        let system = turns.by_ref().take(usize::from(begins && hoisted)).map(|turn| turn.bytes()).sum();
        let mut systems = std::iter::once(system).chain(std::iter::repeat(0));
        turns.try_for_each(|turn| {
            rows.push_back(self.turn(turn, Some(session.clone()), systems.next().unwrap_or(0))?);
            Ok(())
        })
    }

    /// The row of a turn; `system` is the bytes of the system prompt before it.
    fn turn(&mut self, row: Turn, session: Option<String>, system: u64) -> Result<TraceEntry, TraceProblem> {
        let text = system + row.bytes();
        let session = session.or(row.session_id.map(|StringOrNumber(session)| session));
        let extra = row.extra.map(|NestedRow(extra)| extra).unwrap_or_default();
        let params = RequestParams {
            min_tokens: extra.min_tokens,
            n: extra.n,
            temperature: extra.temperature,
            ignore_eos: extra.ignore_eos,
            ..RequestParams::default()
        };
        let mut entry =
            TraceEntry { output_tokens: row.output_length, model: row.model, params, ..TraceEntry::default() };
        entry.prompt = PromptShape { bytes: Some(text), ..PromptShape::default() };
        for (kind, parts) in [
            (PartKind::Image, [row.image, row.images]),
            (PartKind::Audio, [row.audio, row.audios]),
            (PartKind::Video, [row.video, row.videos]),
        ] {
            let count: u64 = parts.into_iter().flatten().map(|parts| parts.texts).sum();
            let part = PromptPart { kind, bytes: None, size: None };
            entry.prompt.parts.extend(std::iter::repeat_n(part, count.min(MAX_PARTS) as usize));
        }
        entry.think = row.delay.map(|delay| nanos("delay", delay, 1e6)).transpose()?;
        let at = row.timestamp.map(|at| nanos("timestamp", at, 1e6)).transpose()?;
        let before = session.as_deref().and_then(|session| self.sessions.get(session).copied());
        if at.is_none() && before.is_none() {
            self.losses.count("rows without a time, taken to come at 0");
        }
        let earliest = before.map_or(0, |(at, _)| at).saturating_add(entry.think.unwrap_or(0));
        entry.at = at.unwrap_or(earliest);
        if let Some(session) = &session {
            let turn = before.map_or(0, |(_, turn)| turn.saturating_add(1));
            entry.turn = Some(turn);
            self.sessions.insert(session, (entry.at, turn));
        }
        entry.session = session;
        Ok(entry)
    }
}
