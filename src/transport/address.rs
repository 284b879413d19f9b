//! Addresses of coordinators.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ddp_doctor_host::files;

use super::socket;
use super::tls::{self, Keys};
use super::token::{Credentials, TokenError};

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It is neither a socket nor `HOST:PORT`.
    #[error("{0} is not an address (HOST:PORT or unix:PATH)")]
    Invalid(String),
    /// It may be on another machine, and there is no token.
    #[error("{address} may be on another machine, which needs a token: {error}")]
    Token {
        /// The address as given.
        address: String,
        /// The reason.
        error: TokenError,
    },
    /// No keys can be made from the token.
    #[error("no keys can be made from the token: {0}")]
    Keys(#[from] io::Error),
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

/// Address of a coordinator. It need not have a listener yet.
#[derive(Clone, Debug)]
pub struct Address {
    text: String,
    place: Place,
    /// User who has to own the socket; `None`: this user, or any if this user is root.
    owner: Option<u32>,
}

#[derive(Clone, Debug)]
enum Place {
    /// A unix socket at one of these paths.
    Sockets(Vec<PathBuf>),
    /// A TCP port, by TLS.
    Remote { host: String, port: u16, keys: Keys },
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Address {}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Address {
    /// Parses `unix:PATH` or `HOST:PORT`. A loopback address is the name of a unix socket; any other
    /// host is reached by TLS, with the token of these credentials.
    ///
    /// # Errors
    ///
    /// If it is neither, or there is no valid token for another host.
    pub fn parse(text: &str, credentials: &Credentials) -> Result<Self, AddressError> {
        let place = if let Some(path) = text.strip_prefix(socket::SCHEME) {
            Place::Sockets(vec![PathBuf::from(path)])
        } else {
            let invalid = || AddressError::Invalid(text.to_owned());
            let (host, port) = split(text).ok_or_else(invalid)?;
            match loopback(host) {
                Some(loopback) => {
                    let names = loopback.iter().map(|&it| SocketAddr::new(it, port));
                    Place::Sockets(names.flat_map(socket::paths).collect())
                }
                None => {
                    let token = credentials
                        .token()
                        .map_err(|error| AddressError::Token { address: text.to_owned(), error })?;
                    Place::Remote { host: host.to_owned(), port, keys: Keys::derive(&token)? }
                }
            }
        };
        // Sockets that are named by loopback addresses are in directories of this user.
        let is_named = !text.starts_with(socket::SCHEME);
        let owner = is_named.then(files::user_id);
        Ok(Self { text: text.to_owned(), place, owner })
    }

    /// Whether a text is the path of a socket.
    #[must_use]
    pub fn is_path(text: &str) -> bool {
        text.starts_with(socket::SCHEME)
    }

    /// Whether a text is the path of a socket where processes of this user put theirs. Nothing is looked up.
    #[must_use]
    pub fn is_socket_of(text: &str, user: u32) -> bool {
        let path = text.strip_prefix(socket::SCHEME);
        path.is_some_and(|it| socket::is_in_folder_of(Path::new(it), user))
    }

    /// Whether a text is a loopback address: the name of a socket in the directories of ddp-doctor.
    #[must_use]
    pub fn is_loopback(text: &str) -> bool {
        split(text).is_some_and(|(host, _)| loopback(host).is_some())
    }

    /// The same address, for a socket of this user only: it was read from a file of that user, not from the command
    /// line.
    #[must_use]
    pub fn owned_by(self, user: u32) -> Self {
        Self { owner: Some(user), ..self }
    }

    /// The same address, for evidence of this user, which goes to a coordinator of this user only.
    ///
    /// # Errors
    ///
    /// If it is a socket of another user.
    pub fn for_evidence(self) -> Result<Self, AddressError> {
        let own = self.owned_by(files::user_id());
        match own.socket() {
            Err(error @ AddressError::NotPrivate { .. }) => Err(error),
            _ => Ok(own),
        }
    }

    /// Another user who owns the socket. Only root can use it.
    #[must_use]
    pub fn other_owner(&self) -> Option<u32> {
        let owner = self.socket().ok()?.owner();
        (owner != files::user_id()).then_some(owner)
    }

    /// Host, port and keys of an address that may be on another machine.
    pub(super) fn remote(&self) -> Option<(&str, u16, &Keys)> {
        match &self.place {
            Place::Remote { host, port, keys } => Some((host, *port, keys)),
            Place::Sockets(_) => None,
        }
    }

    /// The socket of an address on this machine.
    ///
    /// # Errors
    ///
    /// If the address is another machine's, no socket has that name, or another user may have created it.
    pub fn socket(&self) -> Result<socket::Located, AddressError> {
        match &self.place {
            Place::Sockets(paths) => socket::find(paths, &self.text, self.owner),
            Place::Remote { .. } => Err(AddressError::NoListener(self.text.clone())),
        }
    }

    /// Whether something accepts connections there. May take seconds.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match &self.place {
            Place::Sockets(_) => self.socket().is_ok_and(|it| it.is_open()),
            Place::Remote { host, port, .. } => tls::is_open(host, *port),
        }
    }
}

/// Splits `HOST:PORT`; brackets surround an IPv6 address.
#[must_use]
pub fn split(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let is_valid = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(is_of_host),
    };
    is_valid.then_some((bare.unwrap_or(host), port))
}

/// Whether the name of a host may contain the character.
fn is_of_host(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '%')
}

/// The loopback addresses that a host stands for in every environment; `None`: it may be another
/// machine.
#[must_use]
pub fn loopback(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let address: IpAddr = host.parse().ok()?;
    address.is_loopback().then(|| vec![address])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_split() {
        for (text, expected) in [
            ("node0:29500", Some(("node0", 29500))),
            ("10.0.0.1:1", Some(("10.0.0.1", 1))),
            ("[::1]:7077", Some(("::1", 7077))),
            ("::1:7077", None),
            ("[node]:1", None),
            ("node", None),
            (":7077", None),
            ("node:port", None),
            ("node:70000", None),
            ("http://node:1", None),
        ] {
            assert_eq!(split(text), expected, "{text}");
        }
    }

    #[test]
    fn socket_of_a_user_is_recognized_by_its_path_alone() {
        for own in
            ["/dev/shm/ddp-doctor-7/a.sock", "/run/user/7/ddp-doctor/a.sock", "/tmp/ddp-doctor-7/a"]
        {
            assert!(Address::is_socket_of(&format!("unix:{own}"), 7), "{own}");
            assert!(!Address::is_socket_of(&format!("unix:{own}"), 8), "{own}");
        }
        for other in [
            "unix:/net/host/export/a.sock",
            "unix:/tmp/ddp-doctor-7/../a.sock",
            "unix:/tmp/ddp-doctor-7/b/a.sock",
            "unix:/tmp/ddp-doctor-7/..",
            "/tmp/ddp-doctor-7/a.sock",
            "127.0.0.1:7077",
        ] {
            assert!(!Address::is_socket_of(other, 7), "{other}");
        }
    }

    #[test]
    fn loopback_addresses_need_no_token() {
        let none = Credentials { file: Some("/nowhere/token".into()), can_ask: false };
        for text in ["127.0.0.1:7", "localhost:7", "[::1]:7", "unix:/nowhere"] {
            assert!(Address::parse(text, &none).is_ok(), "{text}");
        }
        let error = Address::parse("192.0.2.1:7", &none).unwrap_err().to_string();
        assert!(error.contains("needs a token"), "{error}");
        let error = Address::parse("127.0.0.1:port", &none).unwrap_err();
        assert!(matches!(error, AddressError::Invalid(_)));
        let nowhere = Address::parse("unix:/nowhere", &none).unwrap();
        assert!(matches!(nowhere.socket(), Err(AddressError::NoListener(_))));
        assert!(!nowhere.is_open());
    }
}
