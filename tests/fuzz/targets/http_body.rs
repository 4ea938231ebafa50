//! The chunked coding: any split decodes to the same payload, by the standard's grammar, and the encoder's output
//! decodes to its input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::net::http1::body::ChunkWriter;
use streamgauge_fuzz::net::http1::{BodyDecoder, Framing, Head};
use streamgauge_fuzz::split::{same, ways};

#[derive(Debug, PartialEq)]
struct Decoded {
    payload: Vec<u8>,
    /// Bytes that belonged to the body.
    used: usize,
    done: bool,
    trailers: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

fuzz_target!(|bytes: &[u8]| {
    // `None` is a refusal; where in the body it comes depends on the split, that it comes does not.
    let decoded = same(bytes, |pieces| decode(Framing::Chunked, pieces));
    assert_eq!(decoded, by_the_book(bytes));
    for length in [0, 7, bytes.len() as u64, bytes.len() as u64 + 1] {
        let decoded = same(bytes, |pieces| decode(Framing::Length(length), pieces)).expect("any bytes are a body");
        let most = bytes.len().min(length as usize);
        assert_eq!((&decoded.payload[..], decoded.used), (&bytes[..most], most));
        assert_eq!(decoded.done, most as u64 == length);
    }
    for pieces in ways(bytes) {
        written_and_read(&pieces, bytes);
    }
    if let Some(Decoded { payload, done: true, .. }) = &decoded {
        written_and_read(&[payload], payload);
    }
});

fn decode(framing: Framing, pieces: &[&[u8]]) -> Option<Decoded> {
    let (mut decoder, mut payload, mut used) = (BodyDecoder::new(framing), Vec::new(), 0);
    for piece in pieces {
        used += decoder.decode(piece, |bytes| payload.extend_from_slice(bytes)).ok()?;
    }
    Some(Decoded { payload, used, done: decoder.is_done(), trailers: decoder.trailers().map(fields) })
}

fn fields(head: &Head) -> Vec<(Vec<u8>, Vec<u8>)> {
    head.end_to_end().map(|(name, value, _)| (name.to_vec(), value.to_vec())).collect()
}

/// RFC 9112, section 7.1, with the limits of ours: extensions to four kilobytes, sizes to fifteen digits.
fn by_the_book(bytes: &[u8]) -> Option<Decoded> {
    let mut decoded = Decoded { payload: Vec::new(), used: 0, done: false, trailers: None };
    let mut rest = bytes;
    loop {
        let Some(line) = line(rest) else {
            // A partial line may already be too long or invalid.
            let hopeless = rest.len() > 4096 || rest.first().is_some_and(|first| !first.is_ascii_hexdigit());
            decoded.used = bytes.len();
            return (!hopeless).then_some(decoded);
        };
        let text = line.strip_suffix(b"\r").filter(|line| line.len() < 4096)?;
        let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (size, extension) = text.split_at(digits);
        let extended = extension.is_empty() || extension.trim_ascii_start().starts_with(b";");
        let printable = extension.iter().all(|byte| *byte == b'\t' || *byte >= 0x20 && *byte != 0x7f);
        if !extended || !printable || !(1..=15).contains(&digits) {
            return None;
        }
        let size = u64::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        rest = &rest[line.len() + 1..];
        if size == 0 {
            break;
        }
        let payload = &rest[..rest.len().min(usize::try_from(size).ok()?)];
        decoded.payload.extend_from_slice(payload);
        rest = &rest[payload.len()..];
        if (payload.len() as u64) < size || b"\r\n".starts_with(rest) {
            let ended = rest == b"\r\n";
            if !ended {
                decoded.used = bytes.len();
                return Some(decoded);
            }
        }
        rest = rest.strip_prefix(b"\r\n")?;
    }
    // The trailers are the head's business; here only where they end.
    let end = if rest.starts_with(b"\r\n") { Some(2) } else { position(rest, b"\r\n\r\n").map(|at| at + 4) };
    let trailers = &rest[..end.unwrap_or(rest.len())];
    let unfinished = trailers.strip_suffix(b"\r").unwrap_or(trailers);
    let bare =
        unfinished.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || unfinished[at - 1] != b'\r'));
    if bare || trailers.len() > 16 * 1024 {
        return None;
    }
    if end.is_some_and(|end| end > 2) {
        decoded.trailers = Some(fields(&Head::parse_trailers(trailers).ok()?));
    }
    decoded.used = bytes.len() - rest.len() + trailers.len();
    decoded.done = end.is_some();
    Some(decoded)
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    bytes.iter().position(|byte| *byte == b'\n').map(|end| &bytes[..end])
}

fn position(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

fn written_and_read(pieces: &[&[u8]], payload: &[u8]) {
    // As the way to the client does it: room first, the size when the length is known.
    let mut ahead = b"HEAD".to_vec();
    let mut wire = Vec::new();
    for piece in pieces {
        let at = ChunkWriter::begin(&mut ahead);
        ahead.extend_from_slice(piece);
        let start = ChunkWriter::end(&mut ahead, at);
        assert!(!ahead.starts_with(b"HEAD") || ahead[start..].starts_with(b"HEAD"), "what stood before stays before");
        wire.extend_from_slice(&ahead[start..]);
        ahead.clear();
    }
    ChunkWriter::finish(&mut wire, None);
    let wire = wire.strip_prefix(b"HEAD").filter(|_| !pieces.is_empty()).unwrap_or(&wire);
    let read = decode(Framing::Chunked, &[wire]).expect("what was written can be read");
    assert_eq!((&read.payload[..], read.used, read.done), (payload, wire.len(), true));
    // As the way to the upstream does it: the size first.
    let mut wire = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        ChunkWriter::head(&mut wire, piece.len());
        wire.extend_from_slice(piece);
        wire.extend_from_slice(b"\r\n");
    }
    ChunkWriter::finish(&mut wire, None);
    assert_eq!(decode(Framing::Chunked, &[&wire]).expect("what was written can be read").payload, payload);
}
