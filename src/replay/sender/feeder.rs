//! The feeder thread encodes rows shortly before they are due, so that the sending threads only write.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};

use super::config::{Config, LoopMode, RunCommand, SessionMode};
use super::counters::RunCounters;
use super::job::{ReplayRequest, WireRequest};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::replay::plan::schedule::{RowError, ScheduledRequest};
use crate::trace::rng::name_hash;

/// Lead of the encoding over the due time.
const ENCODE_AHEAD: Gap = Gap::from_millis(1_000);
/// Rows read ahead, so that a session's next turn is known when its predecessor ends.
const MAX_ROWS_AHEAD: usize = 16_384;
/// Budget of encoded requests that wait, in KiB (128 MiB).
const MAX_ENCODED_KIB: usize = 128 * 1_024;

/// Feeds the sending threads until the schedule ends or the command changes.
///
/// # Errors
/// A row cannot be read, or its dialect has no request template.
pub(in crate::replay) async fn feed(
    mut schedule: impl Iterator<Item = Result<ScheduledRequest, RowError>>,
    config: &Config,
    counters: &RunCounters,
    workers: Vec<mpsc::Sender<ReplayRequest>>,
    mut order: watch::Receiver<RunCommand>,
    begin: Stamp,
) -> Result<(), RowError> {
    let room = Arc::new(Semaphore::new(MAX_ENCODED_KIB));
    let live = config.sessions == SessionMode::Live;
    let mut seen = HashSet::new();
    let mut ahead: VecDeque<ScheduledRequest> = VecDeque::new();
    let mut ended = false;
    loop {
        while !ended && ahead.len() < if live { MAX_ROWS_AHEAD } else { 1 } {
            let Some(send) = schedule.next().transpose()? else {
                ended = true;
                break;
            };
            counters.inc_rows_read();
            match &send.entry.session {
                Some(session) if live && !seen.insert(session.clone()) => {
                    let job = build_request(send, config, true)?;
                    if !deliver(&workers, job, &mut order).await {
                        return Ok(());
                    }
                }
                _ => ahead.push_back(send),
            }
        }
        let Some(send) = ahead.pop_front() else { return Ok(()) };
        if matches!(config.loop_mode, LoopMode::Open) {
            let at = begin.after(send.at);
            let wake = at.before(ENCODE_AHEAD);
            if wake > Clock::Monotonic.now() {
                tokio::select! {
                    () = Clock::Monotonic.sleep_until(wake) => {}
                    _ = order.wait_for(|order| *order != RunCommand::Run) => return Ok(()),
                }
            }
        }
        let mut job = build_request(send, config, false)?;
        let begins = live && job.scheduled.entry.session.is_some();
        job.turn = begins.then(|| config.encoder.turn(&job.scheduled, job.form, None));
        let (bytes, body) = config.encoder.encode(&job.scheduled, job.form, job.target, job.turn.as_ref());
        let held = bytes.len() + job.turn.as_ref().map_or(0, |turn| turn.prompt().len());
        let size = u32::try_from((held / 1_024).clamp(1, MAX_ENCODED_KIB)).unwrap_or(1);
        let taken = tokio::select! {
            taken = Arc::clone(&room).acquire_many_owned(size) => taken.ok(),
            _ = order.wait_for(|order| *order != RunCommand::Run) => return Ok(()),
        };
        job.wire = Some(WireRequest { bytes, body, _permit: taken });
        if !deliver(&workers, job, &mut order).await {
            return Ok(());
        }
    }
}

fn build_request(send: ScheduledRequest, config: &Config, follows: bool) -> Result<ReplayRequest, RowError> {
    let encoder = &config.encoder;
    Ok(ReplayRequest {
        form: encoder.template(&send)?,
        target: encoder.target(&send).ok_or_else(|| no_target(send.entry.model.as_deref()))?,
        planned_values: encoder.planned_values(&send, config.think_time_scale),
        client_abort: encoder.client_abort(&send),
        is_later_turn: follows,
        turn: None,
        wire: None,
        scheduled: send,
    })
}

/// The error text if no target accepts a model.
pub fn no_target(model: Option<&str>) -> String {
    match model {
        Some(model) => format!("no --target is for the model `{model}`; one without a model in front is for all"),
        None => "no --target is for rows without a model; one without a model in front is for all".to_owned(),
    }
}

/// Sends a request to its thread; one thread gets all requests of a session. Returns false if the run stops.
async fn deliver(
    workers: &[mpsc::Sender<ReplayRequest>],
    job: ReplayRequest,
    order: &mut watch::Receiver<RunCommand>,
) -> bool {
    let number = job.scheduled.entry.session.as_deref().map_or(job.scheduled.number, name_hash);
    let worker = &workers[(number % workers.len() as u64) as usize];
    tokio::select! {
        sent = worker.send(job) => sent.is_ok(),
        _ = order.wait_for(|order| *order != RunCommand::Run) => false,
    }
}
