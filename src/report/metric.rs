//! The numbers that a report has a distribution of.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportMetric {
    /// Time to first token from the planned moment: what a user would have felt. Runs only.
    TtftFromPlanned,
    /// Time to first token from the request's first byte.
    Ttft,
    /// Time to the first output that is not reasoning.
    Ttfo,
    /// From the first token event to the second.
    SecondToken,
    /// Inter-token latency: every gap between token events, divided by the later event's tokens where known.
    Itl,
    /// Every gap between token events as it was.
    Gap,
    /// The longest gap of each request.
    WorstGap,
    /// Time per output token, one value per request.
    Tpot,
    /// From the planned moment to the end. Runs only.
    E2eFromPlanned,
    /// From the request's first byte to the end.
    E2e,
    /// Output tokens per second that one user sees: the inverse of TPOT.
    UserRate,
    /// Prompt tokens (ISL).
    Input,
    /// Output tokens (OSL).
    Output,
    /// Tokens of each token event, where known.
    TokensPerChunk,
    /// How much later than planned a request was sent. Of all requests, successful or not. Runs only.
    Lag,
}

/// What a metric is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Nanoseconds inside, milliseconds outside.
    Time,
    /// Tokens.
    Tokens,
    /// Millionths of a token per second inside, tokens per second outside.
    Rate,
}

impl MetricUnit {
    /// Its name outside.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "ms",
            Self::Tokens => "tokens",
            Self::Rate => "tokens/s",
        }
    }

    /// A value outside, of one inside.
    pub fn to_display(self, inside: f64) -> f64 {
        match self {
            Self::Time | Self::Rate => inside / 1e6,
            Self::Tokens => inside,
        }
    }
}

impl ReportMetric {
    /// All, in the order of a report.
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

    /// Its name for scripts.
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

    /// Its name for people. `planned`: there are planned moments to tell from those of sending.
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

    /// What it is counted in.
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
