//! What many requests together have to keep: `ttft.p99<=500ms itl.p99<=50ms goodput>=95%`.
//!
//! # A percentile is a share
//! `ttft.p99<=500ms` says that at least 99 % of requests have a TTFT of 500 ms or less: it is an [`Slo`] of its own, and
//! the share of requests that must meet it. So a request without a whole answer counts against every percentile, and
//! all goals have one measure of doubt, that of a share.
//!
//! `itl.p99<=50ms` says it of all gaps of all requests, which is what reports call the p99 of ITL: the share of gaps of
//! 50 ms or less, and none of a request without a whole answer. Gaps of one request are no draws of their own. The share
//! of good ones in a request lies between 0 and 1, and no such shares scatter more than those of requests that are good
//! or bad as a whole: so there are as many draws as requests, and the doubt is never too small.
//!
//! # Doubt
//! Of a level only some requests are seen. Wilson's score interval (1927), at 95 %, is where the share of all requests
//! at that level may lie: a goal is kept if all of it is, broken if none of it is, and open in between. All of 10
//! requests show little; for a p99 it takes 381 without a miss.

use std::fmt;
use std::str::FromStr;

use super::parse::{Parser, metric};
use super::{Slo, SloError};
use crate::measure::time::Gap;

/// Of the standard normal distribution: 2.5 % lie beyond.
const Z: f64 = 1.959_963_985;

/// Goals that must all be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Criteria {
    text: String,
    list: Vec<Criterion>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Criterion {
    /// The share that must be good.
    pub share: f64,
    /// What is good.
    pub good: CriterionMetric,
}

/// What a goal calls good.
#[derive(Clone, Debug, PartialEq)]
pub enum CriterionMetric {
    /// Requests, as other SLOs say.
    Goodput,
    /// Requests that meet this.
    Requests(Slo),
    /// Inter-token latencies up to this.
    Gaps(Gap),
}

/// What was seen of a goal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObservedShare {
    /// Requests that were good, or parts of them.
    pub good: f64,
    /// All that count.
    pub of: f64,
    /// The share that must be good.
    pub share: f64,
}

/// Whether a goal is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriterionVerdict {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// Too few requests to tell. What is seen keeps it, or does not.
    Open(bool),
}

impl Criteria {
    /// Goodput of every SLO is at least this share.
    pub fn of_goodput(share: f64) -> Self {
        let text = format!("goodput>={}%", (share * 1e8).round() / 1e6);
        Self { text, list: vec![Criterion { share, good: CriterionMetric::Goodput }] }
    }

    /// The SLOs that they bring along.
    pub fn slos(&self) -> impl Iterator<Item = &Slo> {
        self.list.iter().filter_map(Criterion::slo)
    }

    /// The limits on inter-token latencies, each with the share of gaps that must keep it.
    pub fn gaps(&self) -> impl Iterator<Item = (Gap, f64)> {
        self.list.iter().filter_map(|goal| match goal.good {
            CriterionMetric::Gaps(limit) => Some((limit, goal.share)),
            CriterionMetric::Goodput | CriterionMetric::Requests(_) => None,
        })
    }

    /// Whether they need other SLOs.
    pub fn need_slos(&self) -> bool {
        self.list.iter().any(|goal| goal.good == CriterionMetric::Goodput)
    }

    /// The share that the SLO of this name must have, if it is a goal.
    pub fn share_of(&self, slo: &str) -> Option<f64> {
        let own = self.list.iter().find(|goal| goal.slo().is_some_and(|own| own.name() == slo));
        own.or_else(|| self.list.iter().find(|goal| goal.good == CriterionMetric::Goodput)).map(|goal| goal.share)
    }
}

impl Criterion {
    fn slo(&self) -> Option<&Slo> {
        match &self.good {
            CriterionMetric::Requests(slo) => Some(slo),
            CriterionMetric::Goodput | CriterionMetric::Gaps(_) => None,
        }
    }
}

impl fmt::Display for Criteria {
    /// As they were written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Criteria {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        let (mut parser, mut list) = (Parser::new(text), Vec::new());
        while !parser.ended() {
            list.push(goal(&mut parser)?);
        }
        if list.is_empty() {
            return parser.fail(EXPECTED);
        }
        Ok(Self { text: text.split_whitespace().collect::<Vec<_>>().join(" "), list })
    }
}

const EXPECTED: &str =
    "expected a percentile, as in ttft.p99<=500ms (of ttft, ttfo, itl, tpot or e2e), or goodput>=95%";

const ITL: &str = "itl";

fn goal(parser: &mut Parser<'_>) -> Result<Criterion, SloError> {
    let begin = parser.at;
    let word = parser.word(|c| c.is_ascii_alphanumeric() || c == '.');
    if word == "goodput" {
        if !parser.take(">=") {
            return parser.fail("expected `>=` after `goodput`");
        }
        let begin = parser.at;
        let share = parser.word(|c| !c.is_whitespace()).strip_suffix('%').and_then(percent);
        let Some(share) = share else {
            parser.at = begin;
            return parser.fail("expected a share up to 100%, as in 95%");
        };
        return Ok(Criterion { share, good: CriterionMetric::Goodput });
    }
    let parted = word.split_once(".p").and_then(|(name, share)| Some((name, metric(name)?, percent(share)?)));
    // In an SLO `itl` by itself is TPOT's other name; `mean` of it is no percentile.
    let Some((name, _, share)) = parted.filter(|(name, metric, _)| *name == ITL || *name == metric.name()) else {
        parser.at = begin;
        return parser.fail(EXPECTED);
    };
    if !parser.take("<=") {
        return parser.fail(format!("expected `<=` after `{word}`"));
    }
    let begin = parser.at;
    let limit = parser.limit()?;
    if name == ITL {
        return Ok(Criterion { share, good: CriterionMetric::Gaps(limit) });
    }
    let slo = format!("{}: {name}<={}", word.replacen('.', "-", 1).replace('.', "_"), parser.since(begin));
    Ok(Criterion { share, good: CriterionMetric::Requests(slo.parse()?) })
}

fn percent(text: &str) -> Option<f64> {
    let percent = text.parse().ok().filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0)?;
    // The double nearest to 0.999, and not 99.9 ÷ 100: 999 of 1,000 are that share.
    Some((percent * 1e6).round() / 1e8)
}

/// Where the share of all requests may lie of which `good` of `seen` were good.
pub fn interval(good: f64, seen: f64) -> (f64, f64) {
    if seen <= 0.0 {
        return (0.0, 1.0);
    }
    let middle = (good + Z * Z / 2.0) / (seen + Z * Z);
    let half = Z / (seen + Z * Z) * (good * (seen - good) / seen + Z * Z / 4.0).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

/// Whether `share` of all requests are good, where `good` of `seen` were.
pub fn kept(good: f64, seen: f64, share: f64) -> CriterionVerdict {
    let (least, most) = interval(good, seen);
    match () {
        () if least >= share => CriterionVerdict::Yes,
        () if most < share => CriterionVerdict::No,
        () => CriterionVerdict::Open(ObservedShare { good, of: seen, share }.is_currently_met()),
    }
}

impl ObservedShare {
    /// Whether what was seen keeps it, whatever it says of all requests.
    pub fn is_currently_met(&self) -> bool {
        self.of > 0.0 && self.good >= self.share * self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goals(text: &str) -> Criteria {
        text.parse().unwrap()
    }

    #[test]
    fn a_percentile_is_a_share_of_requests_under_a_limit() {
        let goals = goals("ttft.p99<=500ms  e2e.p99.9<=2m goodput>=95%");
        assert_eq!(goals.to_string(), "ttft.p99<=500ms e2e.p99.9<=2m goodput>=95%");
        let slos: Vec<String> = goals.slos().map(ToString::to_string).collect();
        assert_eq!(slos, ["ttft-p99: ttft<=500ms", "e2e-p99_9: e2e<=2m"]);
        assert!(slos.iter().all(|text| text.parse::<Slo>().is_ok()));
        let shares = ["ttft-p99", "e2e-p99_9", "chat"].map(|slo| goals.share_of(slo));
        assert_eq!(shares, [Some(0.99), Some(0.999), Some(0.95)]);
        assert!(goals.need_slos());
        assert_eq!(Criteria::of_goodput(0.95), "goodput>=95%".parse().unwrap());
        assert_eq!("tpot.p50<=9ms".parse::<Criteria>().unwrap().share_of("chat"), None);
    }

    #[test]
    fn a_percentile_of_itl_is_a_share_of_gaps_and_no_slo_of_requests() {
        let goals = goals("itl.p99<=50ms itl.p50<=20ms tpot.p99<=40ms");
        assert_eq!(goals.gaps().collect::<Vec<_>>(), [(Gap::from_millis(50), 0.99), (Gap::from_millis(20), 0.5)]);
        assert_eq!(goals.slos().map(ToString::to_string).collect::<Vec<_>>(), ["tpot-p99: tpot<=40ms"]);
        assert_eq!((goals.need_slos(), goals.share_of("chat")), (false, None));
    }

    #[test]
    fn mistakes_are_shown_with_their_place() {
        let error = |text: &str| text.parse::<Criteria>().unwrap_err().to_string();
        assert!(error("ttft.p99=500ms").starts_with("expected `<=` after `ttft.p99`, at column 9\n"));
        assert!(error("goodput>=95").starts_with("expected a share up to 100%, as in 95%, at column 10\n"));
        assert!(error("ttft.p99<=500ms tpot.p99<=fast").contains("at column 27"));
        for wrong in ["", "ttft<=1s", "itl<=9ms", "itl.max<=9ms", "ttft.p0<=1s", "ttft.p101<=1s", "speed.p9<=1s"] {
            assert!(error(wrong).starts_with("expected a percentile, as in"), "{wrong}");
        }
    }

    #[test]
    fn a_goal_is_kept_broken_or_open() {
        // Newcombe (1998), table I, method 3: 81 of 263 is 0.2553 to 0.3662.
        let (least, most) = interval(81.0, 263.0);
        assert!((least - 0.2553).abs() < 5e-5 && (most - 0.3662).abs() < 5e-5, "{least} {most}");
        assert_eq!(
            (kept(381.0, 381.0, 0.99), kept(380.0, 380.0, 0.99)),
            (CriterionVerdict::Yes, CriterionVerdict::Open(true))
        );
        assert_eq!(
            (kept(90.0, 100.0, 0.99), kept(98.0, 100.0, 0.99)),
            (CriterionVerdict::No, CriterionVerdict::Open(false))
        );
        assert_eq!(
            (kept(0.0, 0.0, 0.5), kept(1.0, 1.0, 1.0)),
            (CriterionVerdict::Open(false), CriterionVerdict::Open(true))
        );
    }
}
