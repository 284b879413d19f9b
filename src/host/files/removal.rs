//! Removal of a directory with its contents.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir as Listing, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::{Identity, user_id};

/// Maximum depth of directories: those of black boxes have one level.
const MAX_DEPTH: u32 = 16;

/// Removes this directory of this user and everything in it, within one file system. Directories in it that belong to
/// other users stay, and then it stays, too.
///
/// The identity is compared with that of the open directory: another user who can write to `parent` can have renamed
/// any other directory of this user to this name.
pub(super) fn remove_all(parent: impl AsFd, name: &CStr, identity: Identity) -> io::Result<()> {
    let directory = open(&parent, name)?;
    let found = fstat(&directory)?;
    if (found.st_dev, found.st_ino) != (identity.device, identity.inode) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "another directory has its name",
        ));
    }
    within(parent, name, &directory, identity.device, MAX_DEPTH)
}

fn open(parent: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Removes an open directory, which `parent` has under this name.
fn within(
    parent: impl AsFd,
    name: &CStr,
    directory: &OwnedFd,
    device: u64,
    depth: u32,
) -> io::Result<()> {
    let found = fstat(directory)?;
    if found.st_uid != user_id() || found.st_dev != device || depth == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    for entry in Listing::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let removed = match entry.file_type() {
            FileType::Directory => {
                open(directory, name).and_then(|it| within(directory, name, &it, device, depth - 1))
            }
            _ => unlinkat(directory, name, AtFlags::empty()).map_err(io::Error::from),
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
