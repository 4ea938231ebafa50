//! Metrics scraped from servers during a run, summarized over the whole run and over slices. Pure.
//!
//! A scrape belongs to the slice in which it was requested. A counter's increase between two scrapes belongs to the
//! later one. A counter that decreased restarted at zero with its server.
//!
//! # Window
//! The scrapes cover the window of the report's figures, from the first start to the last end. The first scrape after
//! it belongs to it, because it has the last increase of a counter. `from_s` and `to_s` state what they cover, so a
//! report shows that both windows agree to within one scrape interval.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::ascii_plot::{format_percent, format_value, with_thousands};
use super::metric::MetricUnit;
use crate::measure::server_metrics::{MetricKind, SeriesAggregation, ServerMetric};
use crate::measure::time::Stamp;
use crate::trace_file::server_metrics::Scrape;

/// One scrape, on the shared timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScrapePoint {
    /// Scrape time in nanoseconds; negative before the timeline's zero.
    pub at: i64,
    /// Nanoseconds since the previous scrape; zero for the first.
    pub span: u64,
    /// Gauge values.
    pub levels: BTreeMap<ServerMetric, f64>,
    /// Counter increases since the previous scrape.
    pub growth: BTreeMap<ServerMetric, f64>,
    /// `true` if the scrape returned no metrics.
    pub failed: bool,
}

/// The scrapes of one server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerScrapes {
    /// URL of the server.
    pub url: String,
    /// Counted scrapes in time order.
    pub points: Vec<ScrapePoint>,
}

impl ServerScrapes {
    /// Selects the scrapes whose time on the shared timeline `counts` accepts. Counter increases since the last rejected
    /// scrape still count.
    pub fn from_scrapes<'a>(
        url: String,
        scrapes: impl Iterator<Item = &'a Scrape>,
        shift: u64,
        counts: impl Fn(i64) -> bool,
    ) -> Self {
        let mut before: BTreeMap<ServerMetric, f64> = BTreeMap::new();
        let (mut last, mut moments) = (None, Vec::new());
        for scrape in scrapes {
            let mut moment = ScrapePoint {
                at: scrape.at.saturating_add_unsigned(shift),
                failed: scrape.figures.is_empty(),
                ..ScrapePoint::default()
            };
            if !moment.failed {
                let since: i64 = last.replace(scrape.at).unwrap_or(scrape.at);
                moment.span = scrape.at.saturating_sub(since).max(0).unsigned_abs();
            }
            for (figure, value) in &scrape.figures {
                match figure.kind() {
                    MetricKind::Gauge => _ = moment.levels.insert(*figure, *value),
                    MetricKind::Counter => {
                        if let Some(before) = before.insert(*figure, *value) {
                            let grown = if *value < before { *value } else { *value - before };
                            moment.growth.insert(*figure, grown);
                        }
                    }
                }
            }
            if counts(moment.at) {
                moments.push(moment);
            }
        }
        Self { url, points: moments }
    }

    /// Returns the waiting requests of each scrape that reports them, from the first such scrape on.
    pub fn waiting_requests(&self) -> Vec<(Stamp, f64)> {
        let samples =
            || self.points.iter().filter_map(|moment| Some((moment.at, *moment.levels.get(&ServerMetric::Waiting)?)));
        let first = samples().map(|(at, _)| at).min().unwrap_or_default();
        samples().map(|(at, waiting)| (Stamp::from_nanos(at.abs_diff(first)), waiting)).collect()
    }
}

/// Summary of one server's metrics.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ServerSummary {
    /// URL of the scraped page.
    pub url: String,
    /// Scrapes with metrics.
    pub scrapes: u64,
    /// Scrapes without metrics.
    pub failed: u64,
    /// Start of the time that the counters cover, on the shared timeline.
    pub from_s: f64,
    /// Time of the last scrape.
    pub to_s: f64,
    /// Summary of each metric.
    pub figures: BTreeMap<ServerMetric, Trend>,
    /// Means of the server's own histograms.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub durations: BTreeMap<ServerMetric, MeanDuration>,
    /// Share of prompt tokens found in the prefix cache; absent without lookups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_hit_rate: Option<f64>,
}

/// Mean of a histogram of the server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MeanDuration {
    /// Mean, in seconds.
    pub mean_s: f64,
    /// Requests that the server counted.
    pub requests: f64,
}

/// Summary of one metric over time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Trend {
    /// A gauge.
    Level {
        /// Unit of the value.
        unit: &'static str,
        /// Mean over the scrapes.
        avg: f64,
        /// Minimum.
        min: f64,
        /// Maximum.
        max: f64,
    },
    /// A counter.
    Counter {
        /// Unit of the value.
        unit: &'static str,
        /// Total increase.
        total: f64,
        /// Increase per second.
        per_second: f64,
    },
}

impl ServerSummary {
    /// Summarizes the scrapes whose time, in nanoseconds of the shared timeline, `times` accepts.
    pub fn summarize(watched: &ServerScrapes, times: &impl Fn(i64) -> bool) -> Self {
        let moments = || watched.points.iter().filter(|moment| times(moment.at));
        let seconds = moments().map(|moment| moment.span).sum::<u64>() as f64 / 1e9;
        let mut figures = BTreeMap::new();
        for figure in ServerMetric::ALL {
            let unit = figure.unit();
            match figure.kind() {
                MetricKind::Gauge => {
                    let values: Vec<f64> = moments().filter_map(|moment| moment.levels.get(&figure).copied()).collect();
                    if values.is_empty() {
                        continue;
                    }
                    let avg = values.iter().sum::<f64>() / values.len() as f64;
                    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
                    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    figures.insert(figure, Trend::Level { unit, avg, min, max });
                }
                MetricKind::Counter => {
                    let mut grown = moments().filter_map(|moment| moment.growth.get(&figure)).peekable();
                    if grown.peek().is_none() {
                        continue;
                    }
                    let total = grown.sum();
                    let per_second = if seconds > 0.0 { total / seconds } else { 0.0 };
                    figures.insert(figure, Trend::Counter { unit, total, per_second });
                }
            }
        }
        let total = |figure: ServerMetric| match figures.get(&figure) {
            Some(Trend::Counter { total, .. }) => Some(*total),
            _ => None,
        };
        let queries = total(ServerMetric::PrefixQueries).filter(|queries| *queries > 0.0);
        let prefix_hit_rate = total(ServerMetric::PrefixHits).zip(queries).map(|(hits, queries)| hits / queries);
        let mean = |(seconds, requests): (ServerMetric, ServerMetric)| {
            let requests = total(requests).filter(|requests| *requests > 0.0)?;
            Some((seconds, MeanDuration { mean_s: total(seconds)? / requests, requests }))
        };
        let durations = ServerMetric::DURATIONS.into_iter().filter_map(mean).collect();
        let failed = moments().filter(|moment| moment.failed).count() as u64;
        let edge = |moment: Option<&ScrapePoint>, before: fn(&ScrapePoint) -> u64| {
            moment.map_or(0.0, |moment| moment.at.saturating_sub_unsigned(before(moment)) as f64 / 1e9)
        };
        Self {
            url: watched.url.clone(),
            scrapes: moments().count() as u64 - failed,
            failed,
            from_s: edge(moments().next(), |moment| moment.span),
            to_s: edge(moments().last(), |_| 0),
            figures,
            durations,
            prefix_hit_rate,
        }
    }

    /// Builds the table of metrics. The first row is the header.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let head = [&*self.url, "avg", "min", "max", "total", "per second"].map(str::to_owned);
        let mut rows = vec![head.to_vec()];
        let in_means = |figure: &ServerMetric| {
            ServerMetric::DURATIONS.iter().any(|(seconds, requests)| [seconds, requests].contains(&figure))
        };
        for (figure, went) in self.figures.iter().filter(|(figure, _)| !in_means(figure)) {
            let shown = |value: f64| format_figure(value, figure.unit());
            let none = String::new;
            let cells = match *went {
                Trend::Level { avg, min, max, .. } => [shown(avg), shown(min), shown(max), none(), none()],
                Trend::Counter { total, per_second, .. } => {
                    [none(), none(), none(), shown(total), format!("{per_second:.1}")]
                }
            };
            rows.push(std::iter::once(figure.label().to_owned()).chain(cells).collect());
        }
        for (figure, mean) in &self.durations {
            let name = format!("{} per request", figure.label());
            let avg = format_value(mean.mean_s * 1e3, MetricUnit::Time);
            let none = String::new;
            rows.push(vec![name, avg, none(), none(), format!("{} requests", mean.requests), none()]);
        }
        if let Some(rate) = self.prefix_hit_rate {
            let row = ["prefix hit rate", "", "", "", &format_figure(rate, "1"), ""];
            rows.push(row.map(str::to_owned).to_vec());
        }
        rows
    }
}

/// Metrics in each row of the slice table.
pub(super) const SLICE_FIGURES: [ServerMetric; 4] =
    [ServerMetric::Waiting, ServerMetric::Running, ServerMetric::KvUsage, ServerMetric::Preemptions];

/// Aggregates a metric over all servers by its own rule: sum, maximum or mean.
pub(super) fn aggregate(servers: &[ServerSummary], figure: ServerMetric) -> Option<String> {
    aggregate_value(servers, figure).map(|value| format_figure(value, figure.unit()))
}

/// The number of [`aggregate`].
pub(super) fn aggregate_value(servers: &[ServerSummary], figure: ServerMetric) -> Option<f64> {
    let of = |server: &ServerSummary| match server.figures.get(&figure)? {
        Trend::Level { max, .. } if figure.aggregation() == SeriesAggregation::Max => Some(*max),
        Trend::Level { avg, .. } => Some(*avg),
        Trend::Counter { total, .. } => Some(*total),
    };
    let values: Vec<f64> = servers.iter().filter_map(of).collect();
    match figure.aggregation() {
        _ if values.is_empty() => None,
        SeriesAggregation::Sum | SeriesAggregation::Latest => Some(values.iter().sum()),
        SeriesAggregation::Max => Some(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        SeriesAggregation::Mean => Some(values.iter().sum::<f64>() / values.len() as f64),
    }
}

fn format_figure(value: f64, unit: &str) -> String {
    match unit {
        "1" => format_percent(value),
        "bytes" => format!("{:.1} GiB", value / f64::from(1 << 30)),
        "bytes/s" => format!("{:.2} GiB/s", value / f64::from(1 << 30)),
        "W" => format!("{value:.0} W"),
        _ if value.fract() == 0.0 && (0.0..1e15).contains(&value) => with_thousands(value as u64),
        _ => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(second: i64, waiting: f64, tokens: f64) -> Scrape {
        let figures = [(ServerMetric::Waiting, waiting), (ServerMetric::PromptTokens, tokens)].into();
        Scrape { at: second * 1_000_000_000, figures, ..Scrape::default() }
    }

    fn watched(scrapes: &[Scrape], from: i64) -> ServerScrapes {
        ServerScrapes::from_scrapes("u".to_owned(), scrapes.iter(), 0, |at| at >= from * 1_000_000_000)
    }

    fn counter(server: &ServerSummary) -> (f64, f64) {
        match server.figures[&ServerMetric::PromptTokens] {
            Trend::Counter { total, per_second, .. } => (total, per_second),
            Trend::Level { .. } => panic!("tokens are counted"),
        }
    }

    #[test]
    fn a_counter_counts_what_it_grew_though_its_server_began_again() {
        let failed = Scrape { at: 2_000_000_000, failed: Some("gone".to_owned()), ..Scrape::default() };
        let scrapes = [scrape(0, 0.0, 100.0), scrape(1, 2.0, 150.0), failed, scrape(3, 4.0, 30.0)];
        let server = ServerSummary::summarize(&watched(&scrapes, 0), &|_| true);
        assert_eq!((counter(&server), server.scrapes, server.failed), ((80.0, 80.0 / 3.0), 3, 1));
        let level = Trend::Level { unit: "requests", avg: 2.0, min: 0.0, max: 4.0 };
        assert_eq!(server.figures[&ServerMetric::Waiting], level);
        let late = ServerSummary::summarize(&watched(&scrapes, 0), &|at| at >= 3_000_000_000);
        assert_eq!((counter(&late), late.scrapes, late.failed), ((30.0, 15.0), 1, 0));
    }

    #[test]
    fn what_grew_since_the_last_scrape_of_a_warm_up_counts() {
        let scrapes = [scrape(0, 9.0, 0.0), scrape(1, 9.0, 40.0), scrape(2, 1.0, 100.0)];
        let server = ServerSummary::summarize(&watched(&scrapes, 2), &|_| true);
        assert_eq!((counter(&server), server.scrapes), ((60.0, 60.0), 1));
    }

    #[test]
    fn a_histogram_of_the_server_has_a_mean_and_the_window_starts_where_its_counters_do() {
        let at = |second: i64, seconds: f64, requests: f64| Scrape {
            at: second * 1_000_000_000,
            figures: [(ServerMetric::QueueSeconds, seconds), (ServerMetric::QueueRequests, requests)].into(),
            ..Scrape::default()
        };
        let scrapes = [at(0, 9.0, 3.0), at(2, 10.0, 5.0), at(3, 12.0, 9.0)];
        let server = ServerSummary::summarize(&watched(&scrapes, 1), &|_| true);
        assert_eq!(server.durations[&ServerMetric::QueueSeconds], MeanDuration { mean_s: 0.5, requests: 6.0 });
        assert_eq!((server.from_s, server.to_s), (0.0, 3.0));
        assert_eq!(server.table()[1][..2], ["queue time per request", "500ms"]);
        assert_eq!(server.table().len(), 2, "the parts of the mean have no rows");
    }

    #[test]
    fn a_queue_is_of_the_scrapes_that_tell_of_it() {
        let failed = Scrape { at: 1_000_000_000, failed: Some("gone".to_owned()), ..Scrape::default() };
        let scrapes = [scrape(-1, 3.0, 0.0), scrape(0, 5.0, 0.0), failed, scrape(2, 9.0, 0.0)];
        let at = |seconds: u64| Stamp::from_nanos(seconds * 1_000_000_000);
        assert_eq!(watched(&scrapes, -9).waiting_requests(), [(at(0), 3.0), (at(1), 5.0), (at(3), 9.0)]);
        assert_eq!(watched(&[], 0).waiting_requests(), []);
    }

    #[test]
    fn servers_are_added_up_as_the_figure_wants_it() {
        let level = |figure: ServerMetric, avg: f64, max: f64| {
            (figure, Trend::Level { unit: figure.unit(), avg, min: 0.0, max })
        };
        let server = |waiting: f64, usage: f64| ServerSummary {
            url: String::new(),
            scrapes: 1,
            failed: 0,
            from_s: 0.0,
            to_s: 1.0,
            figures: [level(ServerMetric::Waiting, waiting, 9.0), level(ServerMetric::KvUsage, 0.1, usage)].into(),
            durations: BTreeMap::new(),
            prefix_hit_rate: None,
        };
        let servers = [server(1.5, 0.25), server(2.0, 0.75)];
        assert_eq!(aggregate(&servers, ServerMetric::Waiting).as_deref(), Some("3.5"));
        assert_eq!(aggregate(&servers, ServerMetric::KvUsage).as_deref(), Some("75.0 %"));
        assert_eq!(aggregate(&servers, ServerMetric::Preemptions), None);
    }
}
