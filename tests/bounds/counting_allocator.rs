//! The allocator of this binary: it counts what each thread takes from it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MAX_HELD_BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator cannot be counted from outside")]
// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // This thread must not subtract another thread's memory.
        HELD.set(HELD.get().saturating_sub(layout.size()));
        unsafe { System.dealloc(memory, layout) }
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist while one is copied to the other.
        took(size);
        HELD.set(HELD.get().saturating_sub(layout.size()));
        unsafe { System.realloc(memory, layout, size) }
    }
}

fn took(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    HELD.set(HELD.get() + bytes);
    MAX_HELD_BYTES.set(MAX_HELD_BYTES.get().max(HELD.get()));
}

/// How often `work` allocates.
pub(crate) fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// The most that `work` holds at any moment, in bytes.
pub(crate) fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    MAX_HELD_BYTES.set(before);
    work();
    MAX_HELD_BYTES.get() - before
}
