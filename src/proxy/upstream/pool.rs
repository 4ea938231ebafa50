//! Idle HTTP/1.1 connections to the upstream, and when one may be used again.
//!
//! # Why a connection rests
//! Servers hang up without saying so: llama-server closes after every streamed reply, uvicorn after five idle seconds.
//! A request written to a connection whose FIN is on its way is lost, and may not be repeated, because nobody knows
//! whether the server took it; proxies that reuse at once lose one request in ten that way. So a connection rests
//! before it is used again, long enough for a hang-up to have shown, and is looked at once more before it is.
//!
//! How long depends on what this upstream has been seen to do after replies of that [`Kind`] ([`Manners`]): it has
//! proved nothing yet; it keeps connections; or it hangs up, and its connections are not kept at all.

use std::collections::VecDeque;

use super::h1::Http1Connection;
use crate::measure::time::{Gap, Stamp};

/// Rest after a reply of a kind after which this upstream has proved nothing. A busy server's FIN takes milliseconds.
const REUSE_DELAY_UNPROVEN: Gap = Gap::from_millis(50);
/// Rest once it has proved to keep connections: a server that stops doing so (a restart) is still noticed.
const REUSE_DELAY_PROVEN: Gap = Gap::from_millis(2);
/// A connection found closed this soon after a reply was hung up; later it may have been an idle time-out.
const EARLY_CLOSE_WINDOW: Gap = Gap::from_millis(1_000);
/// A hang-up is forgotten after this long: servers are restarted with other settings.
const BEHAVIOR_TTL: Gap = Gap::from_millis(60_000);
/// How long a connection may idle, unless the server says less: vLLM, llama-server and every other uvicorn or
/// cpp-httplib server closes after five seconds.
const MAX_IDLE: Gap = Gap::from_millis(4_000);
/// Idle connections of one worker. More are closed at once.
const MAX_IDLE_CONNECTIONS: usize = 512;

/// What kind of reply a connection has just carried. Servers treat them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// Its length was not known beforehand.
    Streamed,
    /// It had a length.
    FixedLength,
}

/// What the upstream does with a connection after a reply.
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
    /// The server said how long it keeps idle connections; a second of that is left to the network.
    pub(super) fn set_server_keep_alive(&mut self, seconds: u64) {
        let hint = Gap::from_millis(seconds.saturating_mul(1_000).saturating_sub(1_000));
        self.max_idle = hint.min(MAX_IDLE);
    }

    /// Takes back a connection after a reply, if it is worth keeping.
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

    /// The connection used last among those that have rested, if it is alive.
    pub(super) fn take(&mut self, now: Stamp) -> Option<Http1Connection> {
        // At thousands of requests a second most of them rest.
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

    /// Closes the connection that has idled longest.
    pub(super) fn close_oldest(&mut self) {
        self.idle.pop_front();
    }

    /// Looks at every idle connection; closes those that the server has closed and those that are too old.
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
            // It was closed between the last look and now: keep well below the shortest that was survived.
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
