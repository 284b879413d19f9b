//! Directories of this user.

use std::env;
use std::path::{Path, PathBuf};

use ddp_doctor_agent::files::own_directory_name;

/// Directory of this program in that of the user's cached files.
pub const CACHE: &str = "ddp-doctor";
/// Mount point of shared memory.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// The directory of this user in shared memory.
pub fn user_dir(shared_memory: &Path) -> PathBuf {
    shared_memory.join(own_directory_name())
}

/// Directory of this program's cached files, which need not exist; `None`: this user has no home.
#[must_use]
pub fn cache() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let cached = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    Some(cached?.join(CACHE))
}
