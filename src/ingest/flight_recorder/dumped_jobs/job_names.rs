//! Names of jobs.

use std::collections::BTreeMap;
use std::path::Path;

use super::DumpedJob;

/// Names jobs by the ends of their folders, each as long as it takes to tell the jobs apart.
pub(super) fn name(jobs: &mut [DumpedJob]) {
    /// Maximum number of folders in a name.
    const MAX_FOLDERS: usize = 8;
    let folders: Vec<Vec<String>> = jobs.iter().map(|job| folders(&job.folder)).collect();
    for len in 1..=MAX_FOLDERS {
        let names: Vec<String> = folders.iter().map(|it| last(it, len)).collect();
        let mut count: BTreeMap<&String, u32> = BTreeMap::new();
        for name in &names {
            *count.entry(name).or_default() += 1;
        }
        for (job, name) in jobs.iter_mut().zip(&names) {
            let is_last = len == MAX_FOLDERS;
            if job.name.is_empty() && (is_last || count[name] == 1) {
                job.name.clone_from(name);
            }
        }
    }
}

/// The last of the folders of a path, joined.
fn last(folders: &[String], len: usize) -> String {
    folders[folders.len().saturating_sub(len)..].join("/")
}

/// The folders of a path, outermost first; at least one.
fn folders(path: &Path) -> Vec<String> {
    // An empty path is the current folder.
    let absolute = if path.file_name().is_some() {
        std::path::absolute(path)
    } else {
        Path::new(".").join(path).canonicalize()
    };
    let path = absolute.unwrap_or_default();
    let folders: Vec<String> =
        path.iter().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
    if folders.is_empty() {
        return vec!["/".into()];
    }
    folders
}
