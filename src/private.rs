//! Directories that only this user may enter.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::node::sys;

/// Mount point of shared memory.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// The directory of this user in shared memory.
pub fn user_dir(shared_memory: &Path) -> PathBuf {
    shared_memory.join(format!("ddp-doctor-{}", sys::user_id()))
}

/// Creates a directory that only this user may enter, or checks that an existing one is private.
///
/// # Errors
///
/// If it cannot be created, or is accessible to another user.
pub fn ensure_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() && found.uid() == sys::user_id() && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} belongs to another user or is accessible to others", path.display()),
    ))
}

/// Creates a new directory that only this user may enter.
///
/// # Errors
///
/// If it cannot be created, or exists.
pub fn new_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}
