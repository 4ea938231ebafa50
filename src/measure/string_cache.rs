//! Shares repeated names: most requests of a thread are for one model, and most replies repeat its name.

use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static LAST: RefCell<Arc<str>> = RefCell::new(Arc::from(""));
}

/// Returns a shared copy of the name; reuses the previous one on this thread if equal.
pub(super) fn shared(name: &str) -> Arc<str> {
    LAST.with_borrow_mut(|last| {
        if **last != *name {
            *last = name.into();
        }
        Arc::clone(last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_once_as_long_as_no_other_comes() {
        let (first, again, other) = (shared("tiny"), shared("tiny"), shared("small"));
        assert_eq!((&*first, &*again, &*other), ("tiny", "tiny", "small"));
        assert!(Arc::ptr_eq(&first, &again));
    }
}
