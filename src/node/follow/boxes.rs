//! The directory in which the ranks of this node create their black boxes.
//!
//! It is in shared memory, where writes cost no disk access and outlive the process. Only its user
//! may enter it. It is removed after the job, and its boxes move to the run directory.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp_doctor_agent::blackbox::{FOLLOWED, FollowedBy, Following, Reader};

use crate::files;
use crate::node::sample::proc;
use crate::node::sys;
use crate::private::{self, user_dir};

/// Free bytes of shared memory below which it is not used, since the job needs it.
const MIN_FREE: u64 = 32 << 20;
/// File that identifies the owner of a directory.
const OWNER: &str = "owner";
/// Maximum size of this file, in bytes.
const MAX_OWNER: u64 = 64 << 10;
/// Folder below a box directory in which programs find the NCCL shim under NCCL's soname.
pub const NCCL_FOLDER: &str = "nccl";
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
    path: PathBuf,
    /// Other directories in which the ranks of a launch may have boxes.
    others: Vec<PathBuf>,
    /// Directory for the boxes after the job; `None`: they are removed.
    keep: Option<PathBuf>,
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
    pub fn create(shared_memory: &Path, job: &str, run_dir: Option<&Path>) -> io::Result<Self> {
        let keep = run_dir.map(|dir| dir.join("boxes"));
        if let Some(keep) = &keep {
            private_dir(keep)?;
        }
        let (path, is_shared_memory) = match (in_shared_memory(shared_memory, job, run_dir), &keep)
        {
            (Ok(path), _) => (path, true),
            (Err(_), Some(dir)) => (dir.clone(), false),
            (Err(error), None) => return Err(error),
        };
        let following = Following::begin(&path, FollowedBy::Run).ok().flatten();
        Ok(Self { path, others: Vec::new(), keep, is_shared_memory, snapshot: false, following })
    }

    /// Existing directories in which the ranks of a launch create their boxes. They are not removed; the
    /// first is `path`.
    ///
    /// # Errors
    ///
    /// If the boxes are to be kept and the directory for them cannot be created.
    pub fn of_launch(
        path: &Path,
        others: &[PathBuf],
        run_dir: Option<&Path>,
        following: Option<Following>,
    ) -> io::Result<Self> {
        let keep = run_dir.map(|dir| dir.join("boxes"));
        if let Some(keep) = &keep {
            private_dir(keep)?;
        }
        Ok(Self {
            path: path.to_owned(),
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

    /// Whether boxes in shared memory have yet to be moved to this run directory.
    #[must_use]
    pub fn are_awaited(shared_memory: &Path, run_dir: &Path) -> bool {
        Self::awaited(shared_memory, run_dir).next().is_some()
    }

    /// Directories in shared memory whose boxes have yet to be moved to this run directory, which is
    /// named as by [`Path::canonicalize`].
    pub fn awaited<'a>(
        shared_memory: &Path,
        run_dir: &'a Path,
    ) -> impl Iterator<Item = PathBuf> + use<'a> {
        let entries = fs::read_dir(user_dir(shared_memory)).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).filter(|dir| {
            files::read_text(&dir.join(OWNER), MAX_OWNER)
                .is_ok_and(|owner| owner.lines().nth(1).map(Path::new) == Some(run_dir))
        })
    }

    /// Whether the file is an incomplete copy of a box, which is still in shared memory.
    #[must_use]
    pub fn is_partial(file: &Path) -> bool {
        file.as_os_str().as_encoded_bytes().ends_with(PARTIAL.as_bytes())
    }

    /// Run directories of all runs of this user that have boxes in shared memory, active or not.
    #[must_use]
    pub fn run_dirs(shared_memory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(user_dir(shared_memory)).into_iter().flatten();
        let owners = entries.flatten().filter_map(|entry| {
            let owner = files::read_text(&entry.path().join(OWNER), MAX_OWNER).ok()?;
            let dir = owner.lines().nth(1).filter(|dir| !dir.is_empty());
            dir.map(PathBuf::from)
        });
        owners.collect()
    }

    /// The directory in which ranks create their boxes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All directories that may contain boxes: a rank uses the second if the first has no space.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        let mut directories = vec![self.path.clone()];
        for other in self.others.iter().chain(&self.keep) {
            if !directories.contains(other) {
                directories.push(other.clone());
            }
        }
        directories
    }

    /// Moves a box to the directory for kept boxes. Its old mapping stays readable.
    ///
    /// # Errors
    ///
    /// If there is no such directory, or not enough space in it.
    pub fn keep(&self, file: &Path) -> io::Result<()> {
        let keep = self.keep.as_deref().ok_or(io::ErrorKind::NotFound)?;
        if file.parent() == Some(keep) || self.snapshot {
            return Ok(());
        }
        relocate(file, keep)
    }

    /// Copies all boxes to the directory for kept boxes. Later changes of the boxes are not kept.
    ///
    /// # Errors
    ///
    /// If there is no such directory, or not enough space in it.
    pub fn snapshot(&mut self) -> io::Result<()> {
        let keep = self.keep.as_deref().ok_or(io::ErrorKind::NotFound)?;
        if self.is_shared_memory {
            for file in boxes_in(&self.path)? {
                copy(&file, keep)?;
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
    pub fn snapshot_into(&mut self, dir: &Path) -> io::Result<()> {
        let keep = dir.join("boxes");
        private_dir(&keep)?;
        for file in boxes_in(&self.path)? {
            copy(&file, &keep)?;
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
            // An error means that there is none.
            drop(fs::remove_dir_all(self.path.join(NCCL_FOLDER)));
            // In a directory created by ranks the lock file stays: other reporters may wait for the lock.
            if self.following.is_some() && self.keep.as_ref() == Some(&self.path) {
                drop(fs::remove_file(self.path.join(FOLLOWED)));
            }
            return Ok(());
        }
        let keep = self.keep.as_ref().filter(|_| !self.snapshot);
        let mut failed = None;
        if let Some(keep) = keep {
            for file in boxes_in(&self.path)? {
                // A smaller box may still fit.
                failed = relocate(&file, keep).err().or(failed);
            }
        }
        if let Some(error) = failed {
            // The next run of this user moves them.
            let at = self.path.display();
            let why = format!("black boxes remain in {at}: {error}");
            return Err(io::Error::new(error.kind(), why));
        }
        fs::remove_dir_all(&self.path)
    }
}

/// Creates a directory that only this user may enter, and its parents.
///
/// # Errors
///
/// If it cannot be created, or belongs to another user.
pub fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != sys::user_id() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} does not belong to this user", path.display()),
        ));
    }
    Ok(())
}

fn in_shared_memory(base: &Path, job: &str, run_dir: Option<&Path>) -> io::Result<PathBuf> {
    if sys::space(&File::open(base)?)?.free < MIN_FREE {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let user = user_dir(base);
    private::ensure_private(&user)?;
    BoxDir::sweep(base);
    let pid = std::process::id();
    // Two runs of one job on one node, such as two tasks of a batch job, use separate directories.
    for name in [job.to_owned(), format!("{job}.{pid}")] {
        let path = user.join(name);
        match private::new_private_dir(&path) {
            Ok(()) => {
                let keep = run_dir.map_or(Path::new(""), |dir| dir);
                let start = proc::Stat::of(pid)?.start_ticks;
                let boot = proc::boot_id();
                let owner = format!("{pid} {start} {boot}\n{}\n", keep.display());
                fs::write(path.join(OWNER), owner)?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Moves the boxes of runs that were killed to their run directories.
///
/// A directory without an [`OWNER`] file was created by ranks that `run` did not start: it is kept
/// for a while, so that it can be analyzed. A directory with a living rank is in use.
fn sweep(user: &Path) {
    let Ok(entries) = fs::read_dir(user) else {
        return;
    };
    for dir in entries.flatten().map(|entry| entry.path()) {
        let Ok(owner) = files::read_text(&dir.join(OWNER), MAX_OWNER) else {
            if is_stale(&dir) {
                // If it cannot be removed now, the next run tries again.
                drop(fs::remove_dir_all(&dir));
            }
            continue;
        };
        let mut lines = owner.lines();
        let Some(alive) = lines.next().and_then(owner_is_alive) else {
            continue;
        };
        // A directory that cannot be read may contain evidence.
        let Ok(boxes) = boxes_in(&dir) else { continue };
        if alive || boxes.iter().any(|file| writer_is_alive(file)) {
            continue;
        }
        let keep = lines.next().map(|run_dir| Path::new(run_dir).join("boxes"));
        if let Some(keep) = keep.filter(|keep| keep.is_dir())
            && boxes.iter().any(|file| relocate(file, &keep).is_err())
        {
            continue;
        }
        // If it cannot be removed now, the next run tries again.
        drop(fs::remove_dir_all(&dir));
    }
}

/// Whether the directory is old, no writer of its boxes is alive, and no process follows it.
fn is_stale(dir: &Path) -> bool {
    let Ok(metadata) = fs::symlink_metadata(dir) else {
        return false;
    };
    let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
    metadata.is_dir()
        && age.is_some_and(|age| age > MAX_UNOWNED_AGE)
        && Following::found(dir).is_none()
        && boxes_in(dir).is_ok_and(|boxes| !boxes.iter().any(|file| writer_is_alive(file)))
}

/// Whether the process in the first line of an [`OWNER`] file is alive; `None`: unknown.
fn owner_is_alive(line: &str) -> Option<bool> {
    let mut words = line.split(' ');
    let (pid, start) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (boot, this_boot) = (words.next()?, proc::boot_id());
    let are_known = !boot.is_empty() && !this_boot.is_empty();
    are_known.then(|| boot == this_boot && proc::is_alive(pid, start))
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

fn relocate(file: &Path, to: &Path) -> io::Result<()> {
    let Some(name) = file.file_name() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if fs::rename(file, to.join(name)).is_ok() {
        return Ok(());
    }
    // Another file system.
    copy(file, to)?;
    fs::remove_file(file)
}

/// Copies a box under a temporary name and renames the complete copy.
fn copy(file: &Path, to: &Path) -> io::Result<()> {
    let Some(name) = file.file_name() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let temporary = to.join(format!("{}{PARTIAL}", name.display()));
    let mut from = files::open(file)?;
    let copied = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut kept| {
            // The unused end of the ring is a hole, which would be copied as zeros.
            let used = Reader::open(file).map_or(u64::MAX, |reader| reader.used_bytes());
            io::copy(&mut (&mut from).take(used), &mut kept)?;
            kept.sync_data()
        })
        .and_then(|()| fs::rename(&temporary, to.join(name)));
    if copied.is_err() {
        // If the removal fails, the file was never created.
        drop(fs::remove_file(&temporary));
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (shm, run) = (dir.path().join("shm"), dir.path().join("run"));
        fs::create_dir(&shm).unwrap();
        fs::create_dir(&run).unwrap();
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
        assert!(run.join("boxes/1.2.c10d.box").exists() && !path.join("1.2.c10d.box").exists());
        boxes.snapshot().unwrap();
        fs::write(path.join("3.4.c10d.box"), "later").unwrap();
        boxes.keep(&path.join("3.4.c10d.box")).unwrap();
        boxes.remove().unwrap();
        assert_eq!(boxes_in(&run.join("boxes")).unwrap().len(), 2);
        assert_eq!(fs::read(run.join("boxes/3.4.c10d.box")).unwrap(), b"y");
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
        fs::create_dir(run.join("boxes/1.2.c10d.box")).unwrap();
        let error = boxes.remove().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read(path.join("1.2.c10d.box")).unwrap(), b"x");
        assert_eq!(fs::read(run.join("boxes/3.4.c10d.box")).unwrap(), b"y");
        assert!(!run.join("boxes/1.2.c10d.box.part").exists());
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
        assert_eq!(boxes.path(), run.join("boxes"));
        assert_eq!(boxes.directories().len(), 1);
        boxes.remove().unwrap();
        assert!(run.join("boxes").exists());
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
        assert!(run.join("boxes/1.2.c10d.box").exists());
    }

    #[test]
    fn directory_with_a_living_rank_is_not_swept() {
        let (_dir, shm, run) = dirs();
        let dead = BoxDir::create(&shm, "dead", Some(&run)).unwrap();
        let pid = std::process::id();
        let start = proc::Stat::of(pid).unwrap().start_ticks;
        fs::write(dead.path().join(format!("{pid}.{start}.c10d.box")), "x").unwrap();
        fs::write(dead.path().join(OWNER), "4194304 1 gone\n\n").unwrap();
        BoxDir::create(&shm, "next", None).unwrap();
        assert!(dead.path().exists());
    }
}
