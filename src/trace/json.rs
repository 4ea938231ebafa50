//! Reads one JSON object per row in one pass, field by field, without a map. Errors name the field and never quote its
//! value.

use std::cell::Cell;
use std::fmt;

use serde::de;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::conversion_loss::ConversionLosses;
use super::error::TraceProblem;
use super::fast_row_parser::{BlockIdList, FastRowParser};
use super::json_values::{LenientCount, LenientNumber, RawJson, StringOrNumber, TextSize, WrittenNumber};

/// A row that is read field by field; declared by [`row`].
pub(super) trait JsonRow: Default {
    const KEYS: &'static [&'static str];
    const EXPECTED: &'static [&'static str];

    /// Reads the value of field number `index`.
    fn read_field<'de, A: MapAccess<'de>>(
        &mut self,
        index: usize,
        losses: Option<&ConversionLosses>,
        map: &mut A,
    ) -> Result<(), A::Error>;
}

/// Describes a valid value in error messages.
pub(super) trait ExpectedValue {
    /// Text that follows "expected".
    const DESCRIPTION: &'static str;
}

/// A value that can be read from a map. `losses` counts unknown fields of nested objects; without it they are an error.
pub(super) trait ReadValue: Sized {
    fn read_value<'de, A: MapAccess<'de>>(losses: Option<&ConversionLosses>, map: &mut A) -> Result<Self, A::Error>;
}

macro_rules! plainly_taken {
    ($($type:ty: $what:literal),* $(,)?) => { $(
        impl ExpectedValue for $type {
            const DESCRIPTION: &'static str = $what;
        }
        impl ReadValue for $type {
            fn read_value<'de, A: MapAccess<'de>>(_: Option<&ConversionLosses>, map: &mut A) -> Result<Self, A::Error> {
                map.next_value()
            }
        }
    )* };
}

plainly_taken! {
    Option<f64>: "a number",
    Option<bool>: "true or false",
    Option<String>: "a text",
    Option<LenientNumber>: "a number",
    Option<WrittenNumber>: "a number",
    Option<StringOrNumber>: "a text or a number",
    Option<TextSize>: "a text, or a list",
    Option<Vec<f64>>: "a list of numbers",
    Option<IgnoredAny>: "a value",
    Option<RawJson>: "a value",
}

macro_rules! taken_as_counts {
    ($($type:ty: $what:literal),* $(,)?) => { $(
        impl ExpectedValue for Option<$type> {
            const DESCRIPTION: &'static str = concat!("a whole number ", $what);
        }
        impl ReadValue for Option<$type> {
            fn read_value<'de, A: MapAccess<'de>>(_: Option<&ConversionLosses>, map: &mut A) -> Result<Self, A::Error> {
                map.next_value::<Option<LenientCount<$type>>>().map(|count| count.map(|LenientCount(count)| count))
            }
        }
    )* };
}

taken_as_counts! {
    u64: "that is not negative",
    u32: "below 2^32",
}

impl ExpectedValue for Option<Vec<u32>> {
    const DESCRIPTION: &'static str = "a list of whole numbers below 2^32";
}

impl ReadValue for Option<Vec<u32>> {
    fn read_value<'de, A: MapAccess<'de>>(_: Option<&ConversionLosses>, map: &mut A) -> Result<Self, A::Error> {
        let counts = map.next_value::<Option<Vec<LenientCount<u32>>>>()?;
        Ok(counts.map(|counts| counts.into_iter().map(|LenientCount(count)| count).collect()))
    }
}

impl ExpectedValue for Option<Vec<u64>> {
    const DESCRIPTION: &'static str = "a list of whole numbers that are not negative";
}

impl ReadValue for Option<Vec<u64>> {
    fn read_value<'de, A: MapAccess<'de>>(_: Option<&ConversionLosses>, map: &mut A) -> Result<Self, A::Error> {
        map.next_value::<Option<BlockIdList>>().map(|ids| ids.map(|BlockIdList(ids)| ids))
    }
}

impl<R: JsonRow> ExpectedValue for Option<NestedRow<R>> {
    const DESCRIPTION: &'static str = "an object with values of the right kinds";
}

impl<R: JsonRow> ReadValue for Option<NestedRow<R>> {
    fn read_value<'de, A: MapAccess<'de>>(losses: Option<&ConversionLosses>, map: &mut A) -> Result<Self, A::Error> {
        let failed = Cell::new(None);
        map.next_value_seed(RowSeed::<R> { losses, failed: &failed, row: std::marker::PhantomData })
            .map(|row| row.map(NestedRow))
    }
}

impl<R: JsonRow> ExpectedValue for Option<Vec<NestedRow<R>>> {
    const DESCRIPTION: &'static str = "a list of objects with values of the right kinds";
}

impl<R: JsonRow> ReadValue for Option<Vec<NestedRow<R>>> {
    fn read_value<'de, A: MapAccess<'de>>(losses: Option<&ConversionLosses>, map: &mut A) -> Result<Self, A::Error> {
        map.next_value_seed(RowListSeed::<R>(losses, std::marker::PhantomData))
    }
}

#[derive(Debug)]
pub(super) struct NestedRow<R>(pub R);

/// Declares a row. Each field has a type that is `ReadValue` and `ExpectedValue`, and the name in the file or `= "name
/// in the file"`.
macro_rules! row {
    ($(#[$meta:meta])* $name:ident { $($field:ident $(= $key:literal)? : $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        struct $name { $($field: Option<$type>),* }

        impl $crate::trace::json::JsonRow for $name {
            const KEYS: &'static [&'static str] = &[$($crate::trace::json::key!($field $($key)?)),*];
            const EXPECTED: &'static [&'static str] =
                &[$(<Option<$type> as $crate::trace::json::ExpectedValue>::DESCRIPTION),*];

            fn read_field<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                index: usize,
                losses: Option<&$crate::trace::conversion_loss::ConversionLosses>,
                map: &mut A,
            ) -> Result<(), A::Error> {
                let fields = 0;
                $(
                    if index == fields {
                        self.$field = <Option<$type> as $crate::trace::json::ReadValue>::read_value(losses, map)?;
                        return Ok(());
                    }
                    let fields = fields + 1;
                )*
                let _ = fields;
                map.next_value::<serde::de::IgnoredAny>().map(|_| ())
            }
        }
    };
}

macro_rules! key {
    ($field:ident $key:literal) => {
        $key
    };
    ($field:ident) => {
        stringify!($field)
    };
}

pub(super) use {key, row};

/// Parses one line as a row; counts unknown fields by name.
pub(super) fn parse<R: JsonRow>(line: &[u8], losses: &ConversionLosses) -> Result<R, TraceProblem> {
    let failed = Cell::new(None);
    let mut plain = FastRowParser::new(line);
    // The fast parser may stop in the middle of a line, so it must not count anything.
    let read = RowSeed::<R> { losses: None, failed: &failed, row: std::marker::PhantomData }.deserialize(&mut plain);
    if let Ok(Some(row)) = read.and_then(|row| plain.end().map(|()| row)) {
        return Ok(row);
    }
    failed.set(None);
    let mut json = serde_json::Deserializer::from_slice(line);
    let fields = RowSeed::<R> { losses: Some(losses), failed: &failed, row: std::marker::PhantomData };
    let read = fields.deserialize(&mut json);
    let read = read.and_then(|row| json.end().map(|()| row));
    match read {
        Ok(Some(row)) => Ok(row),
        Ok(None) => Err(TraceProblem::new("expected a JSON object")),
        Err(error) => Err(match (error.classify(), failed.get()) {
            (serde_json::error::Category::Data, Some((field, expected))) => {
                TraceProblem::in_field(field, format!("expected {expected}"))
            }
            (serde_json::error::Category::Data, None) => TraceProblem::new("expected a JSON object"),
            _ => TraceProblem::new(format!("no JSON from column {} on", error.column()))
                .with_remedy("is the file damaged there, or cut short?"),
        }),
    }
}

struct RowSeed<'a, R> {
    /// Counter for unknown fields; without it they are an error.
    losses: Option<&'a ConversionLosses>,
    /// The invalid field and its expected form.
    failed: &'a Cell<Option<(&'static str, &'static str)>>,
    row: std::marker::PhantomData<R>,
}

impl<'de, R: JsonRow> DeserializeSeed<'de> for RowSeed<'_, R> {
    type Value = Option<R>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<R>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: JsonRow> Visitor<'de> for RowSeed<'_, R> {
    type Value = Option<R>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Option<R>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<R>, A::Error> {
        let mut row = R::default();
        let mut next = 0;
        while let Some(index) = map.next_key_seed(KeySeed { keys: R::KEYS, next, losses: self.losses })? {
            match index {
                Some(index) => {
                    row.read_field(index, self.losses, &mut map)
                        .inspect_err(|_| self.failed.set(Some((R::KEYS[index], R::EXPECTED[index]))))?;
                    next = index + 1;
                }
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Some(row))
    }
}

/// Finds the index of a key. Rows of a file have the same key order, so it tries the next key first.
struct KeySeed<'a> {
    keys: &'static [&'static str],
    next: usize,
    losses: Option<&'a ConversionLosses>,
}

impl KeySeed<'_> {
    fn index_of(&self, key: &[u8]) -> Option<usize> {
        let is = |at: &usize| self.keys.get(*at).is_some_and(|known| known.as_bytes() == key);
        Some(self.next).filter(is).or_else(|| (0..self.keys.len()).find(is))
    }
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Option<usize>, E> {
        let index = self.index_of(key.as_bytes());
        if index.is_none() {
            self.losses.ok_or_else(|| E::custom("a field that is not understood"))?.count(key);
        }
        Ok(index)
    }

    fn visit_bytes<E: de::Error>(self, key: &[u8]) -> Result<Option<usize>, E> {
        self.index_of(key).map(Some).ok_or_else(|| E::custom("a field that is not understood"))
    }
}

struct RowListSeed<'a, R>(Option<&'a ConversionLosses>, std::marker::PhantomData<R>);

impl<'de, R: JsonRow> DeserializeSeed<'de> for RowListSeed<'_, R> {
    type Value = Option<Vec<NestedRow<R>>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: JsonRow> Visitor<'de> for RowListSeed<'_, R> {
    type Value = Option<Vec<NestedRow<R>>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let failed = Cell::new(None);
        let mut rows = Vec::new();
        loop {
            let fields = RowSeed::<R> { losses: self.0, failed: &failed, row: std::marker::PhantomData };
            match list.next_element_seed(fields)? {
                Some(Some(row)) => rows.push(NestedRow(row)),
                Some(None) => return Err(A::Error::custom("null in a list of objects")),
                None => return Ok(Some(rows)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    row!(Inner { b: u64 });
    row!(Sample { a: u64, strange = "in": LenientNumber, inner: NestedRow<Inner>, list: Vec<NestedRow<Inner>>, text: TextSize });

    row!(Small { n: u32, list: Vec<u32> });

    fn read(text: &str) -> Result<Sample, String> {
        parse(text.as_bytes(), &ConversionLosses::default()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_count_is_a_whole_number_also_where_it_is_written_as_a_float() {
        for (count, expected) in
            [("10.0", Some(10)), ("1e3", Some(1_000)), ("0.0", Some(0)), ("7", Some(7)), ("null", None)]
        {
            for line in [format!(r#"{{"a": {count}}}"#), format!(r#"{{"a": {count}, "x": true}}"#)] {
                assert_eq!(read(&line).unwrap().a, expected, "{line}");
            }
        }
        for count in ["10.5", "-1.0", "1e17", "18446744073709551616", "\"10\"", "true"] {
            let error = read(&format!(r#"{{"a": {count}}}"#)).unwrap_err();
            assert_eq!(error, "a: expected a whole number that is not negative", "{count}");
        }
        let beyond = read(r#"{"a": 1e400}"#).unwrap_err();
        assert_eq!(beyond, "no JSON from column 11 on; is the file damaged there, or cut short?");
        let small: Small = parse(br#"{"n": 4294967295.0, "list": [1.0, 2]}"#, &ConversionLosses::default()).unwrap();
        assert_eq!((small.n, small.list), (Some(u32::MAX), Some(vec![1, 2])));
        for line in [r#"{"n": 4294967296.0}"#, r#"{"list": [1.5]}"#] {
            assert!(parse::<Small>(line.as_bytes(), &ConversionLosses::default()).is_err(), "{line}");
        }
    }

    #[test]
    fn fields_are_read_in_any_order_and_others_are_counted() {
        let losses = ConversionLosses::default();
        let line = br#"{"x": [1], "in": "2.5", "a": 3, "inner": {"b": 4, "y": 0}, "list": [{"b": 5}], "text": ["ab", {"t": "c"}]}"#;
        let row: Sample = parse(line, &losses).unwrap();
        assert_eq!((row.a, row.strange, row.inner.unwrap().0.b), (Some(3), Some(LenientNumber(2.5)), Some(4)));
        assert_eq!(row.list.unwrap()[0].0.b, Some(5));
        assert_eq!(row.text, Some(TextSize { texts: 2, bytes: 3 }));
        assert_eq!(losses.list(), [("x".to_owned(), 1), ("y".to_owned(), 1)]);
    }

    #[test]
    fn an_error_names_the_field_and_what_was_expected_and_not_what_was_there() {
        for (line, expected) in [
            (r#"{"a": "secret"}"#, "a: expected a whole number that is not negative"),
            (r#"{"a": -1}"#, "a: expected a whole number that is not negative"),
            (r#"{"in": "secret"}"#, "in: expected a number"),
            (r#"{"inner": {"b": "secret"}}"#, "inner: expected an object with values of the right kinds"),
            (r#"["secret"]"#, "expected a JSON object"),
            ("null", "expected a JSON object"),
            (r#"{"a": 1} secret"#, "no JSON from column 10 on; is the file damaged there, or cut short?"),
            (r#"{"a": 1"#, "no JSON from column 7 on; is the file damaged there, or cut short?"),
        ] {
            assert_eq!(read(line).unwrap_err(), expected, "{line}");
        }
    }
}
