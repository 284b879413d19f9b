//! Opens a directory by its path, without following a link that another user can have made.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use ddp_doctor_agent::trust;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat};

use super::user_id;

/// Maximum number of links in a path, as in the kernel.
const MAX_LINKS: u32 = 40;
/// Opens whatever has this name, and has no effect on it.
pub(super) const AS_IT_IS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const GROUP_WRITE: u32 = 0o020;
const OTHER_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A directory at the end of a path.
pub(super) struct Walked {
    /// Opened with `O_PATH`.
    pub(super) fd: OwnedFd,
    /// The last directory on the path in which another user can replace the next component.
    pub(super) changeable: Option<PathBuf>,
}

/// What to do if a component of the path does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Fail,
    /// Create it with mode 0700.
    Create,
}

/// Opens the directory at this path.
pub(super) fn walk(path: &Path, missing: Missing) -> io::Result<Walked> {
    let mut left = VecDeque::new();
    let mut fd = begin(path, &mut left)?;
    // Leads to `fd`, for messages.
    let mut shown = if path.is_absolute() { PathBuf::from("/") } else { PathBuf::new() };
    let (mut links, mut changeable) = (0, None);
    while let Some(name) = left.pop_front() {
        let next = match openat(&fd, &name, AS_IT_IS, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) if missing == Missing::Create => {
                match mkdirat(&fd, &name, Mode::RWXU) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                openat(&fd, &name, AS_IT_IS, Mode::empty())?
            }
            other => other?,
        };
        let (directory, entry) = (fstat(&fd)?, fstat(&next)?);
        let is_changeable = name != ".." && can_replace(&directory, &entry);
        let kind = FileType::from_raw_mode(entry.st_mode);
        if kind == FileType::Symlink {
            links += 1;
            let shown = shown.join(&name);
            if is_changeable {
                return Err(refused(&shown, "is a link that another user can change"));
            }
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = OsString::from_vec(readlinkat(&next, "", Vec::new())?.into_bytes());
            let target = PathBuf::from(target);
            let mut rest = std::mem::take(&mut left);
            if target.is_absolute() {
                fd = begin(&target, &mut left)?;
            } else {
                components(&target, &mut left);
            }
            left.append(&mut rest);
            continue;
        }
        if kind != FileType::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if is_changeable {
            let here = if shown.as_os_str().is_empty() { Path::new(".") } else { &shown };
            changeable = Some(here.to_owned());
        }
        shown.push(&name);
        fd = next;
    }
    Ok(Walked { fd, changeable })
}

/// Opens where a path begins, and adds its components to `left`.
fn begin(path: &Path, left: &mut VecDeque<OsString>) -> io::Result<OwnedFd> {
    components(path, left);
    let start = if path.is_absolute() { "/" } else { "." };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, start, flags, Mode::empty())?)
}

fn components(path: &Path, left: &mut VecDeque<OsString>) {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    left.extend(names.map(OsStr::to_owned));
}

/// Whether another user can replace this entry of a directory.
fn can_replace(directory: &Stat, entry: &Stat) -> bool {
    let user = user_id();
    let is_own = |uid: u32| uid == user || uid == 0;
    // An owner without a name in this user namespace is usually root outside of it.
    let is_trusted = is_own(directory.st_uid) || trust::is_unmapped(directory.st_uid);
    !is_trusted || can_others_write(directory) && !(is_sticky(directory) && is_own(entry.st_uid))
}

/// Whether users other than the owner can write to a file or directory.
pub(super) fn can_others_write(stat: &Stat) -> bool {
    // Most systems give each user a private group with the id of the user; root's has no other members.
    let is_own_group = stat.st_gid == user_id() || stat.st_gid == 0;
    stat.st_mode & OTHER_WRITE != 0 || stat.st_mode & GROUP_WRITE != 0 && !is_own_group
}

/// Whether entries of the directory can be replaced by their owners only.
fn is_sticky(directory: &Stat) -> bool {
    directory.st_mode & STICKY != 0
}

/// The error for what is not used because of another user.
pub(super) fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {why}", path.display()))
}
