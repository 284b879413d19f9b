//! Unix sockets in directories that only one user may enter.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use tokio::net::UnixStream;

use super::Dir;
use super::dir::component;

/// Listens under a name in a directory. The socket gets its name once it listens.
///
/// # Errors
///
/// If the socket cannot be created.
pub fn bind(dir: &Dir, name: &OsStr) -> io::Result<UnixListener> {
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

/// Connects to the socket with a name in a directory.
///
/// # Errors
///
/// If nothing listens there.
pub async fn connect(dir: &Dir, name: &OsStr) -> io::Result<UnixStream> {
    component(name)?;
    UnixStream::connect(dir.path_through_descriptor(name)).await
}

/// Whether something accepts connections at the socket. May block.
#[must_use]
pub fn is_listening(dir: &Dir, name: &OsStr) -> bool {
    component(name).is_ok()
        && std::os::unix::net::UnixStream::connect(dir.path_through_descriptor(name)).is_ok()
}

/// User id of the process that listens at the other end of a connection.
///
/// # Errors
///
/// If the system call fails.
pub fn peer_of(stream: impl AsFd) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}
