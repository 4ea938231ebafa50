//! What a head says of a server that is simulated.

use super::head::Head;

/// What `streamgauge sim` calls itself in the `server` field of every reply.
const SIM_SERVER_HEADER: &[u8] = b"streamgauge-sim (simulated)";

impl Head {
    /// Whether it says that whoever sent it is `streamgauge sim`.
    pub fn is_simulated(&self) -> bool {
        self.value("server") == Some(SIM_SERVER_HEADER)
    }
}
