//! Joins each row of one trace with the corresponding row of another.
//!
//! * **Sessions**: if both traces have sessions, later turns are joined by session and turn. Sessions are joined by
//!   name if the traces share names. Otherwise they are joined by their first turns, because a capture renames
//!   sessions.
//! * **Shift**: all other rows are joined in order of time, after the best shift. A shift skips at most
//!   [`MAX_SKIPPED_ROWS`] first rows of one trace. The best shift makes most of the next [`COMPARED_PAIRS`] pairs agree
//!   in time and length; it is zero unless another is clearly better. If later rows disagree, the joiner looks in the
//!   same way for missing rows, at most [`MAX_MISSING_ROWS`] at a time.
//! * **Moments**: rows of the first trace within [`MOMENT_NANOS`] have no reliable order. They are joined by length
//!   with the same number of rows of the second trace, shortest with shortest.
//!
//! # Memory
//! Both traces are read once. The joiner keeps at least the last [`MAX_ENTRIES`] sessions and waiting turns of each
//! trace, and at most twice as many. The oldest are dropped first, and a dropped row is not joined.

mod recent_map;
mod shift;

use std::collections::{HashSet, VecDeque};

use self::recent_map::{MAX_ENTRIES, RecentMap};
use self::shift::{TOLERANCE_NANOS, best_shift};
use crate::stats::deviation::{ArrivalsPerSecond, DeviationAccumulator};
use crate::stats::length_histogram::LengthHistogram;

/// Rows within this many nanoseconds belong to one moment.
pub const MOMENT_NANOS: u64 = 1_000_000;
/// Maximum rows of one moment that are joined by length.
const MAX_MOMENT_ROWS: usize = 1 << 12;
/// Maximum first rows of one trace that a shift may skip.
const MAX_SKIPPED_ROWS: usize = 64;
/// Pairs used to compare shifts. Few, because a missing row later in the trace would distort many.
const COMPARED_PAIRS: usize = 64;
/// Maximum rows that one trace may lack at a time, the pairs used to detect this, and the minimum number of pairs.
const MAX_MISSING_ROWS: usize = 16;
const LOOKAHEAD_PAIRS: usize = 32;
const MIN_COMPARED_PAIRS: usize = 8;
/// Maximum rows of each trace held until the shift is known.
const MAX_HELD_ROWS: usize = 1 << 14;
/// Maximum turns with the same position in their session that are distinguished.
const MAX_DUPLICATE_TURNS: u32 = 8;
/// Maximum turns of a session searched once its counterpart is known.
const MAX_TURNS: u32 = 1 << 16;
/// Rows read between two joins by time.
const ROWS_BETWEEN_JOINS: u64 = 256;

/// Fields of a row that joining needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinRow {
    /// Nanoseconds after the first row of its trace.
    pub(super) at: u64,
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    /// Digest of the session name.
    pub(super) session: Option<u64>,
    /// Turn number, if the trace has it.
    pub(super) turn: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceSide {
    A = 0,
    B = 1,
}

pub(super) struct JoinTotals {
    pub(super) joined: u64,
    pub(super) by_turn: u64,
    /// First rows of each trace that the shift skips.
    pub(super) skipped: [u64; 2],
    pub(super) arrivals: LengthHistogram,
    pub(super) input: DeviationAccumulator,
    pub(super) output: DeviationAccumulator,
    /// Arrivals relative to the shifted start; `None` without a shift.
    pub(super) seconds: Option<[ArrivalsPerSecond; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionMatching {
    /// One trace has no sessions.
    None,
    /// Both traces use the same names.
    Named,
    /// Sessions are paired by their first turns.
    Paired,
}

/// Joins rows while both traces are read.
pub(super) struct RowJoiner {
    /// Rows of each trace until the shift is known.
    buffered: [Vec<JoinRow>; 2],
    started: bool,
    /// Rows read from each trace.
    read: [u64; 2],
    ended: [bool; 2],
    /// Nanoseconds added to the times of each trace.
    offset: [u64; 2],
    sessions: SessionMatching,
    /// Rows to join before the next search for missing rows.
    until_check: usize,
    sides: [JoinSide; 2],
    pub(super) sums: JoinTotals,
}

#[derive(Default)]
struct JoinSide {
    by_time: VecDeque<JoinRow>,
    sessions: RecentMap<u64, JoinSession>,
    /// By session, position after the first turn, and number among turns with the same position.
    turns: RecentMap<(u64, u32, u32), JoinRow>,
}

#[derive(Clone, Copy)]
struct JoinSession {
    /// First turn in this trace, and the last position after it.
    first: u32,
    last: u32,
    /// The paired session of the other trace.
    partner: Option<u64>,
}

impl RowJoiner {
    pub(super) fn new() -> Self {
        let sums = JoinTotals {
            joined: 0,
            by_turn: 0,
            skipped: [0; 2],
            arrivals: LengthHistogram::of_times(),
            input: DeviationAccumulator::default(),
            output: DeviationAccumulator::default(),
            seconds: None,
        };
        Self {
            buffered: Default::default(),
            started: false,
            read: [0; 2],
            ended: [false; 2],
            offset: [0; 2],
            sessions: SessionMatching::None,
            until_check: 0,
            sides: Default::default(),
            sums,
        }
    }

    /// The trace to read next; `None` when both have ended. Both are read at the same pace, unless one has many more
    /// rows that are joined by time.
    pub(super) fn next_side(&self) -> Option<TraceSide> {
        let [waits_a, waits_b] = self.sides.each_ref().map(|side| side.by_time.len());
        match self.ended {
            [true, true] => None,
            [true, false] => Some(TraceSide::B),
            [false, true] => Some(TraceSide::A),
            _ if waits_a.abs_diff(waits_b) > MAX_ENTRIES => {
                Some(if waits_a < waits_b { TraceSide::A } else { TraceSide::B })
            }
            _ => Some(if self.read[0] <= self.read[1] { TraceSide::A } else { TraceSide::B }),
        }
    }

    /// Adds the next row of a trace in order of time; `None` marks its end.
    pub(super) fn push(&mut self, which: TraceSide, row: Option<JoinRow>) {
        let here = which as usize;
        self.read[here] += 1;
        match row {
            None => self.ended[here] = true,
            Some(row) if self.started => self.place_row(which, row),
            Some(row) => self.buffered[here].push(row),
        }
        if !self.started {
            if !(0..2).all(|which| self.ended[which] || self.buffered[which].len() >= MAX_HELD_ROWS) {
                return;
            }
            self.start();
        }
        if self.ended == [true; 2] || (self.read[0] + self.read[1]).is_multiple_of(ROWS_BETWEEN_JOINS) {
            self.join_by_time();
        }
    }

    /// Chooses how rows are joined, and joins the held rows.
    fn start(&mut self) {
        self.started = true;
        self.sessions = session_matching(&self.buffered);
        let in_time = [0, 1].map(|which: usize| rows_by_time(&self.buffered[which], self.sessions));
        let [skip_a, skip_b] = best_shift(&in_time[0], &in_time[1], MAX_SKIPPED_ROWS, COMPARED_PAIRS);
        self.sums.skipped = [skip_a, skip_b].map(|skip| skip as u64);
        if skip_a + skip_b > 0 {
            // The first joined rows share a moment, and no row comes before zero.
            let (a, b) = (in_time[0][skip_a].at, in_time[1][skip_b].at);
            self.offset = [b.saturating_sub(a), a.saturating_sub(b)];
            self.sums.seconds = Some(Default::default());
        }
        let mut skip = [skip_a, skip_b];
        for which in [TraceSide::A, TraceSide::B] {
            for row in std::mem::take(&mut self.buffered[which as usize]) {
                let waiting = self.sides[which as usize].by_time.len();
                self.place_row(which, row);
                let side = &mut self.sides[which as usize];
                if skip[which as usize] > 0 && side.by_time.len() > waiting {
                    side.by_time.pop_back();
                    skip[which as usize] -= 1;
                }
            }
        }
    }

    /// Joins a row, or lets it wait for its counterpart.
    fn place_row(&mut self, which: TraceSide, mut row: JoinRow) {
        let (here, there) = (which as usize, 1 - which as usize);
        row.at = row.at.saturating_add(self.offset[here]);
        if let Some(seconds) = &mut self.sums.seconds {
            seconds[here].take(row.at);
        }
        let Some(name) = row.session.filter(|_| self.sessions != SessionMatching::None) else {
            return self.sides[here].by_time.push_back(row);
        };
        let side = &mut self.sides[here];
        let known = side.sessions.get_mut(&name);
        let is_first = known.is_none();
        let (place, partner) = match known {
            Some(session) => {
                let next = session.last.saturating_add(1);
                let place = row.turn.map_or(next, |turn| turn.saturating_sub(session.first));
                session.last = session.last.max(place);
                (place, session.partner)
            }
            None => {
                let partner = Some(name).filter(|_| self.sessions == SessionMatching::Named);
                let first = if partner.is_some() { 0 } else { row.turn.unwrap_or(0) };
                let last = row.turn.unwrap_or(0) - first;
                side.sessions.insert(name, JoinSession { first, last, partner });
                (last, partner)
            }
        };
        if is_first && self.sessions == SessionMatching::Paired {
            return side.by_time.push_back(row);
        }
        let other = partner.and_then(|partner| self.sides[there].take_turn(partner, place));
        match other {
            Some(other) => self.join_turn(which, row, other),
            None => self.sides[here].insert_turn(name, place, row),
        }
    }

    fn join_turn(&mut self, which: TraceSide, row: JoinRow, other: JoinRow) {
        let (a, b) = if which == TraceSide::A { (row, other) } else { (other, row) };
        self.sums.by_turn += 1;
        self.sums.add_arrivals(&a, &b);
        self.sums.add_lengths(&a, &b);
    }

    /// Joins complete moments, as far as both traces have been read.
    fn join_by_time(&mut self) {
        loop {
            let ahead = MAX_MISSING_ROWS + LOOKAHEAD_PAIRS;
            if (0..2).any(|which| !self.ended[which] && self.sides[which].by_time.len() < ahead) {
                break;
            }
            self.skip_missing();
            let [a, b] = &mut self.sides;
            let Some(from) = a.by_time.front().map(|row| row.at) else { break };
            let of_moment = a.by_time.iter().take_while(|row| row.at.abs_diff(from) <= MOMENT_NANOS);
            let rows = of_moment.take(MAX_MOMENT_ROWS).count();
            let is_whole = rows < a.by_time.len() || rows == MAX_MOMENT_ROWS || self.ended[0];
            if !is_whole || b.by_time.len() < rows && !self.ended[1] {
                break;
            }
            let mut moment: Vec<JoinRow> = a.by_time.drain(..rows).collect();
            let mut others: Vec<JoinRow> = b.by_time.drain(..rows.min(b.by_time.len())).collect();
            self.until_check = self.until_check.saturating_sub(rows);
            self.join_moment(&mut moment, &mut others);
        }
        // Rows beyond the end of the shorter trace have no counterpart.
        for (here, there) in [(0, 1), (1, 0)] {
            if self.ended[there] && self.sides[there].by_time.is_empty() {
                self.sides[here].by_time.clear();
            }
        }
    }

    /// If the next pair disagrees, skips rows of one trace that the other lacks.
    fn skip_missing(&mut self) {
        let [a, b] = &mut self.sides;
        let (Some(first), Some(other)) = (a.by_time.front(), b.by_time.front()) else { return };
        let agree = first.at.abs_diff(other.at) <= TOLERANCE_NANOS
            && first.input == other.input
            && first.output == other.output;
        if agree || self.until_check > 0 {
            return;
        }
        self.until_check = LOOKAHEAD_PAIRS;
        let next =
            |side: &JoinSide| side.by_time.iter().take(MAX_MISSING_ROWS + LOOKAHEAD_PAIRS).copied().collect::<Vec<_>>();
        let (next_a, next_b) = (next(a), next(b));
        if next_a.len().min(next_b.len()) >= MIN_COMPARED_PAIRS {
            let [skip_a, skip_b] = best_shift(&next_a, &next_b, MAX_MISSING_ROWS, LOOKAHEAD_PAIRS);
            drop((a.by_time.drain(..skip_a), b.by_time.drain(..skip_b)));
        }
    }

    /// Joins the rows of a moment with the same number of rows of the other trace, or with all remaining ones.
    fn join_moment(&mut self, moment: &mut [JoinRow], others: &mut [JoinRow]) {
        for (a, b) in moment.iter().zip(others.iter()) {
            self.sums.add_arrivals(a, b);
        }
        // At the end of the other trace, the last rows of the moment stay without a counterpart.
        let moment = &mut moment[..others.len()];
        for rows in [&mut *moment, &mut *others] {
            rows.sort_by_key(|row| (row.input, row.output));
        }
        for (a, b) in moment.iter().zip(others.iter()) {
            self.sums.add_lengths(a, b);
            if let (Some(a), Some(b)) = (a.session, b.session) {
                self.pair_sessions(a, b);
            }
        }
    }

    /// Pairs two sessions, and joins the later turns that both already have.
    fn pair_sessions(&mut self, a: u64, b: u64) {
        if self.sessions != SessionMatching::Paired {
            return;
        }
        for (side, own, other) in [(0, a, b), (1, b, a)] {
            if let Some(session) = self.sides[side].sessions.get_mut(&own) {
                session.partner = Some(other);
            }
        }
        let last = [(0, a), (1, b)].map(|(side, name)| self.sides[side].sessions.get(&name).map_or(0, |of| of.last));
        for place in 0..=last[0].min(last[1]).min(MAX_TURNS) {
            while let Some(row) = self.sides[0].take_turn(a, place) {
                let Some(other) = self.sides[1].take_turn(b, place) else {
                    self.sides[0].insert_turn(a, place, row);
                    break;
                };
                self.join_turn(TraceSide::A, row, other);
            }
        }
    }
}

impl JoinTotals {
    fn add_arrivals(&mut self, a: &JoinRow, b: &JoinRow) {
        self.joined += 1;
        self.arrivals.take(a.at.abs_diff(b.at));
    }

    fn add_lengths(&mut self, a: &JoinRow, b: &JoinRow) {
        self.input.take(a.input, b.input);
        self.output.take(a.output, b.output);
    }
}

impl JoinSide {
    fn insert_turn(&mut self, session: u64, place: u32, row: JoinRow) {
        if let Some(free) = (0..MAX_DUPLICATE_TURNS).find(|nth| self.turns.get(&(session, place, *nth)).is_none()) {
            self.turns.insert((session, place, free), row);
        }
    }

    fn take_turn(&mut self, session: u64, place: u32) -> Option<JoinRow> {
        (0..MAX_DUPLICATE_TURNS).find_map(|nth| self.turns.remove(&(session, place, nth)))
    }
}

/// Chooses how the sessions of these first rows are joined.
fn session_matching(held: &[Vec<JoinRow>; 2]) -> SessionMatching {
    let [a, b] = held.each_ref().map(|rows| rows.iter().filter_map(|row| row.session).collect::<HashSet<_>>());
    let shared = a.intersection(&b).count();
    match a.len().min(b.len()) {
        0 => SessionMatching::None,
        fewer if shared * 2 > fewer => SessionMatching::Named,
        _ => SessionMatching::Paired,
    }
}

/// The rows that are joined in order of time.
fn rows_by_time(rows: &[JoinRow], sessions: SessionMatching) -> Vec<JoinRow> {
    let mut seen = HashSet::new();
    let mut is_first = |row: &&JoinRow| match (row.session, sessions) {
        (None, _) | (_, SessionMatching::None) => true,
        (Some(_), SessionMatching::Named) => false,
        (Some(name), SessionMatching::Paired) => seen.insert(name),
    };
    rows.iter().filter(|row| is_first(row)).take(COMPARED_PAIRS + MAX_SKIPPED_ROWS).copied().collect()
}
