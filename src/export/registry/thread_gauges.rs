//! Open requests, streams and connections of one thread.
//!
//! Each forwarding thread has its own gauges, and a scrape adds them up: a counter shared by two cores would move
//! between their caches with every request. Guards hold every increment, so that no exit path forgets the decrement.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::AHashMap;

use super::error_type::OTHER_VALUE;

/// Methods in the HTTP conventions.
pub(in crate::export) const METHODS: [&str; 11] =
    ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY", OTHER_VALUE];

/// Returns a method as an attribute value; unknown methods become `_OTHER`.
pub fn known_method(method: &str) -> &'static str {
    METHODS[method_index(method)]
}

fn method_index(method: &str) -> usize {
    METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len() - 1)
}

/// Gauges of one thread, aligned so that threads share no cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadGauges {
    /// Open requests, by method.
    active: [AtomicI64; METHODS.len()],
    streams: StreamGauges,
    /// Idle connections to the upstream.
    idle: AtomicI64,
    busy: AtomicI64,
    /// Locked twice per request.
    models: Mutex<AHashMap<Arc<str>, Arc<ModelGauges>>>,
}

/// Open requests of one model.
#[derive(Debug, Default)]
struct ModelGauges {
    requests: AtomicI64,
    streams: StreamGauges,
}

/// Open streams (without, with) a first token.
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

/// Open requests of one model at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    /// All open requests.
    pub requests: i64,
    /// Streams without a token.
    pub waiting: i64,
    /// Streams with a token.
    pub streaming: i64,
}

impl ThreadGauges {
    /// Counts a request as active until the guard is dropped.
    pub fn request(self: &Arc<Self>, method: &str) -> ActiveRequest {
        let method = method_index(method);
        self.active[method].fetch_add(1, Relaxed);
        ActiveRequest { gauges: Arc::clone(self), method, model: None, stream: None }
    }

    /// Counts an open upstream connection until the guard is dropped. It starts as busy.
    pub fn connection(self: &Arc<Self>) -> OpenConnection {
        self.busy.fetch_add(1, Relaxed);
        OpenConnection { gauges: Arc::clone(self), idle: false }
    }

    /// Returns the open requests by [method](METHODS).
    pub(in crate::export) fn active(&self) -> [i64; METHODS.len()] {
        self.active.each_ref().map(|active| active.load(Relaxed))
    }

    /// Returns the open streams (without, with) a first token.
    pub(in crate::export) fn streams(&self) -> [i64; 2] {
        self.streams.load()
    }

    /// Returns the open upstream connections (idle, busy).
    pub(in crate::export) fn connections(&self) -> [i64; 2] {
        [&self.idle, &self.busy].map(|level| level.load(Relaxed))
    }

    /// Adds the open requests of each active model by requested name.
    pub(in crate::export) fn add_models(&self, sum: &mut AHashMap<Arc<str>, OpenCounts>) {
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

/// Guard of an open request.
#[derive(Debug)]
pub struct ActiveRequest {
    gauges: Arc<ThreadGauges>,
    method: usize,
    model: Option<(Arc<str>, Arc<ModelGauges>)>,
    /// `None` if it is not counted as a stream, otherwise whether it has its first token.
    stream: Option<bool>,
}

impl ActiveRequest {
    /// Sets the model once it is known. Call it once.
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
        // Counted under the lock, so that no thread removes a model that just got a request.
        model.requests.fetch_add(1, Relaxed);
        drop(models);
        if let Some(has_token) = self.stream {
            model.streams.count(has_token, 1);
        }
        self.model = Some((name, model));
    }

    /// Counts the request as a stream without (`false`) or with (`true`) a token. Call it again on each change.
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

/// Guard of an open upstream connection.
#[derive(Debug)]
pub struct OpenConnection {
    gauges: Arc<ThreadGauges>,
    idle: bool,
}

impl OpenConnection {
    /// Marks the connection as idle in the pool, or as busy.
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
