//! Directories for evidence that cannot be stored where it should be: on a full or read-only file system, or in
//! a directory of another user.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use ddp_doctor_host::files::Dir;
use ddp_doctor_host::names;
use ddp_doctor_host::private;
use ddp_doctor_host::sys;

/// Free bytes of a file system below which no run directory is created in it.
const MIN_FREE: u64 = 1 << 20;

/// Creates a directory of this name in the home of this user, or below the directory for temporary files.
/// Only this user may enter it.
///
/// # Errors
///
/// If none of them can be used.
pub fn make(name: &str) -> io::Result<Dir> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for place in places() {
        match place.and_then(|place| make_in(&place, name)) {
            Ok(dir) => return Ok(dir),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Checks that a directory has room for evidence.
///
/// # Errors
///
/// If it has not.
pub fn has_room(dir: &Dir) -> io::Result<()> {
    let space = sys::space(&dir.readable()?)?;
    if space.free < MIN_FREE { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}

fn make_in(place: &Path, name: &str) -> io::Result<Dir> {
    let dir = Dir::ensure_own(&place.join(name))?;
    has_room(&dir)?;
    Ok(dir.canonical())
}

/// Parents of run directories, created if they are missing.
fn places() -> impl Iterator<Item = io::Result<PathBuf>> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from).map(|home| {
        let place = home.join(names::RUNS);
        Dir::ensure_own(&place).map(|_| place)
    });
    let temporary = || {
        let place = private::user_dir(&env::temp_dir());
        Dir::ensure_private(&place).map(|_| place)
    };
    home.into_iter().chain(std::iter::once_with(temporary))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let made = make_in(dir.path(), "run").unwrap();
        assert_eq!(made.path().metadata().unwrap().mode() & 0o777, 0o700);
        assert!(make_in(&dir.path().join("none"), "run").is_ok());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(make_in(&dir.path().join("file"), "run").is_err());
    }
}
