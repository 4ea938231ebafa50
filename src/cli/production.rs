//! The captured results of a trace, which a run that replays the trace is compared with.

use std::path::Path;

use anyhow::Context as _;

use crate::measure::time::Window;
use crate::replay::plan::trace_source::{self, TraceReadOptions, TraceSource};
use crate::report::accumulate::{Accumulator, AccumulatorSettings};
use crate::report::definitions::Definitions;
use crate::report::request_view::RequestView;
use crate::trace::conversion_loss::ConversionLosses;

/// Aggregates the captured results of a part of a trace. Also returns what the conversion of the trace lost.
pub(super) fn production_baseline(
    trace: &Path,
    part: Window,
    definitions: Definitions,
) -> anyhow::Result<(Accumulator, ConversionLosses)> {
    let mut fold = Accumulator::new(AccumulatorSettings { definitions, ..AccumulatorSettings::default() });
    let opened = trace_source::open(trace, TraceReadOptions::default()).map_err(anyhow::Error::from_boxed)?;
    let TraceSource { rows, losses, .. } = opened;
    for (row, number) in rows.zip(1_u64..) {
        let row = row.map_err(anyhow::Error::from_boxed)?;
        if part.has(row.at) {
            let request = RequestView::from_row(row, 0, None);
            fold.add(&request.with_context(|| format!("{}, request {number}", trace.display()))?)?;
        }
    }
    Ok((fold, losses))
}
