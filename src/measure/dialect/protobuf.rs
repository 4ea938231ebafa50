//! Walks the fields of one protobuf message in order: borrowed, without a schema, without an allocation.

/// A field's value by wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtobufValue<'a> {
    Varint(u64),
    /// Text, bytes, or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes; no dialect needs them.
    Fixed,
}

impl<'a> ProtobufValue<'a> {
    /// The bytes; empty for other wire types.
    pub(super) fn bytes(self) -> &'a [u8] {
        if let Self::Bytes(bytes) = self { bytes } else { b"" }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()).ok().filter(|text| !text.is_empty())
    }
}

/// The fields of a message as (number, value). The last item is `None` if the message is truncated.
pub(super) fn fields(message: &[u8]) -> ProtobufFields<'_> {
    ProtobufFields(Some(message))
}

/// Iterator returned by [`fields`].
pub(super) struct ProtobufFields<'a>(Option<&'a [u8]>);

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Option<(u64, ProtobufValue<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.0.filter(|rest| !rest.is_empty())?;
        let field = field(rest);
        self.0 = field.map(|(_, rest)| rest);
        Some(field.map(|(field, _)| field))
    }
}

fn field(mut rest: &[u8]) -> Option<((u64, ProtobufValue<'_>), &[u8])> {
    let key = varint(&mut rest)?;
    let value = match key & 7 {
        0 => ProtobufValue::Varint(varint(&mut rest)?),
        1 => rest.split_off(..8).map(|_| ProtobufValue::Fixed)?,
        2 => {
            let length = usize::try_from(varint(&mut rest)?).ok()?;
            ProtobufValue::Bytes(rest.split_off(..length)?)
        }
        5 => rest.split_off(..4).map(|_| ProtobufValue::Fixed)?,
        _ => return None,
    };
    Some(((key >> 3, value), rest))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_type_is_walked() {
        let message = b"\x08\xac\x02\x11\0\0\0\0\0\0\0\0\x1a\x02hi\x25\0\0\0\0";
        let walked: Option<Vec<_>> = fields(message).collect();
        let expected = [
            (1, ProtobufValue::Varint(300)),
            (2, ProtobufValue::Fixed),
            (3, ProtobufValue::Bytes(b"hi")),
            (4, ProtobufValue::Fixed),
        ];
        assert_eq!(walked, Some(expected.to_vec()));
    }

    #[test]
    fn what_is_cut_short_ends_with_none() {
        let message: &[u8] = b"\x1a\x02hi\x08\xac\x02";
        for end in 1..message.len() {
            let whole = end == 4;
            assert_eq!(fields(&message[..end]).all(|field| field.is_some()), whole, "{end} bytes");
        }
        assert_eq!(fields(&[0xff; 20]).collect::<Vec<_>>(), [None]);
        assert_eq!(fields(b"\x0b").collect::<Vec<_>>(), [None], "groups are not used");
    }
}
