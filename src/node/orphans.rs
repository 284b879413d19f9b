//! Ranks that outlive the `ddp-doctor run` that watched them.

use std::path::{Path, PathBuf};

use ddp_doctor_agent::blackbox::Reader;

use super::boxes::{self, BoxDir};
use super::proc;

/// A living rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    /// Its rank.
    pub rank: u32,
    /// Its process id.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
}

/// The living ranks of this user whose black boxes belong to a run directory, by rank.
#[must_use]
pub fn of(shared_memory: &Path, run_dir: &Path) -> Vec<Orphan> {
    let Ok(run_dir) = run_dir.canonicalize() else {
        return Vec::new();
    };
    let mut dirs: Vec<PathBuf> = BoxDir::awaited(shared_memory, &run_dir).collect();
    dirs.push(run_dir.join("boxes"));
    let files = dirs.iter().filter_map(|dir| boxes::boxes_in(dir).ok());
    let mut ranks: Vec<Orphan> = files
        .flatten()
        .filter_map(|file| {
            let identity = Reader::open_own(&file).ok()?.identity();
            let (pid, start_ticks) = (identity.pid, identity.start_ticks);
            proc::is_alive(pid, start_ticks).then_some(())?;
            Some(Orphan {
                rank: identity.rank?,
                pid,
                start_ticks,
            })
        })
        .collect();
    ranks.sort_unstable();
    // A rank may have a box for each layer.
    ranks.dedup();
    ranks
}
