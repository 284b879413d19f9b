//! `run.json`, the description of a run in its directory.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::report::Timestamp;
use serde::Deserialize;

use crate::files::Dir;
use crate::names::{self, DirectoryIdentity};
use crate::{input_files, proc, sys};

/// Maximum size of a description, in bytes.
const MAX_DESCRIPTION: u64 = 1 << 20;

/// Contents of `run.json`.
#[derive(Debug, Deserialize)]
pub struct Description {
    /// Id of the job.
    pub job: String,
    /// Address of its coordinator.
    #[serde(default)]
    pub coordinator: Option<String>,
    /// Start time, clock of the node.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// Folders of the program.
    #[serde(default)]
    pub source_folders: Vec<PathBuf>,
    /// The directory that the run described.
    #[serde(default)]
    directory: Option<DirectoryIdentity>,
    host: String,
    boot_id: String,
    pid: u32,
    start_ticks: u64,
}

impl Description {
    /// Reads the description in a run directory; `None` if it is missing or invalid.
    ///
    /// # Errors
    ///
    /// If the file exists and cannot be read.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        Self::parse(input_files::read_text(&dir.join(names::DESCRIPTION), MAX_DESCRIPTION))
    }

    /// Reads the description that a process of this user wrote; `None` if it is missing or invalid.
    ///
    /// # Errors
    ///
    /// If the file exists and cannot be read, or belongs to another user.
    pub fn of_own(dir: &Dir) -> io::Result<Option<Self>> {
        Self::parse(dir.read_text(names::DESCRIPTION.as_ref(), MAX_DESCRIPTION))
    }

    /// Reads the description that a run of this user wrote for this directory. `None`: another user can have written it,
    /// or the directory is a copy, such as a downloaded one.
    #[must_use]
    pub fn of_original(dir: &Dir) -> Option<Self> {
        let metadata = dir.readable().and_then(|it| it.metadata()).ok()?;
        let run = Self::of_own(dir).ok().flatten()?;
        (run.describes(dir) && metadata.mode() & 0o022 == 0).then_some(run)
    }

    /// Whether it was written for this directory, which is then not a copy.
    #[must_use]
    pub fn describes(&self, dir: &Dir) -> bool {
        let metadata = dir.readable().and_then(|it| it.metadata());
        metadata.is_ok_and(|it| self.directory == Some(DirectoryIdentity::new(&it)))
    }

    fn parse(description: io::Result<String>) -> io::Result<Option<Self>> {
        match description {
            Ok(description) => Ok(serde_json::from_str(&description).ok()),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidData
                | io::ErrorKind::FileTooLarge => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Whether the run is active on this machine.
    #[must_use]
    pub fn is_running_here(&self) -> bool {
        self.host == sys::host_name()
            && self.boot_id == proc::boot_id()
            && proc::is_alive(self.pid, self.start_ticks)
    }

    /// Whether the run has ended for certain; false for a run of another host.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.host == sys::host_name()
            && (self.boot_id != proc::boot_id() || !proc::is_alive(self.pid, self.start_ticks))
    }
}
