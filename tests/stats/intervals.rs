//! Rates at which intervals contain the truth.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use streamgauge::stats::bootstrap::BlockBootstrap;
use streamgauge::stats::change::Verdict;
use streamgauge::stats::estimate::{Estimate, mean, proportion};
use streamgauge::stats::percentile_estimate::{inflation, percentiles};
use streamgauge::stats::time_slices::ValueSlices;

use super::latency_processes::LatencyProcess;
use super::{RUNS, parallel};

/// Figures, and the rates at which their intervals of 95 % may contain the truth. The mean of a queue hangs on rare long
/// waits that a short run may lack.
const FIGURES: [(&str, RangeInclusive<f64>); 4] =
    [("p50", 0.92..=0.98), ("p99", 0.92..=0.98), ("mean", 0.88..=0.98), ("goodput of 90 %", 0.92..=0.98)];

const INDEPENDENT: LatencyProcess = LatencyProcess::Autoregressive { phi: 0.0 };
const PROCESSES: [LatencyProcess; 8] = [
    INDEPENDENT,
    LatencyProcess::Autoregressive { phi: 0.5 },
    LatencyProcess::Autoregressive { phi: 0.8 },
    LatencyProcess::Autoregressive { phi: 0.95 },
    LatencyProcess::Queue { load: 0.5, variation: 1.0 },
    LatencyProcess::Queue { load: 0.8, variation: 1.0 },
    LatencyProcess::Queue { load: 0.5, variation: 4.0 },
    LatencyProcess::Queue { load: 0.8, variation: 4.0 },
];

/// Results of one figure over all runs.
#[derive(Clone, Copy, Default)]
struct Coverage {
    /// Runs with an interval.
    given: u64,
    /// Runs whose interval contains the truth.
    right: u64,
}

impl Coverage {
    fn add(&mut self, estimate: &Estimate, truth: f64) {
        if let Ok(interval) = estimate.interval() {
            self.given += 1;
            self.right += u64::from(interval.contains(truth));
        }
    }

    fn rate(self) -> f64 {
        self.right as f64 / self.given as f64
    }
}

#[test]
fn the_processes_have_the_percentiles_of_their_formulas() {
    for process in PROCESSES {
        let series: Vec<Vec<f64>> = (0..20).map(|seed| process.series(20_000, seed)).collect();
        let all = series.concat();
        for percent in [50.0, 90.0, 99.0] {
            let up_to = process.percentile(percent);
            let share = all.iter().filter(|latency| **latency <= up_to).count() as f64 / all.len() as f64;
            let off = (share - percent / 100.0).abs() / (1.0 - percent / 100.0);
            assert!(off < 0.2, "{process:?} p{percent}: {share}");
        }
        let average = all.iter().sum::<f64>() / all.len() as f64;
        assert!((average / process.mean() - 1.0).abs() < 0.1, "{process:?}: {average} is not {}", process.mean());
    }
}

#[test]
fn intervals_of_95_percent_contain_the_truth_in_92_to_98_of_100_runs() {
    let counts: &[usize] = if cfg!(debug_assertions) { &[2_000] } else { &[2_000, 10_000, 50_000] };
    let processes = if cfg!(debug_assertions) { &PROCESSES[2..3] } else { &PROCESSES[..] };
    let cells: Vec<(LatencyProcess, usize)> =
        counts.iter().flat_map(|count| processes.iter().map(move |process| (*process, *count))).collect();
    let covered = parallel(&cells, |(process, count)| {
        let truths = [process.percentile(50.0), process.percentile(99.0), process.mean(), 0.9];
        let objective = process.percentile(90.0);
        let mut covered = [Coverage::default(); 4];
        for seed in 0..RUNS {
            let latencies = process.series(*count, seed);
            let (slices, bootstrap) = (ValueSlices::of_values(&latencies), BlockBootstrap::new(seed));
            let met: Vec<bool> = latencies.iter().map(|latency| *latency <= objective).collect();
            let mut estimates = percentiles(&slices, &[50.0, 99.0], &bootstrap);
            estimates.extend(mean(&slices, &bootstrap));
            estimates.extend(proportion(&met, inflation(&slices), &bootstrap));
            covered.iter_mut().zip(estimates.iter().zip(truths)).for_each(|(cell, (of, truth))| cell.add(of, truth));
        }
        covered
    });
    let (mut table, mut broken) = (String::new(), false);
    for ((process, count), covered) in cells.iter().zip(covered) {
        write!(table, "\n{process:?} n {count}:").unwrap();
        for ((name, rates), of) in FIGURES.iter().zip(covered) {
            let wrong = (of.given - of.right) as f64 / RUNS as f64;
            write!(table, " {name} {:.1} % of {};", of.rate() * 100.0, of.given).unwrap();
            // Where many runs hold too little data, those that seem to hold enough are not typical; they must be few.
            let holds = if of.given < RUNS * 3 / 4 { wrong <= 0.12 } else { rates.contains(&of.rate()) };
            table.push_str(if holds { "" } else { " <- BROKEN" });
            broken |= !holds;
        }
    }
    eprintln!("{table}");
    assert!(!broken, "{table}");
}

#[test]
fn a_goodput_with_few_misses_is_not_said_to_be_better_known_than_it_is() {
    let (processes, runs) = if cfg!(debug_assertions) { (&PROCESSES[1..2], 100) } else { (&PROCESSES[..6], 500) };
    for process in processes {
        for percent in [99.0, 99.9, 99.99] {
            let mut covered = Coverage::default();
            let objective = process.percentile(percent);
            for seed in 0..runs {
                let latencies = process.series(2_000, seed);
                let met: Vec<bool> = latencies.iter().map(|latency| *latency <= objective).collect();
                let inflation = inflation(&ValueSlices::of_values(&latencies));
                covered.add(&proportion(&met, inflation, &BlockBootstrap::new(seed)).unwrap(), percent / 100.0);
            }
            eprintln!("{process:?} goodput {percent} %: {:.1} % of {}", covered.rate() * 100.0, covered.given);
            assert!(covered.rate() >= 0.92, "{process:?} {percent}: {}", covered.rate());
        }
    }
}

#[test]
fn two_runs_of_one_server_come_out_worse_in_1_of_40_comparisons() {
    let process = LatencyProcess::Queue { load: 0.5, variation: 1.0 };
    let pairs = if cfg!(debug_assertions) { RUNS / 2 } else { RUNS };
    let run = |seed: u64, factor: f64| {
        let latencies: Vec<f64> = process.series(5_000, seed).iter().map(|latency| latency * factor).collect();
        percentiles(&ValueSlices::of_values(&latencies), &[50.0, 99.0], &BlockBootstrap::new(seed))
    };
    let (mut worse, mut slower) = ([0; 2], [0; 2]);
    for pair in 0..pairs {
        let (a, b, c) = (run(2 * pair, 1.0), run(2 * pair + 1, 1.0), run(2 * pair + 1, 1.5));
        for figure in 0..2 {
            let verdict = |after: &[Estimate], margin| {
                after[figure].relative_change_from(&a[figure], f64::MIN_POSITIVE).map(|change| change.verdict(margin))
            };
            worse[figure] += u64::from(verdict(&b, 0.0) == Ok(Verdict::Worse));
            slower[figure] += u64::from(verdict(&c, 0.05) == Ok(Verdict::Worse));
        }
    }
    let rate = |count: u64| count as f64 / pairs as f64;
    eprintln!("worse: {:?} of equal, {:?} of half as slow again", worse.map(rate), slower.map(rate));
    // Three standard errors of so many pairs.
    let most = 0.025 + 3.0 * (0.025_f64 * 0.975 / pairs as f64).sqrt();
    assert!(worse.iter().all(|count| rate(*count) <= most), "{worse:?} of {pairs}");
    assert!(rate(slower[0]) > 0.95, "{slower:?} of {pairs}");
}
