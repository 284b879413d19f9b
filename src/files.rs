//! Opening files whose path comes from elsewhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading. Opening a FIFO or a device could block, and has effects: these are
/// refused.
///
/// # Errors
///
/// When it cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let why = "it is not a regular file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Text of a regular file that is no longer than `limit` bytes.
///
/// # Errors
///
/// As [`open`], or when the file is longer or not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let file = open(path)?;
    if file.metadata()?.len() > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    io::read_to_string(file)
}
