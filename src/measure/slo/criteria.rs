//! Acceptance criteria over many requests: `ttft.p99<=500ms itl.p99<=50ms goodput>=95%`.
//!
//! # A percentile is a share
//! `ttft.p99<=500ms` requires that at least 99 % of requests have a TTFT of at most 500 ms. It is an [`Slo`] plus the
//! share of requests that must meet it. A request without a complete answer therefore counts against every
//! percentile, and all criteria share one measure of uncertainty.
//!
//! `itl.p99<=50ms` covers all gaps of all requests, like the p99 of ITL in reports: the share of gaps of at most 50
//! ms. A request without a complete answer counts as having no good gaps. Gaps of one request are not independent
//! samples, so the sample size is the number of requests. The interval is never too narrow: per-request shares
//! between 0 and 1 vary at most as much as pass/fail results.
//!
//! # Uncertainty
//! Only some requests at a load level are observed. Wilson's score interval (1927) at 95 % bounds the share among all
//! requests at that level. A criterion is met if the whole interval meets it, violated if none of it does, and open
//! otherwise. Ten good requests prove little: a p99 needs 381 without a miss.

use std::fmt;
use std::str::FromStr;

use super::parse::metric;
use super::term::{ConditionTerm, Sign};
use super::{Slo, SloError};
use crate::measure::time::Gap;

/// 97.5 % quantile of the standard normal distribution.
const Z: f64 = 1.959_963_985;

/// Criteria that must all be met.
#[derive(Clone, Debug, PartialEq)]
pub struct Criteria {
    text: String,
    list: Vec<Criterion>,
}

/// One criterion.
#[derive(Clone, Debug, PartialEq)]
pub struct Criterion {
    /// Required share of good requests or gaps, 0 to 1.
    pub share: f64,
    /// Definition of good.
    pub good: CriterionMetric,
}

/// Quantity that a criterion evaluates.
#[derive(Clone, Debug, PartialEq)]
pub enum CriterionMetric {
    /// Requests that meet the separately configured SLOs.
    Goodput,
    /// Requests that meet this SLO.
    Requests(Slo),
    /// Inter-token latencies up to this limit.
    Gaps(Gap),
}

/// Observed result for a criterion.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObservedShare {
    /// Good requests; fractional if gaps are evaluated.
    pub good: f64,
    /// Requests observed.
    pub of: f64,
    /// Required share, 0 to 1.
    pub share: f64,
}

/// Whether a criterion is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriterionVerdict {
    /// Met.
    Yes,
    /// Violated.
    No,
    /// Too few requests to decide. The flag shows whether the observed share meets the criterion.
    Open(bool),
}

impl Criteria {
    /// Requires this goodput share of every SLO.
    pub fn of_goodput(share: f64) -> Self {
        let text = format!("goodput>={}%", (share * 1e8).round() / 1e6);
        Self { text, list: vec![Criterion { share, good: CriterionMetric::Goodput }] }
    }

    /// The SLOs that the criteria define themselves.
    pub fn slos(&self) -> impl Iterator<Item = &Slo> {
        self.list.iter().filter_map(Criterion::slo)
    }

    /// Inter-token latency limits, each with the required share of gaps.
    pub fn gaps(&self) -> impl Iterator<Item = (Gap, f64)> {
        self.list.iter().filter_map(|goal| match goal.good {
            CriterionMetric::Gaps(limit) => Some((limit, goal.share)),
            CriterionMetric::Goodput | CriterionMetric::Requests(_) => None,
        })
    }

    /// The largest share that a criterion requires.
    pub fn max_share(&self) -> f64 {
        self.list.iter().map(|goal| goal.share).fold(0.0, f64::max)
    }

    /// Required goodput; `None` if no criterion is on goodput.
    pub fn goodput(&self) -> Option<f64> {
        self.list.iter().find(|goal| goal.good == CriterionMetric::Goodput).map(|goal| goal.share)
    }

    /// True if a criterion needs separately configured SLOs.
    pub fn need_slos(&self) -> bool {
        self.list.iter().any(|goal| goal.good == CriterionMetric::Goodput)
    }

    /// Required share for the SLO of this name; `None` if no criterion covers it.
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
    /// Writes what must hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Criteria {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        let terms = ConditionTerm::parse_all(text, EXPECTED)?;
        let list = terms.iter().map(criterion).collect::<Result<Vec<_>, _>>()?;
        let text = terms.iter().map(required).collect::<Vec<_>>().join(" ");
        Ok(Self { text, list })
    }
}

const EXPECTED: &str =
    "expected a percentile, as in ttft.p99<=500ms (of ttft, ttfo, itl, tpot or e2e), or goodput>=95%";

const ITL: &str = "itl";

/// A term's requirement as text.
fn required(term: &ConditionTerm<'_>) -> String {
    format!("{}{}{}", term.figure, if term.figure == "goodput" { ">=" } else { "<=" }, term.limit)
}

/// Reads what must hold. A term may also state what must not: `ttft.p99>500ms` and `goodput<95%`.
fn criterion(term: &ConditionTerm<'_>) -> Result<Criterion, SloError> {
    if term.figure == "goodput" {
        if !matches!(term.sign, Sign::AtLeast | Sign::Below) {
            return Err(term.wrong_sign("expected `>=` after `goodput`, or `<` for what must not be"));
        }
        let share = term.limit.strip_suffix('%').and_then(percent);
        let share = share.ok_or_else(|| term.wrong_limit("expected a share up to 100%, as in 95%"))?;
        return Ok(Criterion { share, good: CriterionMetric::Goodput });
    }
    let parted = term.figure.split_once(".p").and_then(|(name, share)| Some((name, metric(name)?, percent(share)?)));
    // In an SLO a bare `itl` means TPOT, and `mean` is not a percentile.
    let parted = parted.filter(|(name, metric, _)| *name == ITL || *name == metric.name());
    let (name, _, share) = parted.ok_or_else(|| term.wrong_figure(EXPECTED))?;
    if !matches!(term.sign, Sign::AtMost | Sign::Above) {
        return Err(term.wrong_sign(format!("expected `<=` after `{}`, or `>` for what must not be", term.figure)));
    }
    let limit = term.limit.parse::<Gap>().map_err(|error| term.wrong_limit(error.to_string()))?;
    if name == ITL {
        return Ok(Criterion { share, good: CriterionMetric::Gaps(limit) });
    }
    let slo = format!("{}: {name}<={}", term.figure.replacen('.', "-", 1).replace('.', "_"), term.limit);
    Ok(Criterion { share, good: CriterionMetric::Requests(slo.parse()?) })
}

fn percent(text: &str) -> Option<f64> {
    let percent = text.parse().ok().filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0)?;
    // Rounds to the double nearest to 0.999, unlike 99.9 ÷ 100, so that 999 of 1,000 meet it.
    Some((percent * 1e6).round() / 1e8)
}

/// Confidence interval for the share among all requests, given `good` of `seen`.
pub fn interval(good: f64, seen: f64) -> (f64, f64) {
    if seen <= 0.0 {
        return (0.0, 1.0);
    }
    let middle = (good + Z * Z / 2.0) / (seen + Z * Z);
    let half = Z / (seen + Z * Z) * (good * (seen - good) / seen + Z * Z / 4.0).sqrt();
    // Rounding may leave the end of a share of 0 or 1 just inside.
    let least = if good <= 0.0 { 0.0 } else { (middle - half).max(0.0) };
    (least, if good >= seen { 1.0 } else { (middle + half).min(1.0) })
}

/// The fewest requests of which none misses that prove a share; `None` for all requests, which no number proves.
pub fn min_requests(share: f64) -> Option<u64> {
    // The lower end of the interval of n good requests of n is n ÷ (n + Z²).
    (share < 1.0).then(|| (share * Z * Z / (1.0 - share)).ceil() as u64)
}

/// Verdict on whether at least `share` of all requests are good, given `good` of `seen`.
pub fn share_verdict(good: f64, seen: f64, share: f64) -> CriterionVerdict {
    let (least, most) = interval(good, seen);
    match () {
        () if least >= share => CriterionVerdict::Yes,
        () if most < share => CriterionVerdict::No,
        () => CriterionVerdict::Open(ObservedShare { good, of: seen, share }.is_currently_met()),
    }
}

impl ObservedShare {
    /// True if the observed share meets the criterion, regardless of uncertainty.
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
    fn the_fewest_requests_that_prove_a_share_are_those_of_the_interval() {
        assert_eq!([0.5, 0.95, 0.99, 0.999].map(min_requests), [4, 73, 381, 3_838].map(Some));
        assert_eq!(min_requests(1.0), None);
        assert!((1..500).all(|seen| share_verdict(seen.into(), seen.into(), 1.0) == CriterionVerdict::Open(true)));
        for share in [0.5, 0.9, 0.95, 0.99, 0.999] {
            let least = min_requests(share).unwrap() as f64;
            assert_eq!(share_verdict(least, least, share), CriterionVerdict::Yes, "{share}");
            assert_eq!(share_verdict(least - 1.0, least - 1.0, share), CriterionVerdict::Open(true), "{share}");
        }
        assert_eq!("ttft.p90<=1s goodput>=95%".parse::<Criteria>().unwrap().max_share(), 0.95);
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
        assert!(error("ttft.p99=500ms").starts_with("expected `<=`, `<`, `>=` or `>` after `ttft.p99`, at column 9\n"));
        assert!(
            error("ttft.p99 >= 500ms")
                .starts_with("expected `<=` after `ttft.p99`, or `>` for what must not be, at column 10")
        );
        assert!(error("goodput>=95").starts_with("expected a share up to 100%, as in 95%, at column 10\n"));
        assert!(error("ttft.p99<=500ms tpot.p99<=fast").contains("at column 27"));
        assert_eq!(goals("ttft.p99 > 1s goodput < 95%").list, goals("ttft.p99<=1s goodput>=95%").list);
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
            (share_verdict(381.0, 381.0, 0.99), share_verdict(380.0, 380.0, 0.99)),
            (CriterionVerdict::Yes, CriterionVerdict::Open(true))
        );
        assert_eq!(
            (share_verdict(90.0, 100.0, 0.99), share_verdict(98.0, 100.0, 0.99)),
            (CriterionVerdict::No, CriterionVerdict::Open(false))
        );
        assert_eq!(
            (share_verdict(0.0, 0.0, 0.5), share_verdict(1.0, 1.0, 1.0)),
            (CriterionVerdict::Open(false), CriterionVerdict::Open(true))
        );
    }
}
