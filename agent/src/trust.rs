//! Whether code that is about to be loaded or run may have been put there by another user.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sys;

/// Write permission of the group and of all others, and the bit that lets only owners replace entries.
const GROUP_WRITE: u32 = 0o020;
const OTHER_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// How code came to be where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Installed together with the running code, whose owner is trusted with both.
    Installation,
    /// A source tree around the running code.
    SourceTree,
}

/// Checks that only trusted users can change what a canonical path leads to: this user, root and, for an
/// installation, the owner of the running code in `own`.
///
/// # Errors
///
/// Which part of the path someone else can change.
pub fn check(path: &Path, origin: Origin, own: &Path) -> Result<(), String> {
    let user = sys::effective_uid();
    let installer = fs::metadata(own).map(|it| it.uid()).ok();
    let installer = installer.filter(|_| origin == Origin::Installation);
    for part in path.ancestors() {
        let shown = part.display();
        let found = fs::symlink_metadata(part).map_err(|error| format!("{shown}: {error}"))?;
        let (owner, mode) = (found.uid(), found.mode());
        if owner != 0 && owner != user && Some(owner) != installer {
            return Err(format!("{shown} belongs to user {owner}"));
        }
        // Others may add entries to a sticky directory, and not replace those that are there.
        let is_sticky = found.is_dir() && mode & STICKY != 0 && part != path;
        // Most systems give each user a group that has the same number and no other member.
        let is_own_group = found.gid() == user;
        let is_shared = mode & GROUP_WRITE != 0 && !is_own_group && origin == Origin::SourceTree;
        if !is_sticky && (mode & OTHER_WRITE != 0 || is_shared) {
            return Err(format!("{shown} is writable by other users"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    fn tree() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let code = dir
            .path()
            .canonicalize()
            .unwrap()
            .join("shared/agent/python");
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
    fn directory_that_others_can_write_to_is_refused_wherever_it_is_in_the_path() {
        let (_dir, code) = tree();
        for origin in [Origin::Installation, Origin::SourceTree] {
            assert_eq!(check(&code, origin), Ok(()));
            for part in [
                &*code,
                code.parent().unwrap(),
                code.ancestors().nth(2).unwrap(),
            ] {
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
            return; // Only root can give a directory away.
        }
        chown(&code, Some(65534), None).unwrap();
        let error = check(&code, Origin::SourceTree).unwrap_err();
        assert!(error.contains("belongs to user 65534"), "{error}");
    }

    #[test]
    fn source_tree_of_a_group_is_refused() {
        let (_dir, code) = tree();
        if sys::effective_uid() != 0 {
            return; // Only root can give a directory to any group.
        }
        chown(&code, None, Some(50)).unwrap();
        set_mode(&code, 0o775);
        assert!(check(&code, Origin::SourceTree).is_err());
        assert_eq!(check(&code, Origin::Installation), Ok(()));
    }
}
