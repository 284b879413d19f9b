//! A user who is attacked by another one. It needs root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use ddp_doctor::host::files;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use super::other_users::text;
use crate::support::artifact;
use crate::support::compiled_programs::training;
use crate::support::process::{PROGRAM, without_own_variables};

/// User id of the attacker.
pub(super) const OTHER: u32 = 65534;
pub(super) const SECRET: &str = "the victim's own text";

/// Prelude of a script with two users: `victim` and `attacker` run a command as one of them. Shared memory is empty, and
/// `/home` has the program with its libraries and a C program in `bin`, and the home of the victim.
const TWO_USERS: &str = r#"
set -e
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs -o mode=755 none /home
mkdir /home/bin
cp "$PROGRAM" "$LIBRARIES"/libddp_doctor*.so /home/bin
cp "$TRAINING" /home/bin/training
mount -t tmpfs -o mode=1777 none /tmp
mkdir -m 700 /home/home
chown 64126:64126 /home/home
export HOME=/home/home PATH="/home/bin:$PATH"
victim() { setpriv --reuid=64126 --regid=64126 --clear-groups "$@"; }
attacker() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
until_exists() { while [ ! -e "$1" ]; do sleep 0.05; done; }
training() { LD_LIBRARY_PATH=/home/bin /home/bin/training "$@"; }
"#;

/// Runs a script of the shell as root, who can act as a victim and an attacker, with mounts of its own. Returns `None`,
/// and prints the reason, if this is not possible. Processes that the script leaves are killed at its end.
pub(super) fn with_two_users(script: &str) -> Option<Output> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        without_own_variables(&mut command);
        let libraries = artifact("libddp_doctor.so");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        command.arg(script).current_dir("/");
        command.env("PROGRAM", PROGRAM).env("LIBRARIES", libraries.parent().unwrap());
        command.env("SOURCE", env!("CARGO_MANIFEST_DIR"));
        command.env("TRAINING", training()).env_remove("TMPDIR");
        command.env_remove("XDG_CACHE_HOME").env_remove("LD_LIBRARY_PATH").output()
    };
    let possible = unshare("mount -t tmpfs none /home");
    if files::user_id() != 0 || !possible.is_ok_and(|it| it.status.success()) {
        eprintln!("skipped: this process cannot act as two users with mounts of their own");
        return None;
    }
    Some(unshare(&format!("{TWO_USERS}{script}")).unwrap())
}

/// `silent DIR`: a file system of the attacker's in a directory of his, which never answers.
const SILENT: &str = r#"
    exec 3<>/dev/fuse
    options=fd=3,rootmode=40000,user_id=65534,group_id=65534,allow_other,default_permissions
    silent() {
        mkdir $1 && chown 65534:65534 $1
        mount -i -t fuse -o "$options" planted $1 || { echo "no FUSE"; exit 0; }
    }
    doctor() { victim timeout -s KILL 30 ddp-doctor "$@" 3>&- || echo "status $?"; }
    cd /home/home
"#;

/// The output of a script with such a file system; `None`: there are none here, or the test does not run as root.
pub(super) fn beside_silent_mount(script: &str) -> Option<String> {
    let said = text(&with_two_users(&format!("{SILENT}{script}"))?);
    if said.contains("no FUSE") {
        eprintln!("skipped: {said}");
        return None;
    }
    Some(said)
}

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

/// Exchanges two entries again and again, as fast as possible, while `work` runs.
pub(super) fn while_exchanging<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    /// Ends the exchanges also if `work` panics.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _end = End(&is_over);
        work()
    })
}
