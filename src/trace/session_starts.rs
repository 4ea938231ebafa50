//! Assigns start times to sessions without a common clock. Such sessions (one file each, or with pauses alone) all
//! start at zero, so a replay would send their first turns at once.
//!
//! A session moves as a whole, together with its subagents. Sessions start in trace order, and their ends follow from
//! the trace's own times. With `concurrency:2` two run at a time if the server is as fast as in the trace.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::str::FromStr;

use rand_distr::{Distribution as _, Exp1};

use super::blocks::hash_text;
use super::conversion_loss::ConversionLosses;
use super::error::Error;
use super::rng::rng;
use super::{Trace, TraceEntries};
use crate::stats::locality_hash::BuildLocalityHasher;
use crate::trace_file::row::TraceEntry;

/// Maximum sessions that are moved; further sessions keep their start.
const MAX_SESSIONS: usize = 1 << 20;
/// Separates these draws from others with the same seed.
const SESSION_START_SEED: u64 = 0x7374_6172_7473;

/// Start times of sessions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SessionStarts {
    /// A Poisson process with this average rate, in sessions per second.
    Poisson(f64),
    /// This number of sessions at a time; each next session starts when one ends.
    Concurrency(u32),
}

impl FromStr for SessionStarts {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected poisson:RATE or concurrency:N, as in poisson:0.5 or concurrency:8";
        let (kind, number) = text.split_once(':').ok_or(EXPECTED)?;
        let rate = || number.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0).map(Self::Poisson);
        let slots = || number.parse().ok().filter(|slots| *slots > 0).map(Self::Concurrency);
        match kind {
            "poisson" => rate().ok_or(EXPECTED),
            "concurrency" => slots().ok_or(EXPECTED),
            _ => Err(EXPECTED),
        }
    }
}

/// Shift of each session in nanoseconds, positive or negative.
pub struct SessionShifts {
    by_session: HashMap<u64, i64, BuildLocalityHasher>,
    losses: ConversionLosses,
}

/// First arrival and last end of a session, in nanoseconds.
type SessionExtent = (u64, u64);

/// Groups a session with its subagents, whose names are its name plus `/…`.
fn session_group(session: &str) -> u64 {
    hash_text(session.split('/').next().unwrap_or(session))
}

impl SessionStarts {
    /// Computes the shifts of the sessions in these rows. Sessions beyond 2^20 are not moved; the losses count their
    /// rows.
    ///
    /// # Errors
    /// If a row cannot be read.
    pub fn shifts(self, entries: TraceEntries, seed: u64) -> Result<SessionShifts, Error> {
        let losses = ConversionLosses::default();
        let mut places: HashMap<u64, usize, BuildLocalityHasher> = HashMap::default();
        let mut sessions: Vec<(u64, SessionExtent)> = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Some(session) = entry.session.as_deref().map(session_group) else { continue };
            let ended = entry.at.saturating_add(entry.timing.ended.unwrap_or(0));
            if let Some(place) = places.get(&session) {
                let (first, last) = &mut sessions[*place].1;
                (*first, *last) = ((*first).min(entry.at), (*last).max(ended));
            } else if sessions.len() < MAX_SESSIONS {
                places.insert(session, sessions.len());
                sessions.push((session, (entry.at, ended)));
            } else {
                losses.count("rows of sessions that are too many to be placed");
            }
        }
        let begins = self.start_times(sessions.iter().map(|(_, extent)| *extent), seed);
        let shift = |((session, (first, _)), begin): (&(u64, SessionExtent), u64)| {
            (*session, i64::try_from(i128::from(begin) - i128::from(*first)).unwrap_or(0))
        };
        Ok(SessionShifts { by_session: sessions.iter().zip(begins).map(shift).collect(), losses })
    }

    fn start_times(self, extents: impl Iterator<Item = SessionExtent>, seed: u64) -> Vec<u64> {
        match self {
            Self::Poisson(rate) => {
                let (mut random, mut at) = (rng(seed ^ SESSION_START_SEED), 0.0);
                let next = |_| {
                    let gap: f64 = Exp1.sample(&mut random);
                    at += gap / rate * 1e9;
                    at as u64
                };
                extents.map(next).collect()
            }
            Self::Concurrency(slots) => {
                let mut free: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
                let next = |(first, last): SessionExtent| {
                    let begin = if free.len() < slots as usize { 0 } else { free.pop().map_or(0, |Reverse(at)| at) };
                    free.push(Reverse(begin.saturating_add(last - first)));
                    begin
                };
                extents.map(next).collect()
            }
        }
    }
}

/// Applies the shifts to a trace.
pub fn shift_sessions(trace: Trace, shifts: SessionShifts) -> Trace {
    let Trace { header, entries, losses } = trace;
    shifts.losses.list().iter().for_each(|(name, count)| losses.add(name, *count));
    let moved = move |mut entry: TraceEntry| {
        let shift = entry.session.as_deref().and_then(|session| shifts.by_session.get(&session_group(session)));
        let by = |at: u64| at.saturating_add_signed(*shift.unwrap_or(&0));
        (entry.at, entry.planned) = (by(entry.at), entry.planned.map(by));
        entry
    };
    Trace { header, entries: Box::new(entries.map(move |entry| entry.map(&moved))), losses }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::header::TraceHeader;

    const SECOND: u64 = 1_000_000_000;

    /// Rows of sessions that all begin at 0: (session, second).
    fn placed(starts: SessionStarts, rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        let entries = || -> TraceEntries {
            let rows: Vec<_> = rows
                .iter()
                .map(|(session, at)| {
                    Ok(TraceEntry { at: at * SECOND, session: Some((*session).to_owned()), ..TraceEntry::default() })
                })
                .collect();
            Box::new(rows.into_iter())
        };
        let shifts = starts.shifts(entries(), 7).unwrap();
        let trace = Trace { header: TraceHeader::new("t"), entries: entries(), losses: ConversionLosses::default() };
        let rows = shift_sessions(trace, shifts).entries.map(Result::unwrap);
        rows.map(|row| (row.session.unwrap(), row.at)).collect()
    }

    #[test]
    fn as_many_sessions_as_asked_for_are_there_at_a_time_and_subagents_stay_with_theirs() {
        let rows = [("a", 0), ("a/x", 3), ("a", 10), ("b", 0), ("b", 4), ("c", 0), ("c", 5), ("d", 0)];
        let arrivals: Vec<u64> =
            placed(SessionStarts::Concurrency(2), &rows).iter().map(|(_, at)| at / SECOND).collect();
        // b ends after 4 s, c 5 s later, and d then replaces c.
        assert_eq!(arrivals, [0, 3, 10, 0, 4, 4, 9, 9]);
    }

    #[test]
    fn sessions_begin_as_a_poisson_process_and_keep_their_own_times() {
        let names: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
        let rows: Vec<(&str, u64)> = names.iter().flat_map(|name| [(name.as_str(), 0), (name.as_str(), 8)]).collect();
        let placed = placed(SessionStarts::Poisson(4.0), &rows);
        let begins: Vec<u64> = placed.iter().step_by(2).map(|(_, at)| *at).collect();
        assert!(placed.iter().skip(1).step_by(2).zip(&begins).all(|((_, at), begin)| at - begin == 8 * SECOND));
        let gaps: Vec<f64> = begins.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e9).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean - 0.25).abs() < 0.025 && (deviation / mean - 1.0).abs() < 0.1, "{mean} {deviation}");
    }

    #[test]
    fn starts_are_written_as_a_rate_or_a_number() {
        let read = |text: &str| text.parse::<SessionStarts>();
        assert_eq!(read("poisson:0.5"), Ok(SessionStarts::Poisson(0.5)));
        assert_eq!(read("concurrency:8"), Ok(SessionStarts::Concurrency(8)));
        for bad in ["", "poisson", "poisson:0", "poisson:nan", "concurrency:0", "concurrency:1.5", "gamma:1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
