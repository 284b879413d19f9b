//! Folders of logs: the files to read, and the launches and attempts of torchrun whose files are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ddp_doctor_host::input_files;

/// Maximum depth of the folders of a launcher.
const MAX_DEPTH: usize = 4;
/// Beginning of the names of folders for the attempts of torchrun.
const ATTEMPT: &str = "attempt_";
/// Maximum number of files read of one folder.
const MAX_FILES: usize = 65_536;

/// Files of a folder that may be logs.
#[derive(Debug, Default)]
pub struct Files {
    /// The files to read.
    pub paths: Vec<PathBuf>,
    /// Folders of earlier launches of torchrun, and of earlier attempts, whose files are left out.
    pub earlier: Vec<PathBuf>,
}

/// Finds files that may be logs in a folder, and in those that torchrun creates in it. Torchrun keeps
/// launches and their attempts apart. The last attempt counts of the newest launch, and of those that
/// ran at the same time: each node has a launch of its own.
#[must_use]
pub fn find(dir: &Path) -> Files {
    let mut files = Files::default();
    let mut found = Vec::new();
    collect(dir, MAX_DEPTH, &mut found);
    found.sort_unstable();
    let mut launches: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for path in found {
        match launch_of(&path) {
            Some(launch) => launches.entry(launch).or_default().push(path),
            None => files.paths.push(path),
        }
    }
    let mut times = BTreeMap::new();
    let mut attempts = Vec::new();
    for (launch, paths) in &mut launches {
        let attempt = |path: &PathBuf| attempt_of(path);
        let last = paths.iter().filter_map(attempt).max();
        let (kept, dropped): (Vec<_>, Vec<_>) =
            paths.drain(..).partition(|path| attempt(path) == last);
        *paths = kept;
        let dropped: BTreeSet<u32> = dropped.iter().filter_map(attempt).collect();
        let folders = dropped.iter().rev();
        attempts.extend(folders.map(|it| launch.join(format!("{ATTEMPT}{it}"))));
        times.insert(launch.clone(), period(paths));
    }
    let newest = times.values().max_by_key(|(_, end)| *end).copied();
    for (launch, paths) in launches {
        let end = times.get(&launch).map(|(_, end)| *end);
        if end >= newest.map(|(start, _)| start) {
            files.paths.extend(paths);
        } else {
            attempts.retain(|it: &PathBuf| !it.starts_with(&launch));
            files.earlier.push(launch);
        }
    }
    files.earlier.extend(attempts);
    files
}

/// The folder of the launch of torchrun that wrote a file: the one that contains its attempts.
pub(super) fn launch_of(path: &Path) -> Option<PathBuf> {
    let is_attempt = |path: &&Path| {
        let name = path.file_name().and_then(|it| it.to_str());
        name.is_some_and(|it| it.starts_with(ATTEMPT))
    };
    let attempt = path.ancestors().filter(is_attempt).last()?;
    attempt.parent().map(Path::to_owned)
}

/// When the first of these files was created and the last one was written, as far as it is known.
/// Torchrun creates files when an attempt begins, and adds none to their folders later.
fn period(paths: &[PathBuf]) -> (SystemTime, SystemTime) {
    let written = |path: &Path| input_files::metadata(path).ok()?.modified().ok();
    let folders = paths.iter().filter_map(|path| written(path.parent()?));
    let times = paths.iter().filter_map(|path| written(path)).chain(folders);
    let (start, end) = (times.clone().min(), times.max());
    (start.unwrap_or(UNIX_EPOCH), end.unwrap_or(UNIX_EPOCH))
}

fn collect(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for path in entries(dir) {
        if found.len() >= MAX_FILES {
            return;
        }
        let Ok(metadata) = input_files::metadata(&path) else { continue };
        // Links could lead around in circles.
        if metadata.is_dir() && depth > 0 && !path.is_symlink() && is_torchruns(&path) {
            collect(&path, depth - 1, found);
        } else if metadata.is_file() {
            found.push(path);
        }
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    input_files::entries(dir).into_iter().flatten()
}

/// Whether a folder is one of `torchrun --log-dir`: "ID/attempt_0/3".
fn is_torchruns(dir: &Path) -> bool {
    let name = |path: &Path| path.file_name().and_then(|it| it.to_str()).map(str::to_owned);
    let is_attempt = |name: &String| name.starts_with(ATTEMPT);
    let is_part = |name: &String| is_attempt(name) || name.bytes().all(|it| it.is_ascii_digit());
    name(dir).is_some_and(|it| is_part(&it))
        || entries(dir).any(|path| name(&path).is_some_and(|it| is_attempt(&it)))
}

/// The attempt of torchrun that wrote a file: the number of the folder "attempt_2" in its path.
pub(super) fn attempt_of(path: &Path) -> Option<u32> {
    let mut names = path.iter().filter_map(|it| it.to_str());
    names.find_map(|name| name.strip_prefix(ATTEMPT)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn last_attempt_of_torchrun_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for attempt in 0..2 {
            for local in 0..2 {
                let folder = dir.path().join(format!("run/attempt_{attempt}/{local}"));
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("stderr.log"), "x").unwrap();
            }
        }
        let Files { paths: found, earlier } = find(dir.path());
        assert_eq!(earlier, [dir.path().join("run/attempt_0")]);
        let is_last = |path: &PathBuf| path.to_string_lossy().contains("attempt_1");
        assert!(found.len() == 2 && found.iter().all(is_last), "{found:?}");
    }

    #[test]
    fn newest_launch_and_those_at_its_time_are_read() {
        let dir = tempfile::tempdir().unwrap();
        // Two nodes share a folder. The first launch had more attempts.
        for (launch, attempts, written) in
            [("none_a", 3, 1_000), ("none_b", 1, 9_000), ("none_c", 2, 9_100)]
        {
            for attempt in 0..attempts {
                let folder = dir.path().join(format!("{launch}/attempt_{attempt}/0"));
                fs::create_dir_all(&folder).unwrap();
                let file = fs::File::create(folder.join("stderr.log")).unwrap();
                let time = UNIX_EPOCH + Duration::from_secs(written);
                file.set_modified(time).unwrap();
                let begin = fs::File::open(&folder).unwrap();
                begin.set_modified(time - Duration::from_secs(500)).unwrap();
            }
        }
        fs::write(dir.path().join("job.out"), "x").unwrap();
        let found = find(dir.path());
        let earlier = ["none_a", "none_c/attempt_0"];
        assert_eq!(found.earlier, earlier.map(|it| dir.path().join(it)));
        let expected =
            ["job.out", "none_b/attempt_0/0/stderr.log", "none_c/attempt_1/0/stderr.log"];
        assert_eq!(found.paths, expected.map(|it| dir.path().join(it)));
    }
}
