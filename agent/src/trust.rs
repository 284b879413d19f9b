//! Checks whether another user could have placed code that is about to be loaded or run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
}

/// Checks that only trusted users can change the target of a canonical path: this user, root and,
/// for an installation, the owner of the running code in `own`.
///
/// # Errors
///
/// Describes the part of the path that another user can change.
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
        // In a sticky directory others may add entries but not replace existing ones.
        let is_sticky = found.is_dir() && mode & STICKY != 0 && part != path;
        // Most systems give each user a private group with the same id as the user.
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
