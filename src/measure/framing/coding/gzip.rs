//! Gzip (RFC 1952): consecutive members, each with a header, deflated data, a checksum and a length.

use flate2::{Crc, Decompress};

use super::inflate::inflate;
use super::{DecodeError, DecodeStep};

/// Header flags, and the bits that RFC 1952 reserves.
const HEADER_CHECKSUM: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// Decodes members; reuses one decoder for all.
pub(super) struct GzipDecoder {
    part: GzipPart,
    state: Decompress,
    checksum: Crc,
}

/// The part of a member to read next.
#[derive(Clone, Copy)]
enum GzipPart {
    /// The first ten bytes, of which `taken` have arrived; the fourth contains the flags.
    Fixed {
        taken: usize,
        flags: u8,
    },
    /// The optional fields that the flags announce.
    Optional {
        flags: u8,
    },
    /// Length of the extra field, little endian.
    ExtraLength {
        flags: u8,
        taken: usize,
        length: usize,
    },
    /// Bytes to ignore.
    Skip {
        flags: u8,
        rest: usize,
    },
    /// A zero-terminated name or comment.
    Text {
        flags: u8,
    },
    Body,
    /// Checksum and length, little endian.
    Trailer {
        taken: usize,
        bytes: [u8; 8],
    },
}

const BEGIN: GzipPart = GzipPart::Fixed { taken: 0, flags: 0 };

impl Default for GzipDecoder {
    fn default() -> Self {
        Self { part: BEGIN, state: Decompress::new(false), checksum: Crc::new() }
    }
}

impl GzipDecoder {
    pub(super) fn restart(&mut self) {
        self.part = BEGIN;
    }

    pub(super) fn step(&mut self, bytes: &[u8], piece: &mut [u8]) -> Result<DecodeStep, DecodeError> {
        if !matches!(self.part, GzipPart::Body) {
            let mut used = 0;
            while used < bytes.len() && !matches!(self.part, GzipPart::Body) {
                used += self.around(&bytes[used..])?;
            }
            return Ok(DecodeStep::usual(used, 0));
        }
        let (step, ended) = inflate(&mut self.state, bytes, piece)?;
        self.checksum.update(&piece[..step.made]);
        if ended {
            self.part = GzipPart::Trailer { taken: 0, bytes: [0; 8] };
        }
        Ok(step)
    }

    /// Processes header or trailer bytes, at least one; returns how many.
    fn around(&mut self, bytes: &[u8]) -> Result<usize, DecodeError> {
        let (first, mut used) = (bytes[0], 1);
        self.part = match self.part {
            GzipPart::Fixed { taken, flags } => {
                let fits = match taken {
                    0 => first == 0x1f,
                    1 => first == 0x8b,
                    // Deflate, the only compression method.
                    2 => first == 8,
                    3 => first & RESERVED == 0,
                    _ => true,
                };
                let flags = if taken == 3 { first } else { flags };
                match (fits, taken) {
                    (false, _) => return Err(DecodeError::Malformed),
                    (true, 9) => self.after_field(flags),
                    _ => GzipPart::Fixed { taken: taken + 1, flags },
                }
            }
            GzipPart::Optional { flags } => {
                used = 0;
                if flags & EXTRA != 0 {
                    GzipPart::ExtraLength { flags: flags & !EXTRA, taken: 0, length: 0 }
                } else if flags & NAME != 0 {
                    GzipPart::Text { flags: flags & !NAME }
                } else if flags & COMMENT != 0 {
                    GzipPart::Text { flags: flags & !COMMENT }
                } else {
                    GzipPart::Skip { flags: 0, rest: 2 }
                }
            }
            GzipPart::ExtraLength { flags, taken: 0, .. } => {
                GzipPart::ExtraLength { flags, taken: 1, length: usize::from(first) }
            }
            GzipPart::ExtraLength { flags, length, .. } => match length | usize::from(first) << 8 {
                0 => self.after_field(flags),
                rest => GzipPart::Skip { flags, rest },
            },
            GzipPart::Skip { flags, rest } => {
                used = rest.min(bytes.len());
                if used == rest { self.after_field(flags) } else { GzipPart::Skip { flags, rest: rest - used } }
            }
            GzipPart::Text { flags } => match memchr::memchr(0, bytes) {
                Some(end) => {
                    used = end + 1;
                    self.after_field(flags)
                }
                None => {
                    used = bytes.len();
                    GzipPart::Text { flags }
                }
            },
            GzipPart::Trailer { taken, bytes: mut trailer } => {
                trailer[taken] = first;
                if taken == 7 {
                    self.check(trailer)?;
                    BEGIN
                } else {
                    GzipPart::Trailer { taken: taken + 1, bytes: trailer }
                }
            }
            GzipPart::Body => GzipPart::Body,
        };
        Ok(used)
    }

    /// Returns the next part after a header field; `flags` has the remaining fields.
    fn after_field(&mut self, flags: u8) -> GzipPart {
        if flags & (EXTRA | NAME | COMMENT | HEADER_CHECKSUM) != 0 {
            return GzipPart::Optional { flags };
        }
        self.state.reset(false);
        self.checksum.reset();
        GzipPart::Body
    }

    fn check(&self, trailer: [u8; 8]) -> Result<(), DecodeError> {
        let expected = u64::from_le_bytes(trailer);
        let found = u64::from(self.checksum.sum()) | u64::from(self.checksum.amount()) << 32;
        if expected == found { Ok(()) } else { Err(DecodeError::Malformed) }
    }
}
