//! Responses, by the class of their status, by who answered, and by whose fault they failed.
//!
//! A model has a series for each combination that has occurred, some 20 at most, and the [usual](USUAL) ones from its
//! first request on.

use super::{Aggregate, Entry};
use crate::export::catalog::Id;
use crate::export::endings::status_class;
use crate::export::labels::{Sym, Symbols};
use crate::export::models::OVERFLOW;
use crate::export::snapshot::Moment;
use crate::measure::failure::FailureOrigin;
use crate::measure::record::RequestRecord;

/// What responses usually are, as `traffic`, `status_class`, `answered_by`, `fault`.
const USUAL: [[&str; 4]; 5] = [
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
    pub(super) fn response(&mut self, record: &RequestRecord, entry: Entry<'_>) {
        let traffic = match (record.shape.dialect, record.shape.probe) {
            (Some(_), _) => INFERENCE,
            (None, Some(_)) => "probe",
            (None, None) => "other",
        };
        if traffic == INFERENCE {
            self.announce(entry.model, entry.moment);
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
    fn announce(&mut self, model: Sym, moment: Moment) {
        if self.announced.insert(model) {
            let entry = Entry { moment, exemplar: None, model, kind: None };
            for values in USUAL {
                self.count((Id::HttpResponses, 0), 0, entry, |symbols| response_key(model, values, symbols));
            }
        }
    }

    /// Announces the responses of models that nobody knows yet: of a server that never answered there is no other.
    pub fn begin(&mut self, moment: Moment) {
        let other = self.symbols.text(OVERFLOW);
        self.announce(other, moment);
    }
}

/// The key of a series of responses; what is empty is absent.
fn response_key(model: Sym, values: [&str; 4], symbols: &mut Symbols) -> [Sym; 5] {
    let [traffic, class, answered_by, fault] =
        values.map(|value| if value.is_empty() { Sym::default() } else { symbols.text(value) });
    [model, traffic, class, answered_by, fault]
}
