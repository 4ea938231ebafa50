//! Whether the upstream can be reached, found out while no request tells.
//!
//! An attempt is what a request would make, TLS included, and no byte of a request is sent. It is made as long as nobody
//! knows or the last one failed: a balancer that asks `/readyz` sends nothing to a proxy that is not ready, and so would
//! never get it ready. And it is made now and then while nothing is open: a server that went in the quiet of the night
//! should not wait for the first request of the morning to be missed.

use std::sync::Arc;

use super::upstream::UpstreamConnector;
use super::worker_shared::WorkerShared;
use crate::clock::Clock;
use crate::export::gauges::UpstreamHealth;
use crate::measure::time::Gap;

/// Pause between two looks.
const CHECK_INTERVAL: Gap = Gap::from_millis(1_000);
/// Pause between two attempts at a server that was reached, while no connection to it is open.
const IDLE_PROBE_INTERVAL: Gap = Gap::from_millis(5_000);

/// Runs until dropped, and logs what changes.
pub(super) async fn run(shared: Arc<WorkerShared>) {
    let gauges = Arc::clone(&shared.gauges);
    let connector = UpstreamConnector::new(shared, gauges.add_thread());
    let (clock, mut failed) = (Clock::Monotonic, false);
    let mut seen = clock.now();
    loop {
        let is_due = match gauges.upstream() {
            UpstreamHealth::Reachable => clock.now().since(seen) >= IDLE_PROBE_INTERVAL,
            UpstreamHealth::Unreachable | UpstreamHealth::Unknown => true,
        };
        if is_due {
            // The connector has told how it went.
            drop(connector.connect().await);
        }
        if is_due || gauges.connections() != (0, 0) {
            seen = clock.now();
        }
        let failure = gauges.upstream_failure();
        match &failure {
            Some(why) if !failed => tracing::warn!(why, "the upstream cannot be reached"),
            None if failed => tracing::info!("the upstream can be reached again"),
            _ => {}
        }
        failed = failure.is_some();
        clock.sleep(CHECK_INTERVAL).await;
    }
}
