//! Which requests a load consists of: lengths, later turns of sessions, cached prompt tokens. A capacity holds for the
//! measured mix only.

use schemars::JsonSchema;
use serde::Serialize;

use crate::stats::length_histogram::LengthHistogram;
use crate::stats::similarity::ks_test;

/// Least KS distance that matters; of many requests any distance is certain.
const MIN_DISTANCE: f64 = 0.1;
/// Greatest p-value of a difference that is no chance.
const MAX_P_VALUE: f64 = 0.01;
/// Least difference of two shares that matters.
const MIN_SHARE_DIFFERENCE: f64 = 0.1;

/// Mix of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadMix {
    /// Prompt tokens of each request.
    pub input: LengthHistogram,
    /// Output tokens of each request.
    pub output: LengthHistogram,
    /// Requests.
    pub requests: u64,
    /// Requests that are second or later turns of a session.
    pub later_turns: u64,
    /// Prompt tokens from a cache; `None` if no request reports them.
    pub cached_tokens: Option<u64>,
}

impl LoadMix {
    fn later_turn_share(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.later_turns as f64 / self.requests as f64)
    }

    fn cached_share(&self) -> Option<f64> {
        let prompt = self.input.distribution()?.sum;
        Some(self.cached_tokens? as f64 / prompt.max(1) as f64)
    }

    /// The mix in means and shares.
    pub fn summary(&self) -> MixSummary {
        MixSummary {
            input_tokens: self.input.distribution().map(|of| of.mean),
            output_tokens: self.mean_output_tokens(),
            later_turn_share: self.later_turn_share(),
            cached_share: self.cached_share(),
        }
    }

    /// Mean output tokens of a request; `None` if no request has a known length.
    pub fn mean_output_tokens(&self) -> Option<f64> {
        self.output.distribution().map(|of| of.mean)
    }
}

/// A mix in means and shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct MixSummary {
    /// Mean prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<f64>,
    /// Mean output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<f64>,
    /// Share of requests that are second or later turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub later_turn_share: Option<f64>,
    /// Share of prompt tokens from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_share: Option<f64>,
}

impl std::fmt::Display for MixSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = |mean: Option<f64>| mean.map_or_else(|| "unknown".to_owned(), |mean| format!("{mean:.0}"));
        write!(f, "ISL {}, OSL {}", tokens(self.input_tokens), tokens(self.output_tokens))?;
        for (share, name) in [(self.later_turn_share, "later turns"), (self.cached_share, "of prompt tokens cached")] {
            share.map_or(Ok(()), |share| write!(f, ", {:.1} % {name}", share * 100.0))?;
        }
        Ok(())
    }
}

/// Property of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MixProperty {
    /// Prompt tokens.
    Isl,
    /// Output tokens.
    Osl,
    /// Share of later turns.
    LaterTurns,
    /// Share of prompt tokens from a cache.
    CachedTokens,
}

impl MixProperty {
    /// Name for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Isl => "ISL",
            Self::Osl => "OSL",
            Self::LaterTurns => "share of later turns",
            Self::CachedTokens => "share of cached prompt tokens",
        }
    }
}

/// Difference of the traffic from the measured load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MixDifference {
    /// The property that differs.
    pub property: MixProperty,
    /// Mean tokens, or share, of the sweep.
    pub measured: f64,
    /// Mean tokens, or share, of the traffic.
    pub traffic: f64,
    /// KS distance of lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ks_distance: Option<f64>,
    /// P-value of the KS test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ks_p_value: Option<f64>,
}

impl std::fmt::Display for MixDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { property, measured, traffic, .. } = self;
        let name = property.label();
        match (self.ks_distance, &self.ks_p_value) {
            (Some(distance), Some(p_value)) => write!(
                f,
                "{name} differs: {traffic:.0} tokens on average in the traffic, {measured:.0} in the sweep (KS distance \
                 {distance:.2}, p {})",
                if *p_value < 1e-3 { "< 0.001".to_owned() } else { format!("{p_value:.3}") }
            ),
            _ => write!(
                f,
                "{name} differs: {:.1} % in the traffic, {:.1} % in the sweep",
                traffic * 100.0,
                measured * 100.0
            ),
        }
    }
}

/// Returns the differences in the properties that both sides report.
pub fn differences(measured: &LoadMix, traffic: &LoadMix) -> Vec<MixDifference> {
    let lengths = |property, ours: &LengthHistogram, theirs: &LengthHistogram| {
        let test = ks_test(ours, theirs)?;
        let (ours, theirs) = (ours.distribution()?.mean, theirs.distribution()?.mean);
        (test.distance >= MIN_DISTANCE && test.p_value <= MAX_P_VALUE).then_some(MixDifference {
            property,
            measured: ours,
            traffic: theirs,
            ks_distance: Some(test.distance),
            ks_p_value: Some(test.p_value),
        })
    };
    let shares = |property, ours: Option<f64>, theirs: Option<f64>| {
        let (measured, traffic) = (ours?, theirs?);
        ((measured - traffic).abs() >= MIN_SHARE_DIFFERENCE).then_some(MixDifference {
            property,
            measured,
            traffic,
            ks_distance: None,
            ks_p_value: None,
        })
    };
    let all = [
        lengths(MixProperty::Isl, &measured.input, &traffic.input),
        lengths(MixProperty::Osl, &measured.output, &traffic.output),
        shares(MixProperty::LaterTurns, measured.later_turn_share(), traffic.later_turn_share()),
        shares(MixProperty::CachedTokens, measured.cached_share(), traffic.cached_share()),
    ];
    all.into_iter().flatten().collect()
}
