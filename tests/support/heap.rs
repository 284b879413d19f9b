//! Counts the bytes that a thread allocates: a measure of work that does not depend on the machine.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The allocator of the system, with a counter.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that this thread allocates in a function, whether it frees them or not.
pub(crate) fn allocated_by(work: impl FnOnce()) -> u64 {
    let before = ALLOCATED.get();
    work();
    ALLOCATED.get() - before
}

fn count(bytes: usize) {
    // A thread that ends may allocate after its variables are gone.
    _ = ALLOCATED.try_with(|it| it.set(it.get() + bytes as u64));
}

// SAFETY: every call is passed on to the allocator of the system, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller fulfills the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfills the contract of this function.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller fulfills the contract of this function.
        unsafe { System.realloc(at, layout, size) }
    }
}
