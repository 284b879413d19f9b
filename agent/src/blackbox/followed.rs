//! Lock of a directory of boxes, held by the one process that follows them.
//!
//! A lock instead of a pid, since the directory may be shared by containers with different pid
//! namespaces.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::sys;

/// File in a directory of boxes that the follower locks.
pub const FOLLOWED: &str = "followed";

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
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(directory.join(FOLLOWED))?;
        if !sys::lock(&file, true)? {
            return Ok(None);
        }
        // The lock counts, also where the file system has no room for the word.
        drop(
            file.set_len(0)
                .and_then(|()| writeln!(file, "{}", who.word())),
        );
        Ok(Some(Self { _file: file }))
    }

    /// The process that currently follows the directory, if any.
    #[must_use]
    pub fn found(directory: &Path) -> Option<FollowedBy> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(directory.join(FOLLOWED))
            .ok()?;
        if sys::lock(&file, false).unwrap_or(true) {
            return None;
        }
        let mut word = [0; 16];
        file.rewind().ok()?;
        let length = file.read(&mut word).ok()?;
        let is_run = word.get(..length)?.starts_with(b"run");
        Some(if is_run {
            FollowedBy::Run
        } else {
            FollowedBy::Reporter
        })
    }
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
        assert_eq!(Following::found(directory), None);
        let third = Following::begin(directory, FollowedBy::Reporter).unwrap();
        assert!(third.is_some());
        assert_eq!(Following::found(directory), Some(FollowedBy::Reporter));
    }
}
