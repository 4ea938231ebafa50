//! Parses SLOs. Errors report the column.

use std::fmt;
use std::str::FromStr;

use super::{HEADER, Limit, Metric, Objective, Slo, SloTarget};
use crate::measure::dialect;
use crate::measure::glob::glob;
use crate::measure::time::{Gap, ParseDurationError};

/// Characters to show on either side of an error.
const SHOWN: usize = 60;

/// Parse error of an SLO, displayed with a mark under the column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SloError {
    text: String,
    /// In characters from 0.
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

impl SloError {
    /// An error at a byte of the text.
    pub(super) fn at(text: &str, at: usize, expected: impl Into<String>) -> Self {
        let column = text[..at].chars().count();
        Self { text: text.to_owned(), column, expected: expected.into() }
    }
}

impl FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        Parser::new(text).slo()
    }
}

/// A target that the text names.
struct NamedTarget {
    /// In bytes from 0.
    at: usize,
    share: SloTarget,
    is_percentile: bool,
}

pub(super) struct Parser<'a> {
    text: &'a str,
    pub(super) at: usize,
}

impl<'a> Parser<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

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
            classes: Vec::new(),
            objectives: Vec::new(),
            exclude_cancelled: false,
            exclude_failed: false,
            target: SloTarget::DEFAULT,
        };
        if self.take("[") {
            loop {
                let begin = self.at;
                let key = self.word(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
                if key.is_empty() {
                    return self.fail("expected `model=`, `route=`, or the name of a class and `=`");
                }
                if !self.take("=") {
                    return self.fail("expected `=`");
                }
                let value = self.word(|c| c != ',' && c != ']' && !c.is_whitespace());
                if value.is_empty() {
                    return self.fail("expected a name, in which `*` stands for anything");
                }
                match key {
                    "model" => slo.model = Some(value.to_owned()),
                    "route" => slo.route = Some(value.to_owned()),
                    class => slo.classes.push((class.to_owned(), value.to_owned())),
                }
                let of_none = |route: &String| !dialect::TABLE.iter().any(|dialect| glob(route, dialect.route));
                if slo.route.as_ref().is_some_and(of_none) {
                    // Such an SLO would never apply to any request.
                    self.at = begin;
                    return self.fail("expected the route of a dialect, as in `/v1/messages` or `*/chat/*`");
                }
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
        let mut targets = Vec::new();
        while !self.ended() {
            self.term(&mut slo, &mut targets)?;
        }
        if slo.objectives.is_empty() {
            return self.fail("expected an objective, as in `ttft<=500ms`");
        }
        // The shares that meet single objectives do not give the share that meets them all.
        let is_alone = slo.objectives.len() == 1 && targets.len() == 1;
        if let Some(percentile) = targets.iter().find(|target| target.is_percentile && !is_alone) {
            self.at = percentile.at;
            return self.fail("a percentile over requests is the target of an SLO: give each an SLO of its own");
        }
        slo.target = targets.last().map_or(SloTarget::DEFAULT, |target| target.share);
        Ok(slo)
    }

    fn term(&mut self, slo: &mut Slo, targets: &mut Vec<NamedTarget>) -> Result<(), SloError> {
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
        if word == "target" && self.take("=") {
            let at = self.at;
            let Some(share) = SloTarget::parse(self.word(|c| !c.is_whitespace())) else {
                self.at = at;
                return self.fail("expected a percentage above 0% and below 100%, as in `99.5%`");
            };
            targets.push(NamedTarget { at, share, is_percentile: false });
            return Ok(());
        }
        let over_requests = percentile_over_requests(word);
        targets.extend(over_requests.map(|(_, share)| NamedTarget { at: begin, share, is_percentile: true }));
        let Some(metric) = metric(word).or(over_requests.map(|(metric, _)| metric)) else {
            self.at = begin;
            return self.fail(
                "expected ttft, ttfo, itl.p50 … itl.p99.9, itl.max, itl (the mean), tpot, e2e, or one percentile over \
                 requests, as in ttft.p95",
            );
        };
        let end = self.at;
        self.word(char::is_whitespace);
        if !self.take("<=") {
            self.at = end;
            return self.fail(format!("expected `<=` after `{word}`"));
        }
        self.word(char::is_whitespace);
        let limit = match metric {
            Metric::Ttft | Metric::Tpot if self.take_header() => Limit::Header,
            _ => Limit::Fixed(self.limit()?),
        };
        slo.objectives.push(Objective { metric, limit });
        Ok(())
    }

    fn take_header(&mut self) -> bool {
        let begin = self.at;
        let is_header = self.word(|c| !c.is_whitespace()) == HEADER;
        self.at = if is_header { self.at } else { begin };
        is_header
    }

    /// Parses a duration with its unit.
    fn limit(&mut self) -> Result<Gap, SloError> {
        let begin = self.at;
        self.word(|c| !c.is_whitespace()).parse().or_else(|error: ParseDurationError| {
            self.at = begin;
            self.fail(error.to_string())
        })
    }

    /// True if only blanks remain.
    pub(super) fn ended(&mut self) -> bool {
        self.word(char::is_whitespace);
        self.at == self.text.len()
    }

    pub(super) fn word(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    pub(super) fn take(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    pub(super) fn fail<T>(&self, expected: impl Into<String>) -> Result<T, SloError> {
        Err(SloError::at(self.text, self.at, expected))
    }
}

pub(super) fn metric(word: &str) -> Option<Metric> {
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

/// The metric of `ttft.p95`, and 95 % as the target: p95 is within a limit exactly if 95 % of the requests are. A
/// percentile of ITL is one of the request's own gaps.
fn percentile_over_requests(word: &str) -> Option<(Metric, SloTarget)> {
    let (name, percent) = word.split_once(".p")?;
    let metric = metric(name).filter(|metric| metric.name() == name)?;
    Some((metric, SloTarget::parse(&format!("{percent}%"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_over_requests_is_the_target_of_its_limit() {
        let slo = |text: &str| text.parse::<Slo>().unwrap();
        let (by_percentile, by_target) = (slo("x: ttft.p95<=1s"), slo("x: ttft<=1s target=95%"));
        assert_eq!((&by_percentile.objectives, by_percentile.target), (&by_target.objectives, by_target.target));
        let refused = |text: &str| text.parse::<Slo>().unwrap_err().to_string();
        for both in ["e2e.p99.9<=9s ttft.p95<=1s", "e2e<=9s ttft.p95<=1s", "tpot.p5<=1s target=99%"] {
            let error = refused(&format!("x: {both}"));
            assert!(error.starts_with("a percentile over requests is the target of an SLO"), "{both}: {error}");
        }
        for unknown in ["ttft.p0", "ttft.p100", "itl.mean.p95", "ttft.95", "speed.p95"] {
            assert!(refused(&format!("x: {unknown}<=1s")).starts_with("expected ttft, "), "{unknown}");
        }
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
        assert_eq!(error("x: ttft<=5s target=100%").column, 19);
        assert_eq!(error("x: ttft<=5s target=99").column, 19);
        assert_eq!(error("é: ttft<=5s").column, 0);
        assert_eq!(error("x[=1]: ttft<=5s").column, 2);
        assert_eq!(error("x[model=]: ttft<=5s").column, 8);
        assert_eq!(error("x[model=a,route=/openai/*]: ttft<=5s").column, 10);
        assert_eq!(error("x:").column, 2);
        let long = format!("x: ttft<=5s{}y", "\t".repeat(100_000));
        let blank = " ".repeat(60);
        assert_eq!(
            error(&long).to_string().split_once('\n').unwrap().1,
            format!("  {blank}y\n  {blank}^"),
            "a long line is shown around the mistake"
        );
    }
}
