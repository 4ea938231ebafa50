//! Watches the events of a stream and their meanings.

use super::dialect::Delta;
use super::framing::Event;

/// Observes single events, for `inspect`. The proxy uses [`NoopObserver`].
pub trait EventObserver {
    /// Called for each event, before its deltas.
    fn event(&mut self, _index: u64, _event: &Event<'_>) {}
    /// Called for each meaning of the event.
    fn delta(&mut self, _choice: u32, _delta: &Delta<'_>) {}
}

/// Ignores all events.
#[derive(Clone, Copy, Debug)]
pub struct NoopObserver;

impl EventObserver for NoopObserver {}
