//! Laws for values of any kind.

use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest};
use streamgauge::stats::autocorrelation::autocorrelation_time;
use streamgauge::stats::bootstrap::BlockBootstrap;
use streamgauge::stats::change_points::change_points;
use streamgauge::stats::estimate::{Estimate, mean, proportion, rate};
use streamgauge::stats::hypothesis::{holm, paired, welch};
use streamgauge::stats::percentile_estimate::percentiles;
use streamgauge::stats::regression::fit_line;
use streamgauge::stats::time_slices::ValueSlices;
use streamgauge::stats::trend::trend;
use streamgauge::stats::warm_up::warm_up;

/// Values without NaN of any length and sign, with ties.
fn any_values() -> impl Strategy<Value = Vec<f64>> {
    let value = prop_oneof![Just(0.0), Just(1.0), -1e3..1e3, 0.0..1e12, Just(1e60)];
    proptest::collection::vec(value, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 32 } else { 1_000 }))]

    #[test]
    fn intervals_contain_their_figures_and_percentiles_are_ordered(values in any_values(), seed: u64) {
        let (slices, bootstrap) = (ValueSlices::of_values(&values), BlockBootstrap::new(seed));
        let percents = [0.0, 1.0, 25.0, 50.0, 75.0, 99.0, 100.0];
        let of_percentiles = percentiles(&slices, &percents, &bootstrap);
        prop_assert_eq!(of_percentiles.len(), if values.is_empty() { 0 } else { percents.len() });
        prop_assert!(of_percentiles.is_sorted_by(|a, b| a.value <= b.value));
        let met: Vec<bool> = values.iter().map(|value| *value > 1.0).collect();
        let others = [mean(&slices, &bootstrap), proportion(&met, 1.0, &bootstrap), rate(&values, &values, &bootstrap)];
        for estimate in of_percentiles.iter().chain(others.iter().flatten()) {
            if let Ok(interval) = estimate.interval() {
                prop_assert!(interval.contains(estimate.value), "{interval:?} {}", estimate.value);
            }
            prop_assert!(estimate.effective_count <= values.len() as f64);
        }
        let again = percentiles(&slices, &percents, &BlockBootstrap::new(seed));
        for (a, b) in of_percentiles.iter().zip(&again) {
            prop_assert_eq!(a.interval(), b.interval());
        }
    }

    #[test]
    fn the_order_of_values_inside_of_a_slice_does_not_matter(values in any_values()) {
        // With slices of ten values each, reversed inside of every slice.
        let long: Vec<f64> = values.iter().copied().cycle().take(if values.is_empty() { 0 } else { 2_400 }).collect();
        let reversed: Vec<f64> = long.chunks(10).flat_map(|slice| slice.iter().rev().copied()).collect();
        let of = |values: &[f64]| {
            let estimates = percentiles(&ValueSlices::of_values(values), &[50.0, 90.0], &BlockBootstrap::new(3));
            estimates.iter().map(Estimate::interval).collect::<Vec<_>>()
        };
        prop_assert_eq!(of(&long), of(&reversed));
    }

    #[test]
    fn adjusted_p_values_keep_their_order_and_are_never_smaller(
        p_values in proptest::collection::vec(0.0..=1.0_f64, 0..40)
    ) {
        let adjusted = holm(&p_values);
        for (at, p) in p_values.iter().enumerate() {
            prop_assert!(adjusted[at] >= *p && adjusted[at] <= 1.0);
            prop_assert!(p_values.iter().zip(&adjusted).all(|(other, of)| other > p || *of <= adjusted[at]));
        }
    }

    #[test]
    fn no_series_breaks_a_test(values in any_values(), others in any_values()) {
        let points: Vec<(f64, f64)> = values.iter().copied().zip(others.iter().copied()).collect();
        let timed: Vec<(f64, f64)> = (0..).map(f64::from).zip(values.iter().copied()).collect();
        if let Some(of) = trend(&timed) {
            prop_assert!((0.0..=1.0).contains(&of.p_value) && of.interval.contains(of.slope));
        }
        if let Some(fit) = fit_line(&points, &BlockBootstrap::new(1)) {
            prop_assert!((0.0..=1.0).contains(&fit.r_squared));
        }
        prop_assert!(change_points(&values, 1).iter().all(|point| (1..values.len()).contains(&point.index)));
        prop_assert_eq!(warm_up(&values).is_some(), values.len() >= 20);
        prop_assert!((0.0..=values.len().max(1) as f64).contains(&autocorrelation_time(&values)));
        for change in [welch(&values, &others), paired(&values, &others)].into_iter().flatten() {
            prop_assert!((0.0..=1.0).contains(&change.p_value()));
            prop_assert!(change.interval().contains(change.value()));
            change.verdict(0.5);
        }
    }
}
