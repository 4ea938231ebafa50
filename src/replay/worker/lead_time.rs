//! How long before its time a request is given to the pen.

use std::cmp::Reverse;

use super::{PRECONNECT_INTERVAL, SendWorker};
use crate::measure::time::{Gap, Stamp};

/// How long before its time a request is given to the pen where a connection is there: what this thread may be late by
/// without being seen, beside neighbours that take its core. Less than [`WARM_AHEAD`](super::WARM_AHEAD), which makes that connection, and
/// than servers keep an idle one open; the pen looks at it again.
pub(super) const MAX_LEAD: Gap = Gap::from_millis(150);
/// The same where a connection is still to be made, or where [`MAX_GIVEN`] requests wait with theirs.
pub(super) const MIN_LEAD: Gap = Gap::from_millis(20);
/// Requests that wait in the pen for longer than [`MIN_LEAD`]: each holds a connection.
const MAX_EARLY_WRITES: usize = 256;

impl SendWorker {
    /// When the next request is due, and how long before that it may be begun with now.
    pub(super) fn next_due(&self, now: Stamp) -> Option<(Stamp, Gap)> {
        let queue = self.queue.borrow();
        let Reverse(due) = queue.peek()?;
        let (least, most) = self.lead;
        // A connection is looked for only where it matters.
        let soon = due.at <= now.after(most) && due.at > now.after(least);
        let early = soon && self.paced_writer.waiting() < MAX_EARLY_WRITES && self.pool(due.item.target).has_ready(now);
        Some((due.at, if early { most } else { least }))
    }

    /// When to look at the queue again, whose next request is due at `at`.
    pub(super) fn next_wakeup(&self, now: Stamp, at: Stamp) -> Stamp {
        // Half of a lead: the other half of it is begun with at one go.
        let half = |lead: Gap| at.before(Gap::from_nanos(lead.as_nanos() / 2));
        let (least, most) = self.lead;
        // It may have found no connection.
        half(most).max(now.after(PRECONNECT_INTERVAL)).min(half(least))
    }
}
