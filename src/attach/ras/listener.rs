//! Who listens at the other end of a connection within this host.

use std::io;
use std::net::{SocketAddr, TcpStream};

use ddp_doctor_node::blocked::peers;

/// Whether both ends of a connection are on this host.
pub(super) fn is_on_this_host(stream: &TcpStream) -> io::Result<bool> {
    let peer = stream.peer_addr()?.ip();
    Ok(peer.is_loopback() || peer == stream.local_addr()?.ip())
}

/// Whether all sockets that listen at an address of this host are of this user. Any user may listen on NCCL's port, also
/// at one address beside a socket of another user at all addresses.
pub(super) fn is_of(address: SocketAddr, user: u32) -> bool {
    let owners = owners(address);
    !owners.is_empty() && owners.iter().all(|it| *it == user)
}

/// The users of the sockets that can have accepted a connection to an address of this host.
fn owners(address: SocketAddr) -> Vec<u32> {
    let asked = address.ip().to_canonical();
    peers::listeners(|it| {
        // Those at all addresses of IPv6 accept IPv4 as well.
        let is_any = it.ip().is_unspecified() && (it.is_ipv6() || asked.is_ipv4());
        it.port() == address.port() && (is_any || it.ip() == asked)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listener_is_known_by_its_user() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let host = if address.starts_with('[') { "::1" } else { "127.0.0.1" };
            let stream = TcpStream::connect((host, port)).unwrap();
            let address = stream.peer_addr().unwrap();
            assert!(is_on_this_host(&stream).unwrap(), "{address}");
            let user = ddp_doctor_host::sys::user_id();
            assert_eq!(owners(address), [user], "{address}");
            assert!(is_of(address, user) && !is_of(address, user + 1), "{address}");
        }
    }
}
