//! Metrics of released versions: every later version exports them with the same names, units, attributes and bounds.
//!
//! `tests/data/releases/VERSION/metrics.txt` has the catalog of that version, one instrument per line. An instrument may gain
//! attributes and bounds, and the catalog instruments; a test that fails here means that users lose dashboards.

use std::collections::BTreeSet;

use streamgauge::export::registry::catalog::{Id, InstrumentKind};

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
    let released = include_str!("../data/releases/0.1.0/metrics.txt");
    let now = rows();
    assert!(released.lines().count() >= 48, "{} instruments", released.lines().count());
    for (head, attributes, bounds) in released.lines().map(parse) {
        let (_, now_attributes, now_bounds) =
            now.iter().find(|row| row.0 == head).unwrap_or_else(|| panic!("no `{head}` any more"));
        let lost = |then: &BTreeSet<String>, now: &BTreeSet<String>| then.difference(now).cloned().collect::<Vec<_>>();
        assert_eq!(lost(&attributes, now_attributes), Vec::<String>::new(), "attributes of {head}");
        assert_eq!(lost(&bounds, now_bounds), Vec::<String>::new(), "bounds of {head}");
    }
}
