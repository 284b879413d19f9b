//! Opening of files whose paths come from outside.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// First bytes of a file compressed with gzip.
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Opens a regular file for reading. Other files are rejected: opening a FIFO or a device can block
/// and have side effects.
///
/// # Errors
///
/// Fails if the file cannot be opened, or is not a regular file.
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

/// Reads a regular file of at most `limit` bytes as text.
///
/// # Errors
///
/// Fails like [`open`], or if the file is longer or not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let file = open(path)?;
    if file.metadata()?.len() > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    io::read_to_string(file)
}
