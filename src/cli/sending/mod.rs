//! What every verb does that sends: its flags, the reading of what is to be sent, the figures while it runs, the result.

mod about;
mod audit;
mod beside;
mod calibrate;
mod figures;
pub(super) mod flags;
pub(super) mod foreign;
mod live;
mod prepare;
mod screen;
mod warm;
mod words;

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::report::screen;
use super::standing::Standing;
use super::stop::Stop;
use crate::capture::reader::RUN;
use crate::clock::Clock;
use crate::measure::record::Outcome;
use crate::measure::time::Gap;
use crate::replay::Run;
use crate::replay::output::write_run;
use crate::replay::results::Trouble;
use crate::replay::run::{Ended, Loop, Order};
use crate::replay::schedule::Schedule;
use crate::replay::scrape::{Scraped, Scraper};
use crate::replay::summary::Summary;
use crate::report::{Report, text};
use figures::Figures;
use flags::Sending;
use live::Live;
pub(super) use prepare::{Prepared, Refused, Wanted, prepare};
use screen::Whole;

const EVERY_ON_TERMINAL: Gap = Gap::from_millis(1_000);
const EVERY_ELSEWHERE: Gap = Gap::from_millis(10_000);
const LOOKS: Gap = Gap::from_millis(50);

pub(super) const SLO_MISSED: u8 = 1;
pub(super) const NOT_VALID: u8 = 3;

/// The key that says that slots and no times decided when a request was sent.
const CLOSED: &str = "closed_loop";

/// Sends what `wanted` makes of a verb's own flags.
pub(super) fn send(sending: &Sending, wanted: impl FnOnce() -> anyhow::Result<Wanted>) -> anyhow::Result<ExitCode> {
    super::raise_descriptors();
    let prepared = wanted().map_err(Refused::Usage).and_then(|wanted| prepare(sending, wanted));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(refused) => {
            let (said, code) = refused.told();
            super::say(&said);
            return Ok(ExitCode::from(code));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stop = runtime.block_on(async { Stop::new() }).context("cannot wait for signals")?;
    let sent = runtime.block_on(carry_out(sending, prepared, &mut stop));
    // A thread that waits for a collector is not waited for.
    runtime.shutdown_background();
    let sent = sent?;
    let printed = match sending.json {
        true => super::print(&(serde_json::to_string_pretty(&sent.run)? + "\n")),
        false => super::print(&text::render(&sent.report, &text::PERCENTILES, screen(false))),
    };
    // Also where nothing could be printed: a full disk may be the cause of both.
    sent.tell();
    if let Err(error) = &printed {
        super::say(&format!("error: {error:#}"));
    }
    let missed = sending.fail_if.is_some_and(|least| sent.report.falls_short(least));
    Ok(match (printed.is_ok() && sent.invalid.is_empty(), missed) {
        (false, _) => ExitCode::from(NOT_VALID),
        (true, true) => ExitCode::from(SLO_MISSED),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// A run that has ended, and is written.
pub(super) struct Sent {
    /// What `run.json` says.
    run: Value,
    report: Report,
    pub(super) ended: Ended,
    /// Why it is not valid.
    pub(super) invalid: Vec<String>,
}

impl Sent {
    /// Says why it is not valid.
    pub(super) fn tell(&self) {
        self.invalid.iter().for_each(|why| super::say(&format!("not valid: {why}")));
    }
}

/// Sends what is prepared, shows where it stands, and writes what came of it.
pub(super) async fn carry_out(sending: &Sending, prepared: Prepared, stop: &mut Stop) -> anyhow::Result<Sent> {
    let Prepared { config, plan, open, output, whole, pages, tls, listener, live: of_live, about, figures, notes } =
        prepared;
    notes.iter().for_each(|note| super::say(note));
    let until = whole.length.filter(|_| config.arrivals == Loop::Closed);
    let schedule = move || Schedule::new(plan, move || open());
    let (live, watcher) = Live::start(listener, &of_live)?;
    let run = Run::start_watched(config, schedule, Some(output), watcher).context("cannot start to send")?;
    if let Some(live) = &live {
        live.of(of_live, &run);
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
    let scraped = scraper.map(|scraper| scraper.finish(last != Order::Halt));
    if let Some(live) = live {
        live.ending();
        // Telemetry may wait for a collector; whoever asks again does not.
        tokio::select! {
            _ended = tokio::task::spawn_blocking(|| live.finish()) => {}
            () = stop.asked() => {}
        }
    }
    conclude(sending, about, &figures, ended, scraped)
}

/// Shows where the run stands until it is over, which is at `until` where nothing else ends it, and gives the last order.
async fn watch(
    run: &Run,
    (whole, mut until): (Whole, Option<Gap>),
    scraper: Option<&Scraper>,
    live: Option<&Live>,
    stop: &mut Stop,
) -> Order {
    let (clock, mut standing) = (Clock::Monotonic, Standing::on_stderr());
    let every = if standing.is_terminal() { EVERY_ON_TERMINAL } else { EVERY_ELSEWHERE };
    let mut next = clock.now().after(every);
    let mut orders = [Order::Drain, Order::Halt].into_iter();
    let mut last = Order::Run;
    while !run.is_over() {
        tokio::select! {
            () = clock.sleep(LOOKS) => {}
            () = stop.asked() => {
                let Some(order) = orders.next() else { continue };
                until = None;
                standing.clear();
                if order == Order::Drain {
                    let open = run.progress().in_flight;
                    super::say(&format!("stopping: {open} requests are open and may end; Ctrl-C cuts them"));
                }
                run.order(order);
                last = order;
                live.inspect(|live| live.ending());
            }
        }
        if until.take_if(|until| run.age() >= *until).is_some() {
            run.order(Order::End);
        }
        for news in scraper.map(Scraper::news).unwrap_or_default() {
            standing.clear();
            super::say(&news);
        }
        if clock.now() >= next {
            next = clock.now().after(every);
            let now = run.progress();
            match standing.is_terminal() {
                true => standing.replace(&screen::block(&now, whole)),
                false => super::say(&screen::line(&now, whole)),
            }
        }
    }
    standing.clear();
    last
}

/// Judges the run, and writes what it came to beside the records.
fn conclude(
    args: &Sending,
    about: Value,
    figures: &Figures,
    ended: Ended,
    scraped: Option<(Vec<Scraped>, io::Result<()>)>,
) -> anyhow::Result<Sent> {
    let summary = &ended.summary;
    let late = summary.lag.filter(|lag| about[CLOSED] == false && lag.p99 > args.max_lag.as_nanos());
    let mut invalid = Vec::new();
    if let Some(lag) = late.filter(|_| summary.held == 0) {
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
    if let Some(broken) = &ended.broken {
        invalid.push(broken.to_string());
    }
    invalid.extend(unanswered(summary).or_else(|| figures.without_output()));
    let (scraped, written) = scraped.map_or((None, Ok(())), |(scraped, written)| (Some(scraped), written));
    if let Err(error) = written {
        invalid.push(format!("cannot write what servers said of themselves: {error}"));
    }
    let mut run = about;
    let more = json!({
        "began_unix_ns": ended.began_unix_ns,
        "stopped": ended.stopped,
        "sent": ended.sent,
        "real_time": ended.real_time,
        "valid": invalid.is_empty(),
        "invalid_because": invalid,
        "server_metrics": scraped,
        "summary": {
            "measured": figures.measured(),
            "outside": summary.outside,
            "held": summary.held,
            "later_turns": summary.later_turns,
            "troubles": summary.troubles,
        },
    });
    extend(&mut run, more);
    let report = figures.report(args.out.as_deref(), run.clone(), &ended)?;
    extend(&mut run["summary"], serde_json::to_value(&report)?);
    if let Some(folder) = &args.out {
        let written = write_run(folder, &run).with_context(|| format!("cannot write {}", folder.join(RUN).display()));
        // What was measured is told all the same.
        if let Err(error) = written.and_then(|()| beside::write(folder, &args.out_formats, &args.slos)) {
            invalid.push(format!("the result is not whole: {error:#}"));
            extend(&mut run, json!({ "valid": false, "invalid_because": invalid }));
        }
    }
    Ok(Sent { run, report, ended, invalid })
}

/// That no request has a whole answer, where that was not wanted.
fn unanswered(summary: &Summary) -> Option<String> {
    let of = |outcome: Outcome| summary.outcomes.get(outcome.name()).copied().unwrap_or(0);
    let cut = summary.troubles.get(Trouble::Stopped.name()).copied().unwrap_or(0);
    let failed = summary.requests - of(Outcome::Cancelled) - cut;
    if of(Outcome::Success) > 0 || failed == 0 {
        return None;
    }
    let Some((status, times)) = summary.statuses.iter().max_by_key(|(_, times)| **times) else {
        let Some((why, times)) = summary.troubles.iter().max_by_key(|(_, times)| **times) else {
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
    let cut_short = summary.troubles.iter().filter(|(why, _)| **why != Trouble::Stopped.name());
    if let (200..300, Some((why, cut))) = (*status, cut_short.max_by_key(|(_, cut)| **cut)) {
        let remedy = if *why == Trouble::Timeout.name() {
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

/// Puts the keys of one object into another.
fn extend(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
