//! Values of options: addresses and durations.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Resolves `HOST:PORT`, preferably to an IPv4 address.
pub(in super::super) fn address(text: &str) -> io::Result<SocketAddr> {
    let addresses: Vec<SocketAddr> = text.to_socket_addrs()?.collect();
    let ipv4 = addresses.iter().find(|it| it.is_ipv4());
    let found = ipv4.or(addresses.first()).copied();
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Parses a number of seconds, from 0 to a year.
pub(in super::super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_error| "not a number of seconds".to_owned())?;
    if (0.0..=31_536_000.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("not between 0 and 31536000 s (a year)".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_resolved() {
        assert_eq!(address("localhost:7077").unwrap(), ([127, 0, 0, 1], 7077).into());
        assert_eq!(address("[::1]:7077").unwrap().to_string(), "[::1]:7077");
        assert!(address("localhost").is_err());
    }
}
