//! Writes protobuf fields from borrowed values.
//!
//! A request's spans contain about 60 strings. prost's types would copy each of them, which cost more than the whole
//! aggregation. Only spans use this writer; tests decode them with prost's types.

use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// Writes a string or bytes.
#[inline]
pub(super) fn bytes(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    length(out, tag, value.len());
    out.extend_from_slice(value);
}

/// Writes the tag and length of a field whose `len` bytes the caller appends.
#[inline]
pub(super) fn length(out: &mut Vec<u8>, tag: u32, len: usize) {
    if tag < 16 && len < 0x80 {
        return out.extend_from_slice(&[(tag << 3) as u8 | WireType::LengthDelimited as u8, len as u8]);
    }
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}

/// Returns the size of [`length`]'s output plus the field, in bytes.
#[inline]
pub(super) fn field_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

/// Writes a varint: an enum, a boolean or an integer.
#[inline]
pub(super) fn varint(out: &mut Vec<u8>, tag: u32, value: u64) {
    encode_key(tag, WireType::Varint, out);
    encode_varint(value, out);
}

/// Returns the size of [`varint`]'s output, in bytes.
#[inline]
pub(super) fn varint_len(tag: u32, value: u64) -> usize {
    key_len(tag) + encoded_len_varint(value)
}

/// Writes a `fixed64`, or a `double` by its bits.
#[inline]
pub(super) fn fixed64(out: &mut Vec<u8>, tag: u32, value: u64) {
    encode_key(tag, WireType::SixtyFourBit, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Returns the size of [`fixed64`]'s output, in bytes.
#[inline]
pub(super) fn fixed64_len(tag: u32) -> usize {
    key_len(tag) + 8
}

/// Writes a `fixed32`.
pub(super) fn fixed32(out: &mut Vec<u8>, tag: u32, value: u32) {
    encode_key(tag, WireType::ThirtyTwoBit, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a field of unknown length: a message, a string or bytes that `write` appends. Its bytes are moved unless the
/// length takes two bytes, as a span's does.
pub(super) fn nested(out: &mut Vec<u8>, tag: u32, write: impl FnOnce(&mut Vec<u8>)) {
    encode_key(tag, WireType::LengthDelimited, out);
    let at = out.len();
    out.extend_from_slice(&[0; 2]);
    write(out);
    let len = out.len() - at - 2;
    let (end, body) = (out.len(), at + encoded_len_varint(len as u64));
    if body != at + 2 {
        out.resize(end.max(body + len), 0);
        out.copy_within(at + 2..end, body);
        out.truncate(body + len);
    }
    encode_varint(len as u64, &mut &mut out[at..body]);
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
                    // prost omits empty fields.
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
