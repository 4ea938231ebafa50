//! Removes the content coding of request bodies before they are hashed.

use super::body_memory::MAX_BODY_BYTES;
use crate::measure::framing::coding::{DecodeError, Decoder};
use crate::measure::work_budget::WorkBudget;

/// Reason why a body has no plain form.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum BodyDecodeError {
    /// It exceeds the size limit or the budget.
    TooLarge,
    /// Unsupported coding, or corrupt data.
    Unknown,
}

/// Removes the content coding of a body; `Ok(None)` if it has none.
pub(super) fn decode_body(
    body: &[u8],
    encoding: &[u8],
    budget: &mut WorkBudget,
) -> Result<Option<Vec<u8>>, BodyDecodeError> {
    let mut decoder = Decoder::for_encoding(encoding).ok_or(BodyDecodeError::Unknown)?;
    if decoder.is_identity() {
        return Ok(None);
    }
    let (mut plain, mut fits) = (Vec::new(), true);
    let decoded = decoder.push(body, budget, |piece, _| {
        fits = plain.len() + piece.len() <= MAX_BODY_BYTES;
        if fits {
            plain.extend_from_slice(piece);
        }
        fits
    });
    match decoded {
        _ if !fits => Err(BodyDecodeError::TooLarge),
        Ok(()) => Ok(Some(plain)),
        Err(DecodeError::OutOfBudget) => Err(BodyDecodeError::TooLarge),
        Err(DecodeError::Malformed) => Err(BodyDecodeError::Unknown),
    }
}
