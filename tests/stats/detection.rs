//! Rates at which change points, warm-ups and trends are found, and found by mistake.

use rand::{RngExt as _, SeedableRng as _};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64Mcg;
use streamgauge::stats::change_points::change_points;
use streamgauge::stats::trend::trend;
use streamgauge::stats::warm_up::{WarmUp, warm_up};

use super::latency_processes::LatencyProcess;
use super::{RUNS, parallel};

/// A history with this variation from run to run, and a factor from run `at` on.
fn history(count: usize, variation: f64, at: usize, factor: f64, seed: u64) -> Vec<f64> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut value = |n: usize| {
        let noise: f64 = random.sample(StandardNormal);
        (1.0 + variation * noise) * if n < at { 1.0 } else { factor }
    };
    (0..count).map(&mut value).collect()
}

/// Figures of a comparison without SLOs.
const FAMILY: usize = 14;

#[test]
fn a_change_of_10_percent_is_found_within_one_run_and_a_steady_history_has_none() {
    let histories = if cfg!(debug_assertions) { RUNS / 4 } else { RUNS };
    let seeds: Vec<u64> = (0..histories).collect();
    let share = |of: &(dyn Fn(u64) -> bool + Sync)| {
        parallel(&seeds, |seed| of(*seed)).into_iter().filter(|is| *is).count() as f64 / histories as f64
    };
    for variation in [0.02, 0.03, 0.1] {
        let alarms = share(&|seed| !change_points(&history(100, variation, 100, 1.0, seed), 1).is_empty());
        eprintln!("variation {variation}: {:.1} % of steady histories have a change", alarms * 100.0);
        assert!(alarms <= 0.05, "{variation}: {alarms}");
    }
    let one_of_family = |seed: u64| (0..FAMILY as u64).map(move |figure| seed * FAMILY as u64 + figure);
    let alarms = share(&|seed| {
        one_of_family(seed).any(|seed| !change_points(&history(100, 0.03, 100, 1.0, seed), FAMILY).is_empty())
    });
    eprintln!("{:.1} % of steady histories of {FAMILY} figures have a change", alarms * 100.0);
    assert!(alarms <= 0.05, "{FAMILY} figures: {alarms}");
    for (family, variation, at, least) in [
        (1, 0.02, 20, 0.95),
        (1, 0.02, 50, 0.95),
        (1, 0.02, 95, 0.95),
        (1, 0.03, 50, 0.95),
        (1, 0.03, 80, 0.95),
        (1, 0.03, 95, 0.95),
        (1, 0.02, 99, 0.5),
        (1, 0.03, 99, 0.2),
        (FAMILY, 0.02, 20, 0.95),
        (FAMILY, 0.03, 50, 0.95),
        (FAMILY, 0.03, 95, 0.95),
        (FAMILY, 0.02, 99, 0.3),
    ] {
        let near = |found: usize| found.abs_diff(at) <= 1;
        let found = |seed| change_points(&history(100, variation, at, 1.1, seed), family);
        let hits = share(&|seed| found(seed).iter().any(|point| near(point.index)));
        let others = share(&|seed| found(seed).iter().any(|point| !near(point.index)));
        eprintln!("{family} figures, {variation} at {at}: found {:.1} %, others {:.1} %", hits * 100.0, others * 100.0);
        assert!(hits >= least, "variation {variation}, run {at}: found in {hits}");
    }
}

/// Slices around 20 with the autocorrelation `phi` and a variance of 1.
fn slices(count: usize, phi: f64, seed: u64) -> Vec<f64> {
    let process = LatencyProcess::Autoregressive { phi };
    process.series(count, seed).iter().map(|latency| 20.0 + 2.0 * latency.ln()).collect()
}

#[test]
fn a_steady_run_has_no_warm_up_and_no_trend_and_others_have_theirs() {
    for (phi, most_warm_ups, least_warm_ups, most_trends) in
        [(0.0, 0.01, 0.97, 0.07), (0.5, 0.03, 0.93, 0.09), (0.8, 0.08, 0.7, 0.17)]
    {
        let share = |of: &dyn Fn(u64) -> bool| (0..RUNS).filter(|seed| of(*seed)).count() as f64 / RUNS as f64;
        let found = |height: f64| {
            share(&|seed| {
                let recover = |(n, slice): (usize, f64)| slice + height * (-(n as f64) / 6.0).exp();
                let run: Vec<f64> = slices(120, phi, seed).into_iter().enumerate().map(recover).collect();
                matches!(warm_up(&run), Some(WarmUp::Until(_)))
            })
        };
        let trends = |slope: f64| {
            share(&|seed| {
                let drift = |(n, slice): (usize, f64)| (n as f64, slice + slope * n as f64);
                let run: Vec<(f64, f64)> = slices(120, phi, seed).into_iter().enumerate().map(drift).collect();
                trend(&run).unwrap().p_value <= 0.05
            })
        };
        let (false_warm_ups, warm_ups) = (found(0.0), found(6.0));
        let (false_trends, drifts) = (trends(0.0), trends(0.03));
        eprintln!(
            "{phi}: warm-ups {false_warm_ups} false, {warm_ups} found; trends {false_trends} false, {drifts} found"
        );
        assert!(false_warm_ups <= most_warm_ups && warm_ups >= least_warm_ups, "{phi}: {false_warm_ups} {warm_ups}");
        assert!(false_trends <= most_trends && drifts >= 0.95, "{phi}: {false_trends} {drifts}");
    }
}
