//! The peer of a Unix socket, by the kernel's socket diagnosis (sock_diag(7), `linux/unix_diag.h`).

use rustix::fd::OwnedFd;
use rustix::io::Result;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST`, `UDIAG_SHOW_PEER` and `UNIX_DIAG_PEER`.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const SHOW_PEER: u32 = 4;
const PEER: u16 = 2;
/// Sizes of `nlmsghdr` and of `unix_diag_msg`, in bytes.
const HEADER: usize = 16;
const MESSAGE: usize = 16;

/// Inode of the peer of the Unix socket with this inode, in the network namespace of this process; `None`: it is not
/// connected, in another one, or this is unknown.
pub(super) fn peer(inode: u64) -> Option<u64> {
    let inode = u32::try_from(inode).ok()?;
    let mut answer = [0; 512];
    let length = ask(inode, &mut answer).ok()?;
    peer_in(answer.get(..length)?, inode)
}

/// Returns the length of the answer, which the kernel has written before the question is sent.
fn ask(inode: u32, answer: &mut [u8]) -> Result<usize> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG))?;
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &request(inode), SendFlags::empty(), &kernel)?;
    let (length, _) = recv(&socket, answer, RecvFlags::empty())?;
    Ok(length)
}

/// An `nlmsghdr`, and a `unix_diag_req` for one socket in any state, with any cookie.
fn request(inode: u32) -> Vec<u8> {
    let (unix, any) = ([1, 0, 0, 0], [u8::MAX; 4]);
    let [kind, flags] = [BY_FAMILY, REQUEST].map(u16::to_ne_bytes);
    let kind = [kind[0], kind[1], flags[0], flags[1]];
    let [inode, show] = [inode, SHOW_PEER].map(u32::to_ne_bytes);
    let rest = [kind, [0; 4], [0; 4], unix, any, inode, show, any, any];
    let length = 4 * (rest.len() as u32 + 1);
    [&length.to_ne_bytes(), rest.as_flattened()].concat()
}

/// The peer in an answer about the socket with this inode.
fn peer_in(answer: &[u8], inode: u32) -> Option<u64> {
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    if half(4)? != BY_FAMILY || word(HEADER + 4)? != inode {
        return None;
    }
    let mut at = HEADER + MESSAGE;
    loop {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        if kind == PEER {
            // 0: it is closed.
            return word(at + 4).map(u64::from).filter(|&it| it != 0);
        }
        // Attributes are aligned.
        at += length.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::blocked::files;

    #[test]
    fn peer_of_a_socket_is_the_other_end_of_its_pair() {
        let (one, other) = UnixStream::pair().unwrap();
        let inode = |of: &UnixStream| {
            let target = files::target(std::process::id(), of.as_raw_fd() as u32).unwrap();
            files::inode_of(&target, "socket").unwrap()
        };
        assert_eq!(peer(inode(&one)), Some(inode(&other)));
        let one = inode(&one);
        drop(other);
        assert_eq!(peer(one), None);
    }

    #[test]
    fn cut_answers_have_no_peer() {
        let mut answer = vec![0; HEADER + MESSAGE + 8];
        answer[4] = BY_FAMILY as u8;
        answer[HEADER + 4] = 7;
        answer[HEADER + MESSAGE] = 8;
        answer[HEADER + MESSAGE + 2] = PEER as u8;
        answer[HEADER + MESSAGE + 4] = 9;
        assert_eq!(peer_in(&answer, 7), Some(9));
        for length in 0..answer.len() {
            assert_eq!(peer_in(&answer[..length], 7), None, "{length}");
        }
    }
}
