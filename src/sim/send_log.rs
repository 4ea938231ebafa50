//! Logs when each event was written, so that instruments are compared with the actual sends and not with the plan.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::Serialize;

use super::token_queue::lock;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// Number of logged streams.
const STREAMS: usize = 1_024;

/// Logged events per stream; with [`STREAMS`] this limits the memory to 128 MiB.
const EVENTS: usize = 4_096;

/// One event on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendEntry {
    /// Tokens in the event; zero in a role, usage, error or `[DONE]` event.
    pub(super) tokens: u32,
    /// When the engine generated it.
    pub(super) planned: Stamp,
    /// Before its first `write`.
    pub(super) began: Stamp,
    /// After its last `write`.
    pub(super) ended: Stamp,
}

/// The sends of one stream.
#[derive(Debug)]
pub(super) struct SendLog {
    key: String,
    sends: Mutex<SendLogEntries>,
}

#[derive(Debug, Default)]
struct SendLogEntries {
    first: Vec<SendEntry>,
    /// Number of events beyond [`EVENTS`].
    more: u64,
}

impl SendLog {
    pub(super) fn push(&self, send: SendEntry) {
        let mut sends = lock(&self.sends);
        if sends.first.len() < EVENTS {
            sends.first.push(send);
        } else {
            sends.more += 1;
        }
    }
}

/// Logs of the latest [`STREAMS`] streams, including active ones.
#[derive(Debug, Default)]
pub(super) struct SendLogs {
    logs: Mutex<VecDeque<Arc<SendLog>>>,
}

/// Response of `/sim/sends`. All times are nanoseconds on the process's monotonic time line.
#[derive(Serialize, JsonSchema)]
pub struct SendLogPage<'a> {
    simulated: bool,
    id: &'a str,
    /// Offset from a time to nanoseconds since 1970.
    origin_unix_ns: u64,
    exact_cadence_ns: Option<u64>,
    /// Number of events written but not listed.
    unlisted: u64,
    events: Vec<SendLogLine>,
}

/// One event of the page.
#[derive(Serialize, JsonSchema)]
struct SendLogLine {
    tokens: u32,
    planned_ns: u64,
    began_ns: u64,
    ended_ns: u64,
}

impl SendLogs {
    /// Starts the log of a stream with this request id; evicts the oldest log if necessary.
    pub(super) fn begin(&self, key: &str) -> Arc<SendLog> {
        let log = Arc::new(SendLog { key: key.to_owned(), sends: Mutex::default() });
        let mut logs = lock(&self.logs);
        if logs.len() == STREAMS {
            logs.pop_front();
        }
        logs.push_back(log.clone());
        log
    }

    /// The JSON page of the latest stream with this request id.
    pub(super) fn page(&self, key: &str, cadence: Option<Gap>) -> Option<String> {
        let log = lock(&self.logs).iter().rev().find(|log| log.key == key).cloned()?;
        let sends = lock(&log.sends);
        let line = |send: &SendEntry| SendLogLine {
            tokens: send.tokens,
            planned_ns: send.planned.as_nanos(),
            began_ns: send.began.as_nanos(),
            ended_ns: send.ended.as_nanos(),
        };
        let page = SendLogPage {
            simulated: true,
            id: key,
            origin_unix_ns: Clock::Monotonic.unix_nanos(Stamp::default()),
            exact_cadence_ns: cadence.map(Gap::as_nanos),
            unlisted: sends.more,
            events: sends.first.iter().map(line).collect(),
        };
        // A struct of strings and numbers cannot fail to serialize.
        Some(serde_json::to_string(&page).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(nanos: u64) -> SendEntry {
        let at = Stamp::from_nanos(nanos);
        SendEntry { tokens: 1, planned: at, began: at, ended: at }
    }

    #[test]
    fn the_latest_stream_of_an_id_is_shown() {
        let logs = SendLogs::default();
        logs.begin("a").push(send(1));
        logs.begin("a").push(send(2));
        let page = logs.page("a", Some(Gap::from_millis(10))).unwrap();
        assert!(page.contains(r#""events":[{"tokens":1,"planned_ns":2,"began_ns":2,"ended_ns":2}]"#), "{page}");
        assert!(page.contains(r#""exact_cadence_ns":10000000"#) && page.contains(r#""simulated":true"#));
        assert_eq!(logs.page("b", None), None);
    }

    #[test]
    fn only_so_many_streams_and_events_are_remembered() {
        let logs = SendLogs::default();
        let first = logs.begin("first");
        (0..EVENTS as u64 + 3).for_each(|nanos| first.push(send(nanos)));
        assert!(logs.page("first", None).unwrap().contains(r#""unlisted":3"#));
        (0..STREAMS).for_each(|_| drop(logs.begin("other")));
        assert_eq!(logs.page("first", None), None);
    }
}
