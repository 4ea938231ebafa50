//! The work budget for observing one body: one limit for decoding, framing, parsing and hashing.
//!
//! This room has no clock, so cost is counted in *work*: one unit stands for one nanosecond, according to the `price`
//! list. Every read grants [`WORK_PER_READ`], and [`WORK_PER_BYTE`] for each byte on the wire. Unspent work
//! accumulates up to [`MAX_SAVED_WORK`], and a body starts with that amount. Each stage charges the budget before or
//! right after its work, for at most one event or 16 KiB. If the budget is exhausted, the observer stops reading the
//! body. The record reports this; bytes are still counted and forwarded.
//!
//! One read of 64 KiB therefore costs at most 10.1 ms of work once, and 2.1 ms repeatedly. A body costs at most 32
//! units per byte and 20,000 per read, plus its initial 8 ms.
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
//! | empty lines | 10.8 | 1 |
//!
//! A unit is half a nanosecond for ordinary traffic. Work priced below its cost (empty lines, empty blocks) cannot
//! exceed 20 ns per byte. `tests/measure/work_budget.rs` checks that ordinary traffic uses at most half of its budget.

/// Work granted per read, in units: the cost of a read without observation.
pub const WORK_PER_READ: u64 = 20_000;
/// Work granted per byte on the wire, in units: five times the cost of a full parse of plain events.
pub const WORK_PER_BYTE: u64 = 32;
/// Maximum saved work, in units; also the initial amount of a body.
pub const MAX_SAVED_WORK: u64 = 8_000_000;

/// Prices in units.
pub(super) mod price {
    /// Search for line and frame ends, per byte.
    pub(in crate::measure) const FRAMED_BYTE: u64 = 1;
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
    exhausted: bool,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self { left: MAX_SAVED_WORK, spent: 0, exhausted: false }
    }
}

impl WorkBudget {
    /// Grants work for a read of this many bytes.
    #[inline]
    pub fn receive(&mut self, bytes: usize) {
        let granted = (bytes as u64).saturating_mul(WORK_PER_BYTE).saturating_add(WORK_PER_READ);
        self.left = self.left.min(MAX_SAVED_WORK).saturating_add(granted);
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
            _ => {
                self.exhausted = true;
                Err(OutOfBudget)
            }
        }
    }

    /// Charges a price per byte.
    ///
    /// # Errors
    /// If the budget is exhausted, as for [`charge`](Self::charge).
    #[inline]
    pub(super) fn charge_bytes(&mut self, bytes: usize, price: u64) -> Result<(), OutOfBudget> {
        self.charge((bytes as u64).saturating_mul(price))
    }

    /// Whether a charge has failed.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Total work charged so far, in units.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Work available before the next read, in units.
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
    fn an_exhausted_budget_stays_exhausted() {
        let mut budget = WorkBudget::default();
        assert_eq!(budget.charge(MAX_SAVED_WORK), Ok(()));
        assert_eq!((budget.charge(1), budget.is_exhausted()), (Err(OutOfBudget), true));
        budget.receive(1 << 20);
        assert_eq!((budget.charge(1), budget.left()), (Err(OutOfBudget), 0));
        assert_eq!(budget.spent(), MAX_SAVED_WORK + 2);
    }
}
