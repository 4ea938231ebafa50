//! A bounded sample of requests for swim lanes. Whole sessions are kept or left out, by the hash of their id: the sample
//! does not depend on the order of the records.

use super::request_point::RequestPoint;
use crate::stats::hash::{combine, mix};

/// Maximum number of requests.
pub const MAX_LANE_REQUESTS: usize = 5_000;

/// One request of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneRequest {
    /// Hash of the session; of the request itself if it has none.
    pub session: u64,
    /// The request.
    pub point: RequestPoint,
    /// The request belongs to a session of several turns.
    pub has_session: bool,
}

/// Keeps every session whose hash ends in `shift` zeros; `shift` grows as requests come.
#[derive(Clone, Debug, Default)]
pub struct LaneSample {
    shift: u32,
    requests: Vec<LaneRequest>,
}

impl LaneSample {
    /// Adds a request.
    pub(super) fn add(&mut self, point: RequestPoint) {
        let session = point.session().unwrap_or_else(|| combine(mix(point.started), point.isl().unwrap_or(0)));
        if !self.keeps(session) {
            return;
        }
        self.requests.push(LaneRequest { session, point, has_session: point.session().is_some() });
        while self.requests.len() > MAX_LANE_REQUESTS && self.shift < u64::BITS - 1 {
            self.shift += 1;
            let remaining = self.requests.iter().copied().filter(|request| self.keeps(request.session)).collect();
            self.requests = remaining;
        }
    }

    fn keeps(&self, session: u64) -> bool {
        session.trailing_zeros() >= self.shift
    }

    /// One of so many sessions is in the sample.
    pub const fn one_of(&self) -> u64 {
        1 << self.shift
    }

    /// The requests, by start.
    pub fn sorted(&self) -> Vec<LaneRequest> {
        let mut requests = self.requests.clone();
        requests.sort_unstable_by_key(|request| (request.point, request.session));
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::record::Outcome;
    use crate::report::definitions::Definitions;
    use crate::report::request_view::RequestView;
    use crate::trace_file::row::{Timing, TraceEntry};

    fn sample(requests: impl Iterator<Item = u64>, sessions: u64) -> LaneSample {
        let mut sample = LaneSample::default();
        for at in requests {
            let row = TraceEntry {
                at: at * 1_000_000,
                session: (sessions > 0).then(|| (at % sessions).to_string()),
                outcome: Some(Outcome::Success),
                timing: Timing { ended: Some(5_000_000), ..Timing::default() },
                ..TraceEntry::default()
            };
            let view = RequestView::from_row(row, 0, None).unwrap();
            sample.add(RequestPoint::of(&view, Definitions::default(), &[]));
        }
        sample
    }

    #[test]
    fn a_sample_is_bounded_and_the_same_in_any_order() {
        let (forth, back) = (sample(0..40_000, 0), sample((0..40_000).rev(), 0));
        assert_eq!(forth.sorted(), back.sorted());
        assert!((2_000..=MAX_LANE_REQUESTS).contains(&forth.sorted().len()), "{}", forth.sorted().len());
        assert!(forth.one_of() >= 8 && forth.one_of() == back.one_of());
    }

    #[test]
    fn sessions_are_whole() {
        let sample = sample(0..40_000, 4_000).sorted();
        let mut sessions: Vec<u64> = sample.iter().map(|request| request.session).collect();
        sessions.sort_unstable();
        assert!(sessions.chunk_by(|a, b| a == b).all(|session| session.len() == 10) && !sample.is_empty());
        assert_eq!(self::sample(0..100, 0).sorted().len(), 100);
    }
}
