//! Counts what is allocated, so that a fuzzer can hold a reader to its bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static NOW: AtomicUsize = AtomicUsize::new(0);
static MAX_HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MAX_HELD_BYTES.fetch_max(now, Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Runs `work`; at no moment may it hold more than `limit` bytes.
pub fn within<T>(limit: usize, work: impl FnOnce() -> T) -> T {
    let before = NOW.load(Relaxed);
    MAX_HELD_BYTES.store(before, Relaxed);
    let done = work();
    let held = MAX_HELD_BYTES.load(Relaxed).saturating_sub(before);
    assert!(held <= limit, "{held} bytes were held, the limit is {limit}");
    done
}
