//! Student's t, the normal and the beta distribution, as intervals and tests need them.

use statrs::distribution::{Beta, ContinuousCDF as _, Normal, StudentsT};

/// Probability outside a two-sided interval: intervals are of 95 %.
pub(super) const OUTSIDE: f64 = 0.05;

/// Value that Student's t exceeds with probability `tail`, from 0 to 1.
pub(super) fn t_quantile(tail: f64, degrees_of_freedom: f64) -> f64 {
    let t = StudentsT::new(0.0, 1.0, degrees_of_freedom.max(1.0));
    t.map_or(f64::INFINITY, |t| -t.inverse_cdf(tail.clamp(0.0, 1.0)))
}

/// Probability that Student's t exceeds `t`.
pub(super) fn t_tail(t: f64, degrees_of_freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, degrees_of_freedom.max(1.0)).map_or(0.5, |distribution| distribution.sf(t))
}

/// Value that the standard normal distribution exceeds with probability `tail`.
pub(super) fn normal_quantile(tail: f64) -> f64 {
    -Normal::standard().inverse_cdf(tail.clamp(0.0, 1.0))
}

/// Probability that the standard normal distribution exceeds `z`.
pub(super) fn normal_tail(z: f64) -> f64 {
    Normal::standard().sf(z)
}

/// Quantile of the beta distribution; 0 without successes, 1 without failures, which are its limits.
pub(super) fn beta_quantile(probability: f64, successes: f64, failures: f64) -> f64 {
    if successes <= 0.0 {
        return 0.0;
    }
    Beta::new(successes, failures).map_or(1.0, |beta| beta.inverse_cdf(probability.clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(actual: f64, expected: f64) {
        assert!((actual / expected - 1.0).abs() < 1e-6, "{actual} is not {expected}");
    }

    #[test]
    fn quantiles_and_tails_are_those_of_scipy() {
        // scipy.stats.t.isf(0.025, dof)
        let dofs = [(1.0, 12.706_204_736_17), (3.3, 3.024_874_461_841), (11.0, 2.200_985_160_092), (1e4, 1.960_201_2)];
        dofs.into_iter().for_each(|(dof, expected)| near(t_quantile(0.025, dof), expected));
        // scipy.stats.t.sf(2, 3.3) and scipy.stats.t.sf(-5, 11)
        near(t_tail(2.0, 3.3), 0.065_479_432_219_7);
        near(t_tail(-5.0, 11.0), 0.999_798_735_095);
        // scipy.stats.norm.isf(0.025) and scipy.stats.norm.sf(8)
        near(normal_quantile(0.025), 1.959_963_984_540);
        near(normal_tail(8.0), 6.220_960_574e-16);
        // scipy.stats.beta.ppf(0.975, 3.5, 412.2)
        near(beta_quantile(0.975, 3.5, 412.2), 1.917_866_469e-2);
    }

    #[test]
    fn limits_are_values() {
        assert_eq!((beta_quantile(0.5, 0.0, 5.0), beta_quantile(0.5, 5.0, 0.0)), (0.0, 1.0));
        assert_eq!(t_quantile(0.0, 5.0), f64::INFINITY);
        near(t_quantile(0.025, 0.0), t_quantile(0.025, 1.0));
        assert_eq!(t_tail(f64::INFINITY, 5.0), 0.0);
    }
}
