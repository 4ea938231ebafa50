//! A row as serde_json would write it, for half of its price: keys are ours and need no escapes, and neither does most of
//! what they are of. Pure.

use serde::ser::{Error as _, Impossible, Serialize, SerializeSeq, SerializeStruct, SerializeTuple, Serializer};
use serde_json::Error;

/// Appends the JSON of `row` to `line`.
///
/// # Errors
/// When it has what rows do not have: a map, bytes, or a variant with a value. `line` may have the half of it then.
pub(super) fn write(row: &impl Serialize, line: &mut Vec<u8>) -> Result<(), Error> {
    row.serialize(Json(line))
}

struct Json<'l>(&'l mut Vec<u8>);

impl Json<'_> {
    /// A text that is known to need no escapes.
    fn plain(self, text: &str) {
        self.0.reserve(text.len() + 2);
        self.0.push(b'"');
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b'"');
    }

    /// Whatever is rare.
    fn by_serde_json(self, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        serde_json::to_writer(self.0, value)
    }
}

macro_rules! whole_numbers {
    ($($method:ident: $number:ty),*) => {
        $(fn $method(self, number: $number) -> Result<(), Error> {
            self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            Ok(())
        })*
    };
}

impl<'l> Serializer for Json<'l> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Members<'l>;
    type SerializeTuple = Members<'l>;
    type SerializeTupleStruct = Impossible<(), Error>;
    type SerializeTupleVariant = Impossible<(), Error>;
    type SerializeMap = Impossible<(), Error>;
    type SerializeStruct = Members<'l>;
    type SerializeStructVariant = Impossible<(), Error>;

    whole_numbers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    }

    fn serialize_bool(self, truth: bool) -> Result<(), Error> {
        self.0.extend_from_slice(if truth { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_f32(self, number: f32) -> Result<(), Error> {
        self.by_serde_json(&number)
    }

    fn serialize_f64(self, number: f64) -> Result<(), Error> {
        self.by_serde_json(&number)
    }

    fn serialize_char(self, letter: char) -> Result<(), Error> {
        self.by_serde_json(&letter)
    }

    fn serialize_str(self, text: &str) -> Result<(), Error> {
        // Without a way out of the loop many bytes are looked at in one step.
        let escapes = text.bytes().fold(false, |some, byte| some | matches!(byte, ..0x20 | b'"' | b'\\'));
        if escapes {
            return self.by_serde_json(text);
        }
        self.plain(text);
        Ok(())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), Error> {
        Err(Error::custom("rows have no bytes"))
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.0.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.plain(variant);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Error> {
        Err(Error::custom("rows have no variants with a value"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Members<'l>, Error> {
        Ok(Members { line: self.0, next: b'[', end: b']' })
    }

    fn serialize_tuple(self, _: usize) -> Result<Members<'l>, Error> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Error> {
        Err(Error::custom("rows have no tuples with a name"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Err(Error::custom("rows have no variants with a value"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        Err(Error::custom("rows have no maps"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members<'l>, Error> {
        Ok(Members { line: self.0, next: b'{', end: b'}' })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Err(Error::custom("rows have no variants with a value"))
    }
}

/// An array or an object that is being written.
struct Members<'l> {
    line: &'l mut Vec<u8>,
    /// What stands before the next member: the opening bracket, then commas.
    next: u8,
    end: u8,
}

impl Members<'_> {
    fn close(self) -> Result<(), Error> {
        if self.next != b',' {
            self.line.push(self.next);
        }
        self.line.push(self.end);
        Ok(())
    }
}

impl SerializeSeq for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.line.push(std::mem::replace(&mut self.next, b','));
        value.serialize(Json(self.line))
    }

    fn end(self) -> Result<(), Error> {
        self.close()
    }
}

impl SerializeTuple for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<(), Error> {
        self.close()
    }
}

impl SerializeStruct for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.line.reserve(key.len() + 4);
        self.line.extend_from_slice(&[std::mem::replace(&mut self.next, b','), b'"']);
        self.line.extend_from_slice(key.as_bytes());
        self.line.extend_from_slice(b"\":");
        value.serialize(Json(self.line))
    }

    fn end(self) -> Result<(), Error> {
        self.close()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capture::format::{Entry, Params, Part, PartKind, Prompt, Timing, Wanted};
    use crate::measure::record::{CountSource, Ending, Outcome};

    fn same(entry: &Entry) {
        let mut line = b"before".to_vec();
        write(entry, &mut line).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), format!("before{}", serde_json::to_string(entry).unwrap()));
    }

    #[test]
    fn a_row_without_anything_is_what_serde_json_makes_of_it() {
        same(&Entry::default());
        let prompt =
            Prompt { parts: vec![Part { kind: PartKind::Image, bytes: None, size: None }], ..Prompt::default() };
        same(&Entry { prompt, ..Entry::default() });
    }

    proptest! {
        #[test]
        fn every_row_is_what_serde_json_makes_of_it(
            (at, numbers) in (any::<u64>(), prop::collection::vec(any::<u64>(), 0..5)),
            (text, letters) in (".{0,20}", "[\\x00-\\x7f]{0,20}"),
            (temperature, some) in (any::<f64>(), any::<bool>()),
            (status, size) in (any::<u16>(), any::<(u32, u32)>()),
        ) {
            same(&Entry {
                at,
                planned: some.then_some(at / 3),
                model: Some(text),
                session: Some(letters),
                stream: Some(some),
                status: Some(status),
                ending: Some(Ending::DownstreamGone),
                outcome: Some(Outcome::Truncated),
                output_source: Some(CountSource::ContinuousUsage),
                params: Params { temperature: Some(temperature), logprobs: Some(some), ..Params::default() },
                prompt: Prompt {
                    blocks: numbers,
                    parts: vec![
                        Part { kind: PartKind::Image, bytes: Some(at), size: Some(size) },
                        Part { kind: PartKind::File, bytes: None, size: None },
                    ],
                    ..Prompt::default()
                },
                timing: Timing { first_tokens: Some(size.0), gaps: Some("AQEC".to_owned()), ..Timing::default() },
                wanted: Wanted { think: some.then_some(7), ..Wanted::default() },
                ..Entry::default()
            });
        }
    }
}
