//! Service level objectives: what a good request is, and the verdict on each.
//!
//! ```text
//! interactive[model=llama-*]: ttft<=500ms itl.p99<=50ms e2e<=30s
//! ```
//!
//! A name, optionally which models and routes it is for, and its objectives, all of which must hold. *Goodput* counts
//! the requests (and their tokens) that meet every objective. Failed and cancelled requests miss; `exclude=cancelled`
//! or `exclude=failed` takes them out of the count instead. A reply that cannot have a value (TTFT of one that was not
//! streamed, or had no token) is excluded too; a stream of one token has no inter-token latency and meets any limit on it.

pub mod criteria;
mod parse;

use std::fmt;

use super::record::{Outcome, RequestRecord};
use super::time::Gap;
pub use parse::SloError;

/// The objectives in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slos {
    list: Vec<Slo>,
    gap_limits: Vec<Gap>,
}

impl Slos {
    /// These objectives together.
    ///
    /// # Errors
    /// When two carry the same name: their counts could not be told apart.
    pub fn new(list: Vec<Slo>) -> Result<Self, String> {
        for (at, slo) in list.iter().enumerate() {
            if list[..at].iter().any(|other| other.name == slo.name) {
                return Err(format!("two SLOs are named `{}`; give each a name of its own", slo.name));
            }
        }
        let mut gap_limits: Vec<Gap> = list.iter().flat_map(|slo| slo.limits(Metric::is_itl)).collect();
        gap_limits.sort_unstable();
        gap_limits.dedup();
        Ok(Self { list, gap_limits })
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Slo> {
        self.list.iter()
    }

    /// The limits on single inter-token latencies, ascending: a stream counts how many of its gaps exceed each, so
    /// that a percentile over millions of gaps needs no more memory than that.
    pub fn gap_limits(&self) -> &[Gap] {
        &self.gap_limits
    }

    /// The name of every SLO that is for this record, with its verdict.
    pub fn verdicts<'a>(&'a self, record: &'a RequestRecord) -> impl Iterator<Item = (&'a Slo, Verdict)> {
        self.judge(SloVerdicts::of(record))
    }

    /// The same of what is known of a request.
    pub fn judge<'a>(&'a self, judged: SloVerdicts<'a>) -> impl Iterator<Item = (&'a Slo, Verdict)> {
        let for_it = self.list.iter().filter(move |slo| slo.is_for(&judged));
        for_it.map(move |slo| (slo, slo.verdict(&judged, &self.gap_limits)))
    }
}

/// What objectives look at in one request.
#[derive(Clone, Copy, Debug)]
pub struct SloVerdicts<'a> {
    /// The dialect's route; `None` for plain HTTP, which no SLO is for.
    pub route: Option<&'a str>,
    /// The model asked for.
    pub model: &'a str,
    /// What became of it.
    pub outcome: Outcome,
    /// Whether tokens came as a stream of events.
    pub streamed: bool,
    /// Time to first token.
    pub ttft: Option<Gap>,
    /// Time to first output that is not reasoning.
    pub ttfo: Option<Gap>,
    /// Time per output token.
    pub tpot: Option<Gap>,
    /// From the beginning to the end.
    pub e2e: Gap,
    /// All gaps between token events.
    pub gap_count: u64,
    /// How many inter-token latencies exceed each of [`Slos::gap_limits`].
    pub gaps_over: &'a [u64],
}

impl<'a> SloVerdicts<'a> {
    fn of(record: &'a RequestRecord) -> Self {
        Self {
            route: record.shape.dialect.map(|_| record.shape.route()),
            model: record.shape.model.as_deref().unwrap_or(""),
            outcome: record.outcome,
            streamed: record.streamed && record.times.first_token.is_some(),
            ttft: record.ttft(),
            ttfo: record.ttfo(),
            tpot: record.tpot(),
            e2e: record.duration(),
            gap_count: record.gap_count,
            gaps_over: &record.gaps_over,
        }
    }
}

/// One named set of objectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slo {
    /// As it was written.
    text: String,
    name: String,
    model: Option<String>,
    route: Option<String>,
    objectives: Vec<Objective>,
    exclude_cancelled: bool,
    exclude_failed: bool,
}

/// `metric <= limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Objective {
    metric: Metric,
    limit: Gap,
}

/// What an objective looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time to first output that is not reasoning.
    Ttfo,
    /// A percentile of the request's own inter-token latencies, in tenths of a percent; 1000 is the longest.
    Itl(u16),
    /// Time per output token, which is also the mean inter-token latency.
    Tpot,
    /// From the first byte of the request to the last of the response.
    E2e,
}

impl Metric {
    fn is_itl(self) -> bool {
        matches!(self, Self::Itl(_))
    }

    /// The name under which violations of it are exported.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Ttfo => "ttfo",
            Self::Itl(_) => "itl",
            Self::Tpot => "tpot",
            Self::E2e => "e2e",
        }
    }
}

/// The verdict on one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every objective holds.
    Met,
    /// These do not; `error` stands for a request that gave no whole answer.
    Missed(Vec<&'static str>),
    /// Not in the count.
    Excluded,
}

impl Slo {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits of the objectives whose metric is `of`.
    pub fn limits(&self, of: impl Fn(Metric) -> bool) -> impl Iterator<Item = Gap> {
        self.objectives.iter().filter(move |o| of(o.metric)).map(|o| o.limit)
    }

    fn is_for(&self, judged: &SloVerdicts<'_>) -> bool {
        let fits = |pattern: &Option<String>, text: &str| pattern.as_deref().is_none_or(|p| glob(p, text));
        judged.route.is_some_and(|route| fits(&self.route, route)) && fits(&self.model, judged.model)
    }

    fn verdict(&self, judged: &SloVerdicts<'_>, gap_limits: &[Gap]) -> Verdict {
        match judged.outcome {
            Outcome::Success => {}
            Outcome::Cancelled if self.exclude_cancelled => return Verdict::Excluded,
            Outcome::Failed | Outcome::Truncated | Outcome::Refused if self.exclude_failed => return Verdict::Excluded,
            _ => return Verdict::Missed(vec!["error"]),
        }
        let mut missed = Vec::new();
        for objective in &self.objectives {
            match objective.holds(judged, gap_limits) {
                Some(true) => {}
                Some(false) if missed.contains(&objective.metric.name()) => {}
                Some(false) => missed.push(objective.metric.name()),
                None => return Verdict::Excluded,
            }
        }
        if missed.is_empty() { Verdict::Met } else { Verdict::Missed(missed) }
    }
}

impl fmt::Display for Slo {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Objective {
    /// `None` where the reply cannot have such a value.
    fn holds(&self, judged: &SloVerdicts<'_>, gap_limits: &[Gap]) -> Option<bool> {
        let within = |value: Option<Gap>| value.is_none_or(|value| value <= self.limit);
        match self.metric {
            Metric::E2e => Some(within(Some(judged.e2e))),
            _ if !judged.streamed => None,
            Metric::Ttft => Some(within(judged.ttft)),
            Metric::Ttfo => Some(within(judged.ttfo)),
            Metric::Tpot => Some(within(judged.tpot)),
            Metric::Itl(permille) => {
                let at = gap_limits.binary_search(&self.limit).ok()?;
                let over = judged.gaps_over.get(at).copied().unwrap_or(0);
                // Nearest rank: the percentile is within the limit if no more gaps exceed it than lie above its rank.
                let rank = (judged.gap_count * u64::from(permille)).div_ceil(1000);
                Some(over <= judged.gap_count - rank)
            }
        }
    }
}

/// Whether `text` fits a pattern in which `*` stands for any run of characters.
pub fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_slo_reads_as_it_is_written() {
        let slo: Slo =
            "fast[model=llama-*,route=/v1/*]: ttft<=500ms itl.p99.9<=50ms itl<=20ms exclude=cancelled".parse().unwrap();
        assert_eq!((slo.name(), slo.model.as_deref(), slo.route.as_deref()), ("fast", Some("llama-*"), Some("/v1/*")));
        let objectives: Vec<_> = slo.objectives.iter().map(|o| (o.metric, o.limit.to_string())).collect();
        let expected = [(Metric::Ttft, "500ms"), (Metric::Itl(999), "50.0ms"), (Metric::Tpot, "20.0ms")];
        assert_eq!(objectives, expected.map(|(metric, limit)| (metric, limit.to_owned())));
        assert!(slo.exclude_cancelled && !slo.exclude_failed);
        assert_eq!(slo.to_string().parse(), Ok(slo));
    }

    #[test]
    fn two_slos_of_one_name_are_refused_and_gap_limits_are_merged() {
        let parse = |text: &str| text.parse::<Slo>().unwrap();
        assert!(Slos::new(vec![parse("a: e2e<=1s"), parse("a: e2e<=2s")]).is_err());
        let slos = Slos::new(vec![parse("a: itl.p99<=50ms itl.max<=1s"), parse("b: itl.p50<=50ms tpot<=9ms")]);
        assert_eq!(slos.unwrap().gap_limits(), [Gap::from_millis(50), Gap::from_millis(1_000)]);
    }

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, text, fits) in [
            ("llama", "llama", true),
            ("llama", "llama-2", false),
            ("llama*", "llama-2", true),
            ("*/chat/*", "/v1/chat/completions", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*", "", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }
}
