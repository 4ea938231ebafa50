//! The limit of sequences per batch, from how many streams ran while requests waited.
//!
//! Counting over time needs no step of the engine: on a real server the tokens of one step reach the observer apart, and
//! steps vary by more than a waiting request would show.

use super::observation::ObservedRequest;

/// Waiting requests that show a limit: an engine without one computes the prompt of the first of them.
const MIN_WAITING: i64 = 2;
/// Requests that must have started while others waited.
const MIN_STARTS: usize = 10;
/// Share of the busy time in which more streams may run: a last token that was observed late.
const MAX_EXCESS_SHARE: f64 = 0.005;
/// Share of the blocked time in which the batch must be full, or lack only the sequence of a prompt.
const MIN_FULL_SHARE: f64 = 0.6;

/// One moment at which streams or waiting requests change.
struct Change {
    at: u64,
    running: i64,
    waiting: i64,
}

/// The most sequences of a batch, if requests waited while so many ran. A request waits from `front_end` nanoseconds
/// after its arrival until its first token.
pub(super) fn sequence_limit(requests: &[ObservedRequest], front_end: f64) -> Option<u32> {
    let mut changes: Vec<Change> = Vec::new();
    for seen in requests {
        let (Some((first, _)), Some((last, _))) = (seen.events.first(), seen.events.last()) else { continue };
        let arrival = (seen.at + front_end as u64).min(*first);
        changes.push(Change { at: arrival, running: 0, waiting: 1 });
        changes.push(Change { at: *first, running: 1, waiting: -1 });
        changes.push(Change { at: *last, running: -1, waiting: 0 });
    }
    changes.sort_unstable_by_key(|change| (change.at, change.running));
    let (mut running, mut waiting, mut starts) = (0, 0, 0);
    // Nanoseconds by running streams: while the engine had work, and while requests waited.
    let (mut busy, mut blocked): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    for pair in changes.windows(2) {
        let [change, next] = pair else { continue };
        running += change.running;
        waiting += change.waiting;
        let is_blocked = waiting >= MIN_WAITING;
        starts += usize::from(is_blocked && change.waiting < 0);
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
    let is_full = most_of(&blocked, limit - 1) >= MIN_FULL_SHARE * most_of(&blocked, 0);
    u32::try_from(limit).ok().filter(|_| starts >= MIN_STARTS && is_full)
}
