//! Lock of a directory of boxes, held by the one process that follows them.
//!
//! A lock instead of a pid, since the directory may be shared by containers with different pid
//! namespaces.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::files::{Access, Dir, KnownDirectories, Missing};
use crate::sys;

/// File in a directory of boxes that says which kind of process follows them.
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
    /// Acquires the lock; `None`: another process holds it, or released it just now.
    ///
    /// # Errors
    ///
    /// If the directory belongs to another user, or cannot be locked.
    pub fn begin(directory: &Path, who: FollowedBy) -> io::Result<Option<Self>> {
        Self::begin_in(directory, who, &KnownDirectories::default())
    }

    /// Like [`Self::begin`], for one of these directories.
    ///
    /// # Errors
    ///
    /// Like [`Self::begin`], or if another user can have put another directory there.
    pub fn begin_in(
        directory: &Path,
        who: FollowedBy,
        known: &KnownDirectories,
    ) -> io::Result<Option<Self>> {
        let directory = Dir::open(directory, Missing::Fail)?.own()?.one_of(known)?;
        if !directory.is_private()? {
            return Self::begin_with_file(&directory, who);
        }
        // The directory itself: it can be locked when its file system is full.
        let file = directory.readable()?;
        if !sys::lock(&file, true)? {
            return Ok(None);
        }
        // Only the process with the lock does this. The lock counts even if there is no room for the
        // word.
        drop(directory.remove(FOLLOWED.as_ref()));
        let word = directory.new_file(FOLLOWED.as_ref());
        drop(word.and_then(|mut file| writeln!(file, "{}", who.word())));
        Ok(Some(Self { _file: file }))
    }

    /// Locks the file with the word, which no other user can open. A user who may read a directory can lock it.
    fn begin_with_file(directory: &Dir, who: FollowedBy) -> io::Result<Option<Self>> {
        let opened = directory.open_own_file(FOLLOWED.as_ref(), Access::ReadWrite);
        let mut file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match directory.new_file(FOLLOWED.as_ref()) {
                    // Another process created it just now, and may hold its lock.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                    created => created?,
                }
            }
            Err(_) => {
                // It is not a file of this user alone.
                directory.remove(FOLLOWED.as_ref())?;
                directory.new_file(FOLLOWED.as_ref())?
            }
            Ok(file) => file,
        };
        // Its last owner may have removed it meanwhile.
        if !sys::lock(&file, true)? || !directory.has(FOLLOWED.as_ref(), &file) {
            return Ok(None);
        }
        file.set_len(0)?;
        // As above.
        drop(writeln!(file, "{}", who.word()));
        Ok(Some(Self { _file: file }))
    }

    /// The process that currently follows the directory, if any. Locks of others in a directory of
    /// another user do not count.
    #[must_use]
    pub fn found(directory: &Path) -> Option<FollowedBy> {
        let directory = Dir::open(directory, Missing::Fail).and_then(Dir::own).ok()?;
        let word = directory.open_own_file(FOLLOWED.as_ref(), Access::Read);
        let is_free = if directory.is_private().ok()? {
            sys::lock(&directory.readable().ok()?, false)
        } else {
            sys::lock(word.as_ref().ok()?, false)
        };
        if is_free.unwrap_or(true) {
            return None;
        }
        let mut start = [0; 3];
        let is_run =
            word.is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && start == *b"run";
        Some(if is_run { FollowedBy::Run } else { FollowedBy::Reporter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the lock of the directory, and that of a file in a directory that others can lock, too.
    #[test]
    fn directory_has_one_follower_at_a_time() {
        use std::os::unix::fs::PermissionsExt;
        for mode in [0o700, 0o755, 0o777] {
            let directory = tempfile::tempdir().unwrap();
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path(), permissions).unwrap();
            has_one_follower_at_a_time(directory.path());
        }
    }

    /// All of them find no file, and one creates it.
    #[test]
    fn one_of_many_processes_follows_a_directory() {
        use std::os::unix::fs::PermissionsExt;
        for _ in 0..200 {
            let directory = tempfile::tempdir().unwrap();
            let permissions = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(directory.path(), permissions).unwrap();
            let barrier = std::sync::Barrier::new(4);
            let begin = || {
                barrier.wait();
                Following::begin(directory.path(), FollowedBy::Reporter).unwrap()
            };
            let followers = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(begin));
                threads.map(|it| it.join().unwrap())
            });
            assert_eq!(followers.iter().flatten().count(), 1);
        }
    }

    fn has_one_follower_at_a_time(directory: &Path) {
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
