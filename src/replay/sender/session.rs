//! A session of a live replay, whose turns follow one another.

use std::collections::VecDeque;

use super::job::ReplayRequest;
use crate::measure::time::Stamp;

#[derive(Default)]
pub(in crate::replay) struct ReplaySession {
    /// A turn is queued or open, or an earlier turn than the waiting ones has not been read yet.
    pub(in crate::replay) busy: bool,
    /// End of the last response; `None` while a turn is open.
    pub(in crate::replay) ended: Option<Stamp>,
    pub(in crate::replay) waiting: VecDeque<ReplayRequest>,
}

impl ReplaySession {
    /// Ends the session if its next turn is due at `until` or later. Returns the number of turns dropped behind it.
    pub(in crate::replay) fn end_if_past(&mut self, due: Stamp, until: Option<Stamp>) -> Option<usize> {
        let until = until.filter(|until| due >= *until)?;
        // A turn that is read later cannot be due earlier than this one.
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
