//! Handshakes that are not complete: their peers have not proved anything yet. A connection of a single request counts
//! as one until it is answered.
//!
//! Their number is limited. At the limit, the oldest handshake of the host with the most is closed, not the newest
//! refused: a peer that knows the token completes its own within milliseconds, so that idle connections cannot exclude it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Maximum number of handshakes at a time.
pub const MAX_HANDSHAKES: usize = 512;

/// The machine of a peer, as far as its address shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// This machine, by any of its addresses: each of its users can choose among them.
    Here,
    /// Another machine with an IPv4 address.
    V4(Ipv4Addr),
    /// The network of another machine with an IPv6 address, usually a /64 of its own.
    V6(u64),
}

impl Host {
    /// The host of the other side of a connection.
    #[must_use]
    pub fn of_peer(peer: SocketAddr) -> Self {
        match peer.ip().to_canonical() {
            address if address.is_loopback() || is_here(peer) => Self::Here,
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(address.to_bits().wrapping_shr(64) as u64),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("this machine"),
            Self::V4(address) => address.fmt(f),
            Self::V6(network) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(*network) << 64))
            }
        }
    }
}

/// Whether an address is one of this machine: it is then its own source. Nothing is sent.
fn is_here(address: SocketAddr) -> bool {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address.ip())
}

/// The handshakes of one program.
#[derive(Clone, Debug)]
pub struct Handshakes {
    unfinished: Arc<Mutex<Unfinished>>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Unfinished {
    /// Number of handshakes that have begun.
    begun: u64,
    /// By this number: the host, and what closes the connection when it is dropped.
    turns: BTreeMap<u64, (Host, oneshot::Sender<()>)>,
}

impl Handshakes {
    /// At most `limit` at a time, and at least one.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { unfinished: Arc::default(), limit: limit.max(1) }
    }

    /// Begins the handshake of a peer. Also returns the host whose oldest handshake is closed for it.
    #[must_use]
    pub fn begin(&self, host: Host) -> (Handshake, Option<Host>) {
        let (open, closed) = oneshot::channel();
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        let mut replaced = None;
        while unfinished.turns.len() >= self.limit {
            replaced = unfinished.close_oldest(host).or(replaced);
        }
        unfinished.begun += 1;
        let number = unfinished.begun;
        unfinished.turns.insert(number, (host, open));
        drop(unfinished);
        let unfinished = Arc::clone(&self.unfinished);
        (Handshake { unfinished, number, closed }, replaced)
    }
}

impl Unfinished {
    /// Closes the oldest handshake of the host with the most, the next one of `next` included.
    fn close_oldest(&mut self, next: Host) -> Option<Host> {
        let mut counts = HashMap::from([(next, 1)]);
        for (host, _) in self.turns.values() {
            *counts.entry(*host).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let has_most = |host: &Host| counts.get(host) == Some(&most);
        let oldest = self.turns.iter().find(|(_, (host, _))| has_most(host));
        let number = *oldest?.0;
        self.turns.remove(&number).map(|(host, _)| host)
    }
}

/// One handshake.
#[derive(Debug)]
pub struct Handshake {
    unfinished: Arc<Mutex<Unfinished>>,
    number: u64,
    closed: oneshot::Receiver<()>,
}

impl Handshake {
    /// Completes it by what it consists of.
    ///
    /// # Errors
    ///
    /// If that fails, or the connection is closed for a later one.
    pub async fn complete<T>(
        mut self,
        steps: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        tokio::select! {
            _ = &mut self.closed => Err(io::ErrorKind::ConnectionAborted.into()),
            done = steps => done,
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        unfinished.turns.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(last: u8) -> Host {
        Host::V4([10, 0, 0, last].into())
    }

    fn poll_closed(handshake: &mut Handshake) -> bool {
        handshake.closed.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn oldest_handshake_of_the_host_with_the_most_is_closed() {
        let handshakes = Handshakes::new(4);
        let mut open: Vec<Handshake> = Vec::new();
        for host in [other(1), Host::Here, Host::Here, other(2)] {
            let (handshake, replaced) = handshakes.begin(host);
            assert_eq!(replaced, None);
            open.push(handshake);
        }
        let (latest, replaced) = handshakes.begin(other(3));
        assert_eq!(replaced, Some(Host::Here));
        let closed: Vec<bool> = open.iter_mut().map(poll_closed).collect();
        assert_eq!(closed, [false, true, false, false]);
        // Each host has one now: the host of the next has the most, with two.
        let (_next, replaced) = handshakes.begin(other(2));
        assert_eq!(replaced, Some(other(2)));
        assert!(poll_closed(&mut open[3]) && !poll_closed(&mut open[0]));
        // Another host: the oldest of all.
        let (_next, replaced) = handshakes.begin(other(4));
        assert_eq!(replaced, Some(other(1)));
        drop(latest);
        assert_eq!(handshakes.begin(other(5)).1, None);
        drop(open);
    }

    #[test]
    fn addresses_of_this_machine_are_one_host() {
        let peer = |text: &str| Host::of_peer(SocketAddr::new(text.parse().unwrap(), 9));
        for address in ["127.0.0.1", "127.93.0.7", "::1", "::ffff:127.2.0.1"] {
            assert_eq!(peer(address), Host::Here, "{address}");
        }
        assert_eq!(peer("192.0.2.77"), Host::V4([192, 0, 2, 77].into()));
        assert_eq!(peer("::ffff:192.0.2.77"), peer("192.0.2.77"));
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("2001:db8:0:1::5").to_string(), "2001:db8:0:1::/64");
    }
}
