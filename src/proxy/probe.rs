//! Whether the upstream can be reached, found out while no request tells.
//!
//! An attempt is what a request would make, TLS included, and no byte of a request is sent. It is made as long as nobody
//! knows or the last one failed: a balancer that asks `/readyz` sends nothing to a proxy that is not ready, and so would
//! never get it ready.

use std::sync::Arc;

use super::shared::Shared;
use super::upstream::Connector;
use crate::clock::Clock;
use crate::export::gauges::Upstream;
use crate::measure::time::Gap;

/// Pause between two looks.
const EVERY: Gap = Gap::from_millis(1_000);

/// Runs until dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let gauges = Arc::clone(&shared.gauges);
    let connector = Connector::new(shared, gauges.levels());
    loop {
        if gauges.upstream() != Upstream::Reachable {
            // The connector has told how it went.
            drop(connector.connect().await);
        }
        Clock::Monotonic.sleep(EVERY).await;
    }
}
