//! Names of descriptors and paths, with their mounts.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use ddp_doctor_host::proc;
use ddp_doctor_host::sys;
use ddp_doctor_proto::without_credentials;

use crate::source_reader;

/// Time limit for the file system of a source file.
const MAX_READ: Duration = Duration::from_millis(500);
/// Maximum length of a source line, in characters.
const MAX_LINE: usize = 120;

/// What a descriptor of a process refers to: "/data/x", "pipe:[17]", "socket:[18]".
pub(super) fn target(pid: u32, fd: u32) -> Option<String> {
    let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(target.to_string_lossy().into_owned())
}

/// The inode in "pipe:[17]".
pub(super) fn inode_of(target: &str, kind: &str) -> Option<u64> {
    target.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

/// A path with its file system: "/data/x on nfs4 server:/data". Nothing on that file system is accessed: it may
/// not respond.
pub(super) fn path_and_mount(pid: u32, path: &str) -> String {
    let path = absolute(pid, path);
    let mounts = proc::read_lossy(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    match mount_of(&mounts, &path) {
        Some((kind, source)) => format!("{} on {kind} {source}", path.display()),
        None => path.display().to_string(),
    }
}

/// A path of a process, without `.` and `..`. Symbolic links are not followed.
fn absolute(pid: u32, path: &str) -> PathBuf {
    let base = || fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let path = Path::new(path);
    let whole = if path.is_absolute() { path.to_owned() } else { base().join(path) };
    let mut found = PathBuf::new();
    for part in whole.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(found.pop()),
            part => found.push(part),
        }
    }
    found
}

/// File system and source of the mount that contains a path.
fn mount_of(mounts: &str, path: &Path) -> Option<(String, String)> {
    let found = mounts.lines().filter_map(|line| {
        // id parent major:minor root mount-point options … - type source options
        let (before, after) = line.split_once(" - ")?;
        let point = unescaped(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        let (kind, source) = (after.next()?.to_owned(), unescaped(after.next()?));
        // Some sources are addresses with a password.
        let source = without_credentials(&source).into_owned();
        path.starts_with(&point).then_some((point.len(), kind, source))
    });
    // Later mounts cover earlier ones.
    let (_, kind, source) = found.max_by_key(|(length, ..)| *length)?;
    Some((kind, source))
}

/// Replaces the octal escapes of mount points and sources.
fn unescaped(text: &str) -> String {
    let escapes =
        [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, shown)| text.replace(escape, shown))
}

/// A line of the source of a process, without the spaces around it.
pub(super) fn source_line(pid: u32, file: &str, line: u32) -> Option<String> {
    let path = absolute(pid, file);
    // Its file system may not respond.
    sys::within(MAX_READ, move || read_line(pid, &path, line))?
}

fn read_line(pid: u32, path: &Path, line: u32) -> Option<String> {
    let text = source_reader::sources_of(pid).read(path.to_str()?)?;
    let line = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?.trim();
    let code = line.split(" # ").next().unwrap_or(line).trim();
    (!code.is_empty()).then(|| code.chars().take(MAX_LINE).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount_is_that_of_a_path() {
        let mounts = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /data rw - nfs4 server:/data rw,vers=4.2
31 22 0:27 / /data\\040x rw shared:1 - tmpfs tmpfs rw
32 22 0:28 / /ftp rw - fuse curlftpfs\\043ftp://bob:PASSWORD@host/?sig=S rw
";
        let of = |path: &str| {
            mount_of(mounts, Path::new(path)).map(|(kind, source)| format!("{kind} {source}"))
        };
        assert_eq!(of("/data/shard-17.tar").as_deref(), Some("nfs4 server:/data"));
        assert_eq!(of("/data x/y").as_deref(), Some("tmpfs tmpfs"));
        assert_eq!(of("/ftp/x").as_deref(), Some("fuse curlftpfs#ftp://…@host/?sig=…"));
        assert_eq!(of("/database").as_deref(), Some("ext4 /dev/vda"));
        assert_eq!(mount_of("", Path::new("/data")), None);
    }

    #[test]
    fn paths_are_absolute() {
        let pid = std::process::id();
        assert_eq!(absolute(pid, "/a/../b/./c"), Path::new("/b/c"));
        assert_eq!(absolute(pid, "x"), std::env::current_dir().unwrap().join("x"));
    }

    #[test]
    fn inodes_are_those_of_their_kind() {
        assert_eq!(inode_of("pipe:[17]", "pipe"), Some(17));
        assert_eq!(inode_of("socket:[17]", "pipe"), None);
        assert_eq!(inode_of("/tmp/pipe", "pipe"), None);
    }
}
