//! Values that other tools write in more than one way: numbers as strings, counts as floats, texts as lists.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use crate::measure::whole_number::as_whole_number;

/// The JSON text of a value.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct RawJson(Box<serde_json::value::RawValue>);

impl RawJson {
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.get().as_bytes()
    }
}

/// A number that may be written as a string.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LenientNumber(pub f64);

impl LenientNumber {
    /// Converts to nanoseconds; `nanos` is the unit in nanoseconds. `None` if negative or beyond 292 years.
    pub(super) fn nanos(self, nanos: f64) -> Option<u64> {
        let value = self.0 * nanos;
        (0.0..9.2e18).contains(&value).then(|| value.round() as u64)
    }
}

impl<'de> Deserialize<'de> for LenientNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;
        impl Visitor<'_> for NumberVisitor {
            type Value = LenientNumber;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<LenientNumber, E> {
                Ok(LenientNumber(value as f64))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<LenientNumber, E> {
                Ok(LenientNumber(value as f64))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<LenientNumber, E> {
                Ok(LenientNumber(value))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<LenientNumber, E> {
                let value: f64 = value.trim().parse().map_err(|_| E::custom("not a number"))?;
                if value.is_finite() { Ok(LenientNumber(value)) } else { Err(E::custom("not a number")) }
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// A number, and whether it was written with a fraction such as `12.0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WrittenNumber {
    /// The number.
    pub value: f64,
    /// True if it was written with a fraction or an exponent.
    pub has_fraction: bool,
}

impl<'de> Deserialize<'de> for WrittenNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WrittenNumberVisitor;
        impl Visitor<'_> for WrittenNumberVisitor {
            type Value = WrittenNumber;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<WrittenNumber, E> {
                Ok(WrittenNumber { value: value as f64, has_fraction: false })
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<WrittenNumber, E> {
                Ok(WrittenNumber { value: value as f64, has_fraction: false })
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<WrittenNumber, E> {
                Ok(WrittenNumber { value, has_fraction: true })
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenNumber, E> {
                let value = text.trim().parse().ok().filter(|value: &f64| value.is_finite());
                let value = value.ok_or_else(|| E::custom("not a number"))?;
                Ok(WrittenNumber { value, has_fraction: !text.trim().bytes().all(|byte| byte.is_ascii_digit()) })
            }
        }
        deserializer.deserialize_any(WrittenNumberVisitor)
    }
}

/// An unsigned integer. Data frames write `12.0` for 12.
#[derive(Debug)]
pub(super) struct LenientCount<T>(pub T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for LenientCount<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor<T>(std::marker::PhantomData<T>);
        impl<T: TryFrom<u64>> Visitor<'_> for CountVisitor<T> {
            type Value = LenientCount<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a count")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<LenientCount<T>, E> {
                T::try_from(value).map(LenientCount).map_err(|_| E::custom("too large"))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<LenientCount<T>, E> {
                self.visit_u64(as_whole_number(value).ok_or_else(|| E::custom("not whole"))?)
            }
        }
        deserializer.deserialize_u64(CountVisitor(std::marker::PhantomData))
    }
}

/// A name that may be written as a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StringOrNumber(pub String);

impl<'de> Deserialize<'de> for StringOrNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl Visitor<'_> for IdVisitor {
            type Value = StringOrNumber;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<StringOrNumber, E> {
                Ok(StringOrNumber(value.to_string()))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<StringOrNumber, E> {
                Ok(StringOrNumber(value.to_string()))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<StringOrNumber, E> {
                Ok(StringOrNumber(value.to_owned()))
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}

/// Number and total size of the strings anywhere inside a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextSize {
    /// Number of strings.
    pub texts: u64,
    /// Bytes of all strings.
    pub bytes: u64,
}

impl<'de> Deserialize<'de> for TextSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextSizeVisitor;
        impl<'de> Visitor<'de> for TextSizeVisitor {
            type Value = TextSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<TextSize, E> {
                Ok(TextSize { texts: 1, bytes: value.len() as u64 })
            }
            fn visit_unit<E: de::Error>(self) -> Result<TextSize, E> {
                Ok(TextSize::default())
            }
            fn visit_bool<E: de::Error>(self, _: bool) -> Result<TextSize, E> {
                Ok(TextSize::default())
            }
            fn visit_u64<E: de::Error>(self, _: u64) -> Result<TextSize, E> {
                Ok(TextSize::default())
            }
            fn visit_i64<E: de::Error>(self, _: i64) -> Result<TextSize, E> {
                Ok(TextSize::default())
            }
            fn visit_f64<E: de::Error>(self, _: f64) -> Result<TextSize, E> {
                Ok(TextSize::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TextSize, A::Error> {
                let mut sum = TextSize::default();
                while let Some(one) = list.next_element::<TextSize>()? {
                    sum.texts += one.texts;
                    sum.bytes += one.bytes;
                }
                Ok(sum)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TextSize, A::Error> {
                let mut sum = TextSize::default();
                while let Some((_, one)) = map.next_entry::<IgnoredAny, TextSize>()? {
                    sum.texts += one.texts;
                    sum.bytes += one.bytes;
                }
                Ok(sum)
            }
        }
        deserializer.deserialize_any(TextSizeVisitor)
    }
}
