//! Opens what a path leads to, without following a link of another user.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::calls;
use super::walk::{Missing, OF_ANOTHER, Way, can_others_write, refused, step};
use crate::sys;

/// Opens a file or directory of any user as it is (`O_PATH`). Links of this user and of root are followed, wherever they
/// are on the path. What is opened was reached component by component: an exchange of a component has no effect.
///
/// # Errors
///
/// If it cannot be opened, or a component is a link of another user, who chooses where it leads: of the owner, or of the
/// user who mounted the FUSE file system that it is on. The same if it is a file that another user can have put where it is
/// without being able to read it: a hard link, or a file that was moved there.
pub fn reach(path: &Path) -> io::Result<OwnedFd> {
    reached(Way::begin(path)?)
}

/// Like [`reach`], for an entry of an open directory. `shown`: the path of the directory, for messages.
///
/// # Errors
///
/// Like [`reach`].
pub fn reach_in(directory: OwnedFd, shown: &Path, name: &OsStr) -> io::Result<OwnedFd> {
    reached(Way::within(directory, shown, name))
}

fn reached(mut way: Way) -> io::Result<OwnedFd> {
    while let Some(name) = way.left.pop_front() {
        let component = CString::new(name.as_bytes())?;
        let next = step(way.fd.as_fd(), &component, Missing::Fail)?;
        let (directory, entry) = (calls::status(way.fd.as_fd())?, calls::status(next.as_fd())?);
        if entry.st_mode & libc::S_IFMT != libc::S_IFLNK {
            if is_planted(&directory, way.is_trusted(&directory), &entry) {
                return Err(planted(entry.st_uid));
            }
            let mount = way.mount_of(&name, &next);
            way.enter(&name, next, mount);
            continue;
        }
        if way.mount.is_served || !is_own_link(&way, &directory, &entry) {
            let whose = if way.mount.is_served {
                "on a file system of another user".to_owned()
            } else {
                format!("of user {}", entry.st_uid)
            };
            return Err(not_followed(&way.shown.join(&name), &whose, way.left.is_empty()));
        }
        if calls::is_in_proc(way.fd.as_fd()) {
            // The text of such a link need not be a path.
            let followed = calls::open(Some(way.fd.as_fd()), &component, libc::O_PATH, 0)?;
            let mount = way.mount_of(&name, &followed);
            way.begin_process();
            way.enter(&name, followed, mount);
        } else {
            way.follow(next.as_fd())?;
        }
    }
    Ok(way.fd)
}

/// Opens what a path leads to as it is (`O_PATH`), through links of all users, for a path that this user chose. Nothing is
/// asked of a FUSE file system that another user mounted.
///
/// # Errors
///
/// If it cannot be opened, or is on such a file system.
pub fn find(path: &Path) -> io::Result<OwnedFd> {
    found(path, true)
}

/// Like [`find`], but without following links of other users.
///
/// # Errors
///
/// Like [`find`], and if a component is such a link.
pub fn find_by_own_links(path: &Path) -> io::Result<OwnedFd> {
    found(path, false)
}

fn found(path: &Path, by_all_links: bool) -> io::Result<OwnedFd> {
    let mut way = Way::begin(path)?;
    loop {
        if way.mount.is_served {
            return Err(refused(&way.shown, OF_ANOTHER));
        }
        let Some(name) = way.left.pop_front() else { return Ok(way.fd) };
        let next = step(way.fd.as_fd(), &CString::new(name.as_bytes())?, Missing::Fail)?;
        let mount = way.mount_of(&name, &next);
        let is_link = || {
            Ok::<_, io::Error>(calls::status(next.as_fd())?.st_mode & libc::S_IFMT == libc::S_IFLNK)
        };
        if !mount.is_served && is_link()? {
            let (directory, link) = (calls::status(way.fd.as_fd())?, calls::status(next.as_fd())?);
            if !by_all_links && !is_own_link(&way, &directory, &link) {
                let whose = format!("of user {}", link.st_uid);
                return Err(not_followed(&way.shown.join(&name), &whose, way.left.is_empty()));
            }
            way.follow(next.as_fd())?;
        } else {
            way.enter(&name, next, mount);
        }
    }
}

/// Whether a link belongs to this user or to root.
fn is_own_link(way: &Way, directory: &libc::stat, link: &libc::stat) -> bool {
    link.st_uid == sys::effective_uid() || way.is_of_root(directory, link)
}

/// The error for a link of another user. The caller states the path if the link is its last component.
fn not_followed(link: &Path, whose: &str, is_last: bool) -> io::Error {
    let it = if is_last { "it".to_owned() } else { link.display().to_string() };
    let why = format!("{it} is a link {whose}: give the path that it leads to");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Whether another user can have put a file into a directory without being able to read it. The owner of a directory that
/// is not `is_trusted` can have done so if the file belongs to somebody else, and has several names or is not readable by
/// everybody. Where others can write, a private file has several names if one of them made a hard link to it.
fn is_planted(directory: &libc::stat, is_trusted: bool, entry: &libc::stat) -> bool {
    const READABLE: u32 = 0o004;
    let (has_several_names, is_private) = (entry.st_nlink > 1, entry.st_mode & READABLE == 0);
    let by_owner =
        || !is_trusted && entry.st_uid != directory.st_uid && (has_several_names || is_private);
    let by_others =
        || has_several_names && is_private && can_others_write(directory.st_mode, directory.st_gid);
    entry.st_mode & libc::S_IFMT == libc::S_IFREG && (by_owner() || by_others())
}

fn planted(owner: u32) -> io::Error {
    let why = format!(
        "it belongs to user {owner}, and another user can have put it there without being able to read it: copy it to \
         a folder of your own"
    );
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
