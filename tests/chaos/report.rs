//! The report of a run: tables on stdout, and the reasons of a failure.

use comfy_table::{CellAlignment, Table, presets};

use crate::disturbance::World;
use crate::oracle::{Counts, Outcome};
use crate::usage::{Series, Slope};

/// Prints tables whose columns line up.
pub(crate) fn print(table: &Table) {
    println!("{table}\n");
}

fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Exchanges by kind of client and outcome.
pub(crate) fn streams(counts: &Counts, kinds: &[&'static str]) -> Table {
    let outcomes = [Outcome::Whole, Outcome::LeftByClient, Outcome::BrokenByServer, Outcome::AnsweredByProxy];
    let mut table = table(&["client → server", "whole", "left by client", "broken by server", "answered by proxy"]);
    for kind in kinds {
        let number = |outcome| counts.outcomes.get(&(*kind, outcome)).copied().unwrap_or(0).to_string();
        table.add_row([vec![(*kind).to_owned()], outcomes.map(number).to_vec()].concat());
    }
    table
}

/// How often each fault and each unusual reply occurred.
pub(crate) fn faults(counts: &Counts) -> Table {
    let mut table = table(&["fault of", "times"]);
    for (fault, times) in &counts.faults {
        table.add_row([fault.clone(), times.to_string()]);
    }
    table
}

/// Events around the streams.
pub(crate) fn events(world: &World<'_>) -> Table {
    let mut table = table(&["disturbance", "times", "seen at last"]);
    for (what, (times, seen)) in &world.events {
        table.add_row([(*what).to_owned(), times.to_string(), seen.clone()]);
    }
    for [what, reason] in world.skipped() {
        table.add_row([what, "0", reason]);
    }
    table
}

/// Slopes per hour with their 95 % intervals.
pub(crate) fn slopes(slopes: &[(Series, Option<Slope>)]) -> Table {
    let mut table =
        table(&["", "mean", "slope per hour", "95 % interval", "over the run", "p", "samples", "slope is 0"]);
    for (series, slope) in slopes {
        let Some(slope) = slope else {
            table.add_row([&series.name, "", "", "", "", "", "too few", "unknown"]);
            continue;
        };
        let number = |value: f64| format!("{value:.1}");
        let hour = 3_600.0;
        let interval = slope.trend.interval;
        table.add_row([
            series.name.clone(),
            number(slope.mean),
            number(slope.trend.slope * hour),
            format!("{} to {}", number(interval.low * hour), number(interval.high * hour)),
            number(slope.rise),
            format!("{:.3}", slope.trend.p_value),
            slope.samples.to_string(),
            if slope.is_zero { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    table
}

/// Each check with its result.
pub(crate) fn verdicts(checks: &[(&str, String, bool)]) -> Table {
    let mut table = table(&["check", "found", "result"]);
    for (check, found, holds) in checks {
        table.add_row([*check, found, if *holds { "ok" } else { "FAILED" }]);
    }
    table
}
