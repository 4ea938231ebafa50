//! Connections that wait for their request.
//!
//! Servers hang up without saying so (llama-server after every streamed reply, uvicorn after five idle seconds), and a
//! request that meets such a connection is lost, which would count as the server's failure. So a connection rests before
//! it is used again, is used no more when it is old, and is looked at before it is used; and there are always some new
//! ones for what is due next, so that nobody waits for a handshake.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;

use super::target::TargetConnector;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::io::MaybeTlsStream;

/// How long a used connection rests. A busy server's FIN takes milliseconds.
const REUSE_DELAY: Gap = Gap::from_millis(50);
/// An idle connection is not used after this long: below uvicorn's five seconds.
const MAX_IDLE: Gap = Gap::from_millis(4_000);
/// Handshakes at a time: more would delay the sends that are due.
const MAX_CONCURRENT_HANDSHAKES: usize = 128;

/// Which connection a request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionReuse {
    /// Any that is idle.
    #[default]
    Reuse,
    /// One of its own.
    Fresh,
    /// Its session's.
    PerSession,
}

struct PooledConnection {
    io: MaybeTlsStream,
    since: Stamp,
}

/// The idle connections to one target, of one thread.
pub(super) struct TargetPool {
    connector: TargetConnector,
    reuse: ConnectionReuse,
    /// Made ahead and never used, oldest first.
    fresh: RefCell<VecDeque<PooledConnection>>,
    /// Used before, oldest first.
    used: RefCell<VecDeque<PooledConnection>>,
    by_session: RefCell<HashMap<String, PooledConnection>>,
    connecting: Cell<usize>,
}

impl TargetPool {
    pub(super) fn new(connector: TargetConnector, manner: ConnectionReuse) -> Self {
        Self {
            connector,
            reuse: manner,
            fresh: RefCell::default(),
            used: RefCell::default(),
            by_session: RefCell::default(),
            connecting: Cell::new(0),
        }
    }

    /// A connection that can be written to now.
    pub(super) fn take(&self, session: Option<&str>, now: Stamp) -> Option<MaybeTlsStream> {
        let own = session.and_then(|session| self.by_session.borrow_mut().remove(session));
        if let Some(io) = own.and_then(|idle| usable(idle, now)) {
            return Some(io);
        }
        loop {
            let rested = self.used.borrow().partition_point(|idle| now.since(idle.since) >= REUSE_DELAY);
            // The one used last of those that have rested; the others get old and go.
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

    /// Whether there is a connection that may be used now.
    pub(super) fn has_ready(&self, now: Stamp) -> bool {
        let rested = |idle: &PooledConnection| now.since(idle.since) >= REUSE_DELAY;
        !self.fresh.borrow().is_empty() || self.used.borrow().front().is_some_and(rested)
    }

    /// Takes back a connection whose reply was whole.
    pub(super) fn put_back(&self, io: MaybeTlsStream, session: Option<&str>, now: Stamp) {
        let idle = PooledConnection { io, since: now };
        match (self.reuse, session) {
            (ConnectionReuse::Reuse, _) => self.used.borrow_mut().push_back(idle),
            (ConnectionReuse::PerSession, Some(session)) => {
                self.by_session.borrow_mut().insert(session.to_owned(), idle);
            }
            _ => {}
        }
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> io::Result<MaybeTlsStream> {
        self.connector.connect().await
    }

    /// Sees to it that `wanted` requests find a connection, and drops those that are too old.
    pub(super) fn preconnect(self: &Rc<Self>, wanted: usize, now: Stamp) {
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
        for _ in 0..wanted.saturating_sub(ready).min(room) {
            self.connecting.set(self.connecting.get() + 1);
            let pool = Rc::clone(self);
            tokio::task::spawn_local(async move {
                // A request that finds no connection makes its own, and tells why that failed.
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
