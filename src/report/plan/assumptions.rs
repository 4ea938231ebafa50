//! Every assumption of a plan, in sentences.

use super::tables::money;
use super::{CapacityPlan, ReplicaCost, Traffic};
use crate::report::text_layout::gpu_count;

/// Returns the assumptions. Each is a sentence without its full stop.
pub(super) fn assumptions(plan: &CapacityPlan, traffic: &Traffic) -> Vec<String> {
    let (reserves, cost) = (&plan.reserves, &plan.cost);
    let level = &plan.measured.levels[plan.capacity.level];
    let mut list = vec![
        "every replica is like the measured one, and a balancer spreads requests evenly over them".to_owned(),
        format!("requests are like those of the sweep: {}", plan.measured.mix),
        "arrivals within a window are as irregular as those of the sweep; missed requests are not sent again"
            .to_owned(),
        format!(
            "headroom {:.0} %: a replica carries up to {:.2} requests/s",
            reserves.headroom * 100.0,
            plan.capacity.rate * (1.0 - reserves.headroom)
        ),
        match reserves.failed {
            0 => "no replica fails".to_owned(),
            1 => "1 replica may be down at any time, beyond those that the arrivals need".to_owned(),
            failed => format!("{failed} replicas may be down at any time, beyond those that the arrivals need"),
        },
    ];
    if plan.traffic.is_constant {
        list.push("the rate never changes, so that start-up time has no effect".to_owned());
    } else {
        list.push(format!(
            "replicas follow the rate of windows of {:.0} s, and at least one serves",
            plan.traffic.window_s
        ));
        list.push(match reserves.start_up_s {
            0.0 => "a replica serves at once when it is ordered".to_owned(),
            _ => format!(
                "a replica is ordered {} before it is needed, so the arrivals are known that early",
                reserves.start_up()
            ),
        });
        list.extend(traffic.sample.map(sampled_arrivals));
        list.push(format!("every day repeats the {:.1} min of the traffic", plan.traffic.seconds / 60.0));
    }
    list.push(replica_price(cost));
    if plan.miss_share.is_some() {
        list.push(
            "between two levels, up to the throughput of a saturated one, misses grow in a straight line; in truth they grow later"
                .to_owned(),
        );
    }
    if plan.good_tokens_per_day.is_some() {
        let of = match traffic.mix.as_ref().and_then(|mix| mix.mean_output_tokens()) {
            Some(mean) => format!("has {mean:.0} output tokens, as in the traffic"),
            None => "has the output tokens of the sweep".to_owned(),
        };
        list.push(format!("a request {of}, and as many of them meet the SLO as at level {}", level.name));
    }
    if plan.power.is_some() {
        list.push(format!("a replica draws the power of level {} at all times", level.name));
    }
    list
}

/// The assumption of a plan whose arrivals are a sample.
pub(super) fn sampled_arrivals(share: f64) -> String {
    format!(
        "the capture kept {} % of the sessions, and arrivals are counted {} times: the other sessions are like these, and \
         windows of a sample vary more than those of all traffic, so the peak is rather too high",
        rounded(share * 100.0),
        rounded(1.0 / share)
    )
}

/// A number without the digits that a share of decimal places leaves.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

/// GPUs of a replica, and their price.
pub(super) fn replica_price(cost: &ReplicaCost) -> String {
    match (cost.gpus, cost.dollars_per_gpu_hour) {
        (None, _) => "GPUs of a replica are unknown (--gpus-per-replica)".to_owned(),
        (Some(gpus), None) => format!("a replica has {}; their price is unknown (--price)", gpu_count(gpus)),
        (Some(gpus), Some(price)) => format!(
            "a replica has {}; each costs {} an hour from the order of the replica on, used or not",
            gpu_count(gpus),
            money(price)
        ),
    }
}
