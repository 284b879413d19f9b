//! The file that states which process made a directory of black boxes, and where they belong.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{Dir, Identity};
use crate::proc;

/// File that identifies the owner of a directory: see [`Owner`].
pub(super) const OWNER: &str = "owner";
/// Maximum size of this file, in bytes.
const MAX_OWNER: u64 = 64 << 10;
/// Last line of this file if [`Owner::is_fixed`].
const FIXED: &str = "fixed";
/// Directory for kept boxes, in a run directory.
pub const KEPT: &str = "boxes";

/// Contents of an [`OWNER`] file: the process that made the directory, and where its boxes belong.
///
/// It is read only in a directory that no other user can have written to. Nothing is written to `run_dir` unless
/// the directory for boxes in it is the one that the process had opened.
pub(super) struct Owner {
    pid: u32,
    start_ticks: u64,
    boot_id: String,
    /// Namespace of the pid; `None`: written by a version that did not state it.
    pid_namespace: Option<String>,
    pub(super) run_dir: Option<PathBuf>,
    /// The directory for kept boxes in `run_dir`.
    kept: Option<Identity>,
    /// Whether only this user and root can have moved `run_dir`.
    is_fixed: bool,
}

impl Owner {
    pub(super) fn this_process(keep: Option<&Dir>) -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            pid,
            start_ticks: proc::Stat::read(pid)?.start_ticks,
            boot_id: proc::boot_id(),
            pid_namespace: Some(proc::pid_namespace()),
            run_dir: keep
                .and_then(|it| it.path().parent())
                .filter(|it| is_line(it))
                .map(Path::to_owned),
            kept: keep.map(Dir::identity).transpose()?,
            is_fixed: keep.is_some_and(|it| matches!(it.changeable_by_others(), Ok(None))),
        })
    }

    /// Reads the file; `None`: there is none of this user.
    pub(super) fn read(dir: &Dir) -> Option<Self> {
        let text = dir.read_text(OWNER.as_ref(), MAX_OWNER).ok()?;
        let mut lines = text.lines();
        let mut words = lines.next()?.split(' ');
        let (pid, start_ticks) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let boot_id = words.next()?.to_owned();
        let pid_namespace = words.next().map(str::to_owned);
        let run_dir = lines.next().filter(|it| !it.is_empty()).map(PathBuf::from);
        let kept = lines.next().and_then(|line| {
            let (device, inode) = line.split_once(' ')?;
            Some(Identity { device: device.parse().ok()?, inode: inode.parse().ok()? })
        });
        let is_fixed = lines.next() == Some(FIXED);
        Some(Self { pid, start_ticks, boot_id, pid_namespace, run_dir, kept, is_fixed })
    }

    /// Whether the process may be in a container which shares this memory and has pids of its own.
    pub(super) fn is_in_other_container(&self) -> bool {
        self.pid_namespace.as_ref().is_some_and(|it| *it != proc::pid_namespace())
    }

    /// Whether the process is alive; `None`: unknown.
    pub(super) fn is_alive(&self) -> Option<bool> {
        let this_boot = proc::boot_id();
        let are_known = !self.boot_id.is_empty() && !this_boot.is_empty();
        are_known.then(|| self.boot_id == this_boot && proc::is_alive(self.pid, self.start_ticks))
    }

    /// Where the boxes belong; `None`: this user has removed that directory.
    ///
    /// # Errors
    ///
    /// If the directory is not the one that the process had opened, or another user can have moved it, or its file system
    /// is not mounted.
    pub(super) fn destination(&self) -> io::Result<Option<Dir>> {
        let Some(run_dir) = &self.run_dir else {
            return Ok(None);
        };
        let opened = Dir::open_own(run_dir).and_then(|it| it.own_child(KEPT.as_ref()));
        match opened {
            Ok(dir) if Some(dir.identity()?) == self.kept => Ok(Some(dir)),
            Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_removed() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a run directory that is not found was removed by this user or root.
    fn is_removed(&self) -> bool {
        let above = self.run_dir.iter().flat_map(|it| it.ancestors().skip(1));
        let mut identities = above.filter_map(|it| Dir::open(it).and_then(|it| it.identity()).ok());
        let device = identities.next().map(|it| it.device);
        self.is_fixed && self.kept.is_some_and(|it| Some(it.device) == device)
    }
}

/// Whether a path is read from a line as it was written there.
fn is_line(path: &Path) -> bool {
    path.to_str().is_some_and(|it| !it.contains(['\n', '\r']))
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run_dir = self.run_dir.as_deref().unwrap_or(Path::new(""));
        let namespace = self.pid_namespace.as_deref().unwrap_or("");
        writeln!(f, "{} {} {} {namespace}", self.pid, self.start_ticks, self.boot_id)?;
        writeln!(f, "{}", run_dir.display())?;
        match self.kept {
            Some(kept) => writeln!(f, "{} {}", kept.device, kept.inode)?,
            None => return Ok(()),
        }
        if self.is_fixed { writeln!(f, "{FIXED}") } else { Ok(()) }
    }
}
