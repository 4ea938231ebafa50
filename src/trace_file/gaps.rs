//! The gaps of one stream as compact text: [`Timing::gaps`](super::row::Timing::gaps). Pure.
//!
//! # Layout
//! Base64 without padding over variable-length integers (seven bits per byte, lowest first; the high bit marks a
//! continuation):
//!
//! 1. the number of gaps;
//! 2. the tokens of the events in runs, until the runs cover all gaps: the length of the run, then the tokens of each
//!    event plus one (0 means unknown);
//! 3. for each gap its difference from the previous gap (from 0 for the first), in microseconds, zigzag-encoded: 0, −1,
//!    1, −2, … become 0, 1, 2, 3, ….
//!
//! Gaps are differences of *offsets* rounded to microseconds, so no error accumulates over a long stream. A steady
//! stream takes two bytes of integers per event, and less than three of text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;

/// Bytes of the longest integer, of 64 bits.
const MAX_VARINT_BYTES: usize = 10;

/// The text is not a valid list of gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GapsError {
    /// The text is not base64 without padding.
    #[error("packed gaps are not base64 without padding")]
    Encoding,
    /// The text ends before the last gap.
    #[error("packed gaps end before the last gap")]
    Truncated,
    /// Bytes follow the last gap.
    #[error("packed gaps go on after the last gap")]
    TrailingData,
    /// A number or a sum is larger than any writer writes.
    #[error("packed gaps hold a number out of range")]
    OutOfRange,
}

/// Packs the gaps in order, rounded to microseconds.
pub fn pack(events: &[TokenEvent]) -> String {
    let mut bytes = Vec::with_capacity(events.len() * 2 + 8);
    write_varint(&mut bytes, events.len() as u64);
    for run in events.chunk_by(|a, b| a.tokens() == b.tokens()) {
        write_varint(&mut bytes, run.len() as u64);
        write_varint(&mut bytes, run[0].tokens().map_or(0, |tokens| u64::from(tokens) + 1));
    }
    let mut gap_before = 0;
    for gap in whole_micros(events) {
        write_varint(&mut bytes, zigzag_encode(gap as i64 - gap_before));
        gap_before = gap as i64;
    }
    STANDARD_NO_PAD.encode(bytes)
}

/// The gaps as a file returns them: `unpack(pack(events))` without the text.
pub fn rounded(events: &[TokenEvent]) -> Vec<TokenEvent> {
    let gaps = events.iter().zip(whole_micros(events));
    gaps.map(|(event, micros)| TokenEvent::new(Gap::from_nanos(micros * 1_000), event.tokens())).collect()
}

/// Rounds the offsets, not the gaps, so that errors do not add up.
fn whole_micros(events: &[TokenEvent]) -> impl Iterator<Item = u64> {
    let (mut offset, mut before) = (0_u64, 0);
    events.iter().map(move |event| {
        offset = offset.saturating_add(event.gap().as_nanos());
        let rounded = offset.saturating_add(500) / 1_000;
        rounded - std::mem::replace(&mut before, rounded)
    })
}

/// Unpacks the gaps, in whole microseconds.
///
/// # Errors
/// If [`pack`] cannot have written the text. Memory use is at most eight times the length of the text.
pub fn unpack(text: &str) -> Result<Vec<TokenEvent>, GapsError> {
    let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| GapsError::Encoding)?;
    let mut rest = &bytes[..];
    let gaps = usize::try_from(read_varint(&mut rest)?).map_err(|_| GapsError::OutOfRange)?;
    // Each gap takes at least one byte.
    if gaps > rest.len() {
        return Err(GapsError::Truncated);
    }
    let mut tokens = Vec::with_capacity(gaps);
    while tokens.len() < gaps {
        let (run, each) = (read_varint(&mut rest)?, read_varint(&mut rest)?);
        let run = usize::try_from(run).ok().filter(|run| (1..=gaps - tokens.len()).contains(run));
        let each = u32::try_from(each).map_err(|_| GapsError::OutOfRange)?.checked_sub(1);
        tokens.extend(std::iter::repeat_n(each, run.ok_or(GapsError::OutOfRange)?));
    }
    let (mut gap, mut offset, mut events) = (0_i64, 0_u64, Vec::with_capacity(gaps));
    for tokens in tokens {
        gap = gap.checked_add(zigzag_decode(read_varint(&mut rest)?)).ok_or(GapsError::OutOfRange)?;
        let nanos =
            u64::try_from(gap).ok().and_then(|micros| micros.checked_mul(1_000)).ok_or(GapsError::OutOfRange)?;
        offset = offset.checked_add(nanos).ok_or(GapsError::OutOfRange)?;
        let event = TokenEvent::new(Gap::from_nanos(nanos), tokens);
        // `TokenEvent` saturates. A changed value proves that no writer wrote it.
        if (event.gap().as_nanos(), event.tokens()) != (nanos, tokens) {
            return Err(GapsError::OutOfRange);
        }
        events.push(event);
    }
    if rest.is_empty() { Ok(events) } else { Err(GapsError::TrailingData) }
}

fn zigzag_encode(signed: i64) -> u64 {
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn zigzag_decode(folded: u64) -> i64 {
    (folded >> 1) as i64 ^ -((folded & 1) as i64)
}

fn write_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[inline]
fn read_varint(bytes: &mut &[u8]) -> Result<u64, GapsError> {
    let (mut number, mut shift) = (0_u64, 0);
    for (at, byte) in bytes.iter().take(MAX_VARINT_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(GapsError::OutOfRange);
        }
        number |= bits << shift;
        shift += 7;
        if *byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Ok(number);
        }
    }
    Err(if bytes.len() < MAX_VARINT_BYTES { GapsError::Truncated } else { GapsError::OutOfRange })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(gaps: impl IntoIterator<Item = (u64, Option<u32>)>) -> Vec<TokenEvent> {
        gaps.into_iter().map(|(nanos, tokens)| TokenEvent::new(Gap::from_nanos(nanos), tokens)).collect()
    }

    #[test]
    fn the_layout_is_what_the_front_page_says() {
        let packed = pack(&events([(20_000_000, Some(1)), (20_001_000, Some(1)), (0, None)]));
        // 3 gaps; 2 events of 1 token, 1 of an unknown number; 20000, +1, −20001.
        let bytes = [3, 2, 2, 1, 0, 0xc0, 0xb8, 2, 2, 0xc1, 0xb8, 2];
        assert_eq!(packed, STANDARD_NO_PAD.encode(bytes));
        assert_eq!(unpack(&packed).unwrap(), events([(20_000_000, Some(1)), (20_001_000, Some(1)), (0, None)]));
    }

    #[test]
    fn no_error_adds_up() {
        // Rounding each gap by itself would lose 0.4 µs per gap.
        let gaps = unpack(&pack(&events((0..10_000).map(|_| (400, None))))).unwrap();
        assert_eq!(gaps.iter().map(|event| event.gap().as_nanos()).sum::<u64>(), 4_000_000);
    }

    #[test]
    fn a_stream_with_jitter_takes_less_than_three_bytes_per_token() {
        let jitter = |i: u64| (i.wrapping_mul(6_364_136_223_846_793_005) >> 33) % 4_000_000;
        let packed = pack(&events((0..1_000).map(|i| (18_000_000 + jitter(i), Some(1)))));
        assert!(packed.len() < 3_000, "{} bytes", packed.len());
    }

    #[test]
    fn what_is_no_list_of_gaps_is_told_why() {
        let refused = |bytes: &[u8]| unpack(&STANDARD_NO_PAD.encode(bytes)).unwrap_err();
        assert_eq!(unpack("?"), Err(GapsError::Encoding));
        assert_eq!(unpack(""), Err(GapsError::Truncated));
        assert_eq!(refused(&[2, 2, 2, 4]), GapsError::Truncated);
        assert_eq!(refused(&[1, 1, 2, 4, 4]), GapsError::TrailingData);
        assert_eq!(refused(&[1, 2, 2, 5]), GapsError::OutOfRange, "a run longer than the list");
        assert_eq!(refused(&[2, 0, 2, 5, 5]), GapsError::OutOfRange, "an empty run");
        assert_eq!(refused(&[1, 1, 2, 1]), GapsError::OutOfRange, "a gap below zero");
        assert_eq!(refused(&[0xff; 10]), GapsError::OutOfRange);
        let one = |tokens: u64, micros: i64| {
            let mut bytes = vec![1, 1];
            write_varint(&mut bytes, tokens + 1);
            write_varint(&mut bytes, zigzag_encode(micros));
            unpack(&STANDARD_NO_PAD.encode(bytes))
        };
        assert_eq!(one(1, i64::MAX / 1_000), Err(GapsError::OutOfRange), "a gap of three centuries");
        assert_eq!(one(1 << 31, 1), Err(GapsError::OutOfRange), "more tokens than an event has");
        let longest = TokenEvent::new(Gap::from_nanos(u64::MAX), Some(u32::MAX));
        assert_eq!(unpack(&pack(&[longest])), Ok(vec![longest]), "what is cut is cut to what can be written");
    }

    proptest! {
        #[test]
        fn whole_microseconds_come_back(
            gaps in prop::collection::vec((0_u64..1 << 34, prop::option::of(0_u32..1_000)), 0..300),
        ) {
            let whole = events(gaps.into_iter().map(|(micros, tokens)| (micros * 1_000, tokens)));
            prop_assert_eq!(unpack(&pack(&whole)).unwrap(), whole);
        }

        #[test]
        fn offsets_are_within_half_a_microsecond(gaps in prop::collection::vec(0_u64..1 << 40, 0..300)) {
            let whole = events(gaps.into_iter().map(|nanos| (nanos, None)));
            let (mut exact, mut read) = (0, 0);
            for (was, is) in whole.iter().zip(unpack(&pack(&whole)).unwrap()) {
                exact += was.gap().as_nanos();
                read += is.gap().as_nanos();
                prop_assert!(exact.abs_diff(read) <= 500);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[A-Za-z0-9+/]{0,60}") {
            let _judged = unpack(&text).is_ok();
        }
    }
}
