//! How many of the process's descriptors clients and upstream connections may take.
//!
//! A kubelet whose probes are not answered kills the pod, streams and all. So the admin port keeps descriptors for all
//! of its connections, whatever the clients do. The limits are computed once: counting what is open costs a system call
//! for each descriptor.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};

/// Descriptors kept for connections to the admin port: as many as it serves at once.
const RESERVED_ADMIN_DESCRIPTORS: usize = 64;
/// Descriptors kept for the process's own: exporters, the capture's files, configuration, names that are looked up.
const RESERVED_INTERNAL_DESCRIPTORS: usize = 16;

/// At most this many connections of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    /// From clients.
    pub(super) clients: usize,
    /// To the upstream, idle ones included.
    pub(super) upstream: usize,
}

impl ConnectionLimits {
    /// What this process has left now.
    pub(super) fn for_process() -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        // Where there is no /proc, standard streams, listeners and runtimes take about this many. One entry is the handle
        // by which they are listed.
        let open = fs::read_dir("/proc/self/fd").map_or(32, |entries| entries.count().saturating_sub(1));
        Self::from_free(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(open))
    }

    /// Each client connection may need one to the upstream, so each kind gets half of what is not kept.
    fn from_free(free: usize) -> Self {
        let kept = (RESERVED_ADMIN_DESCRIPTORS + RESERVED_INTERNAL_DESCRIPTORS).min(free / 2);
        let clients = ((free - kept) / 2).max(1);
        Self { clients, upstream: (free - kept).saturating_sub(clients).max(1) }
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
