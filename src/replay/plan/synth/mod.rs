//! Synthetic traces: arrivals, lengths and sessions from distributions, as ordinary trace rows. Pure, except for
//! reading a file of lengths.

pub mod arrivals;
pub mod length;
pub mod mixture;
mod mixture_tables;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand_pcg::Pcg64Mcg;

use self::arrivals::{ArrivalPattern, ArrivalTimes, LoadEnd};
use self::length::{LengthDistribution, RequestLengths};
use crate::measure::time::Gap;
use crate::trace::rng::rng;
use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

/// The source in a synthetic trace's header.
pub const SYNTHETIC_SOURCE: &str = "synthetic";

/// Parameters of a synthetic trace.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticTrace {
    /// Arrival times of requests, or with several turns of sessions.
    pub arrivals: ArrivalPattern,
    /// Number of requests; `None` is endless, or until the stages end.
    pub requests: Option<u64>,
    /// End of the arrivals: their number is then that of the rate.
    pub duration: Option<Gap>,
    /// Prompt and output lengths. A later turn adds one prompt length to its history.
    pub lengths: RequestLengths,
    /// Requests per session; each prompt contains the history.
    pub turns: LengthDistribution,
    /// Milliseconds from a response to the next turn; `None` is none.
    pub think: Option<LengthDistribution>,
    /// Tokens at the start of each prompt that its group shares; 0 disables it.
    pub shared_prefix: u32,
    /// Number of groups that share a prefix.
    pub prefix_groups: u64,
    /// Model name in the requests.
    pub model: Option<String>,
    /// True if requests ask for streaming.
    pub stream: bool,
    /// Seed of all random draws.
    pub seed: u64,
}

impl Default for SyntheticTrace {
    fn default() -> Self {
        Self {
            arrivals: ArrivalPattern::Closed,
            requests: None,
            duration: None,
            lengths: RequestLengths::Independent(LengthDistribution::Fixed(512), LengthDistribution::Fixed(128)),
            turns: LengthDistribution::Fixed(1),
            think: None,
            shared_prefix: 0,
            prefix_groups: 1,
            model: None,
            stream: true,
            seed: 0,
        }
    }
}

impl SyntheticTrace {
    /// The trace's header.
    pub fn header(&self) -> TraceHeader {
        let blocks = (self.shared_prefix > 0).then_some(BlockScheme {
            size: self.shared_prefix,
            unit: BlockUnit::Tokens,
            last: LastBlock::Dropped,
            ids: BlockIds::Chained,
            scope: BlockScope::Trace,
            key: None,
        });
        TraceHeader { blocks, ..TraceHeader::new(SYNTHETIC_SOURCE) }
    }

    /// The trace's rows, deterministic per seed.
    pub fn rows(&self) -> impl Iterator<Item = TraceEntry> + Send + use<> {
        let begins: Box<dyn Iterator<Item = u64> + Send> = match &self.arrivals {
            ArrivalPattern::Open(law, stages) => {
                // With several turns the number of requests is not that of arrivals.
                let requests = self.requests.filter(|_| self.turns == LengthDistribution::Fixed(1));
                let end = LoadEnd { requests, duration: self.duration };
                Box::new(ArrivalTimes::new(*law, stages.clone(), end, self.seed).map(|at| at.as_nanos()))
            }
            ArrivalPattern::Closed => Box::new(std::iter::repeat(0)),
        };
        let most = usize::try_from(self.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let rows = SyntheticRows {
            synthetic: self.clone(),
            session_starts: begins.peekable(),
            sessions: 0,
            pending_turns: BinaryHeap::new(),
            random: rng(!self.seed),
        };
        rows.take(most)
    }

    /// One request per shared prefix, which brings it into the server's cache.
    pub fn prefixes(&self) -> impl Iterator<Item = TraceEntry> + use<> {
        let (model, stream, tokens) = (self.model.clone(), self.stream, u64::from(self.shared_prefix));
        (0..self.prefix_groups.max(1)).filter(move |_| tokens > 0).map(move |group| TraceEntry {
            model: model.clone(),
            stream: Some(stream),
            // One extra token: a server always computes a prompt's last token.
            prompt: PromptShape { tokens: Some(tokens + 1), blocks: vec![group], ..PromptShape::default() },
            output_tokens: Some(1),
            ..TraceEntry::default()
        })
    }
}

/// A pending turn, ordered by its time first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SyntheticTurn {
    at: u64,
    session: u64,
    turn: u32,
    /// Turns left in the session, including this one.
    turns_left: u64,
    /// Tokens of the earlier turns.
    history: u64,
    think: Option<u64>,
}

/// Iterator of [`SyntheticTrace::rows`]. Memory: one turn per open session.
struct SyntheticRows<I: Iterator<Item = u64>> {
    synthetic: SyntheticTrace,
    session_starts: std::iter::Peekable<I>,
    sessions: u64,
    pending_turns: BinaryHeap<Reverse<SyntheticTurn>>,
    random: Pcg64Mcg,
}

impl<I: Iterator<Item = u64>> Iterator for SyntheticRows<I> {
    type Item = TraceEntry;

    fn next(&mut self) -> Option<TraceEntry> {
        let closed = self.synthetic.arrivals == ArrivalPattern::Closed;
        let begins = self.session_starts.peek().copied();
        // A closed loop has no times to order sessions by, so each session ends before the next.
        let is_next = |Reverse(turn): &Reverse<SyntheticTurn>| closed || begins.is_none_or(|begins| turn.at <= begins);
        let later = self.pending_turns.peek().is_some_and(is_next).then(|| self.pending_turns.pop()).flatten();
        let turn = match later {
            Some(Reverse(turn)) => turn,
            None => {
                let (at, session) = (self.session_starts.next()?, self.sessions);
                self.sessions += 1;
                let left = self.synthetic.turns.draw(&mut self.random);
                SyntheticTurn { at, session, turn: 0, turns_left: left, history: 0, think: None }
            }
        };
        Some(self.row(turn))
    }
}

impl<I: Iterator<Item = u64>> SyntheticRows<I> {
    fn row(&mut self, turn: SyntheticTurn) -> TraceEntry {
        let synthetic = &self.synthetic;
        let (input, output) = synthetic.lengths.draw(turn.session, &mut self.random);
        let blocks = match synthetic.shared_prefix {
            0 => Vec::new(),
            _ => vec![turn.session % synthetic.prefix_groups.max(1)],
        };
        // A session of a single turn needs no name.
        let named = synthetic.turns != LengthDistribution::Fixed(1);
        let entry = TraceEntry {
            at: turn.at,
            model: synthetic.model.clone(),
            stream: Some(synthetic.stream),
            prompt: PromptShape { tokens: Some(turn.history + input), blocks, ..PromptShape::default() },
            output_tokens: Some(output),
            session: named.then(|| turn.session.to_string()),
            turn: named.then_some(turn.turn),
            think: turn.think,
            ..TraceEntry::default()
        };
        if turn.turns_left > 1 {
            let think = synthetic.think.as_ref().map_or(0, |think| think.draw(&mut self.random) * 1_000_000);
            self.pending_turns.push(Reverse(SyntheticTurn {
                at: if synthetic.arrivals == ArrivalPattern::Closed { 0 } else { turn.at.saturating_add(think) },
                turn: turn.turn + 1,
                turns_left: turn.turns_left - 1,
                history: turn.history.saturating_add(input).saturating_add(output),
                think: Some(think),
                ..turn
            }));
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::arrivals::{ArrivalProcess, Stages};
    use super::*;

    fn open(law: ArrivalProcess, stages: &str) -> SyntheticTrace {
        SyntheticTrace {
            arrivals: ArrivalPattern::Open(law, stages.parse::<Stages>().unwrap()),
            seed: 1,
            ..SyntheticTrace::default()
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_trace() {
        let trace = SyntheticTrace {
            lengths: RequestLengths::Independent(
                LengthDistribution::Normal(100.0, 30.0),
                LengthDistribution::LogNormal(50.0, 20.0),
            ),
            turns: LengthDistribution::Normal(3.0, 1.0),
            ..open(ArrivalProcess::Poisson, "5@20s")
        };
        let rows = |seed| SyntheticTrace { seed, ..trace.clone() }.rows().collect::<Vec<_>>();
        assert_eq!(rows(1), rows(1));
        assert_ne!(rows(1), rows(2));
    }

    #[test]
    fn a_trace_ends_with_its_stages_or_its_number_of_requests() {
        assert_eq!(open(ArrivalProcess::Constant, "10@3s").rows().count(), 30);
        assert_eq!(SyntheticTrace { requests: Some(7), ..open(ArrivalProcess::Constant, "10@3s") }.rows().count(), 7);
    }

    #[test]
    fn groups_take_turns_with_their_prefix() {
        let trace = SyntheticTrace { shared_prefix: 64, prefix_groups: 3, ..SyntheticTrace::default() };
        let blocks: Vec<u64> = trace.rows().take(5).map(|row| row.prompt.blocks[0]).collect();
        assert_eq!((blocks, trace.header().blocks.unwrap().size), (vec![0, 1, 2, 0, 1], 64));
        let prefixes: Vec<_> = trace.prefixes().map(|row| (row.prompt.blocks[0], row.prompt.tokens)).collect();
        assert_eq!(prefixes, [(0, Some(65)), (1, Some(65)), (2, Some(65))]);
        assert_eq!(SyntheticTrace::default().prefixes().count(), 0);
    }

    #[test]
    fn a_turn_repeats_what_was_said_and_comes_a_pause_later() {
        let trace = SyntheticTrace {
            turns: LengthDistribution::Fixed(3),
            think: Some(LengthDistribution::Fixed(1_500)),
            lengths: RequestLengths::Independent(LengthDistribution::Fixed(100), LengthDistribution::Fixed(10)),
            ..open(ArrivalProcess::Constant, "1@2s")
        };
        let rows: Vec<_> = trace
            .rows()
            .map(|row| {
                (row.at / 1_000_000, row.session.unwrap(), row.turn.unwrap(), row.prompt.tokens.unwrap(), row.think)
            })
            .collect();
        let think = Some(1_500_000_000);
        let row = |at, session: &str, turn, tokens, think| (at, session.to_owned(), turn, tokens, think);
        assert_eq!(
            rows,
            [
                row(0, "0", 0, 100, None),
                row(1_000, "1", 0, 100, None),
                row(1_500, "0", 1, 210, think),
                row(2_500, "1", 1, 210, think),
                row(3_000, "0", 2, 320, think),
                row(4_000, "1", 2, 320, think),
            ]
        );
    }

    #[test]
    fn where_slots_decide_each_session_is_whole_before_the_next() {
        let trace =
            SyntheticTrace { turns: LengthDistribution::Fixed(2), requests: Some(5), ..SyntheticTrace::default() };
        let rows: Vec<_> = trace.rows().map(|row| (row.at, row.session.unwrap(), row.turn.unwrap())).collect();
        let expected = [("0", 0), ("0", 1), ("1", 0), ("1", 1), ("2", 0)];
        assert_eq!(rows, expected.map(|(session, turn)| (0, session.to_owned(), turn)));
    }
}
