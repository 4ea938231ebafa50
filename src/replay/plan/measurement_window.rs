//! The measurement window selects requests by their planned time: earlier ones are warm-up, later ones cool-down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::measure::time::{Gap, Window};

/// A measurement window. In a closed loop the time of the N-th send is unknown in advance. The window then opens with
/// the first send after the warm-up requests; until then every send is warm-up.
#[derive(Clone, Debug, Default)]
pub struct MeasurementWindow {
    window: Window,
    deferred: Option<Arc<DeferredStart>>,
}

#[derive(Debug)]
struct DeferredStart {
    requests: u64,
    from: AtomicU64,
}

impl From<Window> for MeasurementWindow {
    fn from(window: Window) -> Self {
        Self { window, deferred: None }
    }
}

impl MeasurementWindow {
    /// Opens after this many requests and ends at the planned time `to`.
    pub fn after_requests(requests: u64, to: Option<u64>) -> Self {
        let opens = DeferredStart { requests, from: AtomicU64::new(u64::MAX) };
        Self { window: Window { from: 0, to }, deferred: Some(Arc::new(opens)) }
    }

    /// The window as known so far.
    pub fn window(&self) -> Window {
        let from = self.deferred.as_ref().map_or(self.window.from, |opens| opens.from.load(Relaxed));
        Window { from, ..self.window }
    }

    /// Records a send planned at this time; `others` requests were sent before it.
    pub(in crate::replay) fn record_send(&self, planned: Gap, others: u64) {
        if let Some(opens) = self.deferred.as_ref().filter(|opens| opens.requests == others) {
            opens.from.store(planned.as_nanos(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_opens_with_a_request_has_that_one_and_none_before() {
        let measured = MeasurementWindow::after_requests(2, Some(10));
        let counts = |at| measured.window().has(at);
        measured.record_send(Gap::from_nanos(0), 0);
        measured.record_send(Gap::from_nanos(3), 1);
        assert!(!counts(0) && !counts(3), "nothing counts until then");
        measured.clone().record_send(Gap::from_nanos(4), 2);
        measured.record_send(Gap::from_nanos(5), 3);
        assert_eq!(measured.window(), Window { from: 4, to: Some(10) });
        assert!(!counts(3) && counts(4) && !counts(10));
    }
}
