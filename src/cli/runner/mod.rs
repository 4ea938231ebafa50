//! The load runner behind every verb that sends: flags, plan, progress, result.

pub(super) mod artifacts;
mod body_args;
mod calibrate;
mod context_limit;
mod error;
pub mod figures;
pub(super) mod flag_aliases;
pub(super) mod flags;
mod lag_effect;
mod live;
pub(super) mod metadata;
mod plan;
mod prefix_warmup;
mod progress;
mod run_prefix;
mod run_report;
mod self_test;
pub(super) mod spec;
pub(super) mod vocabulary;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::exit_code::{EXIT_INVALID_RUN, EXIT_SLO_MISSED};
use super::signals::StopSignals;
use super::status_block::StatusBlock;
use super::terminal::{eprint_line, print, text_layout};
use crate::clock::Clock;
use crate::measure::record::Outcome;
use crate::measure::time::Gap;
use crate::replay::ReplayRun;
use crate::replay::plan::schedule::Schedule;
use crate::replay::result::output::write_run;
use crate::replay::result::row::FailureReason;
use crate::replay::sender::run::{CompletionCallback, LoopMode, RunCommand, RunOutcome};
use crate::replay::server::scrape::{ScrapeStats, Scraper};
use crate::report::{Report, text};
use crate::trace_file::segment_list::RUN_FILE;
pub(super) use error::SetupError;
use figures::{RunCounts, RunFigures, RunTotals};
use flags::RunnerArgs;
use lag_effect::LagEffect;
use live::LiveRun;
pub(super) use plan::{PreparedRun, prepare};
use run_report::build_report;
pub(super) use spec::WorkloadSpec;
use spec::{CLOSED_LOOP_KEY, PlannedTotal};

const TERMINAL_REFRESH_INTERVAL: Gap = Gap::from_millis(1_000);
const PROGRESS_LINE_INTERVAL: Gap = Gap::from_millis(10_000);
const POLL_INTERVAL: Gap = Gap::from_millis(50);

/// Runs the workload that a verb builds from its own flags.
pub(super) fn send(
    sending: &RunnerArgs,
    workload_spec: impl FnOnce() -> anyhow::Result<WorkloadSpec>,
) -> anyhow::Result<ExitCode> {
    crate::cli::descriptors::raise_fd_limit();
    let prepared = workload_spec().map_err(SetupError::Usage).and_then(|spec| prepare(sending, spec));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(refused) => {
            let (message, code) = refused.message_and_exit_code();
            eprint_line(&message);
            return Ok(ExitCode::from(code));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stop = runtime.block_on(async { StopSignals::new() }).context("cannot wait for signals")?;
    let sent = runtime.block_on(execute(sending, prepared, &mut stop));
    // Does not wait for a thread that is blocked on a collector.
    runtime.shutdown_background();
    let sent = sent?;
    let printed = match sending.output.json {
        true => print(&(serde_json::to_string_pretty(&sent.run)? + "\n")),
        false => print(&text::render(&sent.report, &text::PERCENTILES, text_layout(false))),
    };
    // Also if printing failed: a full disk may have caused both.
    sent.print_invalid();
    if let Err(error) = &printed {
        eprint_line(&format!("error: {error:#}"));
    }
    Ok(match (printed.is_ok() && sent.invalid.is_empty(), sent.report.fails()) {
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
        self.invalid.iter().for_each(|why| eprint_line(&format!("not valid: {why}")));
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
        admin_port,
        live: of_live,
        metadata: about,
        figures,
        production,
        notes,
    } = prepared;
    notes.iter().for_each(|note| eprint_line(note));
    let until = whole.length.filter(|_| config.loop_mode == LoopMode::Closed);
    let schedule = move || Schedule::new(plan, move || open());
    let (live, mut reporter) = LiveRun::start(admin_port, &of_live)?;
    let mut add = figures.callback();
    let on_completion: CompletionCallback = Box::new(move |done, row| {
        add(done, row);
        if let Some(report) = &mut reporter {
            report(done, row);
        }
    });
    let run = ReplayRun::start(config, schedule, output, on_completion).context("cannot start to send")?;
    if let Some(live) = &live {
        live.attach(of_live, &run);
    }
    let scraper = match &sending.output.out {
        Some(folder) if !pages.is_empty() => {
            let started = Scraper::start(folder, pages, tls, run.begin());
            Some(started.context("cannot write what the servers report of themselves")?)
        }
        _ => None,
    };
    let last = watch((&run, &figures), (whole, until), scraper.as_ref(), live.as_ref(), stop).await;
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
    write_result(sending, about, (&figures, production.as_deref()), ended, scraped)
}

/// Shows progress until the run is over, and returns the last command. `until` ends a run that does not end by itself.
async fn watch(
    (run, figures): (&ReplayRun, &RunFigures),
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
                    eprint_line(&format!("stopping: {open} requests are open and may end; Ctrl-C cuts them"));
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
            eprint_line(&news);
        }
        if clock.now() >= next {
            next = clock.now().after(every);
            let now = (run.progress(), figures.progress());
            match standing.is_terminal() {
                true => standing.replace(&progress::status_block(&now, whole)),
                false => eprint_line(&progress::status_line(&now, whole)),
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
    (figures, production): (&RunFigures, Option<&Path>),
    ended: RunOutcome,
    scraped: Option<(Vec<ScrapeStats>, io::Result<()>)>,
) -> anyhow::Result<RunnerOutcome> {
    let mut invalid = Vec::new();
    if about[CLOSED_LOOP_KEY] == false {
        invalid.extend(figures.read(|totals| late_reason(totals, args.evaluation.max_lag, ended.real_time)));
    }
    if let Some(broken) = &ended.error {
        invalid.push(broken.to_string());
    }
    invalid.extend(figures.read(|totals| no_success_reason(totals).or_else(|| no_output_reason(&totals.counts))));
    let (scraped, written) = scraped.map_or((None, Ok(())), |(scraped, written)| (Some(scraped), written));
    if let Err(error) = written {
        invalid.push(format!("cannot write what the servers reported of themselves: {error}"));
    }
    let (mut run, measured) = (about, figures.measured());
    let more = figures.read(|RunTotals { counts, .. }| {
        json!({
            "started_unix_ns": ended.started_unix_ns,
            "stopped": ended.stopped,
            "sent": ended.sent,
            "real_time": ended.real_time,
            "valid": invalid.is_empty(),
            "invalid_because": invalid,
            "server_metrics": scraped,
            "summary": {
                "measured": measured,
                "outside_window": counts.outside_window,
                "held_back": counts.held_back,
                "later_turns": counts.later_turns,
                "errors": counts.errors,
            },
        })
    });
    merge_object(&mut run, more);
    let report = build_report(figures, args.output.out.as_deref(), run.clone(), &ended, production)?;
    merge_object(&mut run["summary"], serde_json::to_value(&report)?);
    if let Some(folder) = &args.output.out {
        let written =
            write_run(folder, &run).with_context(|| format!("cannot write {}", folder.join(RUN_FILE).display()));
        // The measurements are reported even if this fails.
        if let Err(error) =
            written.and_then(|()| artifacts::write(folder, &args.output.out_formats, &args.evaluation.slos))
        {
            invalid.push(format!("the result is not whole: {error:#}"));
            merge_object(&mut run, json!({ "valid": false, "invalid_because": invalid }));
        }
        if let Some(prefix) = args.run_prefix()? {
            match prefix.upload(folder) {
                Ok(place) => eprint_line(&format!("uploaded to {place}")),
                Err(error) => invalid
                    .push(format!("the result is not in --upload: {error:#}; {} has all of it", folder.display())),
            }
        }
    }
    Ok(RunnerOutcome { run, report, ended, invalid })
}

/// The reason if lag distorts the run's latencies. Requests that slots held back are late on purpose.
fn late_reason(RunTotals { requests, counts, .. }: &mut RunTotals, max_lag: Gap, real_time: bool) -> Option<String> {
    if counts.held_back > 0 {
        return None;
    }
    let lag = LagEffect::of(&mut requests.total)?;
    if lag.shift <= max_lag {
        return None;
    }
    let own = LagEffect::at(&mut counts.own_lag, lag.percent).is_some_and(|own| own > max_lag);
    let cause = match (own, real_time) {
        (false, _) => "connections took so long to be made; look at how many the server takes, and how fast",
        (true, true) => "this machine cannot carry the plan",
        (true, false) => "this machine cannot carry the plan, or needs CAP_SYS_NICE to send at real-time priority",
    };
    Some(format!("requests were sent late: {lag}, which is over {max_lag} (--max-lag); {cause}"))
}

/// The reason if every complete response was empty, so that the server is probably no model.
fn no_output_reason(counts: &RunCounts) -> Option<String> {
    let RunCounts { responses, empty_responses, .. } = counts;
    (*empty_responses > 0 && empty_responses == responses).then(|| {
        format!(
            "none of {responses} responses contained output; check --target and --dialect, and inspect a response with \
             `streamgauge inspect`"
        )
    })
}

/// The reason if every request failed; client aborts and stopped requests do not count.
fn no_success_reason(totals: &RunTotals) -> Option<String> {
    let (summary, errors) = (&totals.requests.total, &totals.counts.errors);
    let requests = summary.requests();
    let of = |outcome: Outcome| summary.outcomes.get(outcome.name()).copied().unwrap_or(0);
    let cut = errors.get(FailureReason::Stopped.name()).copied().unwrap_or(0);
    let failed = requests - of(Outcome::Cancelled) - cut;
    if of(Outcome::Success) > 0 || failed == 0 {
        return None;
    }
    let Some((status, times)) = summary.statuses.iter().max_by_key(|(_, times)| **times) else {
        let Some((why, times)) = errors.iter().max_by_key(|(_, times)| **times) else {
            return Some("no request was answered".to_owned());
        };
        let remedy = match *why {
            "timeout" => "the server sends nothing within --timeout",
            "closed" | "reset" | "malformed" => {
                "look whether --target is http or https as the server is, and whether it speaks HTTP/1.1: HTTP/2 alone is \
                 not supported"
            }
            _ => "look at --target and --connect-timeout",
        };
        return Some(format!("no request was answered: {times} of {requests} {why}; {remedy}"));
    };
    let cut_short = errors.iter().filter(|(why, _)| **why != FailureReason::Stopped.name());
    if let (200..300, Some((why, cut))) = (*status, cut_short.max_by_key(|(_, cut)| **cut)) {
        let remedy = if *why == FailureReason::Timeout.name() {
            "a reply takes longer than --timeout"
        } else {
            "the server breaks replies off: look at its log"
        };
        return Some(format!("no request has a whole answer: {cut} of {requests} ended with {why}; {remedy}"));
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
    Some(format!("no request has a whole answer: {times} of {requests} were answered {status}; {remedy}"))
}

/// Merges `more` into `object`.
fn merge_object(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
