//! Detects `streamgauge sim` by its `server` field.

use super::head::Head;

/// Value of the `server` field in every `streamgauge sim` reply.
const SIM_SERVER_HEADER: &[u8] = b"streamgauge-sim (simulated)";

impl Head {
    /// Returns `true` if the sender identifies itself as `streamgauge sim`.
    pub fn is_simulated(&self) -> bool {
        self.value("server") == Some(SIM_SERVER_HEADER)
    }
}
