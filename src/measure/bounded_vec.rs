//! A vector with a fixed maximum length that allocates only when needed.
//!
//! Most streams are short and a few are very long. The first [`INLINE_ITEMS`] values are stored inline. The next
//! value allocates the full capacity, and no later value allocates.

use smallvec::SmallVec;

/// Values stored inline.
const INLINE_ITEMS: usize = 8;

pub(super) type SmallList<T> = SmallVec<[T; INLINE_ITEMS]>;

/// A vector of at most `MAX_LEN` values.
#[derive(Debug)]
pub(super) struct BoundedVec<T, const MAX_LEN: usize>(SmallList<T>);

impl<T, const MAX_LEN: usize> Default for BoundedVec<T, MAX_LEN> {
    fn default() -> Self {
        Self(SmallList::new())
    }
}

impl<T: Copy, const MAX_LEN: usize> BoundedVec<T, MAX_LEN> {
    /// Appends a value; returns `false` if the vector is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        let held = self.0.len();
        if held == MAX_LEN {
            return false;
        }
        if held == self.0.capacity() {
            self.0.reserve_exact(MAX_LEN - held);
        }
        self.0.push(value);
        true
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns all values; the capacity stays.
    pub(super) fn take(&mut self) -> Box<[T]> {
        let taken = self.0[..].into();
        self.0.clear();
        taken
    }
}

impl<T, const MAX_LEN: usize> From<BoundedVec<T, MAX_LEN>> for SmallList<T> {
    fn from(buffer: BoundedVec<T, MAX_LEN>) -> Self {
        buffer.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_held_in_place_then_room_is_made_for_all_and_then_no_more() {
        let mut buffer = BoundedVec::<u32, 100>::default();
        let room: Vec<_> = (0..100).map(|n| (buffer.push(n), buffer.0.spilled(), buffer.0.capacity())).collect();
        assert_eq!((&room[..8], &room[8..]), (&[(true, false, 8); 8][..], &[(true, true, 100); 92][..]));
        assert!(!buffer.push(100));
        assert_eq!(buffer.take()[..], (0..100).collect::<Vec<_>>());
        assert_eq!((buffer.len(), buffer.0.capacity()), (0, 100));
    }

    #[test]
    fn a_small_buffer_takes_no_more_than_it_may_hold() {
        let mut buffer = BoundedVec::<u8, 3>::default();
        assert_eq!([1, 2, 3, 4].map(|n| buffer.push(n)), [true, true, true, false]);
        assert_eq!((buffer.take()[..].to_vec(), buffer.0.spilled()), (vec![1, 2, 3], false));
    }
}
