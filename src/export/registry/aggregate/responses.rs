//! Responses by status class, answering party and party at fault.
//!
//! A model has one series per combination that occurred, at most about 20. The [initial](INITIAL_SERIES) ones appear
//! with its first request.

use super::{Aggregate, RecordContext};
use crate::export::registry::catalog::Id;
use crate::export::registry::error_type::status_class;
use crate::export::registry::interner::{Interner, Symbol};
use crate::export::registry::models::OVERFLOW_MODEL;
use crate::export::registry::snapshot::TimePoint;
use crate::measure::failure::FailureOrigin;
use crate::measure::record::RequestRecord;

/// Common responses as `traffic`, `status_class`, `answered_by`, `fault`.
const INITIAL_SERIES: [[&str; 4]; 5] = [
    [INFERENCE, "2xx", "upstream", ""],
    [INFERENCE, "4xx", "upstream", "client"],
    [INFERENCE, "5xx", "upstream", "upstream"],
    [INFERENCE, "5xx", "proxy", "upstream"],
    [INFERENCE, "5xx", "proxy", "proxy"],
];

/// Value of `traffic` for requests that ask for generation.
const INFERENCE: &str = "inference";

impl Aggregate {
    /// Counts one response.
    pub(super) fn record_response(&mut self, record: &RequestRecord, entry: RecordContext<'_>) {
        let traffic = match (record.shape.dialect, record.shape.probe) {
            (Some(_), _) => INFERENCE,
            (None, Some(_)) => "probe",
            (None, None) => "other",
        };
        if traffic == INFERENCE {
            self.declare_series(entry);
        }
        let answered_by = match (record.local_reply, record.status) {
            (Some(_), _) => "proxy",
            (None, Some(_)) => "upstream",
            (None, None) => "",
        };
        let fault = record.failure_origin().map_or("", FailureOrigin::name);
        let values = [traffic, status_class(record.status), answered_by, fault];
        self.count((Id::HttpResponses, 0), 1, entry, |symbols| response_key(entry.model, values, symbols));
    }

    /// Declares the initial series of a model and class at zero: the first failure is a visible increase only if an earlier scrape had
    /// the series.
    fn declare_series(&mut self, entry: RecordContext<'_>) {
        if self.declared.insert((entry.model, entry.classes)) {
            let entry = RecordContext { cache_slot: None, ..entry };
            for values in INITIAL_SERIES {
                self.count((Id::HttpResponses, 0), 0, entry, |symbols| response_key(entry.model, values, symbols));
            }
        }
    }

    /// Declares the initial series of unadmitted models. A server that never answered has no other series.
    pub fn declare_overflow_series(&mut self, moment: TimePoint) {
        let other = self.interner.text(OVERFLOW_MODEL);
        self.declare_series(RecordContext { model: other, ..RecordContext::new(moment, None) });
    }
}

/// Builds the key of a response series; empty values become absent attributes.
fn response_key(model: Symbol, values: [&str; 4], symbols: &mut Interner) -> [Symbol; 5] {
    let [traffic, class, answered_by, fault] =
        values.map(|value| if value.is_empty() { Symbol::default() } else { symbols.text(value) });
    [model, traffic, class, answered_by, fault]
}
