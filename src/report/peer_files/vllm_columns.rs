//! Columns of vLLM's file in little memory: eight bytes for a gap, one for an error.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::request::nanos;
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;

/// Lists of gaps, one list per request, in one allocation.
#[derive(Default)]
pub(super) struct GapColumn {
    gaps: Vec<TokenEvent>,
    ends: Vec<usize>,
}

impl GapColumn {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn of(&self, request: usize) -> &[TokenEvent] {
        let start = request.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.gaps[start..self.ends[request]]
    }
}

impl<'de> Deserialize<'de> for GapColumn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists;

        impl<'de> Visitor<'de> for Lists {
            type Value = GapColumn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("lists of seconds")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut lists: A) -> Result<GapColumn, A::Error> {
                let mut column = GapColumn::default();
                while lists.next_element_seed(GapList(&mut column.gaps))?.is_some() {
                    column.ends.push(column.gaps.len());
                }
                column.gaps.shrink_to_fit();
                Ok(column)
            }
        }
        deserializer.deserialize_seq(Lists)
    }
}

/// Appends one list.
struct GapList<'a>(&'a mut Vec<TokenEvent>);

impl<'de> DeserializeSeed<'de> for GapList<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for GapList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of seconds")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(seconds) = list.next_element()? {
            let gap = nanos(seconds).ok_or_else(|| A::Error::custom("a gap is no time"))?;
            self.0.push(TokenEvent::new(Gap::from_nanos(gap), None));
        }
        Ok(())
    }
}

/// `true` if the request has an error. The text may quote a prompt, so it is not kept.
#[derive(Clone, Copy)]
pub(super) struct ErrorFlag(pub(super) bool);

impl<'de> Deserialize<'de> for ErrorFlag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = ErrorFlag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<ErrorFlag, E> {
                Ok(ErrorFlag(!text.is_empty()))
            }

            fn visit_unit<E>(self) -> Result<ErrorFlag, E> {
                Ok(ErrorFlag(false))
            }
        }
        deserializer.deserialize_any(Text)
    }
}
