//! Lead of a hand-over to the paced writer before the due time.

use std::cmp::Reverse;

use super::{PRECONNECT_INTERVAL, SendWorker};
use crate::measure::time::{Gap, Stamp};

/// Lead if a connection is ready: the delay by busy neighbours that this thread can absorb. It is shorter than
/// [`PRECONNECT_AHEAD`](super::PRECONNECT_AHEAD), which opens that connection, and than servers' idle timeouts; the
/// paced writer checks the connection again.
pub(super) const MAX_LEAD: Gap = Gap::from_millis(150);
/// Lead if the connection is not open yet, or if [`MAX_EARLY_WRITES`] requests already wait with theirs.
pub(super) const MIN_LEAD: Gap = Gap::from_millis(20);
/// Limit on writes queued earlier than [`MIN_LEAD`]: each holds a connection.
const MAX_EARLY_WRITES: usize = 256;

impl SendWorker {
    /// The next due time, and the lead with which its request may be dispatched now.
    pub(super) fn next_due(&self, now: Stamp) -> Option<(Stamp, Gap)> {
        let queue = self.queue.borrow();
        let Reverse(due) = queue.peek()?;
        let (least, most) = self.lead;
        // The pool is checked only if the answer matters.
        let soon = due.at <= now.after(most) && due.at > now.after(least);
        let early = soon && self.paced_writer.waiting() < MAX_EARLY_WRITES && self.pool(due.item.target).has_ready(now);
        Some((due.at, if early { most } else { least }))
    }

    /// Time of the next check of a queue whose next request is due at `at`.
    pub(super) fn next_wakeup(&self, now: Stamp, at: Stamp) -> Stamp {
        // At half of the lead: all requests within the other half are then dispatched together.
        let half = |lead: Gap| at.before(Gap::from_nanos(lead.as_nanos() / 2));
        let (least, most) = self.lead;
        // The last check may have found no connection.
        half(most).max(now.after(PRECONNECT_INTERVAL)).min(half(least))
    }
}
