//! Ranks that outlive the `ddp-doctor run` that started them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ddp_doctor_agent::blackbox::Reader;

use crate::host::boxes;
use crate::host::boxes::BoxDir;
use crate::host::proc;

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
    let Ok(run_dir) = run_dir.canonicalize() else {
        return Vec::new();
    };
    let mut dirs = BoxDir::awaited(shared_memory, &run_dir);
    dirs.push(run_dir.join(boxes::KEPT));
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
