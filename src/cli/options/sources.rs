//! The option that names folders with sources.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::host::input_files;
use crate::host::source_files::SourceFolders;
use crate::node::launch::rundir;

/// Where source lines may be read.
#[derive(Clone, Debug, Default, Args)]
pub(in super::super) struct Sources {
    /// Also read source files below DIR, to show the lines that findings name
    ///
    /// For your own jobs on this machine, source files are read below the folder of the program and the working
    /// directory. Files that other evidence names (a coordinator, a downloaded journal, a log) are read only
    /// below DIR, even if their paths on the job's machine begin differently.
    #[arg(long = "source", value_name = "DIR", value_delimiter = ':', env = "DDP_DOCTOR_SOURCE")]
    #[arg(value_parser = PathBufValueParser::new().try_map(folder))]
    pub(in super::super) folders: Vec<PathBuf>,
}

/// Fails for a folder whose path has a link of another user. One that does not exist has no files.
fn folder(path: PathBuf) -> io::Result<PathBuf> {
    match input_files::reach(&path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(error),
        _ => {
            // The user named it, also if it is a link in evidence.
            input_files::confine(&path);
            Ok(path)
        }
    }
}

impl Sources {
    /// For the evidence of one job, in these paths.
    pub(in super::super) fn of_job<P: AsRef<Path>>(
        &self,
        paths: impl IntoIterator<Item = P>,
    ) -> SourceFolders {
        rundir::source_folders(paths).and_given(&self.folders)
    }

    /// For evidence of others.
    pub(in super::super) fn of_others(&self) -> SourceFolders {
        SourceFolders::default().and_given(&self.folders)
    }
}
