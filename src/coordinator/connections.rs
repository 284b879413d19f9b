//! Connections to the coordinator: permission, limits and time limit of the first request.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// A connection on which no request arrives within this time is closed. Afterwards the keepalive of
/// HTTP/2 closes it when the peer stops answering.
pub(super) const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Maximum number of connections per process.
const MAX_PER_PROCESS: usize = 32;
/// Connections may use the descriptor limit divided by this. The rest is for black boxes, journals
/// and reports.
const DESCRIPTOR_SHARE: usize = 4;
/// Bounds of the total number of connections, independent of the descriptor limit.
const CONNECTIONS: (usize, usize) = (4, 8192);
/// Pause before the next `accept` after one failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

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
    listener: UnixListener,
    access: Access,
) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        let open = Arc::new(Open::default());
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
    });
    ReceiverStream::new(connections)
}

/// Checks permission and limits; `None` closes the connection.
fn admit(stream: UnixStream, access: Access, open: &Arc<Open>) -> Option<Connection> {
    let peer = stream.peer_cred().ok()?;
    if !access.permits(peer.uid()) {
        return None;
    }
    // A process in another PID namespace has no pid here: all of them count as one.
    let slot = Open::take(open, peer.pid().unwrap_or(0), access.connections())?;
    Some(Connection {
        stream,
        requested: Requested::default(),
        deadline: Some(Box::pin(tokio::time::sleep_until(
            Instant::now() + FIRST_REQUEST,
        ))),
        _slot: slot,
    })
}

/// Number of open connections by process.
#[derive(Debug, Default)]
struct Open(Mutex<HashMap<i32, usize>>);

impl Open {
    fn take(open: &Arc<Self>, process: i32, limit: usize) -> Option<Slot> {
        let mut counts = open.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = counts.values().sum();
        let count = counts.entry(process).or_default();
        if total >= limit || *count >= MAX_PER_PROCESS.min(limit / 2) {
            if *count == 0 {
                counts.remove(&process);
            }
            return None;
        }
        *count += 1;
        let open = Arc::clone(open);
        Some(Slot { open, process })
    }
}

/// One open connection in the count.
#[derive(Debug)]
struct Slot {
    open: Arc<Open>,
    process: i32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.open.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.process) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.process);
            }
        }
    }
}

/// Whether a request has arrived on a connection. Services find it in the extensions of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Requested(Arc<AtomicBool>);

impl Requested {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection of a permitted process.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    requested: Requested,
    /// `None` once a request has arrived.
    deadline: Option<Pin<Box<Sleep>>>,
    _slot: Slot,
}

impl Connected for Connection {
    type ConnectInfo = Requested;

    fn connect_info(&self) -> Requested {
        self.requested.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.requested.0.load(Ordering::Relaxed) {
            self.deadline = None;
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
    fn connections_are_limited_by_process_and_in_total() {
        let open = Arc::new(Open::default());
        let mut slots: Vec<Slot> = (0..MAX_PER_PROCESS)
            .map(|_| Open::take(&open, 1, 100).unwrap())
            .collect();
        assert!(Open::take(&open, 1, 100).is_none());
        slots.extend((2..=69).map(|process| Open::take(&open, process, 100).unwrap()));
        assert!(Open::take(&open, 1000, 100).is_none());
        drop(slots);
        assert!(open.0.lock().unwrap().is_empty());
        assert!(Open::take(&open, 1, 100).is_some());
    }

    #[test]
    fn only_the_user_and_root_may_connect() {
        let access = Access {
            user: 1000,
            descriptors: 1024,
        };
        assert!(access.permits(1000) && access.permits(0));
        assert!(!access.permits(1001));
        assert!(access.connections() < access.descriptors / 2);
    }
}
