//! Counts the bytes that the program has allocated and not freed.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The allocator of the system, with a counter.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Bytes that are allocated now, without those that the allocator adds or keeps.
pub(crate) fn allocated() -> u64 {
    ALLOCATED.load(Ordering::Relaxed)
}

// SAFETY: every call is passed on to the allocator of the system, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of this function.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size as u64, Ordering::Relaxed);
        ALLOCATED.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of this function.
        unsafe { System.realloc(at, layout, size) }
    }
}
