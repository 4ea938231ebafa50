//! Deflate, with zlib wrapper (RFC 1950) or raw (RFC 1951).

use flate2::{Decompress, FlushDecompress, Status};

use super::{DecodeError, DecodeStep};

/// `deflate` is zlib by the standard, but raw in practice with some servers; the first byte decides.
#[derive(Default)]
pub(super) struct DeflateDecoder {
    state: Option<Decompress>,
    started: bool,
    ended: bool,
}

impl DeflateDecoder {
    pub(super) fn step(&mut self, bytes: &[u8], piece: &mut [u8]) -> Result<DecodeStep, DecodeError> {
        if let Some(first) = bytes.first().filter(|_| !self.started) {
            // RFC 1950: the low four bits are method 8, and the top bit of the window size is never set.
            let zlib = first & 0x8f == 0x08;
            self.started = true;
            match &mut self.state {
                Some(state) => state.reset(zlib),
                None => self.state = Some(Decompress::new(zlib)),
            }
        }
        if self.ended && bytes.is_empty() {
            return Ok(DecodeStep::default());
        }
        let Some(state) = self.state.as_mut().filter(|_| !self.ended) else { return Err(DecodeError::Malformed) };
        let (step, ended) = inflate(state, bytes, piece)?;
        self.ended = ended;
        Ok(step)
    }

    pub(super) fn restart(&mut self) {
        (self.started, self.ended) = (false, false);
    }
}

/// Runs one step; also returns whether the last block has ended.
pub(super) fn inflate(
    state: &mut Decompress,
    bytes: &[u8],
    piece: &mut [u8],
) -> Result<(DecodeStep, bool), DecodeError> {
    let (before_in, before_out) = (state.total_in(), state.total_out());
    let status = state.decompress(bytes, piece, FlushDecompress::Sync).map_err(|_| DecodeError::Malformed)?;
    let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
    let step = DecodeStep::usual(count(state.total_in(), before_in), count(state.total_out(), before_out));
    Ok((step, status == Status::StreamEnd))
}
