//! The files that have the latest report of a run.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use ddp_doctor_host::files::{self, Dir};
use ddp_doctor_proto::report::Report;
use ddp_doctor_report::json;

/// A file with the last report.
pub struct ReportFile {
    pub(super) path: PathBuf,
    /// The directory that contains it: the one that the path led to at the beginning. `None`: none, yet.
    dir: Option<Dir>,
    /// Others may read it, as far as the umask permits.
    is_published: bool,
    /// The last attempt to write it failed, and that was reported.
    pub(super) is_stale: bool,
}

impl From<PathBuf> for ReportFile {
    fn from(path: PathBuf) -> Self {
        let dir = files::parent(&path).ok().map(|(dir, _)| dir);
        Self { path, dir, is_published: true, is_stale: false }
    }
}

impl ReportFile {
    /// The report in a run directory.
    #[must_use]
    pub fn of_run(dir: &Dir) -> Self {
        let path = dir.path().join("report.json");
        Self { path, dir: Some(dir.clone()), is_published: false, is_stale: false }
    }

    /// A report in an open directory, that others may read as far as the umask permits.
    #[must_use]
    pub fn published_in(dir: Dir, name: &OsStr) -> Self {
        Self { path: dir.path().join(name), dir: Some(dir), is_published: true, is_stale: false }
    }

    /// Replaces the report: readers of the file see the old one or the new one.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the old file is unchanged then.
    pub fn write(&mut self, report: &Report) -> io::Result<()> {
        let dir = match &self.dir {
            Some(dir) => dir,
            None => self.dir.insert(files::parent(&self.path)?.0),
        };
        let name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        if self.is_published {
            dir.publish(name, json::text(report)?.as_bytes())
        } else {
            json::write_in(report, dir, name)
        }
    }
}
