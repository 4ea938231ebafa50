//! BurstGPT's CSV, all versions, and AIPerf's `burst_gpt_trace`: columns by name, seconds; zero response tokens are a
//! failure.

use std::io::Write as _;

use super::super::fields::Fields;
use super::super::json::Number;
use super::super::sessions::Sessions;
use super::super::{Error, Problem, Trace};
use super::counted::Counted;
use super::csv::{Columns, Splitter, cell, count, value};
use super::{Format, Losses, Options, Output, Source, Time, WriteError, Writer, has_columns, nanos, rows, stream};
use crate::capture::format::{Entry, Header, Prompt};
use crate::measure::record::Outcome;

pub(super) const FORMAT: Format = Format {
    name: "burstgpt",
    aliases: &["burst_gpt_trace", "burst_gpt"],
    about: "BurstGPT v1 to v3, AIPerf burst_gpt_trace: CSV, no block ids",
    times: "seconds",
    by: "columns `Timestamp`, `Request tokens` and `Response tokens`",
    recognise: |source| has_columns(source, &["timestamp", "requesttokens", "responsetokens"]),
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::MODEL
        .and(Fields::SESSION)
        .and(Fields::PROMPT_TOKENS)
        .and(Fields::OUTPUT)
        .and(Fields::ENDED)
        .and(Fields::TURN),
    clock: false,
    delta: None,
};

const TIME: &str = "Timestamp";
const REQUEST: &str = "Request tokens";
const RESPONSE: &str = "Response tokens";
const SESSION: &str = "Session ID";
const ELAPSED: &str = "Elapsed time";
const MODEL: &str = "Model";
const TOTAL: &str = "Total tokens";
const HEAD: &str = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n";

fn read(source: Source, _: &Options) -> Result<Trace, Error> {
    let mut lines = stream(source, &FORMAT)?.lines();
    let losses = Losses::default();
    let columns = match lines.next_line() {
        Some(line) => Columns::of(line?),
        None => Ok(Columns::default()),
    };
    let columns = columns.map_err(|problem| lines.error(problem))?;
    let find = |name| columns.required(name).map_err(|problem| lines.error(problem));
    let (time, request, response) = (find(TIME)?, find(REQUEST)?, find(RESPONSE)?);
    let (session, elapsed, model) = (columns.optional(SESSION), columns.optional(ELAPSED), columns.optional(MODEL));
    // The total is the sum of two that are kept.
    let others = columns.others(&[TIME, REQUEST, RESPONSE, SESSION, ELAPSED, MODEL, TOTAL]);
    let (counted, mut splitter) = (losses.clone(), Splitter::new());
    let mut turns: Sessions<u32> = Sessions::new(&losses);
    let entries = rows(lines, move |line| {
        let cells = splitter.cells(line)?;
        let present = |at: Option<usize>| at.filter(|at| cells.get(*at).is_some_and(|cell| !cell.is_empty()));
        for (at, name) in &others {
            if present(Some(*at)).is_some() {
                counted.count(name);
            }
        }
        let secs = |at, name| nanos(name, Number(value(&cells, at, name, "seconds")?), 1e9);
        let output = count(&cells, response, RESPONSE)?;
        let mut entry = Entry {
            at: secs(time, TIME)?,
            session: present(session).map(|at| cells[at].to_owned()),
            model: present(model).map(|at| cells[at].to_owned()),
            outcome: (output == 0).then_some(Outcome::Failed),
            output_tokens: Some(output),
            prompt: Prompt { tokens: Some(count(&cells, request, REQUEST)?), ..Prompt::default() },
            ..Entry::default()
        };
        if let Some(session) = &entry.session {
            let turn = turns.last(session).map_or(0, |turn| turn.saturating_add(1));
            turns.tell(session, turn);
            entry.turn = Some(turn);
        }
        entry.timing.ended = present(elapsed).map(|at| secs(at, ELAPSED)).transpose()?;
        Ok(Some(entry))
    });
    Ok(Trace { header: Header::new(FORMAT.name), entries, losses })
}

struct Csv {
    out: Output,
    begun: bool,
    counted: Counted,
    /// Answers of no token that nobody says have failed.
    silent: u64,
}

fn write(_: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    Ok(Box::new(Csv { out, begun: false, counted: Counted::default(), silent: 0 }))
}

impl Writer for Csv {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let tokens = self.counted.input(entry)?;
        if !std::mem::replace(&mut self.begun, true) {
            self.out.write_all(HEAD.as_bytes())?;
        }
        let (at, output) = (Time::secs(entry.at).value(), self.counted.output_for_aiperf(entry));
        self.silent += u64::from(output == 0 && entry.outcome != Some(Outcome::Failed));
        let elapsed = entry.timing.ended.map(|ended| Time::secs(ended).value().to_string()).unwrap_or_default();
        let [session, model] = [&entry.session, &entry.model].map(|name| cell(name.as_deref().unwrap_or_default()));
        let total = tokens.saturating_add(output);
        Ok(writeln!(self.out, "{at},{session},{elapsed},{model},{tokens},{output},{total},")?)
    }

    /// A failure is an answer of no token.
    fn tells(&self, entry: &Entry) -> Fields {
        let told = entry.outcome == Some(Outcome::Failed) && entry.output_tokens.unwrap_or(0) == 0;
        if told { Fields::OUTCOME } else { Fields::NONE }
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        if !self.begun {
            self.out.write_all(HEAD.as_bytes())?;
        }
        self.out.flush()?;
        let mut notes: Vec<String> = self.counted.notes().collect();
        if self.silent > 0 {
            notes.push(format!(
                "{} answers of no token are read as failures, and did not fail as far as is known",
                self.silent
            ));
        }
        Ok(notes)
    }
}
