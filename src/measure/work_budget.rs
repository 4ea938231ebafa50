//! What observing one body may cost: one bound for all that decodes, frames, parses and hashes it.
//!
//! This room has no clock, so cost is counted in *work*: a unit stands for one nanosecond, by the `price` list. Every
//! read grants [`WORK_PER_READ`] and [`WORK_PER_BYTE`] for each byte on the wire; what is not spent is saved, up to
//! [`MAX_SAVED_WORK`], and a body begins with that much. Whoever does work pays before or right after it, in pieces of
//! at most one event or 16 KiB. A body that cannot pay is no longer observed: its record says so, its bytes are counted
//! and forwarded as before.
//!
//! One read of 64 KiB therefore costs at most 10.1 ms of work once, and 2.1 ms again and again; a body costs at most
//! 32 units per byte and 20,000 per read beside its 8 ms.
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
//! A unit is half a nanosecond for ordinary traffic. What is priced below its cost (empty lines, empty blocks) cannot
//! cost more than 20 ns per byte. `tests/work_budget.rs` holds ordinary traffic to half of its budget.

/// Work granted with each read, in units: what a read costs without being observed.
pub const WORK_PER_READ: u64 = 20_000;
/// Work granted for each byte on the wire, in units: five times what parsing plain events in full takes.
pub const WORK_PER_BYTE: u64 = 32;
/// The most work that is saved up for later reads, in units. A body begins with it.
pub const MAX_SAVED_WORK: u64 = 8_000_000;

/// What each kind of work is charged, in units.
pub(super) mod price {
    /// Finding the ends of lines and frames, per byte.
    pub(in crate::measure) const FRAMED_BYTE: u64 = 1;
    /// An event, whatever it says.
    pub(in crate::measure) const EVENT: u64 = 150;
    /// Parsing an event, per byte of it.
    pub(in crate::measure) const EVENT_BYTE: u64 = 3;
    /// A step of a scan over a JSON document: a bracket, a comma, a string, a number.
    pub(in crate::measure) const JSON_STEP: u64 = 6;
    /// Bytes of a JSON document that are passed over for one unit.
    pub(in crate::measure) const JSON_BYTES_PER_UNIT: u64 = 4;
    /// A call of a decoder.
    pub(in crate::measure) const DECODER_CALL: u64 = 100;
    /// A decoder that is made anew.
    pub(in crate::measure) const NEW_DECODER: u64 = 10_000;
    /// A block of zstd, whose tables may have to be built.
    pub(in crate::measure) const ZSTD_BLOCK: u64 = 500;
    /// A byte that goes into a decoder.
    pub(in crate::measure) const DECODER_IN: u64 = 8;
    /// A byte that comes out.
    pub(in crate::measure) const DECODER_OUT: u64 = 1;
}

/// The body may cost no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBudget;

/// What observing one body may still cost. See the module.
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
    /// One read brought this many bytes of the body.
    #[inline]
    pub fn receive(&mut self, bytes: usize) {
        let granted = (bytes as u64).saturating_mul(WORK_PER_BYTE).saturating_add(WORK_PER_READ);
        self.left = self.left.min(MAX_SAVED_WORK).saturating_add(granted);
    }

    /// Pays for work.
    ///
    /// # Errors
    /// Where the budget is exhausted, and for everything after that.
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

    /// Pays for this many bytes at a price each.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    #[inline]
    pub(super) fn charge_bytes(&mut self, bytes: usize, price: u64) -> Result<(), OutOfBudget> {
        self.charge((bytes as u64).saturating_mul(price))
    }

    /// Whether something could not be paid for.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// All work that was asked for so far, in units.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// What may still be spent before the next read, in units.
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
