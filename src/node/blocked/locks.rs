//! Holders of file locks.

use std::fs::{self, File};
use std::io::Read;

use ddp_doctor_host::proc;

use super::files;

/// Maximum number of descriptors of a process that are examined for locks, and of locks that are named.
const MAX_DESCRIPTORS: usize = 4096;
const MAX_HELD: usize = 8;
/// Maximum number of bytes of `/proc/locks` that are read. Each user can make the list long, and the kernel walks it
/// from its head for each page that is read.
const MAX_LOCKS: u64 = 256 << 10;

/// A file as `/proc/locks` names it: major and minor number of its device, and inode.
type LockedFile = (u32, u32, u64);

/// The process that holds a lock for which a process waits by a descriptor.
pub(super) fn holder(pid: u32, fd: u32) -> Option<u32> {
    // The file itself is not accessed: its file system may not respond.
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    let mounts = proc::read_lossy(format!("/proc/{pid}/mountinfo")).ok()?;
    let mut locks = String::new();
    File::open("/proc/locks").ok()?.take(MAX_LOCKS).read_to_string(&mut locks).ok()?;
    holder_in(&locks, file_of(&info, &mounts)?, pid)
}

/// Paths of the files of which a process holds locks. A program that looks for a lock again and again, such as one that
/// uses `filelock`, has no descriptor of it in between: the other side knows it.
#[must_use]
pub fn held(pid: u32) -> Vec<String> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let numbers = descriptors.flatten().filter_map(|it| it.file_name().to_str()?.parse().ok());
    let is_file = |fd: &u32| files::target(pid, *fd).is_some_and(|it| it.starts_with('/'));
    let is_locked = |fd: &u32| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        info.lines().any(|line| line.starts_with("lock:"))
    };
    let locked = numbers.take(MAX_DESCRIPTORS).filter(is_file).filter(is_locked);
    let mut paths: Vec<String> = locked.filter_map(|fd| files::target(pid, fd)).collect();
    paths.sort_unstable();
    paths.dedup();
    paths.truncate(MAX_HELD);
    paths
}

/// The file of a descriptor, from its `fdinfo` and the mounts of its process.
fn file_of(info: &str, mounts: &str) -> Option<LockedFile> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let (mount, inode) = (field("mnt_id:")?, field("ino:")?.parse().ok()?);
    let device = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let id = words.next()?;
        words.nth(1).filter(|_| id == mount)
    });
    let (major, minor) = device?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?, inode))
}

/// The holder of the lock for which a process waits, from `/proc/locks`: the lock below which the process is listed. A
/// process that is not listed, such as one in another container, waits for another process with a lock on the file.
fn holder_in(locks: &str, file: LockedFile, waiter: u32) -> Option<u32> {
    let mut others = None;
    let mut above = None;
    for (is_held, pid, at) in locks.lines().filter_map(lock) {
        if is_held {
            above = Some(pid);
            others = others.or((at == file && pid != waiter).then_some(pid));
        } else if at == file && pid == waiter {
            return above;
        }
    }
    others
}

/// A line of `/proc/locks`: whether the process holds the lock, or waits for the one above, the process, and the file.
fn lock(line: &str) -> Option<(bool, u32, LockedFile)> {
    // 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
    // 1: -> FLOCK  ADVISORY  WRITE 1235 fe:00:5678 0 EOF
    let mut words = line.split_whitespace().skip(1).peekable();
    let is_held = words.next_if_eq(&"->").is_none();
    let mut words = words.skip(3);
    let (pid, place) = (words.next()?, words.next()?);
    let mut place = place.split(':');
    let number = |text: Option<&str>| u32::from_str_radix(text?, 16).ok();
    let at = (number(place.next())?, number(place.next())?, place.next()?.parse().ok()?);
    Some((is_held, pid.parse().ok()?, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_a_descriptor_has_the_device_of_its_mount() {
        let info = "pos:\t0\nflags:\t0100001\nmnt_id:\t30\nino:\t88\n";
        let mounts =
            "22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 254:1 / /data rw - xfs /dev/vdb rw\n";
        assert_eq!(file_of(info, mounts), Some((254, 1, 88)));
        assert_eq!(file_of("pos:\t0\n", mounts), None);
    }

    #[test]
    fn holder_is_no_waiter_and_of_the_same_file() {
        let locks = "\
1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF
2: FLOCK  ADVISORY  READ 21 fe:00:88 0 EOF
3: FLOCK  ADVISORY  WRITE 22 fe:00:88 0 EOF
3: -> FLOCK  ADVISORY  WRITE 33 fe:00:88 0 EOF
4: FLOCK  ADVISORY  READ 44 fe:01:88 0 EOF
";
        assert_eq!(holder_in(locks, (0xfe, 0, 88), 33), Some(22));
        assert_eq!(holder_in(locks, (0xfe, 0, 88), 55), Some(21));
        assert_eq!(holder_in(locks, (0xfe, 0, 88), 21), Some(22));
        assert_eq!(holder_in(locks, (0xfe, 0, 99), 33), None);
    }

    #[test]
    fn locks_that_a_process_holds_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache.lock");
        let own = path.to_str().unwrap().to_owned();
        let file = File::create(&path).unwrap();
        assert!(!held(std::process::id()).contains(&own));
        file.lock().unwrap();
        assert!(held(std::process::id()).contains(&own));
    }
}
