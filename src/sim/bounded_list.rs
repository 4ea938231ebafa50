//! Lists of untrusted length.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// A list whose deserialization fails past `N` items: three bytes of JSON can become a struct of a hundred bytes.
#[derive(Debug)]
pub(super) struct BoundedList<T, const N: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for BoundedList<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedListVisitor(PhantomData))
    }
}

struct BoundedListVisitor<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for BoundedListVisitor<T, N> {
    type Value = BoundedList<T, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == N {
                return Err(A::Error::invalid_length(N + 1, &self));
            }
            items.push(item);
        }
        Ok(BoundedList(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_up_to_its_bound() {
        assert_eq!(serde_json::from_str::<BoundedList<u8, 2>>("[1,2]").unwrap().0, [1, 2]);
        assert!(serde_json::from_str::<BoundedList<u8, 2>>("[1,2,3]").unwrap_err().to_string().contains("at most 2"));
        assert!(serde_json::from_str::<BoundedList<u8, 2>>("{}").is_err());
    }
}
