//! Removal of a directory with its contents.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir as Listing, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::user_id;

/// Maximum depth of directories: those of black boxes have one level.
const MAX_DEPTH: u32 = 16;

/// Removes a directory of this user and everything in it, within one file system. Directories in it that belong to
/// other users stay, and then it stays, too.
pub(super) fn remove_all(parent: impl AsFd, name: &CStr) -> io::Result<()> {
    let device = fstat(&parent)?.st_dev;
    within(parent, name, device, MAX_DEPTH)
}

fn within(parent: impl AsFd, name: &CStr, device: u64, depth: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory: OwnedFd = openat(&parent, name, flags, Mode::empty())?;
    let found = fstat(&directory)?;
    if found.st_uid != user_id() || found.st_dev != device || depth == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    for entry in Listing::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let removed = match entry.file_type() {
            FileType::Directory => within(&directory, name, device, depth - 1),
            _ => unlinkat(&directory, name, AtFlags::empty()).map_err(io::Error::from),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
