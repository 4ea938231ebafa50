//! Decodes `Content-Encoding` on the observer's copy of the bytes. The client still receives the compressed bytes.
//!
//! Every decoder flushes its output after each read, so that an event counts at the read that delivered it.
//!
//! A [`WorkBudget`] is charged for each decoder call, its input and its output. A decompression bomb exhausts the
//! budget, as do endless empty members; the observer then stops reading that body. One decoder serves all members of
//! a body and all messages of a stream.
//!
//! # Memory
//! `MAX_PIECE_BYTES` of output, and the coding's window: 32 KiB for deflate, at most 8 MiB for zstd and 16 MiB for
//! brotli.

mod brotli;
mod each_alone;
mod gzip;
mod inflate;
mod zstd;

pub(super) use each_alone::PerMessageDecoder;

use self::brotli::BrotliDecoder;
use self::gzip::GzipDecoder;
use self::inflate::DeflateDecoder;
use self::zstd::ZstdDecoder;
use crate::measure::work_budget::{OutOfBudget, WorkBudget, price};

/// Bytes of output per piece; the budget is checked between pieces.
const MAX_PIECE_BYTES: usize = 4 << 10;
/// Bytes of input per piece.
pub(in crate::measure) const MAX_INPUT_BYTES: usize = 4 << 10;

/// Incremental decoder for one body.
pub struct Decoder {
    coding: ContentCoding,
    /// Buffer for one piece, allocated on the first byte.
    piece: Vec<u8>,
    /// The last piece filled the buffer, so more output may follow without input.
    is_full: bool,
}

enum ContentCoding {
    Identity,
    Gzip(Box<GzipDecoder>),
    Deflate(DeflateDecoder),
    Brotli(BrotliDecoder),
    Zstd(ZstdDecoder),
}

/// Reason why decoding of a body stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes violate their `Content-Encoding`.
    Malformed,
    /// Further decoding would exceed the work budget.
    OutOfBudget,
}

impl From<OutOfBudget> for DecodeError {
    fn from(_: OutOfBudget) -> Self {
        Self::OutOfBudget
    }
}

/// Result of one decoder call.
#[derive(Clone, Copy, Debug, Default)]
struct DecodeStep {
    /// Input bytes consumed.
    used: usize,
    /// Output bytes produced.
    made: usize,
    /// Cost, in units of the budget.
    work: u64,
}

impl DecodeStep {
    /// A step at the standard price.
    fn usual(used: usize, made: usize) -> Self {
        let work = price::DECODER_CALL + used as u64 * price::DECODER_IN + made as u64 * price::DECODER_OUT;
        Self { used, made, work }
    }
}

impl Decoder {
    /// Returns the decoder for a `Content-Encoding` value; `None` for an unknown coding or a list of codings.
    pub fn for_encoding(value: &[u8]) -> Option<Self> {
        let value = value.trim_ascii();
        let is = |name: &str| value.eq_ignore_ascii_case(name.as_bytes());
        let coding = if value.is_empty() || is("identity") {
            ContentCoding::Identity
        } else if is("gzip") || is("x-gzip") {
            ContentCoding::Gzip(Box::default())
        } else if is("deflate") {
            ContentCoding::Deflate(DeflateDecoder::default())
        } else if is("br") {
            ContentCoding::Brotli(BrotliDecoder::default())
        } else if is("zstd") {
            ContentCoding::Zstd(ZstdDecoder::new()?)
        } else {
            return None;
        };
        Some(Self { coding, piece: Vec::new(), is_full: false })
    }

    /// True if the bytes need no decoding.
    pub fn is_identity(&self) -> bool {
        matches!(self.coding, ContentCoding::Identity)
    }

    /// Decodes one read and passes the output to `each` in one or more pieces, until `each` returns false.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes violate the coding, or the budget is exhausted.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        budget: &mut WorkBudget,
        mut each: impl FnMut(&[u8], &mut WorkBudget) -> bool,
    ) -> Result<(), DecodeError> {
        if self.is_identity() {
            each(bytes, budget);
            return Ok(());
        }
        let mut goes_on = true;
        while goes_on && self.has_more(bytes) {
            bytes = &bytes[self.step(bytes, budget, |piece, budget| goes_on = each(piece, budget))?..];
        }
        Ok(())
    }

    /// True if there is more to decode.
    fn has_more(&self, bytes: &[u8]) -> bool {
        self.is_full || !bytes.is_empty()
    }

    /// Decodes at most one piece of input and of output; returns the bytes of input that it took.
    fn step(
        &mut self,
        bytes: &[u8],
        budget: &mut WorkBudget,
        each: impl FnOnce(&[u8], &mut WorkBudget),
    ) -> Result<usize, DecodeError> {
        if self.piece.is_empty() {
            budget.charge(price::NEW_DECODER)?;
            self.piece = vec![0; MAX_PIECE_BYTES];
        }
        let bytes = &bytes[..bytes.len().min(MAX_INPUT_BYTES)];
        let DecodeStep { used, made, work } = match &mut self.coding {
            ContentCoding::Identity => DecodeStep::default(),
            ContentCoding::Gzip(gzip) => gzip.step(bytes, &mut self.piece)?,
            ContentCoding::Deflate(deflate) => deflate.step(bytes, &mut self.piece)?,
            ContentCoding::Brotli(brotli) => brotli.step(bytes, &mut self.piece)?,
            ContentCoding::Zstd(zstd) => zstd.step(bytes, &mut self.piece)?,
        };
        budget.charge(work)?;
        if made > 0 {
            each(&self.piece[..made], budget);
        }
        if used == 0 && made == 0 && !self.is_full {
            return Err(DecodeError::Malformed);
        }
        self.is_full = made == self.piece.len();
        Ok(used)
    }

    /// Prepares for another body in this coding.
    fn restart(&mut self) -> Result<(), DecodeError> {
        self.is_full = false;
        match &mut self.coding {
            ContentCoding::Identity => {}
            ContentCoding::Gzip(gzip) => gzip.restart(),
            ContentCoding::Deflate(deflate) => deflate.restart(),
            ContentCoding::Brotli(brotli) => brotli.restart(),
            ContentCoding::Zstd(zstd) => zstd.restart()?,
        }
        Ok(())
    }
}

/// Passes one slice of `bytes` to `each`, decoded if necessary, and plain ones in pieces of `piece_bytes`. Returns the
/// bytes that the slice took, and whether it was the last one.
///
/// # Errors
/// The error of `each`, or the decoding error.
pub(in crate::measure) fn decode_slice<E: From<DecodeError>>(
    decoder: Option<&mut Decoder>,
    (bytes, piece_bytes): (&[u8], usize),
    budget: &mut WorkBudget,
    mut each: impl FnMut(&[u8], &mut WorkBudget) -> Result<(), E>,
) -> Result<(usize, bool), E> {
    if decoder.is_none() && bytes.len() <= piece_bytes {
        each(bytes, budget)?;
        return Ok((bytes.len(), true));
    }
    decode_pieces(decoder, (bytes, piece_bytes), budget, &mut each)
}

/// Takes decoded pieces, and ends the body by an error.
type EachPiece<'a, E> = dyn FnMut(&[u8], &mut WorkBudget) -> Result<(), E> + 'a;

/// [`decode_slice`] for reads of more than one piece. It is a function of its own, which the short ones do not enter.
#[inline(never)]
fn decode_pieces<E: From<DecodeError>>(
    mut decoder: Option<&mut Decoder>,
    (bytes, piece_bytes): (&[u8], usize),
    budget: &mut WorkBudget,
    each: &mut EachPiece<'_, E>,
) -> Result<(usize, bool), E> {
    budget.begin_slice();
    let mut used = 0;
    loop {
        let rest = &bytes[used..];
        let is_done = match &mut decoder {
            None => {
                let piece = piece_of(rest, piece_bytes);
                each(piece, budget)?;
                used += piece.len();
                used == bytes.len()
            }
            Some(decoder) if decoder.has_more(rest) => {
                let mut read = Ok(());
                let step = decoder.step(rest, budget, |plain, budget| read = each(plain, budget));
                read?;
                used += step?;
                !decoder.has_more(&bytes[used..])
            }
            Some(_) => true,
        };
        if is_done || budget.is_slice_spent() {
            return Ok((used, is_done));
        }
    }
}

/// At most the first `most` bytes. They end with a line if possible, because a cut event costs a copy of it.
fn piece_of(bytes: &[u8], most: usize) -> &[u8] {
    match bytes.get(..most) {
        Some(piece) => &piece[..memchr::memrchr(b'\n', piece).map_or(most, |at| at + 1)],
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_piece_ends_with_its_last_line() {
        for (bytes, piece) in [("ab\ncd\nef", "ab\n"), ("abcdefg", "abcde"), ("ab\nc", "ab\nc"), ("ab\ncd", "ab\n")] {
            assert_eq!(piece_of(bytes.as_bytes(), 5), piece.as_bytes(), "{bytes:?}");
        }
    }

    const EVENTS: [&str; 3] = ["data: one\n\n", "data: two\n\n", "data: three\n\n"];

    /// Each event compressed and flushed separately: (encoding, the bytes of each event).
    fn encoded() -> Vec<(&'static str, Vec<Vec<u8>>)> {
        fn steps<W: Write>(mut encoder: W, out: impl Fn(&mut W) -> &mut Vec<u8>) -> Vec<Vec<u8>> {
            EVENTS
                .iter()
                .map(|event| {
                    encoder.write_all(event.as_bytes()).unwrap();
                    encoder.flush().unwrap();
                    std::mem::take(out(&mut encoder))
                })
                .collect()
        }
        let level = flate2::Compression::default();
        // Output of brotli's reference encoder for `EVENTS`, because no dependency can encode brotli.
        let brotli: [&[u8]; 3] = [
            b"\x0b\x05\x80data: one\n\n",
            b"\x50\x00\x00\x40\x5a\xe1\x8d\xee\x4e\x11\xa2\x4a\x04\xb6\x60\x00",
            b"\x60\x00\x00\x40\x5a\xa1\x0c\x4d\x4e\x15\x20\x4b\x00\x6a\x05\x03",
        ];
        vec![
            ("br", brotli.map(<[u8]>::to_vec).to_vec()),
            ("identity", EVENTS.iter().map(|e| e.as_bytes().to_vec()).collect()),
            ("gzip", steps(flate2::write::GzEncoder::new(Vec::new(), level), |e| e.get_mut())),
            ("deflate", steps(flate2::write::ZlibEncoder::new(Vec::new(), level), |e| e.get_mut())),
            ("deflate", steps(flate2::write::DeflateEncoder::new(Vec::new(), level), |e| e.get_mut())),
            ("zstd", steps(::zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap(), |e| e.get_mut())),
        ]
    }

    /// The decoder's output for these reads, and the result of the last.
    fn decoded(decoder: &mut Decoder, budget: &mut WorkBudget, reads: &[&[u8]]) -> (Vec<u8>, Result<(), DecodeError>) {
        let mut seen = Vec::new();
        let read = reads.iter().try_for_each(|read| {
            budget.receive(read.len());
            decoder.push(read, budget, |plain, _| {
                seen.extend_from_slice(plain);
                true
            })
        });
        (seen, read)
    }

    fn gzipped(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn an_event_is_seen_in_the_read_that_delivered_it() {
        for (encoding, reads) in encoded() {
            let mut decoder = Decoder::for_encoding(encoding.as_bytes()).unwrap();
            for (read, event) in reads.iter().zip(EVENTS) {
                let (seen, _) = decoded(&mut decoder, &mut WorkBudget::default(), &[read]);
                assert_eq!(String::from_utf8(seen).unwrap(), event, "{encoding}");
            }
        }
    }

    #[test]
    fn a_body_fed_byte_by_byte_decodes_to_the_same_text() {
        for (encoding, reads) in encoded() {
            let mut decoder = Decoder::for_encoding(encoding.as_bytes()).unwrap();
            let body = reads.concat();
            let singly: Vec<&[u8]> = body.chunks(1).collect();
            let (seen, read) = decoded(&mut decoder, &mut WorkBudget::default(), &singly);
            assert_eq!((String::from_utf8(seen).unwrap(), read), (EVENTS.concat(), Ok(())), "{encoding}");
        }
    }

    #[test]
    fn text_longer_than_a_piece_comes_whole_whatever_its_length() {
        for length in [MAX_PIECE_BYTES - 1, MAX_PIECE_BYTES, MAX_PIECE_BYTES + 1, 2 * MAX_PIECE_BYTES, 300_000] {
            let text: Vec<u8> = (0..length).map(|at| b'a' + (at * at % 23) as u8).collect();
            let level = flate2::Compression::fast();
            let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
            zlib.write_all(&text).unwrap();
            let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), level);
            raw.write_all(&text).unwrap();
            for (encoding, body) in [
                ("gzip", gzipped(&text)),
                ("deflate", zlib.finish().unwrap()),
                ("deflate", raw.finish().unwrap()),
                ("zstd", ::zstd::encode_all(&text[..], 1).unwrap()),
            ] {
                for read in [body.len(), 4_096, 7] {
                    let mut decoder = Decoder::for_encoding(encoding.as_bytes()).unwrap();
                    let reads: Vec<&[u8]> = body.chunks(read).collect();
                    let (seen, outcome) = decoded(&mut decoder, &mut WorkBudget::default(), &reads);
                    assert_eq!(
                        (seen == text, outcome),
                        (true, Ok(())),
                        "{length} bytes of {encoding} in reads of {read}"
                    );
                }
            }
        }
    }

    #[test]
    fn members_of_gzip_and_frames_of_zstd_are_one_text_and_their_fields_are_passed_over() {
        let named = b"\x1f\x8b\x08\x1e\0\0\0\0\0\x03\x02\0exname\0comment\0\xab\xcd";
        let bare = gzipped(b"one ");
        let member = [&named[..], &bare[10..]].concat();
        let body = [&member[..], &gzipped(b""), &gzipped(b"two")].concat();
        for cut in 0..=body.len() {
            let mut gzip = Decoder::for_encoding(b"gzip").unwrap();
            let seen = decoded(&mut gzip, &mut WorkBudget::default(), &[&body[..cut], &body[cut..]]);
            assert_eq!(seen, (b"one two".to_vec(), Ok(())), "cut at {cut}");
        }
        let frames = [&b"one "[..], b"", b"two"].map(|text| ::zstd::encode_all(text, 3).unwrap()).concat();
        for cut in 0..=frames.len() {
            let mut zstd = Decoder::for_encoding(b"zstd").unwrap();
            let seen = decoded(&mut zstd, &mut WorkBudget::default(), &[&frames[..cut], &frames[cut..]]);
            assert_eq!(seen, (b"one two".to_vec(), Ok(())), "cut at {cut}");
        }
    }

    #[test]
    fn rubbish_is_refused_and_unknown_codings_are_not_guessed() {
        let refused = |encoding: &str, body: &[u8]| {
            let mut decoder = Decoder::for_encoding(encoding.as_bytes()).unwrap();
            decoded(&mut decoder, &mut WorkBudget::default(), &[body]).1
        };
        let malformed = Err(DecodeError::Malformed);
        assert_eq!(refused("gzip", b"data: not gzip at all\n\n"), malformed);
        let mut wrong = gzipped(b"text");
        let at = wrong.len() - 8;
        wrong[at] ^= 1;
        assert_eq!(refused("gzip", &wrong), malformed, "a wrong checksum");
        assert_eq!(refused("gzip", &[&gzipped(b"text")[..], b"more"].concat()), malformed, "no member");
        assert_eq!(refused("gzip", b"\x1f\x8b\x08\x20\0\0\0\0\0\x03"), malformed, "a flag that is reserved");
        assert_eq!(refused("deflate", b"\x03\0more"), malformed, "bytes behind the end");
        // A window of 2^30 bytes, an empty block, and text.
        assert_eq!(refused("br", b"\x11\x1e\x03"), malformed);
        assert!(Decoder::for_encoding(b"gzip, br").is_none());
        assert!(Decoder::for_encoding(b"snappy").is_none());
    }

    #[test]
    fn a_bomb_exhausts_the_budget_whole_or_in_pieces() {
        let whole = ::zstd::encode_all(&vec![0; 64 << 20][..], 3).unwrap();
        let pieces = gzipped(&[b'\n'; 1 << 18]).repeat(100);
        for (encoding, body) in [("zstd", whole), ("gzip", pieces)] {
            let mut decoder = Decoder::for_encoding(encoding.as_bytes()).unwrap();
            let mut budget = WorkBudget::default();
            let (seen, read) = decoded(&mut decoder, &mut budget, &[&body]);
            assert_eq!(read, Err(DecodeError::OutOfBudget), "{encoding}");
            let most = crate::measure::work_budget::MAX_SAVED_WORK + 20_000 + body.len() as u64 * 32;
            assert!(seen.len() as u64 <= most, "{encoding}: {} bytes", seen.len());
            let again = decoder.push(&body, &mut budget, |_, _| true);
            assert_eq!(again, Err(DecodeError::OutOfBudget), "{encoding}: and it stays so");
        }
    }

    /// A stream of 20 bytes that requests and inverse-transforms the largest context map.
    #[test]
    fn what_brotli_allocates_is_paid_for() {
        let (_, reads) = encoded().into_iter().find(|(encoding, _)| *encoding == "br").unwrap();
        let (mut decoder, mut budget) = (Decoder::for_encoding(b"br").unwrap(), WorkBudget::default());
        assert_eq!(decoded(&mut decoder, &mut budget, &[&reads.concat()]).1, Ok(()));
        let of_bytes = reads.concat().len() as u64 * 16 + EVENTS.concat().len() as u64 * 4 + 3 * price::DECODER_CALL;
        assert!(budget.spent() > of_bytes + 2 * price::NEW_DECODER, "{}", budget.spent());
    }
}
