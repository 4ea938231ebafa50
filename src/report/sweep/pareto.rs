//! Selects outstanding levels. Pure.

/// Marks the Pareto-optimal points of (throughput, tokens/s of a user): no other point is at least as good in both and
/// better in one.
pub fn pareto_front(points: &[(f64, f64)]) -> Vec<bool> {
    let beats = |a: &(f64, f64), b: &(f64, f64)| a.0 >= b.0 && a.1 >= b.1 && a != b;
    points.iter().map(|point| !points.iter().any(|other| beats(other, point))).collect()
}

/// Returns the knee of levels ordered by load: the one with the greatest power, throughput ÷ latency (Kleinrock, *Power
/// and deterministic rules of thumb*, 1979). Below it, more load gains more throughput than it costs latency; above it,
/// the reverse. A level without power, as a saturated one whose latency depends on the time of the level, is never the
/// knee. `None` if that is the first or last level, because the knee may lie outside.
pub fn knee(power: &[Option<f64>]) -> Option<usize> {
    let known = (0..power.len()).filter_map(|at| Some((at, power[at]?)));
    let (best, _) = known.max_by(|a, b| a.1.total_cmp(&b.1))?;
    (best > 0 && best + 1 < power.len()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_no_other_level_beats() {
        // More throughput for less speed; then a level that is slower at equal throughput, and one that is worse in
        // both.
        let points = [(10.0, 90.0), (20.0, 80.0), (40.0, 50.0), (40.0, 30.0), (38.0, 20.0)];
        assert_eq!(pareto_front(&points), [true, true, true, false, false]);
        assert_eq!(pareto_front(&[(1.0, 1.0), (1.0, 1.0)]), [true, true], "equals do not beat each other");
        assert_eq!(pareto_front(&[]), [false; 0]);
    }

    #[test]
    fn the_knee_is_where_throughput_divided_by_latency_is_greatest() {
        // M/M/1 queue with service rate 10: latency 1 ÷ (10 − rate), so power is rate × (10 − rate), with its maximum
        // at 5.
        let queue = [1.0, 3.0, 5.0, 7.0, 9.0].map(|rate: f64| Some(rate * (10.0 - rate)));
        assert_eq!(knee(&queue), Some(2));
        assert_eq!((knee(&queue[..3]), knee(&queue[2..])), (None, None), "it may lie beyond");
        let saturated = [Some(9.0), Some(21.0), None, None];
        assert_eq!(knee(&saturated), Some(1), "a saturated level above bounds it, and is never the knee");
        assert_eq!(knee(&[]), None);
    }
}
