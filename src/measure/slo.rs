//! Service level objectives: what a good request is, and the verdict on each.
//!
//! ```text
//! interactive[model=llama-*]: ttft<=500ms itl.p99<=50ms e2e<=30s
//! ```
//!
//! A name, optionally which models and routes it is for, and its objectives, all of which must hold. *Goodput* counts
//! the requests (and their tokens) that meet every objective. Failed and cancelled requests miss; `exclude=cancelled`
//! or `exclude=failed` takes them out of the count instead. A reply that cannot have a value (TTFT of one that was not
//! streamed) is excluded too; a stream of one token has no inter-token latency and meets any limit on it.

use std::fmt;
use std::str::FromStr;

use super::record::{Outcome, RequestRecord};
use super::time::Gap;

/// The objectives in force.
#[derive(Debug, Default, PartialEq, Eq)]
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
        self.list.iter().filter(|slo| slo.is_for(record)).map(|slo| (slo, slo.verdict(record, &self.gap_limits)))
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

    fn is_for(&self, record: &RequestRecord) -> bool {
        let fits = |pattern: &Option<String>, text: &str| pattern.as_deref().is_none_or(|p| glob(p, text));
        let shape = &record.shape;
        shape.dialect.is_some()
            && fits(&self.route, shape.route())
            && fits(&self.model, shape.model.as_deref().unwrap_or(""))
    }

    fn verdict(&self, record: &RequestRecord, gap_limits: &[Gap]) -> Verdict {
        match record.outcome {
            Outcome::Success => {}
            Outcome::Cancelled if self.exclude_cancelled => return Verdict::Excluded,
            Outcome::Failed | Outcome::Truncated | Outcome::Refused if self.exclude_failed => return Verdict::Excluded,
            _ => return Verdict::Missed(vec!["error"]),
        }
        let mut missed = Vec::new();
        for objective in &self.objectives {
            match objective.holds(record, gap_limits) {
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
    fn holds(&self, record: &RequestRecord, gap_limits: &[Gap]) -> Option<bool> {
        let within = |value: Option<Gap>| value.is_none_or(|value| value <= self.limit);
        match self.metric {
            Metric::E2e => Some(within(Some(record.duration()))),
            _ if !record.streamed => None,
            Metric::Ttft => Some(within(record.ttft())),
            Metric::Ttfo => Some(within(record.ttfo())),
            Metric::Tpot => Some(within(record.tpot())),
            Metric::Itl(permille) => {
                let at = gap_limits.binary_search(&self.limit).ok()?;
                let over = record.gaps_over.get(at).copied().unwrap_or(0);
                // Nearest rank: the percentile is within the limit if no more gaps exceed it than lie above its rank.
                let rank = (record.gap_count * u64::from(permille)).div_ceil(1000);
                Some(over <= record.gap_count - rank)
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

/// Characters shown on either side of a mistake.
const SHOWN: usize = 60;

/// Why a text is not an SLO. Shown with a mark under the column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SloError {
    text: String,
    /// Counted in characters from 0.
    column: usize,
    expected: String,
}

impl fmt::Display for SloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self { text, column, expected }, mark) = (self, "^");
        writeln!(f, "{expected}, at column {}", column + 1)?;
        let before = column.saturating_sub(SHOWN);
        let shown = text.chars().skip(before).take(SHOWN * 2);
        let shown: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
        writeln!(f, "  {shown}")?;
        write!(f, "  {mark:>width$}", width = column - before + 1)
    }
}

impl std::error::Error for SloError {}

impl FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        Parser { text, at: 0 }.slo()
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn slo(&mut self) -> Result<Slo, SloError> {
        self.word(char::is_whitespace);
        let name = self.word(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if name.is_empty() || name.len() > 40 {
            return self.fail("expected a name of letters, digits, `-` and `_` (40 at most), then `:`");
        }
        let mut slo = Slo {
            text: self.text.trim().to_owned(),
            name: name.to_owned(),
            model: None,
            route: None,
            objectives: Vec::new(),
            exclude_cancelled: false,
            exclude_failed: false,
        };
        if self.take("[") {
            loop {
                let slot = match self.word(|c| c.is_ascii_lowercase()) {
                    "model" => &mut slo.model,
                    "route" => &mut slo.route,
                    _ => return self.fail("expected `model=` or `route=`"),
                };
                if !self.take("=") {
                    return self.fail("expected `=`");
                }
                *slot = Some(self.word(|c| c != ',' && c != ']' && !c.is_whitespace()).to_owned());
                if self.take("]") {
                    break;
                }
                if !self.take(",") {
                    return self.fail("expected `,` or `]`");
                }
            }
        }
        if !self.take(":") {
            return self.fail("expected `:` after the name");
        }
        loop {
            self.word(char::is_whitespace);
            if self.at == self.text.len() {
                break;
            }
            self.term(&mut slo)?;
        }
        if slo.objectives.is_empty() {
            return self.fail("expected an objective, as in `ttft<=500ms`");
        }
        Ok(slo)
    }

    fn term(&mut self, slo: &mut Slo) -> Result<(), SloError> {
        let begin = self.at;
        let word = self.word(|c| c.is_ascii_alphanumeric() || c == '.');
        if word == "exclude" && self.take("=") {
            match self.word(|c| c.is_ascii_lowercase()) {
                "cancelled" => slo.exclude_cancelled = true,
                "failed" => slo.exclude_failed = true,
                _ => return self.fail("expected `cancelled` or `failed`"),
            }
            return Ok(());
        }
        let Some(metric) = metric(word) else {
            self.at = begin;
            return self.fail("expected ttft, ttfo, itl.p50 … itl.p99.9, itl.max, itl (the mean), tpot or e2e");
        };
        if !self.take("<=") {
            return self.fail(format!("expected `<=` after `{word}`"));
        }
        let begin = self.at;
        match self.word(|c| !c.is_whitespace()).parse() {
            Ok(limit) => slo.objectives.push(Objective { metric, limit }),
            Err(error) => {
                self.at = begin;
                return self.fail(error.to_string());
            }
        }
        Ok(())
    }

    fn word(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn fail<T>(&self, expected: impl Into<String>) -> Result<T, SloError> {
        let column = self.text[..self.at].chars().count();
        Err(SloError { text: self.text.to_owned(), column, expected: expected.into() })
    }
}

fn metric(word: &str) -> Option<Metric> {
    Some(match word {
        "ttft" => Metric::Ttft,
        "ttfo" => Metric::Ttfo,
        "tpot" | "itl" | "itl.mean" => Metric::Tpot,
        "e2e" => Metric::E2e,
        "itl.max" => Metric::Itl(1000),
        _ => {
            let percent: f64 = word.strip_prefix("itl.p")?.parse().ok()?;
            let permille = (percent * 10.0).round();
            (permille > 0.0 && permille <= 1000.0).then_some(Metric::Itl(permille as u16))?
        }
    })
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
    fn errors_point_at_the_column() {
        let error = |text: &str| text.parse::<Slo>().unwrap_err();
        assert_eq!(
            error("interactive: ttft=500ms").to_string(),
            "expected `<=` after `ttft`, at column 18\n  interactive: ttft=500ms\n                   ^"
        );
        assert_eq!(error("x: ttft<=500").column, 9);
        assert_eq!(error("x: speed<=5s").column, 3);
        assert_eq!(error("x: itl.p0<=5s").column, 3);
        assert_eq!(error("é: ttft<=5s").column, 0);
        assert_eq!(error("x[port=1]: ttft<=5s").column, 6);
        assert_eq!(error("x:").column, 2);
        let long = format!("x: ttft<=5s{}y", "\t".repeat(100_000));
        let blank = " ".repeat(60);
        assert_eq!(
            error(&long).to_string().split_once('\n').unwrap().1,
            format!("  {blank}y\n  {blank}^"),
            "a long line is shown around the mistake"
        );
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
