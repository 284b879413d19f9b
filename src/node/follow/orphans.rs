//! Ranks that outlive the `ddp-doctor run` that started them.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ddp_doctor_agent::blackbox::Reader;
use ddp_doctor_host::boxes;
use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::files::Dir;
use ddp_doctor_host::input_files;
use ddp_doctor_host::proc;
use ddp_doctor_host::run_description::Description;

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
fn directories(shared_memory: &Path, run_dir: &Path) -> Vec<Dir> {
    let Ok(run_dir) = input_files::canonical(run_dir) else {
        return Vec::new();
    };
    let awaited = BoxDir::awaited(shared_memory, &run_dir);
    // Boxes in a copy may name any process as a rank.
    let original = Dir::open_own(&run_dir).ok().filter(|it| Description::of_original(it).is_some());
    let kept = original.and_then(|it| it.own_child(boxes::KEPT.as_ref()).ok());
    awaited.iter().filter_map(|it| Dir::open_own(it).ok()).chain(kept).collect()
}

/// The living ranks of this user whose black boxes belong to a run directory, by rank.
#[must_use]
pub fn find(shared_memory: &Path, run_dir: &Path) -> Vec<Orphan> {
    let rank_in = |dir: &Dir, name: &OsStr| {
        let black_box = dir.path().join(name);
        let reader = Reader::of_file(dir.open_file(name).ok()?, &black_box).ok()?;
        let identity = reader.identity();
        let (pid, start_ticks) = (identity.pid, identity.start_ticks);
        proc::is_alive(pid, start_ticks).then_some(())?;
        Some(Orphan { rank: identity.rank?, pid, start_ticks, black_box })
    };
    let ranks_in = |dir: &Dir| -> Vec<Orphan> {
        let names = boxes::boxes_of(dir).unwrap_or_default();
        names.iter().filter_map(|name| rank_in(dir, name)).collect()
    };
    let mut ranks: Vec<Orphan> =
        directories(shared_memory, run_dir).iter().flat_map(ranks_in).collect();
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
        .args(directories(shared_memory, run_dir).iter().map(Dir::path))
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
    use ddp_doctor_host::names;

    #[test]
    fn boxes_of_a_copy_name_no_rank() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().canonicalize().unwrap();
        let [original, copy] = ["original", "copy"].map(|name| place.join(name));
        fs::create_dir(&original).unwrap();
        fs::set_permissions(&original, fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(&copy).unwrap();
        for dir in [&original, &copy] {
            fs::create_dir(dir.join(boxes::KEPT)).unwrap();
        }
        let opened = Dir::open_own(&original).unwrap();
        let described = serde_json::json!({
            "job": "j", "host": "h", "boot_id": "b", "pid": 1, "start_ticks": 1,
        });
        names::write_description(&opened, described).unwrap();
        fs::copy(original.join(names::DESCRIPTION), copy.join(names::DESCRIPTION)).unwrap();
        let found = |dir: &Path| -> Vec<PathBuf> {
            let found = directories(Path::new("/nonexistent"), dir);
            found.iter().map(|it| it.path().to_owned()).collect()
        };
        assert_eq!(found(&original), [original.join(boxes::KEPT)]);
        assert_eq!(found(&copy), Vec::<PathBuf>::new());
    }
}
