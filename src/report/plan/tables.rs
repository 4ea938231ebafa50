//! Named lines and tables of a plan, shared by the formats for people. The first row of a table is its header.

use super::alternative::{AlternativePlan, PlanBasis};
use super::fleet::Fleet;
use super::measured_level::MeasuredLevel;
use super::replicas::Reserves;
use super::reserve_effect::ReserveEffect;
use super::{CapacityPlan, TrafficSummary};
use crate::report::ascii_plot::{format_percent, format_value, with_thousands};
use crate::report::metric::MetricUnit;
use crate::report::text_layout::gpu_count;

/// Named lines. A line without a name continues the previous one.
pub(super) fn lines(plan: &CapacityPlan) -> Vec<(&'static str, String)> {
    let measured = &plan.measured;
    let mut lines = vec![
        ("plan", summary_text(&plan.fleet, plan.traffic.is_constant)),
        ("", interval(plan)),
        ("capacity", capacity(plan)),
    ];
    lines.retain(|(_, text)| !text.is_empty());
    let slos = if measured.slos.is_empty() { String::new() } else { format!(" of {}", measured.slos.join("; ")) };
    lines.push(("SLO", format!("{}{slos}", measured.goals)));
    lines.push(("sweep", format!("{}: {} levels", measured.path, measured.levels.len())));
    lines.push(("traffic", traffic_text(&plan.traffic)));
    lines.extend(plan.traffic.mix.map(|mix| ("mix", format!("{mix}; in the sweep {}", measured.mix))));
    let constant = Some(&plan.constant_fleet).filter(|_| !plan.traffic.is_constant);
    let cost = cost_text(&plan.fleet, constant, plan.dollars_per_million_good_tokens);
    lines.extend(cost.map(|text| ("cost", text)));
    lines.extend(plan.power.map(|power| {
        let text = format!(
            "{:.0} W per replica, {:.0} W on average, {:.2} output tokens per joule",
            power.watts_per_replica, power.mean_watts, power.tokens_per_joule
        );
        ("power", text)
    }));
    lines.extend(
        plan.miss_share
            .map(|share| ("misses", format!("{} of requests{}", format_percent(share), while_down(&plan.reserves)))),
    );
    lines.extend(raw_throughput(plan).map(|text| ("throughput", text)));
    lines
}

/// Replicas and GPUs at the peak and on average.
pub(super) fn summary_text(fleet: &Fleet, is_constant: bool) -> String {
    let Fleet { peak_replicas, mean_replicas, peak_gpus, .. } = *fleet;
    let gpus = peak_gpus.map_or_else(String::new, |gpus| format!(" ({})", gpu_count(gpus)));
    let replicas = if peak_replicas == 1 { "replica" } else { "replicas" };
    match is_constant {
        true => format!("{} {replicas}{gpus}", with_thousands(peak_replicas)),
        false => {
            format!("{} {replicas}{gpus} at the peak, {mean_replicas:.2} on average", with_thousands(peak_replicas))
        }
    }
}

/// The peak at both ends of the capacity's interval, where they differ from the plan.
fn interval(plan: &CapacityPlan) -> String {
    let end = |peak: Option<u64>, capacity: Option<f64>| {
        let (peak, capacity) = peak.zip(capacity).filter(|(peak, _)| *peak != plan.fleet.peak_replicas)?;
        Some(format!("{} if a replica holds {capacity:.2} requests/s", with_thousands(peak)))
    };
    let ends = [end(plan.peak_at_low, plan.capacity.low), end(plan.peak_at_high, plan.capacity.high)];
    ends.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn capacity(plan: &CapacityPlan) -> String {
    let (capacity, levels) = (&plan.capacity, &plan.measured.levels);
    let at_least = if capacity.at_least { "at least " } else { "" };
    let level = &levels[capacity.level];
    let low = match capacity.low {
        Some(low) => format!("surely holds {low:.2}"),
        None => "surely holds no measured rate".to_owned(),
    };
    let high = match capacity.high {
        Some(high) => format!("surely misses at {high:.2}"),
        None => "surely misses at no measured rate".to_owned(),
    };
    format!("{at_least}{:.2} requests/s per replica (level {}); {low}, {high}", capacity.rate, level.name)
}

/// The traffic in sums.
pub(super) fn traffic_text(traffic: &TrafficSummary) -> String {
    if traffic.is_constant {
        return format!("{:.2} requests/s all day", traffic.mean_rate);
    }
    format!(
        "{}: {} requests in {:.1} min, {:.2} requests/s on average, {:.2} in the busiest {:.0} s",
        traffic.source,
        with_thousands(traffic.requests as u64),
        traffic.seconds / 60.0,
        traffic.mean_rate,
        traffic.peak_rate,
        traffic.window_s
    )
}

/// GPU-hours and money of a day, also with the peak all day.
pub(super) fn cost_text(fleet: &Fleet, constant: Option<&Fleet>, per_million: Option<f64>) -> Option<String> {
    let hours = fleet.gpu_hours_per_day?;
    let mut text = format!("{hours:.1} GPU-hours a day");
    if let Some(dollars) = fleet.dollars_per_day {
        text += &format!(", {} a day", money(dollars));
    }
    if let Some(constant) = constant {
        let (hours, dollars) = (constant.gpu_hours_per_day?, constant.dollars_per_day);
        let dollars = dollars.map_or_else(String::new, |dollars| format!(", {}", money(dollars)));
        text += &format!(" (with the peak all day {hours:.1} GPU-hours{dollars})");
    }
    if let Some(dollars) = per_million {
        text += &format!(", {} per million output tokens that meet the SLO", money(dollars));
    }
    Some(text)
}

fn raw_throughput(plan: &CapacityPlan) -> Option<String> {
    let raw = plan.raw_throughput.as_ref()?;
    let bare = plan.alternatives.iter().find(|of| of.by == PlanBasis::Throughput && !of.has_reserves)?;
    let missed = match (bare.missed_requests, bare.miss_share) {
        (Some(missed), Some(share)) => format!(
            ", and up to {} of {} requests miss the SLO ({})",
            with_thousands(missed.round() as u64),
            with_thousands(plan.traffic.requests.round() as u64),
            format_percent(share)
        ),
        _ => "; the SLO limits gaps, so requests that miss it are not counted".to_owned(),
    };
    let replicas = if bare.fleet.peak_replicas == 1 { "replica" } else { "replicas" };
    Some(format!(
        "{:.2} requests/s at most (level {}); a plan by it alone buys {} {replicas}{missed}",
        raw.requests_per_second,
        raw.level,
        with_thousands(bare.fleet.peak_replicas)
    ))
}

/// Words for the replicas that are down.
pub(super) fn while_down(reserves: &Reserves) -> String {
    match reserves.failed {
        0 => String::new(),
        1 => " while 1 replica is down".to_owned(),
        failed => format!(" while {failed} replicas are down"),
    }
}

/// The levels of the sweep.
pub(super) fn levels(plan: &CapacityPlan) -> Vec<Vec<String>> {
    let has_watts = plan.measured.levels.iter().any(|level| level.watts.is_some());
    let mut head = ["level", "requests/s", "answered/s", "requests", "tok/s", "misses"].map(str::to_owned).to_vec();
    head.extend(has_watts.then(|| "power".to_owned()));
    head.extend(["SLO".to_owned(), String::new()]);
    let row = |(at, level): (usize, &MeasuredLevel)| {
        let mut row = vec![
            level.name.clone(),
            format!("{:.2}", level.rate),
            format!("{:.2}", level.throughput),
            with_thousands(level.requests),
            format_value(level.output_tokens_per_second, MetricUnit::Rate),
            level.miss_share.map_or_else(dash, format_percent),
        ];
        row.extend(has_watts.then(|| level.watts.map_or_else(dash, |watts| format!("{watts:.0} W"))));
        let mark = if at == plan.capacity.level { "capacity" } else { "" };
        row.extend([level.verdict.label().to_owned(), mark.to_owned()]);
        row
    };
    std::iter::once(head).chain(plan.measured.levels.iter().enumerate().map(row)).collect()
}

/// This plan and others.
pub(super) fn alternatives(plan: &CapacityPlan) -> Vec<Vec<String>> {
    let row = |of: &AlternativePlan| {
        let name = match (of.by, of.has_reserves) {
            (PlanBasis::Slo, true) => "this plan",
            (PlanBasis::Slo, false) => "without reserves",
            (PlanBasis::Throughput, true) => "by throughput",
            (PlanBasis::Throughput, false) => "by throughput, without reserves",
        };
        fleet_row(name, &of.fleet, of.miss_share)
    };
    let head = fleet_head("if all replicas serve", &plan.fleet);
    std::iter::once(head).chain(plan.alternatives.iter().map(row)).collect()
}

/// A reserve, with and without.
pub(super) fn effect(effect: &ReserveEffect) -> Vec<Vec<String>> {
    let (with, without) = (&effect.with, &effect.without);
    vec![
        fleet_head(effect.reserve.label(), &with.fleet),
        fleet_row("with", &with.fleet, with.miss_share),
        fleet_row("without", &without.fleet, without.miss_share),
    ]
}

fn fleet_head(name: &str, fleet: &Fleet) -> Vec<String> {
    let mut head = vec![name.to_owned(), "peak".to_owned(), "mean".to_owned()];
    head.extend(fleet.gpu_hours_per_day.map(|_| "GPU-hours/day".to_owned()));
    head.extend(fleet.dollars_per_day.map(|_| "$/day".to_owned()));
    head.push("misses".to_owned());
    head
}

fn fleet_row(name: &str, fleet: &Fleet, miss_share: Option<f64>) -> Vec<String> {
    let mut row = vec![name.to_owned(), with_thousands(fleet.peak_replicas), format!("{:.2}", fleet.mean_replicas)];
    row.extend(fleet.gpu_hours_per_day.map(|hours| format!("{hours:.1}")));
    row.extend(fleet.dollars_per_day.map(money));
    row.push(miss_share.map_or_else(dash, format_percent));
    row
}

fn dash() -> String {
    "-".to_owned()
}

/// Dollars, with cents below 1,000.
pub(super) fn money(dollars: f64) -> String {
    if dollars < 1_000.0 { format!("${dollars:.2}") } else { format!("${}", with_thousands(dollars.round() as u64)) }
}
