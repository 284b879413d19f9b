//! The process at the other end of a pipe or a socket.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ddp_doctor_host::proc;

use super::{files, unix_sockets};

/// Flags of a descriptor that may write, in octal, as in `/proc/PID/fdinfo`.
const WRITES: u32 = 0o3;
/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";
/// Maximum size of a table of connections, of any user, that is read: some 14 000 connections.
const MAX_TABLE: u64 = 2 << 20;
/// Maximum number of descriptors of other users' processes that one search reads: their users choose how many there are.
const MAX_FOREIGN: usize = 16_384;
/// Maximum number of descriptors of a process whose connections are listed.
const MAX_OWN: usize = 16_384;

/// The other end of a pipe or a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Of the pipe with this inode: the end that reads or, for `true`, the end that writes.
    Pipe(u64, bool),
    /// The socket with this inode.
    Socket(u64),
}

impl End {
    /// Processes that have this end, those of the user of `pid` first.
    pub(super) fn holders(self, pid: u32) -> impl Iterator<Item = u32> {
        let name = match self {
            Self::Pipe(inode, _) => format!("pipe:[{inode}]"),
            Self::Socket(inode) => format!("socket:[{inode}]"),
        };
        let is_it = move |other: u32, fd: &str| match self {
            Self::Pipe(_, end) => writes(other, fd) == Some(end),
            Self::Socket(_) => true,
        };
        search(pid, name, move |other, fds| fds.iter().any(|fd| is_it(other, fd)))
    }
}

/// Whether a descriptor may write.
fn writes(pid: u32, fd: &str) -> Option<bool> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    Some(u32::from_str_radix(flags.trim(), 8).ok()? & WRITES != 0)
}

/// The other end of a pipe.
pub(super) fn of_pipe(pid: u32, fd: u32, inode: u64) -> Option<End> {
    Some(End::Pipe(inode, !writes(pid, &fd.to_string())?))
}

/// The other end of a socket on this host, and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SocketEnd {
    /// The socket at the other end; of a connection that is not accepted, the one that listens.
    pub(super) end: Option<End>,
    /// Address of that end.
    pub(super) address: Option<String>,
    /// Whether nobody has accepted the connection.
    pub(super) is_waiting: bool,
}

/// The users of the sockets that listen at these addresses of this host.
pub fn listeners(is_wanted: impl Fn(SocketAddr) -> bool) -> Vec<u32> {
    let tables = tables(std::process::id());
    let mut owners = Vec::new();
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        // number: local address, remote address, state, queues, timer, retransmissions, user
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(local), Some(&state), Some(user)) = (words.get(1), words.get(3), words.get(7))
        else {
            continue;
        };
        let listens = state == LISTENING && address(local).is_some_and(&is_wanted);
        owners.extend(user.parse::<u32>().ok().filter(|_| listens));
    }
    owners
}

/// The other end of a socket.
pub(super) fn of_socket(pid: u32, inode: u64) -> SocketEnd {
    let sockets = sockets(pid);
    let Some(own) = sockets.iter().find(|it| it.inode == inode) else {
        let end = unix_sockets::peer(inode).map(End::Socket);
        return SocketEnd { end, ..SocketEnd::default() };
    };
    let address = Some(own.remote.to_string());
    let other = sockets.iter().find(|it| it.local == own.remote && it.remote == own.local);
    // Until it is accepted, a connection belongs to no process.
    let is_waiting = other.is_some_and(|it| it.inode == 0);
    let listens = || sockets.iter().find(|it| it.accepts(own.remote));
    let other = if is_waiting { listens() } else { other };
    SocketEnd { end: other.map(|it| End::Socket(it.inode)), address, is_waiting }
}

/// For each of these processes of this user, the others, by their places in the list, to which it has a TCP connection.
pub fn between(pids: &[u32]) -> Vec<Vec<usize>> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let mut tables: HashMap<PathBuf, Vec<Socket>> = HashMap::new();
    let mut ends: BTreeMap<(SocketAddr, SocketAddr, PathBuf), usize> = BTreeMap::new();
    for (at, &pid) in pids.iter().enumerate() {
        let Some(network) = namespace(pid) else { continue };
        let table = tables.entry(network.clone()).or_insert_with(|| sockets(pid));
        let own = inodes(pid);
        for it in table.iter().filter(|it| own.contains(&it.inode)) {
            // A loopback address of another namespace is another one.
            let is_loopback = it.local.ip().to_canonical().is_loopback();
            let place = if is_loopback { network.clone() } else { PathBuf::new() };
            ends.insert((it.local, it.remote, place), at);
        }
    }
    let mut found = vec![BTreeSet::new(); pids.len()];
    for ((local, remote, place), at) in &ends {
        if let Some(other) = ends.get(&(*remote, *local, place.clone())).filter(|it| *it != at) {
            found[*at].insert(*other);
        }
    }
    found.into_iter().map(|it| it.into_iter().collect()).collect()
}

/// The inodes of the sockets of a process.
fn inodes(pid: u32) -> HashSet<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = entries.take(MAX_OWN).filter_map(|it| fs::read_link(it.path()).ok());
    targets.filter_map(|it| files::inode_of(it.to_str()?, "socket")).collect()
}

/// The processes for which their descriptors of this object hold an end. Those of the user of `pid` come first.
fn search(
    pid: u32,
    name: String,
    is_end: impl Fn(u32, &[String]) -> bool,
) -> impl Iterator<Item = u32> {
    let user = proc::owner(pid);
    let mut all = proc::pids().unwrap_or_default();
    // Once for each: a process may end meanwhile.
    all.sort_by_cached_key(|&it| proc::owner(it) != user);
    let mut unlimited = usize::MAX;
    let mut left = MAX_FOREIGN;
    all.into_iter().filter(move |&it| {
        let left = if proc::owner(it) == user { &mut unlimited } else { &mut left };
        is_end(it, &descriptors(it, &name, left))
    })
}

/// Descriptors of a process that refer to this object, as far as `left` allows to read them.
fn descriptors(pid: u32, name: &str, left: &mut usize) -> Vec<String> {
    let mut found = Vec::new();
    let Some(entries) = (*left > 0).then(|| fs::read_dir(format!("/proc/{pid}/fd"))) else {
        return found;
    };
    for entry in entries.into_iter().flatten().flatten().take(*left) {
        *left -= 1;
        let is_it = fs::read_link(entry.path()).is_ok_and(|it| it.as_os_str() == name);
        found.extend(entry.file_name().into_string().ok().filter(|_| is_it));
    }
    found
}

/// A TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    inode: u64,
}

impl Socket {
    /// Whether it listens where connections to this address arrive.
    fn accepts(&self, address: SocketAddr) -> bool {
        let is_there = self.local.ip() == address.ip() || self.local.ip().is_unspecified();
        self.remote.port() == 0 && self.local.port() == address.port() && is_there
    }
}

/// The TCP connections in the network namespace of a process.
fn sockets(pid: u32) -> Vec<Socket> {
    tables(pid).iter().flat_map(|text| text.lines().skip(1).filter_map(socket)).collect()
}

/// The tables of TCP sockets in the network namespace of a process. Those that listen come first.
pub fn tables(pid: u32) -> [String; 2] {
    ["tcp", "tcp6"].map(|table| {
        let mut text = Vec::new();
        let file = File::open(format!("/proc/{pid}/net/{table}"));
        // What was read before an error counts.
        drop(file.and_then(|file| file.take(MAX_TABLE).read_to_end(&mut text)));
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// A line of `/proc/net/tcp` or `tcp6`.
fn socket(line: &str) -> Option<Socket> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(Socket {
        local: address(words.get(1)?)?,
        remote: address(words.get(2)?)?,
        inode: words.get(9)?.parse().ok()?,
    })
}

/// An address as words of the host's byte order: "0100007F:1F90". IPv4 addresses in IPv6 are IPv4.
pub fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let words: Option<Vec<u32>> = host
        .as_bytes()
        .chunks(8)
        .map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let host: IpAddr = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(bytes) => Ipv4Addr::from(bytes).into(),
        Err(_) => {
            IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?)).to_canonical()
        }
    };
    Some(SocketAddr::new(host, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, pipe};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use super::*;

    fn inode(fd: &impl AsRawFd, kind: &str) -> u64 {
        let target = files::target(std::process::id(), fd.as_raw_fd() as u32).unwrap();
        files::inode_of(&target, kind).unwrap()
    }

    fn holders(end: Option<End>) -> Vec<u32> {
        end.unwrap().holders(std::process::id()).collect()
    }

    #[test]
    fn address_of_the_other_end_of_a_connection_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pid = std::process::id();
        let waiting = of_socket(pid, inode(&client, "socket"));
        let (server, _) = listener.accept().unwrap();
        let accepted = of_socket(pid, inode(&client, "socket"));
        let address = Some(server.local_addr().unwrap().to_string());
        assert_eq!((&waiting.address, &accepted.address), (&address, &address));
        assert_eq!([waiting.is_waiting, accepted.is_waiting], [true, false]);
        assert_eq!(waiting.end, Some(End::Socket(inode(&listener, "socket"))));
        assert_eq!(holders(waiting.end), [pid]);
        assert_eq!(holders(accepted.end), [pid]);
    }

    #[test]
    fn processes_with_the_other_end_of_a_pipe_are_found() {
        let (reader, writer) = pipe().unwrap();
        let sleep = |stdout: PipeWriter| Command::new("sleep").arg("30").stdout(stdout).spawn();
        let mut children = [writer.try_clone().unwrap(), writer].map(|it| sleep(it).unwrap());
        let pid = std::process::id();
        let mut found = holders(of_pipe(pid, reader.as_raw_fd() as u32, inode(&reader, "pipe")));
        let mut expected: Vec<u32> = children.iter().map(std::process::Child::id).collect();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn descriptors_are_read_up_to_the_limit() {
        let (reader, _writer) = pipe().unwrap();
        let pid = std::process::id();
        let target = files::target(pid, reader.as_raw_fd() as u32).unwrap();
        let mut left = usize::MAX;
        assert_eq!(descriptors(pid, &target, &mut left).len(), 2);
        let mut left = 2;
        assert!(descriptors(pid, &target, &mut left).len() <= 2);
        assert_eq!(left, 0);
        assert_eq!(descriptors(pid, &target, &mut left), [""; 0]);
    }

    #[test]
    fn addresses_are_parsed() {
        assert_eq!(address("0100007F:1F90").unwrap().to_string(), "127.0.0.1:8080");
        let mapped = "0000000000000000FFFF00000100007F:0016";
        assert_eq!(address(mapped).unwrap().to_string(), "127.0.0.1:22");
        assert_eq!(address("x"), None);
    }
}
