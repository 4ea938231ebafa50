//! Offsets between the wall clocks of captures, from the requests that passed two of them.
//!
//! A request that a gateway forwards to a sidecar is in both captures. In true time it begins at the sidecar after it
//! began at the gateway, and ends there before it ended at the gateway. So the offset of one clock against the other
//! lies between the difference of the starts and the difference of the ends. This is one interval per request. The
//! estimate is the middle of the range that most intervals contain (Marzullo's algorithm). Its uncertainty is half of
//! the range, and [`READING_NANOS`] because a process reads its two clocks one after the other.
//!
//! Two rows are one request if their prompts have equal block ids under one key, equal lengths and equal output tokens.
//! A request that a capture has twice is no evidence. An offset needs [`MIN_AGREEING`] requests, and more than half of
//! those that passed both. If an offset of zero is in the range, the clocks agree.
//!
//! # Memory
//! At most [`MAX_REQUESTS`] requests are held: of more, a sample by their hash, which is equal in all captures.

use std::collections::{BTreeMap, HashMap};

use crate::stats::hash::{combine, mix};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

/// Minimum requests that have to agree on an offset.
pub const MIN_AGREEING: usize = 5;
/// Error of the wall time of a capture: two processes on one machine have been seen 0.3 ms apart.
pub const READING_NANOS: u64 = 1_000_000;
/// Maximum requests that are held.
pub const MAX_REQUESTS: usize = 1 << 17;

/// The clock of one capture against that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Number of the capture whose clock is the reference.
    pub reference: usize,
    /// Nanoseconds by which this clock is ahead of the reference.
    pub nanos: i64,
    /// Maximum error of `nanos`, if the requests that agree are right.
    pub uncertainty: u64,
    /// Requests whose times agree with it.
    pub agreeing: usize,
    /// Requests that passed this capture and the next one on the way to the reference.
    pub requests: usize,
}

impl ClockOffset {
    /// True if the clocks differ by more than the uncertainty.
    pub fn is_certain(&self) -> bool {
        self.nanos.unsigned_abs() > self.uncertainty
    }
}

/// Collects the requests of captures, which are numbered from 0.
#[derive(Debug, Default)]
pub struct ClockEvidence {
    /// By the hash of the request.
    requests: HashMap<u64, Vec<Passage>>,
    /// Requests are held whose hash has so many zero bits at its end.
    sampled_bits: u32,
}

/// Start and end of a request in one capture, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Passage {
    capture: usize,
    start: u64,
    end: u64,
}

/// Estimate of the second clock's offset from the requests of two captures.
#[derive(Clone, Copy, Debug)]
struct PairOffset {
    nanos: i64,
    uncertainty: u64,
    agreeing: usize,
    requests: usize,
}

impl ClockEvidence {
    /// Adds a row of a capture. Rows without a wall clock, an end, or a prompt with keyed block ids are no evidence.
    pub fn add(&mut self, capture: usize, header: &TraceHeader, row: &TraceEntry) {
        let Some((hash, passage)) = passage(capture, header, row) else { return };
        if hash.trailing_zeros() < self.sampled_bits {
            return;
        }
        let passages = self.requests.entry(hash).or_default();
        // Two of one capture are enough to know that they are no evidence.
        if passages.iter().filter(|known| known.capture == capture).count() < 2 {
            passages.push(passage);
        }
        while self.requests.len() > MAX_REQUESTS {
            self.sampled_bits += 1;
            let bits = self.sampled_bits;
            self.requests.retain(|hash, _| hash.trailing_zeros() >= bits);
        }
    }

    /// Requests that more than one capture has, as far as they are held.
    pub fn shared_requests(&self) -> usize {
        self.requests.values().filter(|passages| is_unambiguous(passages) && passages.len() > 1).count()
    }

    /// The offset of each of `captures` captures; `None` if there is no evidence. The reference of several captures that
    /// share requests is the first of them.
    pub fn offsets(&self, captures: usize) -> Vec<Option<ClockOffset>> {
        let mut intervals = BTreeMap::<(usize, usize), Vec<(i64, i64)>>::new();
        for passages in self.requests.values().filter(|passages| is_unambiguous(passages)) {
            for (number, a) in passages.iter().enumerate() {
                for b in &passages[number + 1..] {
                    let (a, b) = if a.capture < b.capture { (a, b) } else { (b, a) };
                    let (starts, ends) = (difference(b.start, a.start), difference(b.end, a.end));
                    intervals.entry((a.capture, b.capture)).or_default().push((starts.min(ends), starts.max(ends)));
                }
            }
        }
        let pairs = intervals.into_iter().filter_map(|(pair, of_pair)| Some((pair, agreement(of_pair)?))).collect();
        spread(&pairs, captures)
    }
}

fn passage(capture: usize, header: &TraceHeader, row: &TraceEntry) -> Option<(u64, Passage)> {
    let started = header.started_unix_ns?;
    let key = header.blocks.as_ref()?.key.as_ref()?;
    let start = started.checked_add(row.at)?;
    let end = start.checked_add(row.timing.ended?)?;
    let (bytes, tokens) = (row.prompt.bytes?, row.output_tokens?);
    let last_block = row.prompt.blocks.last()?;
    let key = key.bytes().fold(0, |hash, byte| combine(hash, u64::from(byte)));
    let count = row.prompt.blocks.len() as u64;
    let hash = [*last_block, count, bytes, tokens].into_iter().fold(mix(key), combine);
    Some((hash, Passage { capture, start, end }))
}

fn is_unambiguous(passages: &[Passage]) -> bool {
    passages.iter().enumerate().all(|(number, a)| passages[number + 1..].iter().all(|b| a.capture != b.capture))
}

fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

/// The range that most intervals contain; `None` if too few do.
fn agreement(intervals: Vec<(i64, i64)>) -> Option<PairOffset> {
    let requests = intervals.len();
    // A begin counts before an end at the same place: intervals include their bounds.
    let mut bounds: Vec<(i64, bool)> =
        intervals.into_iter().flat_map(|(low, high)| [(low, false), (high, true)]).collect();
    bounds.sort_unstable();
    let (mut open, mut best, mut range) = (0, 0, (0, 0));
    for (number, (at, is_end)) in bounds.iter().enumerate() {
        if *is_end {
            open -= 1;
            continue;
        }
        open += 1;
        if open > best {
            best = open;
            // The range goes on to the next bound, which is an end if no better range follows.
            range = (*at, bounds.get(number + 1).map_or(*at, |next| next.0));
        }
    }
    let is_enough = best >= MIN_AGREEING && best * 2 > requests;
    let width = u64::try_from(i128::from(range.1) - i128::from(range.0)).unwrap_or(u64::MAX);
    let middle = i64::try_from(i128::from(range.0) + i128::from(width / 2)).ok()?;
    let uncertainty = width.div_ceil(2).saturating_add(READING_NANOS);
    is_enough.then_some(PairOffset { nanos: middle, uncertainty, agreeing: best, requests })
}

/// The offset of each capture against the first that it is connected with, over the pairs of least uncertainty.
fn spread(pairs: &BTreeMap<(usize, usize), PairOffset>, captures: usize) -> Vec<Option<ClockOffset>> {
    let mut offsets: Vec<Option<ClockOffset>> = vec![None; captures];
    for reference in 0..captures {
        let is_connected = pairs.keys().any(|(a, b)| *a == reference || *b == reference);
        if offsets[reference].is_some() || !is_connected {
            continue;
        }
        let (agreeing, requests) = (0, 0);
        offsets[reference] = Some(ClockOffset { reference, nanos: 0, uncertainty: 0, agreeing, requests });
        // Each round adds the capture that is known best.
        while let Some((capture, offset)) = nearest(pairs, &offsets, reference) {
            offsets[capture] = Some(offset);
        }
    }
    offsets
}

fn nearest(
    pairs: &BTreeMap<(usize, usize), PairOffset>,
    offsets: &[Option<ClockOffset>],
    reference: usize,
) -> Option<(usize, ClockOffset)> {
    let of_pair = |(&(a, b), pair): (&(usize, usize), &PairOffset)| {
        let (known, capture, nanos) = match (offsets[a], offsets[b]) {
            (Some(known), None) => (known, b, pair.nanos),
            (None, Some(known)) => (known, a, pair.nanos.saturating_neg()),
            _ => return None,
        };
        let nanos = known.nanos.saturating_add(nanos);
        let uncertainty = known.uncertainty.saturating_add(pair.uncertainty);
        let PairOffset { agreeing, requests, .. } = *pair;
        Some((capture, ClockOffset { reference, nanos, uncertainty, agreeing, requests }))
    };
    pairs.iter().filter_map(of_pair).min_by_key(|(capture, offset)| (offset.uncertainty, *capture))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock};

    const SECOND: u64 = 1_000_000_000;

    fn header(key: &str) -> TraceHeader {
        let blocks = BlockScheme {
            size: 64,
            unit: BlockUnit::Bytes,
            last: LastBlock::Dropped,
            ids: BlockIds::Chained,
            scope: BlockScope::Trace,
            key: Some(key.to_owned()),
        };
        TraceHeader { started_unix_ns: Some(1_000 * SECOND), blocks: Some(blocks), ..TraceHeader::new("test") }
    }

    fn row(number: u64, at: u64, lasts: u64) -> TraceEntry {
        let mut row = TraceEntry { at, output_tokens: Some(number % 7), ..TraceEntry::default() };
        (row.prompt.bytes, row.prompt.blocks, row.timing.ended) = (Some(number), vec![mix(number)], Some(lasts));
        row
    }

    /// Requests over two hops: the inner one begins 2 ms later and ends 1 to 3 ms earlier, on a clock that is `ahead`.
    fn two_hops(evidence: &mut ClockEvidence, captures: [usize; 2], numbers: std::ops::Range<u64>, ahead: i64) {
        for number in numbers {
            let (at, lasts) = (number * SECOND, SECOND / 2);
            evidence.add(captures[0], &header("k"), &row(number, at, lasts));
            let inner = at.checked_add_signed(ahead + 2_000_000).unwrap();
            evidence.add(captures[1], &header("k"), &row(number, inner, lasts - 3_000_000 - number % 3 * 1_000_000));
        }
    }

    #[test]
    fn an_offset_is_found_within_its_uncertainty_in_both_directions() {
        for ahead in [3_500_000_000, -700_000_000, 40_000_000] {
            let mut evidence = ClockEvidence::default();
            two_hops(&mut evidence, [0, 1], 10..30, ahead);
            let offsets = evidence.offsets(2);
            assert_eq!((offsets[0].unwrap().nanos, evidence.shared_requests()), (0, 20));
            let offset = offsets[1].unwrap();
            assert!(offset.is_certain() && offset.nanos.abs_diff(ahead) <= offset.uncertainty, "{offset:?}");
            // The starts bound it by 2 ms from above, the best ends by 1 ms from below.
            assert_eq!((offset.uncertainty, offset.agreeing, offset.requests), (2_500_000, 20, 20));
        }
    }

    #[test]
    fn clocks_that_agree_are_not_moved() {
        let mut evidence = ClockEvidence::default();
        two_hops(&mut evidence, [0, 1], 10..30, 0);
        assert!(!evidence.offsets(2)[1].unwrap().is_certain());
    }

    #[test]
    fn a_few_false_pairs_do_not_move_it_and_few_pairs_are_no_evidence() {
        let mut evidence = ClockEvidence::default();
        two_hops(&mut evidence, [0, 1], 10..30, 5_000_000_000);
        two_hops(&mut evidence, [0, 1], 40..49, 90_000_000_000);
        let offset = evidence.offsets(2)[1].unwrap();
        assert_eq!((offset.agreeing, offset.requests), (20, 29));
        assert!(offset.nanos.abs_diff(5_000_000_000) <= offset.uncertainty, "{offset:?}");
        let mut evidence = ClockEvidence::default();
        two_hops(&mut evidence, [0, 1], 10..14, 5_000_000_000);
        assert_eq!(evidence.offsets(2), [None, None], "four");
        let mut evidence = ClockEvidence::default();
        (0..20).for_each(|number| two_hops(&mut evidence, [0, 1], number..number + 1, (number * 10 * SECOND) as i64));
        assert_eq!(evidence.offsets(2), [None, None], "no two of them agree");
    }

    #[test]
    fn rows_that_may_be_several_requests_are_no_evidence() {
        let mut evidence = ClockEvidence::default();
        for _ in 0..2 {
            two_hops(&mut evidence, [0, 1], 10..30, 5_000_000_000);
        }
        assert_eq!((evidence.offsets(2), evidence.shared_requests()), (vec![None, None], 0), "each is there twice");
        let mut evidence = ClockEvidence::default();
        for number in 10..30 {
            evidence.add(0, &header("one key"), &row(number, number * SECOND, SECOND));
            evidence.add(1, &header("another"), &row(number, number * SECOND, SECOND));
        }
        assert_eq!(evidence.offsets(2), [None, None], "ids of two keys cannot be compared");
    }

    #[test]
    fn offsets_add_up_over_captures_that_share_no_request() {
        let mut evidence = ClockEvidence::default();
        two_hops(&mut evidence, [2, 1], 10..30, -1_000_000_000);
        two_hops(&mut evidence, [0, 2], 40..60, 3_000_000_000);
        let offsets = evidence.offsets(4);
        assert!(offsets[1].unwrap().nanos.abs_diff(2_000_000_000) <= offsets[1].unwrap().uncertainty, "{offsets:?}");
        assert_eq!(offsets[1].unwrap().reference, 0);
        assert_eq!(offsets[3], None);
    }

    #[test]
    fn a_sample_of_many_requests_has_the_same_offset() {
        let mut evidence = ClockEvidence::default();
        two_hops(&mut evidence, [0, 1], 10..MAX_REQUESTS as u64 * 3, 5_000_000_000);
        assert!(evidence.requests.len() <= MAX_REQUESTS && evidence.sampled_bits == 2);
        let offset = evidence.offsets(2)[1].unwrap();
        assert!(offset.nanos.abs_diff(5_000_000_000) <= offset.uncertainty, "{offset:?}");
        assert!(offset.requests > MAX_REQUESTS / 2 && offset.agreeing == offset.requests);
    }
}
