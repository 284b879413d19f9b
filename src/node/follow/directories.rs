//! Directories in which boxes appear.

use std::collections::HashSet;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::SystemTime;

use ddp_doctor_agent::blackbox::BoxName;
use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::files::{Dir, user_id};
use rustix::fs::inotify;

/// Maximum number of entries of a box directory that are followed.
const MAX_BOXES: usize = 4096;

/// Beginning of the name of a file that a process leaves which found no room for its box.
pub(super) const NO_BOX: &str = "nobox.";
const EXTENSION: &str = ".box";

/// A directory of boxes.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    /// It is read through this descriptor, since another user may be able to put a link at its path. `None`: it does not
    /// exist yet.
    opened: Option<Dir>,
    /// Modification time at the last scan; `None` to scan it again.
    modified: Option<SystemTime>,
    /// Files that need no further attention.
    settled: HashSet<OsString>,
}

impl Directory {
    /// The directories in which ranks may create boxes.
    pub(super) fn of_ranks(boxes: &BoxDir) -> Vec<Self> {
        let new = |path: PathBuf| {
            let opened = boxes.open(&path).ok();
            Self { path, opened, modified: None, settled: HashSet::new() }
        };
        boxes.directories().into_iter().map(new).collect()
    }

    /// Boxes, and files of processes without one, that are not settled, if the directory has changed
    /// since the last call. In order of start, so that a rank comes before its helpers.
    pub(super) fn unseen(&mut self) -> Vec<OsString> {
        if self.opened.is_none() {
            self.opened = Dir::open_own(&self.path).ok();
        }
        let Some(dir) = &self.opened else { return Vec::new() };
        let modified = dir.modified().ok();
        if modified.is_some() && self.modified == modified {
            return Vec::new();
        }
        self.modified = modified;
        let is_own = |name: &OsString| {
            dir.status_of(name).is_ok_and(|it| it.is_file() && it.owner() == user_id())
        };
        let is_new = |name: &OsString| {
            let text = name.to_string_lossy();
            // The owner of a box is checked when it is opened.
            let is_about_box =
                text.ends_with(EXTENSION) || text.starts_with(NO_BOX) && is_own(name);
            is_about_box && !self.settled.contains(name)
        };
        let mut names = dir.names().unwrap_or_default();
        names.retain(is_new);
        names.sort_by_cached_key(|name| {
            let name = name.to_string_lossy().into_owned();
            let known = BoxName::parse(&name).map(|it| (it.start_ticks, it.pid));
            (known, name)
        });
        names.truncate(MAX_BOXES.saturating_sub(self.settled.len()));
        names
    }

    /// Leaves a file out of further scans.
    pub(super) fn settle(&mut self, name: OsString) {
        self.settled.insert(name);
    }

    /// Scans the directory again, even if it does not change.
    pub(super) fn scan_again(&mut self) {
        self.modified = None;
    }
}

/// Reports at once that a box has appeared, so that the exit status of a process is seen that ends
/// before the next scan.
#[derive(Debug)]
pub(super) struct Arrivals(OwnedFd);

impl Arrivals {
    /// Watches these directories; `None` if the kernel has no room for it: scans find the boxes.
    pub(super) fn watch(directories: &[Directory]) -> Option<Self> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let watch = inotify::init(flags).ok()?;
        for directory in directories {
            let opened = directory.opened.as_ref()?.readable().ok()?;
            let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
            // A box gets its name when it is complete.
            inotify::add_watch(&watch, path, inotify::WatchFlags::MOVED_TO).ok()?;
        }
        Some(Self(watch))
    }

    /// A descriptor that is readable once a box has appeared.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether a box has appeared since the last call.
    pub(super) fn any(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        let mut any = false;
        while events.next().is_ok() {
            any = true;
        }
        any
    }
}
