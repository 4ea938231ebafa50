//! Sessions and jobs: turns, time in the model and outside of it, cache by turn, session goodput, sub-agents. Pure.
//!
//! [`crate::measure::session`] defines the figures. A job is a session without a parent, with all its sub-agents. Its
//! figures are those of one session with the requests of all of them. Requests that a report leaves out (warm-up,
//! `--filter`) are in no session.

pub mod parents;
pub(super) mod text;

use std::collections::{BTreeMap, HashMap, HashSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::metric::ReportMetric;
use super::request_point::RequestPoint;
use crate::measure::session::{SessionGoodput, SessionStats, TurnBucket, TurnCache, TurnFigures};
use crate::measure::slo::{Slo, Slos};
use crate::measure::time::Gap;
use crate::stats::growing_list::push;
use crate::stats::samples::Samples;
use crate::stats::session_histograms::{SessionDistributions, SessionHistograms};
use parents::SessionParents;

/// Sessions of a report.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionSummary {
    /// Sessions.
    pub sessions: u64,
    /// Their requests.
    pub requests: u64,
    /// Requests without a session.
    pub without_session: u64,
    /// Sessions whose first turn is not among the requests: their turns and times are lower bounds.
    pub began_before: u64,
    /// Distributions over the sessions.
    #[serde(flatten)]
    pub distributions: SessionDistributions,
    /// Model time of all sessions ÷ (model time + tool time); absent without either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_share: Option<f64>,
    /// Goodput of each SLO that applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub goodput: Vec<SessionGoodput>,
    /// Requests by their position in the session.
    pub by_turn: Vec<TurnWaits>,
    /// Sub-agents, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentSummary>,
}

/// Requests at some positions of their sessions, and how long they waited.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnWaits {
    /// The requests and their cached prompts.
    #[serde(flatten)]
    pub figures: TurnFigures,
    /// Median TTFT of the successes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_p50_ms: Option<f64>,
}

/// Sub-agents, and the jobs that have any.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AgentSummary {
    /// Sessions with a parent.
    pub sub_agents: u64,
    /// Sub-agents whose parent the rows name.
    pub by_row: u64,
    /// Sub-agents whose first prompt repeats a later turn of their parent.
    pub by_prompt: u64,
    /// Sub-agents whose parent has no request here.
    pub without_parent: u64,
    /// Jobs with sub-agents.
    pub jobs: u64,
    /// Most sub-agents of a job.
    pub most_per_job: u64,
    /// Part of the jobs' model time that is of sub-agents.
    pub model_share: f64,
    /// Distributions over these jobs.
    pub job: SessionDistributions,
    /// True if there were more sessions than a report follows, so that sub-agents are missing.
    pub is_incomplete: bool,
}

impl SessionSummary {
    /// Summarizes the sessions of `points`, which are in the order of their starts. `None` if no session has more than
    /// one request.
    pub(super) fn of(points: &[RequestPoint], parents: &SessionParents, slos: &Slos) -> Option<Self> {
        let order = grouped(points, RequestPoint::session);
        let sessions = || order.chunk_by(|a, b| a.0 == b.0);
        let has_turns = |session: &[(u64, u32)]| session.len() > 1 || point(points, session[0]).turn() > 0;
        if !sessions().any(|session| has_turns(session) || parents.of(session[0].0).is_some()) {
            return None;
        }
        let mut histograms = SessionHistograms::default();
        let (mut began_before, mut model, mut tool) = (0, 0.0, 0.0);
        let mut all = Vec::new();
        for session in sessions() {
            let stats = stats(points, session);
            take(&mut histograms, &stats);
            model += stats.model.as_secs();
            tool += stats.tool.as_secs();
            let first = session.iter().map(|request| point(points, *request).turn()).min();
            began_before += u64::from(first > Some(0));
            push(&mut all, stats);
        }
        let goodput = |(slo, rule): (usize, &Slo)| SessionGoodput::of(rule.name(), slo, all.iter());
        Some(Self {
            sessions: all.len() as u64,
            requests: order.len() as u64,
            without_session: (points.len() - order.len()) as u64,
            began_before,
            distributions: histograms.summary()?,
            model_share: (model + tool > 0.0).then(|| model / (model + tool)),
            goodput: slos.iter().enumerate().filter_map(goodput).collect(),
            by_turn: by_turn(points),
            agents: match parents.is_empty() {
                true => None,
                false => AgentSummary::of(points, sessions().map(|session| session[0].0).collect(), parents),
            },
        })
    }

    /// Cached share of the prompts of first turns, and of later ones.
    pub(super) fn cached_shares(&self) -> [Option<f64>; 2] {
        let share = |is_first: bool| {
            let mut all = TurnCache::default();
            let first = TurnBucket::of(0).to_string();
            for TurnWaits { figures, .. } in self.by_turn.iter().filter(|row| (row.figures.turn == first) == is_first) {
                let (input, cached) = (figures.input_tokens, figures.cached_tokens);
                all.merge(TurnCache { requests: figures.requests, input, cached });
            }
            all.share()
        };
        [share(true), share(false)]
    }
}

impl AgentSummary {
    fn of(points: &[RequestPoint], sessions: HashSet<u64>, parents: &SessionParents) -> Option<Self> {
        let of_agent = |session: u64| parents.of(session).is_some();
        let agents: Vec<u64> = sessions.iter().copied().filter(|session| of_agent(*session)).collect();
        let named = agents.iter().filter_map(|session| parents.of(*session));
        let by_row = named.clone().filter(|(_, by_row)| *by_row).count() as u64;
        let without_parent = named.filter(|(parent, _)| !sessions.contains(parent)).count() as u64;
        let mut jobs: HashMap<u64, u64> = HashMap::new();
        agents.iter().for_each(|session| *jobs.entry(parents.root(*session)).or_default() += 1);
        let job_of = |point: &RequestPoint| point.session().map(|session| parents.root(session));
        let order = grouped(points, |point| job_of(point).filter(|root| jobs.contains_key(root)));
        let mut histograms = SessionHistograms::default();
        let (mut all, mut own) = (0.0, 0.0);
        for job in order.chunk_by(|a, b| a.0 == b.0) {
            let stats = stats(points, job);
            take(&mut histograms, &stats);
            all += stats.model.as_secs();
            let of_agents = job.iter().map(|request| point(points, *request));
            let of_agents = of_agents.filter(|point| point.session().is_some_and(of_agent));
            own += of_agents.map(|point| time_of(point).as_secs()).sum::<f64>();
        }
        Some(Self {
            sub_agents: agents.len() as u64,
            by_row,
            by_prompt: agents.len() as u64 - by_row,
            without_parent,
            jobs: jobs.len() as u64,
            most_per_job: jobs.values().copied().max()?,
            model_share: if all > 0.0 { own / all } else { 0.0 },
            job: histograms.summary()?,
            is_incomplete: parents.is_full,
        })
    }
}

/// Requests by a key, and within it in the order of `points`: pairs of key and place. Others are left out.
fn grouped(points: &[RequestPoint], key: impl Fn(&RequestPoint) -> Option<u64>) -> Vec<(u64, u32)> {
    let place = |(at, point)| Some((key(point)?, u32::try_from(at).ok()?));
    let mut order: Vec<(u64, u32)> = points.iter().enumerate().filter_map(place).collect();
    order.sort_unstable();
    order
}

fn point(points: &[RequestPoint], (_, at): (u64, u32)) -> &RequestPoint {
    &points[at as usize]
}

fn stats(points: &[RequestPoint], requests: &[(u64, u32)]) -> SessionStats {
    let mut stats = SessionStats::default();
    requests.iter().for_each(|request| stats.add(point(points, *request).of_session()));
    stats
}

fn time_of(point: &RequestPoint) -> Gap {
    let request = point.of_session();
    request.ended.since(request.started)
}

fn take(histograms: &mut SessionHistograms, stats: &SessionStats) {
    histograms.take(stats.turns, [stats.model, stats.tool, stats.time_to_last_turn()].map(Gap::as_nanos));
}

fn by_turn(points: &[RequestPoint]) -> Vec<TurnWaits> {
    let mut turns: BTreeMap<TurnBucket, (TurnCache, Samples)> = BTreeMap::new();
    for point in points.iter().filter(|point| point.session().is_some()) {
        let (cache, ttft) = turns.entry(TurnBucket::of(point.turn())).or_default();
        cache.add(point.isl().zip(point.cached()).filter(|_| point.success));
        point.value(ReportMetric::TtftFromPlanned).into_iter().for_each(|value| ttft.push(value));
    }
    let row = |(turn, (cache, mut ttft)): (TurnBucket, (TurnCache, Samples))| TurnWaits {
        figures: TurnFigures::new(turn, cache),
        ttft_p50_ms: ttft.sorted().map(|sorted| sorted.percentile(50.0) / 1e6),
    };
    turns.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::record::Outcome;
    use crate::report::accumulate::{Accumulator, AccumulatorSettings};
    use crate::report::request_view::RequestView;
    use crate::trace_file::row::{PromptShape, Timing, TraceEntry};

    const MS: u64 = 1_000_000;

    /// A success from `at` to `ended` in ms, with its TTFT, prompt tokens and cached ones.
    fn row(session: &str, turn: u32, [at, ended]: [u64; 2], [ttft, input, cached]: [u64; 3]) -> TraceEntry {
        TraceEntry {
            at: at * MS,
            stream: Some(true),
            session: Some(session.to_owned()),
            turn: Some(turn),
            outcome: Some(Outcome::Success),
            prompt: PromptShape { tokens: Some(input), cached: Some(cached), ..PromptShape::default() },
            timing: Timing { first_token: Some(ttft * MS), ended: Some((ended - at) * MS), ..Timing::default() },
            ..TraceEntry::default()
        }
    }

    fn summary(rows: Vec<TraceEntry>) -> Option<SessionSummary> {
        let slos = Slos::new(vec!["fast: ttft<=100ms".parse().unwrap()]).unwrap();
        let mut fold = Accumulator::new(AccumulatorSettings { slos, ..AccumulatorSettings::default() });
        for row in rows {
            fold.add(&RequestView::with_events(row, Vec::new(), 0, None)).unwrap();
        }
        fold.points.sort_unstable();
        SessionSummary::of(&fold.points, &fold.parents, &fold.settings.slos)
    }

    fn job() -> Vec<TraceEntry> {
        let child =
            |turn, times, figures| TraceEntry { parent: Some("a".to_owned()), ..row("child", turn, times, figures) };
        vec![
            row("a", 0, [0, 1_000], [50, 1_000, 0]),
            child(0, [1_200, 1_800], [60, 500, 400]),
            child(1, [2_000, 2_600], [300, 700, 500]),
            row("a", 1, [3_000, 3_500], [80, 2_000, 1_500]),
            row("b", 2, [100, 600], [90, 100, 50]),
            TraceEntry { session: None, turn: None, ..row("", 0, [5, 6], [1, 10, 0]) },
        ]
    }

    #[test]
    fn a_summary_has_the_figures_that_are_computed_by_hand() {
        let sessions = summary(job()).unwrap();
        assert_eq!(
            (sessions.sessions, sessions.requests, sessions.without_session, sessions.began_before),
            (3, 5, 1, 1)
        );
        // Model time: a 1.5 s, child 1.2 s, b 0.5 s; tool time: a 2 s, child 0.2 s, b none.
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < expected * 1e-3, "{value}");
        near(sessions.model_share.unwrap(), 3.2 / 5.4);
        near(sessions.distributions.model.mean_ms, 3_200.0 / 3.0);
        near(sessions.distributions.model.max_ms, 1_500.0);
        near(sessions.distributions.tool.max_ms, 2_000.0);
        near(sessions.distributions.time_to_last_turn.max_ms, 3_500.0);
        near(sessions.distributions.time_to_last_turn.p50_ms, 1_400.0);
        assert_eq!((sessions.distributions.turns.max, sessions.distributions.turns.p50), (2, 2.0));
        // The child's second turn took 300 ms.
        let goodput = SessionGoodput { slo: "fast".to_owned(), met: 2, counted: 3, share: 2.0 / 3.0 };
        assert_eq!(sessions.goodput, [goodput]);
        let turn = |turn: &str, requests, [input_tokens, cached_tokens]: [u64; 2], ttft: f64| TurnWaits {
            figures: TurnFigures {
                turn: turn.to_owned(),
                requests,
                input_tokens,
                cached_tokens,
                cached_share: Some(cached_tokens as f64 / input_tokens as f64),
            },
            ttft_p50_ms: Some(ttft),
        };
        let expected =
            [turn("0", 2, [1_500, 400], 55.0), turn("1", 2, [2_700, 2_000], 190.0), turn("2", 1, [100, 50], 90.0)];
        assert_eq!(sessions.by_turn, expected);
        assert_eq!(sessions.cached_shares(), [Some(400.0 / 1_500.0), Some(2_050.0 / 2_800.0)]);
    }

    #[test]
    fn a_job_is_a_session_with_its_sub_agents() {
        let agents = summary(job()).unwrap().agents.unwrap();
        assert_eq!((agents.sub_agents, agents.by_row, agents.by_prompt, agents.without_parent), (1, 1, 0, 0));
        assert_eq!((agents.jobs, agents.most_per_job, agents.job.turns.max), (1, 1, 4));
        // Without a request: from 1.0 to 1.2 s, from 1.8 to 2.0 s, and from 2.6 to 3.0 s.
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < expected * 1e-3, "{value}");
        near(agents.job.tool.max_ms, 800.0);
        near(agents.job.model.max_ms, 2_700.0);
        near(agents.job.time_to_last_turn.max_ms, 3_500.0);
        near(agents.model_share, 1.2 / 2.7);
    }

    #[test]
    fn the_order_of_the_rows_decides_nothing() {
        let mut back = job();
        back.reverse();
        let json = |rows| serde_json::to_value(summary(rows).unwrap()).unwrap();
        assert_eq!(json(job()), json(back));
    }

    #[test]
    fn requests_that_are_all_by_themselves_make_no_sessions() {
        assert!(summary(vec![row("a", 0, [0, 1], [1, 1, 0]), row("b", 0, [0, 1], [1, 1, 0])]).is_none());
        assert!(summary(Vec::new()).is_none());
    }
}
