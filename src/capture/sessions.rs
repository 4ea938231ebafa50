//! Which requests form a session.
//!
//! A configured header or field names the session, or the tracker infers it. A request continues an earlier one if its
//! messages begin with all of the earlier messages, or if it names the earlier stored response. If several
//! conversations are identical, the latest continues first, and each continues once before any continues twice. The
//! tracker remembers the last 65,536 conversations.

use std::collections::{HashMap, VecDeque};

use crate::measure::time::{Gap, Stamp};
use crate::stats::hash::combine;
use crate::stats::locality_hash::BuildLocalityHasher;

/// Maximum conversations remembered (8 MiB).
const MAX_CONVERSATIONS: usize = 65_536;
/// Maximum identical conversations that are distinguished.
const MAX_DUPLICATES: u64 = 8;

/// Position of a request in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTurn {
    /// Id of the session.
    pub session: u64,
    /// Position in the session, from 0.
    pub turn: u32,
    /// Time between the end of the previous reply and this request.
    pub think: Option<Gap>,
    /// True if the sample has the session.
    pub sampled: bool,
}

/// Links through responses that the server stores, by digests of response ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoredResponse {
    /// The stored response that the request continues.
    pub previous_response: Option<u64>,
    /// The request's own response, if the server stores it.
    pub response: Option<u64>,
}

#[derive(Clone, Copy)]
struct LastTurn {
    session: u64,
    turn: u32,
    sampled: bool,
    ended: Stamp,
}

/// Assigns requests to sessions.
#[derive(Default)]
pub struct SessionTracker {
    /// Last turns, by the digest of the conversation so far, of the last response id, or of the client's session id.
    /// Clients cannot choose these digests without the key, so a hash without flooding protection is enough.
    last: HashMap<u64, LastTurn, BuildLocalityHasher>,
    order: VecDeque<u64>,
}

impl SessionTracker {
    /// The turn of a request that names its session.
    pub fn turn_of_named(&mut self, session: u64, sampled: bool, arrived: Stamp, ended: Stamp) -> SessionTurn {
        let before = self.last.get(&session).copied();
        let (turn, last) = next_turn((session, sampled), before, arrived, ended);
        self.remember(session, last);
        turn
    }

    /// The turn of a request with these messages; `None` if it has no messages and no stored response. A new session
    /// gets a random id; `sampled` states whether the sample has it.
    pub fn infer_turn(
        &mut self,
        messages: &[u64],
        stored: StoredResponse,
        sampled: bool,
        arrived: Stamp,
        ended: Stamp,
    ) -> Option<SessionTurn> {
        let mut earlier = stored.previous_response.iter().chain(messages.iter().rev().skip(1));
        let before = earlier.find_map(|end| self.take_continued(*end));
        let ends = [messages.last().copied(), stored.response];
        if before.is_none() && ends == [None; 2] {
            return None;
        }
        let session = before.map_or_else(|| (rand::random(), sampled), |before| (before.session, before.sampled));
        let (turn, last) = next_turn(session, before, arrived, ended);
        ends.into_iter().flatten().for_each(|end| self.remember_duplicate(end, last));
        Some(turn)
    }

    /// Takes the conversation that ended at `end` and is now continued. The next identical one moves up.
    fn take_continued(&mut self, end: u64) -> Option<LastTurn> {
        let last = self.last.get(&end).copied()?;
        let others = (1..MAX_DUPLICATES).map(|nth| combine(end, nth)).take_while(|at| self.last.contains_key(at));
        if let Some(next) = others.last().and_then(|at| self.last.remove(&at)) {
            self.last.insert(end, next);
        }
        Some(last)
    }

    /// Remembers a conversation without losing another that ended at `end` before.
    fn remember_duplicate(&mut self, end: u64, last: LastTurn) {
        let before = self.last.get(&end).copied().filter(|before| before.session != last.session);
        // A prompt that repeats without a next turn must not fill the table.
        let room = before.filter(|_| !self.last.contains_key(&combine(end, MAX_DUPLICATES - 1)));
        if let Some(before) = room
            && let Some(free) = (1..MAX_DUPLICATES).map(|nth| combine(end, nth)).find(|at| !self.last.contains_key(at))
        {
            self.remember(free, before);
        }
        self.remember(end, last);
    }

    fn remember(&mut self, at: u64, last: LastTurn) {
        if self.last.insert(at, last).is_none() {
            self.order.push_back(at);
            if self.order.len() > MAX_CONVERSATIONS
                && let Some(oldest) = self.order.pop_front()
            {
                self.last.remove(&oldest);
            }
        }
    }
}

/// The turn after `before` in its session, and its entry in the table.
fn next_turn(
    (session, sampled): (u64, bool),
    before: Option<LastTurn>,
    arrived: Stamp,
    ended: Stamp,
) -> (SessionTurn, LastTurn) {
    let turn = before.map_or(0, |before| before.turn.saturating_add(1));
    let think = before.map(|before| arrived.since(before.ended));
    (SessionTurn { session, turn, think, sampled }, LastTurn { session, turn, sampled, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Stamp {
        Stamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_chain_that_goes_on_is_the_next_turn_and_the_pause_is_told() {
        let mut sessions = SessionTracker::default();
        let first = sessions.infer_turn(&[1, 2], StoredResponse::default(), true, at(0), at(3)).unwrap();
        let second = sessions.infer_turn(&[1, 2, 3, 4], StoredResponse::default(), true, at(10), at(12)).unwrap();
        let third = sessions.infer_turn(&[1, 2, 3, 4, 5, 6], StoredResponse::default(), true, at(20), at(21)).unwrap();
        assert_eq!((first.turn, first.think), (0, None));
        assert_eq!(
            second,
            SessionTurn { session: first.session, turn: 1, think: Some(Gap::from_millis(7_000)), sampled: true }
        );
        assert_eq!((third.session, third.turn), (first.session, 2));
        let other = sessions.infer_turn(&[1, 9], StoredResponse::default(), true, at(22), at(23)).unwrap();
        assert!(other.session != first.session && other.turn == 0);
        let again = sessions.infer_turn(&[1, 2], StoredResponse::default(), true, at(24), at(25)).unwrap();
        assert!(again.session != first.session && again.turn == 0, "the same said again is another conversation");
        assert_eq!(sessions.infer_turn(&[], StoredResponse::default(), true, at(0), at(0)), None);
    }

    #[test]
    fn conversations_that_began_with_the_same_words_go_on_each_for_itself() {
        let mut sessions = SessionTracker::default();
        let mut turn_of = |messages: &[u64], seconds| {
            sessions.infer_turn(messages, StoredResponse::default(), true, at(seconds), at(seconds + 1)).unwrap()
        };
        let firsts = [0, 1, 2].map(|seconds| turn_of(&[7], seconds));
        let nexts = [13, 14, 15].map(|seconds| turn_of(&[7, 8, seconds], seconds));
        let of = |turns: [SessionTurn; 3]| turns.map(|turn| turn.session);
        let [one, two, three] = of(firsts);
        assert_eq!(of(nexts), [three, two, one], "the latest first");
        assert!(nexts.iter().all(|next| next.turn == 1));
        assert_eq!(nexts.map(|next| next.think.unwrap().as_nanos() / 1_000_000_000), [10, 12, 14]);
        let branch = turn_of(&[7, 8, 99], 20);
        assert_eq!((branch.session, branch.turn), (one, 1), "all have gone on: it is a branch");
        (0..100).for_each(|seconds| _ = turn_of(&[5], seconds));
        let apart: std::collections::BTreeSet<u64> = (0..20).map(|n| turn_of(&[5, n], 200).session).collect();
        assert_eq!(apart.len() as u64, MAX_DUPLICATES);
    }

    #[test]
    fn a_request_that_goes_on_from_a_kept_answer_is_the_next_turn_of_that_one() {
        let mut sessions = SessionTracker::default();
        let mut turn_of = |messages: &[u64], goes_on_from, answer, seconds| {
            sessions.infer_turn(
                messages,
                StoredResponse { previous_response: goes_on_from, response: answer },
                true,
                at(seconds),
                at(seconds + 1),
            )
        };
        // A prompt that is one text has no messages.
        let first = turn_of(&[], None, Some(70), 0).unwrap();
        let second = turn_of(&[5], Some(70), Some(71), 11).unwrap();
        let fork = turn_of(&[6], Some(70), Some(72), 12).unwrap();
        let third = turn_of(&[], Some(71), None, 13).unwrap();
        assert_eq!((first.turn, second.turn, fork.turn, third.turn), (0, 1, 1, 2));
        assert!([second, fork, third].iter().all(|turn| turn.session == first.session));
        assert_eq!(second.think, Some(Gap::from_millis(10_000)));
        let unknown = turn_of(&[5, 8], Some(99), Some(73), 14).unwrap();
        assert_eq!((unknown.session, unknown.turn), (first.session, 2), "its messages tell as well");
        assert_eq!(turn_of(&[], Some(98), None, 15), None);
    }

    #[test]
    fn what_a_client_calls_a_session_is_one() {
        let mut sessions = SessionTracker::default();
        let turns = [5, 6, 5].map(|session| sessions.turn_of_named(session, true, at(session), at(session)).turn);
        assert_eq!(turns, [0, 0, 1]);
    }

    #[test]
    fn a_later_turn_is_in_the_sample_if_the_first_one_is() {
        let mut sessions = SessionTracker::default();
        let mut sampled = |previous_response, response, sampled| {
            let stored = StoredResponse { previous_response, response: Some(response) };
            sessions.infer_turn(&[], stored, sampled, at(0), at(1)).unwrap().sampled
        };
        assert_eq!([sampled(None, 1, true), sampled(Some(1), 2, false), sampled(Some(2), 3, false)], [true; 3]);
        assert_eq!([sampled(None, 4, false), sampled(Some(4), 5, true)], [false; 2]);
    }

    #[test]
    fn the_oldest_conversations_are_forgotten() {
        let mut sessions = SessionTracker::default();
        for n in 0..MAX_CONVERSATIONS as u64 + 10 {
            sessions.infer_turn(&[n], StoredResponse::default(), true, at(0), at(0));
        }
        assert_eq!((sessions.last.len(), sessions.order.len()), (MAX_CONVERSATIONS, MAX_CONVERSATIONS));
        assert_eq!(
            sessions
                .infer_turn(&[0, MAX_CONVERSATIONS as u64 * 2], StoredResponse::default(), true, at(1), at(1))
                .unwrap()
                .turn,
            0
        );
        assert_eq!(
            sessions
                .infer_turn(&[100, MAX_CONVERSATIONS as u64 * 3], StoredResponse::default(), true, at(1), at(1))
                .unwrap()
                .turn,
            1
        );
    }
}
