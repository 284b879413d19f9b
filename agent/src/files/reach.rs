//! Opens what a path leads to, without following a link of another user.

use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::calls;
use super::walk::{MAX_LINKS, Missing, begin, can_any_other_write, components, step};
use crate::{sys, trust};

/// Opens a file or directory of any user as it is (`O_PATH`). Links of this user and of root are followed, wherever they
/// are on the path. What is opened was reached component by component: an exchange of a component has no effect.
///
/// # Errors
///
/// If it cannot be opened, or a component is a link of another user, who chooses where it leads.
pub fn reach(path: &Path) -> io::Result<OwnedFd> {
    let mut left = VecDeque::new();
    let mut fd = begin(path, &mut left)?;
    let mut shown = if path.is_absolute() { PathBuf::from("/") } else { PathBuf::new() };
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let component = CString::new(name.as_bytes())?;
        let next = step(fd.as_fd(), &component, Missing::Fail)?;
        let (directory, entry) = (calls::status(fd.as_fd())?, calls::status(next.as_fd())?);
        if entry.st_mode & libc::S_IFMT != libc::S_IFLNK {
            shown.push(&name);
            fd = next;
            continue;
        }
        // In a rootless container, the owner of links of the host's root is unmapped, as are its other users.
        let is_systems = entry.st_uid == 0
            || trust::is_unmapped(entry.st_uid) && !can_any_other_write(directory.st_mode);
        if entry.st_uid != sys::effective_uid() && !is_systems {
            return Err(not_followed(&shown.join(&name), entry.st_uid, left.is_empty()));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        if shown.starts_with("/proc") {
            // The text of such a link need not be a path, and only the kernel makes them.
            fd = calls::open(Some(fd.as_fd()), &component, libc::O_PATH, 0)?;
            shown.push(&name);
            continue;
        }
        let target = PathBuf::from(OsString::from_vec(calls::target(next.as_fd())?));
        let mut rest = std::mem::take(&mut left);
        if target.is_absolute() {
            fd = begin(&target, &mut left)?;
            shown = PathBuf::from("/");
        } else {
            components(&target, &mut left);
        }
        left.append(&mut rest);
    }
    Ok(fd)
}

/// The error for a link of another user. The caller states the path if the link is its last component.
fn not_followed(link: &Path, user: u32, is_last: bool) -> io::Error {
    let it = if is_last { "it".to_owned() } else { link.display().to_string() };
    let why = format!("{it} is a link of user {user}: give the path that it leads to");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
