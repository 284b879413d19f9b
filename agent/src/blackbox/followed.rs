//! Who follows the boxes of a directory: one process at a time, as long as it holds a lock.
//!
//! A lock and not a process number, since the directory may be shared by containers in which the
//! same process has different numbers.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::sys;

/// File in a directory of boxes that is locked by whoever follows them.
pub const FOLLOWED: &str = "followed";

/// Who follows a directory of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowedBy {
    /// `ddp-doctor run`, which does so for as long as the command lasts that it started.
    Run,
    /// A reporter that a rank started, which does so for as long as there are ranks.
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

/// The right to follow the boxes of a directory, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Following {
    /// The lock is the file's.
    _file: File,
}

impl Following {
    /// Takes it; `None`: somebody else has it.
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
        file.set_len(0)?;
        writeln!(file, "{}", who.word())?;
        Ok(Some(Self { _file: file }))
    }

    /// Who has it now, if anybody does.
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
    fn one_follows_at_a_time() {
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
