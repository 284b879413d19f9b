//! Unix sockets by which the processes of one user on one machine reach a coordinator.
//!
//! A socket is in a directory that only its user may enter, so the kernel refuses every other user
//! but root. The coordinator also checks the credentials of each connection
//! ([`crate::coordinator::serve`]).
//!
//! A loopback address (`127.0.0.1:7077`) is the name of such a socket: nothing listens on TCP
//! (`docs/decisions/0001-unix-sockets.md`).

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpSocket, UnixStream};

use crate::node::follow::{boxes, names};
use crate::node::sys;

/// Prefix of an address that is the path of a socket.
const SCHEME: &str = "unix:";
/// Extension of socket files.
const EXTENSION: &str = "sock";
/// Time limit for the answer of a socket that may have no listener any more.
const PROBE: Duration = Duration::from_secs(1);

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It is neither a socket nor `HOST:PORT`.
    #[error("{address} is not an address (HOST:PORT or unix:PATH): {error}")]
    Invalid {
        /// The address as given.
        address: String,
        /// The reason.
        error: io::Error,
    },
    /// It belongs to another machine, and the connection would not be encrypted.
    #[error("{0} is not on this machine: only a loopback address can be used without encryption")]
    NotLoopback(String),
    /// No process of this user listens there.
    #[error("no coordinator of this user listens at {0}")]
    NoListener(String),
    /// Another user may have put the socket there.
    #[error("{path} is not used: its directory belongs to or is accessible to another user")]
    NotPrivate {
        /// Path of the socket.
        path: String,
    },
}

/// Checks that an address is a socket or a loopback address. It need not have a listener yet.
///
/// # Errors
///
/// If it is neither.
pub fn check(address: &str) -> Result<(), AddressError> {
    candidates(address).map(drop)
}

/// Path of the socket with this address.
///
/// # Errors
///
/// If the address is invalid, no socket has that name, or another user may have created it.
pub fn find(address: &str) -> Result<PathBuf, AddressError> {
    let candidates = candidates(address)?;
    let found = candidates.into_iter().find(|path| path.exists());
    let path = found.ok_or_else(|| AddressError::NoListener(address.to_owned()))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let is_safe = fs::metadata(folder).is_ok_and(|folder| {
        let user = sys::user_id();
        let is_owner = folder.uid() == user && folder.mode() & 0o077 == 0;
        is_owner || user == 0
    });
    if is_safe {
        Ok(path)
    } else {
        let path = path.display().to_string();
        Err(AddressError::NotPrivate { path })
    }
}
/// Every path at which the socket with that address may be.
fn candidates(address: &str) -> Result<Vec<PathBuf>, AddressError> {
    if let Some(path) = address.strip_prefix(SCHEME) {
        return Ok(vec![PathBuf::from(path)]);
    }
    let invalid = |error| AddressError::Invalid {
        address: address.to_owned(),
        error,
    };
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(invalid)?.collect();
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        return Err(AddressError::NotLoopback(address.to_owned()));
    }
    let folders = folders();
    let paths = addresses.iter().flat_map(|address| {
        let name = file_name(&address.to_string());
        folders.each_ref().map(|folder| folder.join(&name))
    });
    Ok(paths.collect())
}

/// A listening socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Keeps the port of a loopback address from being used by anything else.
    _port: Option<TcpSocket>,
}

/// Whether a coordinator accepts connections at that address.
#[must_use]
pub fn is_open(address: &str) -> bool {
    find(address).is_ok_and(|path| std::os::unix::net::UnixStream::connect(path).is_ok())
}

impl Socket {
    /// Listens under a unique name.
    ///
    /// # Errors
    ///
    /// If no directory for sockets can be used.
    pub fn unnamed() -> io::Result<(Self, UnixListener)> {
        Self::bind(&file_name(&names::new_job()), None)
    }

    /// Listens under a loopback address; port 0 stands for a free port. Returns the address in use.
    ///
    /// # Errors
    ///
    /// If the port is in use, or no directory for sockets can be used.
    pub fn at(address: SocketAddr) -> io::Result<(Self, UnixListener, SocketAddr)> {
        // Bound but never listening, so that TCP connections are refused and the name is unique.
        let port = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        port.bind(address)?;
        let address = port.local_addr()?;
        let (socket, listener) = Self::bind(&file_name(&address.to_string()), Some(port))?;
        Ok((socket, listener, address))
    }

    fn bind(name: &str, port: Option<TcpSocket>) -> io::Result<(Self, UnixListener)> {
        let mut refusal = io::ErrorKind::NotFound.into();
        for folder in folders() {
            match listen(&folder, name) {
                Ok(listener) => {
                    let path = folder.join(name);
                    return Ok((Self { path, _port: port }, listener));
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Its address for clients.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{SCHEME}{}", self.path.display())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // If this fails, a later `sweep` removes the file.
        drop(fs::remove_file(&self.path));
    }
}

fn listen(folder: &Path, name: &str) -> io::Result<UnixListener> {
    ensure_private(folder)?;
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    drop(fs::remove_file(&temporary));
    let listener = UnixListener::bind(&temporary)?;
    // From here on a socket under this name that refuses connections has no listener: see `sweep`.
    fs::rename(&temporary, folder.join(name))?;
    Ok(listener)
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
        format!(
            "{} belongs to another user or is accessible to others",
            path.display()
        ),
    ))
}

/// Removes sockets of this user that have no listener: their processes were killed.
pub async fn sweep() {
    for folder in folders() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|it| it != EXTENSION) {
                continue;
            }
            let answer = tokio::time::timeout(PROBE, UnixStream::connect(&path)).await;
            let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if matches!(answer, Ok(Err(error)) if is_refused(&error)) {
                drop(fs::remove_file(&path));
            }
        }
    }
}

/// Directories in which sockets of this user may be, in order of preference. They do not depend on
/// the environment, so that every process of the user finds the same ones.
fn folders() -> [PathBuf; 3] {
    let user = sys::user_id();
    [
        boxes::user_dir(Path::new(boxes::SHARED_MEMORY)),
        PathBuf::from(format!("/run/user/{user}/ddp-doctor")),
        PathBuf::from(format!("/tmp/ddp-doctor-{user}")),
    ]
}

fn file_name(name: &str) -> String {
    format!("{name}.{EXTENSION}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn loopback_address_names_a_socket_until_it_is_dropped() {
        let (socket, listener, address) = Socket::at("127.0.0.1:0".parse().unwrap()).unwrap();
        let text = address.to_string();
        let path = find(&text).unwrap();
        assert_eq!(socket.address(), format!("unix:{}", path.display()));
        assert_eq!(find(&socket.address()).unwrap(), path);
        let error = Socket::at(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let error = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop((socket, listener));
        assert!(matches!(find(&text), Err(AddressError::NoListener(_))));
    }

    #[test]
    fn directory_of_another_user_is_not_used() {
        if sys::user_id() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let squatted = dir.path().join("squatted");
        fs::create_dir(&squatted).unwrap();
        std::os::unix::fs::chown(&squatted, Some(65534), None).unwrap();
        assert!(listen(&squatted, "a.sock").is_err());
    }

    #[test]
    fn directory_that_others_may_enter_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(listen(dir.path(), "a.sock").is_err());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(listen(dir.path(), "a.sock").is_ok());
    }

    #[tokio::test]
    async fn sweep_removes_sockets_without_listener() {
        let (living, _listener) = Socket::unnamed().unwrap();
        let (dead, listener) = Socket::unnamed().unwrap();
        drop(listener);
        sweep().await;
        assert!(living.path.exists());
        assert!(!dead.path.exists());
    }

    #[test]
    fn remote_and_invalid_addresses_are_refused() {
        assert!(matches!(
            check("192.0.2.1:7"),
            Err(AddressError::NotLoopback(_))
        ));
        assert!(matches!(
            check("127.0.0.1:port"),
            Err(AddressError::Invalid { .. })
        ));
        assert!(check("127.0.0.1:7").is_ok() && check("unix:/nowhere").is_ok());
        assert!(matches!(
            find("unix:/nowhere"),
            Err(AddressError::NoListener(_))
        ));
    }
}
