//! Synthetic traces: arrivals, lengths and sessions by law, as rows like any other. Pure, but for the reading of a file
//! of lengths.

pub mod arrivals;
pub mod length;
mod mix_tables;
pub mod mixes;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand_pcg::Pcg64Mcg;

use self::arrivals::{Arrivals, Moments};
use self::length::{Length, Lengths};
use crate::capture::format::{BlockIds, BlockUnit, Blocks, Entry, Header, LastBlock, Prompt, Scope};
use crate::trace::chance::random;

/// Where such a trace says that it comes from.
pub const SYNTHETIC: &str = "synthetic";

/// A trace to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// When requests come; with more than one turn, when sessions begin.
    pub arrivals: Arrivals,
    /// How many requests; `None` without end, or to the end of the stages.
    pub requests: Option<u64>,
    /// How long prompts and replies are. What a later turn has beside its history is as long as a prompt.
    pub lengths: Lengths,
    /// Requests of a session, each with all that was said before in its prompt.
    pub turns: Length,
    /// Milliseconds from an answer to the next turn; `None` is at once.
    pub think: Option<Length>,
    /// Tokens at the beginning of each prompt that its group shares; 0 without.
    pub shared_prefix: u32,
    /// Groups that share a prefix.
    pub prefix_groups: u64,
    /// The model asked for.
    pub model: Option<String>,
    /// Whether streams are asked for.
    pub stream: bool,
    /// Decides what is drawn.
    pub seed: u64,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            arrivals: Arrivals::Closed,
            requests: None,
            lengths: Lengths::Apart(Length::Fixed(512), Length::Fixed(128)),
            turns: Length::Fixed(1),
            think: None,
            shared_prefix: 0,
            prefix_groups: 1,
            model: None,
            stream: true,
            seed: 0,
        }
    }
}

impl Synthetic {
    /// The header of the trace.
    pub fn header(&self) -> Header {
        let blocks = (self.shared_prefix > 0).then_some(Blocks {
            size: self.shared_prefix,
            unit: BlockUnit::Tokens,
            last: LastBlock::Dropped,
            ids: BlockIds::Chained,
            scope: Scope::Trace,
            key: None,
        });
        Header { blocks, ..Header::new(SYNTHETIC) }
    }

    /// Its rows: the same for the same seed.
    pub fn rows(&self) -> impl Iterator<Item = Entry> + Send + use<> {
        let begins: Box<dyn Iterator<Item = u64> + Send> = match &self.arrivals {
            Arrivals::Open(law, stages) => {
                Box::new(Moments::new(*law, stages.clone(), self.seed).map(|at| at.as_nanos()))
            }
            Arrivals::Closed => Box::new(std::iter::repeat(0)),
        };
        let most = usize::try_from(self.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let rows = Rows {
            synthetic: self.clone(),
            begins: begins.peekable(),
            sessions: 0,
            later: BinaryHeap::new(),
            random: random(!self.seed),
        };
        rows.take(most)
    }

    /// One request for each shared prefix, by which a server's cache comes to know it.
    pub fn prefixes(&self) -> impl Iterator<Item = Entry> + use<> {
        let (model, stream, tokens) = (self.model.clone(), self.stream, u64::from(self.shared_prefix));
        (0..self.prefix_groups.max(1)).filter(move |_| tokens > 0).map(move |group| Entry {
            model: model.clone(),
            stream: Some(stream),
            // One token more: a server computes the last of a prompt whatever it has cached.
            prompt: Prompt { tokens: Some(tokens + 1), blocks: vec![group], ..Prompt::default() },
            output_tokens: Some(1),
            ..Entry::default()
        })
    }
}

/// A turn that is still to come. Compared by its time first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    at: u64,
    session: u64,
    turn: u32,
    /// Turns of the session that are left, this one too.
    left: u64,
    /// Tokens that were said before.
    history: u64,
    think: Option<u64>,
}

/// See [`Synthetic::rows`]. Memory: one turn for each session that is not over.
struct Rows<I: Iterator<Item = u64>> {
    synthetic: Synthetic,
    begins: std::iter::Peekable<I>,
    sessions: u64,
    later: BinaryHeap<Reverse<Turn>>,
    random: Pcg64Mcg,
}

impl<I: Iterator<Item = u64>> Iterator for Rows<I> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let closed = self.synthetic.arrivals == Arrivals::Closed;
        let begins = self.begins.peek().copied();
        // Where slots decide there are no times to put sessions in order by: each is whole before the next.
        let is_next = |Reverse(turn): &Reverse<Turn>| closed || begins.is_none_or(|begins| turn.at <= begins);
        let later = self.later.peek().is_some_and(is_next).then(|| self.later.pop()).flatten();
        let turn = match later {
            Some(Reverse(turn)) => turn,
            None => {
                let (at, session) = (self.begins.next()?, self.sessions);
                self.sessions += 1;
                let left = self.synthetic.turns.draw(&mut self.random);
                Turn { at, session, turn: 0, left, history: 0, think: None }
            }
        };
        Some(self.row(turn))
    }
}

impl<I: Iterator<Item = u64>> Rows<I> {
    fn row(&mut self, turn: Turn) -> Entry {
        let synthetic = &self.synthetic;
        let (input, output) = synthetic.lengths.draw(&mut self.random);
        let blocks = match synthetic.shared_prefix {
            0 => Vec::new(),
            _ => vec![turn.session % synthetic.prefix_groups.max(1)],
        };
        // Who has one turn only needs no name.
        let named = synthetic.turns != Length::Fixed(1);
        let entry = Entry {
            at: turn.at,
            model: synthetic.model.clone(),
            stream: Some(synthetic.stream),
            prompt: Prompt { tokens: Some(turn.history + input), blocks, ..Prompt::default() },
            output_tokens: Some(output),
            session: named.then(|| turn.session.to_string()),
            turn: named.then_some(turn.turn),
            think: turn.think,
            ..Entry::default()
        };
        if turn.left > 1 {
            let think = synthetic.think.map_or(0, |think| think.draw(&mut self.random) * 1_000_000);
            self.later.push(Reverse(Turn {
                at: if synthetic.arrivals == Arrivals::Closed { 0 } else { turn.at.saturating_add(think) },
                turn: turn.turn + 1,
                left: turn.left - 1,
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
    use super::arrivals::{Law, Stages};
    use super::*;

    fn open(law: Law, stages: &str) -> Synthetic {
        Synthetic { arrivals: Arrivals::Open(law, stages.parse::<Stages>().unwrap()), seed: 1, ..Synthetic::default() }
    }

    #[test]
    fn the_same_seed_makes_the_same_trace() {
        let trace = Synthetic {
            lengths: Lengths::Apart(Length::Normal(100.0, 30.0), Length::LogNormal(50.0, 20.0)),
            turns: Length::Normal(3.0, 1.0),
            ..open(Law::Poisson, "5@20s")
        };
        let rows = |seed| Synthetic { seed, ..trace.clone() }.rows().collect::<Vec<_>>();
        assert_eq!(rows(1), rows(1));
        assert_ne!(rows(1), rows(2));
    }

    #[test]
    fn a_trace_ends_with_its_stages_or_its_number_of_requests() {
        assert_eq!(open(Law::Constant, "10@3s").rows().count(), 30);
        assert_eq!(Synthetic { requests: Some(7), ..open(Law::Constant, "10@3s") }.rows().count(), 7);
    }

    #[test]
    fn groups_take_turns_with_their_prefix() {
        let trace = Synthetic { shared_prefix: 64, prefix_groups: 3, ..Synthetic::default() };
        let blocks: Vec<u64> = trace.rows().take(5).map(|row| row.prompt.blocks[0]).collect();
        assert_eq!((blocks, trace.header().blocks.unwrap().size), (vec![0, 1, 2, 0, 1], 64));
        let prefixes: Vec<_> = trace.prefixes().map(|row| (row.prompt.blocks[0], row.prompt.tokens)).collect();
        assert_eq!(prefixes, [(0, Some(65)), (1, Some(65)), (2, Some(65))]);
        assert_eq!(Synthetic::default().prefixes().count(), 0);
    }

    #[test]
    fn a_turn_repeats_what_was_said_and_comes_a_pause_later() {
        let trace = Synthetic {
            turns: Length::Fixed(3),
            think: Some(Length::Fixed(1_500)),
            lengths: Lengths::Apart(Length::Fixed(100), Length::Fixed(10)),
            ..open(Law::Constant, "1@2s")
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
        let trace = Synthetic { turns: Length::Fixed(2), requests: Some(5), ..Synthetic::default() };
        let rows: Vec<_> = trace.rows().map(|row| (row.at, row.session.unwrap(), row.turn.unwrap())).collect();
        let wanted = [("0", 0), ("0", 1), ("1", 0), ("1", 1), ("2", 0)];
        assert_eq!(rows, wanted.map(|(session, turn)| (0, session.to_owned(), turn)));
    }
}
