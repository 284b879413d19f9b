//! Opens a directory by its path, without following a link that another user can have made.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use super::calls;
use super::mounts::{Mount, OWN_LIST};
use super::own_names::is_of_own_number;
use crate::{sys, trust};

/// Maximum number of links in a path, as in the kernel.
pub(crate) const MAX_LINKS: u32 = 40;
/// Opens what has this name, and has no effect on it.
pub(super) const AS_IT_IS: i32 = libc::O_PATH | libc::O_NOFOLLOW;
const GROUP_WRITE: u32 = 0o020;
const OTHER_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Why a file system is not used.
pub const OF_ANOTHER: &str = "is a file system of another user";
/// Directories that belong to root on every distribution, unless something else is mounted there. Others, also those in
/// `/`, root can have made for any user.
const SYSTEM: [&str; 18] = [
    "/", "/bin", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32",
    "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var", "/var/tmp",
];

/// A directory at the end of a path.
#[derive(Debug)]
pub struct Walked {
    /// Opened with `O_PATH`.
    pub fd: OwnedFd,
    /// The last directory on the path in which another user can replace the next component.
    pub changeable: Option<Shared>,
    /// The last directory above this one in which another user can create an entry, such as one in
    /// place of a component that disappeared.
    pub writable: Option<Shared>,
}

/// A directory in which another user can make changes, as it was when it was open: its path may lead elsewhere by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its path.
    pub path: PathBuf,
    /// User id of its owner.
    pub owner: u32,
}

/// What to do if a component of the path does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Fail with `NotFound`.
    Fail,
    /// Create it with mode 0700.
    Create,
}

/// Opens the directory at this path.
///
/// # Errors
///
/// If it cannot be opened or created, or if its path contains a link that another user can have
/// made.
pub fn walk(path: &Path, missing: Missing) -> io::Result<Walked> {
    let mut way = Way::begin(path)?;
    let (mut changeable, mut writable) = (None, None);
    loop {
        // Before anything is asked of it.
        if way.mount.is_served {
            return Err(refused(&way.here(), OF_ANOTHER));
        }
        let Some(name) = way.left.pop_front() else { break };
        let next = step(way.fd.as_fd(), &CString::new(name.as_bytes())?, missing)?;
        let mount = way.mount_of(&name, &next);
        if mount.is_served {
            return Err(refused(&way.shown.join(&name), OF_ANOTHER));
        }
        let directory = calls::status(way.fd.as_fd())?;
        let trusted = way.is_trusted(&directory);
        let is_shared = !trusted || can_any_other_write(directory.st_mode);
        let entry = calls::status(next.as_fd())?;
        let is_changeable = name != ".." && can_replace(&directory, &entry, trusted);
        let kind = entry.st_mode & libc::S_IFMT;
        if kind == libc::S_IFLNK {
            if !way.is_where_it_was_made(&directory, &entry) {
                let link = way.shown.join(&name);
                return Err(refused(&link, "is a link that another user can change"));
            }
            way.follow(next.as_fd())?;
            continue;
        }
        if kind != libc::S_IFDIR {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let here = || Some(Shared { path: way.here(), owner: directory.st_uid });
        if is_changeable {
            changeable = here();
        }
        if name != ".." && is_shared {
            writable = here();
        }
        way.enter(&name, next, mount);
    }
    Ok(Walked { fd: way.fd, changeable, writable })
}

/// A path that is being opened component by component.
pub(super) struct Way {
    /// The last component that was opened, with `O_PATH`.
    pub(super) fd: OwnedFd,
    /// Leads to it, for messages.
    pub(super) shown: PathBuf,
    /// Components that follow.
    pub(super) left: VecDeque<OsString>,
    /// The mount of the last component.
    pub(super) mount: Mount,
    /// The root directory of the process in `/proc` through which the path leads, and the path of it.
    root: Option<(OwnedFd, PathBuf)>,
    /// Number of links that were followed.
    links: u32,
    /// The directory that no link leads out of.
    bounds: Option<Bounds>,
}

/// A directory that no link leads out of.
#[derive(Debug)]
struct Bounds {
    /// Its path, for messages.
    shown: PathBuf,
    /// The path by which the user named it.
    named: Option<PathBuf>,
    /// The directories from this one to that of the last component, which is not among them. They are left through
    /// these descriptors: another user may move them meanwhile.
    above: Vec<(OwnedFd, Mount)>,
}

impl Way {
    /// Opens where the path begins.
    pub(super) fn begin(path: &Path) -> io::Result<Self> {
        let mut left = VecDeque::new();
        components(path, &mut left);
        let (start, shown) = if path.is_absolute() { (c"/", "/") } else { (c".", "") };
        let fd = calls::open(None, start, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let mount = Mount::containing(&fd);
        Ok(Self { fd, shown: shown.into(), left, mount, root: None, links: 0, bounds: None })
    }

    /// Begins in an open directory with this path, which no link leads out of.
    pub(super) fn within(directory: OwnedFd, path: &Path) -> Self {
        let (mount, shown) = (Mount::containing(&directory), path.to_owned());
        let left = VecDeque::new();
        let way = Self { fd: directory, shown, left, mount, root: None, links: 0, bounds: None };
        way.bounded(None)
    }

    /// From now on, no link leads out of the last component. `named`: the path by which the user named it.
    pub(super) fn bounded(self, named: Option<&Path>) -> Self {
        let named = named.map(Path::to_owned);
        let bounds = Bounds { shown: self.here(), named, above: Vec::new() };
        Self { bounds: Some(bounds), ..self }
    }

    /// The path of the directory that no link leads out of.
    pub(super) fn bounds(&self) -> Option<&Path> {
        self.bounds.as_ref().map(|it| &*it.shown)
    }

    /// Returns to the directory above the last component. Fails with `EXDEV` at the directory that no link leads out of.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        let above = self.bounds.as_mut().and_then(|it| it.above.pop());
        let (fd, mount) = above.ok_or_else(|| io::Error::from_raw_os_error(libc::EXDEV))?;
        (self.fd, self.mount) = (fd, mount);
        self.shown.pop();
        Ok(())
    }

    /// The next component leads out of the directory of a process in `/proc`, which is the last one or contains it:
    /// absolute links behind it are those of that process.
    pub(super) fn begin_process(&mut self) {
        let path = self.shown.components().take(3).collect::<PathBuf>().join("root");
        let open = |name| calls::open(Some(self.fd.as_fd()), name, libc::O_PATH, 0);
        let root = open(c"root").or_else(|_| open(c"../root"));
        self.root = root.ok().map(|it| (it, path));
    }

    /// The path of what was opened last.
    fn here(&self) -> PathBuf {
        if self.shown.as_os_str().is_empty() { ".".into() } else { self.shown.clone() }
    }

    /// Continues with a component that is not a link.
    pub(super) fn enter(&mut self, name: &OsStr, opened: OwnedFd, mount: Mount) {
        let before =
            (std::mem::replace(&mut self.fd, opened), std::mem::replace(&mut self.mount, mount));
        if let Some(bounds) = &mut self.bounds {
            bounds.above.push(before);
        }
        self.shown.push(name);
    }

    /// The mount of the next component, which is open.
    pub(super) fn mount_of(&self, name: &OsStr, opened: &OwnedFd) -> Mount {
        // What another process has open can be in a mount that only that process reaches.
        let entry = self.shown.join(name);
        let process: PathBuf = entry.components().take(3).collect();
        let is_process = process.starts_with("/proc") && entry.components().count() > 3;
        let list = if is_process { process.join("mountinfo") } else { OWN_LIST.into() };
        self.mount.near(opened, &list)
    }

    /// Continues where a link leads. Fails with `EXDEV` if an absolute one leads out of the directory that no link leads
    /// out of.
    pub(super) fn follow(&mut self, link: BorrowedFd<'_>) -> io::Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let target = PathBuf::from(OsString::from_vec(calls::target(link)?));
        let mut rest = std::mem::take(&mut self.left);
        if target.is_absolute() && self.bounds.is_some() {
            let below = self.restart(&target)?;
            components(&below, &mut self.left);
        } else if target.is_absolute() {
            let begun = Self::begin(&target)?;
            *self = match self.root.take() {
                Some((root, shown)) => Self {
                    fd: root.try_clone()?,
                    mount: Mount::root().near(&root, &shown.with_file_name("mountinfo")),
                    shown: shown.clone(),
                    root: Some((root, shown)),
                    links: self.links,
                    ..begun
                },
                None => Self { links: self.links, ..begun },
            };
        } else {
            components(&target, &mut self.left);
        }
        self.left.append(&mut rest);
        Ok(())
    }

    /// Returns to the directory that no link leads out of, and the rest of an absolute path below it. Nothing is looked up
    /// elsewhere.
    fn restart(&mut self, path: &Path) -> io::Result<PathBuf> {
        let out = || io::Error::from_raw_os_error(libc::EXDEV);
        let bounds = self.bounds.as_mut().ok_or_else(out)?;
        if let Some((fd, mount)) = bounds.above.drain(..).next() {
            (self.fd, self.mount) = (fd, mount);
        }
        self.shown.clone_from(&bounds.shown);
        let names = match &self.root {
            Some((_, root)) => {
                let below = self.shown.strip_prefix(root).ok().ok_or_else(out)?;
                vec![Path::new("/").join(below)]
            }
            None => {
                let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
                let named = bounds.named.as_deref().unwrap_or(&self.shown);
                // The shell's name of the working directory can contain links.
                let of_shell = || Some(PathBuf::from(std::env::var_os("PWD")?).join(named));
                let paths = [std::fs::read_link(link).ok(), std::path::absolute(named).ok()];
                paths.into_iter().flatten().chain(of_shell()).collect()
            }
        };
        names.iter().find_map(|it| Some(path.strip_prefix(it).ok()?.to_owned())).ok_or_else(out)
    }

    /// Whether the last component, a directory, belongs to this user or to root. An owner without an id in this user
    /// namespace can be root outside of it, or any other user.
    pub(super) fn is_trusted(&self, directory: &libc::stat) -> bool {
        let is_systems =
            || trust::is_unmapped(directory.st_uid) && is_system(&self.shown, &self.mount);
        !self.mount.is_served && (is_own(directory) || is_systems())
    }

    /// Whether a link in the last component belongs to root. That of an owner without an id in this user namespace does if
    /// only root can have put it there.
    pub(super) fn is_of_root(&self, directory: &libc::stat, link: &libc::stat) -> bool {
        let is_systems = || {
            trust::is_unmapped(link.st_uid)
                && is_system(&self.shown, &self.mount)
                && !can_any_other_write(directory.st_mode)
        };
        link.st_uid == 0 || is_systems()
    }

    /// Whether a link was put where it is by this user or the system. The mode of a directory does not
    /// show everybody who can write to it, such as those whom an access control list admits; and where
    /// others can create entries, they can have moved a link of this user or of root there.
    pub(super) fn is_where_it_was_made(&self, directory: &libc::stat, link: &libc::stat) -> bool {
        if !self.is_trusted(directory) {
            return false;
        }
        if link.st_uid == sys::effective_uid() {
            return !can_others_write(directory.st_mode, directory.st_gid);
        }
        self.is_of_root(directory, link) && !can_any_other_write(directory.st_mode)
    }
}

/// Opens the next component of a path as it is.
pub(super) fn step(dir: BorrowedFd<'_>, name: &CStr, missing: Missing) -> io::Result<OwnedFd> {
    let open = || {
        // An automount point is mounted only if a directory is requested.
        let directory = calls::open(Some(dir), name, AS_IT_IS | libc::O_DIRECTORY, 0);
        match directory {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                calls::open(Some(dir), name, AS_IT_IS, 0)
            }
            other => other,
        }
    };
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && missing == Missing::Create => {
            match calls::make_dir(dir, name) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => open(),
            }
        }
        other => other,
    }
}

/// Adds the components of a path to `left`.
pub(crate) fn components(path: &Path, left: &mut VecDeque<OsString>) {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    left.extend(names);
}

/// Whether another user can replace this entry of a directory.
fn can_replace(directory: &libc::stat, entry: &libc::stat, is_trusted: bool) -> bool {
    let is_sticky = directory.st_mode & STICKY != 0;
    let is_safe = is_sticky && is_trusted && is_own(entry);
    let can_create = !is_trusted || can_others_write(directory.st_mode, directory.st_gid);
    can_create && !is_safe
}

fn is_own(found: &libc::stat) -> bool {
    found.st_uid == sys::effective_uid() || found.st_uid == 0
}

/// Whether a directory belongs to root on every distribution. Volumes of a container are mounts of their own, and can be
/// any user's, also at the path of such a directory.
pub(crate) fn is_system(path: &Path, mount: &Mount) -> bool {
    SYSTEM.iter().any(|it| path == Path::new(it)) && mount.is_known()
}

/// Whether users other than the owner can write to a file or directory of this mode and group.
#[must_use]
pub fn can_others_write(mode: u32, group: u32) -> bool {
    mode & OTHER_WRITE != 0 || mode & GROUP_WRITE != 0 && !is_private_group(group)
}

/// Whether any user other than the owner can write to a file or directory of this mode, regardless of the members of its group.
#[must_use]
pub const fn can_any_other_write(mode: u32) -> bool {
    mode & (GROUP_WRITE | OTHER_WRITE) != 0
}

/// Whether a group has no other members than this user. Most systems give each user a group with the id of
/// the user; it is then the group of the user's processes, too.
pub(crate) fn is_private_group(group: u32) -> bool {
    let (user, own) = (sys::effective_uid(), sys::effective_gid());
    // In rootless containers, every user has the id 0, and so have their groups.
    group == own && group == user && is_of_own_number(group)
}

/// The error for what is not used because of another user.
#[must_use]
pub fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {why}", path.display()))
}
