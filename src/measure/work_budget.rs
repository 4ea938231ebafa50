//! The work budget for observing one body: one limit for decoding, framing, parsing and hashing.
//!
//! This room has no clock, so cost is counted in *work*: one unit stands for one nanosecond, according to the `price`
//! list. Every read grants [`WORK_PER_READ`], and [`WORK_PER_BYTE`] for each byte on the wire. Unspent work
//! accumulates up to [`MAX_SAVED_WORK`]. Each stage charges the budget before or right after its work, for at most one
//! event or 4 KiB. If the budget is exhausted, the observer stops reading the body. The record reports this; bytes are
//! still counted and forwarded.
//!
//! # The reserve
//! A short body may unfold to many events, so what its bytes grant can be too little. The bodies of one thread share a
//! [`WorkReserve`] for this, which refills with a share of the thread's time ([`FORWARDING_RESERVE`]). A thread
//! therefore spends at most 32 units per byte, 20,000 per read, and that share, whatever its bodies are and however
//! many. A budget without a reserve, of a file or a load generator, begins with [`MAX_SAVED_WORK`] instead.
//!
//! # Slices
//! A read is observed in slices of about [`WORK_PER_SLICE`], so that a task can yield to others in between. A slice
//! ends behind the piece or the event that exceeds it.
//!
//! # Measurements behind the prices
//! One core of an AMD EPYC, release build, reads of 64 KiB, per byte on the wire:
//!
//! | body | nanoseconds | units |
//! |---|---|---|
//! | events, parsed in full | 2.2 | 4.7 |
//! | a list of tools of 1 MB, plain; in gzip | 1.5; 18.7 | 1.9; 33 |
//! | embeddings of 5 MB | 0.9 | 1.6 |
//! | empty members of gzip, frames of zstd | 5.9; 9.4 | 18; 30 |
//! | empty blocks of deflate | 11.5 | 8 |
//! | empty gRPC messages of gzip, zstd | 5.2; 6.9 | 25; 31 |
//! | empty metadata of brotli | 19.6 | 18 |
//! | empty lines | 10.8 | 13 |
//!
//! A unit is half a nanosecond for ordinary traffic. Work priced below its cost (empty blocks) cannot exceed 20 ns per
//! byte. `tests/measure/work_budget.rs` checks that ordinary traffic uses at most half of its budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::time::Gap;

/// Work granted per read, in units: the cost of a read without observation.
pub const WORK_PER_READ: u64 = 20_000;
/// Work granted per byte on the wire, in units: five times the cost of a full parse of plain events.
pub const WORK_PER_BYTE: u64 = 32;
/// Maximum saved work, in units; also the initial amount of a body without a reserve.
pub const MAX_SAVED_WORK: u64 = 8_000_000;
/// Work of one slice, in units.
pub const WORK_PER_SLICE: u64 = 50_000;

/// Work that the bodies of one thread share, which time refills.
#[derive(Clone, Debug)]
pub struct WorkReserve {
    left: Arc<AtomicU64>,
    limits: ReserveLimits,
}

/// Size of a reserve.
#[derive(Clone, Copy, Debug)]
pub struct ReserveLimits {
    /// Maximum work in the reserve, in units; also its initial amount.
    pub max_work: u64,
    /// Nanoseconds of the thread for each unit that the reserve gains.
    pub nanos_per_unit: u64,
}

/// A thread that forwards may spend a thirty-second of its time on bodies that need more than their reads grant.
pub const FORWARDING_RESERVE: ReserveLimits = ReserveLimits { max_work: 8_000_000, nanos_per_unit: 32 };

impl WorkReserve {
    /// Creates a full reserve.
    pub fn new(limits: ReserveLimits) -> Self {
        Self { left: Arc::new(AtomicU64::new(limits.max_work)), limits }
    }

    /// Adds the share of the time that has passed.
    pub fn refill(&self, passed: Gap) {
        let ReserveLimits { max_work, nanos_per_unit } = self.limits;
        let gained = passed.as_nanos() / nanos_per_unit;
        let refill = |left: u64| Some(left.saturating_add(gained).min(max_work));
        _ = self.left.fetch_update(Relaxed, Relaxed, refill).is_ok();
    }

    /// Takes this much work, or nothing.
    fn draw(&self, work: u64) -> Result<(), OutOfBudget> {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(work)).map(drop).map_err(|_| OutOfBudget)
    }
}

/// Prices in units.
pub(super) mod price {
    /// Search for line and frame ends, per byte.
    pub(in crate::measure) const FRAMED_BYTE: u64 = 1;
    /// A line of a text stream, which may be empty.
    pub(in crate::measure) const LINE: u64 = 12;
    /// Fixed price per event.
    pub(in crate::measure) const EVENT: u64 = 150;
    /// Parsing an event, per byte.
    pub(in crate::measure) const EVENT_BYTE: u64 = 3;
    /// A step of a JSON document scan: a bracket, a comma, a string or a number.
    pub(in crate::measure) const JSON_STEP: u64 = 6;
    /// Bytes of a JSON document scanned per unit.
    pub(in crate::measure) const JSON_BYTES_PER_UNIT: u64 = 4;
    pub(in crate::measure) const DECODER_CALL: u64 = 100;
    /// Creating a decoder.
    pub(in crate::measure) const NEW_DECODER: u64 = 10_000;
    /// A zstd block, which may need new tables.
    pub(in crate::measure) const ZSTD_BLOCK: u64 = 500;
    /// A value of a request that is parsed to a tree, walked and hashed: 50 to 190 ns.
    pub(in crate::measure) const TREE_VALUE: u64 = 75;
    /// Such a request, per byte.
    pub(in crate::measure) const TREE_BYTE: u64 = 2;
    /// Per input byte of a decoder.
    pub(in crate::measure) const DECODER_IN: u64 = 8;
    /// Per output byte of a decoder.
    pub(in crate::measure) const DECODER_OUT: u64 = 1;
}

/// The work budget of the body is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBudget;

/// Remaining work for observing one body.
#[derive(Clone, Debug)]
pub struct WorkBudget {
    left: u64,
    spent: u64,
    /// Value of `spent` at which the current slice ends.
    slice_end: u64,
    exhausted: bool,
    reserve: Option<WorkReserve>,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self { left: MAX_SAVED_WORK, spent: 0, slice_end: 0, exhausted: false, reserve: None }
    }
}

impl WorkBudget {
    /// Draws from `reserve` beyond what its reads grant.
    pub fn with_reserve(reserve: &WorkReserve) -> Self {
        Self { left: 0, reserve: Some(reserve.clone()), ..Self::default() }
    }

    /// Grants work for a read of this many bytes.
    #[inline]
    pub fn receive(&mut self, bytes: usize) {
        let granted = (bytes as u64).saturating_mul(WORK_PER_BYTE).saturating_add(WORK_PER_READ);
        self.left = self.left.min(MAX_SAVED_WORK).saturating_add(granted);
    }

    /// Begins a slice.
    #[inline]
    pub(super) fn begin_slice(&mut self) {
        self.slice_end = self.spent.saturating_add(WORK_PER_SLICE);
    }

    /// True if the current slice has used its work.
    #[inline]
    pub(super) fn is_slice_spent(&self) -> bool {
        self.spent >= self.slice_end
    }

    /// Charges work.
    ///
    /// # Errors
    /// If the budget is exhausted, now or by an earlier charge.
    #[inline]
    pub fn charge(&mut self, work: u64) -> Result<(), OutOfBudget> {
        self.spent = self.spent.saturating_add(work);
        match self.left.checked_sub(work) {
            Some(left) if !self.exhausted => {
                self.left = left;
                Ok(())
            }
            _ => self.charge_reserve(work),
        }
    }

    /// Charges the reserve for the part of `work` that is not left.
    #[cold]
    fn charge_reserve(&mut self, work: u64) -> Result<(), OutOfBudget> {
        let reserve = self.reserve.as_ref().filter(|_| !self.exhausted).ok_or(OutOfBudget);
        let drawn = reserve.and_then(|reserve| reserve.draw(work - self.left));
        (self.left, self.exhausted) = (0, drawn.is_err());
        drawn
    }

    /// Charges a price per byte.
    ///
    /// # Errors
    /// If the budget is exhausted, as for [`charge`](Self::charge).
    #[inline]
    pub(super) fn charge_bytes(&mut self, bytes: usize, price: u64) -> Result<(), OutOfBudget> {
        self.charge((bytes as u64).saturating_mul(price))
    }

    /// True if a charge has failed.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Total work charged so far, in units.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Work available before the next read without the reserve, in units.
    pub fn left(&self) -> u64 {
        if self.exhausted { 0 } else { self.left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_read_grants_work_and_what_is_saved_is_bounded() {
        let mut budget = WorkBudget::default();
        assert_eq!(budget.left(), MAX_SAVED_WORK);
        for _ in 0..1_000 {
            budget.receive(65_536);
        }
        assert_eq!(budget.left(), MAX_SAVED_WORK + WORK_PER_READ + 65_536 * WORK_PER_BYTE);
        assert_eq!(budget.charge(MAX_SAVED_WORK + WORK_PER_READ), Ok(()));
        assert_eq!(budget.left(), 65_536 * WORK_PER_BYTE);
    }

    #[test]
    fn bodies_share_a_reserve_which_time_refills() {
        let reserve = WorkReserve::new(FORWARDING_RESERVE);
        let all = FORWARDING_RESERVE.max_work;
        for _ in 0..8 {
            let mut budget = WorkBudget::with_reserve(&reserve);
            budget.receive(10);
            assert_eq!(budget.left(), WORK_PER_READ + 10 * WORK_PER_BYTE);
            assert_eq!(budget.charge(budget.left() + all / 8), Ok(()));
            assert_eq!((budget.left(), budget.is_exhausted()), (0, false));
        }
        let over = |more: u64| WorkBudget::with_reserve(&reserve).charge(more);
        assert_eq!(over(1), Err(OutOfBudget), "nothing is left for another body");
        reserve.refill(Gap::from_millis(64));
        assert_eq!((over(2_000_001), over(2_000_000)), (Err(OutOfBudget), Ok(())));
        reserve.refill(Gap::from_millis(3_600_000));
        assert_eq!((over(all), over(1)), (Ok(()), Err(OutOfBudget)), "an hour saves no more");
    }

    #[test]
    fn a_slice_ends_with_its_work_and_the_next_has_as_much() {
        let mut budget = WorkBudget::default();
        for _ in 0..2 {
            budget.begin_slice();
            assert_eq!((budget.charge(WORK_PER_SLICE - 1), budget.is_slice_spent()), (Ok(()), false));
            assert_eq!((budget.charge(7), budget.is_slice_spent()), (Ok(()), true));
        }
    }

    #[test]
    fn an_exhausted_budget_stays_exhausted() {
        let mut budget = WorkBudget::default();
        assert_eq!(budget.charge(MAX_SAVED_WORK), Ok(()));
        assert_eq!((budget.charge(1), budget.is_exhausted()), (Err(OutOfBudget), true));
        budget.receive(1 << 20);
        assert_eq!((budget.charge(1), budget.left()), (Err(OutOfBudget), 0));
        assert_eq!(budget.spent(), MAX_SAVED_WORK + 2);
    }
}
