//! Metrics with a distribution in the report.

/// A metric of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportMetric {
    /// Time to first token from the planned moment, as a user experiences it. Runs only.
    TtftFromPlanned,
    /// Time to first token from the request's first byte.
    Ttft,
    /// Time to the first output that is not reasoning.
    Ttfo,
    /// Time from the first token event to the second.
    SecondToken,
    /// Inter-token latency: each gap between token events, divided by the later event's tokens if known.
    Itl,
    /// Each gap between token events, undivided.
    Gap,
    /// Longest gap of each request.
    WorstGap,
    /// Time per output token, one value per request.
    Tpot,
    /// End-to-end latency from the planned moment. Runs only.
    E2eFromPlanned,
    /// End-to-end latency from the request's first byte.
    E2e,
    /// Output tokens per second of one user: the inverse of TPOT.
    UserRate,
    /// Prompt tokens (ISL).
    Input,
    /// Output tokens (OSL).
    Output,
    /// Tokens per token event, if known.
    TokensPerChunk,
    /// Send lag behind the planned moment, of all requests including failures. Runs only.
    Lag,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Nanoseconds internally, milliseconds in reports.
    Time,
    /// Tokens.
    Tokens,
    /// Millionths of a token per second internally, tokens per second in reports.
    Rate,
}

impl MetricUnit {
    /// Returns the unit's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "ms",
            Self::Tokens => "tokens",
            Self::Rate => "tokens/s",
        }
    }

    /// Converts an internal value to the display unit.
    pub fn to_display(self, inside: f64) -> f64 {
        match self {
            Self::Time | Self::Rate => inside / 1e6,
            Self::Tokens => inside,
        }
    }
}

impl ReportMetric {
    /// All metrics, in report order.
    pub const ALL: [Self; 15] = [
        Self::TtftFromPlanned,
        Self::Ttft,
        Self::Ttfo,
        Self::SecondToken,
        Self::Itl,
        Self::Gap,
        Self::WorstGap,
        Self::Tpot,
        Self::E2eFromPlanned,
        Self::E2e,
        Self::UserRate,
        Self::Input,
        Self::Output,
        Self::TokensPerChunk,
        Self::Lag,
    ];

    /// Returns the metric's key in JSON and CSV.
    pub const fn key(self) -> &'static str {
        match self {
            Self::TtftFromPlanned => "ttft_from_planned",
            Self::Ttft => "ttft",
            Self::Ttfo => "ttfo",
            Self::SecondToken => "second_token",
            Self::Itl => "itl",
            Self::Gap => "gap",
            Self::WorstGap => "worst_gap",
            Self::Tpot => "tpot",
            Self::E2eFromPlanned => "e2e_from_planned",
            Self::E2e => "e2e",
            Self::UserRate => "tokens_per_second_per_user",
            Self::Input => "isl",
            Self::Output => "osl",
            Self::TokensPerChunk => "tokens_per_chunk",
            Self::Lag => "send_lag",
        }
    }

    /// Returns the metric's name for people. `planned` distinguishes planned moments from send times.
    pub const fn label(self, planned: bool) -> &'static str {
        match self {
            Self::TtftFromPlanned => "TTFT from planned",
            Self::Ttft if planned => "TTFT from sent",
            Self::Ttft => "TTFT",
            Self::Ttfo => "TTFO",
            Self::SecondToken => "second token",
            Self::Itl => "ITL",
            Self::Gap => "gap",
            Self::WorstGap => "worst gap",
            Self::Tpot => "TPOT",
            Self::E2eFromPlanned => "E2E from planned",
            Self::E2e if planned => "E2E from sent",
            Self::E2e => "E2E",
            Self::UserRate => "tokens/s per user",
            Self::Input => "ISL (tokens)",
            Self::Output => "OSL (tokens)",
            Self::TokensPerChunk => "tokens per chunk",
            Self::Lag => "send lag",
        }
    }

    /// Returns `true` if lower values are better.
    pub const fn is_cost(self) -> bool {
        !matches!(self, Self::UserRate | Self::Input | Self::Output | Self::TokensPerChunk)
    }

    /// Returns the metric's unit.
    pub const fn unit(self) -> MetricUnit {
        match self {
            Self::UserRate => MetricUnit::Rate,
            Self::Input | Self::Output | Self::TokensPerChunk => MetricUnit::Tokens,
            _ => MetricUnit::Time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_stands_at_its_own_place() {
        assert!(ReportMetric::ALL.iter().enumerate().all(|(at, metric)| *metric as usize == at));
    }
}
