//! Opens a file of any user for reading.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Flags with which opening a file neither waits nor changes the terminal of the process.
const NEVER_BLOCKS: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

/// Opens a regular file for reading, and reads its metadata. Other files are rejected, before they are
/// opened: opening a FIFO can block, and opening a device can have side effects.
///
/// # Errors
///
/// If it cannot be opened, or is rejected.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    regular(&OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?, path)
}

/// Like [`open_regular`], for what was opened with `O_PATH` at this path.
///
/// # Errors
///
/// If it cannot be opened for reading, or is rejected.
pub fn regular(found: &File, path: &Path) -> io::Result<(File, Metadata)> {
    let rejected = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let metadata = found.metadata()?;
    if !metadata.is_file() {
        return rejected("it is not a regular file");
    }
    match reopen(found) {
        // Without `/proc`, the file can have been exchanged.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let again = OpenOptions::new().read(true).custom_flags(NEVER_BLOCKS).open(path)?;
            let now = again.metadata()?;
            if (now.dev(), now.ino()) != (metadata.dev(), metadata.ino()) {
                return rejected("it was exchanged for another file");
            }
            Ok((again, metadata))
        }
        opened => Ok((opened?, metadata)),
    }
}

/// Opens a regular file for reading that was opened with `O_PATH`, and cannot have been exchanged since.
///
/// # Errors
///
/// If the file cannot be read.
pub fn reopen(found: &File) -> io::Result<File> {
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(NEVER_BLOCKS).open(link)
}
