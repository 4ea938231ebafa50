//! A run over time: latencies, load and rates of equal slices, all on one axis.

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use crate::measure::slo::{Slo, Slos};
use crate::report::ascii_plot::{format_percent, format_value, with_thousands};
use crate::report::metric::{MetricUnit, ReportMetric};
use crate::report::request_point::{MAX_POINT_SLOS, RequestPoint};
use crate::stats::samples::percentile;
use crate::stats::slice_histogram::{HistogramColumn, HistogramColumns};

/// Slices of a chart. Longer runs have longer slices.
pub(super) const MAX_SLICES: usize = 120;
/// Fewest slices of a chart.
const MIN_SLICES: usize = 12;
/// Requests of a slice on average, so that its percentiles are more than noise.
const MIN_SLICE_REQUESTS: usize = 20;
/// Lengths of slices in seconds.
const SLICE_SECONDS: [f64; 16] =
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0];

/// Equal slices of a time window, in nanoseconds of the shared timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeAxis {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) slice: u64,
}

impl TimeAxis {
    /// The shortest round slices that suffice for a window with this number of requests.
    pub(super) fn of((from, to): (u64, u64), requests: usize) -> Self {
        let seconds = to.saturating_sub(from) as f64 / 1e9;
        let most = (requests / MIN_SLICE_REQUESTS).clamp(MIN_SLICES, MAX_SLICES);
        let suffices = |length: &f64| seconds / length <= (most - 1) as f64;
        // Beyond the longest round length any length does.
        let length = SLICE_SECONDS.into_iter().find(suffices).unwrap_or(seconds / (most - 2) as f64);
        let slice = ((length * 1e9) as u64).max(1);
        Self { from: from / slice * slice, to: to.max(from + 1), slice }
    }

    /// Number of slices.
    pub(super) fn count(&self) -> usize {
        ((self.to - self.from).div_ceil(self.slice) as usize).max(1)
    }

    fn index(&self, at: u64) -> usize {
        ((at.saturating_sub(self.from) / self.slice) as usize).min(self.count() - 1)
    }

    /// Start and end of a slice; the window ends within the last one.
    pub(super) fn bounds(&self, slice: usize) -> (u64, u64) {
        let from = self.from + slice as u64 * self.slice;
        (from, (from + self.slice).min(self.to))
    }

    fn seconds(&self, slice: usize) -> f64 {
        let (from, to) = self.bounds(slice);
        (to - from) as f64 / 1e9
    }

    /// The middle of every slice, in seconds.
    pub(super) fn column(&self) -> Column {
        let middle = |slice: usize| {
            let (from, to) = self.bounds(slice);
            (from + to) as f64 / 2e9
        };
        Column::new("time", ChartUnit::Seconds, (0..self.count()).map(middle))
    }

    /// A chart of columns over this axis.
    pub(super) fn chart(&self, title: &str, summary: String, unit: ChartUnit, columns: Vec<Column>) -> Chart {
        self.bound(
            Chart::new(ChartKind::Lines, title, summary, std::iter::once(self.column()).chain(columns).collect()),
            unit,
        )
    }

    /// Sets the axis of a chart with times of its own.
    fn bound(&self, chart: Chart, unit: ChartUnit) -> Chart {
        chart
            .x("time", ChartUnit::Seconds, false)
            .y(unit, false)
            .attribute("x-from", format!("{:.6}", self.from as f64 / 1e9))
            .attribute("x-to", format!("{:.6}", self.to as f64 / 1e9))
    }

    /// Describes the slices.
    pub(super) fn text(&self) -> String {
        format!("{} slices of {} s", self.count(), self.slice as f64 / 1e9)
    }
}

/// Latencies of a metric by the start of the requests, with the SLO's limits in milliseconds.
pub(super) fn latency(
    axis: &TimeAxis,
    points: &[RequestPoint],
    (metric, label): (ReportMetric, &str),
    limits: &[f64],
) -> Option<Chart> {
    let mut slices: Vec<Vec<u64>> = vec![Vec::new(); axis.count()];
    for (point, value) in points.iter().filter_map(|point| Some((point, point.value(metric)?))) {
        slices[axis.index(point.started)].push(value);
    }
    slices.iter_mut().for_each(|values| values.sort_unstable());
    let max = slices.iter().filter_map(|values| values.last()).max()?;
    let of = |percent: f64| {
        let value =
            |values: &Vec<u64>| percentile(values.len() as u64, percent, |rank| display(values[rank as usize] as f64));
        let values = slices.iter().map(value);
        Column::with_gaps(format!("p{percent}"), ChartUnit::Millis, values)
    };
    let greatest = slices.iter().map(|values| values.last().map(|value| display(*value as f64)));
    let mut columns: Vec<Column> = [50.0, 90.0, 99.0].map(of).into();
    columns.push(Column::with_gaps("maximum", ChartUnit::Millis, greatest));
    let summary = format!(
        "{} of the requests that began in each slice ({}); at most {}.",
        label,
        axis.text(),
        format_value(display(*max as f64), MetricUnit::Time)
    );
    Some(axis.chart(&format!("{label} over time"), summary, ChartUnit::Millis, columns).limits(limits))
}

fn display(nanos: f64) -> f64 {
    MetricUnit::Time.to_display(nanos)
}

/// Inter-token latencies by the time of the later token, with the SLO's limits in milliseconds.
pub(super) fn itl(axis: &TimeAxis, gaps: &HistogramColumns, limits: &[f64]) -> Option<Chart> {
    let middle = |at: usize| (gaps.from_nanos as f64 + (at as f64 + 0.5) * gaps.column_nanos as f64) / 1e9;
    let of = |percent: f64| {
        let values = gaps.columns.iter().map(|column| column.percentile(percent).map(display));
        Column::with_gaps(format!("p{percent}"), ChartUnit::Millis, values)
    };
    let max = gaps.columns.iter().filter_map(|column| column.percentile(100.0)).reduce(f64::max)?;
    let all: u64 = gaps.columns.iter().map(HistogramColumn::count).sum();
    let columns = [50.0, 90.0, 99.0].map(of);
    let time = Column::new("time", ChartUnit::Seconds, (0..gaps.columns.len()).map(middle));
    let summary = format!(
        "{} gaps in parts of {:.3} s, each at the time of its later token; at most {}.",
        with_thousands(all),
        gaps.column_nanos as f64 / 1e9,
        format_value(display(max), MetricUnit::Time)
    );
    let chart = Chart::new(ChartKind::Lines, "ITL over time", summary, std::iter::once(time).chain(columns).collect());
    Some(axis.bound(chart, ChartUnit::Millis).attribute("least", display(max).to_string()).limits(limits))
}

/// Share of the requests that began in each slice and met each SLO.
pub(super) fn goodput(axis: &TimeAxis, points: &[RequestPoint], slos: &Slos) -> Option<Chart> {
    let of = |(at, slo): (usize, &Slo)| {
        let mut counts = vec![(0_u64, 0_u64); axis.count()];
        for (point, met) in points.iter().filter_map(|point| Some((point, point.meets(at)?))) {
            let (good, counted) = &mut counts[axis.index(point.started)];
            *good += u64::from(met);
            *counted += 1;
        }
        let share = |(good, counted): (u64, u64)| (counted > 0).then(|| good as f64 / counted as f64 * 100.0);
        let shares: Vec<Option<f64>> = counts.into_iter().map(share).collect();
        shares.iter().any(Option::is_some).then(|| Column::with_gaps(slo.name(), ChartUnit::Percent, shares))
    };
    let columns: Vec<Column> = slos.iter().take(MAX_POINT_SLOS).enumerate().filter_map(of).collect();
    let shares = columns.iter().flat_map(|column| column.values.iter().flatten());
    let worst = shares.copied().reduce(f64::min)?;
    let summary = format!(
        "Share of the requests that began in each slice ({}) and met the SLO; at least {}.",
        axis.text(),
        format_percent(worst / 100.0)
    );
    Some(axis.chart("Goodput over time", summary, ChartUnit::Percent, columns).attribute("y-top", "105"))
}

/// Requests in flight: the mean and the maximum of each slice, and those of production.
pub(super) fn in_flight(axis: &TimeAxis, points: &[RequestPoint]) -> Option<Chart> {
    let mut changes: Vec<(u64, i64)> = Vec::with_capacity(2 * points.len());
    for (point, ended) in points.iter().filter_map(|point| Some((point, point.ended()?))) {
        // At one moment, ends come before starts.
        changes.extend([(point.sent(), 1), (ended.max(point.sent()), -1)]);
    }
    changes.sort_unstable();
    let (mut open, mut at) = (0_i64, axis.from);
    let mut busy = vec![0_u128; axis.count()];
    let mut most = vec![0_i64; axis.count()];
    for (moment, change) in changes {
        let moment = moment.clamp(axis.from, axis.to);
        while at < moment {
            let slice = axis.index(at);
            let end = axis.bounds(slice).1.min(moment);
            busy[slice] += u128::from(end - at) * open.max(0).unsigned_abs() as u128;
            most[slice] = most[slice].max(open);
            at = end;
        }
        open += change;
        let slice = axis.index(moment);
        most[slice] = most[slice].max(open);
    }
    let max = most.iter().max().copied().filter(|max| *max > 0)?;
    let mean = (0..axis.count()).map(|slice| busy[slice] as f64 / (axis.seconds(slice) * 1e9).max(1.0));
    let columns = vec![
        Column::new("mean", ChartUnit::Number, mean),
        Column::new("maximum", ChartUnit::Number, most.iter().map(|most| *most as f64)),
    ];
    let summary = format!("Open requests in each slice ({}), at most {max}.", axis.text());
    Some(axis.chart("Requests in flight over time", summary, ChartUnit::Number, columns))
}

/// Requests planned, sent and failed in each slice, per second.
pub(super) fn requests(axis: &TimeAxis, points: &[RequestPoint], has_plan: bool) -> Option<Chart> {
    let mut counts = [(); 3].map(|()| vec![0_u64; axis.count()]);
    let [planned, sent, failed] = &mut counts;
    for point in points {
        planned[axis.index(point.started)] += 1;
        sent[axis.index(point.sent())] += 1;
        if !point.success {
            failed[axis.index(point.ended().unwrap_or(point.sent()))] += 1;
        }
    }
    let failures: u64 = failed.iter().sum();
    let rate = |name: &str, counts: &[u64]| {
        let rate = |(slice, count): (usize, &u64)| *count as f64 / axis.seconds(slice).max(1e-9);
        Column::new(name, ChartUnit::Number, counts.iter().enumerate().map(rate))
    };
    let mut columns = vec![rate("sent", sent)];
    if has_plan {
        columns.push(rate("planned", planned));
    }
    if failures > 0 {
        columns.push(rate("without a complete response", failed));
    }
    let summary = format!(
        "Requests per second in each slice ({}): {} sent, {} without a complete response.",
        axis.text(),
        with_thousands(points.len() as u64),
        with_thousands(failures)
    );
    (!points.is_empty()).then(|| axis.chart("Requests per second over time", summary, ChartUnit::Number, columns))
}

/// Output tokens per second. The tokens of a response count evenly from its first token to its end.
pub(super) fn output_tokens(axis: &TimeAxis, points: &[RequestPoint]) -> Option<Chart> {
    let mut tokens = vec![0.0; axis.count()];
    for point in points {
        let (Some(osl), Some(ended)) = (point.osl(), point.ended()) else { continue };
        let first = point.first_token().unwrap_or(ended).min(ended);
        let (start, end) = (axis.index(first), axis.index(ended));
        for (slice, tokens) in tokens.iter_mut().enumerate().take(end + 1).skip(start) {
            let (from, to) = axis.bounds(slice);
            let overlap = to.min(ended).saturating_sub(from.max(first)) as f64;
            let share = if ended > first { overlap / (ended - first) as f64 } else { 1.0 };
            *tokens += osl as f64 * share;
        }
    }
    let rates: Vec<f64> = (0..axis.count()).map(|slice| tokens[slice] / axis.seconds(slice).max(1e-9)).collect();
    let max = rates.iter().copied().fold(0.0, f64::max);
    let summary = format!(
        "Of complete responses, in each slice ({}), at most {}/s. The tokens of a response count evenly from its first \
         token to its end.",
        axis.text(),
        with_thousands(max.round() as u64)
    );
    let column = Column::new("output tokens/s", ChartUnit::Number, rates);
    (max > 0.0).then(|| axis.chart("Output tokens per second over time", summary, ChartUnit::Number, vec![column]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn slices_are_round_and_few() {
        for (seconds, slice) in [(1, 0.05), (60, 1.0), (600, 10.0), (86_400, 1_800.0)] {
            let axis = TimeAxis::of((0, seconds * SECOND), 1_000_000);
            assert_eq!(axis.slice as f64 / 1e9, slice, "{seconds} s");
            assert!(axis.count() <= MAX_SLICES && TimeAxis::of((0, seconds * SECOND), 300).count() <= 15);
        }
        assert!(TimeAxis::of((5, u64::MAX), 1_000_000).count() <= MAX_SLICES);
        assert_eq!((TimeAxis::of((7, 7), 1).count(), TimeAxis::of((0, 0), 0).count()), (1, 1));
    }

    #[test]
    fn the_last_slice_ends_with_the_window() {
        let axis = TimeAxis::of((SECOND / 2, 61 * SECOND + 300_000_000), 1_000_000);
        assert_eq!((axis.from, axis.slice, axis.count()), (0, SECOND, 62));
        assert_eq!(axis.bounds(61), (61 * SECOND, 61 * SECOND + 300_000_000));
        assert_eq!((axis.index(0), axis.index(u64::MAX)), (0, 61));
    }
}
