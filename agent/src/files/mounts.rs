//! Recognizes file systems that other users serve.
//!
//! What a FUSE file system states about owners and modes is the choice of the user who mounted it, and a request can
//! block forever. Therefore what is known of a mount is found in `/proc` alone, by descriptors: a path could lead
//! elsewhere meanwhile. Without `/proc`, every mount is taken for one of the system.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use super::calls;
use super::own_names::own_number;
use crate::sys;

/// The mounts that this thread can reach by paths.
pub(crate) const OWN_LIST: &str = "/proc/thread-self/mountinfo";

/// The mount in which a descriptor was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Unique while something in the mount is open; `None` without `/proc`.
    id: Option<u64>,
    /// Whether it is a FUSE file system that another user mounted.
    pub(crate) is_served: bool,
    /// Whether it is a whole file system, or the directory that has the path of the mount point in its file system.
    is_at_own_path: bool,
}

impl Mount {
    /// The mount of the root directory, from which the programs of this machine come.
    pub(crate) fn root() -> Self {
        let root = calls::open(None, c"/", libc::O_PATH, 0);
        let id = root.ok().and_then(|it| id_of(it.as_fd()));
        Self { id, is_served: false, is_at_own_path: true }
    }

    /// The mount of what is open.
    pub(crate) fn containing(opened: impl AsFd) -> Self {
        Self::root().near(opened, Path::new(OWN_LIST))
    }

    /// The mount of what is open, which often is this one. `list`: a file like `/proc/PID/mountinfo`, of a process that
    /// reaches it by a path.
    pub(crate) fn near(&self, opened: impl AsFd, list: &Path) -> Self {
        let id = id_of(opened.as_fd());
        if id == self.id {
            return self.clone();
        }
        let Some(number) = id else {
            return Self { id, is_served: false, is_at_own_path: true };
        };
        // The names of mount points may have any bytes.
        let bytes = fs::read(list).unwrap_or_default();
        let mounts = String::from_utf8_lossy(&bytes);
        Self {
            id,
            is_served: is_served(&mounts, number, [sys::effective_uid(), own_number()]),
            is_at_own_path: is_at_own_path(&mounts, number),
        }
    }

    /// Whether a directory of the system with a well-known name can be in this mount, rather than a volume of a container
    /// that was mounted at that name.
    pub(crate) fn is_known(&self) -> bool {
        self.is_at_own_path || self.is_that_of(c"/")
    }

    /// Whether it is the mount of this directory.
    pub(crate) fn is_that_of(&self, directory: &std::ffi::CStr) -> bool {
        let opened = calls::open(None, directory, libc::O_PATH, 0);
        self.id.is_some() && opened.is_ok_and(|it| id_of(it.as_fd()) == self.id)
    }
}

/// Whether what is open is on a FUSE file system that another user mounted.
#[must_use]
pub fn is_served_by_other(opened: impl AsFd) -> bool {
    Mount::containing(opened).is_served
}

/// Whether an entry of a directory, which is not on such a file system, is on one. The list of mounts is read only if the
/// entry is in another mount.
#[must_use]
pub fn is_entry_served_by_other(directory: impl AsFd, entry: impl AsFd) -> bool {
    let id = id_of(entry.as_fd());
    let is_same_mount = id.is_some() && id == id_of(directory.as_fd());
    !is_same_mount && is_served_by_other(entry)
}

fn id_of(fd: BorrowedFd<'_>) -> Option<u64> {
    calls::mount_id(fd).or_else(|| listed_id_of(fd))
}

fn listed_id_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// The line of a mount in a file like `/proc/PID/mountinfo`.
fn line_of(mounts: &str, id: u64) -> Option<&str> {
    let id_in = |line: &str| line.split(' ').next()?.parse().ok();
    mounts.lines().find(|line| id_in(line) == Some(id))
}

/// Whether the directory of a file system that is mounted is its root, or has the path of the mount point. The names of
/// Btrfs subvolumes begin with `@`.
fn is_at_own_path(mounts: &str, id: u64) -> bool {
    let mut words = line_of(mounts, id).unwrap_or_default().split(' ').skip(3);
    let (Some(root), Some(point)) = (words.next(), words.next()) else { return false };
    let names = |path: &str| {
        let names = path.split('/').map(|it| it.trim_start_matches('@').to_owned());
        names.filter(|it| !it.is_empty()).collect::<Vec<_>>()
    };
    root == "/" || names(root) == names(point)
}

/// Whether a mount of this id in a file like `/proc/PID/mountinfo` is of FUSE, and was made by neither this user, who has
/// these numbers, nor root. A mount that is not listed was removed in the meantime, or is another process's.
fn is_served(mounts: &str, id: u64, user: [u32; 2]) -> bool {
    let Some(mount) = line_of(mounts, id) else {
        return true;
    };
    // After the separator: type, source, options of the file system.
    let Some((_, system)) = mount.split_once(" - ") else { return true };
    let mut words = system.split(' ');
    let is_fuse = words.next().is_some_and(|it| it.starts_with("fuse"));
    let options = words.nth(1).unwrap_or_default();
    let made_by = options.split(',').find_map(|it| it.strip_prefix("user_id="));
    let is_trusted = |it: u32| it == 0 || user.contains(&it);
    is_fuse && !made_by.and_then(|it| it.parse().ok()).is_some_and(is_trusted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 30 0:22 / /dev/shm rw,nosuid,nodev shared:3 - tmpfs tmpfs rw
95 24 0:51 / /dev/shm/ddp-doctor-7 rw,nosuid,nodev shared:9 - fuse evil rw,user_id=8,group_id=8,allow_other
96 24 0:52 / /dev/shm/own rw - fuse.sshfs host:/data rw,user_id=7,group_id=7
97 24 0:53 / /dev/shm/data rw - fuse.rclone data: rw,user_id=0,group_id=0,allow_other
";

    #[test]
    fn kernel_and_proc_state_the_same_mount() {
        for path in ["/", "/proc", "/dev/shm", "/tmp"] {
            let Ok(opened) = fs::File::open(path) else { continue };
            let stated = calls::mount_id(opened.as_fd());
            assert!(stated.is_none() || stated == listed_id_of(opened.as_fd()), "{path}");
        }
        assert!(Mount::root().is_that_of(c"/") && !Mount::root().is_that_of(c"/proc"));
    }

    #[test]
    fn name_of_a_mount_point_may_have_any_bytes() {
        let Ok(opened) = fs::File::open("/proc") else { return };
        let Ok(mounts) = fs::read(OWN_LIST) else { return };
        let list = std::env::temp_dir().join(format!("ddp-doctor-mounts-{}", std::process::id()));
        fs::write(&list, [b"1 0 0:1 / /home/m\xff rw - tmpfs none rw\n", &*mounts].concat())
            .unwrap();
        let mount = Mount::root().near(&opened, &list);
        fs::remove_file(&list).unwrap();
        assert!(!mount.is_served);
    }

    #[test]
    fn fuse_of_other_users_is_recognized() {
        let served: Vec<bool> = [24, 95, 96, 97, 98].map(|id| is_served(MOUNTS, id, [7, 7])).into();
        assert_eq!(served, [false, true, false, false, true]);
        assert!(!is_served(MOUNTS, 95, [8, 8]));
        // In a container of the user.
        assert!(!is_served(MOUNTS, 95, [0, 8]));
    }

    #[test]
    fn volume_at_a_well_known_name_is_not_of_the_system() {
        let mounts = "\
1 0 0:1 / /home rw - ext4 /dev/sda rw
2 0 0:1 /home /home rw - ext4 /dev/sda rw
3 0 0:1 /@home /home rw - btrfs /dev/sda rw
4 0 0:1 /@/home /home rw - btrfs /dev/sda rw
5 0 0:1 /scratch/alice /home rw - ext4 /dev/sda rw
6 0 0:1 /scratch/home /home rw - ext4 /dev/sda rw
";
        let own: Vec<bool> = (1..=7).map(|id| is_at_own_path(mounts, id)).collect();
        assert_eq!(own, [true, true, true, true, false, false, false]);
    }
}
