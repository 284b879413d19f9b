//! Changes of the file system, through descriptors of directories.
//!
//! Other users can write to the parents of most directories that this program uses, and can replace what is in
//! them by links at any moment. Therefore this is the only module that creates, renames, removes, or connects to,
//! anything by its name (`tests/structure/forbidden_code.rs`), and it does so as follows:
//!
//! - A directory is opened component by component ([`Dir`]). A link that another user can have made is not followed.
//! - Type, owner and mode are read from the open descriptor, before anything in the directory is read.
//! - Names are single components, resolved in the open directory. A file is always created new, under a temporary name
//!   if it replaces one. No operation follows a link, waits for a FIFO, or writes to a file that existed before.
//!
//! A training process links libc alone, and follows the same rule in `agent/src/files`, where the way to a directory is
//! for both.

use std::io;
use std::path::Path;

use ddp_doctor_agent::trust;

mod dir;
mod fifo;
mod removal;
mod socket;

pub use ddp_doctor_agent::files::{Identity, KnownDirectories, Shared, refused};
pub use dir::{Dir, Status};
pub use fifo::{wake_reader, wake_reader_of};
pub use socket::{
    bind, bind_unused, connect, connect_to, is_listening, open_socket, peer_of, remove_socket,
};

/// Effective user id of this process.
#[must_use]
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Replaces the file at a path, or creates it, like [`Dir::publish`]: readers see the old contents or the new ones. If
/// the path is a link, the link is replaced.
///
/// # Errors
///
/// If it cannot be written, and then the old file is unchanged; or if something other than a file is in its place.
pub fn publish(path: &Path, contents: &[u8]) -> io::Result<()> {
    let (dir, name) = parent(path)?;
    dir.publish(name, contents)
}

/// States that other users can change the entries of a directory: the beginning of a sentence.
#[must_use]
pub fn others_at(place: &Shared) -> String {
    let shown = place.path.display();
    if trust::is_unmapped(place.owner) {
        return format!("another user of the host may own {shown}");
    }
    format!("other users can write to {shown}")
}

/// Opens the directory that contains a path, which may belong to any user. Also returns the name in it.
///
/// # Errors
///
/// If it cannot be opened, or the path does not end in a name.
pub fn parent(path: &Path) -> io::Result<(Dir, &std::ffi::OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    Ok((Dir::open(parent.unwrap_or(Path::new(".")))?, name))
}
