//! Sessions of the last quarter of an hour, for the live page. Pure.
//!
//! The writer thread adds each captured request once it knows its session, also if the sample leaves it out. Requests
//! come in the order of their ends ([`crate::measure::session`] states what this means for tool time).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use schemars::JsonSchema;
use serde::Serialize;

use super::key::hex;
use super::sessions::SessionTurn;
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::session::{
    MAX_SESSION_SLOS, SessionGoodput, SessionRequest, SessionStats, TurnBucket, TurnCache, TurnFigures,
};
use crate::measure::slo::RequestVerdict;
use crate::measure::time::{Gap, Stamp};
use crate::stats::locality_hash::BuildLocalityHasher;
use crate::stats::session_histograms::{SessionDistributions, SessionHistograms};

/// Maximum sessions (1 MiB). The one that has ended first makes room.
const MAX_SESSIONS: usize = 4_096;
/// Sessions removed at once if there is no room.
const REMOVED_SESSIONS: usize = MAX_SESSIONS / 8;
/// A session leaves this long after its last turn.
const WINDOW: Gap = Gap::from_millis(900_000);
/// Time in which the prompts of turns are counted together, and slices of the window.
const SLICE: Gap = Gap::from_millis(60_000);
const SLICES: u64 = WINDOW.as_nanos() / SLICE.as_nanos();
/// Latest sessions that are listed one by one.
const MAX_LISTED: usize = 20;

/// Sessions with a turn in the last quarter of an hour.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LiveSessionsView {
    /// Sessions.
    pub sessions: u64,
    /// Sessions that were removed for lack of room, since the start.
    pub removed: u64,
    /// Sessions among them with a parent.
    pub sub_agents: u64,
    /// Distributions over the sessions.
    #[serde(flatten)]
    pub distributions: SessionDistributions,
    /// Model time of all sessions ÷ (model time + tool time); absent without either.
    pub model_share: Option<f64>,
    /// Goodput of each SLO that applies.
    pub goodput: Vec<SessionGoodput>,
    /// Requests of the last quarter of an hour by their position in the session.
    pub by_turn: Vec<TurnFigures>,
    /// The latest sessions, the one with the latest turn first.
    pub latest: Vec<LiveSessionRow>,
}

/// One session.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct LiveSessionRow {
    /// Id of the session, as in captures.
    pub session: String,
    /// Id of the session that it is a sub-agent of.
    pub parent: Option<String>,
    /// Requests.
    pub turns: u64,
    /// Sum of their E2E.
    pub model_ms: f64,
    /// Time without an open request, from the first start to the last end.
    pub tool_ms: f64,
    /// From the first start to the last end.
    pub time_to_last_turn_ms: f64,
    /// Cached share of the prompt tokens; `null` if the server does not report it.
    pub cached_share: Option<f64>,
    /// SLOs that a request missed.
    pub missed_slos: Vec<String>,
    /// Time since the last end.
    pub idle_ms: f64,
}

#[derive(Debug, Default)]
struct LiveSession {
    stats: SessionStats,
    cache: TurnCache,
    parent: Option<u64>,
}

/// The sessions of the last quarter of an hour.
#[derive(Debug, Default)]
pub(super) struct LiveSessions {
    /// Clients cannot choose these ids without the key.
    sessions: HashMap<u64, LiveSession, BuildLocalityHasher>,
    removed: u64,
    /// Names of the SLOs, in the order of their bits. One that is redefined keeps its bit.
    slos: Vec<Box<str>>,
    /// Requests by position, by the number of the slice in which they ended. Oldest first.
    slices: VecDeque<(u64, BTreeMap<TurnBucket, TurnCache>)>,
}

impl LiveSessions {
    /// Adds a request.
    pub(super) fn add(&mut self, turn: &SessionTurn, parent: Option<u64>, record: &RequestRecord) {
        let (mut counted, mut met) = (0, 0);
        for (slo, verdict) in record.slos.verdicts(record) {
            let Some(bit) = self.bit(slo.name()).filter(|_| !matches!(verdict, RequestVerdict::Excluded)) else {
                continue;
            };
            counted |= bit;
            met |= if matches!(verdict, RequestVerdict::Met) { bit } else { 0 };
        }
        let success = record.outcome == Outcome::Success;
        let tokens = record.usage.input.zip(record.usage.cached).filter(|_| success);
        let (started, ended) = (record.times.received, record.times.ended);
        self.count_turn(turn.turn, tokens, ended);
        if self.sessions.len() >= MAX_SESSIONS && !self.sessions.contains_key(&turn.session) {
            self.make_room();
        }
        let session = self.sessions.entry(turn.session).or_default();
        session.stats.add(SessionRequest { started, ended, counted, met });
        session.cache.add(tokens);
        session.parent = parent.or(session.parent);
    }

    fn bit(&mut self, slo: &str) -> Option<u16> {
        let at = self.slos.iter().position(|name| **name == *slo).or_else(|| {
            let has_room = self.slos.len() < MAX_SESSION_SLOS;
            has_room.then(|| self.slos.push(slo.into())).map(|()| self.slos.len() - 1)
        });
        at.map(|at| 1 << at)
    }

    fn count_turn(&mut self, turn: u32, tokens: Option<(u64, u64)>, ended: Stamp) {
        let slice = ended.as_nanos() / SLICE.as_nanos();
        if self.slices.back().is_none_or(|(last, _)| *last < slice) {
            self.slices.push_back((slice, BTreeMap::new()));
            self.slices.retain(|(number, _)| number + SLICES > slice);
        }
        // A request that ended earlier than the last one counts with it.
        if let Some((_, turns)) = self.slices.back_mut() {
            turns.entry(TurnBucket::of(turn)).or_default().add(tokens);
        }
    }

    fn make_room(&mut self) {
        let mut ends: Vec<(Stamp, u64)> = self.sessions.iter().map(|(id, of)| (of.stats.ended(), *id)).collect();
        ends.sort_unstable();
        ends.iter().take(REMOVED_SESSIONS).for_each(|(_, id)| _ = self.sessions.remove(id));
        self.removed += REMOVED_SESSIONS as u64;
    }

    /// The sessions at `now`; `None` without any.
    pub(super) fn view(&mut self, now: Stamp) -> Option<LiveSessionsView> {
        self.sessions.retain(|_, session| now.since(session.stats.ended()) < WINDOW);
        let mut histograms = SessionHistograms::default();
        let (mut model, mut tool) = (0.0, 0.0);
        for LiveSession { stats, .. } in self.sessions.values() {
            histograms.take(stats.turns, [stats.model, stats.tool, stats.time_to_last_turn()].map(Gap::as_nanos));
            model += stats.model.as_secs();
            tool += stats.tool.as_secs();
        }
        let all = || self.sessions.values().map(|session| &session.stats);
        let slice = now.as_nanos() / SLICE.as_nanos();
        let mut turns = BTreeMap::<TurnBucket, TurnCache>::new();
        let recent = self.slices.iter().filter(|(number, _)| number + SLICES > slice);
        for (turn, cache) in recent.flat_map(|(_, turns)| turns) {
            turns.entry(*turn).or_default().merge(*cache);
        }
        let mut latest: Vec<(&u64, &LiveSession)> = self.sessions.iter().collect();
        latest.sort_unstable_by_key(|(id, session)| (Reverse(session.stats.ended()), **id));
        Some(LiveSessionsView {
            sessions: self.sessions.len() as u64,
            removed: self.removed,
            sub_agents: self.sessions.values().filter(|session| session.parent.is_some()).count() as u64,
            distributions: histograms.summary()?,
            model_share: (model + tool > 0.0).then(|| model / (model + tool)),
            goodput: self
                .slos
                .iter()
                .enumerate()
                .filter_map(|(slo, name)| SessionGoodput::of(name, slo, all()))
                .collect(),
            by_turn: turns.into_iter().map(|(turn, cache)| TurnFigures::new(turn, cache)).collect(),
            latest: latest.iter().take(MAX_LISTED).map(|(id, session)| self.row(**id, session, now)).collect(),
        })
    }

    fn row(&self, id: u64, session: &LiveSession, now: Stamp) -> LiveSessionRow {
        let LiveSession { stats, cache, parent } = session;
        let missed = self.slos.iter().enumerate().filter(|(slo, _)| stats.meets(*slo) == Some(false));
        LiveSessionRow {
            session: hex(id),
            parent: parent.map(hex),
            turns: stats.turns,
            model_ms: stats.model.as_millis(),
            tool_ms: stats.tool.as_millis(),
            time_to_last_turn_ms: stats.time_to_last_turn().as_millis(),
            cached_share: cache.share(),
            missed_slos: missed.map(|(_, name)| name.to_string()).collect(),
            idle_ms: now.since(stats.ended()).as_millis(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::observer::StreamObserver;
    use crate::measure::record::Ending;
    use crate::measure::shape::RequestShape;

    fn at(seconds: u64) -> Stamp {
        Stamp::from_nanos(seconds * 1_000_000_000)
    }

    fn add(sessions: &mut LiveSessions, session: u64, turn: u32, [started, ended]: [u64; 2]) {
        let observer = StreamObserver::begin(RequestShape::default(), b"", None, at(started));
        let turn = SessionTurn { session, turn, think: None, sampled: false };
        sessions.add(&turn, None, &observer.end(at(ended), Ending::Complete));
    }

    #[test]
    fn a_session_leaves_a_quarter_of_an_hour_after_its_last_turn() {
        let mut sessions = LiveSessions::default();
        assert!(sessions.view(at(0)).is_none());
        add(&mut sessions, 1, 0, [0, 10]);
        add(&mut sessions, 2, 0, [0, 20]);
        add(&mut sessions, 2, 1, [700, 800]);
        let view = sessions.view(at(909)).unwrap();
        assert_eq!((view.sessions, view.distributions.turns.max, view.removed), (2, 2, 0));
        let view = sessions.view(at(910)).unwrap();
        assert_eq!((view.sessions, view.latest.len()), (1, 1));
        let row = LiveSessionRow {
            session: "0000000000000002".to_owned(),
            parent: None,
            turns: 2,
            model_ms: 120_000.0,
            tool_ms: 680_000.0,
            time_to_last_turn_ms: 800_000.0,
            cached_share: None,
            missed_slos: Vec::new(),
            idle_ms: 110_000.0,
        };
        assert_eq!(view.latest, [row]);
        assert!(sessions.view(at(1_700)).is_none());
    }

    #[test]
    fn turns_are_counted_for_a_quarter_of_an_hour() {
        let mut sessions = LiveSessions::default();
        add(&mut sessions, 1, 0, [0, 10]);
        add(&mut sessions, 1, 1, [60, 70]);
        add(&mut sessions, 1, 2, [890, 899]);
        let turns = |sessions: &mut LiveSessions, now| -> Vec<(String, u64)> {
            let view = sessions.view(at(now)).unwrap();
            view.by_turn.into_iter().map(|turn| (turn.turn, turn.requests)).collect()
        };
        let of = |turns: &[&str]| -> Vec<(String, u64)> { turns.iter().map(|turn| ((*turn).to_owned(), 1)).collect() };
        assert_eq!(turns(&mut sessions, 899), of(&["0", "1", "2"]));
        assert_eq!(turns(&mut sessions, 901), of(&["1", "2"]), "whole minutes leave");
    }

    #[test]
    fn at_the_bound_the_sessions_that_ended_first_make_room_and_are_counted() {
        let mut sessions = LiveSessions::default();
        for session in 0..=MAX_SESSIONS as u64 {
            add(&mut sessions, session, 0, [session / 10, session / 10 + 1]);
        }
        let view = sessions.view(at(500)).unwrap();
        assert_eq!(view.removed, REMOVED_SESSIONS as u64);
        assert_eq!(view.sessions, (MAX_SESSIONS + 1 - REMOVED_SESSIONS) as u64);
        assert_eq!(view.latest.len(), MAX_LISTED);
        assert!(!sessions.sessions.contains_key(&0) && sessions.sessions.contains_key(&(MAX_SESSIONS as u64)));
        assert!(size_of::<LiveSession>() <= 128, "1 MiB for all: {}", size_of::<LiveSession>());
    }
}
