//! The directory of this user in shared memory.

use std::path::{Path, PathBuf};

use ddp_doctor_agent::files::own_directory_name;

/// Mount point of shared memory.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// The directory of this user in shared memory.
pub fn user_dir(shared_memory: &Path) -> PathBuf {
    shared_memory.join(own_directory_name())
}
