//! The feed: rows become encoded requests a little ahead of their time, on a thread of its own, so that the sending
//! threads only write.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};

use super::exchange::{Job, Wire};
use super::run::{Config, Counters, Loop, Order, Sessions};
use super::schedule::{Planned, RowError};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::trace::chance::name_hash;

/// How long before its time a request is encoded.
const AHEAD: Gap = Gap::from_millis(1_000);
/// Rows read ahead, so that a session's next turn is known when the answer before it ends.
const ROWS_AHEAD: usize = 16_384;
/// Encoded requests that wait, in KiB: 128 MiB.
const ROOM: usize = 128 * 1_024;

/// Feeds the sending threads until the schedule ends or the order changes.
///
/// # Errors
/// A row that cannot be read, or has a dialect without a request form.
pub(super) async fn feed(
    mut schedule: impl Iterator<Item = Result<Planned, RowError>>,
    config: &Config,
    counters: &Counters,
    workers: Vec<mpsc::Sender<Job>>,
    mut order: watch::Receiver<Order>,
    begin: Stamp,
) -> Result<(), RowError> {
    let room = Arc::new(Semaphore::new(ROOM));
    let live = config.sessions == Sessions::Live;
    let mut seen = HashSet::new();
    let mut ahead: VecDeque<Planned> = VecDeque::new();
    let mut ended = false;
    loop {
        while !ended && ahead.len() < if live { ROWS_AHEAD } else { 1 } {
            let Some(send) = schedule.next().transpose()? else {
                ended = true;
                break;
            };
            counters.planned();
            match &send.entry.session {
                Some(session) if live && !seen.insert(session.clone()) => {
                    let job = job(send, config, true)?;
                    if !deliver(&workers, job, &mut order).await {
                        return Ok(());
                    }
                }
                _ => ahead.push_back(send),
            }
        }
        let Some(send) = ahead.pop_front() else { return Ok(()) };
        if matches!(config.arrivals, Loop::Open) {
            let at = begin.after(send.at);
            let wake = at.before(AHEAD);
            if wake > Clock::Monotonic.now() {
                tokio::select! {
                    () = Clock::Monotonic.sleep_until(wake) => {}
                    _ = order.wait_for(|order| *order != Order::Run) => return Ok(()),
                }
            }
        }
        let mut job = job(send, config, false)?;
        let begins = live && job.send.entry.session.is_some();
        job.turn = begins.then(|| config.encoder.turn(&job.send, job.form, None));
        let (bytes, body) = config.encoder.encode(&job.send, job.form, job.target, job.turn.as_ref());
        let held = bytes.len() + job.turn.as_ref().map_or(0, |turn| turn.asked().len());
        let size = u32::try_from((held / 1_024).clamp(1, ROOM)).unwrap_or(1);
        let taken = tokio::select! {
            taken = Arc::clone(&room).acquire_many_owned(size) => taken.ok(),
            _ = order.wait_for(|order| *order != Order::Run) => return Ok(()),
        };
        job.wire = Some(Wire { bytes, body, _room: taken });
        if !deliver(&workers, job, &mut order).await {
            return Ok(());
        }
    }
}

fn job(send: Planned, config: &Config, follows: bool) -> Result<Job, RowError> {
    let encoder = &config.encoder;
    Ok(Job {
        form: encoder.form(&send)?,
        target: encoder.target(&send).ok_or_else(|| no_target(send.entry.model.as_deref()))?,
        wanted: encoder.wanted(&send, config.pauses),
        leave: encoder.leave(&send),
        follows,
        turn: None,
        wire: None,
        send,
    })
}

/// That no target is for a model.
pub fn no_target(model: Option<&str>) -> String {
    match model {
        Some(model) => format!("no --target is for the model `{model}`; one without a model in front is for all"),
        None => "no --target is for rows without a model; one without a model in front is for all".to_owned(),
    }
}

/// Hands a request to its thread: a session's are all the same one's. False when the run stops.
async fn deliver(workers: &[mpsc::Sender<Job>], job: Job, order: &mut watch::Receiver<Order>) -> bool {
    let number = job.send.entry.session.as_deref().map_or(job.send.number, name_hash);
    let worker = &workers[(number % workers.len() as u64) as usize];
    tokio::select! {
        sent = worker.send(job) => sent.is_ok(),
        _ = order.wait_for(|order| *order != Order::Run) => false,
    }
}
