//! A user who is attacked by another one. It needs root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use ddp_doctor::host::files;
use tempfile::TempDir;

/// User id of the attacker.
pub(super) const OTHER: u32 = 65534;
pub(super) const SECRET: &str = "the victim's own text";

/// A directory that everybody can write to, as `/dev/shm`, and a file of the victim's in another one.
pub(super) struct Victim {
    dir: TempDir,
}

impl Victim {
    /// Returns `None`, and prints the reason, if this process cannot give files to another user.
    pub(super) fn new() -> Option<Self> {
        if files::user_id() != 0 {
            eprintln!("skipped: this process cannot act as two users (it has to be root)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let it = Self { dir };
        fs::create_dir(it.shm()).unwrap();
        fs::set_permissions(it.shm(), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::create_dir_all(it.home()).unwrap();
        fs::set_permissions(it.home(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(it.secret(), SECRET).unwrap();
        Some(it)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A directory that everybody can write to, with the sticky bit.
    pub(super) fn shm(&self) -> PathBuf {
        self.dir.path().join("shm")
    }

    /// A directory that only the victim may enter.
    pub(super) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A file of the victim's, which no attack may change.
    pub(super) fn secret(&self) -> PathBuf {
        self.home().join("secret")
    }

    /// The victim's directory in shared memory.
    pub(super) fn squatted(&self) -> PathBuf {
        self.shm().join("ddp-doctor-0")
    }

    #[track_caller]
    pub(super) fn assert_unharmed(&self) {
        assert_eq!(fs::read_to_string(self.secret()).unwrap(), SECRET);
        let names: Vec<_> =
            fs::read_dir(self.home()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert!(names.iter().all(|it| it == "secret" || it == "old"), "{names:?}");
    }
}

/// Creates a directory of the attacker.
pub(super) fn attackers_dir(path: &Path) {
    fs::create_dir(path).unwrap();
    chown(path, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(super) fn attackers_file(path: &Path, contents: &str) {
    fs::write(path, contents).unwrap();
    chown(path, Some(OTHER), Some(OTHER)).unwrap();
}

pub(super) fn attackers_link(target: &Path, path: &Path) {
    symlink(target, path).unwrap();
    lchown(path, Some(OTHER), Some(OTHER)).unwrap();
}
