//! gRPC messages in HTTP/2 DATA: a compression flag (one byte), the length (four bytes, big endian), the message.
//! Message boundaries are independent of DATA frames.
//!
//! Each message is compressed separately with the `grpc-encoding` of the headers. One decoder serves all messages of
//! a stream.

use super::coding::PerMessageDecoder;
use super::length_prefixed::{LengthPrefix, LengthPrefixed};
use super::{Event, FramingError, PayloadKind};
use crate::measure::work_budget::WorkBudget;

/// Reads gRPC messages.
pub type GrpcFramer = LengthPrefixed<GrpcPrefix>;

/// The five-byte message prefix, and the decoder for compressed messages.
#[derive(Debug, Default)]
pub struct GrpcPrefix {
    coding: PerMessageDecoder,
}

impl GrpcFramer {
    /// Creates a reader for this `grpc-encoding`; empty if the header is absent.
    pub fn encoded(encoding: &[u8]) -> Self {
        Self::of(GrpcPrefix { coding: PerMessageDecoder::new(encoding) })
    }
}

impl LengthPrefix for GrpcPrefix {
    const MIN_PREFIX_BYTES: usize = 5;

    fn length(head: &[u8]) -> Result<usize, FramingError> {
        match *head {
            [0 | 1, a, b, c, d, ..] => {
                Ok(Self::MIN_PREFIX_BYTES.saturating_add(u32::from_be_bytes([a, b, c, d]) as usize))
            }
            _ => Err(FramingError::Malformed),
        }
    }

    fn event<'a>(&'a mut self, frame: &'a [u8], budget: &mut WorkBudget) -> Result<Event<'a>, FramingError> {
        let (head, data) = frame.split_at_checked(Self::MIN_PREFIX_BYTES).ok_or(FramingError::Malformed)?;
        let data = match head[0] {
            0 => data,
            _ => self.coding.unfold(data, budget)?,
        };
        Ok(Event { name: b"", data, mark: PayloadKind::Plain })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn messages(encoding: &str, reads: &[&[u8]]) -> (Vec<Vec<u8>>, Result<(), FramingError>) {
        let (mut grpc, mut seen) = (GrpcFramer::encoded(encoding.as_bytes()), Vec::new());
        let (mut read, mut budget) = (Ok(()), WorkBudget::default());
        for bytes in reads {
            budget.receive(bytes.len());
            read = grpc.push(bytes, &mut budget, |event, _| seen.push(event.data.to_vec()));
        }
        (seen, read)
    }

    fn gzipped(message: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(message).unwrap();
        encoder.finish().unwrap()
    }

    fn deflated(message: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(message).unwrap();
        encoder.finish().unwrap()
    }

    fn framed(compressed: bool, message: &[u8]) -> Vec<u8> {
        [&[u8::from(compressed)], &(message.len() as u32).to_be_bytes()[..], message].concat()
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let body = [framed(false, b"ab"), framed(true, &gzipped(b"z")), framed(false, b""), framed(false, b"cde")];
        let body = [&body.concat()[..], b"\0\0"].concat();
        let whole = messages("gzip", &[&body]);
        assert_eq!(whole, ([&b"ab"[..], b"z", b"", b"cde"].map(<[u8]>::to_vec).to_vec(), Ok(())));
        for cut in 0..body.len() {
            assert_eq!(messages("gzip", &[&body[..cut], &body[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(messages("gzip", &body.chunks(1).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn each_compressed_message_is_decoded_by_itself() {
        let zstd = |message: &[u8]| zstd::encode_all(message, 3).unwrap();
        for name in ["gzip", "deflate", "zstd"] {
            let encode = |message: &[u8]| match name {
                "gzip" => gzipped(message),
                "deflate" => deflated(message),
                _ => zstd(message),
            };
            let body = [framed(true, &encode(b"one")), framed(true, &encode(b"two")), framed(false, b"three")].concat();
            assert_eq!(
                messages(name, &[&body]),
                (vec![b"one".into(), b"two".into(), b"three".into()], Ok(())),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_no_message_or_too_large_ends_the_reading() {
        assert_eq!(messages("", &[b"\0\0\0\0\x01a", b"data: {}"]).1, Err(FramingError::Malformed));
        assert_eq!(messages("", &[b"\0\xff\xff\xff\xff"]).1, Err(FramingError::TooLarge));
        let (seen, read) = messages("", &[b"\x02\0\0\0\x01a", b"\0\0\0\0\x01a"]);
        assert_eq!((seen.len(), read), (0, Err(FramingError::Malformed)), "and it stays ended");
    }

    #[test]
    fn what_cannot_be_decoded_ends_the_reading_as_that() {
        let (plain, compressed) = (framed(false, b"a"), framed(true, &gzipped(b"b")));
        for encoding in ["", "identity", "snappy", "deflate"] {
            let (seen, read) = messages(encoding, &[&plain, &compressed, &plain]);
            assert_eq!((seen, read), (vec![b"a".to_vec()], Err(FramingError::Coding)), "{encoding}");
        }
    }

    #[test]
    fn messages_that_unfold_without_measure_end_the_reading() {
        let bomb = framed(true, &gzipped(&vec![0; 2 << 20]));
        assert_eq!(messages("gzip", &[&bomb]).1, Err(FramingError::TooLarge), "one");
        // Each message is within the limit, but their sum exceeds the budget.
        let small = framed(true, &gzipped(&[0; 1 << 19]));
        let (seen, read) = messages("gzip", &[&small.repeat(100)]);
        assert!(seen.len() < 40 && read == Err(FramingError::OutOfBudget), "{} {read:?}", seen.len());
    }

    #[test]
    fn a_message_that_is_cut_short_leaves_nothing_to_the_next() {
        for (encoding, encoded) in [("gzip", gzipped(b"first")), ("deflate", deflated(b"first"))] {
            let cut = framed(true, &encoded[..encoded.len() - 5]);
            let body = [cut, framed(true, &encoded)].concat();
            let (seen, read) = messages(encoding, &[&body]);
            assert_eq!((seen.last().map(Vec::as_slice), read), (Some(&b"first"[..]), Ok(())), "{encoding}");
        }
    }
}
