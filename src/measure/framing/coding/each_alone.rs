//! Messages that are compressed one by one, as in gRPC.

use super::{DecodeError, Decoder};
use crate::measure::framing::{FramingError, MAX_EVENT};
use crate::measure::work_budget::WorkBudget;

/// Decodes successive messages with one decoder.
#[derive(Default)]
pub(in crate::measure::framing) struct PerMessageDecoder {
    /// `None` if the coding is unknown.
    decoder: Option<Box<Decoder>>,
    plain: Vec<u8>,
}

impl std::fmt::Debug for PerMessageDecoder {
    /// Omits the decoded text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerMessageDecoder").finish_non_exhaustive()
    }
}

impl PerMessageDecoder {
    pub(in crate::measure::framing) fn new(encoding: &[u8]) -> Self {
        let decoder = Decoder::for_encoding(encoding).filter(|decoder| !decoder.is_identity()).map(Box::new);
        Self { decoder, plain: Vec::new() }
    }

    /// Decodes one message.
    ///
    /// # Errors
    /// If the coding is unknown, the message violates it or exceeds [`MAX_EVENT`], or the budget is exhausted.
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
