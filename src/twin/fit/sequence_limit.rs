//! The limit of sequences per batch, from how many streams ran while requests waited.
//!
//! Counting over time needs no step of the engine: on a real server the tokens of one step reach the observer apart, and
//! steps vary by more than a waiting request would show.

use super::observation::{Observation, ObservedRequest};

/// Waiting requests that show a limit: an engine without one computes the prompt of the first of them.
const MIN_WAITING: i64 = 2;
/// Requests that must have started while others waited.
const MIN_STARTS: usize = 10;
/// Share of the busy time in which more streams may run: a last token that was observed late.
const MAX_EXCESS_SHARE: f64 = 0.005;
/// Share of the blocked time in which the batch must be full, but for the sequences whose prompts are computed.
const MIN_FULL_SHARE: f64 = 0.6;
/// Steps from the last token of a sequence to the first token of the one that takes its place.
const STEPS_TO_REPLACE: f64 = 2.0;

/// One moment at which streams or waiting requests change.
struct StreamChange {
    at: u64,
    running: i64,
    waiting: i64,
    /// Typical gap of a stream that starts, in nanoseconds.
    gap: u64,
}

/// The most sequences of a batch, if requests waited while so many ran. A request waits from `front_end` nanoseconds
/// after its arrival until its first token.
pub(super) fn sequence_limit(seen: Observation<'_>, front_end: f64) -> Option<u32> {
    let (mut running, mut waiting) = (0, 0);
    // Nanoseconds by running streams: while the engine had work, and while requests waited.
    let (mut busy, mut blocked): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut gaps_of_started = Vec::new();
    for pair in changes(seen, front_end).windows(2) {
        let [change, next] = pair else { continue };
        running += change.running;
        waiting += change.waiting;
        let is_blocked = waiting >= MIN_WAITING;
        if is_blocked && change.running > 0 {
            gaps_of_started.push(change.gap);
        }
        let place = usize::try_from(running).unwrap_or(0);
        if place >= busy.len() {
            busy.resize(place + 1, 0);
            blocked.resize(place + 1, 0);
        }
        let passed = next.at - change.at;
        busy[place] += if running + waiting > 0 { passed } else { 0 };
        blocked[place] += if is_blocked { passed } else { 0 };
    }
    let most_of = |times: &[u64], from: usize| times[from.min(times.len())..].iter().sum::<u64>() as f64;
    let allowed = MAX_EXCESS_SHARE * most_of(&busy, 0);
    let limit = (1..busy.len()).rev().find(|running| most_of(&busy, *running) > allowed)?;
    let (starts, waited) = (gaps_of_started.len(), most_of(&blocked, 0));
    let step = median(gaps_of_started)? as f64;
    let replaced = starts as f64 / waited * STEPS_TO_REPLACE * step;
    // Never so many that the batch would hardly be one.
    let missing = (1 + replaced as usize).min((limit / 4).max(1));
    let is_full = most_of(&blocked, limit - missing) >= MIN_FULL_SHARE * waited;
    u32::try_from(limit).ok().filter(|_| starts >= MIN_STARTS && is_full)
}

/// The changes in the order of their time.
fn changes(seen: Observation<'_>, front_end: f64) -> Vec<StreamChange> {
    let mut changes: Vec<StreamChange> = Vec::new();
    for request in seen.requests {
        let (Some((first, _)), Some((last, _))) = (request.events.first(), request.events.last()) else { continue };
        let arrival = request.at.saturating_add(front_end as u64).min(*first);
        changes.push(StreamChange { at: arrival, running: 0, waiting: 1, gap: 0 });
        changes.push(StreamChange { at: *first, running: 1, waiting: -1, gap: typical_gap(request) });
        changes.push(StreamChange { at: *last, running: -1, waiting: 0, gap: 0 });
    }
    changes.retain(|change| change.at <= seen.until);
    changes.sort_unstable_by_key(|change| (change.at, change.running));
    changes
}

fn typical_gap(request: &ObservedRequest) -> u64 {
    median(request.gaps().collect()).unwrap_or(0)
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    let half = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable(half).1)
}
