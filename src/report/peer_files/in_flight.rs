//! Requests in flight at each send, from the starts and ends of a run's requests.

/// Starts and ends of requests, each in order.
#[derive(Clone, Debug, Default)]
pub struct InFlightCounter {
    starts: Vec<u64>,
    ends: Vec<u64>,
}

impl InFlightCounter {
    /// Collects (start, end) of requests. A request without an end is not counted.
    pub(super) fn new(spans: impl Iterator<Item = (u64, Option<u64>)>) -> Self {
        let (mut starts, mut ends): (Vec<u64>, Vec<u64>) =
            spans.filter_map(|(start, end)| Some((start, end?.max(start)))).unzip();
        starts.sort_unstable();
        ends.sort_unstable();
        Self { starts, ends }
    }

    /// Returns the number of other requests in flight when a request was sent at `start`.
    pub fn others_at(&self, start: u64) -> u32 {
        let started = self.starts.partition_point(|at| *at < start);
        let ended = self.ends.partition_point(|at| *at <= start);
        u32::try_from(started.saturating_sub(ended)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_ended_is_in_flight_no_more() {
        let counter = InFlightCounter::new([(0, Some(10)), (5, Some(30)), (10, Some(20)), (12, None)].into_iter());
        assert_eq!([0, 5, 10, 12, 30].map(|at| counter.others_at(at)), [0, 1, 1, 2, 0]);
    }
}
