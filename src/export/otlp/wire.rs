//! Protobuf fields, written from borrowed values.
//!
//! A request's spans have some sixty strings, and prost's types would own each of them: that cost more than all of the
//! counting. Only spans are written so; they are read back through prost's types in the tests.

use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// A string or bytes.
pub(super) fn bytes(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    length(out, tag, value.len());
    out.extend_from_slice(value);
}

/// The tag and the length of a field whose `len` bytes the caller appends.
pub(super) fn length(out: &mut Vec<u8>, tag: u32, len: usize) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}

/// Bytes that [`length`] and what follows it take.
pub(super) fn field_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

/// A number of variable length: an enum, a truth value, an integer.
pub(super) fn varint(out: &mut Vec<u8>, tag: u32, value: u64) {
    encode_key(tag, WireType::Varint, out);
    encode_varint(value, out);
}

/// A `fixed64` or, by its bits, a `double`.
pub(super) fn fixed64(out: &mut Vec<u8>, tag: u32, value: u64) {
    encode_key(tag, WireType::SixtyFourBit, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A `fixed32`.
pub(super) fn fixed32(out: &mut Vec<u8>, tag: u32, value: u32) {
    encode_key(tag, WireType::ThirtyTwoBit, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A message, a string or bytes that `write` appends.
pub(super) fn nested(out: &mut Vec<u8>, tag: u32, write: impl FnOnce(&mut Vec<u8>)) {
    encode_key(tag, WireType::LengthDelimited, out);
    let at = out.len();
    // Most are short enough for a length of one byte; for the others what was written moves.
    out.push(0);
    write(out);
    let len = out.len() - at - 1;
    match u8::try_from(len) {
        Ok(len @ 0..=0x7f) => out[at] = len,
        _ => {
            let (end, more) = (out.len(), encoded_len_varint(len as u64) - 1);
            out.resize(end + more, 0);
            out.copy_within(at + 1..end, at + 1 + more);
            encode_varint(len as u64, &mut &mut out[at..=at + more]);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Outer {
        #[prost(message, repeated, tag = "1")]
        inner: Vec<Inner>,
        #[prost(bytes = "vec", tag = "20")]
        last: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Inner {
        #[prost(string, tag = "1")]
        text: String,
        #[prost(int64, tag = "2")]
        number: i64,
        #[prost(double, tag = "3")]
        real: f64,
        #[prost(fixed32, tag = "16")]
        flags: u32,
    }

    #[test]
    fn messages_of_every_length_are_what_prost_writes() {
        for len in [0, 1, 100, 127, 128, 129, 16_383, 16_384, 100_000] {
            let inner = Inner { text: "x".repeat(len), number: -1, real: 0.1, flags: 7 };
            let expected = Outer { inner: vec![inner.clone(), inner.clone()], last: vec![9; 3] }.encode_to_vec();
            let mut out = Vec::new();
            for _ in 0..2 {
                nested(&mut out, 1, |out| {
                    // prost leaves out what is empty.
                    if len > 0 {
                        bytes(out, 1, inner.text.as_bytes());
                    }
                    varint(out, 2, inner.number as u64);
                    fixed64(out, 3, inner.real.to_bits());
                    fixed32(out, 16, inner.flags);
                });
            }
            bytes(&mut out, 20, &[9; 3]);
            assert_eq!(out, expected, "{len}");
            assert_eq!(out.len(), 2 * field_len(1, inner.encoded_len()) + field_len(20, 3));
        }
    }
}
