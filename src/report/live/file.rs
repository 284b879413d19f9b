//! The files that have the latest report of a run.

use std::io;
use std::path::PathBuf;

use ddp_doctor_proto::report::Report;

use crate::host::files::Dir;
use crate::report::json;

/// A file with the last report.
pub struct ReportFile {
    pub(super) path: PathBuf,
    /// The directory that contains it; `None`: the one that the path leads to.
    dir: Option<Dir>,
    /// The last attempt to write it failed, and that was reported.
    pub(super) is_stale: bool,
}

impl From<PathBuf> for ReportFile {
    fn from(path: PathBuf) -> Self {
        Self { path, dir: None, is_stale: false }
    }
}

impl ReportFile {
    /// The report in a run directory.
    #[must_use]
    pub fn of_run(dir: &Dir) -> Self {
        let path = dir.path().join("report.json");
        Self { path, dir: Some(dir.clone()), is_stale: false }
    }

    pub(super) fn write(&self, report: &Report) -> io::Result<()> {
        match (&self.dir, self.path.file_name()) {
            (Some(dir), Some(name)) => json::write_in(report, dir, name),
            _ => json::write(report, &self.path),
        }
    }
}
