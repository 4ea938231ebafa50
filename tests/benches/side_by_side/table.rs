//! Figures of all rounds, as a table for people and as JSON for programs.

use std::collections::BTreeMap;

use anyhow::Result;
use comfy_table::CellAlignment;
use serde_json::{Value, json};

use crate::peers::Peer;
use crate::response::Failure;
use crate::rows::{DISTURBED, Outcome};

/// Goal of streamgauge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At most so many times the reference's figure of the same round.
    Times(f64),
    /// At most so much.
    Most(f64),
}

/// A figure's name, reference and goal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub(crate) what: &'static str,
    /// The peer that the others are compared with.
    pub(crate) reference: Option<Peer>,
    pub(crate) goal: Option<Goal>,
}

impl Measure {
    pub(crate) const fn ratio(what: &'static str, reference: Peer, most: f64) -> Self {
        Self { what, reference: Some(reference), goal: Some(Goal::Times(most)) }
    }

    pub(crate) const fn most(what: &'static str, most: f64) -> Self {
        Self { what, reference: None, goal: Some(Goal::Most(most)) }
    }

    pub(crate) const fn plain(what: &'static str) -> Self {
        Self { what, reference: None, goal: None }
    }
}

/// One measure of one row, for all peers and rounds.
#[derive(Debug)]
pub(crate) struct Table {
    row: String,
    measure: Measure,
    /// By peer, in the order of the rounds; nothing where a run failed.
    figures: Vec<(Peer, Vec<Option<f64>>)>,
    failures: BTreeMap<(Peer, Failure), usize>,
    remarks: Vec<String>,
    /// The largest share of the machine that others used during a run.
    foreign: f64,
}

impl Table {
    pub(crate) fn new(row: String, measure: Measure, peers: &[Peer]) -> Self {
        let figures = peers.iter().map(|peer| (*peer, Vec::new())).collect();
        Self { row, measure, figures, failures: BTreeMap::new(), remarks: Vec::new(), foreign: 0.0 }
    }

    pub(crate) fn add(&mut self, peer: Peer, figure: Option<f64>) {
        if let Some((_, figures)) = self.figures.iter_mut().find(|(p, _)| *p == peer) {
            figures.push(figure);
        }
    }

    /// Keeps the failures of a run, for the remarks below the table.
    pub(crate) fn note(&mut self, peer: Peer, outcome: Result<&Outcome, &anyhow::Error>) {
        match outcome {
            Err(error) => self.remark(format!("{}: {error:#}", peer.name())),
            Ok(outcome) => {
                for (failure, count) in &outcome.tally.failures {
                    *self.failures.entry((peer, *failure)).or_default() += count;
                }
                if outcome.tally.held_back > 0 {
                    self.remark(format!("{} held back {} streams to their end", peer.name(), outcome.tally.held_back));
                }
                self.foreign = self.foreign.max(outcome.foreign);
            }
        }
    }

    pub(crate) fn remark(&mut self, remark: String) {
        self.remarks.push(format!("{}: {remark}", self.row));
    }

    /// Caveats that the reader must know before trusting the figures.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let failures = self.failures.iter().map(|((peer, failure), count)| {
            format!("{}: {}: {count} requests failed in all rounds: {failure}", self.row, peer.name())
        });
        let mut remarks: Vec<String> = self.remarks.iter().cloned().chain(failures).collect();
        if self.foreign > DISTURBED {
            let share = self.foreign * 100.0;
            remarks.push(format!("{}: other processes took up to {share:.0} % of the machine during a run", self.row));
        }
        remarks
    }

    /// The ratios to the reference, round by round: noise that lasts longer than a round cancels out.
    fn ratios(&self, figures: &[Option<f64>]) -> Vec<f64> {
        let reference = self.figures.iter().find(|(peer, _)| Some(*peer) == self.measure.reference);
        let reference = reference.map_or(&[][..], |(_, figures)| figures);
        figures.iter().zip(reference).filter_map(|(own, reference)| Some((*own)? / (*reference)?)).collect()
    }

    fn verdict(&self, median: Option<f64>, ratio: Option<f64>) -> String {
        let (text, reached) = match self.measure.goal {
            None => return String::new(),
            Some(Goal::Times(most)) => (format!("<= {most:.2} x"), ratio.map(|ratio| ratio <= most)),
            Some(Goal::Most(most)) => (format!("<= {most}"), median.map(|median| median <= most)),
        };
        match reached {
            Some(true) => format!("{text}: reached"),
            Some(false) => format!("{text}: MISSED"),
            None => format!("{text}: unknown"),
        }
    }

    fn json(&self) -> Value {
        let peers = self.figures.iter().map(|(peer, figures)| {
            let ratios = self.ratios(figures);
            (peer.name(), json!({"rounds": figures, "median": median(present(figures)), "ratio": median(ratios)}))
        });
        let peers: BTreeMap<&str, Value> = peers.collect();
        let reference = self.measure.reference.map(Peer::name);
        json!({"row": self.row, "measure": self.measure.what, "reference": reference, "peers": peers,
               "remarks": self.remarks(), "foreign_cpu": self.foreign})
    }
}

/// All tables as one for the terminal.
pub(crate) fn text(tables: &[Table]) -> String {
    let mut text = comfy_table::Table::new();
    text.load_style(comfy_table::presets::NOTHING);
    text.set_header(["row", "measure", "peer", "median", "min..max", "ratio", "min..max", "to", "goal"]);
    for table in tables {
        for (at, (peer, figures)) in table.figures.iter().enumerate() {
            let first = |text: &str| if at == 0 { text.to_owned() } else { String::new() };
            let (figures, ratios) = (present(figures), table.ratios(figures));
            let (middle, ratio) = (median(figures.clone()), median(ratios.clone()));
            let reference = table.measure.reference.filter(|_| ratio.is_some());
            let goal = if peer.is_ours() { table.verdict(middle, ratio) } else { String::new() };
            let name = if *peer == Peer::Direct { "direct (the bench itself)" } else { peer.name() };
            text.add_row([
                first(&table.row),
                first(table.measure.what),
                name.to_owned(),
                middle.map_or_else(|| "failed".to_owned(), number),
                range(&figures),
                ratio.map_or_else(String::new, number),
                range(&ratios),
                reference.map_or_else(String::new, |peer| peer.name().to_owned()),
                goal,
            ]);
        }
    }
    for column in 3..7 {
        if let Some(column) = text.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.trim_fmt()
}

/// Everything, with the figure of every round.
pub(crate) fn json(facts: &[(String, String)], tables: &[Table]) -> Value {
    let facts: BTreeMap<&str, &str> = facts.iter().map(|(name, fact)| (name.as_str(), fact.as_str())).collect();
    json!({"machine": facts, "rows": tables.iter().map(Table::json).collect::<Vec<_>>()})
}

fn present(figures: &[Option<f64>]) -> Vec<f64> {
    figures.iter().flatten().copied().collect()
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 {
        return figures.get(middle).copied();
    }
    Some((figures.get(middle.checked_sub(1)?)? + figures.get(middle)?) / 2.0)
}

fn range(figures: &[f64]) -> String {
    let least = figures.iter().copied().reduce(f64::min);
    let most = figures.iter().copied().reduce(f64::max);
    least.zip(most).map_or_else(String::new, |(least, most)| format!("{}..{}", number(least), number(most)))
}

/// Three significant digits.
fn number(figure: f64) -> String {
    let digits = if figure >= 100.0 || figure == 0.0 {
        0
    } else if figure >= 10.0 {
        1
    } else {
        2
    };
    format!("{figure:.digits$}")
}
