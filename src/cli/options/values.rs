//! Values of options: addresses, durations and sizes.

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

/// Parses a number of seconds, from 0 to a year: `10`, `0.5`, or `10s`.
pub(in super::super) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let seconds: f64 = number.parse().map_err(|_error| "not a number of seconds".to_owned())?;
    if (0.0..=31_536_000.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("not between 0 and 31536000 s (a year)".into())
    }
}

/// Parses the number of a process.
pub(in super::super) fn process_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_error| {
        "not the number of a process; without one, all ranks on this host are found".to_owned()
    })
}

/// Smallest size of a journal, in bytes: room for eight segments that repeat the definitions of some ranks.
const MIN_SIZE: u64 = 256 << 10;

/// Parses a size such as `512M` or `1G`, with binary units; without a unit, in bytes.
pub(in super::super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("not a size such as 512M or 1G".into()),
    };
    let number: u64 =
        digits.parse().map_err(|_error| "not a size such as 512M or 1G".to_owned())?;
    let size = number.checked_mul(1 << shift).ok_or("too large")?;
    if size < MIN_SIZE { Err("less than 256K".into()) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("300k"), Ok(300 << 10));
        assert_eq!(size("1048576"), Ok(1 << 20));
        for wrong in ["", "G", "-1G", "1.5G", "1X", "10K", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_may_have_their_unit() {
        assert_eq!(seconds("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "s", "10m", "-1", "1e99", "nan"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn name_of_a_program_is_no_process() {
        assert_eq!(process_id("17"), Ok(17));
        assert!(process_id("train.py").unwrap_err().starts_with("not the number of a process"));
    }

    #[test]
    fn host_names_are_resolved() {
        assert_eq!(address("localhost:7077").unwrap(), ([127, 0, 0, 1], 7077).into());
        assert_eq!(address("[::1]:7077").unwrap().to_string(), "[::1]:7077");
        assert!(address("localhost").is_err());
    }
}
