//! A JSON document as a tree that borrows its strings from the input. It takes a fifth to a third fewer
//! instructions than serde_json's `Value`, which copies every string and key and builds a tree per object.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// Initial capacity for an object's fields. Eight fields are 448 bytes, for which the allocator has no size class of
/// its own. With its overhead the block falls into the next class and takes the slow path.
const FIELDS: usize = 6;
/// Initial capacity for an array's items.
const ITEMS: usize = 4;

/// A value. serde_json decides what is valid.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum JsonValue<'a> {
    Null,
    Bool(bool),
    Number(Number),
    /// Borrowed unless the string has escapes.
    String(Cow<'a, str>),
    Array(Vec<Self>),
    Object(JsonObject<'a>),
}

/// Fields in document order; of duplicate keys the last counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct JsonObject<'a>(Vec<(Cow<'a, str>, JsonValue<'a>)>);

impl<'a> JsonObject<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&JsonValue<'a>> {
        self.last_first().find(|field| field.0 == key).map(|field| field.1)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut JsonValue<'a>> {
        self.0.iter_mut().rfind(|field| field.0 == key).map(|field| &mut field.1)
    }

    /// Iterates from the last field to the first, so that the valid one of duplicate keys comes first.
    pub(super) fn last_first(&self) -> impl Iterator<Item = (&str, &JsonValue<'a>)> {
        self.0.iter().rev().map(|(key, value)| (&**key, value))
    }

    /// Sorts the fields by key and removes duplicates. Only needed before a walk over the whole object.
    pub(super) fn sort(&mut self) {
        self.0.sort_by(|one, other| one.0.cmp(&other.0));
        self.0.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut JsonValue<'a>)> {
        self.0.iter_mut().map(|(key, value)| (&**key, value))
    }
}

impl<'a> JsonValue<'a> {
    /// True if the value is equivalent to an absent one.
    pub(super) fn is_nothing(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Array(items) => items.is_empty(),
            _ => false,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self { number.as_u64() } else { None }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(truth) = self { Some(*truth) } else { None }
    }

    pub(super) fn as_object(&self) -> Option<&JsonObject<'a>> {
        if let Self::Object(object) = self { Some(object) } else { None }
    }
}

impl<'a> Deserialize<'a> for JsonValue<'a> {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(JsonValueVisitor)
    }
}

impl<'a> Deserialize<'a> for JsonObject<'a> {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(JsonValueVisitor)
            .map(|value| if let JsonValue::Object(object) = value { object } else { Self::default() })
    }
}

struct JsonValueVisitor;

impl<'a> Visitor<'a> for JsonValueVisitor {
    type Value = JsonValue<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Bool(truth))
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<JsonValue<'a>, E> {
        Ok(Number::from_f64(number).map_or(JsonValue::Null, JsonValue::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::String(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::String(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<JsonValue<'a>, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            if array.is_empty() {
                array = Vec::with_capacity(ITEMS);
            }
            array.push(item);
        }
        Ok(JsonValue::Array(array))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<JsonValue<'a>, A::Error> {
        let mut fields: Vec<(Cow<'a, str>, JsonValue<'a>)> = Vec::new();
        while let Some(field) = map.next_entry_seed(JsonKeySeed, std::marker::PhantomData)? {
            if fields.is_empty() {
                fields = Vec::with_capacity(FIELDS);
            }
            fields.push(field);
        }
        Ok(JsonValue::Object(JsonObject(fields)))
    }
}

struct JsonKeySeed;

impl<'a> DeserializeSeed<'a> for JsonKeySeed {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<Cow<'a, str>, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for JsonKeySeed {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::measure::json_walker::tests::json;

    /// Converts to serde_json's `Value`, for comparison.
    fn copied(value: &JsonValue<'_>) -> serde_json::Value {
        match value {
            JsonValue::Null => serde_json::Value::Null,
            JsonValue::Bool(truth) => (*truth).into(),
            JsonValue::Number(number) => number.clone().into(),
            JsonValue::String(text) => text.as_ref().into(),
            JsonValue::Array(items) => items.iter().map(copied).collect(),
            JsonValue::Object(JsonObject(fields)) => {
                fields.iter().map(|(key, value)| (key.as_ref(), copied(value))).collect()
            }
        }
    }

    #[test]
    fn of_equal_keys_the_last_counts_and_sorted_it_is_the_one_that_stays() {
        let text = r#"{"b":1,"a":2,"b":{"z":[],"\u0061":null},"a":-3,"c":1e2,"a":4}"#;
        let mut object: JsonObject<'_> = serde_json::from_str(text).unwrap();
        assert_eq!((object.get("a").and_then(JsonValue::as_u64), object.get("d")), (Some(4), None));
        assert_eq!(object.get_mut("a").and_then(|value| value.as_u64()), Some(4));
        assert_eq!(object.last_first().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "c", "a", "b", "a", "b"]);
        object.sort();
        assert_eq!(object.iter_mut().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(copied(&JsonValue::Object(object)), serde_json::from_str::<serde_json::Value>(text).unwrap());
    }

    #[test]
    fn texts_are_borrowed_where_they_have_no_escapes() {
        let texts: Vec<JsonValue<'_>> = serde_json::from_str(r#"["plain","a\tb"]"#).unwrap();
        assert!(
            matches!(&texts[..], [JsonValue::String(Cow::Borrowed("plain")), JsonValue::String(Cow::Owned(tab))] if tab == "a\tb")
        );
    }

    proptest! {
        #[test]
        fn a_document_is_what_serde_json_makes_of_it(value in json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            prop_assert_eq!(copied(&serde_json::from_str(&text).unwrap()), serde_json::from_str::<serde_json::Value>(&text).unwrap());
        }

        #[test]
        fn what_serde_json_refuses_is_refused(text in r#"[\[\]{}",:0-9a-z\\ .-]{0,24}"#) {
            let ours = serde_json::from_str::<JsonValue<'_>>(&text).map(|value| copied(&value)).ok();
            prop_assert_eq!(ours, serde_json::from_str::<serde_json::Value>(&text).ok());
        }
    }
}
