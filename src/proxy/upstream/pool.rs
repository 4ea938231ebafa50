//! Idle HTTP/1.1 connections to the upstream, and the rules for their reuse.
//!
//! # Why a connection rests
//! Servers close connections without notice: llama-server after every streamed response, uvicorn after five idle
//! seconds. A request written to a connection whose FIN is on its way is lost. A retry is unsafe, because the server
//! may have processed it. Proxies that reuse at once lose one request in ten that way. So a connection rests before
//! reuse, long enough for a close to show, and is checked again at reuse.
//!
//! The rest depends on the upstream's observed [`KeepAliveBehavior`] after responses of that [`ReplyKind`]: unproven,
//! keeping connections, or closing them. In the last case its connections are not pooled.

use std::collections::VecDeque;

use super::h1::{Http1Connection, ReplyKind};
use crate::measure::time::{Gap, Stamp};

/// Rest while the behavior is unproven. A busy server's FIN takes milliseconds.
const REUSE_DELAY_UNPROVEN: Gap = Gap::from_millis(50);
/// Rest once the server has kept connections: a change, such as a restart, is still noticed.
const REUSE_DELAY_PROVEN: Gap = Gap::from_millis(2);
/// A close this soon after a response is the server's behavior; a later one may be an idle timeout.
const EARLY_CLOSE_WINDOW: Gap = Gap::from_millis(1_000);
/// The server's closing behavior is forgotten after this long: servers restart with other settings.
const BEHAVIOR_TTL: Gap = Gap::from_millis(60_000);
/// Idle limit, unless the server announces less: vLLM, llama-server and other servers on uvicorn or cpp-httplib close
/// after five seconds.
const MAX_IDLE: Gap = Gap::from_millis(4_000);
/// Limit per worker. Further connections are closed at once.
const MAX_IDLE_CONNECTIONS: usize = 512;

/// The server's handling of connections after a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KeepAliveBehavior {
    #[default]
    Unproven,
    KeepsOpen,
    Closes {
        seen: Stamp,
    },
}

/// The idle connections of one worker, oldest first.
#[derive(Debug)]
pub(super) struct UpstreamPool {
    idle: VecDeque<IdleConnection>,
    streamed: KeepAliveBehavior,
    fixed_length: KeepAliveBehavior,
    max_idle: Gap,
}

#[derive(Debug)]
struct IdleConnection {
    connection: Http1Connection,
    kind: ReplyKind,
    since: Stamp,
    seen_alive: Stamp,
}

impl Default for UpstreamPool {
    fn default() -> Self {
        Self {
            idle: VecDeque::new(),
            streamed: KeepAliveBehavior::default(),
            fixed_length: KeepAliveBehavior::default(),
            max_idle: MAX_IDLE,
        }
    }
}

impl UpstreamPool {
    /// Applies the server's `Keep-Alive` timeout, less one second for the network.
    pub(super) fn set_server_keep_alive(&mut self, seconds: u64) {
        let hint = Gap::from_millis(seconds.saturating_mul(1_000).saturating_sub(1_000));
        self.max_idle = hint.min(MAX_IDLE);
    }

    /// Takes a connection back after a response, unless the server closes such connections.
    pub(super) fn put(&mut self, mut connection: Http1Connection, kind: ReplyKind, now: Stamp) {
        if let KeepAliveBehavior::Closes { seen } = *self.keep_alive_behavior(kind) {
            if now.since(seen) < BEHAVIOR_TTL {
                return;
            }
            *self.keep_alive_behavior(kind) = KeepAliveBehavior::Unproven;
        }
        if self.idle.len() < MAX_IDLE_CONNECTIONS {
            connection.set_idle(true);
            self.idle.push_back(IdleConnection { connection, kind, since: now, seen_alive: now });
        }
    }

    /// The most recently used rested connection, if it is alive.
    pub(super) fn take(&mut self, now: Stamp) -> Option<Http1Connection> {
        // At thousands of requests per second most connections are still resting.
        let mut at = self.idle.partition_point(|idle| now.since(idle.since) >= REUSE_DELAY_PROVEN);
        while at > 0 {
            at -= 1;
            let idle = &self.idle[at];
            let (age, kind) = (now.since(idle.since), idle.kind);
            if age < self.reuse_delay(kind) {
                continue;
            }
            let mut idle = self.idle.remove(at)?;
            if age >= self.max_idle {
                // Everything before it is older still.
                self.idle.drain(..at);
                return None;
            }
            if idle.connection.is_alive() {
                self.on_kept_alive(kind, age);
                idle.connection.set_idle(false);
                return Some(idle.connection);
            }
            self.on_closed(&idle, now);
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }

    /// Closes the longest idle connection.
    pub(super) fn close_oldest(&mut self) {
        self.idle.pop_front();
    }

    /// Checks every idle connection; closes dead and expired ones.
    pub(super) fn evict(&mut self, now: Stamp) {
        for mut idle in std::mem::take(&mut self.idle) {
            let age = now.since(idle.since);
            if !idle.connection.is_alive() {
                self.on_closed(&idle, now);
            } else if age < self.max_idle {
                self.on_kept_alive(idle.kind, age);
                idle.seen_alive = now;
                self.idle.push_back(idle);
            }
        }
    }

    fn reuse_delay(&mut self, kind: ReplyKind) -> Gap {
        match self.keep_alive_behavior(kind) {
            KeepAliveBehavior::KeepsOpen => REUSE_DELAY_PROVEN,
            _ => REUSE_DELAY_UNPROVEN,
        }
    }

    fn on_kept_alive(&mut self, kind: ReplyKind, age: Gap) {
        let manners = self.keep_alive_behavior(kind);
        if *manners == KeepAliveBehavior::Unproven && age >= REUSE_DELAY_UNPROVEN {
            *manners = KeepAliveBehavior::KeepsOpen;
        }
    }

    fn on_closed(&mut self, idle: &IdleConnection, now: Stamp) {
        if now.since(idle.since) < EARLY_CLOSE_WINDOW {
            *self.keep_alive_behavior(idle.kind) = KeepAliveBehavior::Closes { seen: now };
        } else {
            // It closed between the last check and now: stay well below the age that it last survived.
            let survived = idle.seen_alive.since(idle.since).as_nanos();
            self.max_idle = self.max_idle.min(Gap::from_nanos(survived / 5 * 4)).max(EARLY_CLOSE_WINDOW);
        }
    }

    fn keep_alive_behavior(&mut self, kind: ReplyKind) -> &mut KeepAliveBehavior {
        match kind {
            ReplyKind::Streamed => &mut self.streamed,
            ReplyKind::FixedLength => &mut self.fixed_length,
        }
    }
}
