//! An open directory, and what can be done with the entries of it.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::calls;
use super::known::{Identity, KnownDirectories};
use super::mounts::is_entry_served_by_other;
use super::walk::{AS_IT_IS, Missing, OF_ANOTHER, can_others_write, refused, walk};
use crate::sys;

const ANY_PERMISSION: u32 = 0o077;

/// An open directory. It stays the same directory whatever happens to its path.
#[derive(Debug)]
pub(crate) struct Dir {
    /// Opened with `O_PATH`: the directory need not be readable.
    fd: OwnedFd,
    path: PathBuf,
    /// Whether another user can have put another directory in its place.
    is_changeable: bool,
}

/// What an existing file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

impl Dir {
    /// Opens a directory of any user.
    pub(crate) fn open(path: &Path, missing: Missing) -> io::Result<Self> {
        let walked = walk(path, missing)?;
        let found = calls::status(walked.fd.as_fd())?;
        let is_shared = can_others_write(found.st_mode, found.st_gid);
        let is_changeable = is_shared || walked.changeable.is_some();
        Ok(Self { fd: walked.fd, path: path.to_owned(), is_changeable })
    }

    /// Opens the directory that contains a path, which may belong to any user. Also returns the name
    /// in it.
    pub(crate) fn parent(path: &Path) -> io::Result<(Self, &OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        Ok((Self::open(parent.unwrap_or(Path::new(".")), Missing::Fail)?, name))
    }

    /// Fails if the directory belongs to another user.
    pub(crate) fn own(self) -> io::Result<Self> {
        let owner = calls::status(self.as_fd())?.st_uid;
        if owner == sys::effective_uid() {
            return Ok(self);
        }
        Err(refused(&self.path, &format!("belongs to user {owner}")))
    }

    /// Fails if another user can have put the directory where it is, and it is not one of these.
    pub(crate) fn one_of(self, known: &KnownDirectories) -> io::Result<Self> {
        if known.admit(self.identity()?, self.is_changeable) {
            return Ok(self);
        }
        Err(refused(&self.path, "is not the directory that was made for black boxes"))
    }

    /// Identifies the open directory.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        let found = calls::status(self.as_fd())?;
        Ok(Identity { device: found.st_dev, inode: found.st_ino })
    }

    /// Whether only this user may open the directory.
    pub(crate) fn is_private(&self) -> io::Result<bool> {
        Ok(calls::status(self.as_fd())?.st_mode & ANY_PERMISSION == 0)
    }

    /// Whether an entry is this open file.
    pub(crate) fn has(&self, name: &OsStr, file: &File) -> bool {
        let named = component(name).and_then(|it| calls::status_of(self.as_fd(), &it));
        let opened = calls::status(file.as_fd());
        named.is_ok_and(|named| {
            opened.is_ok_and(|it| (it.st_dev, it.st_ino) == (named.st_dev, named.st_ino))
        })
    }

    /// The path without links by which the kernel knows the open directory.
    pub(crate) fn canonical_path(&self) -> io::Result<PathBuf> {
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        std::fs::read_link(link).or_else(|_| std::path::absolute(&self.path))
    }

    /// Opens a directory in this one that only this user may enter.
    pub(crate) fn private_child(&self, name: &OsStr, missing: Missing) -> io::Result<Self> {
        let component = component(name)?;
        if missing == Missing::Create {
            match calls::make_dir(self.as_fd(), &component) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let path = self.path.join(name);
        let flags = AS_IT_IS | libc::O_DIRECTORY;
        let fd =
            calls::open(Some(self.as_fd()), &component, flags, 0).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::NotADirectory => refused(&path, "is not a directory"),
                    _ => error,
                }
            })?;
        if is_entry_served_by_other(self.as_fd(), &fd) {
            return Err(refused(&path, OF_ANOTHER));
        }
        // Other users can neither create nor move such a directory.
        let child = Self { fd, path, is_changeable: false }.own()?;
        if !child.is_private()? {
            return Err(refused(&child.path, "is accessible to other users"));
        }
        Ok(child)
    }

    /// A descriptor that can be read and locked.
    pub(crate) fn readable(&self) -> io::Result<File> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        Ok(calls::open(Some(self.as_fd()), c".", flags, 0)?.into())
    }

    /// Whether there is an entry with this name, of any type.
    pub(crate) fn contains(&self, name: &OsStr) -> bool {
        component(name).is_ok_and(|it| calls::status_of(self.as_fd(), &it).is_ok())
    }

    /// Creates a file that only this user may read and write, and opens it for both.
    pub(crate) fn new_file(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        Ok(calls::open(Some(self.as_fd()), &component(name)?, flags, 0o600)?.into())
    }

    /// Opens a regular file that belongs to this user, has one name, and that only this user can
    /// have written to.
    pub(crate) fn open_own_file(&self, name: &OsStr, access: Access) -> io::Result<File> {
        let component = component(name)?;
        // Checked first, since opening a device can have side effects, and again afterwards.
        check(&calls::status_of(self.as_fd(), &component)?)?;
        let access = match access {
            Access::Read => libc::O_RDONLY,
            Access::ReadWrite => libc::O_RDWR,
        };
        let flags = access | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = calls::open(Some(self.as_fd()), &component, flags, 0)?;
        check(&calls::status(file.as_fd())?)?;
        Ok(file.into())
    }

    /// Gives an entry another name. A file with this name is replaced.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        calls::rename(self.as_fd(), &component(from)?, &component(to)?)
    }

    /// Removes an entry that is not a directory.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        calls::remove(self.as_fd(), &component(name)?)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check(found: &libc::stat) -> io::Result<()> {
    let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if found.st_mode & libc::S_IFMT != libc::S_IFREG {
        refuse("it is not a regular file")
    } else if found.st_uid != sys::effective_uid() {
        refuse("it belongs to another user")
    } else if found.st_nlink > 1 {
        refuse("it has another name")
    } else if can_others_write(found.st_mode, found.st_gid) {
        refuse("it is writable by other users")
    } else {
        Ok(())
    }
}

/// A name that is one component of a path.
fn component(name: &OsStr) -> io::Result<CString> {
    let bytes = name.as_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(CString::new(bytes)?)
}
