//! `streamgauge replay`: sends a trace again.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use serde_json::Value;

use super::runner::flags::RunnerArgs;
use super::runner::{WorkloadSpec, send};
use super::trace::flags::FormatName;
use super::trace::notes;
use super::trace_input::{digest, ensure_rereadable};
use super::values::{at_least_one, parse_duration, parse_positive_duration, positive};
use super::verb_help::VerbHelp;
use crate::measure::time::Gap;
use crate::replay::plan::schedule::{ModelMapping, ReplayPlan, RowError, TraceRows};
use crate::replay::plan::trace_source;
use crate::replay::plan::trace_source::{TraceReadOptions, TraceSource};
use crate::replay::request::template::{DEFAULT_DIALECT, RequestTemplate};
use crate::replay::sender::run::{LoopMode, SessionMode};
use crate::report::context::LoadDescription;
use crate::trace::info::absurd_rate;
use crate::trace::session_starts::SessionStarts;
use crate::trace_file::header::TurnContent;
use crate::trace_file::row::PromptPart;

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Replay a trace at its recorded times and measure the responses

The load is open-loop: the trace, not the server, decides when each session starts. A later turn waits for the reply \
before it, unless --sessions timed. If the server stalls, latencies grow, as they would for users. Latencies are reported \
from the planned time and from the time of sending. Requests are never retried.

Prompts are words, generated from the trace's block ids and lengths: equal ids give equal text in every run, and prompts \
share exactly the prefixes that they share in the trace. The text of responses is not stored.

Before sending, the command self-tests this machine for 2.5 s: it drives the planned load against an in-process server that \
emits tokens at a known interval. It then reports which figures this machine would distort, and by how much.

Exit codes: 0 success; 1 --fail-if applies; 2 wrong usage; 3 the run is not valid. A run is not valid if the target is \
unreachable, no response arrived or none has output, requests were sent late, the result cannot be written, or with \
--strict this machine is too slow for the plan.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["target", "speed", "rate", "duration", "slo", "out"],
    examples: &[
        (
            "Replay the first minute at five times the recorded rate",
            "streamgauge replay trace.jsonl --target http://127.0.0.1:8000 \\
      --speed 5 --duration 1m",
        ),
        (
            "Keep the records; fail unless 95 % of requests meet the SLO",
            "streamgauge replay trace.jsonl --target http://127.0.0.1:8000 --out run1 \\
      --slo 'chat: ttft<=500ms tpot<=50ms' --fail-if 'goodput<95%'",
        ),
        (
            "Record the server's queue and KV cache beside the latencies",
            "streamgauge replay trace.jsonl --target http://127.0.0.1:8000 --out run2 \\
      --server-metrics http://127.0.0.1:8000",
        ),
    ],
};

/// Replay a trace at its recorded times and measure the responses
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
pub(crate) struct Args {
    /// Trace to send: a capture, or any format that `streamgauge trace convert` reads
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// Format of the trace [default: detected]; `streamgauge trace convert --help` lists the formats
    #[arg(long, value_name = "FORMAT", help_heading = "Requests")]
    input_format: Option<FormatName>,

    /// Tokens per block of the trace, if its format does not define it
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one(), help_heading = "Requests")]
    block_size: Option<u32>,

    #[command(flatten)]
    pub(super) sending: RunnerArgs,

    /// Multiply the trace's request rate by FACTOR [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = positive, conflicts_with = "rate", help_heading = "Timing")]
    speed: Option<f64>,

    /// Rescale the trace to this average request rate (requests/s)
    #[arg(long, value_name = "PER_SECOND", value_parser = positive, help_heading = "Timing")]
    rate: Option<f64>,

    /// Ignore recorded times and keep --concurrency requests open (closed loop)
    #[arg(long, requires = "concurrency", conflicts_with_all = ["speed", "rate", "max_in_flight", "spread"], help_heading = "Timing")]
    as_fast_as_possible: bool,

    /// Keep this many requests open with --as-fast-as-possible
    #[arg(long, value_name = "N", requires = "as_fast_as_possible", value_parser = at_least_one(), help_heading = "Timing")]
    concurrency: Option<u32>,

    /// Limit open requests to N. Excess requests wait; their latency still counts from the planned time
    #[arg(long, value_name = "N", value_parser = at_least_one(), help_heading = "Timing")]
    max_in_flight: Option<u32>,

    /// Start at this time of the trace, e.g. 10m [default: its first row]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Timing")]
    from: Option<Gap>,

    /// Stop at this time of the trace [default: its end]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Timing")]
    to: Option<Gap>,

    /// Send for this time, e.g. 1m; no turn of a live session is sent later
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration, help_heading = "Timing")]
    duration: Option<Gap>,

    /// Repeat the trace until --duration ends, with new prompt text in every pass to avoid cache hits
    #[arg(long = "loop", requires = "duration", help_heading = "Timing")]
    repeat: bool,

    /// Spread requests with equal timestamps over the time to the next, for traces with a coarse clock
    #[arg(long, help_heading = "Timing")]
    spread: bool,

    /// Rename a model of the trace for the target, e.g. `gpt-*=llama`; may be repeated
    ///
    /// `*=NAME` also applies to rows without a model.
    #[arg(long = "models", value_name = "FROM=TO", value_parser = pair, help_heading = "Requests")]
    models: Vec<(String, String)>,

    /// Time a session's later turns by the response before (live), or by the trace's times (timed)
    ///
    /// `live` waits for the response and then for the trace's pause.
    #[arg(long, value_name = "WHEN", default_value = "live", help_heading = "Requests")]
    sessions: SessionsArg,

    /// Start sessions by `poisson:RATE` (sessions/s), or keep N active with `concurrency:N`
    ///
    /// For traces whose sessions have no common clock and all start at 0. Times are the trace's times.
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
            respace_seed: self.spread.then_some(self.sending.requests.seed),
            session_starts: self.sessions_at.map(|starts| (starts, self.sending.requests.seed)),
            rate: None,
        };
        let opened = trace_source::open(&self.trace, reading).map_err(anyhow::Error::from_boxed)?;
        let TraceSource { header, rows, losses, format, source_header: read } = opened;
        let by = self.input_format.is_none().then_some(format.detected_by);
        let taken_as = notes::format_note(&self.trace, format, by, &read);
        let sampled = notes::sample_note(&header, |times| format!("`trace scale --rate {times}x` writes all of it"));
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
            shard: self.sending.timing.shard()?,
            models: ModelMapping::new(self.models.clone()),
            seed: self.sending.requests.seed,
        };
        let trace = self.trace.clone();
        let doubt = absurd_rate(&header, found.rows, (found.last - first) as f64 / 1e9);
        let doubt = doubt.map(|doubt| format!("warning: {}; {}", doubt.text(), doubt.advice()));
        let together = (!self.as_fast_as_possible).then(|| found.simultaneous_start_warning()).flatten();
        let doubt = doubt.into_iter().chain(together);
        let notes = [taken_as]
            .into_iter()
            .chain(made_whole)
            .chain(sampled)
            .chain(doubt)
            .chain(found.notes())
            .chain(losses.unconverted_note())
            .collect();
        Ok(WorkloadSpec {
            trace: Some(shown.to_string()),
            load: self.load_description(stretch),
            production: (found.answered > 0).then(|| self.trace.clone()),
            digest: digest(&self.trace)?,
            header,
            plan,
            // Where no times are heeded, pauses are none.
            pause_stretch: if self.as_fast_as_possible { 0.0 } else { stretch },
            warmup_rows: Vec::new(),
            open_rows: Arc::new(move || trace_source::open(&trace, reading).map(|opened| opened.rows)),
            texts: None,
            tokens_per_byte: (found.bytes > 0).then(|| found.tokens_of_texts as f64 / found.bytes as f64),
            arrivals: if self.as_fast_as_possible { LoopMode::Closed } else { LoopMode::Open },
            offered_rates: Value::Null,
            slots: self.concurrency.or(self.max_in_flight),
            sessions: self.sessions.into(),
            notes,
        })
    }

    fn load_description(&self, stretch: f64) -> LoadDescription {
        let arrivals = if self.as_fast_as_possible { "closed loop" } else { "times of the trace" };
        LoadDescription {
            arrivals: Some(arrivals.to_owned()),
            rate: (!self.as_fast_as_possible).then(|| format!("{} x the trace's rate", (1e4 / stretch).round() / 1e4)),
            concurrency: self.concurrency.or(self.max_in_flight),
            isl: Some("lengths of the trace".to_owned()),
            osl: Some("lengths of the trace".to_owned()),
            sampling: self.sending.requests.body.describe(),
            prefixes: Some("blocks of the trace".to_owned()),
            sessions: Some(format!("{:?}", self.sessions).to_lowercase()),
        }
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
            let dialect =
                self.sending.requests.dialect.as_deref().or(entry.dialect.as_deref()).unwrap_or(DEFAULT_DIALECT);
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

/// Counts from the first pass over the trace.
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

    /// Differences from the trace.
    fn notes(&self) -> impl Iterator<Item = String> {
        let notes = [
            (
                self.unsupported_parts,
                "have images, sound, video or files that their dialect's requests do not have here; they are left out",
            ),
            (self.unknown_lengths, "have no length, and get a prompt of one token"),
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
