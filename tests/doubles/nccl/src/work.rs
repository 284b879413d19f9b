//! The work of calls, run by a stream for a communicator.

use std::sync::Arc;
use std::thread;

use crate::arithmetic::{self, DataType, Reduction};
use crate::comm::{Comm, Factor};
use crate::fault::InStream;
use crate::mesh::{Aborted, Lane, Mesh};
use crate::pointers::Buffer;

/// The work of one launch: the calls of a group on one communicator.
#[derive(Debug)]
pub(crate) struct Work {
    comm: Arc<Comm>,
    calls: Vec<(Call, InStream)>,
    /// Position in the communicator's order; captured work gets one each time it runs.
    ticket: Option<u64>,
}

/// A call with checked arguments.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Collective(Collective),
    Send(Transfer),
    Receive(Transfer),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) buffer: Buffer,
    pub(crate) bytes: usize,
    pub(crate) peer: usize,
}

/// A collective. `bytes` is the size of a rank's input; for a reduce-scatter and a scatter, of its
/// output; for an all-to-all, of the part for each rank.
#[derive(Clone, Debug)]
pub(crate) struct Collective {
    pub(crate) kind: Kind,
    pub(crate) input: Buffer,
    pub(crate) output: Buffer,
    pub(crate) bytes: usize,
    pub(crate) dtype: DataType,
    pub(crate) reduction: Reduction,
    pub(crate) factor: Option<Factor>,
}

/// Operation and root of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast(usize),
    Reduce(usize),
    AllToAll,
    Gather(usize),
    Scatter(usize),
}

impl Kind {
    fn number(self) -> u64 {
        match self {
            Self::AllReduce => 0,
            Self::AllGather => 1,
            Self::ReduceScatter => 2,
            Self::Broadcast(_) => 3,
            Self::Reduce(_) => 4,
            Self::AllToAll => 5,
            Self::Gather(_) => 6,
            Self::Scatter(_) => 7,
        }
    }
}

impl Call {
    /// Peer and direction of the required connection: 1 to send, 2 to receive.
    pub(crate) fn connection(&self) -> Option<(usize, u8)> {
        match self {
            Self::Collective(_) => None,
            Self::Send(transfer) => Some((transfer.peer, 1)),
            Self::Receive(transfer) => Some((transfer.peer, 2)),
        }
    }

    /// Sort key of a call in its group, as in NCCL: the largest collectives first.
    pub(crate) fn order(&self) -> impl Ord + use<> {
        match self {
            Self::Collective(it) => (0, usize::MAX - it.bytes, Some((it.kind, it.dtype))),
            Self::Send(_) | Self::Receive(_) => (1, 0, None),
        }
    }
}

impl Work {
    pub(crate) fn new(comm: Arc<Comm>, calls: Vec<(Call, InStream)>, is_captured: bool) -> Self {
        let ticket = (!is_captured).then(|| comm.ticket());
        Self { comm, calls, ticket }
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.ticket.is_none()
    }

    /// Runs the work in the thread of the stream.
    pub(crate) fn run(&self) {
        let ticket = self.ticket.unwrap_or_else(|| self.comm.ticket());
        if self.comm.wait_for_turn(ticket).is_ok() {
            // An abort discards the results.
            self.carry_out().ok();
        }
        self.comm.is_done();
    }

    fn carry_out(&self) -> Result<(), Aborted> {
        let Ok(mesh) = self.comm.mesh() else {
            return Err(Aborted);
        };
        for (_, fault) in &self.calls {
            thread::sleep(fault.delay);
            if fault.reports.is_some() {
                self.comm.set_error(fault.reports);
            }
            if fault.hangs || fault.reports.is_some() {
                return Err(mesh.hang());
            }
        }
        for (call, _) in &self.calls {
            if let Call::Send(it) = call {
                let bytes = it.buffer.read(it.bytes);
                mesh.send(it.peer, Lane::PointToPoint, 0, &bytes);
            }
        }
        for (call, _) in &self.calls {
            if let Call::Collective(it) = call {
                collective(&self.comm, mesh, it)?;
            }
        }
        self.receive(mesh)?;
        for (call, _) in &self.calls {
            if let Call::Send(it) = call {
                mesh.take(it.peer, Lane::Received)?;
            }
        }
        Ok(())
    }

    /// Receives messages as they arrive; those of one peer in the order of the calls.
    fn receive(&self, mesh: &Mesh) -> Result<(), Aborted> {
        let calls = self.calls.iter().filter_map(|(call, _)| match call {
            Call::Receive(it) => Some(*it),
            _ => None,
        });
        let mut open: Vec<Transfer> = calls.collect();
        while !open.is_empty() {
            let peers: Vec<usize> = open.iter().map(|it| it.peer).collect();
            let (first, message) = mesh.take_any(&peers, Lane::PointToPoint)?;
            let transfer = open.remove(first);
            if message.bytes.len() != transfer.bytes {
                return Err(mesh.hang());
            }
            transfer.buffer.write(0, &message.bytes);
            mesh.send(transfer.peer, Lane::Received, 0, &[]);
        }
        Ok(())
    }
}

/// Sends this rank's part to the ranks that need it, and receives the parts that it needs.
fn collective(comm: &Comm, mesh: &Mesh, it: &Collective) -> Result<(), Aborted> {
    let (me, ranks) = (comm.rank, comm.ranks);
    // Different collectives have different tags.
    let tag = comm.next_collective() << 3 | it.kind.number();
    let take = |from: usize| {
        let message = mesh.take(from, Lane::Collective)?;
        if (message.tag, message.bytes.len()) == (tag, it.bytes) {
            return Ok(message.bytes);
        }
        // The peer does something else: neither call completes.
        Err(mesh.hang())
    };
    let given = |bytes: usize| {
        let mut given = it.input.read(bytes);
        let factor = it.factor.as_ref().map(|factor| match factor {
            Factor::Value(bytes) => bytes.clone(),
            Factor::InMemory(buffer) => buffer.read(it.dtype.size()),
        });
        if let Some(factor) = factor {
            arithmetic::scale(it.dtype, &mut given, &factor);
        }
        given
    };
    let to_all = |bytes: &[u8]| {
        for peer in mesh.others() {
            mesh.send(peer, Lane::Collective, tag, bytes);
        }
    };
    // One part from every rank, including this one.
    let take_all = |mine: Vec<u8>| -> Result<Vec<Vec<u8>>, Aborted> {
        let part = |rank| {
            if rank == me { Ok(mine.clone()) } else { take(rank) }
        };
        (0..ranks).map(part).collect()
    };
    match it.kind {
        Kind::AllReduce => {
            let mine = given(it.bytes);
            to_all(&mine);
            let parts = take_all(mine)?;
            it.output.write(0, &arithmetic::reduce(it.dtype, it.reduction, &parts));
        }
        Kind::AllGather => {
            let mine = given(it.bytes);
            to_all(&mine);
            for (rank, part) in take_all(mine)?.iter().enumerate() {
                it.output.write(rank * it.bytes, part);
            }
        }
        Kind::ReduceScatter => {
            let mine = given(it.bytes * ranks);
            let part = |rank: usize| &mine[rank * it.bytes..(rank + 1) * it.bytes];
            for peer in mesh.others() {
                mesh.send(peer, Lane::Collective, tag, part(peer));
            }
            let parts = take_all(part(me).to_vec())?;
            it.output.write(0, &arithmetic::reduce(it.dtype, it.reduction, &parts));
        }
        Kind::Broadcast(root) if root == me => {
            let mine = given(it.bytes);
            to_all(&mine);
            it.output.write(0, &mine);
        }
        Kind::Broadcast(root) => it.output.write(0, &take(root)?),
        Kind::Reduce(root) if root == me => {
            let parts = take_all(given(it.bytes))?;
            it.output.write(0, &arithmetic::reduce(it.dtype, it.reduction, &parts));
        }
        Kind::Reduce(root) => mesh.send(root, Lane::Collective, tag, &given(it.bytes)),
        Kind::AllToAll => {
            let mine = given(it.bytes * ranks);
            let part = |rank: usize| &mine[rank * it.bytes..(rank + 1) * it.bytes];
            for peer in mesh.others() {
                mesh.send(peer, Lane::Collective, tag, part(peer));
            }
            for (rank, part) in take_all(part(me).to_vec())?.iter().enumerate() {
                it.output.write(rank * it.bytes, part);
            }
        }
        Kind::Gather(root) if root == me => {
            for (rank, part) in take_all(given(it.bytes))?.iter().enumerate() {
                it.output.write(rank * it.bytes, part);
            }
        }
        Kind::Gather(root) => mesh.send(root, Lane::Collective, tag, &given(it.bytes)),
        Kind::Scatter(root) if root == me => {
            let mine = given(it.bytes * ranks);
            let part = |rank: usize| &mine[rank * it.bytes..(rank + 1) * it.bytes];
            for peer in mesh.others() {
                mesh.send(peer, Lane::Collective, tag, part(peer));
            }
            it.output.write(0, part(me));
        }
        Kind::Scatter(root) => it.output.write(0, &take(root)?),
    }
    Ok(())
}
