//! Connection limits, from the process's file descriptors.
//!
//! A kubelet kills the pod, streams included, if its probes get no answer. So descriptors for all admin connections are
//! reserved, whatever the clients do. The limits are computed once, because counting open descriptors costs a system
//! call for each.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};

/// Reserved for the admin port: one per connection that it serves concurrently.
const RESERVED_ADMIN_DESCRIPTORS: usize = 64;
/// Reserved for exporters, capture files, configuration, and name resolution.
const RESERVED_INTERNAL_DESCRIPTORS: usize = 16;
/// Open before the first connection: standard streams, listeners and runtimes.
const USUAL_OPEN_DESCRIPTORS: usize = 32;

/// Descriptors that connections cannot use.
pub const USUAL_RESERVED_DESCRIPTORS: usize =
    RESERVED_ADMIN_DESCRIPTORS + RESERVED_INTERNAL_DESCRIPTORS + USUAL_OPEN_DESCRIPTORS;

/// Connection limits by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    /// Client connections.
    pub(super) clients: usize,
    /// Upstream connections, including idle ones.
    pub(super) upstream: usize,
}

impl ConnectionLimits {
    /// Limits from the descriptors that are free now.
    pub(super) fn for_process() -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        // One entry of the list is the handle that reads it.
        let open =
            fs::read_dir("/proc/self/fd").map_or(USUAL_OPEN_DESCRIPTORS, |entries| entries.count().saturating_sub(1));
        Self::from_free(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(open))
    }

    /// Each client connection may need one to the upstream, so each kind gets half of the unreserved descriptors.
    fn from_free(free: usize) -> Self {
        let reserved = (RESERVED_ADMIN_DESCRIPTORS + RESERVED_INTERNAL_DESCRIPTORS).min(free / 2);
        let clients = ((free - reserved) / 2).max(1);
        Self { clients, upstream: (free - reserved).saturating_sub(clients).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_port_keeps_its_descriptors_and_clients_and_upstream_share_the_rest() {
        let limits = |clients, upstream| ConnectionLimits { clients, upstream };
        assert_eq!(ConnectionLimits::from_free(65_480), limits(32_700, 32_700));
        assert_eq!(ConnectionLimits::from_free(1_000), limits(460, 460));
        assert_eq!(ConnectionLimits::from_free(43), limits(11, 11));
        assert_eq!(ConnectionLimits::from_free(0), limits(1, 1));
    }
}
