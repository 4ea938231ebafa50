//! Spreads the arrivals of a batch: each moves to a uniformly random time within the interval that starts at its
//! timestamp. The order of requests stays.
//!
//! Off by default, because a replay follows the file. Uniform arrivals within a batch are an assumption, and the only
//! one that adds no new bursts.

use std::collections::VecDeque;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::Trace;
use super::error::{Error, TraceProblem};
use super::merge::held_bytes;
use crate::trace_file::row::TraceEntry;

/// Rows used to detect the grid.
const LOOKAHEAD_ROWS: usize = 4_096;
const MAX_BATCH_ROWS: usize = 1 << 16;
/// Maximum bytes of one batch, and of the rows used for grid detection. Further rows of a batch are spread separately.
const MAX_BATCH_BYTES: usize = 40 << 20;

/// Spreads every batch over the `grid` after its timestamp. The grid is in nanoseconds and detected if `None`; the
/// result includes it.
pub fn respace(trace: Trace, name: &str, grid: Option<u64>, seed: u64) -> Result<(Trace, u64), Error> {
    let Trace { header, mut entries, losses } = trace;
    let mut ahead: VecDeque<TraceEntry> = VecDeque::new();
    let mut of_ahead = 0;
    while ahead.len() < LOOKAHEAD_ROWS && of_ahead < MAX_BATCH_BYTES {
        let Some(entry) = entries.next().transpose()? else { break };
        of_ahead += held_bytes(&entry);
        ahead.push_back(entry);
    }
    let found = || {
        let mut arrivals = super::info::ArrivalStats::default();
        ahead.iter().for_each(|entry| arrivals.add(entry.at));
        arrivals.settle(usize::MAX);
        arrivals.batch_step().ok_or_else(|| {
            let problem = TraceProblem::new(format!("no batches are seen in the first {LOOKAHEAD_ROWS} rows"));
            problem.with_remedy("`trace spread --grid` sets how far apart batches are").at_line(name, None)
        })
    };
    let grid = grid.map_or_else(found, Ok)?;
    // Timestamps within 1 % of the grid belong to the same batch.
    let tolerance = grid / 100;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut coming = ahead.into_iter().map(Ok).chain(entries);
    let (mut batch, mut next): (VecDeque<TraceEntry>, Option<TraceEntry>) = (VecDeque::new(), None);
    let mut error = None;
    let entries = std::iter::from_fn(move || {
        if batch.is_empty() {
            if let Some(error) = error.take() {
                return Some(Err(error));
            }
            batch.extend(next.take());
            let mut of_batch = 0;
            for entry in coming.by_ref() {
                match entry {
                    Ok(entry) => {
                        let first = batch.front().map_or(entry.at, |first| first.at);
                        of_batch += held_bytes(&entry);
                        let fits = batch.len() < MAX_BATCH_ROWS && of_batch < MAX_BATCH_BYTES;
                        let same = fits && entry.at.abs_diff(first) <= tolerance;
                        if !same {
                            next = Some(entry);
                            break;
                        }
                        batch.push_back(entry);
                    }
                    Err(failed) => {
                        error = Some(failed);
                        break;
                    }
                }
            }
            respace_batch(&mut batch, next.as_ref().map(|next| next.at), grid, &mut random);
        }
        batch.pop_front().map(Ok).or_else(|| error.take().map(Err))
    });
    Ok((Trace { header, entries: Box::new(entries), losses }, grid))
}

/// Draws a time for each row, in row order, within the grid and before the next batch.
fn respace_batch(batch: &mut VecDeque<TraceEntry>, next: Option<u64>, grid: u64, random: &mut Pcg64Mcg) {
    let Some(start) = batch.iter().map(|entry| entry.at).min() else { return };
    let before_next = next.and_then(|next| next.checked_sub(start)).filter(|length| *length > 0);
    let length = before_next.map_or(grid, |length| length.min(grid)).max(1);
    let mut places: Vec<u64> = batch.iter().map(|_| random.random_range(0..length)).collect();
    places.sort_unstable();
    for (entry, place) in batch.iter_mut().zip(places) {
        entry.at = start.saturating_add(place);
    }
}
