//! Lists whose length is unknown until they end.

/// Appends to a list of unpredictable length. Capacity grows by an eighth: a `Vec` would double, and could waste half
/// a gigabyte.
pub fn push<T>(list: &mut Vec<T>, element: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 8).max(64));
    }
    list.push(element);
}
