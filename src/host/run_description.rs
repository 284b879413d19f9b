//! `run.json`, the description of a run in its directory.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::report::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::files::Dir;
use crate::names::{self, DirectoryIdentity};
use crate::{input_files, proc, seal, sys};

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
    /// The seal, and the text that it is of; `None`: it has none.
    #[serde(skip)]
    seal: Option<(String, String)>,
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

    /// Like [`Self::read`], in an open directory.
    ///
    /// # Errors
    ///
    /// If the file exists and cannot be read.
    pub fn of_any(dir: &Dir) -> io::Result<Option<Self>> {
        let name = names::DESCRIPTION.as_ref();
        Self::parse(input_files::read_text_in(dir, name, MAX_DESCRIPTION))
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

    /// Whether it was written for this directory, which is then neither a copy nor moved.
    #[must_use]
    pub fn describes(&self, dir: &Dir) -> bool {
        let Ok(directory) = dir.readable() else { return false };
        let is_seal = |text: &str, seal: &str| {
            names::sealed_text(text, &directory).is_ok_and(|it| seal::is_sealed(&it, seal))
        };
        let metadata = directory.metadata();
        metadata.is_ok_and(|it| self.is_of(DirectoryIdentity::new(&it), is_seal))
    }

    /// The owner of the directory does not suffice: some file systems (CIFS, NTFS, NFS with `all_squash`) state this user
    /// as the owner of everything, and whoever creates a directory chooses its number and time of creation. The seal is for
    /// one path on one file system.
    fn is_of(&self, directory: DirectoryIdentity, is_seal: impl Fn(&str, &str) -> bool) -> bool {
        let is_sealed = || self.seal.as_ref().is_some_and(|(it, text)| is_seal(text, it));
        self.directory == Some(directory) && is_sealed()
    }

    fn from_json(text: &str) -> Option<Self> {
        let mut described: Value = serde_json::from_str(text).ok()?;
        let seal = described.as_object_mut()?.remove(names::SEAL);
        let sealed = described.to_string();
        let seal = seal.as_ref().and_then(Value::as_str).map(|it| (it.to_owned(), sealed));
        let description: Self = serde_json::from_value(described).ok()?;
        Some(Self { seal, ..description })
    }

    fn parse(description: io::Result<String>) -> io::Result<Option<Self>> {
        match description {
            Ok(description) => Ok(Self::from_json(&description)),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As on file systems that state one owner for everything: another user knows both numbers of a directory.
    #[test]
    fn numbers_of_a_directory_alone_do_not_identify_it() {
        let described = |created: &str, seal: &str| {
            let directory = format!(r#"{{"inode": 7, "created_unix_ns": {created}}}"#);
            let rest = r#""host": "h", "boot_id": "b", "pid": 1, "start_ticks": 1"#;
            let text = format!(r#"{{"job": "j", "directory": {directory}, {seal}{rest}}}"#);
            Description::from_json(&text).unwrap()
        };
        let is_of = |it: &Description, other: &Description| {
            it.is_of(other.directory.unwrap(), |text, seal| {
                assert!(text.contains("\"job\":\"j\"") && !text.contains("seal"), "{text}");
                seal == "right"
            })
        };
        let sealed =
            |created: &str, seal: &str| described(created, &format!(r#""seal": "{seal}", "#));
        for created in ["9", "null"] {
            let unsealed = described(created, "");
            assert!(!is_of(&unsealed, &unsealed));
            assert!(is_of(&sealed(created, "right"), &unsealed));
            assert!(!is_of(&sealed(created, "forged"), &unsealed));
            assert!(!is_of(&sealed(created, "right"), &described("8", "")));
        }
    }
}
