//! `streamgauge load`: synthetic load, by the runner of a replay.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::Value;

use super::runner::flags::RunnerArgs;
use super::runner::vocabulary::read_tokenizer;
use super::runner::{WorkloadSpec, send};
use super::trace::flags::FormatName;
use super::trace::notes;
use super::values::{at_least_one, parse_positive_duration, positive};
use super::verb_help::VerbHelp;
use crate::measure::time::Gap;
use crate::replay::plan::schedule::ReplayPlan;
use crate::replay::plan::synth::SyntheticTrace;
use crate::replay::plan::synth::arrivals::{ArrivalPattern, ArrivalProcess, Stages};
use crate::replay::plan::synth::length::{LengthDistribution, RequestLengths};
use crate::replay::plan::synth::mixture::{TRAFFIC_MIXES, TrafficMix};
use crate::replay::plan::trace_source::TraceReadOptions;
use crate::replay::sender::run::{LoopMode, SessionMode};
use crate::report::context::LoadDescription;
use crate::trace::format::TraceFormat;
use crate::trace::prompt_file::PromptFile;

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Send synthetic load to a server and measure its responses

With --rate or --stages the load is open-loop: the arrival process, not the server, decides when each request is sent. With \
--concurrency the load is closed-loop: a request is sent when an earlier one ends, so the load slows down with the server.

Prompt text, results and exit codes are those of `streamgauge replay`.

The lengths of --mix were measured in public traces: chat and code in Azure's LLM inference trace of 2023, long-context in \
Mooncake's conversations, summarization in RAGPulse's answers from retrieved documents. A mix with two numbers in its name \
has these lengths in every request, as in GuideLLM's standard configurations.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["target", "rate", "concurrency", "duration", "isl", "osl", "out"],
    examples: &[
        (
            "Send 20 independent requests per second for one minute",
            "streamgauge load --target http://127.0.0.1:8000 --rate 20 --duration 1m \\
      --isl 512 --osl 128",
        ),
        (
            "Keep 16 requests open, with a shared system prompt of 1,000 tokens",
            "streamgauge load --target http://127.0.0.1:8000 --concurrency 16 \\
      --requests 500 --isl normal:1500:200 --osl 200 --shared-prefix 1000",
        ),
        (
            "Rise to 50 requests/s in five minutes, then hold; lengths as in chats",
            "streamgauge load --target http://127.0.0.1:8000 --mix chat \\
      --stages 1..50@5m,50@5m",
        ),
        (
            "Start two conversations per second, of about four turns with pauses",
            "streamgauge load --target http://127.0.0.1:8000 --rate 2 --duration 10m \\
      --turns normal:4:1 --think lognormal:8s:4s",
        ),
    ],
};

/// Send synthetic load to a server and measure its responses
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
#[command(group(clap::ArgGroup::new("load").required(true).args(["rate", "stages", "concurrency"])))]
#[command(group(clap::ArgGroup::new("end").required(true).multiple(true).args(["requests", "duration", "stages"])))]
#[command(group(clap::ArgGroup::new("measured").args(["mix", "lengths"])))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) sending: RunnerArgs,

    /// Send this many requests per second; with --turns, start this many sessions per second
    #[arg(long, value_name = "PER_SECOND", value_parser = rate, help_heading = "Timing")]
    rate: Option<f64>,

    /// Change the rate in stages: RATE@TIME holds, FROM..TO@TIME changes evenly, e.g. 1..50@5m,50@10m
    #[arg(long, value_name = "STAGES", help_heading = "Timing")]
    stages: Option<Stages>,

    /// Set the arrival process: `poisson` (independent), `constant`, or `gamma:SHAPE`
    ///
    /// A gamma process is bursty below shape 1 and more regular above. With an end, exactly rate x duration requests are sent.
    #[arg(long, value_name = "PROCESS", default_value = "poisson", value_parser = arrival_process, conflicts_with = "concurrency", help_heading = "Timing")]
    arrivals: ArrivalProcess,

    /// Keep this many requests open (closed loop)
    #[arg(long, value_name = "N", value_parser = at_least_one(), help_heading = "Timing")]
    concurrency: Option<u32>,

    /// Limit open requests to N. Excess requests wait; their latency still counts from the planned time
    #[arg(long, value_name = "N", value_parser = at_least_one(), conflicts_with = "concurrency", help_heading = "Timing")]
    max_in_flight: Option<u32>,

    /// Send this many requests in total
    #[arg(long, value_name = "N", value_parser = at_least_one(), help_heading = "Timing")]
    requests: Option<u32>,

    /// Send for this time, e.g. 1m; no turn of a session is sent later
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration, help_heading = "Timing")]
    duration: Option<Gap>,

    /// Prompt length in tokens: a number, uniform:A:B, normal:MEAN:SD or lognormal:MEAN:SD [default: 512, or that of --mix]
    ///
    /// lognormal:median=M:sigma=S takes the median and the standard deviation of the logarithm. :min=A and :max=B at the end
    /// clip the draws, e.g. lognormal:512:256:max=4096.
    #[arg(long, value_name = "LENGTH", value_parser = length, help_heading = "Requests")]
    isl: Option<LengthDistribution>,

    /// Response length in tokens, written like --isl [default: 128, or that of --mix]
    #[arg(long, value_name = "LENGTH", value_parser = length, help_heading = "Requests")]
    osl: Option<LengthDistribution>,

    /// Draw lengths as measured in public traces of this kind of traffic, or the fixed lengths of its name
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(TRAFFIC_MIXES.iter().map(|mix| mix.name)), help_heading = "Requests")]
    mix: Option<String>,

    /// Draw pairs of prompt and response lengths from a file: a trace, or lines of ISL,OSL
    #[arg(long, value_name = "FILE", conflicts_with_all = ["isl", "osl"], help_heading = "Requests")]
    lengths: Option<PathBuf>,

    /// Send the prompts of a file: ShareGPT JSON, OpenAI JSONL, or lines of text
    ///
    /// The target gets the text; the files of the run hold lengths only. --tokenizer counts the tokens, else four bytes are
    /// one. The reply or `max_tokens` in the file limits the response, else --osl. Prompts repeat after the last one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["isl", "mix", "lengths", "turns", "shared_prefix"], help_heading = "Requests")]
    prompts: Option<PathBuf>,

    /// Format of the --lengths file [default: detected]; `streamgauge trace convert --help` lists the formats
    #[arg(long, value_name = "FORMAT", requires = "lengths", help_heading = "Requests")]
    input_format: Option<FormatName>,

    /// Tokens per block in the --lengths file, if its format does not define it
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one(), requires = "lengths", help_heading = "Requests")]
    block_size: Option<u32>,

    /// Requests per session, written like --isl
    ///
    /// The prompt of a later turn holds the whole conversation, with the server's real responses, and --isl tokens of new text.
    #[arg(long, value_name = "LENGTH", default_value = "1", value_parser = length, help_heading = "Requests")]
    turns: LengthDistribution,

    /// Pause between a response and the next turn: a time or a distribution, e.g. lognormal:8s:4s [default: none]
    #[arg(long, value_name = "TIME", value_parser = LengthDistribution::parse_durations, requires = "turns", help_heading = "Requests")]
    think: Option<LengthDistribution>,

    /// Start all prompts with the same N tokens
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Requests")]
    shared_prefix: u32,

    /// Divide requests into N groups, each with its own shared prefix
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one(), requires = "shared_prefix", help_heading = "Requests")]
    prefix_groups: u32,

    /// Send every shared prefix once before the run, outside the figures, so that the server caches it
    #[arg(long, requires = "shared_prefix", help_heading = "Requests")]
    warm_prefixes: bool,

    /// Name this model in every request [default: none]
    #[arg(long, value_name = "NAME", help_heading = "Requests")]
    model: Option<String>,

    /// Request whole responses instead of streams
    #[arg(long, help_heading = "Requests")]
    no_stream: bool,
}

/// Lengths for a load without configured lengths.
const DEFAULT_INPUT_TOKENS: u64 = 512;
const DEFAULT_OUTPUT_TOKENS: u64 = 128;
/// Bytes of text that count as a token without a tokenizer.
const BYTES_PER_TOKEN: u64 = 4;

/// Sends the load.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    send(&args.sending, || args.workload_spec())
}

impl Args {
    pub(super) fn workload_spec(&self) -> anyhow::Result<WorkloadSpec> {
        let prompts = self.prompts.as_deref().map(|file| self.read_prompts(file)).transpose()?;
        let (lengths, notes) = match &prompts {
            Some(file) => (RequestLengths::InOrder(Arc::clone(&file.lengths)), self.prompt_notes(file)),
            None => self.lengths()?,
        };
        if let RequestLengths::Independent(LengthDistribution::Fixed(isl), _) = lengths {
            let shared = u64::from(self.shared_prefix);
            anyhow::ensure!(shared <= isl, "--shared-prefix {shared} is longer than the prompts of --isl {isl}");
        }
        let stages = self.stages.clone().or(self.rate.map(Stages::constant));
        let arrivals = stages.map_or(ArrivalPattern::Closed, |stages| ArrivalPattern::Open(self.arrivals, stages));
        let synthetic = SyntheticTrace {
            arrivals,
            requests: self.requests.map(u64::from),
            duration: self.duration,
            lengths,
            turns: self.turns.clone(),
            think: self.think.clone(),
            shared_prefix: self.shared_prefix,
            prefix_groups: self.prefix_groups.into(),
            model: self.model.clone(),
            stream: !self.no_stream,
            seed: self.sending.requests.seed,
        };
        Ok(WorkloadSpec {
            trace: None,
            load: self.load_description(&synthetic),
            production: None,
            digest: None,
            header: synthetic.header(),
            plan: ReplayPlan {
                duration: self.duration,
                shard: self.sending.timing.shard()?,
                seed: self.sending.requests.seed,
                ..ReplayPlan::default()
            },
            pause_stretch: 1.0,
            warmup_rows: if self.warm_prefixes { synthetic.prefixes().collect() } else { Vec::new() },
            arrivals: if synthetic.arrivals == ArrivalPattern::Closed { LoopMode::Closed } else { LoopMode::Open },
            // A shard sends its share of it.
            offered_rates: if self.sending.timing.shard.is_none() { synthetic.arrivals.to_json() } else { Value::Null },
            open_rows: Arc::new(move || Ok(Box::new(synthetic.rows().map(Ok)))),
            texts: prompts.map(|file| file.texts),
            tokens_per_byte: None,
            slots: self.concurrency.or(self.max_in_flight),
            sessions: SessionMode::Live,
            notes,
        })
    }

    fn read_prompts(&self, file: &Path) -> anyhow::Result<PromptFile> {
        let tokenizer = self.sending.requests.tokenizer.as_deref().map(read_tokenizer).transpose()?;
        let count = |text: &str| match &tokenizer {
            Some(tokenizer) => tokenizer.encode_fast(text, false).map_or(1, |tokens| tokens.len() as u64),
            None => (text.len() as u64).div_ceil(BYTES_PER_TOKEN),
        };
        let output = match self.osl {
            None => DEFAULT_OUTPUT_TOKENS,
            Some(LengthDistribution::Fixed(tokens)) => tokens,
            Some(_) => anyhow::bail!("--osl: expected a number beside --prompts"),
        };
        PromptFile::read(file, &count, output).map_err(|error| anyhow::anyhow!("--prompts: {error}"))
    }

    fn prompt_notes(&self, file: &PromptFile) -> Vec<String> {
        let counted = match self.sending.requests.tokenizer {
            Some(_) => "the tokenizer counts their tokens",
            None => "their tokens are estimated at four bytes each; --tokenizer counts them",
        };
        vec![
            format!("note: --prompts: {} prompts, taken as {}; {counted}", file.texts.len(), file.form),
            "warning: --prompts: the target gets the text of the file, and may log it; the files of this run hold lengths, no \
             text"
                .to_owned(),
        ]
    }

    fn load_description(&self, synthetic: &SyntheticTrace) -> LoadDescription {
        let (isl, osl) = synthetic.lengths.describe();
        let closed = synthetic.arrivals == ArrivalPattern::Closed;
        let prefix = |tokens: u32| match self.prefix_groups {
            1 => format!("{tokens} tokens shared by all prompts"),
            groups => format!("{tokens} tokens shared within each of {groups} groups"),
        };
        let warm = if self.warm_prefixes { ", sent before the run" } else { "" };
        let think = self.think.as_ref().map_or("no pause".to_owned(), |think| format!("pauses of {think} ms"));
        let turns = (self.turns != LengthDistribution::Fixed(1)).then(|| format!("{} turns, {think}", self.turns));
        LoadDescription {
            arrivals: Some(if closed { "closed loop".to_owned() } else { self.arrivals.to_string() }),
            rate: self.stages.as_ref().map(ToString::to_string).or(self.rate.map(|rate| format!("{rate}/s"))),
            concurrency: self.concurrency.or(self.max_in_flight),
            isl: Some(isl),
            osl: Some(osl),
            sampling: Some(self.sending.requests.body.describe().unwrap_or_else(|| "the server's defaults".to_owned())),
            prefixes: Some(match self.shared_prefix {
                0 => "none".to_owned(),
                tokens => prefix(tokens) + warm,
            }),
            sessions: Some(turns.unwrap_or_else(|| "none".to_owned())),
        }
    }

    /// The lengths, and what their file was taken for.
    fn lengths(&self) -> anyhow::Result<(RequestLengths, Vec<String>)> {
        let lengths = match (&self.lengths, self.mix.as_deref().and_then(TrafficMix::named)) {
            (Some(file), _) => {
                let reading = TraceReadOptions {
                    format: self.input_format.map(|FormatName(format)| format),
                    block_size: self.block_size,
                    ..TraceReadOptions::default()
                };
                let read = RequestLengths::from_file(file, reading).map_err(anyhow::Error::from_boxed);
                let (lengths, opened) = read.context("--lengths")?;
                let by = |format: &'static TraceFormat| self.input_format.is_none().then_some(format.detected_by);
                let taken_as = opened.map_or_else(
                    || format!("note: {} is taken as lines of ISL,OSL", file.display()),
                    |(format, header)| notes::format_note(file, format, by(format), &header),
                );
                return Ok((lengths, vec![taken_as]));
            }
            (None, Some(mix)) => mix.lengths((self.isl.clone(), self.osl.clone())),
            (None, None) => {
                let of = |given: &Option<LengthDistribution>, usual| {
                    given.clone().unwrap_or(LengthDistribution::Fixed(usual))
                };
                RequestLengths::Independent(of(&self.isl, DEFAULT_INPUT_TOKENS), of(&self.osl, DEFAULT_OUTPUT_TOKENS))
            }
        };
        Ok((lengths, Vec::new()))
    }
}

fn arrival_process(text: &str) -> Result<ArrivalProcess, &'static str> {
    const SHAPE: &str = "expected constant, poisson or gamma:SHAPE with a shape above 0";
    match text {
        "constant" => Ok(ArrivalProcess::Constant),
        "poisson" => Ok(ArrivalProcess::Poisson),
        _ => text.strip_prefix("gamma:").and_then(|shape| positive(shape).ok()).map(ArrivalProcess::Gamma).ok_or(SHAPE),
    }
}

fn rate(text: &str) -> Result<f64, &'static str> {
    match text {
        "inf" => Err("expected a number above 0; to send all requests at once, use --concurrency N with --requests N"),
        _ => positive(text),
    }
}

fn length(text: &str) -> Result<LengthDistribution, &'static str> {
    text.parse()
}
