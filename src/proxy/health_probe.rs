//! Probes the upstream while no request shows whether it is reachable.
//!
//! A probe connects as a request would, including TLS, and sends no request bytes. It runs while the state is unknown
//! or the last attempt failed. A balancer that checks `/readyz` sends nothing to such a proxy, so no request would
//! change the state. It also runs periodically while no connection is open, so that an outage overnight is noticed
//! before the first request of the morning.

use std::future::pending;
use std::sync::Arc;

use super::upstream::UpstreamConnector;
use super::worker_shared::{SharedTarget, WorkerShared};
use crate::clock::Clock;
use crate::export::registry::gauges::UpstreamHealth;
use crate::measure::time::Gap;

/// Pause between two checks of the state.
const CHECK_INTERVAL: Gap = Gap::from_millis(1_000);
/// Pause between two probes of a reachable server, while no connection to it is open.
const IDLE_PROBE_INTERVAL: Gap = Gap::from_millis(5_000);

/// Runs until dropped, and logs state changes.
pub(super) async fn run(shared: Arc<WorkerShared>) {
    let gauges = Arc::clone(&shared.gauges);
    let connector = match &shared.target {
        SharedTarget::Server(server) => {
            UpstreamConnector::new(Arc::clone(&shared), gauges.add_thread(), server.clone())
        }
        // No server is known before a client connects to it.
        SharedTarget::Destinations(_) => return pending().await,
    };
    let (clock, mut failed) = (Clock::Monotonic, false);
    let mut seen = clock.now();
    loop {
        let is_due = match gauges.upstream() {
            UpstreamHealth::Reachable => clock.now().since(seen) >= IDLE_PROBE_INTERVAL,
            UpstreamHealth::Unreachable | UpstreamHealth::Unknown => true,
        };
        if is_due {
            // The connector records the result.
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
