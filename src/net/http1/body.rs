//! Message bodies: decodes and applies their framing.

use super::framing::Framing;
use super::head::Head;
use super::head_error::{HeadError, MAX_HEAD};

const MAX_CHUNK_LINE_BYTES: usize = 4 * 1024;
/// Digits of the size of a chunk that fits into a read.
const MAX_PLAIN_DIGITS: usize = 5;
/// As large as a head, because a client with many fields may send many trailers.
const MAX_TRAILER_BYTES: usize = MAX_HEAD;

/// Reason for rejecting a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The chunk size is not plain hexadecimal or does not fit.
    #[error("malformed body: a chunk size that is not plain hexadecimal")]
    ChunkSize,
    /// A line of the chunked coding lacks its CR LF.
    #[error("malformed body: a chunk does not end at its size")]
    ChunkEnd,
    /// Chunk extensions or trailers exceed their limit.
    #[error("malformed body: chunk extensions or trailers are too large")]
    TooLarge,
    /// The trailers are not valid fields.
    #[error("malformed body: trailers that are not fields")]
    Trailers,
}

/// Removes the framing from one body.
#[derive(Debug)]
pub struct BodyDecoder {
    state: BodyState,
    /// The start of a line that a read cut in two.
    line: Vec<u8>,
    trailers: Option<Box<Head>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    Length(u64),
    UntilClose,
    ChunkHead,
    Chunk(u64),
    /// The CR LF after a chunk. `true` once the CR has been read.
    ChunkEnd(bool),
    Trailers,
    Done,
}

impl BodyDecoder {
    /// Creates a decoder at the start of a body.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => BodyState::Done,
            Framing::Length(length) => BodyState::Length(length),
            Framing::Chunked => BodyState::ChunkHead,
            Framing::UntilClose => BodyState::UntilClose,
        };
        Self { state, line: Vec::new(), trailers: None }
    }

    /// Returns `true` once the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == BodyState::Done
    }

    /// Handles a close by the peer. Returns `true` if the close is a proper end of the body.
    pub fn ends_with_close(&self) -> bool {
        matches!(self.state, BodyState::Done | BodyState::UntilClose)
    }

    /// Returns the trailers of a chunked body, if it had any.
    pub fn trailers(&self) -> Option<&Head> {
        self.trailers.as_deref()
    }

    /// Decodes `bytes`, passes the payload to `payload`, and returns how many bytes belong to this body. The remaining
    /// bytes belong to the next message.
    ///
    /// # Errors
    /// Returns [`BodyError`] if the bytes violate the framing.
    pub fn decode(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> Result<usize, BodyError> {
        let mut at = 0;
        while at < bytes.len() && self.state != BodyState::Done {
            let rest = &bytes[at..];
            at += match self.state {
                BodyState::Length(left) | BodyState::Chunk(left) => {
                    let n = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
                    payload(&rest[..n]);
                    let left = left - n as u64;
                    self.state = match (self.state, left) {
                        (BodyState::Length(_), 0) => BodyState::Done,
                        (BodyState::Length(_), left) => BodyState::Length(left),
                        (_, 0) => BodyState::ChunkEnd(false),
                        (_, left) => BodyState::Chunk(left),
                    };
                    n
                }
                BodyState::UntilClose => {
                    payload(rest);
                    rest.len()
                }
                BodyState::ChunkEnd(cr) => {
                    self.state = match (cr, rest[0]) {
                        (false, b'\r') => BodyState::ChunkEnd(true),
                        (true, b'\n') => BodyState::ChunkHead,
                        _ => return Err(BodyError::ChunkEnd),
                    };
                    1
                }
                BodyState::ChunkHead => match self.line.is_empty().then(|| whole_chunk(rest)).flatten() {
                    Some((data, end)) => {
                        payload(data);
                        end
                    }
                    None => self.chunk_head(rest)?,
                },
                BodyState::Trailers => self.trailer_line(rest)?,
                BodyState::Done => 0,
            };
        }
        Ok(at)
    }

    fn chunk_head(&mut self, rest: &[u8]) -> Result<usize, BodyError> {
        let end = memchr::memchr(b'\n', rest);
        if self.line.len() + end.unwrap_or(rest.len()) > MAX_CHUNK_LINE_BYTES {
            return Err(BodyError::TooLarge);
        }
        let Some(end) = end else {
            self.line.extend_from_slice(rest);
            // A plain size line is short: reject garbage now instead of after 4 KiB of it.
            if let [first, ..] = self.line[..]
                && !first.is_ascii_hexdigit()
            {
                return Err(BodyError::ChunkSize);
            }
            return Ok(rest.len());
        };
        let size = if self.line.is_empty() {
            chunk_size(&rest[..end])
        } else {
            self.line.extend_from_slice(&rest[..end]);
            chunk_size(&self.line)
        }?;
        self.line.clear();
        self.state = if size == 0 { BodyState::Trailers } else { BodyState::Chunk(size) };
        Ok(end + 1)
    }

    fn trailer_line(&mut self, rest: &[u8]) -> Result<usize, BodyError> {
        if self.line.is_empty() && rest.starts_with(b"\r\n") {
            self.state = BodyState::Done;
            return Ok(2);
        }
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        if self.line.len() + end > MAX_TRAILER_BYTES {
            return Err(BodyError::TooLarge);
        }
        self.line.extend_from_slice(&rest[..end]);
        if self.line == b"\r\n" {
            self.state = BodyState::Done;
        } else if self.line.ends_with(b"\r\n\r\n") {
            self.trailers =
                Some(Box::new(Head::parse_trailers(&self.line).map_err(|_: HeadError| BodyError::Trailers)?));
            self.state = BodyState::Done;
            self.line = Vec::new();
        } else if self.line.ends_with(b"\n") && !self.line.ends_with(b"\r\n") {
            return Err(BodyError::Trailers);
        }
        Ok(end)
    }
}

/// The data and the end of the chunk at the start of `bytes`, if the chunk is whole and plainly written. A burst has
/// hundreds per read.
#[inline]
fn whole_chunk(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let mut size = 0;
    for (digits, byte) in bytes.iter().take(MAX_PLAIN_DIGITS + 1).enumerate() {
        match char::from(*byte).to_digit(16) {
            Some(digit) => size = size << 4 | digit as usize,
            None => {
                let rest = bytes.get(digits..)?.strip_prefix(b"\r\n")?;
                let (data, rest) = rest.split_at_checked(size).filter(|_| size > 0)?;
                return rest.starts_with(b"\r\n").then_some((data, digits + size + 4));
            }
        }
    }
    None
}

/// Parses the size from a chunk's first line (without its LF). Extensions are skipped, because they are hop-by-hop.
fn chunk_size(line: &[u8]) -> Result<u64, BodyError> {
    let line = line.strip_suffix(b"\r").ok_or(BodyError::ChunkSize)?;
    let (size, extension) = match line.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        Some(end) => line.split_at(end),
        None => (line, &b""[..]),
    };
    let plain = (extension.is_empty() || extension.trim_ascii_start().starts_with(b";"))
        && extension.iter().all(|byte| matches!(byte, b'\t' | 0x20..=0x7e | 0x80..));
    // At most 15 digits: no chunk is a petabyte, and arithmetic on the size cannot overflow.
    if !plain || size.is_empty() || size.len() > 15 {
        return Err(BodyError::ChunkSize);
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(u64::from);
    size.iter().try_fold(0, |sum, byte| Some(sum << 4 | digit(byte)?)).ok_or(BodyError::ChunkSize)
}

/// Bytes that [`ChunkWriter`] reserves before a payload for its size line.
const SIZE_LINE_BYTES: usize = 18;

/// Formats a chunk's size line, right-aligned in its buffer. Also returns its start.
fn size_line(length: usize) -> ([u8; SIZE_LINE_BYTES], usize) {
    let mut digits = [0; SIZE_LINE_BYTES];
    digits[SIZE_LINE_BYTES - 2..].copy_from_slice(b"\r\n");
    let mut first = SIZE_LINE_BYTES - 2;
    let mut rest = length;
    while rest > 0 {
        first -= 1;
        digits[first] = b"0123456789abcdef"[rest % 16];
        rest /= 16;
    }
    (digits, first)
}

/// Applies the chunked coding. Each read becomes one chunk in one contiguous buffer.
///
/// ```text
/// |.....14a CR LF| payload ... |CR LF|
///       ^ start of output: the size line goes in front once the payload's length is known
/// ```
#[derive(Debug)]
pub struct ChunkWriter;

impl ChunkWriter {
    /// Reserves bytes for a size line; the caller appends the payload after it. Returns the start of the reserved
    /// bytes.
    pub fn begin(out: &mut Vec<u8>) -> usize {
        let at = out.len();
        out.extend_from_slice(&[0; SIZE_LINE_BYTES]);
        at
    }

    /// Closes the chunk begun at `at` and moves any earlier bytes up to its size line, so that the output stays
    /// contiguous. Returns the new start. An empty payload writes no chunk.
    pub fn end(out: &mut Vec<u8>, at: usize) -> usize {
        let length = out.len() - at - SIZE_LINE_BYTES;
        if length == 0 {
            out.truncate(at);
            return 0;
        }
        out.extend_from_slice(b"\r\n");
        let (digits, first) = size_line(length);
        out[at + first..at + SIZE_LINE_BYTES].copy_from_slice(&digits[first..]);
        out.copy_within(..at, first);
        first
    }

    /// Writes the size line of a chunk of `length` bytes, for a payload whose length is known in advance.
    pub fn head(out: &mut Vec<u8>, length: usize) {
        let (digits, first) = size_line(length);
        out.extend_from_slice(&digits[first..]);
    }

    /// Writes the last chunk and the trailers.
    pub fn finish(out: &mut Vec<u8>, trailers: Option<&Head>) {
        out.extend_from_slice(b"0\r\n");
        if let Some(trailers) = trailers {
            trailers.write_fields(out, |known, hop| !hop && known == super::KnownHeader::Other);
        }
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(framing: Framing, reads: &[&[u8]]) -> Result<(Vec<u8>, usize, BodyDecoder), BodyError> {
        let mut decoder = BodyDecoder::new(framing);
        let (mut body, mut used) = (Vec::new(), 0);
        for read in reads {
            used += decoder.decode(read, |payload| body.extend_from_slice(payload))?;
        }
        Ok((body, used, decoder))
    }

    const CHUNKED: &[u8] = b"5\r\nhello\r\n1;ext=\"x\"\r\n \r\n00B\r\nwide\r\nworld\r\n0\r\nX-Sum: 7\r\nb: 8\r\n\r\n";

    #[test]
    fn a_chunked_body_decodes_the_same_for_every_cut_and_stops_at_its_end() {
        let wire = [CHUNKED, b"NEXT"].concat();
        for cut in 0..wire.len() {
            let (body, used, decoder) = decode(Framing::Chunked, &[&wire[..cut], &wire[cut..]]).unwrap();
            assert_eq!((&body[..], used), (&b"hello wide\r\nworld"[..], CHUNKED.len()), "cut at {cut}");
            let trailers = decoder.trailers().unwrap();
            assert_eq!((trailers.value("x-sum"), trailers.value("B")), (Some(&b"7"[..]), Some(&b"8"[..])));
            assert!(decoder.is_done());
        }
        let singly: Vec<&[u8]> = CHUNKED.chunks(1).collect();
        assert_eq!(decode(Framing::Chunked, &singly).unwrap().0, b"hello wide\r\nworld");
    }

    #[test]
    fn bad_chunks_are_refused() {
        for bad in [
            "x\r\n",
            "\r\n",
            "5 5\r\n",
            "5 \r\n",
            "0x5\r\n",
            "-1\r\n",
            "+5\r\n",
            "5\n",
            " 5\r\n",
            "1234567890abcdef0\r\n",
            "5\r\nhelloX",
            "5\r\nhello\n",
            "1;a\0\r\n",
            "1\r\r\n",
            "0\r\nno colon\r\n\r\n",
            "0\r\nX: 1\n\r\n",
            "0\r\n folded: 1\r\n\r\n",
        ] {
            assert!(decode(Framing::Chunked, &[bad.as_bytes()]).is_err(), "{bad:?}");
            let singly: Vec<&[u8]> = bad.as_bytes().chunks(1).collect();
            assert!(decode(Framing::Chunked, &singly).is_err(), "{bad:?} byte by byte");
        }
        let endless = format!("5;{}", "x".repeat(MAX_CHUNK_LINE_BYTES));
        let ended = format!("{endless}\r\n");
        for reads in [&[&endless[..]][..], &[&ended], &[&ended[..3_000], &ended[3_000..]]] {
            let reads: Vec<&[u8]> = reads.iter().map(|read| read.as_bytes()).collect();
            assert_eq!(decode(Framing::Chunked, &reads).unwrap_err(), BodyError::TooLarge);
        }
    }

    #[test]
    fn a_length_is_kept_to_and_a_close_ends_only_what_has_no_length() {
        let (body, used, decoder) = decode(Framing::Length(5), &[b"he", b"llo, next"]).unwrap();
        assert_eq!((&body[..], used, decoder.is_done()), (&b"hello"[..], 5, true));
        assert!(!decode(Framing::Length(5), &[b"he"]).unwrap().2.ends_with_close());
        assert!(!decode(Framing::Chunked, &[b"2\r\nhe\r\n"]).unwrap().2.ends_with_close());
        assert!(decode(Framing::UntilClose, &[b"he"]).unwrap().2.ends_with_close());
        assert!(BodyDecoder::new(Framing::Length(0)).is_done());
    }

    #[test]
    fn what_is_written_in_chunks_is_read_back_and_is_one_piece_with_what_stood_before() {
        for length in [0, 1, 15, 16, 330, 65_536] {
            let payload = vec![b'x'; length];
            let mut out = b"HEAD".to_vec();
            let at = ChunkWriter::begin(&mut out);
            out.extend_from_slice(&payload);
            let start = ChunkWriter::end(&mut out, at);
            ChunkWriter::finish(&mut out, None);
            let wire = out[start..].strip_prefix(b"HEAD").unwrap();
            let (body, used, decoder) = decode(Framing::Chunked, &[wire]).unwrap();
            assert_eq!((body.len(), used, decoder.is_done()), (length, wire.len(), true));
        }
    }
}
