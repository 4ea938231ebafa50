//! Values of 16 bits: a list while they are few, and a count of each value while they are many.
//!
//! Latencies of a server lie close together, so many millions of them share their upper bits. A list grows with their
//! number, and counts do not: they take 64 KiB, and about a byte for 16 values that are equal.

use std::collections::BTreeMap;

use super::growing_list::push;

/// Number of different values.
const VALUES: usize = 1 << u16::BITS;
/// Length at which a list takes as many bytes as the counts.
const MAX_LISTED: usize = VALUES / size_of::<u16>();
/// Value of a count's carry.
const CARRY: u64 = 1 << u8::BITS;

/// Values in no order, or sorted.
#[derive(Clone, Debug)]
pub(super) enum SampleBucket {
    Listed(Vec<u16>),
    Counted(Box<ValueCounts>),
}

impl Default for SampleBucket {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl SampleBucket {
    pub(super) fn push(&mut self, value: u16) {
        match self {
            Self::Counted(counts) => counts.add(value, 1),
            Self::Listed(list) => {
                push(list, value);
                if list.len() >= MAX_LISTED {
                    *self = Self::Counted(Box::new(ValueCounts::of(list)));
                }
            }
        }
    }

    /// Adds a value several times.
    pub(super) fn push_times(&mut self, value: u16, times: u64) {
        match self {
            Self::Counted(counts) => counts.add(value, times),
            Self::Listed(_) => (0..times).for_each(|_| self.push(value)),
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Listed(list) => list.len() as u64,
            Self::Counted(counts) => counts.len,
        }
    }

    pub(super) fn sort(&mut self) {
        if let Self::Listed(list) = self {
            list.sort_unstable();
        }
    }

    /// Value of a rank below the length, from 0. A list is sorted.
    pub(super) fn nth(&self, rank: u64) -> u16 {
        match self {
            Self::Listed(list) => list[rank as usize],
            Self::Counted(counts) => counts.nth(rank),
        }
    }

    /// Number of values up to and including `limit`. A list is sorted.
    pub(super) fn up_to(&self, limit: u16) -> u64 {
        match self {
            Self::Listed(list) => list.partition_point(|value| *value <= limit) as u64,
            Self::Counted(counts) => {
                counts.each().take_while(|(value, _)| *value <= limit).map(|(_, times)| times).sum()
            }
        }
    }

    /// Passes on each value and how often it occurs here, in order if sorted.
    pub(super) fn for_each(&self, mut take: impl FnMut(u16, u64)) {
        match self {
            Self::Listed(list) => list.iter().for_each(|value| take(*value, 1)),
            Self::Counted(counts) => {
                counts.each().filter(|(_, times)| *times > 0).for_each(|(value, times)| take(value, times));
            }
        }
    }

    /// Memory of the values in bytes, spare capacity included.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Listed(list) => list.capacity() * size_of::<u16>(),
            Self::Counted(counts) => counts.bytes(),
        }
    }
}

/// Occurrences of every value.
#[derive(Clone, Debug)]
pub(super) struct ValueCounts {
    len: u64,
    /// Occurrences modulo [`CARRY`].
    low: Box<[u8]>,
    /// The rest: multiples of [`CARRY`].
    carried: BTreeMap<u16, u64>,
}

impl ValueCounts {
    fn of(values: &[u16]) -> Self {
        let mut counts = Self { len: 0, low: vec![0; VALUES].into(), carried: BTreeMap::new() };
        values.iter().for_each(|value| counts.add(*value, 1));
        counts
    }

    fn add(&mut self, value: u16, times: u64) {
        self.len += times;
        let low = &mut self.low[usize::from(value)];
        let count = u64::from(*low) + times;
        *low = count as u8;
        if count >= CARRY {
            *self.carried.entry(value).or_default() += count - count % CARRY;
        }
    }

    /// Every value with its occurrences, which may be 0, in order.
    fn each(&self) -> impl Iterator<Item = (u16, u64)> {
        let mut carried = self.carried.iter().peekable();
        (0..=u16::MAX).zip(&self.low).map(move |(value, low)| {
            let rest = carried.next_if(|(carried, _)| **carried == value).map_or(0, |(_, rest)| *rest);
            (value, u64::from(*low) + rest)
        })
    }

    fn nth(&self, mut rank: u64) -> u16 {
        let reached = self.each().find(|(_, times)| match rank.checked_sub(*times) {
            Some(beyond) => {
                rank = beyond;
                false
            }
            None => true,
        });
        reached.map_or(u16::MAX, |(value, _)| value)
    }

    fn bytes(&self) -> usize {
        // A node of the map is at least half full.
        self.low.len() + self.carried.len() * 2 * size_of::<(u16, u64)>()
    }
}
