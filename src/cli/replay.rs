//! `streamgauge replay`: a trace sent again.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::Value;

use super::runner::flags::RunnerArgs;
use super::runner::{WorkloadSpec, send};
use super::trace::flags::FormatName;
use super::trace::notes;
use super::values::{at_least_one, parse_duration, parse_positive_duration, positive};
use crate::capture::row::{PromptPart, TurnContent};
use crate::measure::time::Gap;
use crate::replay::request_template::{DEFAULT_DIALECT, RequestTemplate};
use crate::replay::run::{LoopMode, SessionMode};
use crate::replay::schedule::{ModelMapping, ReplayPlan, RowError, TraceRows};
use crate::replay::trace_source::{self, TraceReadOptions, TraceSource};
use crate::trace::info::absurd_rate;
use crate::trace::session_starts::SessionStarts;

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Send a trace again, at its own times, and measure the answers

The load is open: when a request is sent the trace says, and never the server. A server that stalls makes latencies \
grow, as it would for users. Latencies are reported from the planned moment and from the moment of sending; requests \
are never repeated.

Prompts are made of words, from the trace's block ids and lengths: the same ids give the same text in every run, and \
prompts share exactly the prefixes that they share in the trace. No text of a reply is kept.

Before it sends, it tries for two seconds what this machine makes of the plan's rate, at a server in this process whose \
beat is known, and says which numbers of the run would be wrong, and by how much.

The exit code is 0 done, 1 when --fail-if holds, 2 wrong usage, 3 when the run is not valid: the target could not be \
reached or returned no response, no response contained output, requests were sent late, the result cannot be written, or \
--strict and this machine cannot carry the plan.

Examples:
  Five times as fast, for one minute, against a server on port 8000:
    streamgauge replay trace.jsonl --target http://127.0.0.1:8000 \\
      --speed 5 --duration 1m

  Keep the records, and fail unless 95 % of requests meet the objectives:
    streamgauge replay trace.jsonl --target http://127.0.0.1:8000 --out run1 \\
      --slo 'chat: ttft<=500ms tpot<=50ms' --fail-if 'goodput<95%'";

/// Send a trace again, at its own times, and measure the answers
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
pub(crate) struct Args {
    /// The trace: a capture, or any format that `streamgauge trace convert` reads
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// What the trace is, if that is not to be guessed; `streamgauge trace convert --help` lists the formats
    #[arg(long, value_name = "FORMAT", help_heading = "Requests")]
    input_format: Option<FormatName>,

    /// Tokens of a block in the trace, where its format leaves that open
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one(), help_heading = "Requests")]
    block_size: Option<u32>,

    #[command(flatten)]
    pub(super) sending: RunnerArgs,

    /// So many times as fast as the trace
    #[arg(long, value_name = "FACTOR", value_parser = positive, conflicts_with = "rate", help_heading = "Timing")]
    speed: Option<f64>,

    /// So many requests a second on average: the trace's own pattern, stretched
    #[arg(long, value_name = "PER_SECOND", value_parser = positive, help_heading = "Timing")]
    rate: Option<f64>,

    /// Send whenever one of --concurrency slots is free, and heed no times. Such a closed load slows down with the server
    #[arg(long, requires = "concurrency", conflicts_with_all = ["speed", "rate", "max_in_flight", "spread"], help_heading = "Timing")]
    as_fast_as_possible: bool,

    /// Slots of --as-fast-as-possible
    #[arg(long, value_name = "N", requires = "as_fast_as_possible", value_parser = at_least_one(), help_heading = "Timing")]
    concurrency: Option<u32>,

    /// Hold requests back while so many are open. They stay planned when they were: the wait is in their latency, and
    /// they are counted
    #[arg(long, value_name = "N", value_parser = at_least_one(), help_heading = "Timing")]
    max_in_flight: Option<u32>,

    /// Begin here in the trace [default: at its first row]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Timing")]
    from: Option<Gap>,

    /// End here in the trace
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Timing")]
    to: Option<Gap>,

    /// Send for so long. A live session ends with it too, before the first turn that would come later
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration, help_heading = "Timing")]
    duration: Option<Gap>,

    /// Begin again at the trace's end, until --duration. Every pass has new texts, or the cache would know them
    #[arg(long = "loop", requires = "duration", help_heading = "Timing")]
    repeat: bool,

    /// Spread requests of the same moment over the time to the next: for traces whose clock was coarse
    #[arg(long, help_heading = "Timing")]
    spread: bool,

    /// What a model of the trace is called at the target, as in `gpt-*=llama`; may be repeated. `*=NAME` is for rows
    /// without a model too
    #[arg(long = "models", value_name = "FROM=TO", value_parser = pair, help_heading = "Requests")]
    models: Vec<(String, String)>,

    /// When a session's next turn is sent: so long after the answer before it as in the trace, or at the trace's times
    #[arg(long, value_name = "WHEN", default_value = "live", help_heading = "Requests")]
    sessions: SessionsArg,

    /// When sessions begin, in the trace's time: `poisson:RATE`, so many in a second, or `concurrency:N`, so many at a time
    /// by the trace's own times. For traces whose sessions have no common clock, and all begin at 0
    #[arg(long, value_name = "START", conflicts_with_all = ["as_fast_as_possible", "spread"], help_heading = "Timing")]
    sessions_at: Option<SessionStarts>,
}

/// Sends the trace.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    send(&args.sending, || args.workload_spec())
}

impl Args {
    pub(super) fn workload_spec(&self) -> anyhow::Result<WorkloadSpec> {
        ensure_rereadable(&self.trace)?;
        let reading = TraceReadOptions {
            format: self.input_format.map(|FormatName(format)| format),
            block_size: self.block_size,
            respace_seed: self.spread.then_some(self.sending.seed),
            session_starts: self.sessions_at.map(|starts| (starts, self.sending.seed)),
        };
        let opened = trace_source::open(&self.trace, reading).map_err(anyhow::Error::from_boxed)?;
        let TraceSource { header, rows, losses, format, source_header: read } = opened;
        let by = self.input_format.is_none().then_some(format.detected_by);
        let taken_as = notes::format_note(&self.trace, format, by, &read);
        let made_whole = (read.turns == TurnContent::Delta).then(|| notes::WHOLE_TURNS_NOTE.to_owned());
        let found = self.scan_rows(rows).map_err(anyhow::Error::from_boxed)?;
        let shown = self.trace.display();
        let first = found.first;
        let first = first.ok_or_else(|| anyhow::anyhow!("{shown}: there is no row between --from and --to"))?;
        let mut stretch = 1.0 / self.speed.unwrap_or(1.0);
        if let Some(rate) = self.rate {
            let span = (found.last - first) as f64 / 1e9;
            anyhow::ensure!(span > 0.0, "--rate needs a trace whose rows have different times");
            stretch = (found.rows - 1) as f64 / span / rate;
        }
        let plan = ReplayPlan {
            stretch,
            from: self.from.unwrap_or(Gap::from_nanos(first)),
            to: self.to,
            duration: self.duration,
            repeat: self.repeat,
            shard: self.sending.shard()?,
            models: ModelMapping::new(self.models.clone()),
            seed: self.sending.seed,
        };
        let trace = self.trace.clone();
        let doubt = absurd_rate(&header, found.rows, (found.last - first) as f64 / 1e9);
        let doubt = doubt.map(|doubt| format!("warning: {}; {}", doubt.text(), doubt.advice()));
        let together = (!self.as_fast_as_possible).then(|| found.simultaneous_start_warning()).flatten();
        let doubt = doubt.into_iter().chain(together);
        let notes = [taken_as]
            .into_iter()
            .chain(made_whole)
            .chain(doubt)
            .chain(found.notes())
            .chain(losses.unconverted_note())
            .collect();
        Ok(WorkloadSpec {
            name: shown.to_string(),
            production: (found.answered > 0).then(|| self.trace.clone()),
            digest: digest(&self.trace)?,
            header,
            plan,
            // Where no times are heeded, pauses are none.
            pause_stretch: if self.as_fast_as_possible { 0.0 } else { stretch },
            warmup_rows: Vec::new(),
            open_rows: Arc::new(move || trace_source::open(&trace, reading).map(|opened| opened.rows)),
            tokens_per_byte: (found.bytes > 0).then(|| found.tokens_of_texts as f64 / found.bytes as f64),
            arrivals: if self.as_fast_as_possible { LoopMode::Closed } else { LoopMode::Open },
            offered_rates: Value::Null,
            slots: self.concurrency.or(self.max_in_flight),
            sessions: self.sessions.into(),
            notes,
        })
    }

    fn scan_rows(&self, rows: TraceRows) -> Result<TraceScan, RowError> {
        let mut found = TraceScan::default();
        for entry in rows {
            let entry = entry?;
            if self.from.is_some_and(|from| entry.at < from.as_nanos())
                || self.to.is_some_and(|to| entry.at >= to.as_nanos())
            {
                continue;
            }
            found.rows += 1;
            if entry.turn == Some(0) && entry.session.is_some() {
                found.sessions += 1;
                if found.first.is_none_or(|first| entry.at < first) {
                    found.sessions_at_first = 0;
                }
                found.sessions_at_first += u64::from(found.first.is_none_or(|first| entry.at <= first));
            }
            found.first = Some(found.first.map_or(entry.at, |first| first.min(entry.at)));
            found.last = found.last.max(entry.at);
            // Tokens of images are not of bytes of text.
            if let (Some(tokens), Some(bytes), []) = (entry.prompt.tokens, entry.prompt.bytes, &entry.prompt.parts[..])
            {
                found.bytes += bytes;
                found.tokens_of_texts += tokens;
            }
            found.answered += u64::from(entry.outcome.is_some() && entry.timing.ended.is_some());
            let dialect = self.sending.dialect.as_deref().or(entry.dialect.as_deref()).unwrap_or(DEFAULT_DIALECT);
            let takes =
                |part: &PromptPart| RequestTemplate::named(dialect).is_ok_and(|form| form.supports_media(part.kind));
            found.unsupported_parts += u64::from(!entry.prompt.parts.iter().all(takes));
            let prompt = &entry.prompt;
            found.unknown_lengths +=
                u64::from(prompt.tokens.is_none() && prompt.bytes.is_none() && prompt.blocks.is_empty());
        }
        Ok(found)
    }
}

/// A trace is looked through before any of it is sent, and what a result is called by is made of all its bytes.
pub(super) fn ensure_rereadable(trace: &Path) -> anyhow::Result<()> {
    let once = super::one_shot_input(trace);
    once.map_or(Ok(()), |pipe| {
        anyhow::bail!("{pipe} can be read once, and the trace is read several times; write it to a file first")
    })
}

/// By which a result tells what was sent; a folder has none.
pub(super) fn digest(trace: &Path) -> anyhow::Result<Option<String>> {
    if trace.is_dir() {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    let read = File::open(trace).and_then(|mut file| io::copy(&mut file, &mut hasher));
    read.with_context(|| format!("cannot read {}", trace.display()))?;
    Ok(Some(format!("blake3:{}", hasher.finalize().to_hex())))
}

/// What a first reading finds.
#[derive(Default)]
struct TraceScan {
    rows: u64,
    first: Option<u64>,
    last: u64,
    bytes: u64,
    tokens_of_texts: u64,
    unsupported_parts: u64,
    answered: u64,
    unknown_lengths: u64,
    /// Sessions that begin, and those of them that begin with the first row.
    sessions: u64,
    sessions_at_first: u64,
}

impl TraceScan {
    /// A warning where sessions begin all at once, which no users do.
    fn simultaneous_start_warning(&self) -> Option<String> {
        let (all, together) = (self.sessions, self.sessions_at_first);
        (together > 1 && together * 2 >= all).then(|| {
            format!(
                "warning: {together} of {all} sessions begin at the same moment, as if they had no common clock; \
                 --sessions-at poisson:RATE or concurrency:N lets them begin apart"
            )
        })
    }

    /// What will not be as in the trace.
    fn notes(&self) -> impl Iterator<Item = String> {
        let notes = [
            (
                self.unsupported_parts,
                "have images, sound, video or files that their dialect's requests do not have here; they are left out",
            ),
            (self.unknown_lengths, "do not tell their length, and get a prompt of one token"),
        ];
        notes.into_iter().filter(|(rows, _)| *rows > 0).map(|(rows, what)| format!("note: {rows} rows {what}"))
    }
}

/// See [`Sessions`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SessionsArg {
    Live,
    Timed,
}

impl From<SessionsArg> for SessionMode {
    fn from(pace: SessionsArg) -> Self {
        match pace {
            SessionsArg::Live => Self::Live,
            SessionsArg::Timed => Self::Timed,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), &'static str> {
    let parted = text.split_once('=').filter(|(from, to)| !from.is_empty() && !to.is_empty());
    parted.map(|(from, to)| (from.to_owned(), to.to_owned())).ok_or("expected FROM=TO, as in gpt-*=llama")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_given_in_pairs() {
        assert_eq!(pair("gpt-*=llama"), Ok(("gpt-*".to_owned(), "llama".to_owned())));
        assert!(pair("a").is_err() && pair("=b").is_err() && pair("a=").is_err());
    }
}
