//! Which levels stand out. Pure.

/// Which points no other one beats: of (throughput, tokens/s of a user), where more is better in both, those of which no
/// other has at least as much of both and more of one (Pareto's front).
pub fn pareto_front(points: &[(f64, f64)]) -> Vec<bool> {
    let beats = |a: &(f64, f64), b: &(f64, f64)| a.0 >= b.0 && a.1 >= b.1 && a != b;
    points.iter().map(|point| !points.iter().any(|other| beats(other, point))).collect()
}

/// The knee of (throughput, latency), in the order of the load: the level of the greatest power, which is throughput ÷
/// latency (Kleinrock, *Power and deterministic rules of thumb*, 1979). Below it more load brings more throughput than it
/// costs latency, above it the reverse. `None` where that is the first or the last level: the knee may lie beyond.
pub fn knee(points: &[(f64, f64)]) -> Option<usize> {
    let power = |at: &usize| points[*at].0 / points[*at].1;
    let best = (0..points.len()).filter(|at| points[*at].1 > 0.0).max_by(|a, b| power(a).total_cmp(&power(b)))?;
    (best > 0 && best + 1 < points.len()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_no_other_level_beats() {
        // More throughput for less speed; then a level that is slower than the one before at the same throughput, and
        // one that is worse in both.
        let points = [(10.0, 90.0), (20.0, 80.0), (40.0, 50.0), (40.0, 30.0), (38.0, 20.0)];
        assert_eq!(pareto_front(&points), [true, true, true, false, false]);
        assert_eq!(pareto_front(&[(1.0, 1.0), (1.0, 1.0)]), [true, true], "equals do not beat each other");
        assert_eq!(pareto_front(&[]), [false; 0]);
    }

    #[test]
    fn the_knee_is_where_throughput_divided_by_latency_is_greatest() {
        // A queue with one server of rate 10 (M/M/1): latency 1 ÷ (10 − rate), so power rate × (10 − rate), most at 5.
        let queue: Vec<_> = [1.0, 3.0, 5.0, 7.0, 9.0].map(|rate| (rate, 1.0 / (10.0 - rate))).into();
        assert_eq!(knee(&queue), Some(2));
        assert_eq!((knee(&queue[..3]), knee(&queue[2..])), (None, None), "it may lie beyond");
        assert_eq!(knee(&[]), None);
    }
}
