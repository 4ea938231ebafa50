//! What one thread has open right now: requests, streams and connections.
//!
//! Each thread that forwards moves levels of its own, and a scrape adds them up: a counter that two cores move goes from
//! one to the other with every request. All of it lives in guards, so that no way out of a request can forget to count
//! back.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::AHashMap;

use super::error_type::OTHER_VALUE;

/// The methods that the HTTP conventions know.
pub(super) const METHODS: [&str; 11] =
    ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY", OTHER_VALUE];

/// A method as an attribute value: what a client made up is `_OTHER`.
pub fn known_method(method: &str) -> &'static str {
    METHODS[method_index(method)]
}

fn method_index(method: &str) -> usize {
    METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len() - 1)
}

/// See the module.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadGauges {
    /// Requests, by method.
    active: [AtomicI64; METHODS.len()],
    streams: StreamGauges,
    /// Connections to the upstream.
    idle: AtomicI64,
    busy: AtomicI64,
    /// Touched twice in the life of a request.
    models: Mutex<AHashMap<Arc<str>, Arc<ModelGauges>>>,
}

/// Open requests of one model.
#[derive(Debug, Default)]
struct ModelGauges {
    requests: AtomicI64,
    streams: StreamGauges,
}

/// Open streams, without and with a first token.
#[derive(Debug, Default)]
struct StreamGauges([AtomicI64; 2]);

impl StreamGauges {
    fn count(&self, has_token: bool, by: i64) {
        self.0[usize::from(has_token)].fetch_add(by, Relaxed);
    }

    fn load(&self) -> [i64; 2] {
        self.0.each_ref().map(|level| level.load(Relaxed))
    }
}

/// What is open of one model at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    /// Requests.
    pub requests: i64,
    /// Those of them that are streams without a token yet.
    pub waiting: i64,
    /// Those that are streams and have one.
    pub streaming: i64,
}

impl ThreadGauges {
    /// A request has arrived; it is active until the guard is dropped.
    pub fn request(self: &Arc<Self>, method: &str) -> ActiveRequest {
        let method = method_index(method);
        self.active[method].fetch_add(1, Relaxed);
        ActiveRequest { gauges: Arc::clone(self), method, model: None, stream: None }
    }

    /// A connection to the upstream is open; it is busy until it says otherwise, and open until it is dropped.
    pub fn connection(self: &Arc<Self>) -> OpenConnection {
        self.busy.fetch_add(1, Relaxed);
        OpenConnection { gauges: Arc::clone(self), idle: false }
    }

    /// Open requests, by [method](METHODS).
    pub(super) fn active(&self) -> [i64; METHODS.len()] {
        self.active.each_ref().map(|active| active.load(Relaxed))
    }

    /// Streams without and with a first token.
    pub(super) fn streams(&self) -> [i64; 2] {
        self.streams.load()
    }

    /// Open connections to the upstream: idle and busy ones.
    pub(super) fn connections(&self) -> [i64; 2] {
        [&self.idle, &self.busy].map(|level| level.load(Relaxed))
    }

    /// Adds what is open of each model that has something open, by the name asked for.
    pub(super) fn add_models(&self, sum: &mut AHashMap<Arc<str>, OpenCounts>) {
        for (name, model) in self.models().iter() {
            let (sum, [waiting, streaming]) = (sum.entry(Arc::clone(name)).or_default(), model.streams.load());
            sum.requests += model.requests.load(Relaxed);
            sum.waiting += waiting;
            sum.streaming += streaming;
        }
    }

    fn models(&self) -> MutexGuard<'_, AHashMap<Arc<str>, Arc<ModelGauges>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open request.
#[derive(Debug)]
pub struct ActiveRequest {
    gauges: Arc<ThreadGauges>,
    method: usize,
    model: Option<(Arc<str>, Arc<ModelGauges>)>,
    /// Whether it is counted as a stream, and then whether its first token has come.
    stream: Option<bool>,
}

impl ActiveRequest {
    /// Its model is known now. Call once.
    pub fn set_model(&mut self, model: Option<&str>) {
        let Some(name) = model else { return };
        let mut models = self.gauges.models();
        let (name, model) = match models.get_key_value(name) {
            Some((name, model)) => (Arc::clone(name), Arc::clone(model)),
            None => {
                let name = Arc::from(name);
                let model = Arc::clone(models.entry(Arc::clone(&name)).or_default());
                (name, model)
            }
        };
        // Under the lock, so that nobody takes away a model that has just got a request.
        model.requests.fetch_add(1, Relaxed);
        drop(models);
        if let Some(has_token) = self.stream {
            model.streams.count(has_token, 1);
        }
        self.model = Some((name, model));
    }

    /// It is a stream that has no token yet (`false`) or has one (`true`). Call again when that changes.
    pub fn set_stream_phase(&mut self, has_token: bool) {
        if self.stream == Some(has_token) {
            return;
        }
        if let Some(before) = self.stream.replace(has_token) {
            self.count(before, -1);
        }
        self.count(has_token, 1);
    }

    fn count(&self, has_token: bool, by: i64) {
        self.gauges.streams.count(has_token, by);
        if let Some((_, model)) = &self.model {
            model.streams.count(has_token, by);
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.gauges.active[self.method].fetch_sub(1, Relaxed);
        if let Some(has_token) = self.stream {
            self.count(has_token, -1);
        }
        if let Some((name, model)) = &self.model {
            let mut models = self.gauges.models();
            if model.requests.fetch_sub(1, Relaxed) == 1 {
                models.remove(name);
            }
        }
    }
}

/// An open connection to the upstream.
#[derive(Debug)]
pub struct OpenConnection {
    gauges: Arc<ThreadGauges>,
    idle: bool,
}

impl OpenConnection {
    /// It went back to the pool, or came out of it.
    pub fn set_idle(&mut self, idle: bool) {
        if self.idle != idle {
            self.add_to_gauge(-1);
            self.idle = idle;
            self.add_to_gauge(1);
        }
    }

    fn add_to_gauge(&self, by: i64) {
        let level = if self.idle { &self.gauges.idle } else { &self.gauges.busy };
        level.fetch_add(by, Relaxed);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.add_to_gauge(-1);
    }
}
