//! Scales the lengths of prompts and replies, for servers that cannot hold the longest.
//!
//! Block sizes scale with the prompts, so every prompt keeps its ids and its shared fraction. If the reply length
//! changes, token times are removed, because they do not apply to the new reply.

use super::Trace;
use crate::trace_file::header::{BlockUnit, LastBlock};
use crate::trace_file::row::Timing;

/// Factors on lengths.
#[derive(Clone, Copy, Debug)]
pub struct LengthScale {
    /// Factor on prompt lengths.
    pub input: f64,
    /// Factor on reply lengths.
    pub output: f64,
}

/// Tolerance for factors without an exact binary fraction, in tokens of the longest prompt.
const ROUNDING_TOLERANCE: f64 = 1e-6;

/// Scales the lengths of a trace.
///
/// # Errors
/// If a block would not be a whole number of tokens; the text names a factor that fits.
pub fn scale_lengths(trace: Trace, lengths: LengthScale) -> Result<Trace, String> {
    let Trace { mut header, entries, losses } = trace;
    let mut last = LastBlock::Kept;
    if let Some(blocks) = &mut header.blocks {
        let was = blocks.size;
        let unit = match blocks.unit {
            BlockUnit::Tokens => "tokens",
            BlockUnit::Bytes => "bytes",
        };
        let exact = f64::from(was) * lengths.input;
        let whole = exact.round().max(1.0);
        if (exact - whole).abs() > ROUNDING_TOLERANCE {
            let near = whole / f64::from(was);
            return Err(format!(
                "blocks of {was} {unit} would be {exact} {unit} long; {near}x makes them {whole}, and keeps what \
                 prompts share"
            ));
        }
        (blocks.size, last) = (whole as u32, blocks.last);
    }
    let input = move |length: u64| match last {
        LastBlock::Kept => (length as f64 * lengths.input - ROUNDING_TOLERANCE).ceil() as u64,
        LastBlock::Dropped => (length as f64 * lengths.input + ROUNDING_TOLERANCE).floor() as u64,
    };
    let output = move |length: u64| (length as f64 * lengths.output).round() as u64;
    let entries = entries.map(move |entry| {
        let mut entry = entry?;
        let aborted = entry.is_aborted();
        let prompt = &mut entry.prompt;
        // Zero stays zero, and a positive length stays positive.
        let least = |by: &dyn Fn(u64) -> u64, length: Option<u64>| length.map(|length| by(length).max(length.min(1)));
        for length in [&mut prompt.tokens, &mut prompt.bytes, &mut prompt.cached] {
            *length = least(&input, *length);
        }
        let params = &mut entry.params;
        for length in [
            &mut params.max_tokens,
            &mut params.min_tokens,
            &mut entry.output_tokens,
            &mut entry.reasoning_tokens,
            &mut entry.abort_tokens,
        ] {
            *length = least(&output, *length);
        }
        // Transfer details do not apply to the new lengths.
        entry.transfer = None;
        if lengths.output != 1.0 {
            // The time of an abort is the client's decision and stays; token times do not.
            let left = entry.timing.ended.filter(|_| aborted);
            entry.timing =
                Timing { sent: entry.timing.sent.filter(|_| left.is_some()), ended: left, ..Timing::default() };
        }
        Ok(entry)
    });
    Ok(Trace { header, entries: Box::new(entries), losses })
}
