//! Messages of which each is compressed by itself, as in gRPC.

use super::{DecodeError, Decoder};
use crate::measure::framing::{FramingError, MAX_EVENT};
use crate::measure::work_budget::WorkBudget;

/// Decodes one message after the other with one decoder.
#[derive(Default)]
pub(in crate::measure::framing) struct EachAlone {
    /// `None` where no message can be decoded.
    decoder: Option<Box<Decoder>>,
    plain: Vec<u8>,
}

impl std::fmt::Debug for EachAlone {
    /// Nothing of what was said.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EachAlone").finish_non_exhaustive()
    }
}

impl EachAlone {
    /// Messages in this coding.
    pub(in crate::measure::framing) fn new(encoding: &[u8]) -> Self {
        let decoder = Decoder::for_encoding(encoding).filter(|decoder| !decoder.is_identity()).map(Box::new);
        Self { decoder, plain: Vec::new() }
    }

    /// One message, plain.
    ///
    /// # Errors
    /// When the coding is not known, the message does not follow it or outgrows [`MAX_EVENT`], or the budget is
    /// exhausted.
    pub(in crate::measure::framing) fn unfold(
        &mut self,
        message: &[u8],
        budget: &mut WorkBudget,
    ) -> Result<&[u8], FramingError> {
        let Self { decoder, plain } = self;
        let decoder = decoder.as_mut().ok_or(FramingError::Coding)?;
        plain.clear();
        let mut fits = true;
        let decoded = decoder.restart().and_then(|()| {
            decoder.push(message, budget, |piece, _| {
                fits = plain.len() + piece.len() <= MAX_EVENT;
                if fits {
                    plain.extend_from_slice(piece);
                }
                fits
            })
        });
        match decoded {
            Ok(()) if fits => Ok(plain),
            Ok(()) => Err(FramingError::TooLarge),
            Err(DecodeError::Malformed) => Err(FramingError::Coding),
            Err(DecodeError::OutOfBudget) => Err(FramingError::OutOfBudget),
        }
    }
}
