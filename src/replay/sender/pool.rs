//! Idle connections, ready for the next request.
//!
//! Servers close connections without notice: llama-server after every streamed response, uvicorn after five idle
//! seconds. A request on such a connection is lost, and would count as the server's failure. So a used connection rests
//! before reuse, expires after an idle limit, and is checked before use. The pool also opens connections ahead of the
//! due requests, so that no request waits for a handshake.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;

use super::target::TargetConnector;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::io::MaybeTlsStream;

/// Rest of a used connection before reuse. A busy server's FIN takes milliseconds.
const REUSE_DELAY: Gap = Gap::from_millis(50);
/// Idle limit: below uvicorn's keep-alive timeout of five seconds.
const MAX_IDLE: Gap = Gap::from_millis(4_000);
/// Limit on concurrent handshakes: more would delay the sends that are due.
const MAX_CONCURRENT_HANDSHAKES: usize = 128;

/// The connection policy of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionReuse {
    /// Reuse any idle connection.
    #[default]
    Reuse,
    /// Open a connection for each request.
    Fresh,
    /// One connection per session.
    PerSession,
}

struct PooledConnection {
    io: MaybeTlsStream,
    since: Stamp,
}

/// One thread's idle connections to one target.
pub(in crate::replay) struct TargetPool {
    connector: TargetConnector,
    reuse: ConnectionReuse,
    /// Opened ahead and not used yet, oldest first.
    fresh: RefCell<VecDeque<PooledConnection>>,
    /// Used before, oldest first.
    used: RefCell<VecDeque<PooledConnection>>,
    by_session: RefCell<HashMap<String, PooledConnection>>,
    connecting: Cell<usize>,
}

impl TargetPool {
    pub(in crate::replay) fn new(connector: TargetConnector, manner: ConnectionReuse) -> Self {
        Self {
            connector,
            reuse: manner,
            fresh: RefCell::default(),
            used: RefCell::default(),
            by_session: RefCell::default(),
            connecting: Cell::new(0),
        }
    }

    /// Takes a connection that accepts a write now.
    pub(in crate::replay) fn take(&self, session: Option<&str>, now: Stamp) -> Option<MaybeTlsStream> {
        let own = session.and_then(|session| self.by_session.borrow_mut().remove(session));
        if let Some(io) = own.and_then(|idle| usable(idle, now)) {
            return Some(io);
        }
        loop {
            let rested = self.used.borrow().partition_point(|idle| now.since(idle.since) >= REUSE_DELAY);
            // The most recently used one that has rested; older ones expire.
            let Some(idle) = rested.checked_sub(1).and_then(|at| self.used.borrow_mut().remove(at)) else { break };
            if let Some(io) = usable(idle, now) {
                return Some(io);
            }
        }
        loop {
            let idle = self.fresh.borrow_mut().pop_front()?;
            if let Some(io) = usable(idle, now) {
                return Some(io);
            }
        }
    }

    /// True if an idle connection may be used now.
    pub(in crate::replay) fn has_ready(&self, now: Stamp) -> bool {
        let rested = |idle: &PooledConnection| now.since(idle.since) >= REUSE_DELAY;
        !self.fresh.borrow().is_empty() || self.used.borrow().front().is_some_and(rested)
    }

    /// Returns a connection after a complete response.
    pub(in crate::replay) fn put_back(&self, io: MaybeTlsStream, session: Option<&str>, now: Stamp) {
        let idle = PooledConnection { io, since: now };
        match (self.reuse, session) {
            (ConnectionReuse::Reuse, _) => self.used.borrow_mut().push_back(idle),
            (ConnectionReuse::PerSession, Some(session)) => {
                self.by_session.borrow_mut().insert(session.to_owned(), idle);
            }
            _ => {}
        }
    }

    pub(in crate::replay) async fn connect(&self) -> io::Result<MaybeTlsStream> {
        self.connector.connect().await
    }

    /// Opens connections for `count` requests ahead of time, and drops expired ones.
    pub(in crate::replay) fn preconnect(self: &Rc<Self>, count: usize, now: Stamp) {
        for idle in [&self.fresh, &self.used] {
            let mut idle = idle.borrow_mut();
            while idle.front().is_some_and(|idle| now.since(idle.since) >= MAX_IDLE) {
                idle.pop_front();
            }
        }
        self.by_session.borrow_mut().retain(|_, idle| now.since(idle.since) < MAX_IDLE);
        let rested = self.used.borrow().partition_point(|idle| now.since(idle.since) >= REUSE_DELAY);
        let ready = rested + self.fresh.borrow().len() + self.connecting.get();
        let room = MAX_CONCURRENT_HANDSHAKES.saturating_sub(self.connecting.get());
        for _ in 0..count.saturating_sub(ready).min(room) {
            self.connecting.set(self.connecting.get() + 1);
            let pool = Rc::clone(self);
            tokio::task::spawn_local(async move {
                // Without an idle connection a request opens its own and reports the failure.
                if let Ok(io) = pool.connector.connect().await {
                    pool.fresh.borrow_mut().push_back(PooledConnection { io, since: Clock::Monotonic.now() });
                }
                pool.connecting.set(pool.connecting.get() - 1);
            });
        }
    }
}

fn usable(mut idle: PooledConnection, now: Stamp) -> Option<MaybeTlsStream> {
    (now.since(idle.since) < MAX_IDLE && idle.io.is_idle_and_open()).then_some(idle.io)
}
