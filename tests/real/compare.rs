//! Comparing long texts and many series, so that a failure shows only the differences.

use std::time::{Duration, Instant};

use super::processes::SOON;
use super::support::metrics_parser::{Labels, Series, Table};

/// Differences that are shown.
const SHOWN: usize = 8;
/// Bytes that are shown before and after the place where two texts begin to differ.
const AROUND: usize = 120;

/// Fails where two texts begin to differ.
pub(crate) fn assert_same_text(one: &str, other: &str, what: &str) {
    if one == other {
        return;
    }
    let at = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    let around = |text: &str| {
        let (from, to) = (at.saturating_sub(AROUND), (at + AROUND).min(text.len()));
        text[text.floor_char_boundary(from)..text.floor_char_boundary(to)].to_owned()
    };
    panic!("{what}: they differ from byte {at}:\n  {:?}\n  {:?}", around(one), around(other));
}

/// The differences between two tables.
pub(crate) fn differences(one: &Table, other: &Table) -> Vec<String> {
    let difference = |((name, labels), series): (&(String, Labels), &Series), other: Option<&Series>| match other {
        Some(other) if series == other => None,
        other => Some(format!("{name} {labels:?}\n    {series:?}\n    {other:?}")),
    };
    let missing = other.iter().filter(|(key, _)| !one.contains_key(*key));
    let differing = one.iter().filter_map(|entry| difference(entry, other.get(entry.0)));
    differing.chain(missing.filter_map(|entry| difference(entry, None))).collect()
}

/// Fails with the first differences of two tables.
pub(crate) fn assert_same(one: &Table, other: &Table, what: &str) {
    let found = differences(one, other);
    let shown = found.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    assert!(found.is_empty(), "{what}: {} of {} series differ:\n  {shown}", found.len(), one.len());
}

/// Fails unless `read` gives the same table soon.
pub(crate) fn assert_same_soon(one: &Table, read: impl Fn() -> Table, what: &str) {
    let started_at = Instant::now();
    while started_at.elapsed() < SOON && !differences(one, &read()).is_empty() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_same(one, &read(), what);
}

/// The series that `keep`s, each as `keep` makes it.
pub(crate) fn only(table: &Table, keep: impl Fn(&str, &Series) -> Option<Series>) -> Table {
    let entries = table.iter().filter_map(|(key, series)| Some((key.clone(), keep(&key.0, series)?)));
    entries.collect()
}

/// The series that stay as they are while nothing is asked for: all but those of the process and its connections.
pub(crate) fn still(table: &Table) -> Table {
    let moving = ["streamgauge_proxy_upstream_connections", "streamgauge_proxy_resource_usage"];
    let moves = |name: &str| name.starts_with("process_") || moving.contains(&name);
    only(table, |name, series| (!moves(name)).then(|| series.clone()))
}
