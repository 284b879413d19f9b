//! Bootstrap of a new communicator: its ranks meet at the process that created the unique id.
//!
//! The id begins like NCCL's, with a random number and the socket address of the root.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::comm::Name;
use crate::identity;
use crate::mesh::{Mesh, numbers};
use crate::{Result, Status, refuse};

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId([u8; 128]);

/// `AF_INET`.
const INTERNET: u16 = 2;
/// Stack size of the root's thread.
const STACK: usize = 128 << 10;
/// Read timeout of the root for a connection without data.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of ranks in a communicator.
pub(crate) const MAX_RANKS: usize = 1024;

impl UniqueId {
    /// Creates an id and waits for its ranks in a thread.
    pub(crate) fn new() -> io::Result<Self> {
        // The only source of randomness in the standard library.
        Self::that_begins(RandomState::new().hash_one(std::process::id()))
    }

    /// Like [`Self::new`], with a given first number.
    pub(crate) fn that_begins(magic: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let mut id = [0; 128];
        id[..8].copy_from_slice(&magic.to_le_bytes());
        id[8..10].copy_from_slice(&INTERNET.to_ne_bytes());
        id[10..12].copy_from_slice(&port.to_be_bytes());
        id[12..16].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
        let thread = thread::Builder::new().name("nccl-root".into()).stack_size(STACK);
        thread.spawn(move || serve(&listener, magic))?;
        Ok(Self(id))
    }

    pub(crate) fn magic(&self) -> u64 {
        identity::magic_of(&self.0)
    }

    /// Name of the communicator that is created with this id.
    pub(crate) fn name(&self) -> Name {
        Name { hash: identity::of_unique_id(&self.0), magic: self.magic() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    fn root(&self) -> (Ipv4Addr, u16) {
        let [a, b, c, d] = [self.0[12], self.0[13], self.0[14], self.0[15]];
        let port = u16::from_be_bytes([self.0[10], self.0[11]]);
        (Ipv4Addr::new(a, b, c, d), port)
    }
}

/// Waits for all ranks and sends each the ports of the others. If ranks contradict one another, all
/// connections are closed.
fn serve(listener: &TcpListener, magic: u64) {
    let mut ranks: Vec<Option<(TcpStream, u64)>> = Vec::new();
    let mut missing = usize::MAX;
    while missing > 0 {
        let Ok((mut stream, _)) = listener.accept() else {
            return;
        };
        // A connection without data must not block the ranks.
        stream.set_read_timeout(Some(PATIENCE)).ok();
        let Ok([key, count, rank, port]) = numbers(&mut stream) else {
            continue;
        };
        let (Ok(count), Ok(rank)) = (usize::try_from(count), usize::try_from(rank)) else {
            continue;
        };
        if key != magic || count > MAX_RANKS {
            continue;
        }
        if ranks.is_empty() {
            ranks.resize_with(count, || None);
            missing = count;
        }
        let is_new = ranks.len() == count && ranks.get(rank).is_some_and(Option::is_none);
        if !is_new {
            return;
        }
        ranks[rank] = Some((stream, port));
        missing -= 1;
    }
    let ports = ranks.iter().flatten().map(|(_, port)| *port);
    let table: Vec<u8> = ports.flat_map(u64::to_le_bytes).collect();
    for (stream, _) in ranks.iter_mut().flatten() {
        // If the rank is gone, the others fail to connect to it.
        stream.write_all(&table).ok();
    }
}

/// Joins a communicator; blocks until all ranks have joined.
pub(crate) fn join(id: &UniqueId, ranks: usize, rank: usize) -> Result<Mesh> {
    let meet = || -> io::Result<Mesh> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let mut root = TcpStream::connect(id.root())?;
        for number in [id.magic(), ranks as u64, rank as u64, u64::from(port)] {
            root.write_all(&number.to_le_bytes())?;
        }
        let mut ports = Vec::with_capacity(ranks);
        for _ in 0..ranks {
            let [port] = numbers(&mut root)?;
            ports.push(u16::try_from(port).map_err(io::Error::other)?);
        }
        Mesh::connect(&listener, &ports, rank, id.magic())
    };
    meet().or_else(|e| match e.kind() {
        // The root has exited, or the ranks contradict one another.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            refuse(Status::REMOTE_ERROR, "bootstrap: the root has closed the connection".into())
        }
        _ => refuse(Status::SYSTEM_ERROR, format!("bootstrap: {e}")),
    })
}
