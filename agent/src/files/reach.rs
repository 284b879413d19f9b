//! Opens what a path leads to, without following a link of another user.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::calls;
use super::walk::{Missing, OF_ANOTHER, Way, can_others_write, components, refused, step};
use crate::sys;

/// Number of the root directory of `/proc`, whose links are paths.
const PROC_ROOT: u64 = 1;

/// What is done with what is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// It is used here alone.
    Use,
    /// Others are shown what is in it.
    Show,
    /// It is a folder, and others are shown what is in its files.
    Search,
}

/// Opens a file or directory of any user as it is (`O_PATH`), whose contents others may be shown. Links of this user and of
/// root are followed, wherever they are on the path; those that another user can have moved there only to what everybody
/// can read. What is opened was reached component by component: an exchange of a component has no effect.
///
/// # Errors
///
/// If it cannot be opened, or a component is a link of another user, who chooses where it leads: of the owner, or of the
/// user who mounted the FUSE file system that it is on. The same if another user can have put a file where it is, or a link
/// to it, without being able to read it: a hard link, or what was moved there.
pub fn reach(path: &Path) -> io::Result<OwnedFd> {
    reached(Way::begin(path)?, Purpose::Show, None)
}

/// Like [`reach`], for a folder that is searched for evidence.
///
/// # Errors
///
/// Like [`reach`], and if another user can have renamed the folder without being able to read it.
pub fn reach_folder(path: &Path) -> io::Result<OwnedFd> {
    reached(Way::begin(path)?, Purpose::Search, None)
}

/// Like [`reach`], for what is below a folder that the user named: no link leads out of that folder, whoever made it.
/// Archives and disks of others state any owner.
///
/// # Errors
///
/// Like [`reach`], and for a link that leads out of the folder.
pub fn reach_below(folder: &Path, below: &Path) -> io::Result<OwnedFd> {
    reached(Way::begin(folder)?, Purpose::Show, Some((Some(folder), below)))
}

/// Like [`reach_folder`], with the rule of [`reach_below`].
///
/// # Errors
///
/// Like both.
pub fn reach_folder_below(folder: &Path, below: &Path) -> io::Result<OwnedFd> {
    reached(Way::begin(folder)?, Purpose::Search, Some((Some(folder), below)))
}

/// Like [`reach`], for a secret, which is never displayed: links that another user can have moved are followed to private
/// files as well.
///
/// # Errors
///
/// Like [`reach`].
pub fn reach_secret(path: &Path) -> io::Result<OwnedFd> {
    reached(Way::begin(path)?, Purpose::Use, None)
}

/// Like [`reach_below`], for an entry of an open directory. `shown`: the path of the directory.
///
/// # Errors
///
/// Like [`reach_below`].
pub fn reach_in(directory: OwnedFd, shown: &Path, name: &OsStr) -> io::Result<OwnedFd> {
    reached(Way::within(directory, shown), Purpose::Show, Some((None, Path::new(name))))
}

/// `below`: what follows the path, behind which no link leads out of what the path leads to, and the path if the user
/// named it.
fn reached(
    mut way: Way,
    purpose: Purpose,
    mut below: Option<(Option<&Path>, &Path)>,
) -> io::Result<OwnedFd> {
    // The error for what not everybody can read, behind a link that another user can have moved.
    let mut not_private: Option<io::Error> = None;
    // Whether the user chose what is left: links of evidence do not choose what the kernel's own lead to.
    let mut is_given = true;
    // The last link that was followed, and whether it ended the path.
    let mut last_link = (PathBuf::new(), false);
    loop {
        let Some(name) = way.left.pop_front() else {
            let Some((named, below)) = below.take() else { return Ok(way.fd) };
            if way.bounds().is_none() {
                way = way.bounded(named);
            }
            is_given = false;
            components(below, &mut way.left);
            continue;
        };
        if name == ".." && way.bounds().is_some() {
            if let Err(error) = way.leave() {
                return Err(not_private.unwrap_or_else(|| leading_out(error, &way, &last_link)));
            }
            continue;
        }
        let component = CString::new(name.as_bytes())?;
        let next = step(way.fd.as_fd(), &component, Missing::Fail)?;
        let (directory, entry) = (calls::status(way.fd.as_fd())?, calls::status(next.as_fd())?);
        let is_last = way.left.is_empty() && below.is_none();
        if entry.st_mode & libc::S_IFMT != libc::S_IFLNK {
            if is_private(&entry, is_last)
                && let Some(error) = not_private.take()
            {
                return Err(error);
            }
            let is_shown = entry.st_mode & libc::S_IFMT == libc::S_IFREG
                || is_last && purpose == Purpose::Search;
            if is_shown && is_planted(&directory, way.is_trusted(&directory), &entry) {
                return Err(planted(&entry));
            }
            let mount = way.mount_of(&name, &next);
            way.enter(&name, next, mount);
            continue;
        }
        let link = way.shown.join(&name);
        if way.mount.is_served || !is_own_link(&way, &directory, &entry) {
            let whose = if way.mount.is_served {
                "on a file system of another user".to_owned()
            } else {
                format!("of user {}", entry.st_uid)
            };
            return Err(not_followed(&link, &whose, is_last));
        }
        if purpose != Purpose::Use && !way.is_where_it_was_made(&directory, &entry) {
            let whose = "that another user can have moved there";
            not_private.get_or_insert(not_followed(&link, whose, is_last));
        }
        let is_in_proc = calls::is_in_proc(way.fd.as_fd());
        if is_in_proc && directory.st_ino != PROC_ROOT {
            if !is_given || !is_of_own_process(&way) {
                let whose = if is_given { "of a process of another user" } else { "of the kernel" };
                return Err(not_followed(&link, whose, is_last));
            }
            // What it leads to can be below a folder that others cannot enter.
            if let Some(error) = not_private.take() {
                return Err(error);
            }
            // The text of such a link need not be a path.
            let followed = calls::open(Some(way.fd.as_fd()), &component, libc::O_PATH, 0)?;
            let mount = way.mount_of(&name, &followed);
            way.begin_process();
            way.enter(&name, followed, mount);
        } else {
            // `/dev/stdin` leads to `/proc/self/fd/0`, and `/proc/self` to the directory of a process.
            let is_systems = is_in_proc || way.shown == Path::new("/dev");
            is_given &= is_systems && way.is_trusted(&directory);
            last_link = (link, is_last);
            if let Err(error) = way.follow(next.as_fd()) {
                return Err(not_private.unwrap_or_else(|| leading_out(error, &way, &last_link)));
            }
        }
    }
}

/// Whether the process whose directory in `/proc` is the last component, or contains it, is of this user alone. The owner of
/// that directory does not show this: of a process that cannot be dumped, it is root.
fn is_of_own_process(way: &Way) -> bool {
    let open = |name| calls::open(Some(way.fd.as_fd()), name, libc::O_RDONLY, 0);
    let Ok(status) = open(c"status").or_else(|_| open(c"../status")) else { return false };
    let mut bytes = Vec::new();
    if File::from(status).read_to_end(&mut bytes).is_err() {
        return false;
    }
    let text = String::from_utf8_lossy(&bytes);
    let users = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    let own = sys::effective_uid().to_string();
    users.is_some_and(|it| it.split_whitespace().all(|user| user == own))
}

/// The error for a link out of what the user named, instead of that of the call.
fn leading_out(error: io::Error, way: &Way, (link, is_last): &(PathBuf, bool)) -> io::Error {
    match way.bounds() {
        Some(bounds) if error.raw_os_error() == Some(libc::EXDEV) => {
            not_followed(link, &format!("that leads out of {}", bounds.display()), *is_last)
        }
        _ => error,
    }
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

/// Whether another user can have put a file or folder into a directory without being able to read it. The owner of a
/// directory that is not `is_trusted` can have done so if it belongs to somebody else, and is not readable by everybody, or
/// is a file with several names. Where others can write, a private file has several names if one of them made a hard link
/// to it.
fn is_planted(directory: &libc::stat, is_trusted: bool, entry: &libc::stat) -> bool {
    let is_folder = is_folder(entry);
    let (has_several_names, is_private) = (entry.st_nlink > 1, is_private(entry, true));
    let by_owner = !is_trusted
        && entry.st_uid != directory.st_uid
        && (is_private || has_several_names && !is_folder);
    let by_others = || {
        let is_shared = can_others_write(directory.st_mode, directory.st_gid);
        !is_folder && has_several_names && is_private && is_shared
    };
    by_owner || by_others()
}

/// Whether not everybody can read a file or folder, or, if it is not the `last` component of a path, enter it.
fn is_private(entry: &libc::stat, last: bool) -> bool {
    const READ: u32 = 0o004;
    const ENTER: u32 = 0o001;
    let needed = match (is_folder(entry), last) {
        (true, true) => READ | ENTER,
        (true, false) => ENTER,
        (false, _) => READ,
    };
    entry.st_mode & needed != needed
}

fn is_folder(entry: &libc::stat) -> bool {
    entry.st_mode & libc::S_IFMT == libc::S_IFDIR
}

fn planted(entry: &libc::stat) -> io::Error {
    let instead = if is_folder(entry) {
        "give the path of a file or folder in it"
    } else {
        "copy it to a folder of your own"
    };
    let why = format!(
        "it belongs to user {}, and another user can have put it there without being able to read it: {instead}",
        entry.st_uid
    );
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_may_use_the_path_that_was_typed() {
        let base = std::env::temp_dir().join(format!("ddp-doctor-reach-{}", std::process::id()));
        let (real, typed) = (base.join("real"), base.join("scratch"));
        fs::create_dir_all(real.join("logs")).unwrap();
        fs::write(real.join("logs/0.log"), "inside").unwrap();
        fs::write(base.join("outside"), "outside").unwrap();
        symlink(&real, &typed).unwrap();
        symlink(typed.join("logs/0.log"), real.join("by_typed_path")).unwrap();
        symlink(real.join("logs/0.log"), real.join("by_real_path")).unwrap();
        symlink(base.join("outside"), real.join("out")).unwrap();
        symlink(typed.join("../outside"), real.join("up")).unwrap();

        let reached = |name: &str| reach_below(&typed, Path::new(name));
        let results = ["by_typed_path", "by_real_path", "out", "up"].map(|it| reached(it).is_ok());
        let refused = reached("out").unwrap_err().to_string();
        fs::remove_dir_all(&base).unwrap();
        assert_eq!(results, [true, true, false, false]);
        assert!(refused.contains("leads out of"), "{refused}");
    }
}
