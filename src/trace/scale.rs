//! Scales the request rate and preserves the structure of prefixes.
//!
//! A higher rate overlays copies. Each copy starts at its share of an offset and has ids of its own, so copies share no
//! prefix. A lower rate drops whole sessions. Without sessions it drops all requests that share their second block,
//! because the first block is usually a system prompt that all requests share.

use super::blocks::{chained_ids, hash_text};
use super::conversion_loss::ConversionLosses;
use super::merge::{MergedRows, rename_copy};
use super::selection::TraceSelection;
use super::{Trace, TraceEntries};
use crate::stats::hash::combine;
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

/// Maximum number of copies.
pub const MAX_COPIES: f64 = 1_000.0;

/// Parameters of rate scaling.
#[derive(Clone, Copy, Debug)]
pub struct RateScale {
    /// Factor on the request rate, at most [`MAX_COPIES`].
    pub factor: f64,
    /// Interval in which the copies start, in nanoseconds.
    pub offset: u64,
    /// Seed that selects the remaining sessions.
    pub seed: u64,
}

impl RateScale {
    fn copies(&self) -> u64 {
        self.factor.ceil().max(1.0) as u64
    }

    /// Delay of a copy after the first, in nanoseconds.
    fn copy_offset(&self, copy: u64) -> u64 {
        (self.offset as f64 / self.copies() as f64 * copy as f64) as u64
    }

    /// Delay of the last copy after the first, in nanoseconds.
    #[must_use]
    pub fn last_copy_offset(&self) -> u64 {
        self.copy_offset(self.copies() - 1)
    }

    /// Actual factor over `span` nanoseconds, the time from the start of the first copy to the end of the last. It is
    /// less than `factor`, because not all copies run at the start and at the end.
    #[must_use]
    pub fn effective_factor(&self, span: u64) -> f64 {
        let of_one = span.saturating_sub(self.last_copy_offset());
        self.factor * of_one as f64 / span.max(1) as f64
    }
}

/// Scales the rate of a trace. `copy` opens the trace again; it is called once per copy.
///
/// # Errors
/// Those of `copy`.
pub fn scale_rate<E>(scale: RateScale, copy: impl FnMut() -> Result<Trace, E>) -> Result<Trace, E> {
    scale_selected_rate(scale, &TraceSelection::default(), copy)
}

/// Scales the rate of the selected rows; the others stay as they are. `copy` opens the trace again, once per copy.
///
/// # Errors
/// Those of `copy`.
pub fn scale_selected_rate<E>(
    scale: RateScale,
    selection: &TraceSelection,
    mut copy: impl FnMut() -> Result<Trace, E>,
) -> Result<Trace, E> {
    let copies = scale.copies();
    let mut all = Vec::new();
    let (mut header, losses) = (None, ConversionLosses::default());
    for number in 0..copies {
        let share = (scale.factor - number as f64).min(1.0);
        let Trace { header: of_one, entries, losses: lost } = copy()?;
        let offset = scale.copy_offset(number);
        let thinned = sample_sessions(entries, &of_one, (share, combine(scale.seed, number)), (selection, number));
        let entries: TraceEntries = Box::new(thinned.map(move |entry| {
            let mut entry = entry?;
            if number > 0 {
                rename_copy(&mut entry, number);
            }
            entry.at = entry.at.saturating_add(offset);
            entry.planned = None;
            Ok(entry)
        }));
        // Every copy has the same losses, so only the first counts them.
        all.push((entries, if number == 0 { lost } else { ConversionLosses::default() }));
        header.get_or_insert(of_one);
    }
    let mut header = header.unwrap_or_else(|| TraceHeader::new(""));
    if *selection == TraceSelection::default() {
        // Twice a sample of 5 % has the rate of 10 %.
        header.sample = header.sample.map(|sample| sample * scale.factor).filter(|sample| *sample < 1.0 - 1e-9);
    }
    if copies == 1 {
        let (entries, losses) = all.swap_remove(0);
        return Ok(Trace { header, entries, losses });
    }
    Ok(Trace { header, entries: Box::new(MergedRows::new(all, losses.clone())), losses })
}

/// Keeps a share of the selected sessions. Rows that are not selected are in the first copy only.
fn sample_sessions(
    entries: TraceEntries,
    header: &TraceHeader,
    (share, seed): (f64, u64),
    (selection, copy): (&TraceSelection, u64),
) -> TraceEntries {
    let selection = selection.clone();
    let bound = (share * u64::MAX as f64) as u64;
    let blocks = header.blocks.clone();
    let mut row = 0;
    Box::new(entries.filter(move |entry| {
        let Ok(entry) = entry else { return true };
        row += 1;
        if !selection.contains(entry) {
            return copy == 0;
        }
        share >= 1.0 || combine(seed, sampling_key(entry, blocks.as_ref(), row)) < bound
    }))
}

/// Requests with equal keys are kept or dropped together.
fn sampling_key(entry: &TraceEntry, blocks: Option<&crate::trace_file::header::BlockScheme>, row: u64) -> u64 {
    if let Some(session) = &entry.session {
        return hash_text(session);
    }
    let second = blocks.and_then(|blocks| chained_ids(blocks, entry).nth(1));
    second.unwrap_or_else(|| combine(row, 0x726f_7773))
}
