//! AIPerf's `single_turn` and `multi_turn`: prompts as texts, of which only the lengths survive. `texts` writes them.
//!
//! A row of `single_turn` is a whole prompt, also where it has a session; a turn of `multi_turn` is what it adds. Such a
//! session may begin with a system prompt, which is no request of its own: it comes with the first.

use std::collections::VecDeque;

use super::super::input::Lines;
use super::super::json::{Content, Id, Number, Object, parse, row};
use super::super::sessions::Sessions;
use super::super::{Error, Problem, Trace};
use super::{Fields, Format, Losses, Source, has_keys, nanos, stream, texts};
use crate::capture::format::{Entry, Header, Params, Part, PartKind, Prompt, Turns};

pub(super) const SINGLE: Format = Format {
    name: "single_turn",
    aliases: &[],
    about: "AIPerf single_turn: JSON Lines, texts made of words (only lengths are read)",
    times: "milliseconds",
    by: "rows with `text`, `texts`, `image` or the like",
    recognise: |source| CONTENT.iter().any(|key| has_keys(source, &[key], &["input_length", "schema"])),
    read: Some(|source, _| read(source, &SINGLE)),
    write: Some(texts::single),
    but: "",
    holds: texts::HOLDS,
    clock: false,
    delta: None,
};

pub(super) const MULTI: Format = Format {
    name: "multi_turn",
    aliases: &[],
    about: "AIPerf multi_turn: JSON Lines of sessions, texts made of words (only lengths are read)",
    times: "milliseconds",
    by: "rows with `turns`",
    recognise: |source| has_keys(source, &["turns"], &[]),
    read: Some(|source, _| read(source, &MULTI)),
    write: Some(texts::multi),
    but: "",
    holds: texts::HOLDS,
    clock: false,
    delta: Some(Fields::NONE),
};

const CONTENT: [&str; 8] = ["text", "texts", "image", "images", "audio", "audios", "video", "videos"];

row!(Turn {
    text: Content,
    texts: Content,
    image: Content,
    images: Content,
    audio: Content,
    audios: Content,
    video: Content,
    videos: Content,
    timestamp: Number,
    delay: Number,
    session_id: Id,
    output_length: u64,
    model: String,
    role: String,
    extra: Object<Extra>,
});

row!(Extra { min_tokens: u64, n: u64, temperature: f64, ignore_eos: bool });

row!(Conversation { session_id: Id, turns: Vec<Object<Turn>> });

impl Turn {
    /// Bytes of its text.
    fn bytes(&self) -> u64 {
        [&self.text, &self.texts].into_iter().flatten().map(|text| text.bytes).sum()
    }

    /// Whether it is a system prompt, and nothing that is sent by itself.
    fn is_system(&self) -> bool {
        let media = [&self.image, &self.images, &self.audio, &self.audios, &self.video, &self.videos];
        let sent = self.timestamp.is_some() || self.delay.is_some() || self.output_length.is_some();
        self.role.as_deref() == Some("system") && !sent && self.extra.is_none() && media.iter().all(|m| m.is_none())
    }
}

/// Parts of one kind that are kept of a request; nobody sends more.
const MOST_PARTS: u64 = 1_000;

fn read(source: Source, format: &'static Format) -> Result<Trace, Error> {
    let lines = stream(source, format)?.lines();
    let losses = Losses::default();
    let multi = format.name == MULTI.name;
    let header = Header { turns: if multi { Turns::Delta } else { Turns::Full }, ..Header::new(format.name) };
    let sessions = Sessions::new(&losses);
    let mut rows = Rows { lines, losses: losses.clone(), sessions, waiting: VecDeque::new(), number: 0, failed: false };
    let entries = Box::new(std::iter::from_fn(move || rows.next(multi)));
    Ok(Trace { header, entries, losses })
}

struct Rows {
    lines: Lines,
    losses: Losses,
    /// When the turn before came, and its number.
    sessions: Sessions<(u64, u32)>,
    waiting: VecDeque<Entry>,
    number: u64,
    failed: bool,
}

impl Rows {
    fn next(&mut self, multi: bool) -> Option<Result<Entry, Error>> {
        while self.waiting.is_empty() && !self.failed {
            let line = match self.lines.next_line()? {
                Ok(line) => line.to_vec(),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            };
            if let Err(problem) = self.take(&line, multi) {
                self.failed = true;
                return Some(Err(self.lines.error(problem)));
            }
        }
        self.waiting.pop_front().map(Ok)
    }

    fn take(&mut self, line: &[u8], multi: bool) -> Result<(), Problem> {
        self.number += 1;
        if !multi {
            let turn: Turn = parse(line, &self.losses)?;
            return self.turn(turn, None, 0);
        }
        let conversation: Conversation = parse(line, &self.losses)?;
        let session = conversation.session_id.map_or_else(|| format!("line-{}", self.number), |Id(session)| session);
        let turns = conversation.turns.ok_or_else(|| Problem::missing("turns"))?;
        let begins = self.sessions.last(&session).is_none();
        let hoisted = matches!(&turns[..], [Object(first), Object(next), ..] if first.is_system() && !next.is_system());
        let mut turns = turns.into_iter().map(|Object(turn)| turn);
        let system = turns.by_ref().take(usize::from(begins && hoisted)).map(|turn| turn.bytes()).sum();
        let mut systems = std::iter::once(system).chain(std::iter::repeat(0));
        turns.try_for_each(|turn| self.turn(turn, Some(session.clone()), systems.next().unwrap_or(0)))
    }

    /// Takes a turn in, before which a system prompt of so many bytes stands.
    fn turn(&mut self, row: Turn, session: Option<String>, system: u64) -> Result<(), Problem> {
        let text = system + row.bytes();
        let session = session.or(row.session_id.map(|Id(session)| session));
        let extra = row.extra.map(|Object(extra)| extra).unwrap_or_default();
        let params = Params {
            min_tokens: extra.min_tokens,
            n: extra.n,
            temperature: extra.temperature,
            ignore_eos: extra.ignore_eos,
            ..Params::default()
        };
        let mut entry = Entry { output_tokens: row.output_length, model: row.model, params, ..Entry::default() };
        entry.prompt = Prompt { bytes: Some(text), ..Prompt::default() };
        for (kind, parts) in [
            (PartKind::Image, [row.image, row.images]),
            (PartKind::Audio, [row.audio, row.audios]),
            (PartKind::Video, [row.video, row.videos]),
        ] {
            let count: u64 = parts.into_iter().flatten().map(|parts| parts.texts).sum();
            let part = Part { kind, bytes: None, size: None };
            entry.prompt.parts.extend(std::iter::repeat_n(part, count.min(MOST_PARTS) as usize));
        }
        entry.think = row.delay.map(|delay| nanos("delay", delay, 1e6)).transpose()?;
        let at = row.timestamp.map(|at| nanos("timestamp", at, 1e6)).transpose()?;
        let before = session.as_deref().and_then(|session| self.sessions.last(session).copied());
        if at.is_none() && before.is_none() {
            self.losses.count("rows without a time, taken to come at 0");
        }
        let earliest = before.map_or(0, |(at, _)| at).saturating_add(entry.think.unwrap_or(0));
        entry.at = at.unwrap_or(earliest);
        if let Some(session) = &session {
            let turn = before.map_or(0, |(_, turn)| turn.saturating_add(1));
            entry.turn = Some(turn);
            self.sessions.tell(session, (entry.at, turn));
        }
        entry.session = session;
        self.waiting.push_back(entry);
        Ok(())
    }
}
