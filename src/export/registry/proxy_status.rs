//! State of a proxy that a scrape reads beside its open requests: limited resources, reloads and certificates.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::catalog::Id;
use super::process::DescriptorUsage;
use super::snapshot::{PointValue, Snapshot};

/// What a proxy can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Requests in flight.
    Streams,
    /// Connections of clients.
    ClientConnections,
    /// Connections to the upstream.
    UpstreamConnections,
    /// Destinations in transparent mode.
    Destinations,
}

/// Exported names of [`Resource`].
const RESOURCES: [&str; 4] = ["streams", "client_connections", "upstream_connections", "destinations"];

/// Why a connection was refused in transparent mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedConnection {
    /// Its original destination is the proxy itself.
    OwnAddress,
    /// It comes from the proxy itself.
    Loop,
    /// As many destinations as allowed are in use.
    TooManyDestinations,
    /// The kernel does not say its original destination.
    UnknownDestination,
}

/// Exported names of [`RefusedConnection`].
const REFUSALS: [&str; 4] = ["own_address", "loop", "too_many_destinations", "unknown_destination"];

/// What is loaded again while the proxy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadSubject {
    /// The configuration.
    Settings,
    /// The files of certificates and keys.
    Certificates,
}

/// Exported names of [`ReloadSubject`].
const SUBJECTS: [&str; 2] = ["settings", "certificates"];

/// End of the validity of one file's certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateEnd {
    /// Setting that names the file.
    pub setting: &'static str,
    /// In seconds since 1970.
    pub not_after: u64,
}

/// The state, shared by the whole process.
#[derive(Debug, Default)]
pub struct ProxyStatus {
    /// By [`Resource`]; 0 until it is known.
    limits: [AtomicUsize; RESOURCES.len()],
    /// Open connections of clients, one counter per forwarding thread.
    client_connections: Mutex<Vec<Arc<AtomicUsize>>>,
    /// By [`ReloadSubject`].
    has_failed: [AtomicBool; SUBJECTS.len()],
    destinations: AtomicUsize,
    /// By [`RefusedConnection`].
    refused_connections: [AtomicU64; REFUSALS.len()],
    certificates: Mutex<Vec<CertificateEnd>>,
}

impl ProxyStatus {
    /// Sets how much of a resource the proxy can use.
    pub fn set_limit(&self, resource: Resource, limit: usize) {
        self.limits[resource as usize].store(limit, Relaxed);
    }

    /// Adds a forwarding thread's counter of client connections.
    pub fn add_client_connections(&self, counter: Arc<AtomicUsize>) {
        lock(&self.client_connections).push(counter);
    }

    /// Sets how many destinations are in use.
    pub fn set_destinations(&self, in_use: usize) {
        self.destinations.store(in_use, Relaxed);
    }

    /// Counts a connection that was refused in transparent mode.
    pub fn count_refused_connection(&self, reason: RefusedConnection) {
        self.refused_connections[reason as usize].fetch_add(1, Relaxed);
    }

    /// Records the result of a reload.
    pub fn set_reload(&self, subject: ReloadSubject, succeeded: bool) {
        self.has_failed[subject as usize].store(!succeeded, Relaxed);
    }

    /// Replaces the ends of the certificates in use.
    pub fn set_certificates(&self, ends: Vec<CertificateEnd>) {
        *lock(&self.certificates) = ends;
    }

    /// Adds the exported gauges to a snapshot. `streams` and `upstream_connections` are the open ones.
    pub(super) fn observe(
        &self,
        snapshot: &mut Snapshot,
        created: u64,
        (streams, upstream_connections): (i64, i64),
        descriptors: Option<DescriptorUsage>,
    ) {
        let clients: usize = lock(&self.client_connections).iter().map(|counter| counter.load(Relaxed)).sum();
        let destinations = self.destinations.load(Relaxed) as i64;
        let usage = [streams, clients as i64, upstream_connections, destinations];
        let limits = self.limits.each_ref().map(|limit| limit.load(Relaxed));
        let of_proxy = RESOURCES.into_iter().zip(usage).zip(limits).filter(|(_, limit)| *limit > 0);
        let of_proxy = of_proxy.map(|((resource, usage), limit)| (resource, usage, limit as i64));
        let of_process = descriptors.map(|DescriptorUsage { open, limit }| ("file_descriptors", open, limit));
        for (resource, usage, limit) in of_proxy.chain(of_process) {
            snapshot.observe(Id::ResourceUsage, [resource.into()], created, PointValue::Gauge(usage));
            snapshot.observe(Id::ResourceLimit, [resource.into()], created, PointValue::Gauge(limit));
        }
        // Without a limit of destinations every connection goes to one upstream, and none is refused.
        if limits[Resource::Destinations as usize] > 0 {
            for (reason, refused) in REFUSALS.into_iter().zip(&self.refused_connections) {
                let refused = PointValue::Count(refused.load(Relaxed));
                snapshot.observe(Id::RefusedConnections, [reason.into()], created, refused);
            }
        }
        for (subject, failed) in SUBJECTS.into_iter().zip(&self.has_failed) {
            let success = PointValue::Gauge(i64::from(!failed.load(Relaxed)));
            snapshot.observe(Id::ReloadSuccess, [subject.into()], created, success);
        }
        for end in lock(&self.certificates).iter() {
            let not_after = PointValue::Number(end.not_after as f64);
            snapshot.observe(Id::CertificateEnd, [end.setting.into()], created, not_after);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(status: &ProxyStatus, id: Id) -> Vec<(String, String)> {
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        status.observe(&mut snapshot, 0, (7, 3), DescriptorUsage::now());
        let points = snapshot.points(id).iter();
        points.map(|point| (format!("{:?}", point.labels[0].value), format!("{:?}", point.data))).collect()
    }

    #[test]
    fn usage_and_limit_have_the_same_resources() {
        let status = ProxyStatus::default();
        status.set_limit(Resource::Streams, 100);
        status.set_limit(Resource::ClientConnections, 50);
        for open in [2, 3] {
            status.add_client_connections(Arc::new(AtomicUsize::new(open)));
        }
        let (usage, limit) = (exported(&status, Id::ResourceUsage), exported(&status, Id::ResourceLimit));
        let resources = |of: &[(String, String)]| of.iter().map(|(resource, _)| resource.clone()).collect::<Vec<_>>();
        assert_eq!(resources(&usage), resources(&limit));
        assert_eq!(usage[..2].iter().map(|(_, value)| &**value).collect::<Vec<_>>(), ["Gauge(7)", "Gauge(5)"]);
        assert_eq!(limit[..2].iter().map(|(_, value)| &**value).collect::<Vec<_>>(), ["Gauge(100)", "Gauge(50)"]);
        assert_eq!(usage.len(), 3, "descriptors, and no upstream connections, whose limit is unknown");
    }

    #[test]
    fn refused_connections_are_exported_only_where_destinations_are_limited() {
        let status = ProxyStatus::default();
        status.count_refused_connection(RefusedConnection::Loop);
        assert_eq!(exported(&status, Id::RefusedConnections), []);
        status.set_limit(Resource::Destinations, 64);
        let counts: Vec<_> = exported(&status, Id::RefusedConnections).into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, ["Count(0)", "Count(1)", "Count(0)", "Count(0)"]);
    }

    #[test]
    fn a_reload_counts_as_failed_until_one_succeeds() {
        let status = ProxyStatus::default();
        let success = || exported(&status, Id::ReloadSuccess).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(success(), ["Gauge(1)", "Gauge(1)"]);
        status.set_reload(ReloadSubject::Certificates, false);
        assert_eq!(success(), ["Gauge(1)", "Gauge(0)"]);
        status.set_reload(ReloadSubject::Certificates, true);
        assert_eq!(success(), ["Gauge(1)", "Gauge(1)"]);
    }
}
