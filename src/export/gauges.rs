//! What is true right now: levels that the proxy moves and a scrape reads.
//!
//! Plain atomics, but for the one map of open requests by model, which is touched twice in the life of a request. All of
//! it lives in guards, so that no way out of a request can forget to count back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::capturing;
use super::catalog::Id;
use super::endings::OTHER;
use super::running::Running;
use super::snapshot::{Data, Snapshot};
use crate::capture::counts::Counts;

/// The methods that the HTTP conventions know.
const METHODS: [&str; 11] =
    ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY", OTHER];

/// A method as an attribute value: what a client made up is `_OTHER`.
pub fn known_method(method: &str) -> &'static str {
    METHODS[index_of(method)]
}

fn index_of(method: &str) -> usize {
    METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len() - 1)
}

/// Whether the upstream can be reached, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// Nobody has tried yet.
    Unknown,
    /// The last attempt to connect succeeded.
    Reachable,
    /// The last attempt to connect failed.
    Unreachable,
}

/// All levels. Shared by the whole process.
#[derive(Debug, Default)]
pub struct Gauges {
    active: [AtomicI64; METHODS.len()],
    waiting: AtomicI64,
    streaming: AtomicI64,
    idle: AtomicI64,
    busy: AtomicI64,
    upstream: AtomicU8,
    /// Why the last attempt to connect failed.
    failure: Mutex<Option<String>>,
    simulated: AtomicBool,
    ready: AtomicBool,
    models: Mutex<HashMap<Box<str>, Arc<Levels>>>,
    /// The capture's own, where there is one.
    capture: OnceLock<Arc<Counts>>,
    /// What this process sends, where it sends by itself; then it forwards nothing.
    running: OnceLock<Running>,
}

/// Open requests of one model.
#[derive(Debug, Default)]
struct Levels {
    requests: AtomicI64,
    waiting: AtomicI64,
    streaming: AtomicI64,
}

/// What is open of one model at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Requests.
    pub requests: i64,
    /// Those of them that are streams without a token yet.
    pub waiting: i64,
    /// Those that are streams and have one.
    pub streaming: i64,
}

impl Gauges {
    /// A request has arrived; it is active until the guard is dropped.
    pub fn request(self: &Arc<Self>, method: &str) -> ActiveRequest {
        let method = index_of(method);
        self.active[method].fetch_add(1, Relaxed);
        ActiveRequest { gauges: Arc::clone(self), method, model: None, stream: None }
    }

    /// A connection to the upstream is open; it is busy until it says otherwise, and open until it is dropped.
    pub fn connection(self: &Arc<Self>) -> OpenConnection {
        self.busy.fetch_add(1, Relaxed);
        OpenConnection { gauges: Arc::clone(self), idle: false }
    }

    /// An attempt to connect to the upstream has succeeded, or failed for a reason.
    pub fn set_upstream(&self, attempt: Result<(), String>) {
        self.upstream.store(1 + u8::from(attempt.is_ok()), Relaxed);
        if let Err(reason) = attempt {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        }
    }

    /// Why the upstream cannot be reached; nothing while it can be or nobody knows.
    pub fn upstream_failure(&self) -> Option<String> {
        let failed = self.upstream() == Upstream::Unreachable;
        failed.then(|| self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()).flatten()
    }

    /// A reply of the upstream says that it is simulated.
    pub fn set_simulated(&self) {
        self.simulated.store(true, Relaxed);
    }

    /// Whether a reply of the upstream has ever said that it is simulated.
    pub fn simulated(&self) -> bool {
        self.simulated.load(Relaxed) || self.running().is_some_and(|running| (running.levels)().simulated)
    }

    /// How the last attempt to connect went.
    pub fn upstream(&self) -> Upstream {
        match self.upstream.load(Relaxed) {
            0 => Upstream::Unknown,
            1 => Upstream::Unreachable,
            _ => Upstream::Reachable,
        }
    }

    /// There is a capture, which counts here.
    pub fn set_capture(&self, counts: Arc<Counts>) {
        let _first = self.capture.set(counts).is_ok();
    }

    /// This process sends a run.
    pub fn set_running(&self, running: Running) {
        let _first = self.running.set(running).is_ok();
    }

    /// The run that this process sends, if it does.
    pub(super) fn running(&self) -> Option<&Running> {
        self.running.get()
    }

    /// Whether the proxy takes requests, or a run sends them: set when it listens, cleared when it drains.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    /// Whether the proxy takes requests.
    pub fn ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    /// Open requests.
    pub fn active_requests(&self) -> i64 {
        if let Some([requests, ..]) = self.running().map(Running::open) {
            return requests;
        }
        self.active.iter().map(|active| active.load(Relaxed)).sum()
    }

    /// Streams without and with a first token.
    pub fn streams(&self) -> (i64, i64) {
        if let Some([_, waiting, streaming]) = self.running().map(Running::open) {
            return (waiting, streaming);
        }
        (self.waiting.load(Relaxed), self.streaming.load(Relaxed))
    }

    /// Open connections to the upstream: idle and busy ones.
    pub fn connections(&self) -> (i64, i64) {
        (self.idle.load(Relaxed), self.busy.load(Relaxed))
    }

    /// What is open of each model that has something open, by the name asked for.
    pub fn open_by_model(&self) -> Vec<(Box<str>, Open)> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        models.iter().map(|(model, levels)| (model.clone(), levels.now())).collect()
    }

    /// Adds the exported levels to a snapshot.
    pub(super) fn observe(&self, snapshot: &mut Snapshot, scheme: &'static str, created: u64) {
        let (waiting, streaming) = self.streams();
        for (phase, level) in [("waiting", waiting), ("streaming", streaming)] {
            snapshot.observe(Id::ActiveStreams, [phase.into()], created, Data::Level(level));
        }
        if let Some(running) = self.running() {
            running.observe(snapshot, created);
            return;
        }
        for (method, active) in METHODS.iter().zip(&self.active) {
            let active = active.load(Relaxed);
            // GET and POST are what there is; the others appear only while there are some.
            if active != 0 || matches!(*method, "GET" | "POST") {
                snapshot.observe(Id::HttpActive, [(*method).into(), scheme.into()], created, Data::Level(active));
            }
        }
        let (idle, busy) = self.connections();
        for (state, level) in [("idle", idle), ("active", busy)] {
            snapshot.observe(Id::UpstreamConnections, [state.into()], created, Data::Level(level));
        }
        if let Some(counts) = self.capture.get() {
            capturing::observe(counts, snapshot, created);
        }
    }

    fn streams_of(&self, streaming: bool) -> &AtomicI64 {
        if streaming { &self.streaming } else { &self.waiting }
    }
}

impl Levels {
    fn streams_of(&self, streaming: bool) -> &AtomicI64 {
        if streaming { &self.streaming } else { &self.waiting }
    }

    fn now(&self) -> Open {
        let [requests, waiting, streaming] =
            [&self.requests, &self.waiting, &self.streaming].map(|level| level.load(Relaxed));
        Open { requests, waiting, streaming }
    }
}

/// An open request.
#[derive(Debug)]
pub struct ActiveRequest {
    gauges: Arc<Gauges>,
    method: usize,
    model: Option<(Box<str>, Arc<Levels>)>,
    /// Whether it is counted as a stream, and then whether its first token has come.
    stream: Option<bool>,
}

impl ActiveRequest {
    /// Its model is known now. Call once.
    pub fn asks_for(&mut self, model: Option<&str>) {
        let Some(name) = model else { return };
        let mut models = self.gauges.models.lock().unwrap_or_else(PoisonError::into_inner);
        let levels = match models.get(name) {
            Some(levels) => Arc::clone(levels),
            None => Arc::clone(models.entry(name.into()).or_default()),
        };
        // Under the lock, so that nobody takes away a model that has just got a request.
        levels.requests.fetch_add(1, Relaxed);
        drop(models);
        if let Some(has_token) = self.stream {
            levels.streams_of(has_token).fetch_add(1, Relaxed);
        }
        self.model = Some((name.into(), levels));
    }

    /// It is a stream that has no token yet (`false`) or has one (`true`). Call again when that changes.
    pub fn is_stream(&mut self, has_token: bool) {
        if self.stream == Some(has_token) {
            return;
        }
        if let Some(before) = self.stream.replace(has_token) {
            self.count(before, -1);
        }
        self.count(has_token, 1);
    }

    fn count(&self, has_token: bool, by: i64) {
        self.gauges.streams_of(has_token).fetch_add(by, Relaxed);
        if let Some((_, levels)) = &self.model {
            levels.streams_of(has_token).fetch_add(by, Relaxed);
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.gauges.active[self.method].fetch_sub(1, Relaxed);
        if let Some(has_token) = self.stream {
            self.count(has_token, -1);
        }
        if let Some((name, levels)) = &self.model {
            let mut models = self.gauges.models.lock().unwrap_or_else(PoisonError::into_inner);
            if levels.requests.fetch_sub(1, Relaxed) == 1 {
                models.remove(name);
            }
        }
    }
}

/// An open connection to the upstream.
#[derive(Debug)]
pub struct OpenConnection {
    gauges: Arc<Gauges>,
    idle: bool,
}

impl OpenConnection {
    /// It went back to the pool, or came out of it.
    pub fn set_idle(&mut self, idle: bool) {
        if self.idle != idle {
            self.move_by(-1);
            self.idle = idle;
            self.move_by(1);
        }
    }

    fn move_by(&self, by: i64) {
        let level = if self.idle { &self.gauges.idle } else { &self.gauges.busy };
        level.fetch_add(by, Relaxed);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.move_by(-1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_where_it_stands_and_nowhere_after() {
        let gauges = Arc::<Gauges>::default();
        let mut one = gauges.request("POST");
        let mut other = gauges.request("BREW");
        one.asks_for(Some("tiny"));
        other.asks_for(Some("tiny"));
        one.is_stream(false);
        assert_eq!((gauges.active_requests(), gauges.streams()), (2, (1, 0)));
        one.is_stream(true);
        one.is_stream(true);
        let of_tiny = |requests, waiting, streaming| vec![("tiny".into(), Open { requests, waiting, streaming })];
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((0, 1), of_tiny(2, 0, 1)));
        drop(one);
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((0, 0), of_tiny(1, 0, 0)));
        drop(other);
        assert_eq!((gauges.active_requests(), gauges.open_by_model()), (0, vec![]));
    }

    #[test]
    fn a_stream_whose_model_is_learned_later_counts_for_it_from_then_on() {
        let gauges = Arc::<Gauges>::default();
        let mut stream = gauges.request("POST");
        stream.is_stream(false);
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((1, 0), vec![]));
        stream.asks_for(Some("tiny"));
        let open = |waiting, streaming| vec![("tiny".into(), Open { requests: 1, waiting, streaming })];
        assert_eq!(gauges.open_by_model(), open(1, 0));
        stream.is_stream(true);
        assert_eq!(gauges.open_by_model(), open(0, 1));
        drop(stream);
        assert_eq!((gauges.streams(), gauges.open_by_model()), ((0, 0), vec![]));
    }

    #[test]
    fn a_connection_is_idle_or_busy_until_it_is_closed() {
        let gauges = Arc::<Gauges>::default();
        let mut connection = gauges.connection();
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
        assert_eq!(gauges.upstream(), Upstream::Unknown);
        gauges.set_upstream(Err("refused".to_owned()));
        assert_eq!((gauges.upstream(), gauges.upstream_failure()), (Upstream::Unreachable, Some("refused".to_owned())));
        gauges.set_upstream(Ok(()));
        assert_eq!((gauges.upstream(), gauges.upstream_failure()), (Upstream::Reachable, None));
    }

    #[test]
    fn levels_are_exported_with_their_attributes() {
        let gauges = Arc::<Gauges>::default();
        let (mut stream, _odd) = (gauges.request("POST"), gauges.request("GET\n"));
        stream.is_stream(false);
        let _connection = gauges.connection();
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        gauges.observe(&mut snapshot, "http", 0);
        let levels: Vec<_> = [Id::HttpActive, Id::ActiveStreams, Id::UpstreamConnections]
            .iter()
            .flat_map(|id| snapshot.points(*id))
            .map(|point| (point.labels[0].value.clone(), format!("{:?}", point.data)))
            .collect();
        let expected =
            [("GET", 0), ("POST", 1), (OTHER, 1), ("waiting", 1), ("streaming", 0), ("idle", 0), ("active", 1)];
        assert_eq!(levels, expected.map(|(name, level)| (name.into(), format!("Level({level})"))));
    }
}
