//! One term of the language of conditions: a figure, a sign and a limit, as in `ttft.p95 <= 1s`.
//!
//! `--slo`, `--fail-if`, `--find-max` and the rows of a matrix have the same words, signs and blanks. Each allows the
//! figures and limits that it can judge.

use super::SloError;
use super::parse::Parser;

/// Relation of a figure to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// `<=`
    AtMost,
    /// `<`
    Below,
    /// `>=`
    AtLeast,
    /// `>`
    Above,
}

impl Sign {
    /// All with their texts. Longer ones first: `<=` begins with `<`.
    const ALL: [(&'static str, Self); 4] =
        [("<=", Self::AtMost), (">=", Self::AtLeast), ("<", Self::Below), (">", Self::Above)];

    /// True if a value holds.
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::AtMost => value <= limit,
            Self::Below => value < limit,
            Self::AtLeast => value >= limit,
            Self::Above => value > limit,
        }
    }

    /// True if the limit is above the values that hold.
    pub const fn is_upper_bound(self) -> bool {
        matches!(self, Self::AtMost | Self::Below)
    }
}

/// Statistic of the values of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// `avg`, `mean`
    Average,
    /// `min`
    Min,
    /// `max`
    Max,
    /// `p99.9`, 0 to 100
    Percentile(f64),
}

impl Statistic {
    /// The statistic of this name.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "avg" | "mean" => Some(Self::Average),
            "min" => Some(Self::Min),
            "max" => Some(Self::Max),
            _ => {
                let percent = text.strip_prefix('p')?.parse().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
                Some(Self::Percentile(percent))
            }
        }
    }
}

/// A term as written, with its places for errors.
#[derive(Clone, Debug)]
pub struct ConditionTerm<'a> {
    /// Figure, with its statistic.
    pub figure: &'a str,
    /// Sign.
    pub sign: Sign,
    /// Limit.
    pub limit: &'a str,
    text: &'a str,
    /// Places of figure, sign and limit in the text.
    places: [usize; 3],
}

impl<'a> ConditionTerm<'a> {
    /// Reads all terms of a text.
    ///
    /// # Errors
    /// If a term is not complete, or there is none; the message quotes `expected`.
    pub fn parse_all(text: &'a str, expected: &str) -> Result<Vec<Self>, SloError> {
        let (mut parser, mut list) = (Parser::new(text), Vec::new());
        while !parser.ended() {
            list.push(Self::read(text, &mut parser, expected)?);
        }
        if list.is_empty() { parser.fail(expected) } else { Ok(list) }
    }

    fn read(text: &'a str, parser: &mut Parser<'a>, expected: &str) -> Result<Self, SloError> {
        let figure_at = parser.at;
        let figure = parser.word(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
        if figure.is_empty() {
            return parser.fail(expected);
        }
        let end = parser.at;
        parser.word(char::is_whitespace);
        let sign_at = parser.at;
        let Some((_, sign)) = Sign::ALL.into_iter().find(|(sign, _)| parser.take(sign)) else {
            parser.at = end;
            return parser.fail(format!("expected `<=`, `<`, `>=` or `>` after `{figure}`"));
        };
        parser.word(char::is_whitespace);
        let limit_at = parser.at;
        let limit = parser.word(|c| !c.is_whitespace());
        Ok(Self { figure, sign, limit, text, places: [figure_at, sign_at, limit_at] })
    }

    /// The metric and the statistic of the figure.
    pub fn metric(&self) -> Option<(&'a str, Statistic)> {
        let (metric, statistic) = self.figure.split_once('.')?;
        Some((metric, Statistic::parse(statistic)?))
    }

    /// The term without blanks.
    pub fn compact(&self) -> String {
        let sign = Sign::ALL.into_iter().find(|(_, sign)| *sign == self.sign).map_or("", |(text, _)| text);
        format!("{}{sign}{}", self.figure, self.limit)
    }

    /// An error at the figure.
    pub fn wrong_figure(&self, expected: impl Into<String>) -> SloError {
        SloError::at(self.text, self.places[0], expected)
    }

    /// An error at the sign.
    pub fn wrong_sign(&self, expected: impl Into<String>) -> SloError {
        SloError::at(self.text, self.places[1], expected)
    }

    /// An error at the limit.
    pub fn wrong_limit(&self, expected: impl Into<String>) -> SloError {
        SloError::at(self.text, self.places[2], expected)
    }
}
