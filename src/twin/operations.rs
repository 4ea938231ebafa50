//! Operations of a fleet: failures, start-up, autoscaling and admission.

use std::collections::VecDeque;
use std::str::FromStr;

use crate::measure::time::{Gap, Stamp};

/// Time between two decisions of the autoscaler: the sync period of Kubernetes' horizontal pod autoscaler.
pub const AUTOSCALE_PERIOD: Gap = Gap::from_millis(15_000);
/// Time for which the autoscaler remembers a need before it removes replicas: Kubernetes' stabilization window.
const STABILIZATION: Gap = Gap::from_millis(300_000);

/// Operations of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Operations {
    /// Replicas that fail.
    pub failures: Vec<ReplicaFailure>,
    /// Time until a restarted or an ordered replica takes requests.
    pub start_up: Gap,
    /// Rule that changes the number of replicas.
    pub autoscale: Option<AutoscaleRule>,
    /// Maximum requests in flight over all replicas of a fleet; the gateway answers 429 to further ones.
    pub admission: Option<u32>,
    /// Changes of the number of replicas that were ordered in time, so that added replicas serve at once.
    pub schedule: Vec<ScheduledReplicas>,
}

/// The number of replicas of every fleet from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledReplicas {
    /// Time of the change.
    pub at: Stamp,
    /// Replicas that take requests from then on.
    pub replicas: u32,
}

impl Default for Operations {
    fn default() -> Self {
        Self {
            failures: Vec::new(),
            start_up: Gap::from_millis(180_000),
            autoscale: None,
            admission: None,
            schedule: Vec::new(),
        }
    }
}

/// A failure of a replica. Its requests are lost, and it restarts with an empty cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaFailure {
    /// Number of the replica, from 0.
    pub replica: usize,
    /// Time of the failure.
    pub at: Stamp,
}

/// Metric of an autoscaling rule, as the mean over the replicas that take requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoscaleMetric {
    /// Requests in flight.
    InFlight,
    /// Requests that wait for a place in the batch.
    Waiting,
    /// Share of the KV cache in use, 0 to 1.
    KvUsage,
}

/// Keeps a metric per replica near a target, as Kubernetes' horizontal pod autoscaler does: the wanted replicas are
/// `ceil(replicas * metric / target)`, between the initial number and `most`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoscaleRule {
    /// The metric.
    pub metric: AutoscaleMetric,
    /// Target of the metric per replica.
    pub target: f64,
    /// Maximum number of replicas.
    pub most: u32,
}

/// Replicas if a rule states no maximum.
const DEFAULT_MAX_REPLICAS: u32 = 64;

impl FromStr for AutoscaleRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "a rule is METRIC>NUMBER or METRIC>NUMBER,max=REPLICAS; metrics are in-flight, waiting and kv".to_owned()
        };
        let (rule, most) = text.split_once(',').map_or((text, None), |(rule, most)| (rule, Some(most)));
        let most = match most {
            None => DEFAULT_MAX_REPLICAS,
            Some(most) => {
                let count = most.strip_prefix("max=").and_then(|count| count.parse::<u32>().ok());
                count.filter(|count| *count > 0).ok_or_else(wrong)?
            }
        };
        let (metric, target) = rule.split_once('>').ok_or_else(wrong)?;
        let metric = match metric.trim() {
            "in-flight" => AutoscaleMetric::InFlight,
            "waiting" => AutoscaleMetric::Waiting,
            "kv" => AutoscaleMetric::KvUsage,
            _ => return Err(wrong()),
        };
        let target = target.trim().parse::<f64>().ok().filter(|target| target.is_finite() && *target > 0.0);
        Ok(Self { metric, target: target.ok_or_else(wrong)?, most })
    }
}

/// State of the autoscaler of a fleet.
#[derive(Debug)]
pub(super) struct Autoscaler {
    rule: AutoscaleRule,
    least: u32,
    /// Desired replicas of the latest decisions.
    recommendations: VecDeque<(Stamp, u32)>,
}

impl Autoscaler {
    pub(super) fn new(rule: AutoscaleRule, least: u32) -> Self {
        Self { rule, least, recommendations: VecDeque::new() }
    }

    pub(super) fn metric(&self) -> AutoscaleMetric {
        self.rule.metric
    }

    /// Number of replicas from `now` on. `sum` is the metric's sum over the `ready` replicas; `replicas` includes those
    /// that start.
    pub(super) fn decide(&mut self, now: Stamp, sum: f64, ready: u32, replicas: u32) -> u32 {
        let desired = match ready {
            0 => replicas,
            _ => (sum / self.rule.target).ceil() as u32,
        };
        let desired = desired.clamp(self.least, self.rule.most.max(self.least));
        self.recommendations.push_back((now, desired));
        while self.recommendations.front().is_some_and(|(at, _)| now.since(*at) > STABILIZATION) {
            self.recommendations.pop_front();
        }
        let recent = self.recommendations.iter().map(|(_, desired)| *desired).max().unwrap_or(desired);
        if desired > replicas { desired } else { recent.min(replicas) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_a_metric_a_target_and_perhaps_a_maximum() {
        let rule = |metric, target, most| Ok(AutoscaleRule { metric, target, most });
        assert_eq!("in-flight>32".parse(), rule(AutoscaleMetric::InFlight, 32.0, 64));
        assert_eq!("kv > 0.8,max=6".parse(), rule(AutoscaleMetric::KvUsage, 0.8, 6));
        for wrong in ["in-flight", "cpu>1", "waiting>0", "waiting>x", "waiting>1,min=2", "kv>1,max=0"] {
            assert!(wrong.parse::<AutoscaleRule>().unwrap_err().contains("METRIC>NUMBER"), "{wrong}");
        }
    }

    #[test]
    fn replicas_come_at_once_and_go_after_five_minutes() {
        let rule = AutoscaleRule { metric: AutoscaleMetric::InFlight, target: 10.0, most: 5 };
        let mut scaler = Autoscaler::new(rule, 2);
        let at = |seconds: u64| Stamp::from_nanos(seconds * 1_000_000_000);
        assert_eq!(scaler.decide(at(0), 15.0, 2, 2), 2);
        assert_eq!(scaler.decide(at(15), 39.0, 2, 2), 4);
        assert_eq!(scaler.decide(at(30), 900.0, 4, 4), 5, "never more than the maximum");
        assert_eq!(scaler.decide(at(45), 0.0, 5, 5), 5);
        assert_eq!(scaler.decide(at(330), 0.0, 5, 5), 5, "the need of 300 s ago still counts");
        assert_eq!(scaler.decide(at(346), 0.0, 5, 5), 2, "never fewer than at first");
    }
}
