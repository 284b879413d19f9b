//! Unix sockets by which the processes of one user on one machine reach a coordinator.
//!
//! A socket is in a directory that only its user may enter, so the kernel refuses every other user
//! but root. The coordinator also checks the credentials of each connection.
//!
//! A loopback address (`127.0.0.1:7077`) is the name of such a socket: nothing listens on TCP
//! (`docs/decisions/0001-unix-sockets.md`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp_doctor_agent::files::{directory_name_of, own_number};
use ddp_doctor_host::files::{self, Dir};
use ddp_doctor_host::names;
use ddp_doctor_host::private;
use tokio::net::{TcpSocket, UnixStream};

use super::AddressError;

/// Prefix of an address that is the path of a socket.
pub(super) const SCHEME: &str = "unix:";
/// Extension of socket files.
const EXTENSION: &str = "sock";
/// Time limit for the answer of a socket that may have no listener any more.
const PROBE: Duration = Duration::from_secs(1);

/// A socket that exists, in an open directory that only its owner may enter.
#[derive(Debug)]
pub struct Located {
    dir: Dir,
    name: OsString,
    owner: u32,
}

impl Located {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }

    /// User id of the owner of the socket and its directory.
    #[must_use]
    pub const fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether something accepts connections. May block.
    pub(super) fn is_open(&self) -> bool {
        files::is_listening(&self.dir, &self.name)
    }

    /// Connects to the process that listens.
    ///
    /// # Errors
    ///
    /// If nothing listens, or a process of a user other than the owner.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        let stream = files::connect(&self.dir, &self.name).await?;
        let listener = files::peer_of(&stream)?;
        if listener == self.owner {
            return Ok(stream);
        }
        let path = self.path();
        let why = format!("{} is not used: user {listener} listens there", path.display());
        Err(io::Error::other(why))
    }
}

/// The socket among these candidates, which `address` names. It belongs to `owner`; `None`: to this user, or to any
/// if this user is root.
///
/// # Errors
///
/// If none exists, or another user may have created it.
pub(super) fn find(
    candidates: &[PathBuf],
    address: &str,
    owner: Option<u32>,
) -> Result<Located, AddressError> {
    let mut refused = None;
    for path in candidates {
        let why = AddressError::NotPrivate { path: path.display().to_string() };
        let found = files::parent(path)
            .and_then(|(dir, name)| Ok((dir.status()?, dir.status_of(name)?, dir, name)));
        let (folder, socket, dir, name) = match found {
            Ok(found) => found,
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    refused = refused.or(Some(why));
                }
                continue;
            }
        };
        let user = files::user_id();
        let is_wanted =
            owner.map_or(folder.owner() == user || user == 0, |it| it == folder.owner());
        if !is_wanted || !folder.is_private() || socket.owner() != folder.owner() {
            // The listener passes over such a directory, too.
            refused = refused.or(Some(why));
            continue;
        }
        return Ok(Located { dir, name: name.to_owned(), owner: folder.owner() });
    }
    Err(refused.unwrap_or_else(|| AddressError::NoListener(address.to_owned())))
}

/// Every path at which the socket with the name of a loopback address may be.
pub(super) fn paths(address: SocketAddr) -> [PathBuf; 3] {
    let name = file_name(&address.to_string());
    folders().map(|folder| folder.join(&name))
}

/// A listening socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    dir: Dir,
    name: OsString,
    /// The file with this name, opened with `O_PATH`.
    file: OwnedFd,
    /// Bound but never listening, so that TCP connections are refused; `None`: another process has the port.
    port: Option<TcpSocket>,
}

impl Socket {
    /// Listens under a unique name.
    ///
    /// # Errors
    ///
    /// If no directory for sockets can be used.
    pub fn unnamed() -> io::Result<(Self, UnixListener)> {
        Self::bind(&file_name(&names::new_job()), None, files::bind)
    }

    /// Listens under a loopback address; port 0 stands for a free port. Returns the address in use. The TCP port is
    /// bound, too, unless another process has it, which may be another user's.
    ///
    /// # Errors
    ///
    /// If a process of this user listens there, or no directory for sockets can be used.
    pub fn at(address: SocketAddr) -> io::Result<(Self, UnixListener, SocketAddr)> {
        let port = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        let (port, address) = match port.bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.port() != 0 => {
                (None, address)
            }
            bound => {
                bound?;
                let address = port.local_addr()?;
                (Some(port), address)
            }
        };
        let name = file_name(&address.to_string());
        let (socket, listener) = Self::bind(&name, port, files::bind_unused)?;
        Ok((socket, listener, address))
    }

    /// Listens under the name of a loopback address whose port is in use by this process.
    ///
    /// # Errors
    ///
    /// If no directory for sockets can be used.
    pub fn named(address: SocketAddr) -> io::Result<(Self, UnixListener)> {
        Self::bind(&file_name(&address.to_string()), None, files::bind)
    }

    fn bind(
        name: &str,
        port: Option<TcpSocket>,
        listen_in: Bind,
    ) -> io::Result<(Self, UnixListener)> {
        let mut refusal = io::ErrorKind::NotFound.into();
        for folder in folders() {
            match listen(&folder, name, listen_in) {
                Ok((dir, listener)) => {
                    let (name, file) = (name.into(), files::open_socket(&dir, name.as_ref())?);
                    return Ok((Self { dir, name, file, port }, listener));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Whether no other process can have the TCP port of its address.
    #[must_use]
    pub const fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Its address for clients.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{SCHEME}{}", self.dir.path().join(&self.name).display())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // If this fails, a later `sweep` removes the file.
        drop(files::remove_socket(&self.dir, &self.name, &self.file));
    }
}

/// Listens under a name in a directory.
type Bind = fn(&Dir, &OsStr) -> io::Result<UnixListener>;

fn listen(folder: &Path, name: &str, listen_in: Bind) -> io::Result<(Dir, UnixListener)> {
    let dir = Dir::ensure_private(folder)?;
    // A socket under this name that refuses connections has no listener: see `sweep`.
    let listener = listen_in(&dir, name.as_ref())?;
    Ok((dir, listener))
}

/// Removes sockets of this user that have no listener: their processes were killed.
pub async fn sweep() {
    for dir in folders().iter().filter_map(|folder| Dir::open_private(folder).ok()) {
        for name in dir.names().unwrap_or_default() {
            if Path::new(&name).extension().is_none_or(|it| it != EXTENSION) {
                continue;
            }
            // A process may listen under this name in the meantime, with another socket.
            let Ok(socket) = files::open_socket(&dir, &name) else { continue };
            let answer = tokio::time::timeout(PROBE, files::connect_to(&socket)).await;
            let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if matches!(answer, Ok(Err(error)) if is_refused(&error)) {
                drop(files::remove_socket(&dir, &name, &socket));
            }
        }
    }
}

/// Directories in which sockets of this user may be, in order of preference. They do not depend on
/// the environment, so that every process of the user finds the same ones.
fn folders() -> [PathBuf; 3] {
    folders_of(own_number())
}

fn folders_of(user: u32) -> [PathBuf; 3] {
    let name = directory_name_of(user);
    [
        Path::new(private::SHARED_MEMORY).join(&name),
        PathBuf::from(format!("/run/user/{user}/ddp-doctor")),
        Path::new("/tmp").join(&name),
    ]
}

/// Whether a path is, as text, that of a socket in a directory in which processes of this user listen.
pub(super) fn is_in_folder_of(path: &Path, user: u32) -> bool {
    path.file_name().is_some() && folders_of(user).iter().any(|it| path.parent() == Some(it))
}

fn file_name(name: &str) -> String {
    format!("{name}.{EXTENSION}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{Address, Credentials};

    #[test]
    fn loopback_address_names_a_socket_until_it_is_dropped() {
        let (socket, listener, address) = Socket::at("127.0.0.1:0".parse().unwrap()).unwrap();
        let text = address.to_string();
        let find = |text: &str| Address::parse(text, &Credentials::default()).unwrap().socket();
        let path = find(&text).unwrap().path();
        assert_eq!(socket.address(), format!("unix:{}", path.display()));
        assert_eq!(find(&socket.address()).unwrap().path(), path);
        let error = Socket::at(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let error = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop((socket, listener));
        assert!(matches!(find(&text), Err(AddressError::NoListener(_))));
    }

    /// Any user can bind a port of the loopback interface.
    #[test]
    fn port_of_another_process_does_not_take_the_name() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (_socket, _listener, found) = Socket::at(address).unwrap();
        assert_eq!(found, address);
        assert_eq!(Socket::at(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn directory_of_another_user_is_not_used() {
        if files::user_id() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let squatted = dir.path().join("squatted");
        fs::create_dir(&squatted).unwrap();
        std::os::unix::fs::chown(&squatted, Some(65534), None).unwrap();
        assert!(listen(&squatted, "a.sock", files::bind).is_err());
    }

    #[test]
    fn directory_that_others_may_enter_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(listen(dir.path(), "a.sock", files::bind).is_err());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(listen(dir.path(), "a.sock", files::bind).is_ok());
    }

    /// A process that was killed left the name, and another one takes it at any moment.
    #[test]
    fn sweep_removes_no_socket_that_replaces_a_dead_one() {
        let (socket, listener, address) = Socket::at("127.0.0.1:0".parse().unwrap()).unwrap();
        let path = socket.dir.path().join(&socket.name);
        drop((socket, listener));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    runtime.block_on(sweep());
                }
            });
            let stays = |_| {
                drop(UnixListener::bind(&path));
                let (socket, _listener, _) = Socket::at(address).unwrap();
                std::thread::sleep(Duration::from_micros(50));
                socket.dir.status_of(&socket.name).is_ok()
            };
            let all_stay = (0..5_000).all(stays);
            is_over.store(true, Ordering::Relaxed);
            assert!(all_stay);
        });
    }

    #[tokio::test]
    async fn sweep_removes_sockets_without_listener() {
        let (living, _listener) = Socket::unnamed().unwrap();
        let (dead, listener) = Socket::unnamed().unwrap();
        drop(listener);
        sweep().await;
        assert!(living.dir.status_of(&living.name).is_ok());
        assert!(dead.dir.status_of(&dead.name).is_err());
    }
}
