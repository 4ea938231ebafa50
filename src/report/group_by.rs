//! Keys that requests can be grouped by.

use super::request_view::RequestView;
use crate::measure::calendar::utc_hour;
use crate::measure::session::TurnBucket;

/// Key that requests can be grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// The requested model.
    Model,
    /// The HTTP status.
    Status,
    /// The request's outcome.
    Outcome,
    /// The dialect.
    Dialect,
    /// The server.
    Server,
    /// Power of two that bounds the prompt tokens from below.
    IslBucket,
    /// Power of two that bounds the output tokens from below.
    OslBucket,
    /// Hour of the arrival, in UTC.
    Hour,
    /// Position in the session; from the fourth turn on, powers of two.
    Turn,
    /// The values of all classes, as in `team=red tier=gold`.
    Class,
}

impl GroupBy {
    /// All keys.
    pub const ALL: [Self; 10] = [
        Self::Model,
        Self::Status,
        Self::Outcome,
        Self::Dialect,
        Self::Server,
        Self::IslBucket,
        Self::OslBucket,
        Self::Hour,
        Self::Turn,
        Self::Class,
    ];

    /// Returns the key's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Status => "status",
            Self::Outcome => "outcome",
            Self::Dialect => "dialect",
            Self::Server => "server",
            Self::IslBucket => "isl-bucket",
            Self::OslBucket => "osl-bucket",
            Self::Hour => "hour",
            Self::Turn => "turn",
            Self::Class => "class",
        }
    }

    /// `zero_unix_ns` is the wall-clock time of the timeline's start, if known.
    pub(super) fn of(self, request: &RequestView, zero_unix_ns: Option<u64>) -> String {
        let text = match self {
            Self::Model => request.model.clone(),
            Self::Status => request.status.map(|status| status.to_string()),
            Self::Outcome => request.outcome.map(|outcome| outcome.name().to_owned()),
            Self::Dialect => request.dialect.clone(),
            Self::Server => request.upstream.clone(),
            Self::IslBucket => request.input.map(bucket),
            Self::OslBucket => request.tokens.map(|count| bucket(count.tokens)),
            Self::Hour => zero_unix_ns.map(|zero| utc_hour(zero.saturating_add(request.started().as_nanos()))),
            Self::Turn => request.session.as_ref().map(|(_, turn)| TurnBucket::of(*turn).to_string()),
            Self::Class => (!request.classes.is_empty()).then(|| request.classes.to_string()),
        };
        text.unwrap_or_else(|| "-".to_owned())
    }
}

/// Digits keep the order of buckets when names are sorted.
fn bucket(tokens: u64) -> String {
    let low = if tokens == 0 { 0 } else { 1_u64 << tokens.ilog2() };
    format!("{low:06}-{:06}", (low * 2).saturating_sub(1).max(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::row::TraceEntry;

    #[test]
    fn a_group_of_classes_has_the_values_of_all_of_them() {
        let class = |json: &str| {
            let row = TraceEntry { class: serde_json::from_str(json).unwrap(), ..TraceEntry::default() };
            GroupBy::Class.of(&RequestView::with_events(row, Vec::new(), 0, None), None)
        };
        assert_eq!(class(r#"{"tier":"gold","team":"red"}"#), "team=red tier=gold");
        assert_eq!(class("{}"), "-");
    }

    #[test]
    fn buckets_are_powers_of_two_and_hours_are_of_utc() {
        assert_eq!([0, 1, 2, 700].map(bucket), ["000000-000000", "000001-000001", "000002-000003", "000512-001023"]);
        assert_eq!(utc_hour(1_795_504_655_267_820_721), "2026-11-24T07Z");
    }
}
