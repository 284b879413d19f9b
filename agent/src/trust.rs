//! Checks whether another user could have placed code that is about to be loaded or run.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::files::{
    MAX_LINKS, Mount, OF_ANOTHER, OWN_LIST, components, is_private_group, is_system,
};
use crate::sys;

/// Write permission of the group and of others, and the bit that lets only owners replace entries.
const GROUP_WRITE: u32 = 0o020;
const OTHER_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Where code comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Installed together with the running code; the owner of the running code is trusted.
    Installation,
    /// A source tree around the running code.
    SourceTree,
    /// Named by somebody, such as in a command: an owner without an id in this user namespace is trusted only with the
    /// system's own directories.
    Named,
    /// A Python interpreter that was named, without links. It searches its folder and all above for its library, so that
    /// no other user may be able to add entries there, as in `/tmp`.
    Python,
}

/// Resolves the links of an absolute path. Checks that only trusted users can have made each of them,
/// and can change what the path leads to: this user, root and, for an installation, the owner of the
/// running code in `own`.
///
/// # Errors
///
/// Describes the part of the path that another user can change, or that the path leads to nothing.
pub fn resolve(path: &Path, origin: Origin, own: &Path) -> Result<PathBuf, String> {
    let missing = || format!("{} does not exist", path.display());
    resolve_existing(path, origin, own)?.ok_or_else(missing)
}

/// Like [`resolve`]; `None`: the path leads to nothing. No link of another user is followed.
///
/// # Errors
///
/// Describes the part of the path that another user can change.
pub fn resolve_existing(
    path: &Path,
    origin: Origin,
    own: &Path,
) -> Result<Option<PathBuf>, String> {
    let mut left = VecDeque::new();
    components(path, &mut left);
    let (mut here, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = left.pop_front() {
        if name == ".." {
            // Others who can exchange what is left for a link decide where this leads.
            check_left(&here, origin, own)?;
            here.pop();
            continue;
        }
        let entry = here.join(name);
        let shown = entry.display();
        let found = match Found::at(&entry, &Mount::root()) {
            Err(error) if is_missing(&error) => return Ok(None),
            found => found.map_err(|it| format!("{shown}: {it}"))?,
        };
        if !found.status.is_symlink() {
            here = entry;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(format!("{shown} leads through too many links"));
        }
        // Others can have made or moved a link in a directory where they may add entries.
        check(&here, origin, own)?;
        let owner = found.status.uid();
        if !is_trusted(owner, origin, own) && !is_accepted(&found, &entry, origin, own) {
            return Err(format!("{shown} is a link of user {owner}"));
        }
        let target = fs::read_link(&entry).map_err(|error| format!("{shown}: {error}"))?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        let mut rest = std::mem::take(&mut left);
        components(&target, &mut left);
        left.append(&mut rest);
    }
    check(&here, origin, own)?;
    Ok(Some(here))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What is at a path, which is not followed if it is a link.
struct Found {
    status: Metadata,
    mount: Mount,
}

impl Found {
    /// `near`: a mount that it may be in. A FUSE file system that another user mounted is asked nothing.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or is on such a file system.
    fn at(path: &Path, near: &Mount) -> io::Result<Self> {
        // Both are of the same entry, whatever happens to the path.
        let as_it_is = libc::O_PATH | libc::O_NOFOLLOW;
        let opened = OpenOptions::new().read(true).custom_flags(as_it_is).open(path)?;
        let mount = near.near(&opened, Path::new(OWN_LIST));
        if mount.is_served {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("it {OF_ANOTHER}"),
            ));
        }
        Ok(Self { status: opened.metadata()?, mount })
    }
}

fn is_trusted(owner: u32, origin: Origin, own: &Path) -> bool {
    let is_installer = || fs::metadata(own).is_ok_and(|it| it.uid() == owner);
    let is_user = owner == 0 || owner == sys::effective_uid();
    is_user || origin == Origin::Installation && is_installer()
}

/// Whether something of an owner without an id in this user namespace, who can be root or any other user, is used: where no
/// user but root can have put it. Unless it was named, also where the owner can replace the running code anyway.
fn is_accepted(found: &Found, path: &Path, origin: Origin, own: &Path) -> bool {
    if !is_unmapped(found.status.uid()) {
        return false;
    }
    let is_below_usr =
        || path.starts_with("/usr") && found.mount.is_that_of(c"/usr") && found.mount.is_known();
    let is_own_codes = || {
        let is_owners = || fs::metadata(own).is_ok_and(|it| is_unmapped(it.uid()));
        is_owners() || own.canonicalize().is_ok_and(|it| it.starts_with(path))
    };
    let is_named = matches!(origin, Origin::Named | Origin::Python);
    is_system(path, &found.mount) || is_below_usr() || !is_named && is_own_codes()
}

/// Checks everything in a directory, and in those that its links lead to, such as the modules of a package and their
/// compiled code.
///
/// # Errors
///
/// Describes the first entry that another user can change, or that cannot be read.
pub fn check_contents(directory: &Path, origin: Origin, own: &Path) -> Result<(), String> {
    let first = resolve(directory, origin, own)?;
    let mut seen = HashSet::from([first.clone()]);
    let mut left = vec![first];
    while let Some(directory) = left.pop() {
        let failed = |error| format!("{}: {error}", directory.display());
        let mount = Found::at(&directory, &Mount::root()).map_err(failed)?.mount;
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let found = match Found::at(&path, &mount) {
                // Python writes compiled code to temporary files, which another process may do now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(failed)?,
            };
            let path = if found.status.is_symlink() {
                resolve(&path, origin, own)?
            } else {
                check_entry(&path, &found, false, origin, own)?;
                path
            };
            if path.is_dir() && seen.insert(path.clone()) {
                left.push(path);
            }
        }
    }
    Ok(())
}

/// Checks who can change a file, or the entries of a directory. `may_add`: others may add entries.
fn check_entry(
    path: &Path,
    found: &Found,
    may_add: bool,
    origin: Origin,
    own: &Path,
) -> Result<(), String> {
    let shown = path.display();
    let (owner, mode) = (found.status.uid(), found.status.mode());
    let is_unmapped = is_unmapped(owner);
    if !is_trusted(owner, origin, own) && !is_accepted(found, path, origin, own) {
        return Err(format!("{shown} belongs to user {owner}"));
    }
    let is_strict = origin != Origin::Installation || is_unmapped;
    let is_shared = mode & GROUP_WRITE != 0 && !is_private_group(found.status.gid()) && is_strict;
    if !may_add && (mode & OTHER_WRITE != 0 || is_shared) {
        return Err(format!("{shown} is writable by other users"));
    }
    Ok(())
}

/// Checks a canonical path.
fn check(path: &Path, origin: Origin, own: &Path) -> Result<(), String> {
    check_parts(path, false, origin, own)
}

/// Checks a canonical path of a directory in which nothing is used: its entries do not matter.
fn check_left(path: &Path, origin: Origin, own: &Path) -> Result<(), String> {
    check_parts(path, true, origin, own)
}

fn check_parts(path: &Path, is_left: bool, origin: Origin, own: &Path) -> Result<(), String> {
    // Whether the previous part of the path belongs to an owner without an id here, who could be anybody.
    let mut is_below_unmapped = false;
    let mut mount = Mount::root();
    for part in path.ancestors() {
        let found = Found::at(part, &mount).map_err(|it| format!("{}: {it}", part.display()))?;
        mount = found.mount.clone();
        let status = &found.status;
        let is_unmapped = is_unmapped(status.uid());
        // In a sticky directory others may add entries but not replace existing ones.
        let is_sticky =
            status.mode() & STICKY != 0 && !is_below_unmapped && origin != Origin::Python;
        let may_add = status.is_dir() && if part == path { is_left } else { is_sticky };
        is_below_unmapped = is_unmapped;
        check_entry(part, &found, may_add, origin, own)?;
    }
    Ok(())
}

/// Whether this is the id of every owner that has no id in this user namespace: in a rootless container, the root
/// of the host and all its other users.
#[must_use]
pub fn is_unmapped(uid: u32) -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    read("/proc/sys/kernel/overflowuid").trim() == uid.to_string()
        && is_left_out(&read("/proc/self/uid_map"), uid)
}

/// Whether a map of user ids (`first-inside first-outside count` per line) does not contain this one.
fn is_left_out(map: &str, uid: u32) -> bool {
    let contains = |line: &str| {
        let mut numbers = line.split_whitespace().map(|it| it.parse::<u64>().ok());
        let (first, count) = (numbers.next()??, numbers.nth(1)??);
        Some((first..first + count).contains(&u64::from(uid)))
    };
    let ranges: Option<Vec<bool>> = map.lines().map(contains).collect();
    ranges.is_some_and(|ranges| !ranges.is_empty() && !ranges.contains(&true))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let code = dir.path().canonicalize().unwrap().join("shared/agent/python");
        fs::create_dir_all(&code).unwrap();
        (dir, code)
    }

    fn check(path: &Path, origin: Origin) -> Result<(), String> {
        super::check(path, origin, Path::new("/proc/self/exe"))
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directory_writable_by_others_is_refused_anywhere_in_path() {
        let (_dir, code) = tree();
        for origin in [Origin::Installation, Origin::SourceTree] {
            assert_eq!(check(&code, origin), Ok(()));
            for part in [&*code, code.parent().unwrap(), code.ancestors().nth(2).unwrap()] {
                set_mode(part, 0o777);
                let error = check(&code, origin).unwrap_err();
                assert!(error.contains("writable by other users"), "{error}");
                set_mode(part, 0o755);
            }
        }
        let shared = code.ancestors().nth(2).unwrap();
        set_mode(shared, 0o1777);
        assert_eq!(check(&code, Origin::SourceTree), Ok(()));
    }

    #[test]
    fn code_of_another_user_is_refused() {
        let (_dir, code) = tree();
        if sys::effective_uid() != 0 {
            return; // only root can change the owner
        }
        chown(&code, Some(65534), None).unwrap();
        let error = check(&code, Origin::SourceTree).unwrap_err();
        assert!(error.contains("belongs to user 65534"), "{error}");
    }

    #[test]
    fn link_that_another_user_can_have_made_is_refused() {
        let (_dir, code) = tree();
        let resolved =
            |path: &Path| resolve(path, Origin::Installation, Path::new("/proc/self/exe"));
        let link = code.with_file_name("link");
        symlink(&code, &link).unwrap();
        assert_eq!(resolved(&link), Ok(code.clone()));
        assert_eq!(resolved(&code.join("../link/..")), Ok(code.parent().unwrap().to_owned()));
        // Others could exchange a directory that is left for a link.
        let (shared, left) = (code.join("shared"), code.join("shared/left"));
        fs::create_dir_all(&left).unwrap();
        set_mode(&left, 0o777);
        let through = left.join("../../../link");
        assert_eq!(resolved(&through), Ok(code.clone()));
        set_mode(&shared, 0o1777);
        assert_eq!(resolved(&through), Ok(code));
        if sys::effective_uid() == 0 {
            chown(&left, Some(65534), None).unwrap();
            let error = resolved(&through).unwrap_err();
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
        set_mode(&shared, 0o777);
        assert!(resolved(&through).is_err());
        fs::remove_dir_all(&shared).unwrap();
        // In a directory to which others can write, it can have been moved there.
        set_mode(link.parent().unwrap(), 0o1777);
        let error = resolved(&link).unwrap_err();
        assert!(error.contains("writable by other users"), "{error}");
        set_mode(link.parent().unwrap(), 0o755);
        if sys::effective_uid() == 0 {
            lchown(&link, Some(65534), None).unwrap();
            let error = resolved(&link).unwrap_err();
            assert!(error.contains("is a link of user 65534"), "{error}");
        }
        fs::remove_file(&link).unwrap();
        symlink("link", &link).unwrap();
        assert!(resolved(&link).unwrap_err().contains("too many links"));
    }

    #[test]
    fn unmapped_owner_is_recognized_by_the_map_of_ids() {
        assert!(is_left_out("         0       1000          1\n", 65534));
        assert!(!is_left_out("         0          0 4294967295\n", 65534));
        assert!(!is_left_out("         0     100000      65536\n", 65534));
        assert!(!is_left_out("", 65534));
        assert!(!is_left_out("nonsense\n", 65534));
    }

    #[test]
    fn source_tree_of_a_group_is_refused() {
        let (_dir, code) = tree();
        if sys::effective_uid() != 0 {
            return; // only root can assign any group
        }
        chown(&code, None, Some(50)).unwrap();
        set_mode(&code, 0o775);
        assert!(check(&code, Origin::SourceTree).is_err());
        assert_eq!(check(&code, Origin::Installation), Ok(()));
    }
}
