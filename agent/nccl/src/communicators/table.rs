//! Table of communicators by their handles.
//!
//! NCCL reuses addresses. A handle stands for the communicator that was created last with it, until
//! the program destroys that communicator.
//!
//! Lookups take no lock. Inserting and removing take a lock that is held only for the change; if
//! the lock cannot be acquired, for example in a child forked meanwhile, the change is skipped.
#![expect(unsafe_code, reason = "lends what a static pointer leads to")]

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::thread;

use super::communicator::Communicator;
use crate::nccl::abi::Comm;

/// Maximum number of communicators at a time. More than any program has, since NCCL allocates
/// device memory for each.
const ENTRIES: usize = 4096;
/// Entries that are searched for a handle.
const PROBES: usize = 64;
/// A removed entry. The search continues behind it.
const GONE: usize = 1;

struct Entry {
    handle: AtomicUsize,
    /// Never freed, since another thread may be about to use it.
    communicator: AtomicPtr<Communicator>,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry { handle: AtomicUsize::new(0), communicator: AtomicPtr::new(ptr::null_mut()) }
}; ENTRIES];

/// Locked while the table changes.
static CHANGING: Mutex<()> = Mutex::new(());

/// The communicator that a handle stands for.
#[inline]
pub(crate) fn find(handle: Comm) -> Option<&'static Communicator> {
    let entry = places(handle)
        .map_while(|entry| match entry.handle.load(Ordering::Acquire) {
            0 => None,
            found => Some((found, entry)),
        })
        .find_map(|(found, entry)| (found == handle.addr()).then_some(entry))?;
    let communicator = entry.communicator.load(Ordering::Acquire);
    // SAFETY: null, or a communicator that was leaked before it was stored.
    unsafe { communicator.as_ref() }
}

/// Makes the handle stand for this communicator. `None`: no room, or the lock is not available.
pub(super) fn insert(
    handle: Comm,
    mut communicator: Communicator,
) -> Option<&'static Communicator> {
    if handle.addr() <= GONE {
        return None;
    }
    with_lock(|| {
        let known = places(handle).find(|it| it.handle.load(Ordering::Relaxed) == handle.addr());
        let free = || places(handle).find(|it| it.handle.load(Ordering::Relaxed) <= GONE);
        let entry = known.or_else(free)?;
        communicator.handle = handle;
        let communicator: &'static Communicator = Box::leak(Box::new(communicator));
        let pointer = ptr::from_ref(communicator).cast_mut();
        entry.communicator.store(pointer, Ordering::Release);
        entry.handle.store(handle.addr(), Ordering::Release);
        Some(communicator)
    })
    .flatten()
}

/// Removes the handle and returns its communicator.
pub(crate) fn remove(handle: Comm) -> Option<&'static Communicator> {
    let found = find(handle)?;
    with_lock(|| {
        let entry = places(handle).find(|it| it.handle.load(Ordering::Relaxed) == handle.addr());
        if let Some(entry) = entry {
            entry.handle.store(GONE, Ordering::Release);
            entry.communicator.store(ptr::null_mut(), Ordering::Release);
        }
    })?;
    Some(found)
}

/// Entries in which a handle may be.
#[inline]
fn places(handle: Comm) -> impl Iterator<Item = &'static Entry> {
    // Addresses of one allocation size differ in their middle bits.
    let first = (handle.addr() >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 12);
    (0..PROBES).filter_map(move |i| TABLE.get((first + i) % ENTRIES))
}

fn with_lock<T>(work: impl FnOnce() -> T) -> Option<T> {
    for _ in 0..1000 {
        match CHANGING.try_lock() {
            Ok(_lock) => return Some(work()),
            Err(std::sync::TryLockError::Poisoned(_)) => return None,
            Err(std::sync::TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_handle_is_another_communicator() {
        let handle = |n: usize| ptr::without_provenance_mut::<libc::c_void>(0x7000_0000 + n * 64);
        for n in 0..500 {
            assert!(insert(handle(n), Communicator::registered_as(n as u32 + 1)).is_some());
        }
        for n in 0..500 {
            assert_eq!(find(handle(n)).and_then(Communicator::registered), Some(n as u32 + 1));
        }
        for n in (0..500).step_by(2) {
            assert_eq!(remove(handle(n)).and_then(Communicator::registered), Some(n as u32 + 1));
            assert!(find(handle(n)).is_none());
        }
        assert!(remove(handle(0)).is_none());
        insert(handle(0), Communicator::registered_as(7000));
        insert(handle(1), Communicator::registered_as(7001));
        assert_eq!(find(handle(0)).and_then(Communicator::registered), Some(7000));
        assert_eq!(find(handle(1)).and_then(Communicator::registered), Some(7001));
        assert_eq!(find(handle(3)).and_then(Communicator::registered), Some(4));
        assert!(insert(ptr::null_mut(), Communicator::registered_as(1)).is_none());
        assert!(find(ptr::null_mut()).is_none());
    }
}
