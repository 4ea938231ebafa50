//! `streamgauge sim`: the simulated inference server.

use std::io::{Write, stderr};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::signals::StopSignals;
use super::terminal::usage_error;
use super::values::{at_least_one, parse_duration};
use super::verb_help::VerbHelp;
use crate::engine::{CostModel, EngineOptions, PrefillMode, StepWork};
use crate::measure::time::Gap;
use crate::sim::{SimOptions, SimServer, runtime};
use crate::twin::model::{TwinEngine, TwinModel};

/// The long help. Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Run a simulated inference server: OpenAI-compatible, streaming, without a model

It answers POST /v1/chat/completions and /v1/completions as vLLM does, event by event, with words from a list. It ignores \
log probabilities, tools, echo and stop strings. Its times come from a cost model of continuous batching; a step takes

    step-base + step-per-seq x sequences + prompt tokens / prefill-rate

--kv-token, --prefill-square and --cached-token add the cost of context, of attention and of cached tokens; --batch-knee \
bends the cost of the batch. --twin takes all of it from an engine that was fitted to a capture.

Every figure that it reports is marked as simulated. Use it to try the other commands without a GPU, to make a server \
fail on demand, and (with --exact-cadence) to check an instrument against sends at known times.

The header x-sim-fault makes a request fail; it is a comma-separated list:

    stall=2s@10       pause for 2 s before the 10th token
    reset@5           TCP reset after the 5th token (0: after the head)
    close@5           close without the end of the body after the 5th token
    error@3           error event after the 3rd token, then [DONE]
    slow-headers=1s   wait before the head
    status=503        answer with this status
    hangup            close after the complete reply without announcing it

GET /sim/sends?id=<x-request-id> returns the times at which each event of a stream was really written.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["listen", "model", "prefill-rate", "step-base", "max-num-seqs", "exact-cadence"],
    examples: &[
        ("Serve on port 8000", "streamgauge sim"),
        (
            "Simulate a slow server that runs at most eight requests at once",
            "streamgauge sim --step-base 40ms --max-num-seqs 8",
        ),
        ("Serve a copy of production's behaviour", "streamgauge sim --twin twin.json"),
        (
            "Check an instrument against a token every 20 ms",
            "streamgauge sim --exact-cadence 20ms --listen 127.0.0.1:8001",
        ),
    ],
};

/// Run a simulated OpenAI-compatible server, without a model
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
pub(crate) struct Args {
    /// Listen on this address; port 0 takes a free port and prints it. The server has no authentication
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,

    /// Serve a model of this name, and answer 404 for others; may be repeated
    #[arg(long = "model", value_name = "NAME", default_value = "sim")]
    models: Vec<String>,

    /// Seed for text and output lengths of requests without a `seed`
    ///
    /// Equal requests in equal order get equal responses.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Serve the engine of this twin (`streamgauge twin fit`); the flags of the cost model and the scheduler do not apply
    #[arg(long, value_name = "FILE", conflicts_with = "exact_cadence", help_heading = "Cost model")]
    twin: Option<PathBuf>,

    /// Engine of the twin by its model, if it has several
    #[arg(long, value_name = "MODEL", requires = "twin", help_heading = "Cost model")]
    twin_model: Option<String>,

    /// Process this many prompt tokens per second
    ///
    /// The defaults of the cost model are round numbers near an 8B model on one data-centre GPU.
    #[arg(long, value_name = "TOKENS", default_value_t = 20_000, value_parser = at_least_one(), help_heading = "Cost model")]
    prefill_rate: u32,

    /// Spend this time on every step: the time to read the weights once
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = parse_duration, help_heading = "Cost model")]
    step_base: Gap,

    /// Add this time to a step for each of its sequences
    #[arg(long, value_name = "DURATION", default_value = "100us", value_parser = parse_duration, help_heading = "Cost model")]
    step_per_seq: Gap,

    /// Charge --step-per-seq for the first N sequences of a step, and --step-per-further-seq for the others
    #[arg(long, value_name = "N", default_value_t = u32::MAX, hide_default_value = true, value_parser = at_least_one(), requires = "step_per_further_seq", help_heading = "Cost model")]
    batch_knee: u32,

    /// Add this time to a step for each sequence beyond --batch-knee
    #[arg(long, value_name = "DURATION", default_value = "0", hide_default_value = true, value_parser = parse_duration, requires = "batch_knee", help_heading = "Cost model")]
    step_per_further_seq: Gap,

    /// Add this many nanoseconds to a step for each token of context of its decoding sequences
    #[arg(long, value_name = "NS", default_value_t = 0.0, value_parser = nanoseconds, help_heading = "Cost model")]
    kv_token: f64,

    /// Add this many nanoseconds for the square of each prompt's length: attention during prefill
    #[arg(long, value_name = "NS", default_value_t = 0.0, value_parser = nanoseconds, help_heading = "Cost model")]
    prefill_square: f64,

    /// Add this many nanoseconds for each prompt token that the prefix cache holds
    #[arg(long, value_name = "NS", default_value_t = 0.0, value_parser = nanoseconds, help_heading = "Cost model")]
    cached_token: f64,

    /// Delay each request by this time before it reaches the scheduler: network, tokenizer and front end
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration, help_heading = "Cost model")]
    front_end: Gap,

    /// Run at most N sequences in one step; further ones wait
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one(), help_heading = "Scheduler")]
    max_num_seqs: u32,

    /// Process at most this many tokens in one step; longer prompts are prefilled in chunks
    ///
    /// A lower value makes inter-token latency more even and the first token later.
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, value_parser = at_least_one(), help_heading = "Scheduler")]
    max_batched_tokens: u32,

    /// Queue at most N sequences; answer 503 to further requests
    #[arg(long, value_name = "N", default_value_t = 4_096, help_heading = "Scheduler")]
    max_waiting: u32,

    /// Allow at most this many tokens of prompt and output together; answer 400 to longer requests
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072, value_parser = at_least_one(), help_heading = "Scheduler")]
    max_model_len: u32,

    /// Compute whole prompts before any decoding, instead of chunks of prompts beside it
    #[arg(long, help_heading = "Scheduler")]
    prefill_first: bool,

    /// Provide N KV-cache blocks; if they run out, preempt and restart the youngest sequence
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least_one(), help_heading = "Scheduler")]
    kv_blocks: u32,

    /// Tokens per KV-cache block
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = at_least_one(), help_heading = "Scheduler")]
    block_size: u32,

    /// Prefill every prompt completely, instead of only what differs from earlier prompts
    #[arg(long, help_heading = "Scheduler")]
    no_prefix_cache: bool,

    /// Generate N tokens per step and sequence, in one event, as with speculative decoding
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one(), help_heading = "Streams")]
    tokens_per_step: u32,

    /// Send an event every N tokens (vLLM's flag); the first and the last token are sent at once
    ///
    /// A request can set a higher `stream_interval`.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one(), help_heading = "Streams")]
    stream_interval: u32,

    /// Draw output lengths with this mean (geometric) for requests without `ignore_eos`, up to `max_tokens`
    #[arg(long, value_name = "TOKENS", default_value_t = 200, value_parser = at_least_one(), help_heading = "Streams")]
    mean_output_tokens: u32,

    /// Add vLLM's `metrics` object (first token, queue time, mean inter-token latency) to the usage chunk
    #[arg(long, help_heading = "Streams")]
    per_request_metrics: bool,

    /// Send token k of every stream at exactly first + k x DURATION, whatever the load
    ///
    /// There is no batching, no queue and no prefix cache. /sim/sends returns the real times of sending.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Calibration")]
    exact_cadence: Option<Gap>,

    /// Close a kept-alive connection after this time without a request, as uvicorn does under vLLM
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration, help_heading = "Connections")]
    idle_timeout: Gap,

    /// Close the connection after every streamed response without announcing it, as llama-server does
    #[arg(long, help_heading = "Connections")]
    hangup_after_stream: bool,

    /// Accept request bodies of at most this size in MiB; answer 413 to larger ones
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = at_least_one(), help_heading = "Connections")]
    max_body: u32,

    /// Accept at most N open connections; further ones wait in the kernel's queue
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least_one(), help_heading = "Connections")]
    max_connections: u32,
}

/// A cost in nanoseconds, which may have a fraction.
fn nanoseconds(text: &str) -> Result<f64, String> {
    let cost = text.parse::<f64>().map_err(|_| format!("`{text}` is no number of nanoseconds, such as 12.5"))?;
    (cost.is_finite() && cost >= 0.0).then_some(cost).ok_or_else(|| "a cost is at least 0".to_owned())
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let listen = args.listen;
    let options = match args.options_of_twin() {
        Ok(options) => options,
        Err(error) => return Ok(usage_error(&error)),
    };
    let story = intro_text(&options);
    crate::cli::descriptors::raise_fd_limit();
    let server = SimServer::bind(options, listen)?;
    runtime().context("cannot start the runtime")?.block_on(async {
        let mut stop = StopSignals::new().context("cannot wait for signals")?;
        // A closed stderr is no reason to stop.
        writeln!(stderr(), "{story}\nlistening on http://{}/v1", server.local_addr()).ok();
        server.run(stop.wait()).await.context("the simulated server failed")
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The options, with the engine of `--twin` if there is one.
    fn options_of_twin(mut self) -> anyhow::Result<SimOptions> {
        let Some(path) = self.twin.take() else { return Ok(self.options()) };
        let twin_model = self.twin_model.take();
        let twin = TwinModel::read(&path)?;
        let fits = |engine: &&TwinEngine| twin_model.is_none() || engine.model == twin_model;
        let Some(engine) = twin.engines.iter().find(fits) else {
            let models: Vec<&str> = twin.engines.iter().filter_map(|engine| engine.model.as_deref()).collect();
            anyhow::bail!(
                "--twin-model: {} has no such engine; remedy: name one of {}",
                path.display(),
                models.join(", ")
            );
        };
        let engine_options = engine.options().map_err(anyhow::Error::msg)?;
        let mut options = self.options();
        if let Some(model) = engine.model.clone().filter(|_| options.models == ["sim"]) {
            options.models = vec![model];
        }
        let max_waiting = options.engine.max_waiting;
        options.max_model_len =
            options.max_model_len.min(u32::try_from(engine_options.kv_tokens()).unwrap_or(u32::MAX));
        options.engine = EngineOptions { max_waiting, ..engine_options };
        Ok(options)
    }

    fn options(self) -> SimOptions {
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let engine = EngineOptions {
            cost: CostModel {
                prefill_per_second: self.prefill_rate,
                step_base: self.step_base,
                step_per_seq: self.step_per_seq,
                batch_knee: self.batch_knee,
                step_per_further_seq: self.step_per_further_seq,
                prefill_square_ns: self.prefill_square,
                cached_token_ns: self.cached_token,
                kv_token_ns: self.kv_token,
            },
            prefill_mode: if self.prefill_first { PrefillMode::First } else { PrefillMode::Chunked },
            max_num_seqs: self.max_num_seqs,
            max_batched_tokens: self.max_batched_tokens,
            max_waiting: self.max_waiting,
            kv_blocks: self.kv_blocks,
            block_tokens: self.block_size,
            prefix_cache: !self.no_prefix_cache,
            tokens_per_step: self.tokens_per_step,
            front_end: self.front_end,
            exact_cadence: self.exact_cadence,
        };
        SimOptions {
            models: self.models,
            seed: self.seed,
            engine,
            max_model_len: self.max_model_len,
            stream_interval: self.stream_interval,
            mean_output_tokens: self.mean_output_tokens,
            per_request_metrics: self.per_request_metrics,
            idle_timeout: self.idle_timeout,
            hangup_after_stream: self.hangup_after_stream,
            max_body: size(self.max_body).saturating_mul(1 << 20),
            max_connections: size(self.max_connections),
        }
    }
}

/// Describes the simulation in the words of the cost model.
fn intro_text(options: &SimOptions) -> String {
    let engine = &options.engine;
    let cost = &engine.cost;
    let model = format!(
        "SIMULATION of an inference server: model `{}` makes words from a list, and every time it shows comes from a \
         cost model.",
        options.models.join("`, `")
    );
    let prefill = format!("prefill at {} tokens/s", cost.prefill_per_second);
    match engine.exact_cadence {
        Some(cadence) => format!(
            "{model}\nexact cadence: a token every {cadence} for each of up to {} streams; first token after {} and {prefill}",
            engine.max_num_seqs,
            cost.step(&StepWork { seqs: 1, ..StepWork::default() }),
        ),
        None => format!(
            "{model}\na step takes {} + {} per sequence, {prefill}; up to {} sequences and {} tokens in a step, {} KV \
             blocks of {} tokens, prefix cache {}",
            cost.step_base,
            cost.step_per_seq,
            engine.max_num_seqs,
            engine.max_batched_tokens,
            engine.kv_blocks,
            engine.block_tokens,
            if engine.prefix_cache { "on" } else { "off" },
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn options(flags: &[&str]) -> SimOptions {
        Command::try_parse_from([&["sim"], flags].concat()).unwrap().args.options()
    }

    #[test]
    fn the_flags_default_to_the_defaults_of_the_library() {
        assert_eq!(options(&[]), SimOptions::default());
    }

    #[test]
    fn a_twin_gives_its_engine_and_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("twin.json");
        let text = r#"{"streamgauge_twin": 1, "engines": [
            {"model": "a", "parameters": {"step_base": {"value": 2e7}}},
            {"model": "b", "parameters": {"kv_blocks": {"value": 100}}}]}"#;
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        let read = |more: &[&str]| {
            let flags = [&["sim", "--twin", &path], more].concat();
            Command::try_parse_from(flags).unwrap().args.options_of_twin()
        };
        let options = read(&[]).unwrap();
        assert_eq!((options.models, options.engine.cost.step_base), (vec!["a".to_owned()], Gap::from_millis(20)));
        let options = read(&["--twin-model", "b", "--model", "mine"]).unwrap();
        assert_eq!((options.check(), options.max_model_len, options.models), (Ok(()), 1_600, vec!["mine".to_owned()]));
        assert!(read(&["--twin-model", "c"]).unwrap_err().to_string().contains("remedy: name one of a, b"));
    }

    #[test]
    fn durations_are_written_with_their_unit() {
        let options = options(&["--exact-cadence", "10ms", "--step-per-seq", "1500ns"]);
        assert_eq!(options.engine.exact_cadence, Some(Gap::from_millis(10)));
        assert_eq!(options.engine.cost.step_per_seq, Gap::from_nanos(1_500));
        assert!(Command::try_parse_from(["sim", "--batch-knee", "4"]).is_err(), "without a cost beyond it");
        assert!(Command::try_parse_from(["sim", "--idle-timeout", "5"]).is_err());
    }

    #[test]
    fn a_count_out_of_range_is_told_with_the_range() {
        for count in ["0", "99999999999999"] {
            let message = Command::try_parse_from(["sim", "--kv-blocks", count]).err().unwrap().to_string();
            assert!(message.contains(&format!("{count} is not in 1..=4294967295")), "{message}");
        }
    }

    #[test]
    fn the_first_line_says_that_it_is_a_simulation() {
        assert!(intro_text(&SimOptions::default()).starts_with("SIMULATION"));
        let engine = EngineOptions { exact_cadence: Some(Gap::from_millis(10)), ..EngineOptions::default() };
        let exact = SimOptions { engine, ..SimOptions::default() };
        assert!(intro_text(&exact).contains("every 10.0ms"));
    }
}
