//! `streamgauge load`: synthetic load, by the runner of a replay.

use std::process::ExitCode;
use std::sync::Arc;

use super::sending::flags::{Sending, at_least_one, positive};
use super::sending::{Wanted, send};
use super::sim::gap;
use crate::measure::time::Gap;
use crate::replay::run::{Loop, Sessions};
use crate::replay::schedule::Plan;
use crate::replay::synth::{Arrivals, Length, Synthetic};

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Send synthetic load, and measure the answers

With --rate the load is open: requests come at the times of their law, whatever the server does. With --concurrency it \
is closed: a request is sent when one before it has ended, and slows down with the server.

Texts, results and exit codes are those of `streamgauge replay`.

Examples:
  Twenty requests a second for a minute, independent of each other:
    streamgauge load --target http://127.0.0.1:8000 --rate 20 --duration 1m --isl 512 --osl 128

  A system prompt of 1,000 tokens that all share, sixteen clients:
    streamgauge load --target http://127.0.0.1:8000 --concurrency 16 --requests 500 \\
      --isl normal:1500:200 --osl 200 --shared-prefix 1000";

/// Send synthetic load, and measure the answers
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
#[command(group(clap::ArgGroup::new("load").required(true).args(["rate", "concurrency"])))]
#[command(group(clap::ArgGroup::new("end").required(true).multiple(true).args(["requests", "duration"])))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) sending: Sending,

    /// Requests a second
    #[arg(long, value_name = "PER_SECOND", value_parser = positive, help_heading = "Timing")]
    rate: Option<f64>,

    /// How they come: `poisson`, independent of each other; `constant`; or `gamma:SHAPE`, in bursts below shape 1 and
    /// more even above
    #[arg(long, value_name = "LAW", default_value = "poisson", value_parser = law, help_heading = "Timing")]
    arrivals: Law,

    /// Requests open at a time
    #[arg(long, value_name = "N", value_parser = at_least_one(), help_heading = "Timing")]
    concurrency: Option<u32>,

    /// Hold requests back while so many are open. They stay planned when they were: the wait is in their latency, and
    /// they are counted
    #[arg(long, value_name = "N", value_parser = at_least_one(), conflicts_with = "concurrency", help_heading = "Timing")]
    max_in_flight: Option<u32>,

    /// Send so many
    #[arg(long, value_name = "N", value_parser = at_least_one(), help_heading = "Timing")]
    requests: Option<u32>,

    /// Send for so long
    #[arg(long, value_name = "DURATION", value_parser = gap, help_heading = "Timing")]
    duration: Option<Gap>,

    /// Tokens of a prompt: a number, normal:MEAN:SD or lognormal:MEAN:SD
    #[arg(long, value_name = "LENGTH", default_value = "512", value_parser = length, help_heading = "Requests")]
    isl: Length,

    /// Tokens of a reply, likewise
    #[arg(long, value_name = "LENGTH", default_value = "128", value_parser = length, help_heading = "Requests")]
    osl: Length,

    /// Tokens at the beginning of each prompt that are the same for all
    #[arg(long, value_name = "TOKENS", default_value_t = 0, help_heading = "Requests")]
    shared_prefix: u32,

    /// Groups of requests, each with a shared prefix of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one(), requires = "shared_prefix", help_heading = "Requests")]
    prefix_groups: u32,

    /// The model to ask for; without it none is named
    #[arg(long, value_name = "NAME", help_heading = "Requests")]
    model: Option<String>,

    /// Ask for whole answers instead of streams
    #[arg(long, help_heading = "Requests")]
    no_stream: bool,
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
enum Law {
    Constant,
    Poisson,
    Gamma(f64),
}

/// Sends the load.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    send(&args.sending, || Ok(args.wanted()))
}

impl Args {
    pub(super) fn wanted(&self) -> Wanted {
        let arrivals = match (self.rate, self.arrivals) {
            (None, _) => Arrivals::Closed,
            (Some(rate), Law::Constant) => Arrivals::Constant(rate),
            (Some(rate), Law::Poisson) => Arrivals::Poisson(rate),
            (Some(rate), Law::Gamma(shape)) => Arrivals::Gamma(rate, shape),
        };
        let synthetic = Synthetic {
            arrivals,
            requests: self.requests.map(u64::from),
            input: self.isl,
            output: self.osl,
            shared_prefix: self.shared_prefix,
            prefix_groups: self.prefix_groups.into(),
            model: self.model.clone(),
            stream: !self.no_stream,
            seed: self.sending.seed,
        };
        Wanted {
            name: format!("{synthetic:?}"),
            production: None,
            digest: None,
            header: synthetic.header(),
            plan: Plan { duration: self.duration, seed: self.sending.seed, ..Plan::default() },
            open: Arc::new(move || Ok(Box::new(synthetic.rows().map(Ok)))),
            tokens_per_byte: None,
            arrivals: if self.rate.is_some() { Loop::Open } else { Loop::Closed },
            slots: self.concurrency.or(self.max_in_flight),
            sessions: Sessions::Live,
            notes: Vec::new(),
        }
    }
}

fn law(text: &str) -> Result<Law, &'static str> {
    const SHAPE: &str = "expected constant, poisson or gamma:SHAPE with a shape above 0";
    match text {
        "constant" => Ok(Law::Constant),
        "poisson" => Ok(Law::Poisson),
        _ => text.strip_prefix("gamma:").and_then(|shape| positive(shape).ok()).map(Law::Gamma).ok_or(SHAPE),
    }
}

fn length(text: &str) -> Result<Length, &'static str> {
    text.parse()
}
