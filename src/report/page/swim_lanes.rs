//! Swim lanes: when each request was planned, sent, answered and ended.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use crate::report::ascii_plot::with_thousands;
use crate::report::lane_sample::{LaneRequest, LaneSample, MAX_LANE_REQUESTS};

const _: () = assert!(MAX_LANE_REQUESTS <= super::chart::MAX_CHART_ROWS);

/// Draws the sample of `all` requests; `None` without requests.
pub(super) fn chart(sample: &LaneSample, all: u64) -> Option<Chart> {
    let requests = sample.sorted();
    if requests.is_empty() {
        return None;
    }
    let lanes = lanes(&requests);
    let has_sessions = requests.iter().any(|request| request.has_session);
    let unit = if has_sessions { "session" } else { "request" };
    let which = match sample.one_of() {
        1 => format!("all {} requests", with_thousands(requests.len() as u64)),
        one_of => format!(
            "{} of {} requests: 1 of {one_of} {unit}s, by the hash of the {unit}",
            with_thousands(requests.len() as u64),
            with_thousands(all)
        ),
    };
    let count = lanes.iter().max().map_or(0, |last| last + 1);
    let summary = format!(
        "{which}, in {} lanes. A lane has one {unit} at a time; the next {unit} takes the lowest free lane.",
        with_thousands(count as u64)
    );
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let of = |value: fn(&LaneRequest) -> Option<u64>| requests.iter().map(move |request| value(request).map(seconds));
    let sent = |request: &LaneRequest| Some(request.point.sent());
    let first = |request: &LaneRequest| request.point.first_token();
    let outcome = |request: &LaneRequest| match (request.point.success, request.point.cancelled) {
        (true, _) => 1.0,
        (_, true) => 2.0,
        _ => 0.0,
    };
    let columns = vec![
        Column::new("lane", ChartUnit::Number, lanes.iter().map(|lane| *lane as f64)),
        Column::with_gaps("planned", ChartUnit::Seconds, of(|request| Some(request.point.started))),
        Column::with_gaps("sent", ChartUnit::Seconds, of(sent)),
        Column::with_gaps("first token", ChartUnit::Seconds, of(first)),
        Column::with_gaps("end", ChartUnit::Seconds, of(|request| request.point.ended())),
        Column::new("outcome: 0 failed, 1 success, 2 cancelled", ChartUnit::Number, requests.iter().map(outcome)),
    ];
    Some(
        Chart::new(
            ChartKind::Lanes,
            if has_sessions { "Sessions and their requests" } else { "Requests" },
            summary,
            columns,
        )
        .x("time", ChartUnit::Seconds, false)
        .y(ChartUnit::Number, false)
        .full_width(),
    )
}

/// Lane of each request: that of its session, which holds it from its first request to the end of its last one.
fn lanes(requests: &[LaneRequest]) -> Vec<usize> {
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for request in requests {
        let end = request.point.ended().unwrap_or(request.point.started);
        ends.entry(request.session).and_modify(|last| *last = (*last).max(end)).or_insert(end);
    }
    let (mut free_from, mut lane_of): (Vec<u64>, BTreeMap<u64, usize>) = (Vec::new(), BTreeMap::new());
    let place = |request: &LaneRequest| match lane_of.entry(request.session) {
        Entry::Occupied(lane) => *lane.get(),
        Entry::Vacant(entry) => {
            let free = free_from.iter().position(|free| *free <= request.point.started);
            let lane = free.unwrap_or(free_from.len());
            free_from.resize(free_from.len().max(lane + 1), 0);
            free_from[lane] = ends.get(&request.session).copied().unwrap_or(0);
            *entry.insert(lane)
        }
    };
    requests.iter().map(place).collect()
}
