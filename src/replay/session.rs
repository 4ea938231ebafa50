//! A conversation, whose turns go one after the other.

use std::collections::VecDeque;

use super::exchange::ReplayRequest;
use crate::measure::time::Stamp;

/// See the module.
#[derive(Default)]
pub(super) struct ReplaySession {
    /// A turn is queued or open, or one before those that wait is still to come.
    pub(super) busy: bool,
    /// When the last answer ended; nothing while the next turn is open.
    pub(super) ended: Option<Stamp>,
    pub(super) waiting: VecDeque<ReplayRequest>,
}

impl ReplaySession {
    /// Ends it where its next turn is due at `until` or later: how many turns have waited for that one.
    pub(super) fn end_if_past(&mut self, due: Stamp, until: Option<Stamp>) -> Option<usize> {
        let until = until.filter(|until| due >= *until)?;
        // So that a turn that is still to be read is not due earlier than this one.
        self.ended = Some(until);
        Some(self.waiting.drain(..).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_the_run_also_for_turns_that_are_read_later() {
        let [ended, until, late] = [1, 5, 7].map(Stamp::from_nanos);
        let mut session = ReplaySession { ended: Some(ended), ..ReplaySession::default() };
        assert_eq!((session.end_if_past(late, None), session.end_if_past(ended, Some(until))), (None, None));
        assert_eq!(session.ended, Some(ended));
        assert_eq!(
            (session.end_if_past(until, Some(until)), session.end_if_past(late, Some(until))),
            (Some(0), Some(0))
        );
        assert_eq!(session.ended, Some(until), "a turn without a pause would be due then");
    }
}
