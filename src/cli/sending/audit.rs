//! What this machine can be believed: before a run its rate is tried for two seconds at a server in this process, whose
//! beat is known.
//!
//! The server shares the machine, so what is seen is the worst that the run will have of its own making: its lateness is
//! in the beat, and its work in the CPU time. Rates of more events than [`MOST_EVENTS`] a second are tried with shorter
//! streams, for the server's sake; the result says at how many.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::Serialize;

use super::flags::Sending;
use super::prepare::Refused;
use crate::measure::slo::Slos;
use crate::measure::time::{Gap, Window};
use crate::replay::content::Content;
use crate::replay::encode::Encoder;
use crate::replay::request::ExactOutput;
use crate::replay::run::{Loop, Sessions};
use crate::replay::schedule::{Plan, Rows, Schedule};
use crate::replay::summary::{Spread, Summary};
use crate::replay::synth::Synthetic;
use crate::replay::synth::arrivals::Arrivals;
use crate::replay::synth::length::{Length, Lengths};
use crate::replay::target::Target;
use crate::replay::words::Words;
use crate::replay::{Config, Run};
use crate::sim::{Options, Server};

/// What is measured of it.
const LENGTH: Gap = Gap::from_millis(2_000);
/// What comes before: connections are made in it.
const WARM_UP: Gap = Gap::from_millis(500);
/// Between two events of a stream.
const BEAT: Gap = Gap::from_millis(20);
/// Tokens of a prompt.
const PROMPT: u64 = 32;
/// Events a second that the server in this process keeps its beat with.
const MOST_EVENTS: f64 = 5_000.0;
/// How long streams may be, in tokens: those of longer ones would not end in time.
const LONGEST: f64 = 50.0;
/// Requests a second that are tried at least, for there to be a percentile.
const LOWEST_RATE: f64 = 20.0;
/// How far off a gap may be at its 99th percentile.
const BEAT_ERROR: Gap = Gap::from_millis(2);
/// How far off the rate may be, as a share.
const RATE_ERROR: f64 = 0.001;

/// The load of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// Requests a second, on average.
    pub(super) rate: f64,
    /// Tokens of a reply, on average.
    pub(super) tokens: f64,
}

impl Load {
    /// Requests at their own times, the last of them at `last`.
    pub(super) fn open(requests: u64, last: Gap, tokens: u64) -> Self {
        let seconds = last.as_secs();
        let rate = if seconds > 0.0 { requests.saturating_sub(1) as f64 / seconds } else { requests as f64 };
        Self { rate, tokens: tokens as f64 / requests.max(1) as f64 }
    }

    /// So many slots that are never empty.
    pub(super) fn closed(slots: Option<u32>, requests: u64, tokens: u64) -> Self {
        let tokens = tokens as f64 / requests.max(1) as f64;
        Self { rate: f64::from(slots.unwrap_or(1)) / (tokens.clamp(1.0, LONGEST) * BEAT.as_secs()), tokens }
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Audit {
    /// Requests a second that were tried.
    requests_per_second: f64,
    /// Tokens of a reply, each an event of its own.
    tokens_per_request: u64,
    /// As sent.
    sent_rate: Option<f64>,
    /// How late requests were sent, in nanoseconds.
    lag: Option<Spread>,
    /// Between two events, as the server sent them, in nanoseconds.
    beat: u64,
    /// The same as observed.
    observed: Option<Spread>,
    /// CPU time of this process for each event, in microseconds, with the server's.
    cpu_us_per_event: f64,
    /// Which numbers of the run would be wrong, and by how much.
    pub(super) doubts: Vec<String>,
}

/// Tries a load.
pub(super) fn audit(args: &Sending, load: Load, workers: usize) -> Result<Audit, Refused> {
    let rate = load.rate.max(LOWEST_RATE);
    let tokens = load.tokens.min(LONGEST).min(MOST_EVENTS / rate).max(1.0) as u64;
    let length = LENGTH.as_secs() + WARM_UP.as_secs();
    let synthetic = Synthetic {
        arrivals: Arrivals::constant(rate),
        requests: Some((rate * length).ceil() as u64),
        lengths: Lengths::Apart(Length::Fixed(PROMPT), Length::Fixed(tokens)),
        seed: args.seed,
        ..Synthetic::default()
    };
    let options = Options { exact_cadence: Some(BEAT), max_num_seqs: u32::MAX, ..Options::default() };
    let server = Server::bind(options, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.spawn()?;
    let address = server.local_addr();
    let target = Target { tls: false, host: address.ip().to_string(), port: address.port(), base: String::new() };
    let content = Content::new(Words::default(), synthetic.header().blocks, None, args.seed);
    let encoder = Encoder::new(content, vec![target.clone()], None, Vec::new(), ExactOutput::On, None, args.seed);
    let config = Config {
        targets: vec![target],
        tls: None,
        encoder: encoder.map_err(anyhow::Error::msg)?,
        arrivals: Loop::Open,
        slots: None,
        sessions: Sessions::Timed,
        connections: args.connections.into(),
        connect_timeout: args.connect_timeout,
        timeout: args.timeout,
        pauses: 1.0,
        slos: Arc::<Slos>::default(),
        stall: crate::measure::observer::DEFAULT_STALL,
        workers,
        measured: Window { from: WARM_UP.as_nanos(), to: None },
        begin: None,
    };
    let rows = move || Ok(Box::new(synthetic.rows().map(Ok)) as Rows);
    let before = cpu_us()?;
    let ended = Run::start(config, move || Schedule::new(Plan::default(), rows), None)?.finish();
    let cpu = cpu_us()? - before;
    server.stop()?;
    let summary = ended.summary;
    let events = (ended.sent * tokens).max(1);
    Ok(Audit {
        requests_per_second: rate,
        tokens_per_request: tokens,
        sent_rate: summary.sent_rate,
        lag: summary.lag,
        beat: BEAT.as_nanos(),
        observed: summary.itl,
        cpu_us_per_event: cpu as f64 / events as f64,
        doubts: doubts(&summary, args.max_lag),
    })
}

/// CPU time of this process, in microseconds.
fn cpu_us() -> nix::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok(usage.user_time().num_microseconds() + usage.system_time().num_microseconds())
}

/// Which numbers would be wrong.
fn doubts(summary: &Summary, max_lag: Gap) -> Vec<String> {
    let gap = Gap::from_nanos;
    let failed = summary.requests - summary.outcomes.get("success").copied().unwrap_or(0);
    let mut doubts = Vec::new();
    if failed > 0 {
        doubts.push(format!("{failed} of {} requests would fail by this machine's doing", summary.requests));
    }
    if let Some(lag) = summary.lag.filter(|lag| lag.p99 > max_lag.as_nanos()) {
        doubts.push(format!("requests would be sent late, p99 {} (--max-lag {max_lag})", gap(lag.p99)));
    }
    if let (Some(planned), Some(sent)) = (summary.planned_rate, summary.sent_rate)
        && (sent / planned - 1.0).abs() > RATE_ERROR
    {
        doubts.push(format!("the rate would be {sent:.2} requests/s and not {planned:.2}"));
    }
    if let Some(observed) = summary.itl {
        let off = observed.p99.saturating_sub(BEAT.as_nanos());
        if off > BEAT_ERROR.as_nanos() {
            doubts.push(format!("TTFT and ITL would be too long by up to {} in 1 of 100", gap(off)));
        }
    }
    doubts
}

impl Audit {
    /// What was found, in a sentence.
    pub(super) fn told(&self) -> String {
        let gap = Gap::from_nanos;
        let spread = |spread: Option<Spread>| {
            spread.map_or("-".to_owned(), |spread| format!("p50 {} p99 {}", gap(spread.p50), gap(spread.p99)))
        };
        format!(
            "audit: {:.0} requests/s of {} tokens: send lag {}, gaps of {BEAT} seen as {}, {:.0} µs of CPU for each event",
            self.requests_per_second,
            self.tokens_per_request,
            spread(self.lag),
            spread(self.observed),
            self.cpu_us_per_event
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(p99: u64) -> Option<Spread> {
        Some(Spread { count: 100, mean: 0.0, min: 0, p50: 0, p90: 0, p99, p999: p99, max: p99 })
    }

    #[test]
    fn each_number_that_would_be_wrong_is_named_with_how_much() {
        use crate::replay::summary::Fold;
        let fold = Fold::new(crate::measure::time::Stamp::default(), Arc::default(), Window::default());
        let good = Summary {
            requests: 100,
            outcomes: [("success", 100)].into(),
            planned_rate: Some(50.0),
            sent_rate: Some(50.01),
            lag: spread(10_000_000),
            itl: spread(22_000_000),
            ..fold.summary(None)
        };
        let max_lag = Gap::from_millis(10);
        assert_eq!(doubts(&good, max_lag), [""; 0]);
        let bad = Summary {
            outcomes: [("success", 98), ("failed", 2)].into(),
            sent_rate: Some(49.0),
            lag: spread(10_000_001),
            itl: spread(23_500_000),
            ..good
        };
        let told = doubts(&bad, max_lag);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[0].starts_with("2 of 100 requests would fail"), "{told:?}");
        assert!(told[1].contains("p99 10.0ms"), "{told:?}");
        assert_eq!(told[2], "the rate would be 49.00 requests/s and not 50.00");
        assert!(told[3].contains("3.50ms"), "{told:?}");
    }
}
