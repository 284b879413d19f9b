//! Memory that untrusted input may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory of the tables of one job, in bytes.
pub const JOB_TABLES: usize = 1 << 30;

/// An amount of memory, possibly a part of a larger one. What is taken is given back when this is
/// dropped.
#[derive(Debug)]
pub struct Memory {
    limit: usize,
    taken: AtomicUsize,
    whole: Option<Arc<Self>>,
}

impl Memory {
    /// Memory of this many bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { limit, taken: AtomicUsize::new(0), whole: None }
    }

    /// A part of at most this many bytes. What it takes is also taken from the whole.
    #[must_use]
    pub const fn part(limit: usize, whole: Arc<Self>) -> Self {
        Self { limit, taken: AtomicUsize::new(0), whole: Some(whole) }
    }

    /// Takes this many bytes; false: there is not enough, and nothing is taken.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let take = |taken: usize| taken.checked_add(bytes).filter(|&it| it <= self.limit);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if taken.is_err() {
            return false;
        }
        let is_in_whole = self.whole.as_ref().is_none_or(|it| it.take(bytes));
        if !is_in_whole {
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_in_whole
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(whole) = &self.whole {
            whole.give_back(*self.taken.get_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_the_whole_and_give_back() {
        let whole = Arc::new(Memory::new(100));
        let first = Memory::part(80, Arc::clone(&whole));
        let second = Memory::part(80, Arc::clone(&whole));
        assert!(!first.take(81));
        assert!(first.take(80));
        assert!(!second.take(21));
        assert!(second.take(20));
        assert!(!second.take(usize::MAX));
        drop(first);
        assert!(second.take(60));
        assert!(!second.take(1));
        let nested = Memory::part(80, Arc::new(second));
        assert!(!nested.take(1));
        drop(nested);
        assert!(whole.take(100));
    }
}
