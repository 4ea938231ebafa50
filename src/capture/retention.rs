//! How long a capture's folder keeps its segments.

use std::fs;
use std::io;
use std::path::Path;

use super::segment_ages::SegmentAges;
use super::segment_files::{MAX_SEGMENT_AGE, SegmentFile};
use crate::measure::time::{Gap, Stamp};

/// Size at which a segment is closed, in bytes.
pub const MAX_SEGMENT_BYTES: u64 = 64 << 20;
/// A segment is at most this fraction (one eighth) of the retention limit, because only whole segments are evicted.
const MIN_SEGMENTS: u64 = 8;

/// Limits on stored segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum bytes of all segments, including the space that the open one may still fill.
    pub bytes: u64,
    /// Maximum age of a segment since its last modification.
    pub age: Gap,
}

impl Retention {
    /// Size at which the open segment is closed, in bytes.
    pub(super) fn segment_bytes(self) -> u64 {
        MAX_SEGMENT_BYTES.min(self.bytes / MIN_SEGMENTS)
    }

    /// Age at which the open segment is closed.
    pub(super) fn segment_age(self) -> Gap {
        MAX_SEGMENT_AGE.min(self.age.divided_by(MIN_SEGMENTS))
    }

    /// Calls `remove` for the closed segments beyond the limits, newest first.
    ///
    /// # Errors
    /// The first of a segment that cannot be inspected or removed. It protects no other segment.
    pub(super) fn evict(
        self,
        closed: &[SegmentFile],
        ages: &mut SegmentAges,
        now: Stamp,
        mut remove: impl FnMut(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut total_bytes = self.segment_bytes();
        let mut evict_if_beyond = |segment: &SegmentFile| {
            total_bytes += fs::metadata(&segment.path)?.len();
            let is_beyond = total_bytes > self.bytes || ages.age(&segment.path, now) > self.age;
            if is_beyond { remove(&segment.path) } else { Ok(()) }
        };
        closed.iter().rev().map(&mut evict_if_beyond).fold(Ok(()), io::Result::and)
    }
}
