//! The same traffic with shorter or longer prompts and replies, for servers that cannot hold the longest.
//!
//! Blocks are scaled with the prompts that they are of, so every prompt keeps its ids, and shares the same part of itself.
//! What became of a request goes where its reply is another one: when its tokens came says nothing of the new ones.

use super::Trace;
use crate::capture::row::{BlockUnit, LastBlock, Timing};

/// By what lengths are multiplied.
#[derive(Clone, Copy, Debug)]
pub struct LengthScale {
    /// Prompts.
    pub input: f64,
    /// Replies.
    pub output: f64,
}

/// What a factor is off by because it is a binary fraction, in tokens of the longest prompt.
const ROUNDING_TOLERANCE: f64 = 1e-6;

/// A trace of other lengths.
///
/// # Errors
/// When a block would not be a whole number of tokens; the text names a factor that fits.
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
        // Nothing stays nothing, and something something.
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
        // Nothing of these lengths went over any wire.
        entry.transfer = None;
        if lengths.output != 1.0 {
            // When a client left is its own; when tokens came is not.
            let left = entry.timing.ended.filter(|_| aborted);
            entry.timing =
                Timing { sent: entry.timing.sent.filter(|_| left.is_some()), ended: left, ..Timing::default() };
        }
        Ok(entry)
    });
    Ok(Trace { header, entries: Box::new(entries), losses })
}
