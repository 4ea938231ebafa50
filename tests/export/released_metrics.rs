//! Metrics of released versions: every later version exports them with the same names, units, attributes and bounds.
//!
//! `tests/data/releases/VERSION/metrics.txt` has the catalog of that version, one instrument per line. An instrument may gain
//! attributes and bounds, and the catalog instruments; a test that fails here means that users lose dashboards. What the
//! version in development gains belongs in its file, so that no metric is without this promise.

use std::collections::BTreeSet;

use streamgauge::export::registry::catalog::{Id, InstrumentKind};

const RELEASED: &str = include_str!("../data/releases/0.1.0/metrics.txt");

/// Name, kind, unit and Prometheus name in one text; attributes; bounds.
type Row = (String, BTreeSet<String>, BTreeSet<String>);

fn rows() -> Vec<Row> {
    let of = |id: Id| {
        let instrument = id.instrument();
        let (kind, bounds) = match instrument.kind {
            InstrumentKind::Counter | InstrumentKind::ObservedCounter => ("counter", &[][..]),
            InstrumentKind::UpDownCounter => ("up_down_counter", &[][..]),
            InstrumentKind::Gauge => ("gauge", &[][..]),
            InstrumentKind::Info => ("info", &[][..]),
            InstrumentKind::Histogram(buckets) => ("histogram", buckets.bounds),
        };
        let convention = instrument.only_in.map_or("both".to_owned(), |only| format!("{only:?}"));
        let prometheus = instrument.prometheus.unwrap_or("-");
        let unit = if instrument.unit.is_empty() { "-" } else { instrument.unit };
        let head = format!("{} {kind} {unit} {prometheus} {convention}", instrument.name);
        let attributes = instrument.attributes.iter().map(ToString::to_string).collect();
        (head, attributes, bounds.iter().map(ToString::to_string).collect())
    };
    Id::all().map(of).collect()
}

fn parse(line: &str) -> Row {
    let [head, attributes, bounds] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
    let list = |text: &str| text.split(',').filter(|item| *item != "-").map(str::to_owned).collect();
    (head.to_owned(), list(attributes), list(bounds))
}

#[test]
fn every_metric_of_0_1_is_exported_with_its_attributes_and_bounds() {
    let now = rows();
    for (head, attributes, bounds) in RELEASED.lines().map(parse) {
        let (_, now_attributes, now_bounds) =
            now.iter().find(|row| row.0 == head).unwrap_or_else(|| panic!("no `{head}` any more"));
        let lost = |then: &BTreeSet<String>, now: &BTreeSet<String>| then.difference(now).cloned().collect::<Vec<_>>();
        assert_eq!(lost(&attributes, now_attributes), Vec::<String>::new(), "attributes of {head}");
        assert_eq!(lost(&bounds, now_bounds), Vec::<String>::new(), "bounds of {head}");
    }
}

#[test]
fn every_metric_of_the_version_in_development_is_in_its_file() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(version, "0.1.0", "add tests/data/releases/{version}/metrics.txt, and compare with it too");
    let released: Vec<Row> = RELEASED.lines().map(parse).collect();
    let line = |(head, attributes, bounds): &Row| {
        let list = |items: &BTreeSet<String>| match items.is_empty() {
            true => "-".to_owned(),
            false => items.iter().map(String::as_str).collect::<Vec<_>>().join(","),
        };
        format!("{head} | {} | {}", list(attributes), list(bounds))
    };
    let missing: Vec<String> = rows().iter().filter(|row| !released.contains(row)).map(line).collect();
    assert!(missing.is_empty(), "lines of metrics.txt that are missing:\n{}", missing.join("\n"));
}
