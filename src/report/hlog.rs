//! Writes `histograms.hlog`: a run's latencies in HdrHistogram's log format.
//!
//! Each metric has one histogram with its key as the tag (`ttft`, `itl`, `e2e_from_planned`, …). Values are nanoseconds
//! with three significant digits, up to one hour. Logs of shards merge exactly by adding histograms with equal tags,
//! because a value always maps to the same bucket. Reports use the exact values in the records instead.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, IntervalLogWriterError, Tag};

use super::definitions::Definitions;
use super::metric::{MetricUnit, ReportMetric};
use super::request_view::RequestView;
use crate::measure::time::{Gap, Stamp, extend_span};
use crate::trace_file::header::SIMULATED;

/// File name.
pub const FILE: &str = "histograms.hlog";

/// Maximum recorded time: one hour. Longer times count as this value.
const MAX_TIME_NANOS: u64 = 3_600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;
/// The file displays milliseconds, as other tools' logs do.
const NANOS_PER_MILLISECOND: f64 = 1e6;

/// Collects requests and renders the file. Takes at most 11 histograms of 300 KiB.
#[derive(Debug, Default)]
pub struct Hlog {
    histograms: BTreeMap<ReportMetric, Histogram<u64>>,
    span: Option<(Stamp, Stamp)>,
}

impl Hlog {
    /// Adds a request. Latencies are those of successes; send lag is that of all requests.
    pub fn add(&mut self, request: &RequestView) {
        self.span = Some(extend_span(self.span, request.started(), request.ended.unwrap_or(request.sent)));
        if let Some(planned) = request.planned {
            self.count(ReportMetric::Lag, request.sent.since(planned));
        }
        if request.succeeded() {
            Definitions::Streamgauge.measure(request, |metric, value| {
                if metric.unit() == MetricUnit::Time {
                    self.count(metric, Gap::from_nanos(value));
                }
            });
        }
    }

    fn count(&mut self, metric: ReportMetric, time: Gap) {
        // Fails only for invalid bounds, and these are constants.
        let empty = || Histogram::new_with_bounds(1, MAX_TIME_NANOS, SIGNIFICANT_DIGITS).ok();
        if !self.histograms.contains_key(&metric) {
            self.histograms.extend(empty().map(|empty| (metric, empty)));
        }
        if let Some(histogram) = self.histograms.get_mut(&metric) {
            histogram.saturating_record(time.as_nanos());
        }
    }

    /// Renders the file. `zero` is the wall-clock time of the run's start, in nanoseconds since 1970; `simulated` adds
    /// the comment that marks a twin's prediction.
    ///
    /// # Errors
    /// Returns an error if a histogram cannot be serialized.
    pub fn render(&self, zero: u64, simulated: bool) -> io::Result<Vec<u8>> {
        let (first, last) = self.span.unwrap_or_default();
        let begin = Duration::from_nanos(zero.saturating_add(first.as_nanos()));
        let (mut file, mut packer) = (Vec::new(), V2DeflateSerializer::new());
        let mut log = IntervalLogWriterBuilder::new();
        log.add_comment("streamgauge: nanoseconds; the maximum of each line is in milliseconds");
        if simulated {
            log.add_comment(SIMULATED);
        }
        let mut log = log.with_max_value_divisor(NANOS_PER_MILLISECOND).begin_log_with(&mut file, &mut packer)?;
        for (metric, histogram) in &self.histograms {
            let written = log.write_histogram(histogram, begin, last.since(first).into(), Tag::new(metric.key()));
            written.map_err(|error| match error {
                IntervalLogWriterError::IoError(error) => error,
                IntervalLogWriterError::SerializeError(error) => io::Error::other(format!("{error:?}")),
            })?;
        }
        drop(log);
        Ok(file)
    }
}
