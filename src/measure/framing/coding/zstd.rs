//! Zstandard (RFC 8878): consecutive frames.

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::{DecodeError, DecodeStep};
use crate::measure::work_budget::price;

/// The largest accepted window: 8 MiB, which RFC 8878 recommends that every decoder supports.
const MAX_WINDOW_LOG: u32 = 23;
/// Bytes at the start of a frame, after which the decoder reports how many it needs next.
const FRAME_BEGIN: usize = 5;
/// Upper bound for frame and block headers, in bytes.
const MAX_HEADER: usize = 18;

pub(super) struct ZstdDecoder {
    decoder: Decoder<'static>,
    /// Input bytes that the decoder asks for next; given at most those, a call decodes at most one block.
    input_hint: usize,
}

impl ZstdDecoder {
    /// `None` if memory allocation fails.
    pub(super) fn new() -> Option<Self> {
        let mut decoder = Decoder::new().ok()?;
        decoder.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG)).ok()?;
        Some(Self { decoder, input_hint: FRAME_BEGIN })
    }

    pub(super) fn restart(&mut self) -> Result<(), DecodeError> {
        self.input_hint = FRAME_BEGIN;
        self.decoder.reinit().map_err(|_| DecodeError::Malformed)
    }

    pub(super) fn step(&mut self, bytes: &[u8], piece: &mut [u8]) -> Result<DecodeStep, DecodeError> {
        let mut input = InBuffer::around(&bytes[..self.input_hint.min(bytes.len())]);
        let mut output = OutBuffer::around(piece);
        let hint = self.decoder.run(&mut input, &mut output).map_err(|_| DecodeError::Malformed)?;
        self.input_hint = if hint == 0 { FRAME_BEGIN } else { hint };
        let mut step = DecodeStep::usual(input.pos(), output.pos());
        if step.used > MAX_HEADER {
            step.work += price::ZSTD_BLOCK;
        }
        Ok(step)
    }
}
