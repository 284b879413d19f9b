//! The run directory: holds the evidence and the report of one run.
//!
//! If an earlier run used the requested directory, its files are moved to a subdirectory, never
//! deleted. If that run may still be active, on this node or on another one that shares the
//! directory, its files stay and this run uses a subdirectory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use ddp_doctor_evidence::journal;
use ddp_doctor_host::boxes;
use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::files::{Dir, others_at};
use ddp_doctor_host::names;
use ddp_doctor_host::run_description::Description;
use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_proto::report::Timestamp;

use crate::launch::fallback;

/// Files of a run, in the order in which they are moved. While the description exists, the move is
/// not complete.
const FILES: [&str; 6] =
    [boxes::KEPT, journal::FIRST, journal::LATER, RECORDERS, "report.json", names::DESCRIPTION];
/// Folder with the FIFOs of PyTorch's Flight Recorders, and with the dumps that they write.
const RECORDERS: &str = "flight_recorder";
/// Maximum number of earlier runs kept in the directory.
const MAX_EARLIER_RUNS: u32 = 10_000;

/// The directory of this run.
#[derive(Debug)]
pub struct RunDir {
    /// The open directory.
    pub dir: Dir,
    /// Messages for the user about an earlier run, and about other users.
    pub notices: Vec<String>,
}

impl RunDir {
    /// As [`Self::make`]; if that fails, creates a directory elsewhere, which the notice names.
    ///
    /// # Errors
    ///
    /// The error of [`Self::make`], if no other directory can be used either.
    pub fn make_somewhere(
        shared_memory: &Path,
        requested: Option<PathBuf>,
        job: &str,
        started: Timestamp,
        is_own: impl FnMut(&Path) -> bool,
    ) -> io::Result<Self> {
        let place = requested.clone().unwrap_or_else(|| PathBuf::from(names::RUNS));
        let error = match Self::make(shared_memory, requested, job, started, is_own) {
            Ok(made) => match fallback::has_room(&made.dir) {
                Ok(()) => return Ok(made),
                Err(error) => {
                    // It stays if an earlier run used it.
                    let parent = ddp_doctor_host::files::parent(made.dir.path());
                    drop(parent.and_then(|(parent, name)| parent.remove_empty(name)));
                    error
                }
            },
            Err(error) => error,
        };
        let Ok(dir) = fallback::make(&names::run_dir(job, started)) else {
            return Err(error);
        };
        let notice = format!(
            "cannot create a run directory in {}: {error}; the evidence is kept in {}",
            place.display(),
            dir.path().display()
        );
        let notices = std::iter::once(notice).chain(replaceable(&dir)?).collect();
        Ok(Self { dir, notices })
    }

    /// Creates the requested directory, or one below the working directory if none was requested. Ranks
    /// may have created boxes in it already: `is_own` decides whether one belongs to this run.
    ///
    /// # Errors
    ///
    /// If it cannot be created, belongs to another user, or has files that cannot be moved.
    pub fn make(
        shared_memory: &Path,
        requested: Option<PathBuf>,
        job: &str,
        started: Timestamp,
        is_own: impl FnMut(&Path) -> bool,
    ) -> io::Result<Self> {
        // Boxes of a killed run move to its run directory before that directory is reused.
        BoxDir::sweep(shared_memory);
        let own = names::run_dir(job, started);
        let path = requested.unwrap_or_else(|| Path::new(names::RUNS).join(&own));
        let dir = Dir::ensure_own(&path)?.canonical();
        let mut notices = Vec::from_iter(replaceable(&dir)?);
        let dir = match Previous::read(&dir, is_own)? {
            None => dir,
            // Ranks of a killed run may still be alive.
            Some(it) if it.is_over && !BoxDir::are_awaited(shared_memory, dir.path()) => {
                let moved = it.move_aside(&dir)?;
                let aside = moved.path().display();
                notices.push(format!("the files of an earlier run were moved to {aside}"));
                dir
            }
            Some(_) => {
                let new = create_new(&dir, &own)?;
                notices.push(format!(
                    "another run that may still be active uses {}; this run uses {}",
                    dir.path().display(),
                    new.path().display()
                ));
                new
            }
        };
        Ok(Self { dir, notices })
    }
}

/// A message if other users can replace the directory.
fn replaceable(dir: &Dir) -> io::Result<Option<String>> {
    let place = dir.changeable_by_others()?;
    Ok(place.map(|place| {
        format!(
            "{}, and can remove or replace the evidence in {}",
            others_at(&place),
            dir.path().display()
        )
    }))
}

/// The folder of a run in which PyTorch's Flight Recorders create FIFOs and write dumps. Only this user can enter it.
#[derive(Debug)]
pub struct RecorderFolder {
    parent: Dir,
    dir: Dir,
}

impl RecorderFolder {
    /// Creates the folder; `None`: that is not possible, or another user could replace it, by one with links in the place
    /// of dumps.
    #[must_use]
    pub fn make(run_dir: &Dir) -> Option<Self> {
        if run_dir.changeable_by_others().ok()?.is_some() {
            return None;
        }
        let dir = create_new(run_dir, RECORDERS).ok()?;
        Some(Self { parent: run_dir.clone(), dir })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Its path after its device and inode numbers: on another host or in a container, there may be another one.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn value(&self) -> io::Result<OsString> {
        let mut value = OsString::from(format!("{}:", self.dir.identity()?));
        value.push(self.path());
        Ok(value)
    }
}

impl Drop for RecorderFolder {
    /// Removes FIFOs, and the folder unless it has dumps, which were written at a timeout.
    fn drop(&mut self) {
        let names = self.dir.names().unwrap_or_default();
        let is_fifo = |name: &&OsString| Path::new(name).extension() == Some(OsStr::new("pipe"));
        for name in names.iter().filter(is_fifo) {
            drop(self.dir.remove_file(name));
        }
        if let Some(name) = self.dir.path().file_name() {
            drop(self.parent.remove_empty(name));
        }
    }
}

/// The run that used a directory before.
#[derive(Debug)]
struct Previous {
    job: String,
    is_over: bool,
}

impl Previous {
    fn read(dir: &Dir, mut is_own: impl FnMut(&Path) -> bool) -> io::Result<Option<Self>> {
        let mut files = FILES.iter().filter(|name| has_content(dir, name)).peekable();
        if files.peek().is_none() {
            return Ok(None);
        }
        let has_only_boxes = files.all(|name| *name == FILES[0]);
        let boxes = || boxes::boxes_of(&dir.child(FILES[0].as_ref())?);
        if has_only_boxes && boxes()?.iter().all(|it| is_own(&dir.path().join(FILES[0]).join(it))) {
            return Ok(None);
        }
        Ok(Some(match Description::of_own(dir)? {
            Some(it) => Self { is_over: it.is_over(), job: names::file_name(&it.job) },
            // A run writes the description once it has started the command.
            None => Self { job: "run".into(), is_over: false },
        }))
    }

    fn move_aside(&self, dir: &Dir) -> io::Result<Dir> {
        let aside = create_new(dir, &format!("previous-{}", self.job))?;
        let is_dump = |name: &OsString| name.to_string_lossy().starts_with(names::DUMP);
        let dumps: Vec<OsString> = dir.names()?.into_iter().filter(is_dump).collect();
        for name in dumps.iter().map(OsString::as_os_str).chain(FILES.map(OsStr::new)) {
            match dir.rename(name, &aside, name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(aside)
    }
}

/// Folders with the sources of a job, whose evidence is in these paths: those that `run` recorded, if each path is the
/// directory of a run of this user. A directory of another user, one that others can write to, a copy, such as a downloaded
/// one, one that was moved, and what `attach` read of another user's job yield no folder.
#[must_use]
pub fn source_folders<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> SourceFolders {
    let of_each = paths.into_iter().map(|it| own_source_folders(it.as_ref()));
    let folders = of_each.collect::<Option<Vec<Vec<PathBuf>>>>().unwrap_or_default().concat();
    SourceFolders::of_record(&folders)
}

fn own_source_folders(dir: &Path) -> Option<Vec<PathBuf>> {
    let opened = Dir::open_own(dir).ok()?;
    // The evidence is read by its path.
    if opened.changeable_by_others().ok()?.is_some() {
        return None;
    }
    let folders = Description::of_original(&opened)?.source_folders;
    (!folders.is_empty()).then_some(folders)
}

/// Whether an entry is a directory with entries, or anything else.
fn has_content(dir: &Dir, name: &str) -> bool {
    match dir.child(name.as_ref()).and_then(|it| it.names()) {
        Ok(names) => !names.is_empty(),
        Err(_) => dir.status_of(name.as_ref()).is_ok(),
    }
}

/// Creates a new directory with this name, or with this name and a number.
pub(super) fn create_new(parent: &Dir, name: &str) -> io::Result<Dir> {
    for number in 1..MAX_EARLIER_RUNS {
        let name = match number {
            1 => name.to_owned(),
            _ => format!("{name}-{number}"),
        };
        match parent.new_child(name.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use ddp_doctor_host::{proc, sys};

    /// Creates the files of a run.
    fn create_files(dir: &Path, job: &str, pid: u32, host: &str) {
        fs::create_dir_all(dir.join("boxes")).unwrap();
        fs::create_dir_all(dir.join("journal")).unwrap();
        fs::create_dir_all(dir.join(RECORDERS)).unwrap();
        for name in [
            "boxes/1.2.c10d.box",
            "journal.ddpj",
            "journal/000002.ddpj",
            "flight_recorder/7_0",
            "report.json",
        ] {
            fs::write(dir.join(name), job).unwrap();
        }
        let start_ticks = proc::Stat::read(pid).map_or(1, |stat| stat.start_ticks);
        let boot_id = proc::boot_id();
        let it = serde_json::json!({
            "job": job, "host": host, "boot_id": boot_id, "pid": pid, "start_ticks": start_ticks,
        });
        fs::write(dir.join(names::DESCRIPTION), it.to_string()).unwrap();
    }

    fn make_with(dir: &Path, is_own: impl FnMut(&Path) -> bool) -> RunDir {
        let requested = Some(dir.to_owned());
        RunDir::make(&dir.join("shm"), requested, "new", Timestamp(0), is_own).unwrap()
    }

    fn make(dir: &Path) -> RunDir {
        make_with(dir, |_| false)
    }

    #[test]
    fn folder_of_flight_recorders_stays_with_dumps_alone() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = Dir::open_own(directory.path()).unwrap();
        for name in [None, Some("7_1")] {
            let folder = RecorderFolder::make(&run_dir).unwrap();
            let path = folder.path().to_owned();
            let fifo = path.join("7_0.pipe");
            assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
            if let Some(name) = name {
                fs::write(path.join(name), "").unwrap();
            }
            drop(folder);
            assert!(!fifo.exists());
            assert_eq!(path.exists(), name.is_some());
        }
        let all = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
        fs::set_permissions(directory.path(), all).unwrap();
        fs::create_dir(directory.path().join("run")).unwrap();
        let run_dir = Dir::open_own(&directory.path().join("run")).unwrap();
        assert!(RecorderFolder::make(&run_dir).is_none(), "others can replace it");
    }

    #[test]
    fn files_of_an_ended_run_are_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert!(make(&path).notices.is_empty(), "new directory");
        fs::write(path.join("notes.txt"), "the user's").unwrap();
        for aside in ["previous-old", "previous-old-2"] {
            create_files(&path, "old", u32::MAX, &sys::host_name());
            let dump = format!("{}1", names::DUMP);
            fs::write(path.join(&dump), "").unwrap();
            let made = make(&path);
            assert_eq!(made.dir.path(), path);
            assert!(made.notices[0].contains(aside));
            for name in FILES.into_iter().chain([dump.as_str()]) {
                assert!(!path.join(name).exists(), "{name}");
                assert!(path.join(aside).join(name).exists(), "{name}");
            }
            let kept = path.join(aside).join("boxes/1.2.c10d.box");
            assert_eq!(fs::read_to_string(kept).unwrap(), "old");
        }
        assert!(path.join("notes.txt").exists());
    }

    #[test]
    fn files_of_a_run_that_may_be_active_are_not_moved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        for (pid, host) in [(std::process::id(), sys::host_name()), (u32::MAX, "elsewhere".into())]
        {
            create_files(&path, "old", pid, &host);
            let made = make(&path);
            assert_eq!(made.dir.path().parent(), Some(path.as_path()));
            assert_eq!(made.dir.names().unwrap(), [""; 0]);
            assert!(made.notices[0].contains("may still be active"));
            for name in FILES {
                assert!(path.join(name).exists(), "{name}");
            }
        }
        // A rank of a killed run still writes to shared memory.
        create_files(&path, "old", u32::MAX, &sys::host_name());
        fs::create_dir(path.join("shm")).unwrap();
        let living =
            BoxDir::create(&path.join("shm"), "old", Some(&Dir::open_own(&path).unwrap())).unwrap();
        assert_ne!(make(&path).dir.path(), path);
        living.remove().unwrap();
        assert_eq!(make(&path).dir.path(), path);
        // Boxes alone: of this run, or of another one.
        fs::create_dir(path.join("boxes")).unwrap();
        fs::write(path.join("boxes/1.2.c10d.box"), "").unwrap();
        let own = |file: &Path| file.ends_with("boxes/1.2.c10d.box");
        assert_eq!(make_with(&path, own).dir.path(), path);
        assert_ne!(make(&path).dir.path(), path);
        fs::remove_dir_all(path.join("boxes")).unwrap();
        // Evidence without a description.
        create_files(&path, "old", u32::MAX, &sys::host_name());
        fs::remove_file(path.join(names::DESCRIPTION)).unwrap();
        assert_ne!(make(&path).dir.path(), path);
    }
}
