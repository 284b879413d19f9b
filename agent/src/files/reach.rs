//! Opens what a path leads to, without following a link of another user.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::calls;
use super::walk::{Missing, Way, is_of_root, step};
use crate::sys;

/// Opens a file or directory of any user as it is (`O_PATH`). Links of this user and of root are followed, wherever they
/// are on the path. What is opened was reached component by component: an exchange of a component has no effect.
///
/// # Errors
///
/// If it cannot be opened, or a component is a link of another user, who chooses where it leads.
pub fn reach(path: &Path) -> io::Result<OwnedFd> {
    let mut way = Way::begin(path)?;
    while let Some(name) = way.left.pop_front() {
        let component = CString::new(name.as_bytes())?;
        let next = step(way.fd.as_fd(), &component, Missing::Fail)?;
        let (directory, entry) = (calls::status(way.fd.as_fd())?, calls::status(next.as_fd())?);
        if entry.st_mode & libc::S_IFMT != libc::S_IFLNK {
            way.enter(&name, next);
            continue;
        }
        if entry.st_uid != sys::effective_uid() && !is_of_root(&directory, &entry, &way.shown) {
            let link = way.shown.join(&name);
            return Err(not_followed(&link, entry.st_uid, way.left.is_empty()));
        }
        if way.shown.starts_with("/proc") {
            // The text of such a link need not be a path, and only the kernel makes them.
            let followed = calls::open(Some(way.fd.as_fd()), &component, libc::O_PATH, 0)?;
            way.enter(&name, followed);
        } else {
            way.follow(next.as_fd())?;
        }
    }
    Ok(way.fd)
}

/// The error for a link of another user. The caller states the path if the link is its last component.
fn not_followed(link: &Path, user: u32, is_last: bool) -> io::Error {
    let it = if is_last { "it".to_owned() } else { link.display().to_string() };
    let why = format!("{it} is a link of user {user}: give the path that it leads to");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
