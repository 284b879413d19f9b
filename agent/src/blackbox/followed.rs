//! Lock of a directory of boxes, held by the one process that follows them.
//!
//! A lock instead of a pid, since the directory may be shared by containers with different pid
//! namespaces.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::sys;

/// File in a directory of boxes that says which kind of process follows them.
pub const FOLLOWED: &str = "followed";
/// Neither follow links, nor block, nor leave the descriptor to programs.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;

/// The kind of process that follows a directory of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowedBy {
    /// `ddp-doctor run`, until the command that it started ends.
    Run,
    /// A reporter that a rank started, while there are ranks.
    Reporter,
}

impl FollowedBy {
    const fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Reporter => "reporter",
        }
    }
}

/// The exclusive right to follow the boxes of a directory, until it is dropped or the process
/// exits.
#[derive(Debug)]
pub struct Following {
    /// Holds the lock.
    _file: File,
}

impl Following {
    /// Acquires the lock; `None`: another process holds it.
    pub fn begin(directory: &Path, who: FollowedBy) -> io::Result<Option<Self>> {
        let file = lockable(directory)?;
        if !sys::lock(&file, true)? {
            return Ok(None);
        }
        // The lock counts, also if the file system has no room for the word.
        let word = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(FLAGS)
            .open(directory.join(FOLLOWED));
        drop(word.and_then(|mut file| writeln!(file, "{}", who.word())));
        Ok(Some(Self { _file: file }))
    }

    /// The process that currently follows the directory, if any.
    #[must_use]
    pub fn found(directory: &Path) -> Option<FollowedBy> {
        if sys::lock(&lockable(directory).ok()?, false).unwrap_or(true) {
            return None;
        }
        let word = OpenOptions::new().read(true).custom_flags(FLAGS).open(directory.join(FOLLOWED));
        let mut start = [0; 3];
        let is_run =
            word.is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && start == *b"run";
        Some(if is_run { FollowedBy::Run } else { FollowedBy::Reporter })
    }
}

/// The directory itself: it can be locked when its file system is full.
fn lockable(directory: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(FLAGS | libc::O_DIRECTORY).open(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_has_one_follower_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        assert_eq!(Following::found(directory), None);
        let first = Following::begin(directory, FollowedBy::Run).unwrap();
        assert!(first.is_some());
        assert_eq!(Following::found(directory), Some(FollowedBy::Run));
        let second = Following::begin(directory, FollowedBy::Reporter).unwrap();
        assert!(second.is_none());
        assert_eq!(Following::found(directory), Some(FollowedBy::Run));
        drop(first);
        // A child that another test has just forked keeps the lock until it calls `exec`.
        while Following::found(directory).is_some() {
            std::thread::yield_now();
        }
        let third = Following::begin(directory, FollowedBy::Reporter).unwrap();
        assert!(third.is_some());
        assert_eq!(Following::found(directory), Some(FollowedBy::Reporter));
    }
}
