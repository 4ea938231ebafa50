//! Age of the segments of a capture, independent of changes to the system clock.
//!
//! Segments written by this process age by the monotonic clock, and so do segments found at the start. Their age at the
//! start follows from their modification times: the differences between consecutive segments, and between the last
//! segment and now. A backward step counts as zero, and so does a step longer than the retention age. A wrong clock and
//! a long pause look alike, and a deletion cannot be undone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::clock::ClockReading;
use crate::measure::time::{Gap, Stamp};

/// Minimum difference between the two clocks that is reported as a jump, in nanoseconds. NTP slews a clock by at most
/// 30 ms per minute.
const MIN_JUMP_NANOS: i64 = 60_000_000_000;

#[derive(Debug)]
pub(super) struct SegmentAges {
    opened: Stamp,
    /// Last modification by segment path, in nanoseconds after `opened`. The key is the path, because a process and its
    /// successor may use the same number.
    changed: BTreeMap<PathBuf, i64>,
    last: ClockReading,
}

impl SegmentAges {
    /// Computes ages from paths and modification times (wall clock, nanoseconds), oldest first. Also returns the
    /// longest step that was ignored.
    pub(super) fn from_segments(segments: &[(PathBuf, u64)], now: ClockReading, longest: Gap) -> (Self, Option<Gap>) {
        let (mut changed, mut age, mut disbelieved) = (BTreeMap::new(), 0_u64, None);
        let mut later = now.unix_nanos;
        for (path, unix_nanos) in segments.iter().rev() {
            let step = Gap::from_nanos(later.saturating_sub(*unix_nanos));
            if step <= longest {
                age = age.saturating_add(step.as_nanos());
            } else {
                disbelieved = disbelieved.max(Some(step));
            }
            later = *unix_nanos;
            changed.insert(path.clone(), i64::try_from(age).map_or(i64::MIN, |age| -age));
        }
        (Self { opened: now.stamp, changed, last: now }, disbelieved)
    }

    /// Records that a segment was modified at this time.
    pub(super) fn set(&mut self, path: &Path, at: Stamp) {
        let at = self.since_opened(at);
        match self.changed.get_mut(path) {
            Some(changed) => *changed = at,
            None => _ = self.changed.insert(path.to_owned(), at),
        }
    }

    /// Age of a segment; zero for an unknown one.
    pub(super) fn age(&mut self, path: &Path, now: Stamp) -> Gap {
        let now = self.since_opened(now);
        let changed = *self.changed.entry(path.to_owned()).or_insert(now);
        Gap::from_nanos(u64::try_from(now.saturating_sub(changed)).unwrap_or(0))
    }

    pub(super) fn retain(&mut self, is_there: impl Fn(&Path) -> bool) {
        self.changed.retain(|path, _| is_there(path));
    }

    /// Jump of the wall clock since the last call, in nanoseconds; `None` if there was none.
    pub(super) fn clock_jump(&mut self, now: ClockReading) -> Option<i64> {
        let expected = self.last.unix_nanos.saturating_add(now.stamp.since(self.last.stamp).as_nanos());
        self.last = now;
        let jump = i128::from(now.unix_nanos) - i128::from(expected);
        let jump = i64::try_from(jump).unwrap_or(if jump < 0 { i64::MIN } else { i64::MAX });
        (jump.unsigned_abs() >= MIN_JUMP_NANOS.unsigned_abs()).then_some(jump)
    }

    fn since_opened(&self, at: Stamp) -> i64 {
        i64::try_from(at.since(self.opened).as_nanos()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;
    const DAY: u64 = 24 * HOUR;
    const WEEK: Gap = Gap::from_nanos(7 * DAY);

    fn at(stamp_hours: u64, unix_days: u64) -> ClockReading {
        ClockReading { stamp: Stamp::from_nanos(stamp_hours * HOUR), unix_nanos: unix_days * DAY }
    }

    fn named(number: usize) -> PathBuf {
        PathBuf::from(number.to_string())
    }

    /// Ages in days of segments modified on these days and found on day 1,000, `hours` later.
    fn days(changed: &[u64], hours: u64) -> Vec<u64> {
        let segments: Vec<_> = changed.iter().enumerate().map(|(number, day)| (named(number), day * DAY)).collect();
        let (mut ages, _) = SegmentAges::from_segments(&segments, at(5, 1_000), WEEK);
        let now = Stamp::from_nanos((5 + hours) * HOUR);
        segments.iter().map(|(path, _)| ages.age(path, now).as_nanos() / DAY).collect()
    }

    #[test]
    fn a_segment_is_as_old_as_it_says_and_ages_by_the_monotonic_clock() {
        assert_eq!(days(&[990, 995, 998], 0), [10, 5, 2]);
        assert_eq!(days(&[990, 995, 998], 48), [12, 7, 4]);
    }

    #[test]
    fn a_step_that_is_longer_than_anything_is_kept_ages_nothing() {
        assert_eq!(days(&[590, 595, 598], 0), [8, 3, 0], "the clock jumped while nobody wrote");
        assert_eq!(days(&[590, 598, 999], 0), [1, 1, 1], "and between segments");
        assert_eq!(days(&[998, 1_398, 999], 0), [1, 1, 1], "and back");
        let (_, disbelieved) = SegmentAges::from_segments(&[(named(0), 590 * DAY)], at(5, 1_000), WEEK);
        assert_eq!(disbelieved, Some(Gap::from_nanos(410 * DAY)));
        assert_eq!(SegmentAges::from_segments(&[(named(0), 993 * DAY)], at(5, 1_000), WEEK).1, None);
    }

    #[test]
    fn what_is_written_here_is_as_old_as_the_time_that_has_passed() {
        let (mut ages, _) = SegmentAges::from_segments(&[], at(5, 1_000), WEEK);
        ages.set(&named(3), Stamp::from_nanos(6 * HOUR));
        let now = Stamp::from_nanos(9 * HOUR);
        assert_eq!((ages.age(&named(3), now), ages.age(&named(4), now)), (Gap::from_nanos(3 * HOUR), Gap::ZERO));
        ages.retain(|path| path == named(4));
        let later = Stamp::from_nanos(10 * HOUR);
        assert_eq!((ages.age(&named(3), later), ages.age(&named(4), later)), (Gap::ZERO, Gap::from_nanos(HOUR)));
    }

    #[test]
    fn a_jump_is_told_once_and_a_slew_is_none() {
        let (mut ages, _) = SegmentAges::from_segments(&[], at(5, 1_000), WEEK);
        let slewed =
            ClockReading { stamp: Stamp::from_nanos(6 * HOUR), unix_nanos: 1_000 * DAY + HOUR + 2_000_000_000 };
        assert_eq!(ages.clock_jump(slewed), None);
        let jumped = ClockReading { stamp: slewed.stamp, unix_nanos: slewed.unix_nanos + 400 * DAY };
        assert_eq!(ages.clock_jump(jumped), Some((400 * DAY) as i64));
        assert_eq!(ages.clock_jump(jumped), None);
        assert_eq!(ages.clock_jump(slewed), Some(-((400 * DAY) as i64)));
    }
}
