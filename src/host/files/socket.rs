//! Unix sockets in directories that only one user may enter.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use rustix::fs::{FileType, FlockOperation, flock, fstat};
use tokio::net::UnixStream;

use super::Dir;
use super::dir::component;

/// Processes of this user take turns to put sockets into a directory and to remove them. A turn ends with the descriptor.
fn turn(dir: &Dir) -> io::Result<File> {
    let turn = dir.readable()?;
    flock(&turn, FlockOperation::LockExclusive)?;
    Ok(turn)
}

/// Listens under a name in a directory. The socket gets its name once it listens.
///
/// # Errors
///
/// If the socket cannot be created.
pub fn bind(dir: &Dir, name: &OsStr) -> io::Result<UnixListener> {
    let _turn = turn(dir)?;
    listen(dir, name)
}

fn listen(dir: &Dir, name: &OsStr) -> io::Result<UnixListener> {
    let make = |it: &OsStr| {
        component(it)?;
        UnixListener::bind(dir.path_through_descriptor(it)).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => io::ErrorKind::AlreadyExists.into(),
            _ => error,
        })
    };
    let (listener, temporary) = dir.temporary(name, make)?;
    dir.rename(&temporary, dir, name)?;
    Ok(listener)
}

/// Like [`bind`], if nothing listens under this name yet.
///
/// # Errors
///
/// `AddrInUse` if something listens there, or as [`bind`].
pub fn bind_unused(dir: &Dir, name: &OsStr) -> io::Result<UnixListener> {
    let _turn = turn(dir)?;
    if is_listening(dir, name) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    listen(dir, name)
}

/// Removes a socket that is open, unless another one has its name by now.
///
/// # Errors
///
/// If it cannot be removed, or there is another one.
pub fn remove_socket(dir: &Dir, name: &OsStr, socket: &OwnedFd) -> io::Result<()> {
    let _turn = turn(dir)?;
    let (open, present) = (fstat(socket)?, fstat(open_socket(dir, name)?)?);
    // Its inode is not used again while it is open.
    if (open.st_dev, open.st_ino) != (present.st_dev, present.st_ino) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    dir.remove_file(name)
}

/// Connects to the socket with a name in a directory.
///
/// # Errors
///
/// If nothing listens there.
pub async fn connect(dir: &Dir, name: &OsStr) -> io::Result<UnixStream> {
    connect_to(&open_socket(dir, name)?).await
}

/// Connects to a socket that is open.
///
/// # Errors
///
/// If nothing listens there.
pub async fn connect_to(socket: &OwnedFd) -> io::Result<UnixStream> {
    UnixStream::connect(path_of(socket)).await
}

/// Whether something accepts connections at the socket. May block.
#[must_use]
pub fn is_listening(dir: &Dir, name: &OsStr) -> bool {
    let connect =
        |socket: OwnedFd| std::os::unix::net::UnixStream::connect(path_of(&socket)).is_ok();
    open_socket(dir, name).is_ok_and(connect)
}

/// Opens a socket of the owner of the directory as it is, so that nobody can exchange it: a connection follows links.
///
/// # Errors
///
/// If there is none.
pub fn open_socket(dir: &Dir, name: &OsStr) -> io::Result<OwnedFd> {
    let socket = dir.entry(name)?;
    let found = fstat(&socket)?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if is_socket && found.st_uid == dir.status()?.owner() {
        return Ok(socket);
    }
    Err(io::ErrorKind::InvalidInput.into())
}

fn path_of(socket: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", socket.as_raw_fd())
}

/// User id of the process that listens at the other end of a connection.
///
/// # Errors
///
/// If the system call fails.
pub fn peer_of(stream: impl AsFd) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_not_followed_to_a_socket() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open_own(place.path()).unwrap();
        let _listener = bind(&dir, "socket".as_ref()).unwrap();
        symlink(place.path().join("socket"), place.path().join("link")).unwrap();
        assert!(is_listening(&dir, "socket".as_ref()));
        assert!(!is_listening(&dir, "link".as_ref()));
    }
}
