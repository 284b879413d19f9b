//! Recognizes file systems that other users serve.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::sys;

/// Whether an entry of a directory is the root of a FUSE file system that another user mounted there.
///
/// What such a file system states about owners and modes is that user's choice, and a request can
/// block forever. Therefore the answer is found in `/proc` alone. Without `/proc` it is `false`; a mount that
/// `mountinfo` does not list is taken for one.
#[must_use]
pub fn is_served_by_other(directory: impl AsFd, entry: impl AsFd) -> bool {
    let (Some(outer), Some(inner)) = (mount_of(directory.as_fd()), mount_of(entry.as_fd())) else {
        return false;
    };
    if outer == inner {
        return false;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo");
    mounts.map_or(true, |it| is_served(&it, &inner, sys::effective_uid()))
}

/// The id of the mount in which a descriptor was opened.
fn mount_of(fd: BorrowedFd<'_>) -> Option<String> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    Some(id.trim().to_owned())
}

/// Whether a mount of this id in a file like `/proc/PID/mountinfo` is of FUSE, and was made by neither this user nor
/// root. A mount that is not listed was removed in the meantime.
fn is_served(mounts: &str, id: &str, user: u32) -> bool {
    let Some(mount) = mounts.lines().find(|line| line.split(' ').next() == Some(id)) else {
        return true;
    };
    // After the separator: type, source, options of the file system.
    let Some((_, system)) = mount.split_once(" - ") else { return true };
    let mut words = system.split(' ');
    let is_fuse = words.next().is_some_and(|it| it.starts_with("fuse"));
    let options = words.nth(1).unwrap_or_default();
    let made_by = options.split(',').find_map(|it| it.strip_prefix("user_id="));
    is_fuse && !made_by.is_some_and(|it| it == "0" || it.parse() == Ok(user))
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
    fn fuse_of_other_users_is_recognized() {
        let served: Vec<bool> =
            ["24", "95", "96", "97", "98"].map(|id| is_served(MOUNTS, id, 7)).into();
        assert_eq!(served, [false, true, false, false, true]);
        assert!(!is_served(MOUNTS, "95", 8));
    }
}
