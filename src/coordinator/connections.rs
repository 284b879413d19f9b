//! Connections to the coordinator: permission, limits and time limit of the first request.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ddp_doctor_host::log::UserLog;
use ddp_doctor_transport::handshakes::{Handshake, Handshakes, Host, MAX_HANDSHAKES};
use ddp_doctor_transport::{Keys, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// A connection on which no request arrives within this time is closed. Afterwards the keepalive of
/// HTTP/2 closes it when the peer stops answering.
pub(super) const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Maximum number of connections per process of this machine.
const MAX_PER_PROCESS: usize = 32;
/// Maximum number of connections per other machine, on which each rank may have its own `run`.
const MAX_PER_HOST: usize = 256;
/// Bytes of unfinished messages that all connections may hold together. Beyond it, a connection that
/// holds more than its share is closed.
const UNFINISHED: usize = 256 << 20;
/// The share of a connection: more than a node's usual batch.
const UNFINISHED_SHARE: usize = 1 << 20;
/// Bytes around a message, in frames of HTTP/2: more than usual, so that a connection that lasts does
/// not seem to hold them.
const OVERHEAD: usize = 64;
/// Connections may use the descriptor limit divided by this. The rest is for black boxes, journals
/// and reports.
const DESCRIPTOR_SHARE: usize = 4;
/// Bounds of the total number of connections, independent of the descriptor limit.
const CONNECTIONS: (usize, usize) = (4, 8192);
/// Pause before the next `accept` after one failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Where a coordinator accepts connections.
#[derive(Debug)]
pub struct Listeners {
    /// For processes of this machine.
    pub local: Option<StdUnixListener>,
    /// For other machines, with the keys of this job.
    pub remote: Option<(std::net::TcpListener, Keys)>,
}

/// Which connections are accepted.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// User whose processes may connect. Root always may.
    pub user: u32,
    /// Limit of open descriptors of this process.
    pub descriptors: usize,
}

impl Access {
    fn permits(self, peer: u32) -> bool {
        peer == self.user || peer == 0
    }

    fn connections(self) -> usize {
        (self.descriptors / DESCRIPTOR_SHARE).clamp(CONNECTIONS.0, CONNECTIONS.1)
    }
}

/// Accepts connections until the receiver is dropped.
pub(super) fn accept(
    listeners: Listeners,
    access: Access,
    log: UserLog,
) -> io::Result<ReceiverStream<io::Result<Connection>>> {
    let (accepted, connections) = mpsc::channel(1);
    let open = Arc::new(Open::default());
    if let Some(listener) = listeners.local {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        tokio::spawn(accept_local(listener, access, Arc::clone(&open), accepted.clone()));
    }
    if let Some((listener, keys)) = listeners.remote {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(accept_remote(listener, keys, access, log, open, accepted));
    }
    Ok(ReceiverStream::new(connections))
}

async fn accept_local(
    listener: UnixListener,
    access: Access,
    open: Arc<Open>,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    loop {
        let next = tokio::select! {
            next = listener.accept() => next,
            () = accepted.closed() => return,
        };
        let Ok((stream, _)) = next else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(connection) = admit(stream, access, &open) else {
            continue;
        };
        if accepted.send(Ok(connection)).await.is_err() {
            return;
        }
    }
}

/// Checks permission and limits; `None` closes the connection.
fn admit(stream: UnixStream, access: Access, open: &Arc<Open>) -> Option<Connection> {
    let peer = stream.peer_cred().ok()?;
    if !access.permits(peer.uid()) {
        return None;
    }
    // A process in another PID namespace has no pid here: all of them count as one.
    let peer = Peer::Process(peer.pid().unwrap_or(0));
    let slot = Open::take(open, peer, MAX_PER_PROCESS, access.connections())?;
    Some(Connection::new(Box::new(stream), slot))
}

async fn accept_remote(
    listener: TcpListener,
    keys: Keys,
    access: Access,
    log: UserLog,
    open: Arc<Open>,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let handshakes = Handshakes::new(MAX_HANDSHAKES.min(access.connections()));
    let mut is_reported = false;
    loop {
        let next = tokio::select! {
            next = listener.accept() => next,
            () = accepted.closed() => return,
        };
        let Ok((stream, address)) = next else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (handshake, replaced) = handshakes.begin(Host::of_peer(address));
        if let Some(host) = replaced.filter(|_| !is_reported) {
            is_reported = true;
            log.print(&too_many_handshakes(host));
        }
        let peer = Peer::Host(address.ip().to_canonical());
        let (keys, open, accepted) = (keys.clone(), Arc::clone(&open), accepted.clone());
        tokio::spawn(async move {
            let connection = authenticate(stream, handshake, peer, &keys, access, &open).await;
            if let Some(connection) = connection {
                // An error means that the server has ended.
                drop(accepted.send(Ok(connection)).await);
            }
        });
    }
}

fn too_many_handshakes(host: Host) -> String {
    format!(
        "too many connections have not presented the token, most of them from {host}: the oldest of them are closed, \
         others are still accepted"
    )
}

/// Checks that the peer knows the token; `None` closes the connection.
async fn authenticate(
    stream: TcpStream,
    handshake: Handshake,
    peer: Peer,
    keys: &Keys,
    access: Access,
    open: &Arc<Open>,
) -> Option<Connection> {
    let stream: Box<dyn Stream> = Box::new(handshake.complete(keys.accept(stream)).await.ok()?);
    let slot = Open::take(open, peer, MAX_PER_HOST, access.connections())?;
    Some(Connection::new(stream, slot))
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A process of this machine, by its pid.
    Process(i32),
    /// Another machine.
    Host(IpAddr),
}

/// Open connections.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// Their number by peer.
    counts: Mutex<HashMap<Peer, usize>>,
    /// Bytes of their unfinished messages.
    unfinished: Arc<AtomicUsize>,
}

impl Open {
    /// Takes a slot for a connection; `None`: a limit is reached.
    pub(crate) fn take(
        open: &Arc<Self>,
        peer: Peer,
        per_peer: usize,
        limit: usize,
    ) -> Option<Slot> {
        let mut counts = open.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = counts.values().sum();
        let count = counts.entry(peer).or_default();
        if total >= limit || *count >= per_peer.min(limit / 2) {
            if *count == 0 {
                counts.remove(&peer);
            }
            return None;
        }
        *count += 1;
        let open = Arc::clone(open);
        Some(Slot { open, peer })
    }
}

/// One open connection in the count.
#[derive(Debug)]
pub(crate) struct Slot {
    open: Arc<Open>,
    peer: Peer,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.open.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

/// What has arrived on a connection. Services find it in the extensions of a request.
#[derive(Clone, Debug)]
pub(super) struct Traffic(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    /// Whether a request has arrived.
    requested: AtomicBool,
    /// Bytes that have arrived and are not part of a complete message.
    unfinished: AtomicUsize,
    /// The same of all connections.
    all_unfinished: Arc<AtomicUsize>,
}

impl Traffic {
    fn new(all_unfinished: Arc<AtomicUsize>) -> Self {
        Self(Arc::new(Counts {
            requested: AtomicBool::new(false),
            unfinished: AtomicUsize::new(0),
            all_unfinished,
        }))
    }

    /// Lifts the deadline of the first request.
    pub(super) fn requested(&self) {
        self.0.requested.store(true, Ordering::Relaxed);
    }

    /// Notes that a message of this many bytes is complete.
    pub(super) fn finished(&self, bytes: usize) {
        let counts = &self.0;
        let bytes = bytes.saturating_add(OVERHEAD);
        let rest = |held: usize| Some(held.saturating_sub(bytes));
        let held = counts.unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        let given_back = held.map_or(0, |held| held.min(bytes));
        counts.all_unfinished.fetch_sub(given_back, Ordering::Relaxed);
    }

    /// Counts bytes that arrived; false: the connection holds too much.
    fn received(&self, bytes: usize) -> bool {
        let counts = &self.0;
        let own = counts.unfinished.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = counts.all_unfinished.fetch_add(bytes, Ordering::Relaxed) + bytes;
        all <= UNFINISHED || own <= UNFINISHED_SHARE
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        let bytes = *self.unfinished.get_mut();
        self.all_unfinished.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A connection of a permitted process.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    traffic: Traffic,
    /// `None` once a request has arrived.
    deadline: Option<Pin<Box<Sleep>>>,
    _slot: Slot,
}

impl Connection {
    fn new(stream: Box<dyn Stream>, slot: Slot) -> Self {
        let deadline = Instant::now() + FIRST_REQUEST;
        Self {
            stream,
            traffic: Traffic::new(Arc::clone(&slot.open.unfinished)),
            deadline: Some(Box::pin(tokio::time::sleep_until(deadline))),
            _slot: slot,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Traffic;

    fn connect_info(&self) -> Traffic {
        self.traffic.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.traffic.0.requested.load(Ordering::Relaxed) {
            self.deadline = None;
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.traffic.received(buffer.filled().len() - before) {
            read
        } else {
            Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()))
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_by_peer_and_in_total() {
        let open = Arc::new(Open::default());
        let take = |pid| Open::take(&open, Peer::Process(pid), MAX_PER_PROCESS, 100);
        let mut slots: Vec<Slot> = (0..MAX_PER_PROCESS).map(|_| take(1).unwrap()).collect();
        assert!(take(1).is_none());
        let host = Peer::Host([10, 0, 0, 1].into());
        slots.push(Open::take(&open, host, MAX_PER_HOST, 100).unwrap());
        slots.extend((2..=68).map(|process| take(process).unwrap()));
        assert!(take(1000).is_none());
        drop(slots);
        assert!(open.counts.lock().unwrap().is_empty());
        assert!(take(1).is_some());
    }

    #[test]
    fn connection_above_its_share_is_closed_if_all_hold_too_much() {
        let all = Arc::new(AtomicUsize::new(0));
        let hoarder = Traffic::new(Arc::clone(&all));
        assert!(hoarder.received(UNFINISHED));
        let usual = Traffic::new(Arc::clone(&all));
        assert!(usual.received(UNFINISHED_SHARE));
        assert!(!hoarder.received(1));
        drop(hoarder);
        assert_eq!(all.load(Ordering::Relaxed), UNFINISHED_SHARE);
        usual.finished(UNFINISHED_SHARE - 1);
        usual.finished(1);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn only_the_user_and_root_may_connect() {
        let access = Access { user: 1000, descriptors: 1024 };
        assert!(access.permits(1000) && access.permits(0));
        assert!(!access.permits(1001));
        assert!(access.connections() < access.descriptors / 2);
    }
}
