//! The self-test: before a run, it drives as much of the planned load as fits, for at least 2.5 s. The target is an
//! in-process server with a known token interval.
//!
//! The server shares the machine, so the result is an upper bound on the load generator's own error. The server's
//! lateness appears in the interval. The server's CPU time is excluded, because only the other threads are counted. The
//! part of the plan beyond the test's limits is extrapolated from the CPU cost per event.

mod latency_stats;
mod load;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike as _;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::oneshot;

use super::error::SetupError;
use super::figures::{RunFigures, RunTotals};
use super::flags::RunnerArgs;
use crate::clock::Clock;
use crate::engine::EngineOptions;
use crate::measure::slo::Slos;
use crate::measure::time::{Gap, Stamp, Window};
use crate::replay::request::encoder::RequestEncoder;
use crate::replay::request::template::ExactOutput;
use crate::replay::result::row::CompletedRequest;
use crate::replay::sender::priority::CoreTime;
use crate::replay::sender::run::{LoopMode, SessionMode};
use crate::replay::sender::target::TargetUrl;
use crate::replay::{Config, ReplayRun};
use crate::report::accumulate::Accumulator;
use crate::report::metric::ReportMetric;
use crate::sim::{self, SimOptions, SimServer};
use crate::trace::prompt_text::PromptGenerator;
use crate::trace::vocabulary::Vocabulary;
use crate::trace_file::row::TraceEntry;
use latency_stats::LatencyStats;
pub(super) use load::OfferedLoad;
use load::SelfTestLoad;

/// Limit on a gap's error at p99.
const MAX_INTERVAL_ERROR: Gap = Gap::from_millis(2);
/// Limit on the rate's relative error.
const MAX_RATE_ERROR: f64 = 0.001;
/// Limits on a sending thread's mean wait for a core, and on its total wait relative to its run time. Above both, other
/// processes cause the wait.
const MAX_CORE_WAIT: Gap = Gap::from_nanos(250_000);
const MAX_WAIT_TO_RUN_RATIO: u64 = 2;
/// Usable share of the sending threads' cores: above it, events queue behind each other.
const MAX_CORE_UTILIZATION: f64 = 0.8;

/// Results of the self-test.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct SelfTestFindings {
    /// Load of the plan.
    planned: OfferedLoad,
    /// Load of the self-test.
    probed: OfferedLoad,
    /// Output tokens of a measured request; each is one event.
    tokens_per_request: u64,
    /// Largest number of concurrent streams.
    most_open: u32,
    /// Sent requests per second.
    sent_rate: Option<f64>,
    /// Actual minus planned send time, in nanoseconds.
    lag: Option<LatencyStats>,
    /// The server's interval between two events, in nanoseconds.
    beat: u64,
    /// The observed interval, in nanoseconds.
    observed: Option<LatencyStats>,
    /// A sending thread's mean wait for a core per time slice, in nanoseconds.
    core_wait: Option<u64>,
    /// CPU time per event, without the server, in microseconds.
    cpu_us_per_event: f64,
    /// Cores needed for all events of the plan.
    cores: f64,
    /// Figures of the run that would be wrong, and by how much.
    pub(super) uncertain: Vec<String>,
}

/// Runs the self-test for a load.
pub(super) fn run_self_test(
    args: &RunnerArgs,
    load: OfferedLoad,
    workers: usize,
) -> Result<SelfTestFindings, SetupError> {
    let trial = SelfTestLoad::of(&load, getrlimit(Resource::RLIMIT_NOFILE)?.0);
    let engine =
        EngineOptions { exact_cadence: Some(trial.token_interval), max_num_seqs: u32::MAX, ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    let server = SimServer::bind(options, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = server.local_addr();
    let serving = SelfTestServer::start(server)?;
    let target = TargetUrl { tls: false, host: address.ip().to_string(), port: address.port(), base: String::new() };
    let content = PromptGenerator::new(Vocabulary::default(), None, None, args.requests.seed);
    let encoder =
        RequestEncoder::new(content, vec![target.clone()], None, Vec::new(), ExactOutput::On, None, args.requests.seed);
    let (from, to) = trial.measured_interval();
    let config = Config {
        targets: vec![target],
        tls: None,
        encoder: encoder.map_err(anyhow::Error::msg)?,
        loop_mode: LoopMode::Open,
        slots: None,
        sessions: SessionMode::Timed,
        session_time_limit: None,
        connections: args.connections.policy.into(),
        connect_timeout: args.connections.connect_timeout,
        timeout: args.connections.timeout,
        think_time_scale: 1.0,
        slos: Arc::<Slos>::default(),
        stall: crate::measure::observer::DEFAULT_STALL,
        workers,
        measurement_window: Window { from: from.as_nanos(), to: None }.into(),
        begin: None,
    };
    let most_open = Arc::new(AtomicU32::new(0));
    let figures = RunFigures::new(Slos::default(), config.measurement_window.clone(), None);
    let on_completion = {
        let (most_open, mut add) = (Arc::clone(&most_open), figures.callback());
        Box::new(move |done: &CompletedRequest, row: &TraceEntry| {
            _ = most_open.fetch_max(done.in_flight + 1, Relaxed);
            add(done, row);
        })
    };
    let run = ReplayRun::start(config, move || Ok(trial.schedule()), None, on_completion)?;
    let begin = run.begin();
    let (ended, cpu) = serving.measure(begin.after(from), begin.after(to), || run.finish())?;
    let observed = figures.read(SelfTestFigures::of);
    let probed = trial.load();
    let cpu_per_event = cpu.as_secs() / (probed.events_per_second * (to.as_secs() - from.as_secs()));
    let cores = cpu_per_event * load.events_per_second;
    let given = thread::available_parallelism().map_or(1, |cores| cores.get()).min(workers);
    let mut uncertain = find_problems(&observed, trial.token_interval, args.evaluation.max_lag);
    uncertain.extend(overload_warning(&load, cores, given));
    uncertain.extend(contention_warning(ended.core_time));
    Ok(SelfTestFindings {
        planned: load,
        probed,
        tokens_per_request: trial.tokens,
        most_open: most_open.load(Relaxed),
        sent_rate: observed.sent_rate,
        lag: observed.lag,
        beat: trial.token_interval.as_nanos(),
        observed: observed.itl,
        core_wait: ended.core_time.mean_wait().map(Gap::as_nanos),
        cpu_us_per_event: cpu_per_event * 1e6,
        cores,
        uncertain,
    })
}

/// The in-process server, on its own thread.
struct SelfTestServer {
    measured: oneshot::Sender<(Stamp, Stamp)>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<io::Result<Gap>>,
}

impl SelfTestServer {
    fn start(server: SimServer) -> io::Result<Self> {
        let (measured, interval) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = sim::runtime()?;
        let thread = thread::Builder::new().name("sim".to_owned()).spawn(move || {
            runtime.block_on(async {
                // A dropped sender stops the server too.
                let served = server.run(async { drop(stopped.await) });
                let (served, taken) = tokio::join!(served, measure_other_threads_cpu(interval));
                served.and(taken)
            })
        })?;
        Ok(Self { measured, stop, thread })
    }

    /// Runs `run` and stops the server. Returns the CPU time of all other threads between `from` and `to`.
    fn measure<T>(self, from: Stamp, to: Stamp, run: impl FnOnce() -> T) -> io::Result<(T, Gap)> {
        // A server that has already ended reports its error below.
        _ = self.measured.send((from, to)).is_ok();
        let ended = run();
        drop(self.stop);
        let taken = self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the audit's server panicked")));
        Ok((ended, taken?))
    }
}

/// CPU time of all other threads between two moments, which arrive over `interval`.
async fn measure_other_threads_cpu(interval: oneshot::Receiver<(Stamp, Stamp)>) -> io::Result<Gap> {
    let Ok((from, to)) = interval.await else { return Ok(Gap::ZERO) };
    Clock::Monotonic.sleep_until(from).await;
    let before = other_threads_cpu_nanos()?;
    Clock::Monotonic.sleep_until(to).await;
    Ok(Gap::from_nanos(other_threads_cpu_nanos()?.saturating_sub(before)))
}

/// CPU time of all threads except this one, in nanoseconds.
fn other_threads_cpu_nanos() -> io::Result<u64> {
    let of = |who| {
        let usage = getrusage(who)?;
        Ok::<_, io::Error>((usage.user_time() + usage.system_time()).num_microseconds())
    };
    Ok((of(UsageWho::RUSAGE_SELF)? - of(UsageWho::RUSAGE_THREAD)?).unsigned_abs() * 1_000)
}

/// Figures of the self-test's requests.
struct SelfTestFigures {
    requests: u64,
    successes: u64,
    planned_rate: Option<f64>,
    sent_rate: Option<f64>,
    lag: Option<LatencyStats>,
    itl: Option<LatencyStats>,
}

impl SelfTestFigures {
    fn of(totals: &mut RunTotals) -> Self {
        let RunTotals { requests: Accumulator { total, .. }, counts, .. } = totals;
        let (requests, successes) = (total.requests(), total.successes());
        let mut stats = |metric: ReportMetric| total.samples[metric as usize].sorted().map(LatencyStats::of);
        Self {
            requests,
            successes,
            planned_rate: counts.planned_rate(requests),
            sent_rate: counts.sent_rate(requests),
            lag: stats(ReportMetric::Lag),
            itl: stats(ReportMetric::Itl),
        }
    }
}

/// Lists the figures that would be wrong.
fn find_problems(summary: &SelfTestFigures, beat: Gap, max_lag: Gap) -> Vec<String> {
    let gap = Gap::from_nanos;
    let failed = summary.requests - summary.successes;
    let mut uncertain = Vec::new();
    if failed > 0 {
        uncertain.push(format!("{failed} of {} requests would fail because of the load generator", summary.requests));
    }
    if let Some(lag) = summary.lag.filter(|lag| lag.p99 > max_lag.as_nanos()) {
        uncertain.push(format!("requests would be sent late, p99 {} (--max-lag {max_lag})", gap(lag.p99)));
    }
    if let (Some(planned), Some(sent)) = (summary.planned_rate, summary.sent_rate)
        && (sent / planned - 1.0).abs() > MAX_RATE_ERROR
    {
        uncertain.push(format!("the rate would be {sent:.2} requests/s and not {planned:.2}"));
    }
    if let Some(observed) = summary.itl {
        let off = observed.p99.saturating_sub(beat.as_nanos());
        if off > MAX_INTERVAL_ERROR.as_nanos() {
            uncertain.push(format!("the load generator itself would inflate TTFT and ITL by up to {} (p99)", gap(off)));
        }
    }
    uncertain
}

/// Warns if the plan's events need more than the sending threads' cores.
fn overload_warning(load: &OfferedLoad, cores: f64, given: usize) -> Option<String> {
    (cores > given as f64 * MAX_CORE_UTILIZATION).then(|| {
        format!(
            "{:.0} events/s would take {cores:.1} cores, and the sending threads have {given} (--workers): TTFT and ITL \
             would be too long, and requests late",
            load.events_per_second
        )
    })
}

/// Warns if other processes keep the sending threads from their cores.
fn contention_warning(time: CoreTime) -> Option<String> {
    let for_others = time.waited.as_nanos() > time.ran.as_nanos().saturating_mul(MAX_WAIT_TO_RUN_RATIO);
    let wait = time.mean_wait().filter(|wait| *wait > MAX_CORE_WAIT && for_others)?;
    Some(format!(
        "other processes keep the sending threads waiting for a core, {wait} at a time: requests may be late, and TTFT and \
         ITL too long; give the load generator cores of its own, or a higher priority (nice)"
    ))
}

impl SelfTestFindings {
    /// The result in one sentence.
    pub(super) fn summary_line(&self) -> String {
        let gap = Gap::from_nanos;
        let spread = |spread: Option<LatencyStats>| {
            spread.map_or("-".to_owned(), |spread| format!("p50 {} p99 {}", gap(spread.p50), gap(spread.p99)))
        };
        format!(
            "audit: {:.0} requests/s of {} tokens, {} streams open: send lag {}, gaps of {} seen as {}, {:.0} µs of CPU for \
             each event{}",
            self.probed.requests_per_second,
            self.tokens_per_request,
            self.most_open,
            spread(self.lag),
            gap(self.beat),
            spread(self.observed),
            self.cpu_us_per_event,
            self.untested_part().unwrap_or_default()
        )
    }

    /// The part of the plan that was not tested, and its consequence.
    fn untested_part(&self) -> Option<String> {
        let of = [
            (self.probed.requests_per_second, self.planned.requests_per_second, "requests/s"),
            (self.probed.streams, self.planned.streams, "streams"),
            (self.probed.events_per_second, self.planned.events_per_second, "events/s"),
        ];
        // Tolerance: the self-test rounds to whole tokens and streams.
        let less = of.iter().filter(|(probed, planned, _)| *probed < planned * 0.9 - 1.0);
        let less: Vec<String> =
            less.map(|(probed, planned, what)| format!("{probed:.0} of {planned:.0} {what}")).collect();
        let all = format!("; all of it would take {:.0} % of a core", self.cores * 100.0);
        (!less.is_empty()).then(|| format!("; that is {}{all}", less.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(p99: u64) -> Option<LatencyStats> {
        Some(LatencyStats { count: 100, mean: 0.0, min: 0, p50: 0, p90: 0, p99, p999: p99, max: p99 })
    }

    #[test]
    fn each_number_that_would_be_wrong_is_named_with_how_much() {
        let good = SelfTestFigures {
            requests: 100,
            successes: 100,
            planned_rate: Some(50.0),
            sent_rate: Some(50.01),
            lag: spread(10_000_000),
            itl: spread(22_000_000),
        };
        let max_lag = Gap::from_millis(10);
        let beat = Gap::from_millis(20);
        assert_eq!(find_problems(&good, beat, max_lag), [""; 0]);
        let bad = SelfTestFigures {
            successes: 98,
            sent_rate: Some(49.0),
            lag: spread(10_000_001),
            itl: spread(23_500_000),
            ..good
        };
        let problems = find_problems(&bad, beat, max_lag);
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems[0].starts_with("2 of 100 requests would fail"), "{problems:?}");
        assert!(problems[1].contains("p99 10.0ms"), "{problems:?}");
        assert_eq!(problems[2], "the rate would be 49.00 requests/s and not 50.00");
        assert!(problems[3].contains("3.50ms"), "{problems:?}");
    }

    #[test]
    fn a_plan_that_takes_more_cores_than_its_threads_have_is_named_with_how_many() {
        let load = OfferedLoad::closed(Some(1_000), 1_000, 100_000);
        assert_eq!(overload_warning(&load, 0.8, 1), None);
        assert_eq!(overload_warning(&load, 1.6, 2), None);
        let warning = overload_warning(&load, 1.25, 1).unwrap();
        assert!(
            warning.starts_with("50000 events/s would take 1.2 cores, and the sending threads have 1 "),
            "{warning}"
        );
    }

    fn found(planned: OfferedLoad, trial: &SelfTestLoad) -> SelfTestFindings {
        let (lag, observed) = (spread(1_000), spread(20_000_000));
        let (probed, beat) = (trial.load(), trial.token_interval.as_nanos());
        let cores = planned.events_per_second * 5e-6;
        let tokens_per_request = trial.tokens;
        let (most_open, sent_rate, uncertain) = (7, None, Vec::new());
        let cpu_us_per_event = 5.0;
        SelfTestFindings {
            planned,
            probed,
            tokens_per_request,
            most_open,
            sent_rate,
            lag,
            beat,
            observed,
            core_wait: Some(1_000),
            cpu_us_per_event,
            cores,
            uncertain,
        }
    }

    #[test]
    fn neighbours_that_take_the_cores_of_sending_threads_are_named() {
        let time =
            |ran, waited| CoreTime { ran: Gap::from_millis(ran), waited: Gap::from_millis(waited), timeslices: 10 };
        assert_eq!(contention_warning(CoreTime::default()), None);
        assert_eq!(contention_warning(time(1, 2)), None, "short waits");
        assert_eq!(contention_warning(time(20, 32)), None, "its own threads are what it waits for");
        let warning = contention_warning(time(1, 32)).unwrap();
        assert!(
            warning.starts_with("other processes keep the sending threads waiting for a core, 3.20ms at a time"),
            "{warning}"
        );
    }

    #[test]
    fn what_was_not_tried_is_said_with_what_it_would_take() {
        let plan = OfferedLoad::closed(Some(16_000), 100_000, 100_000_000);
        let summary = found(plan, &SelfTestLoad::of(&plan, 1 << 20)).summary_line();
        assert!(
            summary.starts_with("audit: 800 requests/s of 2 tokens, 7 streams open: send lag p50 0ns p99 1.00µs, "),
            "{summary}"
        );
        let less = "5 µs of CPU for each event; that is 10000 of 16000 streams, 20000 of 800000 events/s; all of it would \
                    take 400 % of a core";
        assert!(summary.ends_with(less), "{summary}");
        let plan = OfferedLoad::open(101, Gap::from_millis(10_000), 50_500, None);
        let summary = found(plan, &SelfTestLoad::of(&plan, 1 << 20)).summary_line();
        assert!(summary.ends_with("µs of CPU for each event"), "all of it was tried: {summary}");
    }
}
