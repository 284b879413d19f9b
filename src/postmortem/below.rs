//! The subdirectories of a folder, and their files.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ddp_doctor_evidence::journal;
use ddp_doctor_host::input_files;
use ddp_doctor_host::run_description::Description;

/// Maximum depth of subdirectories that are searched.
pub(super) const MAX_DEPTH: usize = 3;
/// Maximum number of files examined in one directory, and in all directories below it.
pub(super) const MAX_FILES: usize = 65_536;

/// The subdirectories of a folder, outermost first, and their files.
#[derive(Debug, Default)]
pub(super) struct Below {
    pub(super) folders: Vec<PathBuf>,
    pub(super) files: Vec<PathBuf>,
    /// Run directories, which are not searched.
    pub(super) runs: Vec<PathBuf>,
    /// Directories that cannot be read.
    pub(super) closed: Vec<(PathBuf, io::Error)>,
    /// There are more files.
    pub(super) is_cut: bool,
    /// Device and inode of directories: each is searched once.
    known: HashSet<(u64, u64)>,
}

impl Below {
    /// Searches the subdirectories of a folder. Links are followed, but not those of other users, nor to folders that
    /// contain it.
    pub(super) fn list(dir: &Path) -> Self {
        let mut below = Self::default();
        let root = input_files::canonical(dir).unwrap_or_else(|_| dir.to_owned());
        for folder in root.ancestors() {
            below.enters(folder);
        }
        // The folder itself is read by the caller, which reports the error.
        let mut level = entries(dir, input_files::is_dir).unwrap_or_default();
        for _ in 0..MAX_DEPTH {
            let mut next = Vec::new();
            // Links last: a folder that is also reached otherwise keeps its own name.
            level.sort_by_cached_key(|path| (path.is_symlink(), path.clone()));
            for folder in level {
                next.extend(below.search(folder));
            }
            level = next;
        }
        below
    }

    /// Adds a folder and its files. Returns its subdirectories.
    fn search(&mut self, folder: PathBuf) -> Vec<PathBuf> {
        if is_run(&folder) {
            self.runs.push(folder);
            return Vec::new();
        }
        if !self.enters(&folder) {
            return Vec::new();
        }
        match entries(&folder, |_| true) {
            Ok(found) => {
                let (folders, files): (Vec<_>, Vec<_>) =
                    found.into_iter().partition(|path| input_files::is_dir(path));
                let room = MAX_FILES - self.files.len();
                self.is_cut |= files.len() > room;
                self.files.extend(files.into_iter().take(room));
                self.folders.push(folder);
                folders
            }
            Err(error) => {
                self.closed.push((folder, error));
                Vec::new()
            }
        }
    }

    /// Whether the folder was not searched before, under any name.
    fn enters(&mut self, folder: &Path) -> bool {
        let metadata = input_files::metadata(folder);
        metadata.is_ok_and(|it| self.known.insert((it.dev(), it.ino())))
    }
}

/// The entries of a directory that are of a kind, in the order of their names.
pub(super) fn entries(dir: &Path, is: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let all = input_files::entries(dir)?;
    let mut paths: Vec<PathBuf> = all.filter(|path| is(path)).take(MAX_FILES).collect();
    paths.sort_unstable();
    Ok(paths)
}

fn is_run(folder: &Path) -> bool {
    let has_journal = input_files::metadata(&folder.join(journal::FIRST)).is_ok();
    has_journal || Description::read(folder).is_ok_and(|it| it.is_some())
}
