//! The load runner behind every verb that sends: flags, plan, progress, result.

mod artifacts;
mod calibrate;
pub(super) mod flag_aliases;
pub(super) mod flags;
mod live;
mod metadata;
mod plan;
mod prefix_warmup;
mod progress;
mod run_report;
mod self_test;
mod vocabulary;

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::report::text_screen;
use super::signals::StopSignals;
use super::status_block::StatusBlock;
use crate::clock::Clock;
use crate::measure::record::Outcome;
use crate::measure::time::Gap;
use crate::replay::ReplayRun;
use crate::replay::plan::schedule::Schedule;
use crate::replay::result::output::write_run;
use crate::replay::result::row::FailureReason;
use crate::replay::result::summary::ReplaySummary;
use crate::replay::sender::run::{LoopMode, RunCommand, RunOutcome};
use crate::replay::server::scrape::{ScrapeStats, Scraper};
use crate::report::{Report, text};
use crate::trace_file::reader::RUN_FILE;
use flags::RunnerArgs;
use live::LiveRun;
pub(super) use plan::{PreparedRun, SetupError, WorkloadSpec, prepare};
use progress::PlannedTotal;
use run_report::RunReportBuilder;

const TERMINAL_REFRESH_INTERVAL: Gap = Gap::from_millis(1_000);
const PROGRESS_LINE_INTERVAL: Gap = Gap::from_millis(10_000);
const POLL_INTERVAL: Gap = Gap::from_millis(50);

pub(super) const EXIT_SLO_MISSED: u8 = 1;
pub(super) const EXIT_INVALID_RUN: u8 = 3;

/// Set if slots, and not planned times, decided when requests were sent.
const CLOSED_LOOP_KEY: &str = "closed_loop";

/// Runs the workload that a verb builds from its own flags.
pub(super) fn send(
    sending: &RunnerArgs,
    wanted: impl FnOnce() -> anyhow::Result<WorkloadSpec>,
) -> anyhow::Result<ExitCode> {
    super::raise_fd_limit();
    let prepared = wanted().map_err(SetupError::Usage).and_then(|wanted| prepare(sending, wanted));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(refused) => {
            let (said, code) = refused.message_and_exit_code();
            super::eprint_line(&said);
            return Ok(ExitCode::from(code));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stop = runtime.block_on(async { StopSignals::new() }).context("cannot wait for signals")?;
    let sent = runtime.block_on(execute(sending, prepared, &mut stop));
    // Does not wait for a thread that is blocked on a collector.
    runtime.shutdown_background();
    let sent = sent?;
    let printed = match sending.json {
        true => super::print(&(serde_json::to_string_pretty(&sent.run)? + "\n")),
        false => super::print(&text::render(&sent.report, &text::PERCENTILES, text_screen(false))),
    };
    // Also if printing failed: a full disk may have caused both.
    sent.print_invalid();
    if let Err(error) = &printed {
        super::eprint_line(&format!("error: {error:#}"));
    }
    let missed = sending.fail_if.is_some_and(|least| sent.report.is_below(least));
    Ok(match (printed.is_ok() && sent.invalid.is_empty(), missed) {
        (false, _) => ExitCode::from(EXIT_INVALID_RUN),
        (true, true) => ExitCode::from(EXIT_SLO_MISSED),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// A completed run whose result is written.
pub(super) struct RunnerOutcome {
    /// The content of `run.json`.
    run: Value,
    report: Report,
    pub(super) ended: RunOutcome,
    /// Reasons why the run is not valid.
    pub(super) invalid: Vec<String>,
}

impl RunnerOutcome {
    pub(super) fn print_invalid(&self) {
        self.invalid.iter().for_each(|why| super::eprint_line(&format!("not valid: {why}")));
    }
}

/// Runs the prepared workload, shows its progress, and writes the result.
pub(super) async fn execute(
    sending: &RunnerArgs,
    prepared: PreparedRun,
    stop: &mut StopSignals,
) -> anyhow::Result<RunnerOutcome> {
    let PreparedRun {
        config,
        plan,
        open_rows: open,
        output,
        total: whole,
        pages,
        tls,
        listener,
        live: of_live,
        metadata: about,
        report_builder: figures,
        notes,
    } = prepared;
    notes.iter().for_each(|note| super::eprint_line(note));
    let until = whole.length.filter(|_| config.loop_mode == LoopMode::Closed);
    let schedule = move || Schedule::new(plan, move || open());
    let (live, watcher) = LiveRun::start(listener, &of_live)?;
    let run = ReplayRun::start_watched(config, schedule, Some(output), watcher).context("cannot start to send")?;
    if let Some(live) = &live {
        live.attach(of_live, &run);
    }
    let scraper = match &sending.out {
        Some(folder) if !pages.is_empty() => {
            let started = Scraper::start(folder, pages, tls, run.begin());
            Some(started.context("cannot write down what servers say of themselves")?)
        }
        _ => None,
    };
    let last = watch(&run, (whole, until), scraper.as_ref(), live.as_ref(), stop).await;
    let ended = run.finish();
    let scraped = scraper.map(|scraper| scraper.finish(last != RunCommand::Halt));
    if let Some(live) = live {
        live.set_not_ready();
        // The export may wait for a collector; a second interrupt skips it.
        tokio::select! {
            _ended = tokio::task::spawn_blocking(|| live.finish()) => {}
            () = stop.wait() => {}
        }
    }
    write_result(sending, about, &figures, ended, scraped)
}

/// Shows progress until the run is over, and returns the last command. `until` ends a run that does not end by itself.
async fn watch(
    run: &ReplayRun,
    (whole, mut until): (PlannedTotal, Option<Gap>),
    scraper: Option<&Scraper>,
    live: Option<&LiveRun>,
    stop: &mut StopSignals,
) -> RunCommand {
    let (clock, mut standing) = (Clock::Monotonic, StatusBlock::on_stderr());
    let every = if standing.is_terminal() { TERMINAL_REFRESH_INTERVAL } else { PROGRESS_LINE_INTERVAL };
    let mut next = clock.now().after(every);
    let mut orders = [RunCommand::Drain, RunCommand::Halt].into_iter();
    let mut last = RunCommand::Run;
    while !run.is_over() {
        tokio::select! {
            () = clock.sleep(POLL_INTERVAL) => {}
            () = stop.wait() => {
                let Some(order) = orders.next() else { continue };
                until = None;
                standing.clear();
                if order == RunCommand::Drain {
                    let open = run.progress().in_flight;
                    super::eprint_line(&format!("stopping: {open} requests are open and may end; Ctrl-C cuts them"));
                }
                run.send_command(order);
                last = order;
                live.inspect(|live| live.set_not_ready());
            }
        }
        if until.take_if(|until| run.age() >= *until).is_some() {
            run.send_command(RunCommand::End);
        }
        for news in scraper.map(Scraper::take_warnings).unwrap_or_default() {
            standing.clear();
            super::eprint_line(&news);
        }
        if clock.now() >= next {
            next = clock.now().after(every);
            let now = run.progress();
            match standing.is_terminal() {
                true => standing.replace(&progress::status_block(&now, whole)),
                false => super::eprint_line(&progress::status_line(&now, whole)),
            }
        }
    }
    standing.clear();
    last
}

/// Judges the run and writes its result beside the records.
fn write_result(
    args: &RunnerArgs,
    about: Value,
    figures: &RunReportBuilder,
    ended: RunOutcome,
    scraped: Option<(Vec<ScrapeStats>, io::Result<()>)>,
) -> anyhow::Result<RunnerOutcome> {
    let summary = &ended.summary;
    let late = summary.lag.filter(|lag| about[CLOSED_LOOP_KEY] == false && lag.p99 > args.max_lag.as_nanos());
    let mut invalid = Vec::new();
    if let Some(lag) = late.filter(|_| summary.held_back == 0) {
        let ours = summary.own_lag.is_some_and(|lag| lag.p99 > args.max_lag.as_nanos());
        let cause = match (ours, ended.real_time) {
            (false, _) => "connections took so long to be made; look at how many the server takes, and how fast",
            (true, true) => "this machine cannot carry the plan",
            (true, false) => "this machine cannot carry the plan, or needs CAP_SYS_NICE to send at real-time priority",
        };
        invalid.push(format!(
            "requests were sent late: lag p99 {} is over {} (--max-lag); {cause}",
            Gap::from_nanos(lag.p99),
            args.max_lag
        ));
    }
    if let Some(broken) = &ended.error {
        invalid.push(broken.to_string());
    }
    invalid.extend(no_success_reason(summary).or_else(|| figures.no_output_reason()));
    let (scraped, written) = scraped.map_or((None, Ok(())), |(scraped, written)| (Some(scraped), written));
    if let Err(error) = written {
        invalid.push(format!("cannot write what servers said of themselves: {error}"));
    }
    let mut run = about;
    let more = json!({
        "started_unix_ns": ended.started_unix_ns,
        "stopped": ended.stopped,
        "sent": ended.sent,
        "real_time": ended.real_time,
        "valid": invalid.is_empty(),
        "invalid_because": invalid,
        "server_metrics": scraped,
        "summary": {
            "measured": figures.measured(),
            "outside_window": summary.outside_window,
            "held_back": summary.held_back,
            "later_turns": summary.later_turns,
            "errors": summary.errors,
        },
    });
    merge_object(&mut run, more);
    let report = figures.report(args.out.as_deref(), run.clone(), &ended)?;
    merge_object(&mut run["summary"], serde_json::to_value(&report)?);
    if let Some(folder) = &args.out {
        let written =
            write_run(folder, &run).with_context(|| format!("cannot write {}", folder.join(RUN_FILE).display()));
        // The measurements are reported even if this fails.
        if let Err(error) = written.and_then(|()| artifacts::write(folder, &args.out_formats, &args.slos)) {
            invalid.push(format!("the result is not whole: {error:#}"));
            merge_object(&mut run, json!({ "valid": false, "invalid_because": invalid }));
        }
    }
    Ok(RunnerOutcome { run, report, ended, invalid })
}

/// The reason if every request failed; client aborts and stopped requests do not count.
fn no_success_reason(summary: &ReplaySummary) -> Option<String> {
    let of = |outcome: Outcome| summary.outcomes.get(outcome.name()).copied().unwrap_or(0);
    let cut = summary.errors.get(FailureReason::Stopped.name()).copied().unwrap_or(0);
    let failed = summary.requests - of(Outcome::Cancelled) - cut;
    if of(Outcome::Success) > 0 || failed == 0 {
        return None;
    }
    let Some((status, times)) = summary.statuses.iter().max_by_key(|(_, times)| **times) else {
        let Some((why, times)) = summary.errors.iter().max_by_key(|(_, times)| **times) else {
            return Some("no request was answered".to_owned());
        };
        let remedy = match *why {
            "timeout" => "the server says nothing within --timeout",
            "closed" | "reset" | "malformed" => {
                "look whether --target is http or https as the server is, and whether it speaks HTTP/1.1: HTTP/2 alone is \
                 not supported"
            }
            _ => "look at --target and --connect-timeout",
        };
        return Some(format!("no request was answered: {times} of {} {why}; {remedy}", summary.requests));
    };
    let cut_short = summary.errors.iter().filter(|(why, _)| **why != FailureReason::Stopped.name());
    if let (200..300, Some((why, cut))) = (*status, cut_short.max_by_key(|(_, cut)| **cut)) {
        let remedy = if *why == FailureReason::Timeout.name() {
            "a reply takes longer than --timeout"
        } else {
            "the server breaks replies off: look at its log"
        };
        return Some(format!(
            "no request has a whole answer: {cut} of {} ended with {why}; {remedy}",
            summary.requests
        ));
    }
    let remedy = match status {
        200..300 => "look at --dialect, and with `streamgauge inspect` at what the server sends",
        300..400 => "send to where it points (--target)",
        401 | 403 => "look at --api-key-env and --header",
        404 | 405 => {
            "look at the path of --target, at --dialect and at the model's name (--model; in a replay --models, since a \
             capture keeps the last part of a path)"
        }
        429 | 503 => "the server turns everybody away: send less",
        400..500 => "look at what the server takes: the model's name, --dialect, --isl, --exact-output off",
        _ => "look at the server's log",
    };
    Some(format!("no request has a whole answer: {times} of {} were answered {status}; {remedy}", summary.requests))
}

/// Merges `more` into `object`.
fn merge_object(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
