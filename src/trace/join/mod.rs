//! Which row of one trace is which row of another.
//!
//! * **Sessions**: where both traces have them, a later turn is joined by session and turn. The sessions themselves are
//!   joined by name where the traces share names; else by their first turns, since a capture names sessions anew.
//! * **Shift**: all other rows are joined in order of time, the first with the first, after the best shift. A shift leaves
//!   out up to [`MAX_SKIPPED`] first rows of one trace. It is the one that makes most of the next [`COMPARED`] pairs agree
//!   in time and length, and zero unless another is clearly better. Where rows disagree later on, a row that one trace lacks
//!   is looked for in the same way, up to [`MAX_MISSING`] at a time.
//! * **Moments**: rows of the first trace within [`MOMENT`] have no order that the second could keep. They are joined by
//!   length with as many rows of the second, the shortest with the shortest.
//!
//! # Memory
//! Both traces are read once. Turns that wait for their counterpart, and sessions, are kept up to [`MAX_KEPT`] of each
//! trace, twice at most; the oldest are forgotten first, and a row that is forgotten is not joined.

mod recent;
mod shift;

use std::collections::{HashSet, VecDeque};

use self::recent::{MAX_KEPT, Recent};
use self::shift::{NEAR, best_shift};
use crate::measure::difference::{Errors, Seconds};
use crate::measure::lengths::Lengths;

/// Rows this close, in nanoseconds, come in one moment.
pub const MOMENT: u64 = 1_000_000;
/// Rows of one moment that are joined by length.
const MAX_MOMENT_ROWS: usize = 1 << 12;
/// First rows of one trace that a shift may leave out.
const MAX_SKIPPED: usize = 64;
/// Pairs of rows by which shifts are compared: few, since of many a later part would be where a row is missing.
const COMPARED: usize = 64;
/// Rows that one trace may lack at a time, pairs by which that is seen, and how few of them are too few to see it.
const MAX_MISSING: usize = 16;
const COMPARED_NEXT: usize = 32;
const MIN_COMPARED: usize = 8;
/// Rows of each trace that are held until the shift is known.
const MAX_HELD: usize = 1 << 14;
/// Turns with the same place in their session that are told apart.
const MAX_ALIKE: u32 = 8;
/// Turns of a session that are looked for when its counterpart is known.
const MAX_TURNS: u32 = 1 << 16;
/// Rows that are read between two joins in order of time.
const ROWS_BETWEEN_JOINS: u64 = 256;

/// What is kept of a row until it is joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// From the first row of its trace.
    pub(super) at: u64,
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    /// A digest of its session's name.
    pub(super) session: Option<u64>,
    /// Its turn, where the trace tells.
    pub(super) turn: Option<u32>,
}

/// The first or the second trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    A = 0,
    B = 1,
}

/// The sums over joined rows.
pub(super) struct Sums {
    pub(super) joined: u64,
    /// Of these by session and turn.
    pub(super) by_turn: u64,
    /// First rows of each trace that the shift leaves out.
    pub(super) skipped: [u64; 2],
    pub(super) arrivals: Lengths,
    pub(super) input: Errors,
    pub(super) output: Errors,
    /// Arrivals on the shifted line; `None` where there is no shift.
    pub(super) seconds: Option<[Seconds; 2]>,
}

/// How sessions are joined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sessions {
    /// One trace has none.
    None,
    /// They have the same names.
    Named,
    /// By their first turns.
    Paired,
}

/// Joins rows as they are read. See the module.
pub(super) struct Joiner {
    /// Rows of each trace until the shift is known.
    held: [Vec<Row>; 2],
    started: bool,
    /// Rows that were read of each.
    read: [u64; 2],
    ended: [bool; 2],
    /// What is added to the times of each trace.
    offset: [u64; 2],
    sessions: Sessions,
    /// Rows to be joined before the next look for missing ones.
    until_look: usize,
    sides: [Side; 2],
    pub(super) sums: Sums,
}

/// Rows of one trace that wait.
#[derive(Default)]
struct Side {
    in_time: VecDeque<Row>,
    sessions: Recent<u64, Session>,
    /// By session, place after the first turn, and number among those with the same place.
    turns: Recent<(u64, u32, u32), Row>,
}

#[derive(Clone, Copy)]
struct Session {
    /// Its first turn in this trace, and the last place after it.
    first: u32,
    last: u32,
    /// The session of the other trace.
    partner: Option<u64>,
}

impl Joiner {
    pub(super) fn new() -> Self {
        let sums = Sums {
            joined: 0,
            by_turn: 0,
            skipped: [0; 2],
            arrivals: Lengths::of_times(),
            input: Errors::default(),
            output: Errors::default(),
            seconds: None,
        };
        Self {
            held: Default::default(),
            started: false,
            read: [0; 2],
            ended: [false; 2],
            offset: [0; 2],
            sessions: Sessions::None,
            until_look: 0,
            sides: Default::default(),
            sums,
        }
    }

    /// Which trace is to be read next; `None` when both have ended. They are read alike far, unless one has many more rows
    /// that are joined in order of time.
    pub(super) fn wants(&self) -> Option<Which> {
        let [waits_a, waits_b] = self.sides.each_ref().map(|side| side.in_time.len());
        match self.ended {
            [true, true] => None,
            [true, false] => Some(Which::B),
            [false, true] => Some(Which::A),
            _ if waits_a.abs_diff(waits_b) > MAX_KEPT => Some(if waits_a < waits_b { Which::A } else { Which::B }),
            _ => Some(if self.read[0] <= self.read[1] { Which::A } else { Which::B }),
        }
    }

    /// The next row of a trace in order of time; `None` at its end.
    pub(super) fn take(&mut self, which: Which, row: Option<Row>) {
        let here = which as usize;
        self.read[here] += 1;
        match row {
            None => self.ended[here] = true,
            Some(row) if self.started => self.sort_in(which, row),
            Some(row) => self.held[here].push(row),
        }
        if !self.started {
            if !(0..2).all(|which| self.ended[which] || self.held[which].len() >= MAX_HELD) {
                return;
            }
            self.start();
        }
        if self.ended == [true; 2] || (self.read[0] + self.read[1]).is_multiple_of(ROWS_BETWEEN_JOINS) {
            self.join_in_time();
        }
    }

    /// Decides how rows are joined, and joins those that were held.
    fn start(&mut self) {
        self.started = true;
        self.sessions = shared_sessions(&self.held);
        let in_time = [0, 1].map(|which: usize| first_rows(&self.held[which], self.sessions));
        let [skip_a, skip_b] = best_shift(&in_time[0], &in_time[1], MAX_SKIPPED, COMPARED);
        self.sums.skipped = [skip_a, skip_b].map(|skip| skip as u64);
        if skip_a + skip_b > 0 {
            // The first joined rows share a moment, and no row comes before zero.
            let (a, b) = (in_time[0][skip_a].at, in_time[1][skip_b].at);
            self.offset = [b.saturating_sub(a), a.saturating_sub(b)];
            self.sums.seconds = Some(Default::default());
        }
        let mut skip = [skip_a, skip_b];
        for which in [Which::A, Which::B] {
            for row in std::mem::take(&mut self.held[which as usize]) {
                let waiting = self.sides[which as usize].in_time.len();
                self.sort_in(which, row);
                let side = &mut self.sides[which as usize];
                if skip[which as usize] > 0 && side.in_time.len() > waiting {
                    side.in_time.pop_back();
                    skip[which as usize] -= 1;
                }
            }
        }
    }

    /// Puts a row where it waits for its counterpart, or joins it.
    fn sort_in(&mut self, which: Which, mut row: Row) {
        let (here, there) = (which as usize, 1 - which as usize);
        row.at = row.at.saturating_add(self.offset[here]);
        if let Some(seconds) = &mut self.sums.seconds {
            seconds[here].take(row.at);
        }
        let Some(name) = row.session.filter(|_| self.sessions != Sessions::None) else {
            return self.sides[here].in_time.push_back(row);
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
                let partner = Some(name).filter(|_| self.sessions == Sessions::Named);
                let first = if partner.is_some() { 0 } else { row.turn.unwrap_or(0) };
                let last = row.turn.unwrap_or(0) - first;
                side.sessions.insert(name, Session { first, last, partner });
                (last, partner)
            }
        };
        if is_first && self.sessions == Sessions::Paired {
            return side.in_time.push_back(row);
        }
        let other = partner.and_then(|partner| self.sides[there].take_turn(partner, place));
        match other {
            Some(other) => self.join_turn(which, row, other),
            None => self.sides[here].keep_turn(name, place, row),
        }
    }

    fn join_turn(&mut self, which: Which, row: Row, other: Row) {
        let (a, b) = if which == Which::A { (row, other) } else { (other, row) };
        self.sums.by_turn += 1;
        self.sums.arrived(&a, &b);
        self.sums.lengths(&a, &b);
    }

    /// Joins whole moments, as far as both traces have been read.
    fn join_in_time(&mut self) {
        loop {
            let ahead = MAX_MISSING + COMPARED_NEXT;
            if (0..2).any(|which| !self.ended[which] && self.sides[which].in_time.len() < ahead) {
                break;
            }
            self.skip_missing();
            let [a, b] = &mut self.sides;
            let Some(from) = a.in_time.front().map(|row| row.at) else { break };
            let of_moment = a.in_time.iter().take_while(|row| row.at.abs_diff(from) <= MOMENT);
            let rows = of_moment.take(MAX_MOMENT_ROWS).count();
            let is_whole = rows < a.in_time.len() || rows == MAX_MOMENT_ROWS || self.ended[0];
            if !is_whole || b.in_time.len() < rows && !self.ended[1] {
                break;
            }
            let mut moment: Vec<Row> = a.in_time.drain(..rows).collect();
            let mut others: Vec<Row> = b.in_time.drain(..rows.min(b.in_time.len())).collect();
            self.until_look = self.until_look.saturating_sub(rows);
            self.join_moment(&mut moment, &mut others);
        }
        // What comes beyond the shorter trace has no counterpart.
        for (here, there) in [(0, 1), (1, 0)] {
            if self.ended[there] && self.sides[there].in_time.is_empty() {
                self.sides[here].in_time.clear();
            }
        }
    }

    /// Leaves out the next rows of one trace that the other lacks, where the next pair disagrees.
    fn skip_missing(&mut self) {
        let [a, b] = &mut self.sides;
        let (Some(first), Some(other)) = (a.in_time.front(), b.in_time.front()) else { return };
        let agree = first.at.abs_diff(other.at) <= NEAR && first.input == other.input && first.output == other.output;
        if agree || self.until_look > 0 {
            return;
        }
        self.until_look = COMPARED_NEXT;
        let next = |side: &Side| side.in_time.iter().take(MAX_MISSING + COMPARED_NEXT).copied().collect::<Vec<_>>();
        let (next_a, next_b) = (next(a), next(b));
        if next_a.len().min(next_b.len()) >= MIN_COMPARED {
            let [skip_a, skip_b] = best_shift(&next_a, &next_b, MAX_MISSING, COMPARED_NEXT);
            drop((a.in_time.drain(..skip_a), b.in_time.drain(..skip_b)));
        }
    }

    /// Joins the rows of a moment with as many of the other trace, or with all that it still has.
    fn join_moment(&mut self, moment: &mut [Row], others: &mut [Row]) {
        for (a, b) in moment.iter().zip(others.iter()) {
            self.sums.arrived(a, b);
        }
        // Where the other trace ends, the rows that have none of it are the last ones.
        let moment = &mut moment[..others.len()];
        for rows in [&mut *moment, &mut *others] {
            rows.sort_by_key(|row| (row.input, row.output));
        }
        for (a, b) in moment.iter().zip(others.iter()) {
            self.sums.lengths(a, b);
            if let (Some(a), Some(b)) = (a.session, b.session) {
                self.pair(a, b);
            }
        }
    }

    /// Joins two sessions, with the later turns of which both have come.
    fn pair(&mut self, a: u64, b: u64) {
        if self.sessions != Sessions::Paired {
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
                    self.sides[0].keep_turn(a, place, row);
                    break;
                };
                self.join_turn(Which::A, row, other);
            }
        }
    }
}

impl Sums {
    fn arrived(&mut self, a: &Row, b: &Row) {
        self.joined += 1;
        self.arrivals.take(a.at.abs_diff(b.at));
    }

    fn lengths(&mut self, a: &Row, b: &Row) {
        self.input.take(a.input, b.input);
        self.output.take(a.output, b.output);
    }
}

impl Side {
    fn keep_turn(&mut self, session: u64, place: u32, row: Row) {
        if let Some(free) = (0..MAX_ALIKE).find(|nth| self.turns.get(&(session, place, *nth)).is_none()) {
            self.turns.insert((session, place, free), row);
        }
    }

    fn take_turn(&mut self, session: u64, place: u32) -> Option<Row> {
        (0..MAX_ALIKE).find_map(|nth| self.turns.remove(&(session, place, nth)))
    }
}

/// How the sessions of these first rows are joined.
fn shared_sessions(held: &[Vec<Row>; 2]) -> Sessions {
    let [a, b] = held.each_ref().map(|rows| rows.iter().filter_map(|row| row.session).collect::<HashSet<_>>());
    let shared = a.intersection(&b).count();
    match a.len().min(b.len()) {
        0 => Sessions::None,
        fewer if shared * 2 > fewer => Sessions::Named,
        _ => Sessions::Paired,
    }
}

/// The rows that are joined in order of time.
fn first_rows(rows: &[Row], sessions: Sessions) -> Vec<Row> {
    let mut seen = HashSet::new();
    let mut is_first = |row: &&Row| match (row.session, sessions) {
        (None, _) | (_, Sessions::None) => true,
        (Some(_), Sessions::Named) => false,
        (Some(name), Sessions::Paired) => seen.insert(name),
    };
    rows.iter().filter(|row| is_first(row)).take(COMPARED + MAX_SKIPPED).copied().collect()
}
