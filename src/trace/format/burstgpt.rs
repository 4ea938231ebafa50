//! BurstGPT's CSV, all versions, and AIPerf's `burst_gpt_trace`: columns by name, times in seconds. Zero response
//! tokens mean a failure.

use std::io::Write as _;

use super::super::entry_fields::EntryFields;
use super::super::json_values::LenientNumber;
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::csv::{CsvColumns, CsvSplitter, count, quote_cell, value};
use super::required_lengths::RequiredLengths;
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput, WriteError,
    has_columns, nanos, rows, stream,
};
use crate::measure::record::Outcome;
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "burstgpt",
    aliases: &["burst_gpt_trace", "burst_gpt"],
    about: "BurstGPT v1 to v3, AIPerf burst_gpt_trace: CSV, no block ids",
    time_unit: "seconds",
    detected_by: "columns `Timestamp`, `Request tokens` and `Response tokens`",
    keys: &["Timestamp", "Request tokens", "Response tokens"],
    detect: |source| has_columns(source, &["timestamp", "requesttokens", "responsetokens"]),
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::MODEL
        .union(EntryFields::SESSION)
        .union(EntryFields::PROMPT_TOKENS)
        .union(EntryFields::OUTPUT)
        .union(EntryFields::ENDED)
        .union(EntryFields::TURN),
    has_wall_clock: false,
    delta_fields: None,
};

const TIME: &str = "Timestamp";
const REQUEST: &str = "Request tokens";
const RESPONSE: &str = "Response tokens";
const SESSION: &str = "Session ID";
const ELAPSED: &str = "Elapsed time";
const MODEL: &str = "Model";
const TOTAL: &str = "Total tokens";
const CSV_HEADER: &str =
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n";

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let mut lines = stream(source, &FORMAT)?.lines();
    let losses = ConversionLosses::default();
    let columns = match lines.next_line() {
        Some(line) => CsvColumns::parse(line?),
        None => Ok(CsvColumns::default()),
    };
    let columns = columns.map_err(|problem| lines.error_at_line(problem))?;
    let find = |name| columns.required(name).map_err(|problem| lines.error_at_line(problem));
    let (time, request, response) = (find(TIME)?, find(REQUEST)?, find(RESPONSE)?);
    let (session, elapsed, model) = (columns.optional(SESSION), columns.optional(ELAPSED), columns.optional(MODEL));
    // The total is redundant: it is the sum of two columns that are read.
    let others = columns.others(&[TIME, REQUEST, RESPONSE, SESSION, ELAPSED, MODEL, TOTAL]);
    let (counted, mut splitter) = (losses.clone(), CsvSplitter::new());
    let mut turns: SessionTable<u32> = SessionTable::new(&losses);
    let entries = rows(lines, move |line| {
        let cells = splitter.cells(line)?;
        let present = |at: Option<usize>| at.filter(|at| cells.get(*at).is_some_and(|cell| !cell.is_empty()));
        for (at, name) in &others {
            if present(Some(*at)).is_some() {
                counted.count(name);
            }
        }
        let secs = |at, name| nanos(name, LenientNumber(value(&cells, at, name, "seconds")?), 1e9);
        let output = count(&cells, response, RESPONSE)?;
        let mut entry = TraceEntry {
            at: secs(time, TIME)?,
            session: present(session).map(|at| cells[at].to_owned()),
            model: present(model).map(|at| cells[at].to_owned()),
            outcome: (output == 0).then_some(Outcome::Failed),
            output_tokens: Some(output),
            prompt: PromptShape { tokens: Some(count(&cells, request, REQUEST)?), ..PromptShape::default() },
            ..TraceEntry::default()
        };
        entry.turn = entry.session.as_deref().map(|session| turns.next_turn(session));
        entry.timing.ended = present(elapsed).map(|at| secs(at, ELAPSED)).transpose()?;
        Ok(Some(entry))
    });
    Ok(Trace { header: TraceHeader::new(FORMAT.name), entries, losses })
}

struct BurstGptWriter {
    out: TraceOutput,
    header_written: bool,
    lengths: RequiredLengths,
    /// Replies without tokens that are not known to have failed.
    empty_replies: u64,
}

fn write(_: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    Ok(Box::new(BurstGptWriter { out, header_written: false, lengths: RequiredLengths::default(), empty_replies: 0 }))
}

impl FormatWriter for BurstGptWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = self.lengths.input(entry)?;
        if !std::mem::replace(&mut self.header_written, true) {
            self.out.write_all(CSV_HEADER.as_bytes())?;
        }
        let (at, output) = (ScaledTime::secs(entry.at).value(), self.lengths.output_for_aiperf(entry));
        self.empty_replies += u64::from(output == 0 && entry.outcome != Some(Outcome::Failed));
        let elapsed = entry.timing.ended.map(|ended| ScaledTime::secs(ended).value().to_string()).unwrap_or_default();
        let [session, model] =
            [&entry.session, &entry.model].map(|name| quote_cell(name.as_deref().unwrap_or_default()));
        let total = tokens.saturating_add(output);
        Ok(writeln!(self.out, "{at},{session},{elapsed},{model},{tokens},{output},{total},")?)
    }

    /// A reply without tokens represents a failure.
    fn derived_fields(&self, entry: &TraceEntry) -> EntryFields {
        let is_failure = entry.outcome == Some(Outcome::Failed) && entry.output_tokens.unwrap_or(0) == 0;
        if is_failure { EntryFields::OUTCOME } else { EntryFields::NONE }
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        if !self.header_written {
            self.out.write_all(CSV_HEADER.as_bytes())?;
        }
        self.out.flush()?;
        let mut notes: Vec<String> = self.lengths.notes().collect();
        if self.empty_replies > 0 {
            notes.push(format!(
                "{} answers of no token are read as failures, and did not fail as far as is known",
                self.empty_replies
            ));
        }
        Ok(notes)
    }
}
