//! Responses, by the class of their status, by who answered, and by whose fault they failed.
//!
//! A model has a series for each combination that has occurred, some 20 at most, and the [usual](USUAL) ones from its
//! first request on.

use super::{Aggregate, RecordContext};
use crate::export::catalog::Id;
use crate::export::error_type::status_class;
use crate::export::interner::{Interner, Symbol};
use crate::export::models::OVERFLOW_MODEL;
use crate::export::snapshot::TimePoint;
use crate::measure::failure::FailureOrigin;
use crate::measure::record::RequestRecord;

/// What responses usually are, as `traffic`, `status_class`, `answered_by`, `fault`.
const INITIAL_SERIES: [[&str; 4]; 5] = [
    [INFERENCE, "2xx", "upstream", ""],
    [INFERENCE, "4xx", "upstream", "client"],
    [INFERENCE, "5xx", "upstream", "upstream"],
    [INFERENCE, "5xx", "proxy", "upstream"],
    [INFERENCE, "5xx", "proxy", "proxy"],
];

/// `traffic` of requests that ask for generation.
const INFERENCE: &str = "inference";

impl Aggregate {
    /// Counts a response.
    pub(super) fn record_response(&mut self, record: &RequestRecord, entry: RecordContext<'_>) {
        let traffic = match (record.shape.dialect, record.shape.probe) {
            (Some(_), _) => INFERENCE,
            (None, Some(_)) => "probe",
            (None, None) => "other",
        };
        if traffic == INFERENCE {
            self.declare_series(entry.model, entry.moment);
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

    /// Makes the usual series of a model's responses appear before they count anything: the first failure is an increase
    /// only of a series that was scraped before.
    fn declare_series(&mut self, model: Symbol, moment: TimePoint) {
        if self.declared.insert(model) {
            let entry = RecordContext { moment, exemplar: None, model, cache_slot: None };
            for values in INITIAL_SERIES {
                self.count((Id::HttpResponses, 0), 0, entry, |symbols| response_key(model, values, symbols));
            }
        }
    }

    /// Announces the responses of models that nobody knows yet: of a server that never answered there is no other.
    pub fn declare_overflow_series(&mut self, moment: TimePoint) {
        let other = self.interner.text(OVERFLOW_MODEL);
        self.declare_series(other, moment);
    }
}

/// The key of a series of responses; what is empty is absent.
fn response_key(model: Symbol, values: [&str; 4], symbols: &mut Interner) -> [Symbol; 5] {
    let [traffic, class, answered_by, fault] =
        values.map(|value| if value.is_empty() { Symbol::default() } else { symbols.text(value) });
    [model, traffic, class, answered_by, fault]
}
