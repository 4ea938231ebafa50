//! Gauges that the proxy updates and a scrape reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ahash::AHashMap;

use super::capture_metrics;
use super::catalog::Id;
use super::process::DescriptorUsage;
use super::proxy_status::ProxyStatus;
use super::snapshot::{PointValue, Snapshot};
use super::thread_gauges::{METHODS, OpenCounts, ThreadGauges};
use crate::capture::stats::CaptureStats;
use crate::export::control::live_view::OpenStreams;
use crate::export::control::run_status::RunInfo;

/// Last known reachability of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamHealth {
    /// No connection has been attempted yet.
    Unknown,
    /// The last attempt to connect succeeded.
    Reachable,
    /// The last attempt to connect failed.
    Unreachable,
}

/// All gauges, shared by the whole process.
#[derive(Debug, Default)]
pub struct Gauges {
    /// One entry per forwarding thread.
    thread_gauges: Mutex<Vec<Arc<ThreadGauges>>>,
    upstream: AtomicU8,
    /// Reason why the last connection attempt failed.
    upstream_failure: Mutex<Option<String>>,
    simulated: AtomicBool,
    ready: AtomicBool,
    /// Counters of the capture, if there is one.
    capture: OnceLock<Arc<CaptureStats>>,
    /// The run, if this process sends one instead of forwarding.
    run_info: OnceLock<RunInfo>,
    status: ProxyStatus,
}

impl Gauges {
    /// Adds gauges for one thread. Only that thread updates them.
    pub fn add_thread(&self) -> Arc<ThreadGauges> {
        let levels = Arc::<ThreadGauges>::default();
        self.lock_threads().push(Arc::clone(&levels));
        levels
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<Arc<ThreadGauges>>> {
        self.thread_gauges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sum<const N: usize>(&self, of: impl Fn(&ThreadGauges) -> [i64; N]) -> [i64; N] {
        let mut sum = [0; N];
        for levels in self.lock_threads().iter() {
            sum.iter_mut().zip(of(levels)).for_each(|(sum, level)| *sum += level);
        }
        sum
    }

    /// Records the result of a connection attempt to the upstream.
    pub fn set_upstream(&self, attempt: Result<(), String>) {
        self.upstream.store(1 + u8::from(attempt.is_ok()), Relaxed);
        if let Err(reason) = attempt {
            *self.upstream_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        }
    }

    /// Returns why the upstream is unreachable; `None` if it is reachable or unknown.
    pub fn upstream_failure(&self) -> Option<String> {
        let failed = self.upstream() == UpstreamHealth::Unreachable;
        failed.then(|| self.upstream_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()).flatten()
    }

    /// Records that an upstream reply identified itself as simulated.
    pub fn set_simulated(&self) {
        self.simulated.store(true, Relaxed);
    }

    /// Returns `true` if any upstream reply identified itself as simulated.
    pub fn simulated(&self) -> bool {
        self.simulated.load(Relaxed) || self.run_info().is_some_and(|running| (running.status)().simulated)
    }

    /// Returns the result of the last connection attempt.
    pub fn upstream(&self) -> UpstreamHealth {
        match self.upstream.load(Relaxed) {
            0 => UpstreamHealth::Unknown,
            1 => UpstreamHealth::Unreachable,
            _ => UpstreamHealth::Reachable,
        }
    }

    /// Adds the counters of a capture.
    pub fn set_capture(&self, counts: Arc<CaptureStats>) {
        let _first = self.capture.set(counts).is_ok();
    }

    /// Returns the state of the proxy.
    pub fn status(&self) -> &ProxyStatus {
        &self.status
    }

    /// Adds the run that this process sends.
    pub fn set_run_info(&self, running: RunInfo) {
        let _first = self.run_info.set(running).is_ok();
    }

    /// Returns the run that this process sends, if any.
    pub(in crate::export) fn run_info(&self) -> Option<&RunInfo> {
        self.run_info.get()
    }

    /// Sets readiness: `true` once the proxy listens or a run sends, `false` while draining.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    /// Returns `true` if the proxy accepts requests.
    pub fn ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    /// Returns the number of open requests.
    pub fn active_requests(&self) -> i64 {
        if let Some([requests, ..]) = self.run_info().map(RunInfo::open_counts) {
            return requests;
        }
        self.sum(ThreadGauges::active).iter().sum()
    }

    /// Returns the open streams (without, with) a first token.
    pub fn streams(&self) -> (i64, i64) {
        let of_run = self.run_info().map(RunInfo::open_counts).map(|[_, waiting, streaming]| [waiting, streaming]);
        of_run.unwrap_or_else(|| self.sum(ThreadGauges::streams)).into()
    }

    /// Returns the open upstream connections (idle, busy).
    pub fn connections(&self) -> (i64, i64) {
        self.sum(ThreadGauges::connections).into()
    }

    /// Returns the open requests of each active model by requested name.
    pub fn open_by_model(&self) -> AHashMap<Arc<str>, OpenCounts> {
        let mut sum = AHashMap::new();
        self.lock_threads().iter().for_each(|levels| levels.add_models(&mut sum));
        sum
    }

    /// Adds the exported gauges to a snapshot. `models` are the streams of named models; all others count without a
    /// model.
    pub(in crate::export) fn observe(
        &self,
        snapshot: &mut Snapshot,
        scheme: &'static str,
        created: u64,
        models: &BTreeMap<Box<str>, OpenStreams>,
        descriptors: Option<DescriptorUsage>,
    ) {
        let (mut waiting, mut streaming) = self.streams();
        for (model, streams) in models {
            let of_model = [("waiting", streams.waiting), ("streaming", streams.streaming)];
            for (phase, level) in of_model {
                snapshot.observe(
                    Id::ActiveStreams,
                    [phase.into(), (&**model).into()],
                    created,
                    PointValue::Gauge(level),
                );
            }
            (waiting, streaming) = (waiting - streams.waiting, streaming - streams.streaming);
        }
        // A stream may have ended between the two reads.
        for (phase, level) in [("waiting", waiting.max(0)), ("streaming", streaming.max(0))] {
            snapshot.observe(Id::ActiveStreams, [phase.into()], created, PointValue::Gauge(level));
        }
        if let Some(running) = self.run_info() {
            running.observe(snapshot, created);
            return;
        }
        for (method, active) in METHODS.iter().zip(self.sum(ThreadGauges::active)) {
            // GET and POST are always exported; other methods only while they have open requests.
            if active != 0 || matches!(*method, "GET" | "POST") {
                snapshot.observe(Id::HttpActive, [(*method).into(), scheme.into()], created, PointValue::Gauge(active));
            }
        }
        let up = match self.upstream() {
            UpstreamHealth::Unknown => None,
            UpstreamHealth::Unreachable => Some(0),
            UpstreamHealth::Reachable => Some(1),
        };
        if let Some(up) = up {
            snapshot.observe(Id::UpstreamUp, [], created, PointValue::Gauge(up));
        }
        let (idle, busy) = self.connections();
        for (state, level) in [("idle", idle), ("active", busy)] {
            snapshot.observe(Id::UpstreamConnections, [state.into()], created, PointValue::Gauge(level));
        }
        self.status.observe(snapshot, created, (self.active_requests(), idle + busy), descriptors);
        if let Some(counts) = self.capture.get() {
            capture_metrics::observe(counts, snapshot, created);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::registry::error_type::OTHER_VALUE;

    #[test]
    fn a_request_is_counted_where_it_stands_and_nowhere_after() {
        let gauges = Gauges::default();
        let (mut one, mut other) = (gauges.add_thread().request("POST"), gauges.add_thread().request("BREW"));
        one.set_model(Some("tiny"));
        other.set_model(Some("tiny"));
        one.set_stream_phase(false);
        assert_eq!((gauges.active_requests(), gauges.streams()), (2, (1, 0)));
        one.set_stream_phase(true);
        one.set_stream_phase(true);
        let of_tiny =
            |requests, waiting, streaming| [("tiny".into(), OpenCounts { requests, waiting, streaming })].into();
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((0, 1), of_tiny(2, 0, 1)));
        drop(one);
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((0, 0), of_tiny(1, 0, 0)));
        drop(other);
        assert_eq!((gauges.active_requests(), gauges.open_by_model()), (0, [].into()));
    }

    #[test]
    fn a_stream_whose_model_is_learned_later_counts_for_it_from_then_on() {
        let gauges = Gauges::default();
        let mut stream = gauges.add_thread().request("POST");
        stream.set_stream_phase(false);
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((1, 0), [].into()));
        stream.set_model(Some("tiny"));
        let open = |waiting, streaming| [("tiny".into(), OpenCounts { requests: 1, waiting, streaming })].into();
        assert_eq!(gauges.open_by_model(), open(1, 0));
        stream.set_stream_phase(true);
        assert_eq!(gauges.open_by_model(), open(0, 1));
        drop(stream);
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((0, 0), [].into()));
    }

    #[test]
    fn a_connection_is_idle_or_busy_until_it_is_closed() {
        let gauges = Gauges::default();
        let mut connection = gauges.add_thread().connection();
        assert_eq!(gauges.connections(), (0, 1));
        connection.set_idle(true);
        connection.set_idle(true);
        assert_eq!(gauges.connections(), (1, 0));
        drop(connection);
        assert_eq!(gauges.connections(), (0, 0));
    }

    #[test]
    fn the_upstream_is_unknown_until_somebody_tried() {
        let gauges = Gauges::default();
        assert_eq!(gauges.upstream(), UpstreamHealth::Unknown);
        let exported = || {
            let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
            gauges.observe(&mut snapshot, "http", 0, &BTreeMap::new(), None);
            snapshot.points(Id::UpstreamUp).first().map(|point| format!("{:?}", point.data))
        };
        assert_eq!(exported(), None, "neither up nor down");
        gauges.set_upstream(Err("refused".to_owned()));
        assert_eq!(
            (gauges.upstream(), gauges.upstream_failure()),
            (UpstreamHealth::Unreachable, Some("refused".to_owned()))
        );
        assert_eq!(exported().as_deref(), Some("Gauge(0)"));
        gauges.set_upstream(Ok(()));
        assert_eq!((gauges.upstream(), gauges.upstream_failure()), (UpstreamHealth::Reachable, None));
        assert_eq!(exported().as_deref(), Some("Gauge(1)"));
    }

    #[test]
    fn levels_are_exported_with_their_attributes() {
        let gauges = Gauges::default();
        let levels = gauges.add_thread();
        let (mut stream, _odd) = (levels.request("POST"), levels.request("GET\n"));
        stream.set_stream_phase(false);
        let _connection = levels.connection();
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        gauges.observe(&mut snapshot, "http", 0, &BTreeMap::new(), None);
        let levels: Vec<_> = [Id::HttpActive, Id::ActiveStreams, Id::UpstreamConnections]
            .iter()
            .flat_map(|id| snapshot.points(*id))
            .map(|point| (point.labels[0].value.clone(), format!("{:?}", point.data)))
            .collect();
        let expected =
            [("GET", 0), ("POST", 1), (OTHER_VALUE, 1), ("waiting", 1), ("streaming", 0), ("idle", 0), ("active", 1)];
        assert_eq!(levels, expected.map(|(name, level)| (name.into(), format!("Gauge({level})"))));
    }
}
