//! Zstandard (RFC 8878): frames one after the other.

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::{DecodeError, DecodeStep};
use crate::measure::work_budget::price;

/// The largest window accepted: 8 MiB, the size that RFC 8878 asks every decoder to take.
const MAX_WINDOW_LOG: u32 = 23;
/// Bytes that a frame begins with, and after which the decoder says how many more it wants.
const FRAME_BEGIN: usize = 5;
/// Headers of frames and blocks are no longer than this.
const MAX_HEADER: usize = 18;

/// Reads frames.
pub(super) struct ZstdDecoder {
    decoder: Decoder<'static>,
    /// Bytes that the decoder wants next: with no more than those, a call decodes one block at most.
    wanted: usize,
}

impl ZstdDecoder {
    /// `None` where there is no memory for it.
    pub(super) fn new() -> Option<Self> {
        let mut decoder = Decoder::new().ok()?;
        decoder.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG)).ok()?;
        Some(Self { decoder, wanted: FRAME_BEGIN })
    }

    pub(super) fn restart(&mut self) -> Result<(), DecodeError> {
        self.wanted = FRAME_BEGIN;
        self.decoder.reinit().map_err(|_| DecodeError::Malformed)
    }

    pub(super) fn step(&mut self, bytes: &[u8], piece: &mut [u8]) -> Result<DecodeStep, DecodeError> {
        let mut input = InBuffer::around(&bytes[..self.wanted.min(bytes.len())]);
        let mut output = OutBuffer::around(piece);
        let wanted = self.decoder.run(&mut input, &mut output).map_err(|_| DecodeError::Malformed)?;
        self.wanted = if wanted == 0 { FRAME_BEGIN } else { wanted };
        let mut step = DecodeStep::usual(input.pos(), output.pos());
        if step.used > MAX_HEADER {
            step.work += price::ZSTD_BLOCK;
        }
        Ok(step)
    }
}
