//! Where black boxes lie, and what their files are called.
//!
//! A box goes into shared memory, so that writing it never waits for a disk and it outlives its
//! process; where that has no room, into the run directory; else there is none, and an empty file
//! says so to whoever looks for the rank.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::sys;

/// Directory for the boxes of a job, set by whoever started it.
pub const BOX_DIR: &str = "DDP_DOCTOR_BOX_DIR";
/// Directory of the run, set by whoever started it.
pub const RUN_DIR: &str = "DDP_DOCTOR_RUN_DIR";
/// Job id, set by whoever started it.
pub const JOB: &str = "DDP_DOCTOR_JOB";

/// What the name of a black box ends in.
pub const EXTENSION: &str = "box";

/// Of the free space, a box takes at most one part in so many.
const SHARE: u64 = 4;
/// How often one process may make a box for one layer: again after each `exec`.
const MOST_PER_PROCESS: u32 = 10;

/// Directories that boxes of a job may lie in, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    candidates: Vec<Candidate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    directory: PathBuf,
    /// A directory of this user's in a place that everybody writes to: it must be his, and his only.
    private: Option<PathBuf>,
}

impl Place {
    /// `DDP_DOCTOR_BOX_DIR`, else a directory of this user, job and world in `/dev/shm`; then
    /// `DDP_DOCTOR_RUN_DIR/boxes`. `world`: see [`Options::world`](super::Options::world).
    #[must_use]
    pub fn from_env(job: &str, world: &str) -> Self {
        let variable = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let first = variable(BOX_DIR).map_or_else(
            || {
                let private = shared_memory(sys::effective_uid());
                let name = match world {
                    "" => job.to_owned(),
                    world => format!("{job}.{world}"),
                };
                Candidate {
                    directory: private.join(component(&name, 128)),
                    private: Some(private),
                }
            },
            Candidate::plain,
        );
        let second = variable(RUN_DIR).map(|run| Candidate::plain(run.join("boxes")));
        Self {
            candidates: std::iter::once(first).chain(second).collect(),
        }
    }

    /// This directory and no other.
    #[must_use]
    pub fn within(directory: impl Into<PathBuf>) -> Self {
        Self {
            candidates: vec![Candidate::plain(directory.into())],
        }
    }

    /// The directories, best first. They need not exist.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.candidates.iter().map(|it| it.directory.as_path())
    }

    /// Calls `make` with a new file under a temporary name, in one directory after the other until it
    /// succeeds, and then gives the file its name. Nobody ever sees half a box under that name.
    pub(super) fn create<T>(
        &self,
        name: &BoxName,
        bytes: u64,
        mut make: impl FnMut(&File) -> io::Result<T>,
    ) -> Result<(PathBuf, T), Vec<(PathBuf, io::Error)>> {
        let mut refusals = Vec::new();
        for candidate in &self.candidates {
            match candidate.create(name, bytes, &mut make) {
                Ok(made) => return Ok(made),
                Err(error) => refusals.push((candidate.directory.clone(), error)),
            }
        }
        Err(refusals)
    }

    /// Takes away what [`Place::leave_marker`] left: there is a box by now.
    pub(super) fn remove_markers(&self, marker: NoBox) {
        let unknown = NoBox {
            rank: None,
            ..marker
        };
        for directory in self.directories() {
            for marker in [marker, unknown] {
                // Mostly there is none.
                drop(fs::remove_file(directory.join(marker.to_string())));
            }
        }
    }

    /// Leaves an empty file that says that this process has no box, in the first directory that
    /// takes it.
    pub(super) fn leave_marker(&self, marker: NoBox) -> Option<PathBuf> {
        self.candidates.iter().find_map(|candidate| {
            candidate.prepare().ok()?;
            let path = candidate.directory.join(marker.to_string());
            match new_file(&path) {
                Ok(_) => Some(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(path),
                Err(_) => None,
            }
        })
    }
}

impl Candidate {
    fn plain(directory: PathBuf) -> Self {
        Self {
            directory,
            private: None,
        }
    }

    fn create<T>(
        &self,
        name: &BoxName,
        bytes: u64,
        make: &mut impl FnMut(&File) -> io::Result<T>,
    ) -> io::Result<(PathBuf, T)> {
        self.prepare()?;
        if sys::free_bytes(&self.directory)? / SHARE < bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        for attempt in 1..=MOST_PER_PROCESS {
            let name = name.file_name(attempt);
            let path = self.directory.join(&name);
            let temporary = self.directory.join(format!(".{name}.new"));
            if path.symlink_metadata().is_ok() {
                continue;
            }
            let file = match new_file(&temporary) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            let made = make(&file).and_then(|made| {
                fs::rename(&temporary, &path)?;
                Ok((path, made))
            });
            if made.is_err() {
                // Nothing better can be done about a file that cannot be removed.
                drop(fs::remove_file(&temporary));
            }
            return made;
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes the directory where there is none, for this user only.
    fn prepare(&self) -> io::Result<()> {
        let Some(private) = &self.private else {
            return DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.directory);
        };
        for directory in [private, &self.directory] {
            match DirBuilder::new().mode(0o700).create(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            // Someone else may have been here first, with a directory or a link of theirs.
            let found = directory.symlink_metadata()?;
            let private =
                found.is_dir() && found.uid() == sys::effective_uid() && found.mode() & 0o077 == 0;
            if !private {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the directory is not this user's alone",
                ));
            }
        }
        Ok(())
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
}

/// The directory in shared memory under which a user's jobs have theirs.
#[must_use]
pub fn shared_memory(uid: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/ddp-doctor-{uid}"))
}

/// The name of a black box: `PID.START_TICKS.LAYER.box`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxName {
    /// Process id of the writer.
    pub pid: u32,
    /// Its start time in clock ticks since boot.
    pub start_ticks: u64,
    /// What reports.
    pub layer: String,
}

impl BoxName {
    /// A name whose layer is fit for a file name.
    pub(super) fn new(pid: u32, start_ticks: u64, layer: &str) -> Self {
        Self {
            pid,
            start_ticks,
            layer: component(layer, 15).replace('.', "_"),
        }
    }

    /// Takes a file name apart; `None` where it is not that of a black box.
    #[must_use]
    pub fn parse(file_name: &str) -> Option<Self> {
        let mut parts = file_name.split('.');
        let pid = parts.next()?.parse().ok()?;
        let start_ticks = parts.next()?.parse().ok()?;
        let layer = parts.next()?.to_owned();
        let last = parts.next_back()?;
        (last == EXTENSION && !layer.is_empty()).then_some(Self {
            pid,
            start_ticks,
            layer,
        })
    }

    /// A process that replaced itself by `exec` keeps pid and start time, and may report anew: its
    /// later boxes carry a count.
    fn file_name(&self, attempt: u32) -> String {
        let Self {
            pid,
            start_ticks,
            layer,
        } = self;
        match attempt {
            1 => format!("{pid}.{start_ticks}.{layer}.{EXTENSION}"),
            n => format!("{pid}.{start_ticks}.{layer}.{n}.{EXTENSION}"),
        }
    }
}

/// The marker of a process that has no black box: `nobox.PID.RANK`, with `x` for an unknown rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBox {
    /// The process.
    pub pid: u32,
    /// Its global rank, where it was known.
    pub rank: Option<u32>,
}

impl NoBox {
    /// Takes a file name apart; `None` where it is no such marker.
    #[must_use]
    pub fn parse(file_name: &str) -> Option<Self> {
        let (pid, rank) = file_name.strip_prefix("nobox.")?.split_once('.')?;
        let rank = match rank {
            "x" => None,
            rank => Some(rank.parse().ok()?),
        };
        Some(Self {
            pid: pid.parse().ok()?,
            rank,
        })
    }
}

impl std::fmt::Display for NoBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "nobox.{}.{rank}", self.pid),
            None => write!(f, "nobox.{}.x", self.pid),
        }
    }
}

/// A text as one component of a path.
fn component(text: &str, longest: usize) -> String {
    let mut name: String = text
        .chars()
        .take(longest)
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => c,
            _ => '_',
        })
        .collect();
    if name.is_empty() || name.starts_with('.') {
        name.insert(0, '_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_what_they_say() {
        let name = BoxName::new(12, 3456, "c10d");
        assert_eq!(name.file_name(1), "12.3456.c10d.box");
        assert_eq!(name.file_name(2), "12.3456.c10d.2.box");
        for attempt in [1, 2] {
            assert_eq!(BoxName::parse(&name.file_name(attempt)), Some(name.clone()));
        }
        for foreign in [
            "",
            "12.box",
            "12.3456.box",
            ".12.3456.c10d.box.new",
            "12.3456.c10d.txt",
            "nobox.1.x",
        ] {
            assert_eq!(BoxName::parse(foreign), None, "{foreign}");
        }
        for marker in [
            NoBox { pid: 7, rank: None },
            NoBox {
                pid: 7,
                rank: Some(3),
            },
        ] {
            assert_eq!(NoBox::parse(&marker.to_string()), Some(marker));
        }
        assert_eq!(NoBox::parse("nobox.7"), None);
    }

    #[test]
    fn a_box_is_never_overwritten_and_never_seen_by_half() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::within(directory.path().join("new/boxes"));
        let name = BoxName::new(1, 2, "c");
        let make = |_: &File| {
            let seen = directory.path().join("new/boxes").read_dir()?;
            Ok(seen
                .filter_map(|it| it.ok()?.file_name().into_string().ok())
                .collect())
        };
        let mut seen: Vec<String>;
        let mut path;
        (path, seen) = place.create(&name, 1, make).unwrap();
        assert!(path.ends_with("1.2.c.box"));
        assert!(
            seen.iter().all(|it| BoxName::parse(it).is_none()),
            "{seen:?}"
        );
        (path, seen) = place.create(&name, 1, make).unwrap();
        assert!(path.ends_with("1.2.c.2.box"));
        seen.sort();
        assert_eq!(seen, [".1.2.c.2.box.new", "1.2.c.box"]);

        let failed = place.create(&name, 1, |_| {
            Err::<(), _>(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().len(), 1);
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 2);
        assert!(place.create(&name, u64::MAX, |_| Ok(())).is_err());
    }

    #[test]
    fn no_text_leaves_its_directory() {
        assert_eq!(component("../../etc", 64), "_.._.._etc");
        assert_eq!(component("", 64), "_");
        assert_eq!(component("a/b c", 3), "a_b");
        assert_eq!(BoxName::new(1, 2, "x.y").layer, "x_y");
    }
}
