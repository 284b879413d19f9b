//! Opens what a path leads to, without following a link of another user.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::calls;
use super::walk::{Missing, Way, is_of_root, is_trusted, step};
use crate::sys;

/// Opens a file or directory of any user as it is (`O_PATH`). Links of this user and of root are followed, wherever they
/// are on the path. What is opened was reached component by component: an exchange of a component has no effect.
///
/// # Errors
///
/// If it cannot be opened, or a component is a link of another user, who chooses where it leads. The same if it is a file
/// that another user has put into a folder without being able to read it: a hard link, or a file that was moved there.
pub fn reach(path: &Path) -> io::Result<OwnedFd> {
    let mut way = Way::begin(path)?;
    while let Some(name) = way.left.pop_front() {
        let component = CString::new(name.as_bytes())?;
        let next = step(way.fd.as_fd(), &component, Missing::Fail)?;
        let (directory, entry) = (calls::status(way.fd.as_fd())?, calls::status(next.as_fd())?);
        if entry.st_mode & libc::S_IFMT != libc::S_IFLNK {
            if !is_trusted(&directory, &way.shown) && is_planted(&directory, &entry) {
                return Err(planted(entry.st_uid, directory.st_uid));
            }
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

/// Whether the owner of a directory need not have been able to read a file in it: it belongs to somebody else, and has
/// several names or is not readable by everybody.
fn is_planted(directory: &libc::stat, entry: &libc::stat) -> bool {
    const READABLE: u32 = 0o004;
    entry.st_mode & libc::S_IFMT == libc::S_IFREG
        && entry.st_uid != directory.st_uid
        && (entry.st_nlink > 1 || entry.st_mode & READABLE == 0)
}

fn planted(owner: u32, other: u32) -> io::Error {
    let why = format!(
        "it belongs to user {owner}, and user {other}, whose folder it is in, can have put it there without being able \
         to read it: copy it to a folder of your own"
    );
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
