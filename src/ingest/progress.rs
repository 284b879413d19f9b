//! Progress of an analysis, for another thread to show.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of files read, and of those found. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Files>);

#[derive(Debug, Default)]
struct Files {
    read: AtomicU64,
    found: AtomicU64,
}

impl Progress {
    /// Counts files that are going to be read.
    pub fn found(&self, files: usize) {
        self.0.found.fetch_add(files as u64, Ordering::Relaxed);
    }

    /// Counts a file that was read.
    pub fn read(&self) {
        self.0.read.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of files read, and of those found so far.
    #[must_use]
    pub fn files(&self) -> (u64, u64) {
        let read = self.0.read.load(Ordering::Relaxed);
        (read, self.0.found.load(Ordering::Relaxed).max(read))
    }
}
