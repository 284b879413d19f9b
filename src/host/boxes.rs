//! The directory in which the ranks of this node create their black boxes.
//!
//! It is in shared memory, where writes cost no disk access and outlive the process. Only its user
//! may enter it. It is removed after the job, and its boxes move to the run directory.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ddp_doctor_agent::blackbox::{FOLLOWED, FollowedBy, Following, Reader};

pub use crate::box_owner::KEPT;
use crate::box_owner::{OWNER, Owner};
use crate::files::{self, Dir, Identity, KnownDirectories};
use crate::private::user_dir;
use crate::proc;
use crate::sys;

/// Free bytes of shared memory below which it is not used, since the job needs it.
const MIN_FREE: u64 = 32 << 20;
/// Age after which a directory without an owner is removed; its ranks were not started by `run`.
const MAX_UNOWNED_AGE: Duration = Duration::from_secs(24 * 3600);
/// Time limit for the cleanup of dead runs before a run, since their run directories may be on a
/// mount that does not respond.
const MAX_SWEEP: Duration = Duration::from_secs(1);
/// Suffix of the file name of a black box.
const BOX: &str = ".box";
/// Added to the name of a box while it is copied.
const PARTIAL: &str = ".part";

/// The directory of black boxes of one run.
#[derive(Debug)]
pub struct BoxDir {
    dir: Dir,
    /// Other directories in which the ranks of a launch may have boxes.
    others: Vec<PathBuf>,
    /// Directory for the boxes after the job; `None`: they are removed.
    keep: Option<Dir>,
    is_shared_memory: bool,
    /// Whether [`Self::snapshot`] has copied the boxes, so that later changes are not kept.
    snapshot: bool,
    /// Lock that shows the ranks that they are followed; `None`: the file system has no locks.
    following: Option<Following>,
}

impl BoxDir {
    /// Creates the directory in shared memory, or in the run directory if that fails. Calls
    /// [`Self::sweep`] first.
    ///
    /// # Errors
    ///
    /// If neither has enough space.
    pub fn create(shared_memory: &Path, job: &str, run_dir: Option<&Dir>) -> io::Result<Self> {
        let keep = run_dir.map(|dir| dir.ensure_own_child(KEPT.as_ref())).transpose()?;
        let made = in_shared_memory(shared_memory, job, keep.as_ref());
        let (dir, is_shared_memory) = match (made, &keep) {
            (Ok(dir), _) => (dir, true),
            (Err(_), Some(dir)) => (dir.clone(), false),
            (Err(error), None) => return Err(error),
        };
        let known = KnownDirectories::new([dir.identity()?]);
        let following = Following::begin_in(dir.path(), FollowedBy::Run, &known).ok().flatten();
        Ok(Self { dir, others: Vec::new(), keep, is_shared_memory, snapshot: false, following })
    }

    /// Existing directories in which the ranks of a launch create their boxes. They are not removed; the
    /// first is `dir`.
    ///
    /// # Errors
    ///
    /// If the boxes are to be kept and the directory for them cannot be created.
    pub fn of_launch(
        dir: Dir,
        others: &[PathBuf],
        run_dir: Option<&Dir>,
        following: Option<Following>,
    ) -> io::Result<Self> {
        let keep = run_dir.map(|dir| dir.ensure_own_child(KEPT.as_ref())).transpose()?;
        Ok(Self {
            dir,
            others: others.to_vec(),
            keep,
            is_shared_memory: false,
            snapshot: false,
            following,
        })
    }

    /// Moves the boxes that dead runs of this user left in shared memory to their run directories.
    pub fn sweep(shared_memory: &Path) {
        let user = user_dir(shared_memory);
        sys::within(MAX_SWEEP, move || sweep(&user));
    }

    /// Why the directory of this user in shared memory is not used, if another user made it or may enter it.
    #[must_use]
    pub fn refusal(shared_memory: &Path) -> Option<String> {
        let error = Dir::open_private(&user_dir(shared_memory)).err()?;
        (error.kind() == io::ErrorKind::PermissionDenied).then(|| {
            format!("{error}: it is left alone, and the black boxes of this run are elsewhere")
        })
    }

    /// Whether boxes in shared memory have yet to be moved to this run directory.
    #[must_use]
    pub fn are_awaited(shared_memory: &Path, run_dir: &Path) -> bool {
        !Self::awaited(shared_memory, run_dir).is_empty()
    }

    /// Directories in shared memory whose boxes have yet to be moved to this run directory, which is
    /// named as by [`Path::canonicalize`].
    #[must_use]
    pub fn awaited(shared_memory: &Path, run_dir: &Path) -> Vec<PathBuf> {
        let owned = owned(&user_dir(shared_memory));
        let awaited = owned.filter(|(_, owner)| owner.run_dir.as_deref() == Some(run_dir));
        awaited.map(|(dir, _)| dir.path().to_owned()).collect()
    }

    /// Whether the file is an incomplete copy of a box, which is still in shared memory.
    #[must_use]
    pub fn is_partial(file: &Path) -> bool {
        file.as_os_str().as_encoded_bytes().ends_with(PARTIAL.as_bytes())
    }

    /// Run directories of all runs of this user that have boxes in shared memory, active or not.
    #[must_use]
    pub fn run_dirs(shared_memory: &Path) -> Vec<PathBuf> {
        owned(&user_dir(shared_memory)).filter_map(|(_, owner)| owner.run_dir).collect()
    }

    /// The directory in which ranks create their boxes.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directories in which ranks may create boxes.
    ///
    /// # Errors
    ///
    /// If a system call fails.
    pub fn known(&self) -> io::Result<KnownDirectories> {
        let directories = std::iter::once(&self.dir).chain(&self.keep);
        let identities: io::Result<Vec<Identity>> = directories.map(Dir::identity).collect();
        Ok(KnownDirectories::new(identities?))
    }

    /// All directories that may contain boxes: a rank uses the second if the first has no space.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        let mut directories = vec![self.path().to_owned()];
        let kept = self.keep.as_ref().map(Dir::path);
        for other in self.others.iter().map(PathBuf::as_path).chain(kept) {
            if !directories.iter().any(|it| it == other) {
                directories.push(other.to_owned());
            }
        }
        directories
    }

    /// Opens one of [`Self::directories`]: those of this run stay the same, whatever another user puts at their paths.
    ///
    /// # Errors
    ///
    /// If the directory does not exist, or belongs to another user.
    pub fn open(&self, directory: &Path) -> io::Result<Dir> {
        let mut open = std::iter::once(&self.dir).chain(&self.keep);
        let found = open.find(|it| it.path() == directory);
        found.map_or_else(|| Dir::open_own(directory), |it| Ok(it.clone()))
    }

    /// Moves a box to the directory for kept boxes. Its old mapping stays readable.
    ///
    /// # Errors
    ///
    /// If there is no such directory, or not enough space in it.
    pub fn keep(&self, file: &Path) -> io::Result<()> {
        let keep = self.keep.as_ref().ok_or(io::ErrorKind::NotFound)?;
        if file.parent() == Some(keep.path()) || self.snapshot {
            return Ok(());
        }
        let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        if file.parent() == Some(self.path()) {
            return relocate(&self.dir, name, keep);
        }
        let (from, name) = files::parent(file)?;
        relocate(&from, name, keep)
    }

    /// Copies all boxes to the directory for kept boxes. Later changes of the boxes are not kept.
    ///
    /// # Errors
    ///
    /// If there is no such directory, or not enough space in it.
    pub fn snapshot(&mut self) -> io::Result<()> {
        let keep = self.keep.as_ref().ok_or(io::ErrorKind::NotFound)?;
        if self.is_shared_memory {
            for name in boxes_of(&self.dir)? {
                copy(&self.dir, &name, keep)?;
            }
        }
        self.snapshot = true;
        Ok(())
    }

    /// As [`Self::snapshot`], into another directory, whether or not the boxes are in shared memory.
    ///
    /// # Errors
    ///
    /// If the directory does not have enough space.
    pub fn snapshot_into(&mut self, dir: &Dir) -> io::Result<()> {
        let keep = dir.ensure_own_child(KEPT.as_ref())?;
        for name in boxes_of(&self.dir)? {
            copy(&self.dir, &name, &keep)?;
        }
        self.snapshot = true;
        Ok(())
    }

    /// Moves the remaining boxes and removes the directory.
    ///
    /// # Errors
    ///
    /// If a box could not be moved.
    pub fn remove(self) -> io::Result<()> {
        if !self.is_shared_memory {
            // In a directory created by ranks the lock file stays: other reporters may wait for the lock.
            let is_kept = self.keep.as_ref().is_some_and(|it| it.path() == self.path());
            if self.following.is_some() && is_kept {
                drop(self.dir.remove_file(FOLLOWED.as_ref()));
            }
            return Ok(());
        }
        let (parent, _) = files::parent(self.path())?;
        let keep = self.keep.as_ref().filter(|_| !self.snapshot);
        let mut failed = None;
        if let Some(keep) = keep {
            for name in boxes_of(&self.dir)? {
                // A smaller box may still fit.
                failed = relocate(&self.dir, &name, keep).err().or(failed);
            }
        }
        if let Some(error) = failed {
            // The next run of this user moves them.
            let at = self.path().display();
            let why = format!("black boxes remain in {at}: {error}");
            return Err(io::Error::new(error.kind(), why));
        }
        parent.remove_all(&self.dir)
    }
}

fn in_shared_memory(base: &Path, job: &str, keep: Option<&Dir>) -> io::Result<Dir> {
    if sys::space(&File::open(base)?)?.free < MIN_FREE {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let user = Dir::ensure_private(&user_dir(base))?;
    BoxDir::sweep(base);
    let pid = std::process::id();
    // Two runs of one job on one node, such as two tasks of a batch job, use separate directories.
    for name in [job.to_owned(), format!("{job}.{pid}")] {
        match user.new_child(name.as_ref()) {
            Ok(dir) => {
                let owner = Owner::this_process(keep)?;
                dir.new_file(OWNER.as_ref())?.write_all(owner.to_string().as_bytes())?;
                return Ok(dir);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The directories of boxes in shared memory that no other user can have written to.
fn own_dirs(user: &Dir) -> impl Iterator<Item = Dir> + use<'_> {
    let names = user.names().unwrap_or_default();
    names.into_iter().filter_map(|name| user.private_child(&name).ok())
}

/// Those of them that processes made, with the contents of their [`OWNER`] files.
fn owned(user: &Path) -> impl Iterator<Item = (Dir, Owner)> + use<> {
    let user = Dir::open_private(user).ok();
    let dirs: Vec<Dir> = user.iter().flat_map(own_dirs).collect();
    dirs.into_iter().filter_map(|dir| {
        let owner = Owner::read(&dir)?;
        Some((dir, owner))
    })
}

/// Moves the boxes of runs that were killed to their run directories.
///
/// A directory without an [`OWNER`] file was created by ranks that `run` did not start: it is kept
/// for a while, so that it can be analyzed. A directory with a living rank is in use.
fn sweep(user: &Path) {
    let Ok(user) = Dir::open_private(user) else {
        return;
    };
    for dir in own_dirs(&user) {
        if is_done(&dir) {
            // If it cannot be removed now, the next run tries again.
            drop(user.remove_all(&dir));
        }
    }
}

/// Whether nothing in a directory of boxes is needed any more. Moves its boxes to where they belong.
fn is_done(dir: &Dir) -> bool {
    let Some(owner) = Owner::read(dir).filter(|it| !it.is_in_other_container()) else {
        return is_stale(dir);
    };
    // A directory that cannot be read may contain evidence.
    let (Some(false), Ok(boxes)) = (owner.is_alive(), boxes_of(dir)) else {
        return false;
    };
    if boxes.iter().any(|name| writer_is_alive(Path::new(name))) {
        return false;
    }
    match owner.destination() {
        Ok(Some(keep)) => boxes.iter().all(|name| relocate(dir, name, &keep).is_ok()),
        Ok(None) => true,
        Err(_) => is_stale(dir),
    }
}

/// Whether the directory is old, no writer of its boxes is alive, and no process follows it.
fn is_stale(dir: &Dir) -> bool {
    let age = dir.modified().ok().and_then(|it| SystemTime::now().duration_since(it).ok());
    age.is_some_and(|it| it > MAX_UNOWNED_AGE)
        && Following::found(dir.path()).is_none()
        && boxes_of(dir)
            .is_ok_and(|boxes| !boxes.iter().any(|name| writer_is_alive(Path::new(name))))
}

/// Whether the process that wrote a box (`<pid>.<start ticks>.<layer>.box`) is alive.
#[must_use]
pub fn writer_is_alive(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut words = name.split('.');
    let mut number = || words.next()?.parse::<u64>().ok();
    match (number(), number()) {
        (Some(pid), Some(start)) => u32::try_from(pid).is_ok_and(|pid| proc::is_alive(pid, start)),
        _ => false,
    }
}

/// All black boxes in a directory.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn boxes_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut boxes = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_box = entry.file_name().as_encoded_bytes().ends_with(BOX.as_bytes());
        if is_box && entry.file_type()?.is_file() {
            boxes.push(entry.path());
        }
    }
    boxes.sort_unstable();
    Ok(boxes)
}

/// Names of all black boxes in a directory.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn boxes_of(dir: &Dir) -> io::Result<Vec<OsString>> {
    let mut names = dir.names()?;
    names.retain(|name| {
        let is_box = name.as_encoded_bytes().ends_with(BOX.as_bytes());
        is_box && dir.status_of(name).is_ok_and(|it| it.is_file())
    });
    names.sort_unstable();
    Ok(names)
}

fn relocate(from: &Dir, name: &OsStr, to: &Dir) -> io::Result<()> {
    if from.rename(name, to, name).is_ok() {
        return Ok(());
    }
    // Another file system.
    copy(from, name, to)?;
    from.remove_file(name)
}

/// Copies a box under a temporary name and renames the complete copy.
fn copy(from: &Dir, name: &OsStr, to: &Dir) -> io::Result<()> {
    let mut temporary = name.to_owned();
    temporary.push(PARTIAL);
    let mut file = from.open_file(name)?;
    // A copy that was interrupted may have left one.
    let mut kept = to.new_file_instead(&temporary)?;
    // The unused end of the ring is a hole, which would be copied as zeros.
    let reader = Reader::of_file(file.try_clone()?, &from.path().join(name));
    let used = reader.map_or(u64::MAX, |reader| reader.used_bytes());
    let copied = io::copy(&mut (&mut file).take(used), &mut kept)
        .and_then(|_| kept.sync_data())
        .and_then(|()| to.rename(&temporary, to, name));
    if copied.is_err() {
        // If it cannot be removed, the next copy replaces it.
        drop(to.remove_file(&temporary));
    }
    copied
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn dirs() -> (tempfile::TempDir, PathBuf, Dir) {
        let dir = tempfile::tempdir().unwrap();
        let (shm, run) = (dir.path().join("shm"), dir.path().join("run"));
        fs::create_dir(&shm).unwrap();
        fs::create_dir(&run).unwrap();
        let run = Dir::open_own(&run).unwrap();
        (dir, shm, run)
    }

    #[test]
    fn boxes_move_to_the_run_directory_at_the_end() {
        let (_dir, shm, run) = dirs();
        let mut boxes = BoxDir::create(&shm, "job", Some(&run)).unwrap();
        assert_eq!(fs::metadata(boxes.path()).unwrap().mode() & 0o777, 0o700);
        let path = boxes.path().to_owned();
        fs::write(path.join("1.2.c10d.box"), "x").unwrap();
        fs::write(path.join("3.4.c10d.box"), "y").unwrap();
        boxes.keep(&path.join("1.2.c10d.box")).unwrap();
        assert!(
            run.path().join("boxes/1.2.c10d.box").exists() && !path.join("1.2.c10d.box").exists()
        );
        boxes.snapshot().unwrap();
        fs::write(path.join("3.4.c10d.box"), "later").unwrap();
        boxes.keep(&path.join("3.4.c10d.box")).unwrap();
        boxes.remove().unwrap();
        assert_eq!(boxes_in(&run.path().join("boxes")).unwrap().len(), 2);
        assert_eq!(fs::read(run.path().join("boxes/3.4.c10d.box")).unwrap(), b"y");
        assert!(!path.exists());
    }

    #[test]
    fn box_that_cannot_be_kept_remains_in_shared_memory() {
        let (_dir, shm, run) = dirs();
        let boxes = BoxDir::create(&shm, "job", Some(&run)).unwrap();
        let path = boxes.path().to_owned();
        fs::write(path.join("1.2.c10d.box"), "x").unwrap();
        fs::write(path.join("3.4.c10d.box"), "y").unwrap();
        // A directory with this name prevents the move.
        fs::create_dir(run.path().join("boxes/1.2.c10d.box")).unwrap();
        let error = boxes.remove().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read(path.join("1.2.c10d.box")).unwrap(), b"x");
        assert_eq!(fs::read(run.path().join("boxes/3.4.c10d.box")).unwrap(), b"y");
        assert!(!run.path().join("boxes/1.2.c10d.box.part").exists());
    }

    #[test]
    fn two_runs_of_one_job_have_separate_directories() {
        let (_dir, shm, run) = dirs();
        let first = BoxDir::create(&shm, "job", Some(&run)).unwrap();
        let second = BoxDir::create(&shm, "job", Some(&run)).unwrap();
        assert_ne!(first.path(), second.path());
    }

    #[test]
    fn run_directory_is_used_without_shared_memory() {
        let (_dir, shm, run) = dirs();
        let boxes = BoxDir::create(&shm.join("none"), "job", Some(&run)).unwrap();
        assert_eq!(boxes.path(), run.path().join("boxes"));
        assert_eq!(boxes.directories().len(), 1);
        boxes.remove().unwrap();
        assert!(run.path().join("boxes").exists());
        assert!(BoxDir::create(&shm.join("none"), "job", None).is_err());
    }

    #[test]
    fn boxes_of_a_killed_run_move_to_its_run_directory() {
        let (_dir, shm, run) = dirs();
        let dead = BoxDir::create(&shm, "dead", Some(&run)).unwrap();
        fs::write(dead.path().join("1.2.c10d.box"), "x").unwrap();
        let owner = dead.path().join(OWNER);
        let text = fs::read_to_string(&owner).unwrap();
        // The owner is alive: nothing is moved.
        BoxDir::create(&shm, "next", None).unwrap().remove().unwrap();
        assert!(dead.path().exists());
        let pid = std::process::id().to_string();
        fs::write(&owner, text.replacen(&pid, "4194304", 1)).unwrap();
        BoxDir::create(&shm, "next", None).unwrap().remove().unwrap();
        assert!(!dead.path().exists());
        assert!(run.path().join("boxes/1.2.c10d.box").exists());
    }

    #[test]
    fn boxes_of_a_moved_run_directory_stay() {
        for (mode, is_kept) in [(0o777, true), (0o1777, false), (0o755, false)] {
            let (dir, shm, _) = dirs();
            let shared = dir.path().join("shared");
            fs::create_dir(&shared).unwrap();
            fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
            let run = Dir::ensure_own(&shared.join("run")).unwrap();
            let dead = BoxDir::create(&shm, "dead", Some(&run)).unwrap();
            fs::write(dead.path().join("1.2.c10d.box"), "x").unwrap();
            let owner = dead.path().join(OWNER);
            let pid = std::process::id().to_string();
            let text = fs::read_to_string(&owner).unwrap();
            fs::write(&owner, text.replacen(&pid, "4194304", 1)).unwrap();
            fs::rename(run.path(), shared.join("away")).unwrap();
            BoxDir::sweep(&shm);
            assert_eq!(dead.path().exists(), is_kept, "{mode:o}");
            fs::rename(shared.join("away"), run.path()).unwrap();
            BoxDir::sweep(&shm);
            assert_eq!(run.path().join("boxes/1.2.c10d.box").exists(), is_kept, "{mode:o}");
        }
    }

    #[test]
    fn boxes_of_a_run_in_another_container_are_not_moved() {
        let (_dir, shm, run) = dirs();
        let other = BoxDir::create(&shm, "other", Some(&run)).unwrap();
        let owner = other.path().join(OWNER);
        let text = fs::read_to_string(&owner).unwrap();
        let pid = std::process::id().to_string();
        let text = text.replacen(&pid, "4194304", 1).replacen("pid:[", "pid:[1", 1);
        fs::write(&owner, text).unwrap();
        BoxDir::create(&shm, "next", None).unwrap().remove().unwrap();
        assert!(other.path().exists());
    }

    #[test]
    fn directory_with_a_living_rank_is_not_swept() {
        let (_dir, shm, run) = dirs();
        let dead = BoxDir::create(&shm, "dead", Some(&run)).unwrap();
        let pid = std::process::id();
        let start = proc::Stat::read(pid).unwrap().start_ticks;
        fs::write(dead.path().join(format!("{pid}.{start}.c10d.box")), "x").unwrap();
        fs::write(dead.path().join(OWNER), "4194304 1 gone\n\n").unwrap();
        BoxDir::create(&shm, "next", None).unwrap();
        assert!(dead.path().exists());
    }
}
