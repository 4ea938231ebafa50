//! The values of a record that objectives evaluate.

use super::{RequestVerdict, Slo, SloInput, Slos};
use crate::measure::record::RequestRecord;

impl Slos {
    /// Every SLO that applies to this record, with its verdict.
    pub fn verdicts<'a>(&'a self, record: &'a RequestRecord) -> impl Iterator<Item = (&'a Slo, RequestVerdict)> {
        self.judge(SloInput::of(record))
    }
}

impl<'a> SloInput<'a> {
    fn of(record: &'a RequestRecord) -> Self {
        Self {
            route: record.shape.dialect.map(|_| record.shape.route()),
            model: record.shape.model.as_deref().unwrap_or(""),
            classes: &record.shape.classes,
            request_slo: record.shape.slo,
            outcome: record.outcome,
            streamed: record.streamed && record.times.first_token.is_some(),
            ttft: record.ttft(),
            ttfo: record.ttfo(),
            tpot: record.tpot(),
            e2e: record.duration(),
            gap_count: record.gap_count,
            gaps_over: &record.gaps_over,
        }
    }
}
