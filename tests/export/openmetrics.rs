//! The OpenMetrics text against the one that `prometheus-client`, the reference library, writes of the same snapshot.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::registry::{Registry, Unit};
use streamgauge::export::prometheus::ScrapeFormat;
use streamgauge::export::registry::catalog::{Convention, Id, Instrument, InstrumentKind};
use streamgauge::export::registry::interner::{Label, LabelValue};
use streamgauge::export::registry::snapshot::{BucketExemplar, DataPoint, FamilySnapshot, PointValue, Snapshot};
use streamgauge::measure::histogram::Histogram;

use crate::records;

/// The part of the page that the library encodes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// All values, without exemplars: the library takes those from observations only.
    Values,
    /// Histograms of the exemplars alone.
    Exemplars,
}

#[derive(Debug)]
struct Reference {
    snapshot: Snapshot,
    part: Part,
}

impl Collector for Reference {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.snapshot.families {
            let instrument = family.id.instrument();
            let kind = match instrument.kind {
                InstrumentKind::Counter | InstrumentKind::ObservedCounter => MetricType::Counter,
                InstrumentKind::UpDownCounter | InstrumentKind::Gauge => MetricType::Gauge,
                InstrumentKind::Info => MetricType::Info,
                InstrumentKind::Histogram(_) => MetricType::Histogram,
            };
            if self.part == Part::Exemplars && kind.as_str() != "histogram" {
                continue;
            }
            let (name, unit) = name_and_unit(instrument);
            let description = instrument.description;
            let mut metric = encoder.encode_descriptor(&name, description, unit.as_ref(), kind)?;
            for point in &family.points {
                encode_point(&mut metric, instrument, point, self.part)?;
            }
        }
        Ok(())
    }
}

/// The name without its unit, which the library appends.
fn name_and_unit(instrument: &Instrument) -> (String, Option<Unit>) {
    let name = instrument.prometheus.map_or_else(|| instrument.name.replace('.', "_"), str::to_owned);
    let (unit, suffix) = match instrument.unit {
        "s" => (Some(Unit::Seconds), "_seconds"),
        "By" => (Some(Unit::Bytes), "_bytes"),
        _ => (None, ""),
    };
    let suffix = if matches!(instrument.kind, InstrumentKind::Info) { "_info" } else { suffix };
    (name.strip_suffix(suffix).unwrap_or(&name).to_owned(), unit)
}

fn encode_point(metric: &mut MetricEncoder<'_>, instrument: &Instrument, point: &DataPoint, part: Part) -> fmt::Result {
    let value = |value: &LabelValue| match value {
        LabelValue::Text(text) => text.to_string(),
        LabelValue::Int(number) => number.to_string(),
        LabelValue::Bool(truth) => truth.to_string(),
    };
    let labels: Vec<_> = point.labels.iter().map(|label| (label.name.replace('.', "_"), value(&label.value))).collect();
    if matches!(instrument.kind, InstrumentKind::Info) {
        return metric.encode_info(&labels);
    }
    let mut series = metric.encode_family(&labels)?;
    let is_counter = matches!(instrument.kind, InstrumentKind::Counter | InstrumentKind::ObservedCounter);
    match (&point.data, part) {
        (PointValue::Count(count), _) => series.encode_counter::<NoLabelSet, _, u64>(count, None),
        (PointValue::Gauge(level), _) => series.encode_gauge(level),
        (PointValue::Number(seconds), _) if is_counter => series.encode_counter::<NoLabelSet, _, u64>(seconds, None),
        (PointValue::Number(seconds), _) => series.encode_gauge(seconds),
        (PointValue::Histogram(histogram, _), Part::Values) => {
            series.encode_histogram::<NoLabelSet>(histogram.sum(), histogram.count(), &buckets(histogram), None)
        }
        (PointValue::Histogram(histogram, exemplars), Part::Exemplars) => {
            let observed = HistogramWithExemplars::new(histogram.layout().bounds().iter().copied());
            for (_, BucketExemplar { value, unix, trace_id, span_id }) in exemplars {
                let labels = vec![("trace_id", trace_id.to_string()), ("span_id", span_id.to_string())];
                // A time is exported in milliseconds.
                let time = UNIX_EPOCH + Duration::from_millis(unix / 1_000_000);
                observed.observe(*value, Some(labels), Some(time));
            }
            observed.encode(series)
        }
    }
}

/// Upper bounds with the count of each bucket alone.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds = histogram.layout().bounds().iter().copied().chain([f64::INFINITY]);
    let mut before = 0;
    let counts =
        histogram.cumulative().into_iter().map(|cumulative| cumulative - std::mem::replace(&mut before, cumulative));
    bounds.zip(counts).collect()
}

/// A snapshot with series of every kind: those of requests, and some that the control thread reads.
fn snapshot(convention: Convention) -> Snapshot {
    let mut snapshot = records::snapshot(convention);
    let mut read = |id: Id, values: &[LabelValue], data: PointValue| {
        let names = id.instrument().attributes.iter();
        let labels: Arc<[Label]> =
            names.zip(values).map(|(name, value)| Label { name: (*name).into(), value: value.clone() }).collect();
        let points = vec![DataPoint { labels, created: 1_763_000_000_000_000_000, data }];
        snapshot.families.push(FamilySnapshot { id, points });
    };
    read(Id::UpstreamUp, &[], PointValue::Gauge(1));
    read(Id::UpstreamConnections, &["idle".into()], PointValue::Gauge(-2));
    read(Id::BuildInfo, &["0.1.0 \"quoted\"\\".into()], PointValue::Gauge(1));
    read(Id::ProcessCpu, &[], PointValue::Number(0.052));
    read(Id::ProcessMemory, &[], PointValue::Gauge(39_837_696));
    read(Id::ProcessStart, &[], PointValue::Number(1_763_000_000.488_292));
    snapshot
}

fn of_library(snapshot: &Snapshot, part: Part) -> BTreeSet<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Reference { snapshot: snapshot.clone(), part }));
    let mut out = String::new();
    text::encode(&mut out, &registry).unwrap();
    out.lines().map(canonical).collect()
}

fn of_program(snapshot: &Snapshot) -> BTreeSet<String> {
    let text = String::from_utf8(ScrapeFormat::OpenMetrics.encode(snapshot)).unwrap();
    assert!(text.ends_with("\n# EOF\n"));
    text.lines().map(canonical).collect()
}

/// A line with its labels in order, and without what is free in a number: `3` for `3.0`.
fn canonical(line: &str) -> String {
    if line.starts_with('#') {
        return line.to_owned();
    }
    let number = |text: &str| format!("{}", text.parse::<f64>().unwrap());
    let (sample, exemplar) = line.split_once(" # ").unwrap_or((line, ""));
    let (series, value) = sample.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    // OpenMetrics and Go write very small and very large bounds with an exponent of two digits; the library does not.
    let bound = |pair: &str| {
        Some(pair.strip_prefix("le=\"")?.trim_end_matches('"').parse().ok()?)
            .filter(|bound: &f64| bound.is_finite() && !(1e-4..1e6).contains(bound))
    };
    let pairs = split_labels(labels.strip_suffix('}').unwrap()).into_iter();
    let mut pairs: Vec<String> =
        pairs.map(|pair| bound(pair).map_or_else(|| pair.to_owned(), |bound| format!("le=\"{bound}\""))).collect();
    pairs.sort_unstable();
    let mut canonical = format!("{name}{{{}}} {}", pairs.join(","), number(value));
    if let Some((labels, numbers)) = exemplar.rsplit_once("} ") {
        canonical += &format!(" # {labels}}}");
        numbers.split(' ').for_each(|text| canonical += &format!(" {}", number(text)));
    }
    canonical
}

/// Splits at the commas between values; a quote inside of a value is escaped.
fn split_labels(labels: &str) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let is_between = |c: char| {
        let was_escaped = std::mem::replace(&mut escaped, false);
        match c {
            '\\' => escaped = !was_escaped,
            '"' if !was_escaped => quoted = !quoted,
            _ => {}
        }
        c == ',' && !quoted
    };
    labels.split(is_between).filter(|pair| !pair.is_empty()).collect()
}

#[test]
fn every_line_is_the_one_that_the_reference_library_writes() {
    for convention in [Convention::Frozen, Convention::Latest] {
        let snapshot = snapshot(convention);
        let without_exemplar = |line: String| line.split(" # {").next().unwrap().to_owned();
        // The library writes no start times.
        let is_created = |line: &String| line.split('{').next().unwrap().ends_with("_created");
        let ours = of_program(&snapshot).into_iter().filter(|line| !is_created(line)).map(without_exemplar);
        let (ours, library) = (ours.collect::<BTreeSet<_>>(), of_library(&snapshot, Part::Values));
        assert!(ours.len() > 1_000, "{} lines", ours.len());
        assert_eq!(ours.difference(&library).collect::<Vec<_>>(), [""; 0], "only the program's");
        assert_eq!(library.difference(&ours).collect::<Vec<_>>(), [""; 0], "only the library's");
    }
}

/// The counts are not compared: the library makes them of the exemplars alone.
#[test]
fn every_exemplar_is_in_the_bucket_and_the_words_of_the_reference_library() {
    let snapshot = snapshot(Convention::Frozen);
    let exemplars = |lines: BTreeSet<String>| -> BTreeSet<(String, String)> {
        let pairs = lines.iter().filter_map(|line| line.split_once(" # {"));
        pairs.map(|(sample, exemplar)| (sample.rsplit_once(' ').unwrap().0.to_owned(), exemplar.to_owned())).collect()
    };
    let ours = exemplars(of_program(&snapshot));
    assert!(ours.len() > 50, "{} exemplars", ours.len());
    assert_eq!(ours, exemplars(of_library(&snapshot, Part::Exemplars)));
}
