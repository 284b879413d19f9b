//! Directories and file names of black boxes.
//!
//! A box is placed in shared memory, so that writing never waits for a disk and the box outlives
//! its process. If that has no room, it is placed in the run directory. Otherwise there is no box,
//! and an empty marker file is left for readers.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::files::{Dir, KnownDirectories, Missing, own_directory_name};
use crate::sys;

/// Directory for the boxes of a job, set by the process that started the job.
pub const BOX_DIR: &str = "DDP_DOCTOR_BOX_DIR";
/// Directory of the run, set by the process that started the job.
pub const RUN_DIR: &str = "DDP_DOCTOR_RUN_DIR";
/// Job id, set by the process that started the job.
pub const JOB: &str = "DDP_DOCTOR_JOB";

/// File name extension of a black box.
pub const EXTENSION: &str = "box";

/// A box takes at most 1/4 of the free space.
const SHARE: u64 = 4;
/// Maximum number of boxes of one process and layer; a process may create one after each `exec`.
const MAX_PER_PROCESS: u32 = 10;

/// Candidate directories for the boxes of a job, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    candidates: Vec<Candidate>,
    /// Those that the process which started the job had opened.
    known: KnownDirectories,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    directory: PathBuf,
    /// Parent directory in a world-writable place; it must belong to this user, with no access for
    /// others.
    private: Option<PathBuf>,
}

impl Place {
    /// `DDP_DOCTOR_BOX_DIR`, otherwise a directory of this user, job and world in `/dev/shm`; then
    /// `DDP_DOCTOR_RUN_DIR/boxes`. `world`: see [`Options::world`](super::Options::world).
    #[must_use]
    pub fn from_env(job: &str, world: &str) -> Self {
        let variable =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let first = variable(BOX_DIR).map_or_else(
            || {
                let private = shared_memory();
                let name = match world {
                    "" => job.to_owned(),
                    world => format!("{job}.{world}"),
                };
                Candidate { directory: private.join(component(&name, 128)), private: Some(private) }
            },
            Candidate::plain,
        );
        let second = variable(RUN_DIR).map(|run| Candidate::plain(run.join("boxes")));
        let candidates = std::iter::once(first).chain(second).collect();
        Self { candidates, known: KnownDirectories::from_env() }
    }

    /// Only this directory.
    #[must_use]
    pub fn within(directory: impl Into<PathBuf>) -> Self {
        let candidates = vec![Candidate::plain(directory.into())];
        Self { candidates, known: KnownDirectories::default() }
    }

    /// The directories, best first. They need not exist.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.candidates.iter().map(|it| it.directory.as_path())
    }

    /// The directories without those that another user owns, can enter, or can have put or linked there. An error means
    /// that the directory does not exist or cannot be opened.
    pub(crate) fn usable(&self) -> impl Iterator<Item = (&Path, io::Result<Dir>)> {
        let opened =
            self.candidates.iter().map(|it| (&*it.directory, it.open(Missing::Fail, &self.known)));
        let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        opened.filter(move |(_, opened)| !opened.as_ref().is_err_and(is_refused))
    }

    /// Calls `make` with a new temporary file in one directory after the other until it succeeds,
    /// then renames the file. An incomplete box never has the final name.
    pub(super) fn create<T>(
        &self,
        name: &BoxName,
        bytes: u64,
        mut make: impl FnMut(&File) -> io::Result<T>,
    ) -> Result<(PathBuf, T), Vec<(PathBuf, io::Error)>> {
        let mut refusals = Vec::new();
        for candidate in &self.candidates {
            match candidate.create(name, bytes, &self.known, &mut make) {
                Ok(made) => return Ok(made),
                Err(error) => refusals.push((candidate.directory.clone(), error)),
            }
        }
        Err(refusals)
    }

    /// Removes the markers that [`Place::leave_marker`] created.
    pub(super) fn remove_markers(&self, marker: NoBox) {
        let unknown = NoBox { rank: None, ..marker };
        for (_, directory) in self.usable() {
            let Ok(directory) = directory else { continue };
            for marker in [marker, unknown] {
                // Usually there is none.
                drop(directory.remove(marker.to_string().as_ref()));
            }
        }
    }

    /// Creates an empty file in the first directory where this is possible, as a marker that this
    /// process has no box.
    pub(super) fn leave_marker(&self, marker: NoBox) -> Option<PathBuf> {
        self.candidates.iter().find_map(|candidate| {
            let name = marker.to_string();
            let directory = candidate.open(Missing::Create, &self.known).ok()?;
            match directory.new_file(name.as_ref()) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => None,
                _ => Some(candidate.directory.join(name)),
            }
        })
    }
}

/// Fails if a box would take more than its share of the free space with these further bytes.
pub(super) fn ensure_room(file: impl AsFd, bytes: u64) -> io::Result<()> {
    if sys::free_bytes(file)? / SHARE < bytes {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Ok(())
}

impl Candidate {
    fn plain(directory: PathBuf) -> Self {
        Self { directory, private: None }
    }

    fn create<T>(
        &self,
        name: &BoxName,
        bytes: u64,
        known: &KnownDirectories,
        make: &mut impl FnMut(&File) -> io::Result<T>,
    ) -> io::Result<(PathBuf, T)> {
        let directory = self.open(Missing::Create, known)?;
        ensure_room(&directory, bytes)?;
        for attempt in 1..=MAX_PER_PROCESS {
            let name = name.file_name(attempt);
            let temporary = format!(".{name}.new");
            if directory.contains(name.as_ref()) {
                continue;
            }
            let file = match directory.new_file(temporary.as_ref()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            let made = make(&file).and_then(|made| {
                directory.rename(temporary.as_ref(), name.as_ref())?;
                Ok((self.directory.join(&name), made))
            });
            if made.is_err() {
                // If the file cannot be removed, it stays.
                drop(directory.remove(temporary.as_ref()));
            }
            return made;
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Opens the directory, which must belong to this user. What is created is accessible by this user
    /// only.
    fn open(&self, missing: Missing, known: &KnownDirectories) -> io::Result<Dir> {
        let Some(private) = &self.private else {
            return Dir::open(&self.directory, missing)?.own()?.one_of(known);
        };
        let (base, user) = Dir::parent(private)?;
        let job = self.directory.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        base.private_child(user, missing)?.private_child(job, missing)
    }
}

/// The directory in shared memory that contains the directories of this user's jobs.
fn shared_memory() -> PathBuf {
    Path::new("/dev/shm").join(own_directory_name())
}

/// File name of a black box: `PID.START_TICKS.LAYER.box`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxName {
    /// Process id of the writer.
    pub pid: u32,
    /// Start time of the writer in clock ticks since boot.
    pub start_ticks: u64,
    /// The reporting layer.
    pub layer: String,
}

impl BoxName {
    /// A name whose layer is sanitized for a file name.
    pub(super) fn new(pid: u32, start_ticks: u64, layer: &str) -> Self {
        Self { pid, start_ticks, layer: component(layer, 15).replace('.', "_") }
    }

    /// Parses a file name; `None`: not the name of a black box.
    #[must_use]
    pub fn parse(file_name: &str) -> Option<Self> {
        let mut parts = file_name.split('.');
        let pid = parts.next()?.parse().ok()?;
        let start_ticks = parts.next()?.parse().ok()?;
        let layer = parts.next()?.to_owned();
        let last = parts.next_back()?;
        (last == EXTENSION && !layer.is_empty()).then_some(Self { pid, start_ticks, layer })
    }

    /// After `exec` a process keeps its pid and start time and may create another box, so the names
    /// of later boxes contain a count.
    fn file_name(&self, attempt: u32) -> String {
        let Self { pid, start_ticks, layer } = self;
        match attempt {
            1 => format!("{pid}.{start_ticks}.{layer}.{EXTENSION}"),
            n => format!("{pid}.{start_ticks}.{layer}.{n}.{EXTENSION}"),
        }
    }
}

/// File name of the marker of a process without a black box: `nobox.PID.RANK`, with `x` for an
/// unknown rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBox {
    /// Process id.
    pub pid: u32,
    /// Global rank, if known.
    pub rank: Option<u32>,
}

impl NoBox {
    /// Parses a file name; `None`: not the name of a marker.
    #[must_use]
    pub fn parse(file_name: &str) -> Option<Self> {
        let (pid, rank) = file_name.strip_prefix("nobox.")?.split_once('.')?;
        let rank = match rank {
            "x" => None,
            rank => Some(rank.parse().ok()?),
        };
        Some(Self { pid: pid.parse().ok()?, rank })
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

/// Converts a text into one component of a path.
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
    fn file_names_are_parsed_back() {
        let name = BoxName::new(12, 3456, "c10d");
        assert_eq!(name.file_name(1), "12.3456.c10d.box");
        assert_eq!(name.file_name(2), "12.3456.c10d.2.box");
        for attempt in [1, 2] {
            assert_eq!(BoxName::parse(&name.file_name(attempt)), Some(name.clone()));
        }
        for foreign in
            ["", "12.box", "12.3456.box", ".12.3456.c10d.box.new", "12.3456.c10d.txt", "nobox.1.x"]
        {
            assert_eq!(BoxName::parse(foreign), None, "{foreign}");
        }
        for marker in [NoBox { pid: 7, rank: None }, NoBox { pid: 7, rank: Some(3) }] {
            assert_eq!(NoBox::parse(&marker.to_string()), Some(marker));
        }
        assert_eq!(NoBox::parse("nobox.7"), None);
    }

    #[test]
    fn box_is_never_overwritten_or_visible_incomplete() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::within(directory.path().join("new/boxes"));
        let name = BoxName::new(1, 2, "c");
        let make = |_: &File| {
            let seen = directory.path().join("new/boxes").read_dir()?;
            Ok(seen.filter_map(|it| it.ok()?.file_name().into_string().ok()).collect())
        };
        let mut seen: Vec<String>;
        let mut path;
        (path, seen) = place.create(&name, 1, make).unwrap();
        assert!(path.ends_with("1.2.c.box"));
        assert!(seen.iter().all(|it| BoxName::parse(it).is_none()), "{seen:?}");
        (path, seen) = place.create(&name, 1, make).unwrap();
        assert!(path.ends_with("1.2.c.2.box"));
        seen.sort();
        assert_eq!(seen, [".1.2.c.2.box.new", "1.2.c.box"]);

        let failed = place.create(&name, 1, |_| Err::<(), _>(io::ErrorKind::StorageFull.into()));
        assert_eq!(failed.unwrap_err().len(), 1);
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 2);
        assert!(place.create(&name, u64::MAX, |_| Ok(())).is_err());
    }

    #[test]
    fn path_component_stays_in_its_directory() {
        assert_eq!(component("../../etc", 64), "_.._.._etc");
        assert_eq!(component("", 64), "_");
        assert_eq!(component("a/b c", 3), "a_b");
        assert_eq!(BoxName::new(1, 2, "x.y").layer, "x_y");
    }
}
