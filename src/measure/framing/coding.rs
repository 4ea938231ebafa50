//! `Content-Encoding`, undone on the observer's copy of the bytes. What the client gets stays compressed.
//!
//! Every decoder is flushed after each read, so that an event is seen in the read that delivered it.

use std::io::{self, Write};

/// The most that one [`STEP`] of input may unfold to. No stream of text comes near it (a ratio of 2,000); a
/// decompression bomb does, and ends the reading of its stream.
const MAX_UNFOLDED: usize = 1 << 20;
/// How many times its own size a body may unfold to in the long run. Whole streams of like events shrink to a fiftieth;
/// gzip's utmost is a thousandth, and reading that takes time for which other streams would have to wait.
const MAX_RATIO: usize = 250;
/// Input is fed in steps of this many bytes, so that [`MAX_UNFOLDED`] bounds the memory of one decoder.
const STEP: usize = 512;
/// What a brotli stream with a window beyond RFC 7932's 16 MiB begins with, in the low seven bits of its first byte: an
/// extension that no browser speaks, and up to a gigabyte of memory.
const BROTLI_LARGE_WINDOW: u8 = 0x11;
/// The largest zstd window accepted: 8 MiB, the size that RFC 8878 asks every decoder to take.
const ZSTD_WINDOW_LOG: u32 = 23;

/// An incremental decoder for one body.
pub struct Decoder(Kind);

enum Kind {
    Identity,
    Gzip(flate2::write::MultiGzDecoder<Unfolded>),
    /// `deflate` is zlib by the book and raw in the wild; the first byte tells.
    DeflateUnknown,
    Zlib(flate2::write::ZlibDecoder<Unfolded>),
    Deflate(flate2::write::DeflateDecoder<Unfolded>),
    /// The first byte tells how much memory is asked for.
    BrotliUnknown,
    Brotli(Box<brotli_decompressor::DecompressorWriter<Unfolded>>),
    Zstd(zstd::stream::write::Decoder<'static, Unfolded>),
}

/// The bytes are not what their `Content-Encoding` says, or unfold without measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecodable;

impl Decoder {
    /// The decoder for a `Content-Encoding` value; `None` for a coding (or a stack of codings) that is not known.
    pub fn for_encoding(value: &[u8]) -> Option<Self> {
        let value = value.trim_ascii();
        let is = |name: &str| value.eq_ignore_ascii_case(name.as_bytes());
        Some(Self(if value.is_empty() || is("identity") {
            Kind::Identity
        } else if is("gzip") || is("x-gzip") {
            Kind::Gzip(flate2::write::MultiGzDecoder::new(Unfolded::default()))
        } else if is("deflate") {
            Kind::DeflateUnknown
        } else if is("br") {
            Kind::BrotliUnknown
        } else if is("zstd") {
            let mut decoder = zstd::stream::write::Decoder::new(Unfolded::default()).ok()?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).ok()?;
            Kind::Zstd(decoder)
        } else {
            return None;
        }))
    }

    /// Whether the bytes are plain as they are.
    pub fn is_identity(&self) -> bool {
        matches!(self.0, Kind::Identity)
    }

    /// Decodes one read; `each` gets the plain bytes in one or more slices.
    ///
    /// # Errors
    /// [`Undecodable`] when the bytes do not follow the coding.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), Undecodable> {
        match (&self.0, bytes.first()) {
            // RFC 1950: the low four bits are the method 8, the top bit of the window size is never set.
            (Kind::DeflateUnknown, Some(first)) if first & 0x8f == 0x08 => {
                self.0 = Kind::Zlib(flate2::write::ZlibDecoder::new(Unfolded::default()));
            }
            (Kind::DeflateUnknown, Some(_)) => {
                self.0 = Kind::Deflate(flate2::write::DeflateDecoder::new(Unfolded::default()));
            }
            (Kind::BrotliUnknown, Some(first)) if first & 0x7f == BROTLI_LARGE_WINDOW => return Err(Undecodable),
            (Kind::BrotliUnknown, Some(_)) => {
                let decoder = brotli_decompressor::DecompressorWriter::new(Unfolded::default(), 4096);
                self.0 = Kind::Brotli(Box::new(decoder));
            }
            _ => {}
        }
        for step in bytes.chunks(STEP) {
            match &mut self.0 {
                Kind::Identity => {
                    each(bytes);
                    return Ok(());
                }
                Kind::DeflateUnknown | Kind::BrotliUnknown => return Ok(()),
                Kind::Gzip(d) => unfold(d, step, |d| d.get_mut(), &mut each),
                Kind::Zlib(d) => unfold(d, step, |d| d.get_mut(), &mut each),
                Kind::Deflate(d) => unfold(d, step, |d| d.get_mut(), &mut each),
                Kind::Brotli(d) => unfold(d, step, |d| d.get_mut(), &mut each),
                Kind::Zstd(d) => unfold(d, step, |d| d.get_mut(), &mut each),
            }
            .map_err(|_| Undecodable)?;
        }
        Ok(())
    }
}

/// Messages of which each is compressed by itself, as in gRPC. A decoder is made for each: this allocates.
#[derive(Debug)]
pub(super) struct EachAlone {
    /// Empty where no message can be decoded.
    encoding: Box<[u8]>,
    plain: Vec<u8>,
    /// How much more may come: as with one body, so that many small messages cannot do what one large one may not.
    room: usize,
}

impl Default for EachAlone {
    fn default() -> Self {
        Self::new(b"")
    }
}

impl EachAlone {
    /// Messages in this coding.
    pub(super) fn new(encoding: &[u8]) -> Self {
        let known = Decoder::for_encoding(encoding).is_some_and(|decoder| !decoder.is_identity());
        let encoding = if known { encoding } else { b"" };
        Self { encoding: encoding.into(), plain: Vec::new(), room: MAX_UNFOLDED }
    }

    /// One message, plain.
    ///
    /// # Errors
    /// [`Undecodable`] when the coding is not known, the message does not follow it, or it unfolds without measure.
    pub(super) fn unfold(&mut self, message: &[u8]) -> Result<&[u8], Undecodable> {
        let decoder = Decoder::for_encoding(&self.encoding).filter(|decoder| !decoder.is_identity());
        let mut decoder = decoder.ok_or(Undecodable)?;
        let Self { plain, room, .. } = self;
        *room = room.saturating_add(message.len().saturating_mul(MAX_RATIO)).min(MAX_UNFOLDED);
        plain.clear();
        let mut fits = Ok(());
        decoder.push(message, |bytes| match room.checked_sub(bytes.len()) {
            Some(rest) if fits.is_ok() => {
                *room = rest;
                plain.extend_from_slice(bytes);
            }
            _ => fits = Err(Undecodable),
        })?;
        fits.map(|()| &plain[..])
    }
}

fn unfold<D: Write>(
    decoder: &mut D,
    step: &[u8],
    unfolded: impl Fn(&mut D) -> &mut Unfolded,
    each: &mut impl FnMut(&[u8]),
) -> io::Result<()> {
    let room = &mut unfolded(decoder).room;
    *room = (*room + step.len() * MAX_RATIO).min(MAX_UNFOLDED);
    let written = decoder.write_all(step).and_then(|()| decoder.flush());
    let bytes = &mut unfolded(decoder).bytes;
    if !bytes.is_empty() {
        each(bytes);
        bytes.clear();
    }
    written
}

/// The bounded place that a decoder writes to.
struct Unfolded {
    bytes: Vec<u8>,
    /// How much more may come. What is not used up is saved, to [`MAX_UNFOLDED`]: decoders write by the block.
    room: usize,
}

impl Default for Unfolded {
    fn default() -> Self {
        Self { bytes: Vec::new(), room: MAX_UNFOLDED }
    }
}

impl Write for Unfolded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room.checked_sub(bytes.len());
        self.room = room.ok_or(io::ErrorKind::FileTooLarge)?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [&str; 3] = ["data: one\n\n", "data: two\n\n", "data: three\n\n"];

    /// Every event compressed and flushed on its own: (encoding, the bytes that one event became).
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
        // No encoder for brotli is among the dependencies: this is what its reference encoder made of `EVENTS`.
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
            ("zstd", steps(zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap(), |e| e.get_mut())),
        ]
    }

    #[test]
    fn an_event_is_seen_in_the_read_that_delivered_it() {
        for (encoding, reads) in encoded() {
            let mut decoder = Decoder::for_encoding(encoding.as_bytes()).unwrap();
            for (read, event) in reads.iter().zip(EVENTS) {
                let mut seen = Vec::new();
                decoder.push(read, |plain| seen.extend_from_slice(plain)).unwrap();
                assert_eq!(String::from_utf8(seen).unwrap(), event, "{encoding}");
            }
        }
    }

    #[test]
    fn a_body_fed_byte_by_byte_decodes_to_the_same_text() {
        for (encoding, reads) in encoded() {
            let mut decoder = Decoder::for_encoding(encoding.as_bytes()).unwrap();
            let mut seen = Vec::new();
            for byte in reads.concat() {
                decoder.push(&[byte], |plain| seen.extend_from_slice(plain)).unwrap();
            }
            assert_eq!(String::from_utf8(seen).unwrap(), EVENTS.concat(), "{encoding}");
        }
    }

    #[test]
    fn rubbish_and_bombs_are_refused_and_unknown_codings_are_not_guessed() {
        let mut decoder = Decoder::for_encoding(b"gzip").unwrap();
        assert_eq!(decoder.push(b"data: not gzip at all\n\n", |_| ()), Err(Undecodable));

        let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        bomb.write_all(&vec![0; 64 << 20]).unwrap();
        let bomb = bomb.finish().unwrap();
        let mut decoder = Decoder::for_encoding(b"zstd").unwrap();
        assert_eq!(decoder.push(&bomb, |plain| assert!(plain.len() <= MAX_UNFOLDED)), Err(Undecodable));

        // Each piece is small enough; together they are not.
        let mut line = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        line.write_all(&[b'\n'; 1 << 18]).unwrap();
        let (line, mut decoder, mut read) = (line.finish().unwrap(), Decoder::for_encoding(b"gzip").unwrap(), 0);
        let outcome = (0..100).try_for_each(|_| decoder.push(&line, |plain| read += plain.len()));
        assert_eq!((outcome, read / MAX_UNFOLDED), (Err(Undecodable), 1));

        // A window of 2^30 bytes, an empty block, and text.
        let mut decoder = Decoder::for_encoding(b"br").unwrap();
        assert_eq!(decoder.push(b"\x11\x1e\x03", |_| ()), Err(Undecodable));

        assert!(Decoder::for_encoding(b"gzip, br").is_none());
        assert!(Decoder::for_encoding(b"snappy").is_none());
    }
}
