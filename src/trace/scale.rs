//! The same traffic at another rate, with the structure of its prefixes.
//!
//! More of it is copies laid over each other: each later by its share of an offset, with ids of its own, so that copies
//! share no prefix. Less of it leaves out whole sessions; where there are none, all requests that share their second
//! block: in most traces the first is a system prompt that everybody has.

use super::blocks::{chained_ids, hash_text, mix};
use super::conversion_loss::ConversionLosses;
use super::merge::{MergedRows, rename_copy};
use super::{Trace, TraceEntries};
use crate::capture::row::{TraceEntry, TraceHeader};

/// Copies that are laid over each other at most.
pub const MAX_COPIES: f64 = 1_000.0;

/// By what traffic is scaled.
#[derive(Clone, Copy, Debug)]
pub struct RateScale {
    /// How much of it there is to be, up to [`MOST`].
    pub factor: f64,
    /// Nanoseconds over which the copies begin.
    pub offset: u64,
    /// Which sessions stay hangs on it.
    pub seed: u64,
}

impl RateScale {
    fn copies(&self) -> u64 {
        self.factor.ceil().max(1.0) as u64
    }

    /// Nanoseconds by which a copy is later than the first.
    fn copy_offset(&self, copy: u64) -> u64 {
        (self.offset as f64 / self.copies() as f64 * copy as f64) as u64
    }

    /// Nanoseconds by which the last copy is later than the first.
    #[must_use]
    pub fn last_copy_offset(&self) -> u64 {
        self.copy_offset(self.copies() - 1)
    }

    /// How many times the rate there is over so many nanoseconds, which the copies span together: less than the factor
    /// by the time in which not all of them have begun, or some have ended.
    #[must_use]
    pub fn effective_factor(&self, span: u64) -> f64 {
        let of_one = span.saturating_sub(self.last_copy_offset());
        self.factor * of_one as f64 / span.max(1) as f64
    }
}

/// A trace at another rate. `copy` reads it once more; it is asked for as many as the factor needs.
pub fn scale_rate<E>(scale: RateScale, mut copy: impl FnMut() -> Result<Trace, E>) -> Result<Trace, E> {
    let copies = scale.copies();
    let mut all = Vec::new();
    let (mut header, losses) = (None, ConversionLosses::default());
    for number in 0..copies {
        let share = (scale.factor - number as f64).min(1.0);
        let Trace { header: of_one, entries, losses: lost } = copy()?;
        let offset = scale.copy_offset(number);
        let thinned = sample_sessions(entries, &of_one, share, mix(scale.seed, number));
        let entries: TraceEntries = Box::new(thinned.map(move |entry| {
            let mut entry = entry?;
            if number > 0 {
                rename_copy(&mut entry, number);
            }
            entry.at = entry.at.saturating_add(offset);
            entry.planned = None;
            Ok(entry)
        }));
        // What is lost is lost alike in every copy.
        all.push((entries, if number == 0 { lost } else { ConversionLosses::default() }));
        header.get_or_insert(of_one);
    }
    let header = header.unwrap_or_else(|| TraceHeader::new(""));
    if copies == 1 {
        let (entries, losses) = all.swap_remove(0);
        return Ok(Trace { header, entries, losses });
    }
    Ok(Trace { header, entries: Box::new(MergedRows::new(all, losses.clone())), losses })
}

/// So much of it, by session.
fn sample_sessions(entries: TraceEntries, header: &TraceHeader, share: f64, seed: u64) -> TraceEntries {
    if share >= 1.0 {
        return entries;
    }
    let bound = (share * u64::MAX as f64) as u64;
    let blocks = header.blocks.clone();
    let mut row = 0;
    Box::new(entries.filter(move |entry| {
        let Ok(entry) = entry else { return true };
        row += 1;
        mix(seed, sampling_key(entry, blocks.as_ref(), row)) < bound
    }))
}

/// What a request stays or goes with.
fn sampling_key(entry: &TraceEntry, blocks: Option<&crate::capture::row::BlockScheme>, row: u64) -> u64 {
    if let Some(session) = &entry.session {
        return hash_text(session);
    }
    let second = blocks.and_then(|blocks| chained_ids(blocks, entry).nth(1));
    second.unwrap_or_else(|| mix(row, 0x726f_7773))
}
