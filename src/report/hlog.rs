//! `histograms.hlog`: the times of a run as HdrHistogram's log, for tools that read it.
//!
//! One histogram for each number, of nanoseconds to three significant figures up to an hour, its key as the tag (`ttft`,
//! `itl`, `e2e_from_planned`, …). Logs of shards merge by adding what has the same tag, exactly: the same request falls
//! into the same bucket in any shard. The exact values are in the records; a report is made from those.

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

/// The name of the file.
pub const FILE: &str = "histograms.hlog";

/// What is longer is counted as this: an hour.
const MAX_TIME_NANOS: u64 = 3_600_000_000_000;
/// Significant figures.
const SIGNIFICANT_DIGITS: u8 = 3;
/// Outside, times are milliseconds, as in every other tool's log.
const NANOS_PER_MILLISECOND: f64 = 1e6;

/// Takes requests in and makes the file. Memory: at most 11 histograms of 300 KiB.
#[derive(Debug, Default)]
pub struct Hlog {
    histograms: BTreeMap<ReportMetric, Histogram<u64>>,
    span: Option<(Stamp, Stamp)>,
}

impl Hlog {
    /// One request more. Times are those of successes, but for the lag.
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
        // It fails on bounds that make no sense, and these are constants.
        let empty = || Histogram::new_with_bounds(1, MAX_TIME_NANOS, SIGNIFICANT_DIGITS).ok();
        if !self.histograms.contains_key(&metric) {
            self.histograms.extend(empty().map(|empty| (metric, empty)));
        }
        if let Some(histogram) = self.histograms.get_mut(&metric) {
            histogram.saturating_record(time.as_nanos());
        }
    }

    /// The file. `zero` is the wall clock's time at the beginning of the line, in nanoseconds since 1970.
    ///
    /// # Errors
    /// When a histogram cannot be packed.
    pub fn render(&self, zero: u64) -> io::Result<Vec<u8>> {
        let (first, last) = self.span.unwrap_or_default();
        let begin = Duration::from_nanos(zero.saturating_add(first.as_nanos()));
        let (mut file, mut packer) = (Vec::new(), V2DeflateSerializer::new());
        let mut log = IntervalLogWriterBuilder::new();
        log.add_comment("streamgauge: nanoseconds; the maximum of each line is in milliseconds");
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
