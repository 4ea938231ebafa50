//! `streamgauge sim`: the simulated inference server.

use std::io::{Write, stderr};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;

use super::signals::StopSignals;
use super::values::{at_least_one, parse_duration};
use crate::measure::time::Gap;
use crate::sim::{CostModel, SimOptions, SimServer, runtime};

/// The long help. Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Run a simulated inference server: OpenAI-compatible, streaming, and without any model

It answers POST /v1/chat/completions and /v1/completions the way vLLM does, event by event, with words from a list; \
log probabilities, tools, echo and stop strings it passes over. \
Its times come from a cost model of continuous batching: a step takes

    step-base + step-per-seq x sequences + prompt tokens / prefill-rate

and every number it shows says that it is simulated. Use it to try the other commands without a GPU, to make a server \
fail on demand, and (with --exact-cadence) to check an instrument against sends whose times are known.

Faults, per request, by the header x-sim-fault (a comma-separated list):

    stall=2s@10       pause for 2 s before the 10th token
    reset@5           TCP reset after the 5th token (0: after the head)
    close@5           close without the end of the body after the 5th token
    error@3           error event after the 3rd token, then [DONE]
    slow-headers=1s   wait before the head
    status=503        answer with this status
    hangup            close after the complete reply without having said so

GET /sim/sends?id=<x-request-id> gives the times at which each event of a stream was really written.";

/// Run a simulated inference server: OpenAI-compatible, streaming, and without any model
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
pub(crate) struct Args {
    /// Address to listen on; port 0 takes a free port and prints it. Loopback, because it has no authentication
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,

    /// Name of the model, may be repeated; a request for another one gets 404
    #[arg(long = "model", value_name = "NAME", default_value = "sim")]
    models: Vec<String>,

    /// Seed of texts and output lengths where the request has no `seed`: the same requests in the same order get the
    /// same answers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Prompt tokens per second. The default is a round number near an 8B model on one data-centre GPU, as are the
    /// two below
    #[arg(long, value_name = "TOKENS", default_value_t = 20_000, value_parser = at_least_one(), help_heading = "Cost model")]
    prefill_rate: u32,

    /// What every step takes, however small: the time to read the weights once
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = parse_duration, help_heading = "Cost model")]
    step_base: Gap,

    /// What each sequence in the step adds
    #[arg(long, value_name = "DURATION", default_value = "100us", value_parser = parse_duration, help_heading = "Cost model")]
    step_per_seq: Gap,

    /// Most sequences in one step; the rest waits
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one(), help_heading = "Scheduler")]
    max_num_seqs: u32,

    /// Most tokens in one step. Longer prompts are prefilled in chunks, between the decode steps of the others: less
    /// makes inter-token latency smoother and the first token later
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, value_parser = at_least_one(), help_heading = "Scheduler")]
    max_batched_tokens: u32,

    /// Most sequences that wait; a request on top gets 503
    #[arg(long, value_name = "N", default_value_t = 4_096, help_heading = "Scheduler")]
    max_waiting: u32,

    /// Most tokens of a sequence, prompt and output together; a longer request gets 400
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072, value_parser = at_least_one(), help_heading = "Scheduler")]
    max_model_len: u32,

    /// KV-cache blocks of 16 tokens. When they run out the youngest sequence is preempted and starts over
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least_one(), help_heading = "Scheduler")]
    kv_blocks: u32,

    /// Forget prompts at once: by default a prompt that starts like an earlier one is prefilled only where it differs
    #[arg(long, help_heading = "Scheduler")]
    no_prefix_cache: bool,

    /// Tokens that a step gives each sequence, in one event, as with speculative decoding
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one(), help_heading = "Streams")]
    tokens_per_step: u32,

    /// Tokens between two events, vLLM's flag; the first and the last token are never held back. A request may ask
    /// for more with `stream_interval`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one(), help_heading = "Streams")]
    stream_interval: u32,

    /// Mean output length (geometric) of requests that do not say `ignore_eos`; `max_tokens` still cuts it
    #[arg(long, value_name = "TOKENS", default_value_t = 200, value_parser = at_least_one(), help_heading = "Streams")]
    mean_output_tokens: u32,

    /// Put vLLM's `metrics` object (first token, queue time, mean inter-token latency) on the usage chunk
    #[arg(long, help_heading = "Streams")]
    per_request_metrics: bool,

    /// Give every stream its token k at exactly first + k x DURATION, whatever the load. No batch, no queue, no
    /// prefix cache: the beat to check an instrument against, with /sim/sends for what was really sent
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Calibration")]
    exact_cadence: Option<Gap>,

    /// Close a kept-alive connection after this long without a request, as uvicorn does under vLLM
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration, help_heading = "Connections")]
    idle_timeout: Gap,

    /// Close the connection after every streamed reply without having said so, as llama-server does: what a proxy's
    /// connection pool has to survive
    #[arg(long, help_heading = "Connections")]
    hangup_after_stream: bool,

    /// Largest request body in MiB; a larger one gets 413
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = at_least_one(), help_heading = "Connections")]
    max_body: u32,

    /// Most open connections; further ones wait in the kernel's queue
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least_one(), help_heading = "Connections")]
    max_connections: u32,
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let listen = args.listen;
    let options = args.options();
    let story = intro_text(&options);
    super::raise_fd_limit();
    let server = SimServer::bind(options, listen)?;
    runtime().context("cannot start the runtime")?.block_on(async {
        let mut stop = StopSignals::new().context("cannot wait for signals")?;
        // Talk that nobody listens to is no reason to stop.
        writeln!(stderr(), "{story}\nlistening on http://{}/v1", server.local_addr()).ok();
        server.run(stop.wait()).await.context("the simulated server failed")
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn options(self) -> SimOptions {
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        SimOptions {
            models: self.models,
            seed: self.seed,
            cost: CostModel {
                prefill_per_second: self.prefill_rate,
                step_base: self.step_base,
                step_per_seq: self.step_per_seq,
            },
            max_num_seqs: self.max_num_seqs,
            max_batched_tokens: self.max_batched_tokens,
            max_waiting: self.max_waiting,
            max_model_len: self.max_model_len,
            kv_blocks: self.kv_blocks,
            prefix_cache: !self.no_prefix_cache,
            tokens_per_step: self.tokens_per_step,
            stream_interval: self.stream_interval,
            mean_output_tokens: self.mean_output_tokens,
            exact_cadence: self.exact_cadence,
            per_request_metrics: self.per_request_metrics,
            idle_timeout: self.idle_timeout,
            hangup_after_stream: self.hangup_after_stream,
            max_body: size(self.max_body).saturating_mul(1 << 20),
            max_connections: size(self.max_connections),
        }
    }
}

/// What is simulated, in the words of the cost model.
fn intro_text(options: &SimOptions) -> String {
    let cost = &options.cost;
    let model = format!(
        "SIMULATION of an inference server: model `{}` makes words from a list, and every time it shows comes from a \
         cost model.",
        options.models.join("`, `")
    );
    let prefill = format!("prefill at {} tokens/s", cost.prefill_per_second);
    match options.exact_cadence {
        Some(cadence) => format!(
            "{model}\nexact cadence: a token every {cadence} for each of up to {} streams; first token after {} and {prefill}",
            options.max_num_seqs,
            cost.step(1, 0),
        ),
        None => format!(
            "{model}\na step takes {} + {} per sequence, {prefill}; up to {} sequences and {} tokens in a step, {} KV \
             blocks of 16 tokens, prefix cache {}",
            cost.step_base,
            cost.step_per_seq,
            options.max_num_seqs,
            options.max_batched_tokens,
            options.kv_blocks,
            if options.prefix_cache { "on" } else { "off" },
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
    fn durations_are_written_with_their_unit() {
        let options = options(&["--exact-cadence", "10ms", "--step-per-seq", "1500ns"]);
        assert_eq!(options.exact_cadence, Some(Gap::from_millis(10)));
        assert_eq!(options.cost.step_per_seq, Gap::from_nanos(1_500));
        assert!(Command::try_parse_from(["sim", "--idle-timeout", "5"]).is_err());
    }

    #[test]
    fn a_count_out_of_range_is_told_with_the_range() {
        for count in ["0", "99999999999999"] {
            let told = Command::try_parse_from(["sim", "--kv-blocks", count]).err().unwrap().to_string();
            assert!(told.contains(&format!("{count} is not in 1..=4294967295")), "{told}");
        }
    }

    #[test]
    fn the_first_line_says_that_it_is_a_simulation() {
        assert!(intro_text(&SimOptions::default()).starts_with("SIMULATION"));
        let exact = SimOptions { exact_cadence: Some(Gap::from_millis(10)), ..SimOptions::default() };
        assert!(intro_text(&exact).contains("every 10.0ms"));
    }
}
