//! Wakes the reader of a FIFO.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use ddp_doctor_agent::files::refused;
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};

use super::dir::component;
use super::user_id;

/// Writes one byte to the FIFO of this user at a path. Does not wait.
///
/// # Errors
///
/// If there is no such FIFO, it belongs to another user, or no process reads it.
pub fn wake_reader(path: &Path) -> io::Result<()> {
    let (dir, name) = super::parent(path)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(dir.descriptor(), &*component(name)?, flags, Mode::empty())?;
    wake_reader_of(&File::from(found), path)
}

/// Writes one byte to the FIFO of this user that was opened with `O_PATH`. Does not wait. `path`: for errors.
///
/// # Errors
///
/// Like [`wake_reader`].
pub fn wake_reader_of(found: &File, path: &Path) -> io::Result<()> {
    let status = fstat(found.as_fd())?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Fifo {
        return Err(refused(path, "is not a FIFO"));
    }
    if status.st_uid != user_id() {
        return Err(refused(path, &format!("belongs to user {}", status.st_uid)));
    }
    // What was checked cannot be exchanged. Without a reader, this is an error.
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fifo = open(link, flags, Mode::empty())?;
    rustix::io::write(&fifo, b"\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Read;
    use std::os::unix::fs::{OpenOptionsExt, chown, symlink};
    use std::process::Command;

    use super::*;

    fn make(path: &Path) {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn reader_gets_one_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.pipe");
        make(&path);
        // ENXIO
        assert_eq!(wake_reader(&path).unwrap_err().raw_os_error(), Some(6), "nobody reads it");
        let mut reader =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        wake_reader(&path).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(reader.read(&mut buffer).unwrap(), 1);
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, foreign] = ["file", "link", "foreign"].map(|it| dir.path().join(it));
        let why = |path: &Path| wake_reader(path).unwrap_err().to_string();
        std::fs::write(&file, "").unwrap();
        assert!(why(&file).contains("is not a FIFO"), "{}", why(&file));
        assert_eq!(std::fs::read(&file).unwrap(), b"");
        make(&foreign);
        symlink(&foreign, &link).unwrap();
        assert!(why(&link).contains("is not a FIFO"), "{}", why(&link));
        if user_id() == 0 {
            chown(&foreign, Some(4001), None).unwrap();
            assert!(why(&foreign).contains("belongs to user 4001"), "{}", why(&foreign));
        }
    }
}
