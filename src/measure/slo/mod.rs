//! Service level objectives: the definition of a good request, and its verdicts.
//!
//! ```text
//! interactive[model=llama-*,tier=gold]: ttft<=500ms itl.p99<=50ms e2e<=30s target=99.5%
//! ```
//!
//! A name, an optional filter on models, routes and classes, and objectives that must all hold. *Goodput* counts the requests
//! (and their tokens) that meet every objective. Failed and cancelled requests miss; `exclude=cancelled` or
//! `exclude=failed` removes them from the count instead. A reply that cannot have a value is excluded too, such as
//! the TTFT of a reply without streaming or tokens. A stream of one token has no inter-token latency and meets any
//! limit on it. A limit `header` is the [request's own](RequestSlo); such an SLO applies to requests that set one. The
//! [target](SloTarget) is the share of requests that should meet the SLO; alerts derive the error
//! budget from it.

pub mod criteria;
mod parse;
mod record_input;
mod request_slo;
mod target;
pub mod term;

use std::fmt;

use super::glob::glob;
use super::outcome::Outcome;
use super::request_class::ClassValues;
use super::time::Gap;
pub use parse::SloError;
pub use request_slo::RequestSlo;
pub use target::SloTarget;

/// Limit of an objective that takes it from the header of each request.
const HEADER: &str = "header";

/// The configured SLOs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slos {
    list: Vec<Slo>,
    gap_limits: Vec<Gap>,
}

impl Slos {
    /// Combines SLOs.
    ///
    /// # Errors
    /// If two have equal names, because their counts would be mixed.
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

    /// Iterates over the SLOs.
    pub fn iter(&self) -> impl Iterator<Item = &Slo> {
        self.list.iter()
    }

    /// Limits on single inter-token latencies, ascending. A stream counts its gaps above each limit, so a percentile
    /// over millions of gaps needs no further memory.
    pub fn gap_limits(&self) -> &[Gap] {
        &self.gap_limits
    }

    /// True if an SLO takes limits from the header of a request.
    pub fn read_headers(&self) -> bool {
        self.list.iter().any(Slo::reads_headers)
    }

    /// Every SLO that applies to these measurements, with its verdict.
    pub fn judge<'a>(&'a self, judged: SloInput<'a>) -> impl Iterator<Item = (&'a Slo, RequestVerdict)> {
        let for_it = self.list.iter().filter(move |slo| slo.is_for(&judged));
        for_it.map(move |slo| (slo, slo.verdict(&judged, &self.gap_limits)))
    }
}

/// Measurements of one request that objectives evaluate.
#[derive(Clone, Copy, Debug)]
pub struct SloInput<'a> {
    /// Route of the dialect; `None` for plain HTTP, to which no SLO applies.
    pub route: Option<&'a str>,
    /// Requested model.
    pub model: &'a str,
    /// Class values of the request.
    pub classes: &'a ClassValues,
    /// Limits that the request set for itself.
    pub request_slo: RequestSlo,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// True if the response was a stream of events.
    pub streamed: bool,
    /// Time to first token.
    pub ttft: Option<Gap>,
    /// Time to first output that is not reasoning.
    pub ttfo: Option<Gap>,
    /// Time per output token.
    pub tpot: Option<Gap>,
    /// From the first byte of the request to the end of the response.
    pub e2e: Gap,
    /// Number of gaps between token events.
    pub gap_count: u64,
    /// Number of inter-token latencies above each of [`Slos::gap_limits`].
    pub gaps_over: &'a [u64],
}

/// One named set of objectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slo {
    /// The original text.
    text: String,
    name: String,
    model: Option<String>,
    route: Option<String>,
    /// Names of classes, and the patterns that their values match.
    classes: Vec<(String, String)>,
    objectives: Vec<Objective>,
    exclude_cancelled: bool,
    exclude_failed: bool,
    target: SloTarget,
}

/// `metric <= limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Objective {
    metric: Metric,
    limit: Limit,
}

/// Limit of an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Fixed(Gap),
    /// The request's own, from its header.
    Header,
}

/// Measurement that an objective limits.
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

    /// Exported name.
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
pub enum RequestVerdict {
    /// Every objective was met.
    Met,
    /// Names of the missed objectives; `error` marks a request without a complete answer.
    Missed(Vec<&'static str>),
    /// Not counted.
    Excluded,
}

impl Slo {
    /// Name of the SLO.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names of the classes that the SLO selects by.
    pub fn class_names(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|(name, _)| &**name)
    }

    /// Share of requests that should meet the SLO.
    pub fn target(&self) -> SloTarget {
        self.target
    }

    /// Fixed limits of the objectives whose metric satisfies `of`.
    pub fn limits(&self, of: impl Fn(Metric) -> bool) -> impl Iterator<Item = Gap> {
        self.fixed_limits().filter(move |(metric, _)| of(*metric)).map(|(_, limit)| limit)
    }

    /// Objectives with a fixed limit, in their order.
    pub fn fixed_limits(&self) -> impl Iterator<Item = (Metric, Gap)> {
        self.objectives.iter().filter_map(|objective| Some((objective.metric, objective.fixed_limit()?)))
    }

    /// True if the SLO judges requests for this model, if their route and classes fit.
    pub fn is_for_model(&self, model: &str) -> bool {
        self.model.as_deref().is_none_or(|pattern| glob(pattern, model))
    }

    /// Each objective as an SLO of its own, with the same filter. A name has a space, which no configured SLO has.
    pub fn objectives(&self) -> impl Iterator<Item = Self> {
        self.objectives.iter().map(|objective| {
            let name = format!("{} {objective}", self.name);
            Self { text: objective.to_string(), name, objectives: vec![*objective], ..self.clone() }
        })
    }

    /// This SLO under another name, with each fixed limit times a factor of its metric.
    pub fn with_scaled_limits(&self, name: String, factor: impl Fn(Metric) -> f64) -> Self {
        let scaled = |of: &Objective| {
            let scale = |limit: Gap| Gap::from_nanos((limit.as_nanos() as f64 * factor(of.metric)).round() as u64);
            Objective { limit: of.fixed_limit().map_or(of.limit, |limit| Limit::Fixed(scale(limit))), ..*of }
        };
        Self { name, objectives: self.objectives.iter().map(scaled).collect(), ..self.clone() }
    }

    fn is_for(&self, judged: &SloInput<'_>) -> bool {
        let fits = |pattern: &Option<String>, text: &str| pattern.as_deref().is_none_or(|p| glob(p, text));
        let fits_class =
            |(name, pattern): &(String, String)| judged.classes.get(name).is_some_and(|v| glob(pattern, v));
        judged.route.is_some_and(|route| fits(&self.route, route))
            && self.is_for_model(judged.model)
            && self.classes.iter().all(fits_class)
            && (!self.reads_headers() || self.objectives.iter().any(|o| o.is_set_by(&judged.request_slo)))
    }

    fn reads_headers(&self) -> bool {
        self.objectives.iter().any(|objective| objective.limit == Limit::Header)
    }

    fn verdict(&self, judged: &SloInput<'_>, gap_limits: &[Gap]) -> RequestVerdict {
        match judged.outcome {
            Outcome::Success => {}
            Outcome::Cancelled if self.exclude_cancelled => return RequestVerdict::Excluded,
            Outcome::Failed | Outcome::Truncated | Outcome::Refused if self.exclude_failed => {
                return RequestVerdict::Excluded;
            }
            _ => return RequestVerdict::Missed(vec!["error"]),
        }
        let mut missed = Vec::new();
        for objective in &self.objectives {
            match objective.holds(judged, gap_limits) {
                Some(true) => {}
                Some(false) if missed.contains(&objective.metric.name()) => {}
                Some(false) => missed.push(objective.metric.name()),
                None => return RequestVerdict::Excluded,
            }
        }
        if missed.is_empty() { RequestVerdict::Met } else { RequestVerdict::Missed(missed) }
    }
}

impl fmt::Display for Slo {
    /// Writes the original text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Objective {
    /// As an SLO has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.metric.name())?;
        match self.metric {
            Metric::Itl(1_000) => f.write_str(".max")?,
            Metric::Itl(permille) => write!(f, ".p{}", f64::from(permille) / 10.0)?,
            _ => {}
        }
        match self.limit {
            Limit::Fixed(limit) => write!(f, "<={limit}"),
            Limit::Header => write!(f, "<={HEADER}"),
        }
    }
}

impl Objective {
    fn fixed_limit(&self) -> Option<Gap> {
        match self.limit {
            Limit::Fixed(limit) => Some(limit),
            Limit::Header => None,
        }
    }

    /// True if the request itself sets this objective's limit.
    fn is_set_by(&self, request: &RequestSlo) -> bool {
        self.limit == Limit::Header && request.limit(self.metric).is_some()
    }

    /// Whether the objective is met; `None` if the reply cannot have the value.
    fn holds(&self, judged: &SloInput<'_>, gap_limits: &[Gap]) -> Option<bool> {
        let Some(limit) = self.fixed_limit().or_else(|| judged.request_slo.limit(self.metric)) else {
            return Some(true);
        };
        let within = |value: Option<Gap>| value.is_none_or(|value| value <= limit);
        match self.metric {
            Metric::E2e => Some(within(Some(judged.e2e))),
            _ if !judged.streamed => None,
            Metric::Ttft => Some(within(judged.ttft)),
            Metric::Ttfo => Some(within(judged.ttfo)),
            Metric::Tpot => Some(within(judged.tpot)),
            Metric::Itl(permille) => {
                let at = gap_limits.binary_search(&limit).ok()?;
                let over = judged.gaps_over.get(at).copied().unwrap_or(0);
                // Nearest rank: the percentile is within the limit if at most the gaps above its rank exceed the
                // limit.
                let rank = (judged.gap_count * u64::from(permille)).div_ceil(1000);
                Some(over <= judged.gap_count - rank)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_slo_reads_as_it_is_written() {
        let slo: Slo =
            "fast[model=llama-*,route=/v1/*,tier=gold]: ttft<=500ms itl.p99.9<=50ms itl<=20ms exclude=cancelled \
             target=99.9%"
                .parse()
                .unwrap();
        assert_eq!((slo.name(), slo.model.as_deref(), slo.route.as_deref()), ("fast", Some("llama-*"), Some("/v1/*")));
        assert_eq!(slo.classes, [("tier".to_owned(), "gold".to_owned())]);
        let objectives: Vec<_> =
            slo.objectives.iter().filter_map(|o| Some((o.metric, o.fixed_limit()?.to_string()))).collect();
        let expected = [(Metric::Ttft, "500ms"), (Metric::Itl(999), "50.0ms"), (Metric::Tpot, "20.0ms")];
        assert_eq!(objectives, expected.map(|(metric, limit)| (metric, limit.to_owned())));
        assert!(slo.exclude_cancelled && !slo.exclude_failed);
        assert_eq!(slo.target().ratio(), 0.999);
        assert_eq!("x: e2e<=1s".parse::<Slo>().unwrap().target(), SloTarget::DEFAULT);
        assert_eq!(slo.to_string().parse(), Ok(slo));
    }

    #[test]
    fn each_objective_is_an_slo_of_its_own_under_the_same_filter() {
        let slo: Slo = "fast[model=m]: ttft<=500ms itl.p99.9<=50ms itl.max<=1s exclude=failed".parse().unwrap();
        let parts: Vec<Slo> = slo.objectives().collect();
        let texts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["ttft<=500ms", "itl.p99.9<=50.0ms", "itl.max<=1.00s"]);
        assert!(parts.iter().all(|part| part.model.as_deref() == Some("m") && part.exclude_failed));
        assert_eq!(parts[0].name(), "fast ttft<=500ms");
        assert!(Slos::new([vec![slo], parts].concat()).is_ok());
    }

    #[test]
    fn a_limit_of_the_header_is_the_requests_own_and_selects_the_requests_that_set_one() {
        let slos = Slos::new(vec!["request: ttft<=header tpot<=header".parse().unwrap()]).unwrap();
        assert_eq!(slos.iter().next().unwrap().to_string(), "request: ttft<=header tpot<=header");
        let parts: Vec<_> = slos.iter().flat_map(Slo::objectives).map(|part| part.to_string()).collect();
        assert_eq!((parts, slos.read_headers()), (vec!["ttft<=header".to_owned(), "tpot<=header".to_owned()], true));
        assert!(!Slos::new(vec!["x: ttft<=9ms".parse().unwrap()]).unwrap().read_headers());
        let millis = |millis: u64| Some(Gap::from_millis(millis));
        let verdict = |ttft: Option<u64>, tpot: Option<u64>, outcome| {
            let judged = SloInput {
                route: Some("/v1/messages"),
                model: "m",
                classes: &ClassValues::default(),
                request_slo: RequestSlo::of_nanos(ttft.map(|ms| ms * 1_000_000), tpot.map(|ms| ms * 1_000_000)),
                outcome,
                streamed: true,
                ttft: millis(300),
                ttfo: None,
                tpot: millis(20),
                e2e: Gap::from_millis(900),
                gap_count: 9,
                gaps_over: &[],
            };
            slos.judge(judged).map(|(_, verdict)| verdict).next()
        };
        assert_eq!(verdict(None, None, Outcome::Success), None);
        assert_eq!(verdict(Some(300), None, Outcome::Success), Some(RequestVerdict::Met));
        assert_eq!(verdict(Some(300), Some(19), Outcome::Success), Some(RequestVerdict::Missed(vec!["tpot"])));
        assert_eq!(verdict(Some(299), Some(20), Outcome::Success), Some(RequestVerdict::Missed(vec!["ttft"])));
        assert_eq!(verdict(Some(300), None, Outcome::Failed), Some(RequestVerdict::Missed(vec!["error"])));
        for text in ["x: e2e<=header", "x: ttft<=headers", "x: itl.p99<=header"] {
            assert!(text.parse::<Slo>().is_err(), "{text}");
        }
    }

    #[test]
    fn two_slos_of_one_name_are_refused_and_gap_limits_are_merged() {
        let parse = |text: &str| text.parse::<Slo>().unwrap();
        assert!(Slos::new(vec![parse("a: e2e<=1s"), parse("a: e2e<=2s")]).is_err());
        let slos = Slos::new(vec![parse("a: itl.p99<=50ms itl.max<=1s"), parse("b: itl.p50<=50ms tpot<=9ms")]);
        assert_eq!(slos.unwrap().gap_limits(), [Gap::from_millis(50), Gap::from_millis(1_000)]);
    }
}
