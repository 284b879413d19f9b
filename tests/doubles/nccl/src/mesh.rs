//! Transport of a communicator: a connection between every two of its ranks.
//!
//! A thread per connection reads all messages into an inbox, so that writing never waits for the
//! peer.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crate::lock;

/// Maximum length of a valid message, in bytes.
const MAX_LENGTH: u64 = 1 << 32;
/// Stack size of a thread that reads messages.
const STACK: usize = 128 << 10;

/// Kind of a message. Messages between two ranks on one lane are received in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Lane {
    /// Split, shrink, finalize.
    Control,
    /// Directions in which two ranks connect.
    Connect,
    Collective,
    PointToPoint,
    /// Acknowledgement of a send.
    Received,
}

impl Lane {
    const ALL: [Self; 5] =
        [Self::Control, Self::Connect, Self::Collective, Self::PointToPoint, Self::Received];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Identifies the operation, as the sender sees it.
    pub(crate) tag: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Error of an aborted communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted;

#[derive(Debug, Default)]
struct Inbox {
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Arrived {
    messages: HashMap<(usize, Lane), VecDeque<Message>>,
    is_aborted: bool,
}

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct Mesh {
    rank: usize,
    /// Connections by rank; `None` for the rank itself.
    peers: Vec<Option<Mutex<TcpStream>>>,
    inbox: Arc<Inbox>,
}

impl Mesh {
    /// Connects to all ranks: to lower ranks at these ports, and from higher ranks.
    pub(crate) fn connect(
        listener: &TcpListener,
        ports: &[u16],
        rank: usize,
        key: u64,
    ) -> io::Result<Self> {
        let mut peers: Vec<Option<TcpStream>> = ports.iter().map(|_| None).collect();
        for (peer, port) in ports.iter().enumerate().take(rank) {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
            stream.write_all(&key.to_le_bytes())?;
            stream.write_all(&(rank as u64).to_le_bytes())?;
            peers[peer] = Some(stream);
        }
        let mut missing = ports.len() - 1 - rank;
        while missing > 0 {
            let (mut stream, _) = listener.accept()?;
            // Connections of other programs have another key, or none.
            let Ok(greeting) = numbers::<2>(&mut stream) else {
                continue;
            };
            let peer = usize::try_from(greeting[1]).unwrap_or(usize::MAX);
            if greeting[0] == key && peer > rank && peers.get(peer).is_some_and(Option::is_none) {
                peers[peer] = Some(stream);
                missing -= 1;
            }
        }
        let inbox = Arc::new(Inbox::default());
        for (peer, stream) in peers.iter().enumerate() {
            let Some(stream) = stream else { continue };
            stream.set_nodelay(true)?;
            let (stream, inbox) = (stream.try_clone()?, Arc::clone(&inbox));
            let thread = thread::Builder::new().name("nccl-double".into()).stack_size(STACK);
            thread.spawn(move || take_in(stream, peer, &inbox))?;
        }
        Ok(Self { rank, peers: peers.into_iter().map(|it| it.map(Mutex::new)).collect(), inbox })
    }

    /// Sends a message; it is lost if the rank is gone.
    pub(crate) fn send(&self, to: usize, lane: Lane, tag: u64, bytes: &[u8]) {
        match &self.peers[to] {
            Some(stream) => {
                let mut message = vec![lane as u8];
                message.extend_from_slice(&tag.to_le_bytes());
                message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                message.extend_from_slice(bytes);
                // An error means that the peer is gone.
                lock(stream).write_all(&message).ok();
            }
            None => self.inbox.put(self.rank, lane, Message { tag, bytes: bytes.to_vec() }),
        }
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.peers.len()).filter(|rank| *rank != self.rank)
    }

    /// Waits for the next message of a rank on a lane, for ever if none arrives.
    pub(crate) fn take(&self, from: usize, lane: Lane) -> Result<Message, Aborted> {
        self.take_any(&[from], lane).map(|(_, message)| message)
    }

    /// Waits for the next message of any of these ranks; returns the index into `from` and the
    /// message.
    pub(crate) fn take_any(&self, from: &[usize], lane: Lane) -> Result<(usize, Message), Aborted> {
        let mut arrived = lock(&self.inbox.arrived);
        loop {
            if arrived.is_aborted {
                return Err(Aborted);
            }
            for (i, rank) in from.iter().enumerate() {
                let messages = arrived.messages.get_mut(&(*rank, lane));
                if let Some(message) = messages.and_then(VecDeque::pop_front) {
                    return Ok((i, message));
                }
            }
            let waited = self.inbox.changed.wait(arrived);
            arrived = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until the communicator is aborted.
    pub(crate) fn hang(&self) -> Aborted {
        let arrived = lock(&self.inbox.arrived);
        let waited = self.inbox.changed.wait_while(arrived, |it| !it.is_aborted);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Aborted
    }

    /// Ends all waits of this rank and closes the connections.
    pub(crate) fn abort(&self) {
        lock(&self.inbox.arrived).is_aborted = true;
        self.inbox.changed.notify_all();
        for stream in self.peers.iter().flatten() {
            // Fails if the connection is already closed.
            lock(stream).shutdown(Shutdown::Both).ok();
        }
    }
}

impl Inbox {
    fn put(&self, from: usize, lane: Lane, message: Message) {
        let mut arrived = lock(&self.arrived);
        let messages = arrived.messages.entry((from, lane)).or_default();
        messages.push_back(message);
        self.changed.notify_all();
    }
}

/// Reads messages until the connection ends.
fn take_in(mut stream: TcpStream, from: usize, inbox: &Inbox) {
    while let Ok((lane, message)) = read(&mut stream) {
        inbox.put(from, lane, message);
    }
}

fn read(stream: &mut TcpStream) -> io::Result<(Lane, Message)> {
    let mut lane = [0];
    stream.read_exact(&mut lane)?;
    let lane =
        Lane::ALL.into_iter().find(|it| *it as u8 == lane[0]).ok_or(io::ErrorKind::InvalidData)?;
    let [tag, length] = numbers(stream)?;
    if length > MAX_LENGTH {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    let mut rest = Read::by_ref(stream).take(length);
    rest.read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((lane, Message { tag, bytes }))
}

/// Reads numbers of 64 bits.
pub(crate) fn numbers<const N: usize>(stream: &mut TcpStream) -> io::Result<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        *number = u64::from_le_bytes(bytes);
    }
    Ok(numbers)
}
