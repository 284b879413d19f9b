//! The run directory: where evidence and report of one run go, and of no other.
//!
//! A directory that a run has used before is taken again, so that the report is where it was asked
//! for; what that run left is put aside in it, never deleted. If that run may still be going on,
//! here or on another node that shares the directory, nothing of its is touched: this run goes into
//! a directory below.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::report::Timestamp;
use serde::Deserialize;

use crate::files;
use crate::node::follow::boxes::BoxDir;
use crate::node::follow::{boxes, names};
use crate::node::sample::proc;
use crate::node::sys;

/// What a run leaves, the description last: as long as it is there, the rest is not all put aside.
const LEFT: [&str; 4] = ["boxes", "journal.ddpj", "report.json", names::DESCRIPTION];
/// So many runs of one job may be put aside.
const MOST: u32 = 10_000;
/// Longest description that is read.
const MAX_DESCRIPTION: u64 = 1 << 20;

/// A directory for this run.
#[derive(Debug)]
pub struct RunDir {
    /// It.
    pub path: PathBuf,
    /// What the user has to know of it.
    pub remark: Option<String>,
}

impl RunDir {
    /// Makes the directory that was asked for, or one of its own below the working directory.
    ///
    /// # Errors
    ///
    /// When it cannot be made, is somebody else's, or holds what cannot be put aside.
    pub fn make(
        shared_memory: &Path,
        asked: Option<PathBuf>,
        job: &str,
        started: Timestamp,
    ) -> io::Result<Self> {
        // What a killed run left of itself goes into its directory before that is taken for this.
        BoxDir::sweep(shared_memory);
        let own = names::run_dir(job, started);
        let dir = asked.unwrap_or_else(|| Path::new(names::RUNS).join(&own));
        boxes::private_dir(&dir)?;
        let dir = dir.canonicalize()?;
        match Previous::of(&dir)? {
            None => Ok(Self {
                path: dir,
                remark: None,
            }),
            // Ranks of a run that was killed may live on.
            Some(previous) if previous.is_over && !BoxDir::are_awaited(shared_memory, &dir) => {
                let aside = previous.put_aside(&dir)?;
                Ok(Self {
                    remark: Some(format!(
                        "the files of an earlier run were moved to {}",
                        aside.display()
                    )),
                    path: dir,
                })
            }
            Some(_) => {
                let path = make_new(&dir, &own)?;
                Ok(Self {
                    remark: Some(format!(
                        "another run that may still be active uses {}; this run uses {}",
                        dir.display(),
                        path.display()
                    )),
                    path,
                })
            }
        }
    }
}

/// The run that used a directory before.
#[derive(Debug)]
struct Previous {
    job: String,
    is_over: bool,
}

/// What `run.json` says of a run.
#[derive(Debug, Deserialize)]
pub struct Description {
    /// Id of the job.
    pub job: String,
    /// Where its diagnosis is made; `None`: nowhere.
    #[serde(default)]
    pub coordinator: Option<String>,
    /// When it was started.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    host: String,
    boot_id: String,
    pid: u32,
    start_ticks: u64,
}

impl Previous {
    fn of(dir: &Path) -> io::Result<Option<Self>> {
        let mut left = LEFT
            .iter()
            .filter(|name| holds_something(&dir.join(name)))
            .peekable();
        if left.peek().is_none() {
            return Ok(None);
        }
        // Ranks of this run may already have created their boxes here.
        if left.all(|name| *name == LEFT[0]) && boxes::are_in_use(&dir.join(LEFT[0])) {
            return Ok(None);
        }
        Ok(Some(match Description::of(dir)? {
            Some(it) => Self {
                is_over: it.is_over(),
                job: names::file_name(&it.job),
            },
            // It writes the description as soon as it has started the command.
            None => Self {
                job: "run".into(),
                is_over: false,
            },
        }))
    }

    fn put_aside(&self, dir: &Path) -> io::Result<PathBuf> {
        let aside = make_new(dir, &format!("previous-{}", self.job))?;
        for name in LEFT {
            match fs::rename(dir.join(name), aside.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(aside)
    }
}

impl Description {
    /// Reads that of a run directory; `None` where there is none that makes sense.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn of(dir: &Path) -> io::Result<Option<Self>> {
        let file = dir.join(names::DESCRIPTION);
        match files::read_text(&file, MAX_DESCRIPTION) {
            Ok(description) => Ok(serde_json::from_str(&description).ok()),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidData
                | io::ErrorKind::FileTooLarge => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Whether the run still goes on, on this machine.
    #[must_use]
    pub fn goes_on_here(&self) -> bool {
        self.host == sys::host_name()
            && self.boot_id == proc::boot_id()
            && proc::is_alive(self.pid, self.start_ticks)
    }

    /// Whether the run has surely ended. Of another host we know nothing.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.host == sys::host_name()
            && (self.boot_id != proc::boot_id() || !proc::is_alive(self.pid, self.start_ticks))
    }
}

/// A file, or a directory that is not empty.
fn holds_something(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.exists(),
    }
}

/// Makes a directory that was not there: with this name, or with a number after it.
fn make_new(below: &Path, name: &str) -> io::Result<PathBuf> {
    for number in 1..MOST {
        let path = match number {
            1 => below.join(name),
            _ => below.join(format!("{name}-{number}")),
        };
        match boxes::new_private_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves what a run leaves; says what every file holds.
    fn leave(dir: &Path, job: &str, pid: u32, host: &str) {
        fs::create_dir_all(dir.join("boxes")).unwrap();
        for name in ["boxes/1.2.c10d.box", "journal.ddpj", "report.json"] {
            fs::write(dir.join(name), job).unwrap();
        }
        let start_ticks = proc::Stat::of(pid).map_or(1, |stat| stat.start_ticks);
        let boot_id = proc::boot_id();
        let it = serde_json::json!({
            "job": job, "host": host, "boot_id": boot_id, "pid": pid, "start_ticks": start_ticks,
        });
        fs::write(dir.join(names::DESCRIPTION), it.to_string()).unwrap();
    }

    fn make(dir: &Path) -> RunDir {
        RunDir::make(&dir.join("shm"), Some(dir.to_owned()), "new", Timestamp(0)).unwrap()
    }

    #[test]
    fn what_an_earlier_run_left_is_put_aside_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert!(make(&path).remark.is_none(), "a new one");
        fs::write(path.join("notes.txt"), "the user's").unwrap();
        for aside in ["previous-old", "previous-old-2"] {
            leave(&path, "old", u32::MAX, &sys::host_name());
            let made = make(&path);
            assert_eq!(made.path, path);
            assert!(made.remark.unwrap().contains(aside));
            for name in LEFT {
                assert!(!path.join(name).exists(), "{name}");
                assert!(path.join(aside).join(name).exists(), "{name}");
            }
            let kept = path.join(aside).join("boxes/1.2.c10d.box");
            assert_eq!(fs::read_to_string(kept).unwrap(), "old");
        }
        assert!(path.join("notes.txt").exists());
    }

    #[test]
    fn a_run_that_may_go_on_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        for (pid, host) in [
            (std::process::id(), sys::host_name()),
            (u32::MAX, "elsewhere".into()),
        ] {
            leave(&path, "old", pid, &host);
            let made = make(&path);
            assert_eq!(made.path.parent(), Some(path.as_path()));
            assert!(!holds_something(&made.path));
            assert!(made.remark.unwrap().contains("may still be active"));
            for name in LEFT {
                assert!(path.join(name).exists(), "{name}");
            }
        }
        // A rank of a killed run lives on in shared memory.
        leave(&path, "old", u32::MAX, &sys::host_name());
        fs::create_dir(path.join("shm")).unwrap();
        let living = BoxDir::create(&path.join("shm"), "old", Some(&path)).unwrap();
        assert_ne!(make(&path).path, path);
        living.remove().unwrap();
        assert_eq!(make(&path).path, path);
        // Evidence of nobody knows whom.
        leave(&path, "old", u32::MAX, &sys::host_name());
        fs::remove_file(path.join(names::DESCRIPTION)).unwrap();
        assert_ne!(make(&path).path, path);
    }
}
