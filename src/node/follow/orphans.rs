//! Ranks that outlive the `ddp-doctor run` that started them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ddp_doctor_agent::blackbox::Reader;

use crate::host::boxes;
use crate::host::boxes::BoxDir;
use crate::host::files::Dir;
use crate::host::input_files;
use crate::host::proc;
use crate::host::run_description::Description;

/// A living rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    /// Its rank.
    pub rank: u32,
    /// Its process id.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// One of its black boxes.
    pub black_box: PathBuf,
}

/// The directories with the black boxes of a run.
fn directories(shared_memory: &Path, run_dir: &Path) -> Vec<PathBuf> {
    let Ok(run_dir) = input_files::canonical(run_dir) else {
        return Vec::new();
    };
    let mut dirs = BoxDir::awaited(shared_memory, &run_dir);
    // Boxes in a copy may name any process as a rank.
    let opened = Dir::open_own(&run_dir).ok();
    if opened.is_some_and(|it| Description::of_original(&it).is_some()) {
        dirs.push(run_dir.join(boxes::KEPT));
    }
    dirs
}

/// The living ranks of this user whose black boxes belong to a run directory, by rank.
#[must_use]
pub fn find(shared_memory: &Path, run_dir: &Path) -> Vec<Orphan> {
    let dirs = directories(shared_memory, run_dir);
    let files = dirs.iter().filter_map(|dir| boxes::boxes_in(dir).ok());
    let mut ranks: Vec<Orphan> = files
        .flatten()
        .filter_map(|black_box| {
            let identity = Reader::open_own(&black_box).ok()?.identity();
            let (pid, start_ticks) = (identity.pid, identity.start_ticks);
            proc::is_alive(pid, start_ticks).then_some(())?;
            Some(Orphan { rank: identity.rank?, pid, start_ticks, black_box })
        })
        .collect();
    ranks.sort_unstable();
    // A rank may have a box for each layer.
    ranks.dedup_by_key(|it| it.pid);
    ranks
}

/// A process that follows the ranks of a run directory. It is killed when this is dropped, so that
/// another process can follow them.
#[derive(Debug)]
pub struct Reporter(Child);

impl Drop for Reporter {
    fn drop(&mut self) {
        // It may have ended with the ranks.
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

/// Starts a process that follows the ranks of a run directory, including dead ones, and reports them
/// to a coordinator; `None`: no rank is alive.
///
/// # Errors
///
/// If the process cannot be started.
pub fn follow(
    shared_memory: &Path,
    run_dir: &Path,
    coordinator: &str,
) -> io::Result<Option<Reporter>> {
    let ranks = find(shared_memory, run_dir);
    let Some(first) = ranks.first() else {
        return Ok(None);
    };
    let reporter = Command::new(std::env::current_exe()?)
        .arg("reporter")
        .args(["--coordinator", coordinator, "--include-dead"])
        .arg(&first.black_box)
        .args(directories(shared_memory, run_dir))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Some(Reporter(reporter)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::host::names::{self, DirectoryIdentity};

    #[test]
    fn boxes_of_a_copy_name_no_rank() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let [original, copy] = ["original", "copy"].map(|name| place.join(name));
        fs::create_dir(&original).unwrap();
        fs::set_permissions(&original, fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(&copy).unwrap();
        let described = serde_json::json!({
            "job": "j", "host": "h", "boot_id": "b", "pid": 1, "start_ticks": 1,
            "directory": DirectoryIdentity::new(&original.metadata().unwrap()),
        });
        for dir in [&original, &copy] {
            fs::write(dir.join(names::DESCRIPTION), described.to_string()).unwrap();
        }
        let kept = |dir: &Path| dir.join(boxes::KEPT);
        assert_eq!(directories(Path::new("/nonexistent"), &original), [kept(&original)]);
        assert_eq!(directories(Path::new("/nonexistent"), &copy), Vec::<PathBuf>::new());
    }
}
