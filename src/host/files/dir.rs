//! An open directory, and what can be done with the entries of it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ddp_doctor_agent::files::{
    Identity, KnownDirectories, Missing, OF_ANOTHER, Shared, Walked, can_any_other_write,
    can_others_write, is_entry_served_by_other, reach, reach_in, refused, walk,
};
use rustix::fs::{
    AtFlags, Dir as Listing, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat,
    renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::{removal, user_id};

/// Attempts to find an unused temporary name.
const MAX_ATTEMPTS: u32 = 16;
const ANY_PERMISSION: u32 = 0o077;

/// An open directory. It stays the same directory whatever happens to its path.
///
/// All names are single components. Nothing that a name refers to is followed if it is a link.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Opened with `O_PATH`: the directory need not be readable.
    fd: Arc<OwnedFd>,
    path: PathBuf,
    changeable: Option<Shared>,
    writable: Option<Shared>,
}

/// What the kernel says about an entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Status(Stat);

impl Status {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.0.st_mode) == FileType::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.0.st_mode) == FileType::RegularFile
    }

    /// User id of its owner.
    #[must_use]
    pub const fn owner(&self) -> u32 {
        self.0.st_uid
    }

    /// Whether only its owner has permissions.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        self.0.st_mode & ANY_PERMISSION == 0
    }
}

impl Dir {
    /// Opens a directory of any owner.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or its path contains a link that another user can have made.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::walk(path, Missing::Fail)
    }

    /// Opens a directory of this user.
    ///
    /// # Errors
    ///
    /// Like [`Self::open`], or if it belongs to another user.
    pub fn open_own(path: &Path) -> io::Result<Self> {
        Self::open(path)?.own()
    }

    /// Opens a directory that only this user may enter.
    ///
    /// # Errors
    ///
    /// Like [`Self::open_own`], or if it is accessible to other users.
    pub fn open_private(path: &Path) -> io::Result<Self> {
        Self::open(path)?.private()
    }

    /// Opens a directory that only this user may enter, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Like [`Self::open_private`], or if it cannot be created.
    pub fn ensure_private(path: &Path) -> io::Result<Self> {
        let (parent, name) = super::parent(path)?;
        match parent.make(name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Self { path: path.to_owned(), ..parent.child(name)? }.private(),
        }
    }

    /// Opens a directory of this user. Creates it, and its parents, if they do not exist; only this user may enter
    /// what is created.
    ///
    /// # Errors
    ///
    /// Like [`Self::open_own`], or if it cannot be created.
    pub fn ensure_own(path: &Path) -> io::Result<Self> {
        Self::walk(path, Missing::Create)?.own()
    }

    fn walk(path: &Path, missing: Missing) -> io::Result<Self> {
        let Walked { fd, changeable, writable } = walk(path, missing)?;
        Ok(Self { fd: Arc::new(fd), path: path.to_owned(), changeable, writable })
    }

    fn own(self) -> io::Result<Self> {
        let owner = self.status()?.owner();
        if owner == user_id() {
            return Ok(self);
        }
        Err(refused(&self.path, &format!("belongs to user {owner}")))
    }

    fn private(self) -> io::Result<Self> {
        let own = self.own()?;
        if own.status()?.is_private() {
            return Ok(own);
        }
        Err(refused(&own.path, "is accessible to other users"))
    }

    /// The same directory, with the path without links by which the kernel knows it. Who can replace it is then known
    /// from the root directory on.
    #[must_use]
    pub fn canonical(self) -> Self {
        let link = Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string());
        let path = std::fs::read_link(link)
            .or_else(|_| self.path.canonicalize())
            .unwrap_or_else(|_| self.path.clone());
        match Self::open(&path) {
            Ok(found) if found.identity().ok() == self.identity().ok() => found,
            // Somebody else can have caused this, and may control a part of the path that was not seen.
            _ => {
                let here = Shared { path: path.clone(), owner: user_id() };
                Self {
                    changeable: self.changeable.or_else(|| Some(here.clone())),
                    writable: self.writable.or(Some(here)),
                    path,
                    ..self
                }
            }
        }
    }

    /// The path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open descriptor.
    #[must_use]
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.fd
    }

    /// A path that leads to an entry through the open descriptor, for code that takes paths. It is valid in this process
    /// while the directory is open.
    #[must_use]
    pub(super) fn path_through_descriptor(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(name)
    }

    /// Opens an entry as it is, a link included (`O_PATH`).
    pub(super) fn entry(&self, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&*self.fd, &*component(name)?, flags, Mode::empty())?)
    }

    /// A directory on the path of this one in which other users can rename or replace the next component; or this
    /// directory, if they can write to it.
    ///
    /// # Errors
    ///
    /// If its status cannot be read.
    pub fn changeable_by_others(&self) -> io::Result<Option<Shared>> {
        let found = self.status()?.0;
        let is_shared = can_others_write(found.st_mode, found.st_gid);
        Ok(if is_shared { Some(self.shared(&found)) } else { self.changeable.clone() })
    }

    /// A directory on the path of this one, or this directory, in which any other user can create entries, also as a
    /// member of its group. What disappears from it can come back as theirs, even if the sticky bit protects what is there.
    ///
    /// # Errors
    ///
    /// If its status cannot be read.
    pub fn writable_by_others(&self) -> io::Result<Option<Shared>> {
        let found = self.status()?.0;
        let is_shared = can_any_other_write(found.st_mode);
        Ok(if is_shared { Some(self.shared(&found)) } else { self.writable.clone() })
    }

    fn shared(&self, found: &Stat) -> Shared {
        Shared { path: self.path.clone(), owner: found.st_uid }
    }

    /// Type, owner and mode of the open directory.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn status(&self) -> io::Result<Status> {
        Ok(Status(fstat(&*self.fd)?))
    }

    /// Identifies the open directory.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn identity(&self) -> io::Result<Identity> {
        let stat = self.status()?.0;
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Fails if another user can have put the directory where it is, and it is not one of these.
    ///
    /// # Errors
    ///
    /// In that case, or if its status cannot be read.
    pub fn one_of(self, known: &KnownDirectories) -> io::Result<Self> {
        if known.admit(self.identity()?, self.changeable_by_others()?.is_some()) {
            return Ok(self);
        }
        Err(refused(&self.path, "is not the directory that was made for black boxes"))
    }

    /// Time of the last change of an entry.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn modified(&self) -> io::Result<SystemTime> {
        let Status(found) = self.status()?;
        let since_epoch = |seconds| Duration::new(seconds, found.st_mtime_nsec as u32);
        let after = u64::try_from(found.st_mtime).map(since_epoch).unwrap_or_default();
        Ok(SystemTime::UNIX_EPOCH + after)
    }

    /// A descriptor of the directory that can be read and locked.
    ///
    /// # Errors
    ///
    /// If the directory is not readable.
    pub fn readable(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(File::from(openat(&*self.fd, ".", flags, Mode::empty())?))
    }

    /// Names of all entries.
    ///
    /// # Errors
    ///
    /// If the directory is not readable.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Listing::read_from(self.readable()?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(&*name, b"." | b"..") {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Type, owner and mode of an entry.
    ///
    /// # Errors
    ///
    /// If there is no such entry.
    pub fn status_of(&self, name: &OsStr) -> io::Result<Status> {
        Ok(Status(statat(&*self.fd, &*component(name)?, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Opens a directory of any owner in this one.
    ///
    /// # Errors
    ///
    /// If there is no such directory.
    pub fn child(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = self.path.join(name);
        let refusal = |error| match error {
            Errno::NOTDIR | Errno::LOOP => refused(&path, "is not a directory"),
            error => error.into(),
        };
        let fd = openat(&*self.fd, &*component(name)?, flags, Mode::empty()).map_err(refusal)?;
        if is_entry_served_by_other(&*self.fd, &fd) {
            return Err(refused(&path, OF_ANOTHER));
        }
        let (changeable, writable) = (self.changeable_by_others()?, self.writable_by_others()?);
        Ok(Self { fd: Arc::new(fd), path, changeable, writable })
    }

    /// Opens a directory of this user in this one.
    ///
    /// # Errors
    ///
    /// If there is no such directory, or it belongs to another user.
    pub fn own_child(&self, name: &OsStr) -> io::Result<Self> {
        self.child(name)?.own()
    }

    /// Opens a directory in this one that only this user may enter.
    ///
    /// # Errors
    ///
    /// If there is no such directory, or other users may enter it.
    pub fn private_child(&self, name: &OsStr) -> io::Result<Self> {
        self.child(name)?.private()
    }

    /// Opens a directory of this user in this one, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// If it cannot be created, or belongs to another user.
    pub fn ensure_own_child(&self, name: &OsStr) -> io::Result<Self> {
        match self.make(name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.own_child(name),
        }
    }

    /// Creates a directory in this one that only this user may enter.
    ///
    /// # Errors
    ///
    /// If it exists, or cannot be created.
    pub fn new_child(&self, name: &OsStr) -> io::Result<Self> {
        self.make(name)?;
        self.private_child(name)
    }

    fn make(&self, name: &OsStr) -> io::Result<()> {
        Ok(mkdirat(&*self.fd, &*component(name)?, Mode::RWXU)?)
    }

    /// Creates a file that only this user may read, opened for appending.
    ///
    /// # Errors
    ///
    /// If there is an entry with this name, or the file cannot be created.
    pub fn new_file(&self, name: &OsStr) -> io::Result<File> {
        self.create(name, Mode::RUSR | Mode::WUSR)
    }

    fn create(&self, name: &OsStr, mode: Mode) -> io::Result<File> {
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        Ok(File::from(openat(&*self.fd, &*component(name)?, flags, mode)?))
    }

    /// Creates a file in place of one that may exist, opened for appending.
    ///
    /// # Errors
    ///
    /// If the existing entry cannot be removed, or the file cannot be created.
    pub fn new_file_instead(&self, name: &OsStr) -> io::Result<File> {
        match self.remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.new_file(name),
        }
    }

    /// Opens a regular file of this user, to which no other can write, for reading.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // Checked first, since opening a device can have side effects, and again afterwards.
        let check = |found: Status| match found.owner() {
            _ if !found.is_file() => Err(self.not_regular(name)),
            owner if owner != user_id() => {
                let why = format!("belongs to user {owner}");
                Err(refused(&self.path.join(name), &why))
            }
            _ if can_others_write(found.0.st_mode, found.0.st_gid) => {
                Err(refused(&self.path.join(name), "can be changed by other users"))
            }
            _ => Ok(()),
        };
        check(self.status_of(name)?)?;
        let file = openat(&*self.fd, &*component(name)?, flags, Mode::empty())?;
        check(Status(fstat(&file)?))?;
        Ok(File::from(file))
    }

    /// Opens an entry of any user as it is (`O_PATH`), or what a link of this user or of root leads to.
    ///
    /// # Errors
    ///
    /// If there is none, or another user chose where it leads, or can have put it there without being able to read it.
    pub fn reach(&self, name: &OsStr) -> io::Result<File> {
        Ok(reach_in(self.fd.try_clone()?, &self.path, name)?.into())
    }

    /// Reads a regular file of this user with at most `limit` bytes as text.
    ///
    /// # Errors
    ///
    /// Like [`Self::open_file`], or if the file is longer or not UTF-8.
    pub fn read_text(&self, name: &OsStr, limit: u64) -> io::Result<String> {
        // It may grow while it is read.
        let text = io::read_to_string(self.open_file(name)?.take(limit + 1))?;
        if text.len() as u64 > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(text)
    }

    /// Replaces a file, or creates it: readers see the old contents or the new ones. A link is replaced. Only this user
    /// may read the file.
    ///
    /// # Errors
    ///
    /// If it cannot be written, and then the old file is unchanged; or if something other than a file is in its place.
    pub fn replace(&self, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        self.replace_with_mode(name, contents, Mode::RUSR | Mode::WUSR)
    }

    /// Like [`Self::replace`], but as far as the umask permits, others may read the file.
    ///
    /// # Errors
    ///
    /// Like [`Self::replace`].
    pub fn publish(&self, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        // A link such as /dev/stdout must stay. That of another user is replaced: a lookup alone can have effects there.
        let target = self.status_of(name).and_then(|_| reach(&self.path.join(name)));
        if target.and_then(|it| Ok(fstat(it)?)).is_ok_and(|it| !Status(it).is_file()) {
            return Err(self.not_regular(name));
        }
        self.replace_with_mode(name, contents, Mode::from_raw_mode(0o644))
    }

    fn replace_with_mode(&self, name: &OsStr, contents: &[u8], mode: Mode) -> io::Result<()> {
        if let Ok(Status(found)) = self.status_of(name)
            && !matches!(
                FileType::from_raw_mode(found.st_mode),
                FileType::RegularFile | FileType::Symlink
            )
        {
            return Err(self.not_regular(name));
        }
        let (mut file, temporary) = self.temporary(name, |it| self.create(it, mode))?;
        let written = file.write_all(contents).and_then(|()| self.rename(&temporary, self, name));
        self.unless_done(written, &temporary)
    }

    fn not_regular(&self, name: &OsStr) -> io::Error {
        let why = format!("{} is not a regular file", self.path.join(name).display());
        io::Error::new(io::ErrorKind::InvalidInput, why)
    }

    /// Makes `name` a symbolic link to `target`, in place of a file or link with this name.
    ///
    /// # Errors
    ///
    /// If it cannot be created.
    pub fn link_to(&self, target: &Path, name: &OsStr) -> io::Result<()> {
        let present = component(name)?;
        if let Ok(found) = readlinkat(&*self.fd, &*present, Vec::new())
            && found.as_bytes() == target.as_os_str().as_bytes()
        {
            return Ok(());
        }
        let link = |it: &OsStr| Ok(symlinkat(target, &*self.fd, &*component(it)?)?);
        let ((), temporary) = self.temporary(name, link)?;
        let renamed = self.rename(&temporary, self, name);
        self.unless_done(renamed, &temporary)
    }

    /// Calls `make` with a name that does not exist, which others cannot predict.
    pub(super) fn temporary<T>(
        &self,
        name: &OsStr,
        make: impl Fn(&OsStr) -> io::Result<T>,
    ) -> io::Result<(T, OsString)> {
        let mut failed = io::ErrorKind::AlreadyExists.into();
        for _ in 0..MAX_ATTEMPTS {
            // The keys of a hash map are random.
            let random = RandomState::new().build_hasher().finish();
            let mut temporary = OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{random:016x}"));
            match make(&temporary) {
                Ok(made) => return Ok((made, temporary)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => failed = error,
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    fn unless_done(&self, done: io::Result<()>, temporary: &OsStr) -> io::Result<()> {
        if done.is_err() {
            // If it cannot be removed, it stays, and harms nothing.
            drop(self.remove_file(temporary));
        }
        done
    }

    /// Moves an entry to another directory of the same file system. A file with the new name is replaced.
    ///
    /// # Errors
    ///
    /// If it cannot be moved.
    pub fn rename(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        Ok(renameat(&*self.fd, &*component(name)?, &*to.fd, &*component(new_name)?)?)
    }

    /// Removes an entry that is not a directory.
    ///
    /// # Errors
    ///
    /// If it cannot be removed.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&*self.fd, &*component(name)?, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// If it cannot be removed.
    pub fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&*self.fd, &*component(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Removes a directory of this user with everything in it. The name is the last one of its path.
    ///
    /// # Errors
    ///
    /// If the entry of this name is another directory by now, or a part of it cannot be removed or belongs to another
    /// user.
    pub fn remove_all(&self, directory: &Self) -> io::Result<()> {
        let name = directory.path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        removal::remove_all(&*self.fd, &component(name)?, directory.identity()?)
    }
}

/// A name that is one component of a path.
pub(super) fn component(name: &OsStr) -> io::Result<CString> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(CString::new(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user who can rename it, or forbid the way to it, can cause the same.
    #[test]
    fn directory_that_is_not_found_from_the_root_counts_as_changeable() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        let dir = Dir::ensure_private(&path).unwrap();
        assert_eq!(dir.changeable_by_others().unwrap(), None);
        std::fs::remove_dir(&path).unwrap();
        let lost = dir.canonical();
        assert_eq!(lost.changeable_by_others().unwrap().unwrap().path, lost.path());
        assert!(lost.writable_by_others().unwrap().is_some());
    }
}
