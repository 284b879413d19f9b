//! Calls and their groups.

use std::sync::Arc;

use ddp_doctor_proto::report::{GroupRef, Timestamp, Where};
use ddp_doctor_proto::{DType, Op, ReduceOp};

use super::{CallId, ThreadId};

/// A process group as known to one of its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupInfo {
    /// Identity of the group, equal on all members.
    pub key: GroupRef,
    /// Description given by the framework, such as "`default_pg`".
    pub description: Arc<str>,
    /// "gloo", "nccl", …
    pub backend: Arc<str>,
    /// Position in the group, if the process does not know the members; `key.members` is empty
    /// then. The model never receives such a group: see [`crate::input::roster`].
    pub seat: Option<Seat>,
    /// What the evidence does not state about the group.
    pub unstated: Unstated,
}

/// What evidence does not state about a group, such as the text of a log. The engine needs it to match
/// calls; findings do not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unstated {
    /// Its name.
    pub name: bool,
    /// The sequence numbers of its calls.
    pub numbers: bool,
    /// Its members, except for the ranks that the evidence names.
    pub members: bool,
}

impl GroupInfo {
    /// The first group of c10d with this name.
    pub fn c10d(
        name: &str,
        description: impl Into<Arc<str>>,
        backend: impl Into<Arc<str>>,
        members: Vec<u32>,
    ) -> Self {
        Self {
            key: GroupRef {
                layer: "c10d".into(),
                epoch: 0,
                name: name.into(),
                ordinal: 0,
                members,
            },
            description: description.into(),
            backend: backend.into(),
            seat: None,
            unstated: Unstated::default(),
        }
    }
}

/// Position of a process in a group whose members it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Rank within the group.
    pub rank: u32,
    /// Number of members.
    pub size: u32,
}

/// How a call was enqueued on a stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnStream {
    /// Identifies the stream within its process. Operations on a stream run in order.
    pub stream: u64,
    /// Calls with the same number were launched together, without an order; 0: launched alone.
    pub launch: u32,
}

/// The contents of a call as reported by the layer below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerCall {
    /// Operation in that layer.
    pub op: Op,
    /// Reduction operator.
    pub reduce_op: ReduceOp,
    /// Global rank of the root.
    pub root: Option<u32>,
    /// Stream that it was enqueued on.
    pub on_stream: Option<OnStream>,
}

/// A network transfer that belongs to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    /// Group rank of the peer.
    pub peer: u32,
    /// Whether it sends.
    pub is_send: bool,
    /// Channel of the communicator.
    pub channel: u32,
}

/// Progress of a stalled transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalledTransfer {
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Completed steps.
    pub done: u64,
    /// Total number of steps.
    pub steps: u64,
}

/// What a stalled transfer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// The network.
    Network,
    /// The other rank.
    Peer,
    /// The local device.
    Device,
    /// Not reported.
    Unknown,
}

/// A call as issued by one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Identifies it within its process.
    pub id: CallId,
    /// Time the call was issued, coordinator clock.
    pub at: Timestamp,
    /// Thread that issued it.
    pub thread: ThreadId,
    /// Group; `None` for calls outside any group (initialization, …). For a call that creates a
    /// group, the group to be created.
    pub group: Option<Arc<GroupInfo>>,
    /// 1-based sequence number in the group; 0: none. Point-to-point calls count per peer and
    /// direction.
    pub seq: u64,
    /// Operation.
    pub op: Op,
    /// Element type.
    pub dtype: DType,
    /// Reduction operator.
    pub reduce_op: ReduceOp,
    /// Global rank of the root.
    pub root: Option<u32>,
    /// Global rank of the peer.
    pub peer: Option<u32>,
    /// Tag of a point-to-point call.
    pub tag: Option<i32>,
    /// Elements of the tensor that sizes are compared by: the first input, or the first output
    /// where the inputs are a list (`reduce_scatter`, `scatter`).
    pub numel: Option<u64>,
    /// For an operation that gathers or scatters pieces: elements of all pieces together, if
    /// recorded. On some backends the pieces of ranks may differ; the whole may not.
    pub whole: Option<u64>,
    /// Shape of that tensor.
    pub shape: Option<Vec<u32>>,
    /// Number of tensors.
    pub tensors: u32,
    /// For a call that creates a group: it is known to block until all members make it.
    pub takes_all: bool,
    /// The caller asked not to wait for it.
    pub is_async: bool,
    /// Stream that it was enqueued on, if recorded.
    pub on_stream: Option<OnStream>,
    /// Its contents in the layer below, if reported.
    pub lower_call: Option<Arc<LowerCall>>,
    /// Issued by the framework (DDP's reducer, …), not by the user's program.
    pub hidden: bool,
    /// Split sizes of an `all_to_all` in elements, input and output, if recorded: one per member, or
    /// one alone, a total that is divided evenly.
    pub splits: [Vec<u32>; 2],
    /// Training step in which it was issued; 0: before the first.
    pub step: u64,
    /// Phase in which it was issued.
    pub phase: Option<Arc<str>>,
    /// Line in the user's program.
    pub place: Option<Arc<Where>>,
}

impl Call {
    /// A call of one tensor outside any group, of which nothing else is known.
    pub fn new(id: CallId, at: Timestamp, thread: ThreadId, op: Op) -> Self {
        Self { id, at, thread, op, tensors: 1, ..Self::default() }
    }

    /// Whether it is a call by which DDP averages gradients.
    pub fn is_bucket(&self) -> bool {
        self.hidden && self.op == Op::AllReduce
    }

    /// Sequence number in its group, if the evidence states it.
    pub fn stated_seq(&self) -> Option<u64> {
        let is_unstated = self.group.as_ref().is_some_and(|group| group.unstated.numbers);
        Some(self.seq).filter(|&seq| seq > 0 && !is_unstated)
    }

    /// Bytes that a rank contributes, if known.
    pub fn bytes(&self) -> Option<u64> {
        let numel = self.numel.filter(|_| self.tensors <= 1)?;
        numel.checked_mul(self.dtype.size()?)
    }

    /// Whether the call differs from another one in its time, number, thread and step only.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self { id, at, thread, seq, step, .. } = *other;
        Self { id, at, thread, seq, step, ..self.clone() } == *other
    }

    /// The reduction operator from the layer that reported it. Layers may name one reduction
    /// differently (c10d sums bools, NCCL takes their maximum): compare only operators of the same
    /// layer.
    pub fn known_reduce_op(&self) -> ReduceOp {
        match self.reduce_op {
            ReduceOp::Unspecified => self.lower_reduce_op().unwrap_or_default(),
            own => own,
        }
    }

    /// The reduction operator in the layer below, if its operation is the same as that of the call.
    pub fn lower_reduce_op(&self) -> Option<ReduceOp> {
        let lower_call = self.lower_call.as_ref().filter(|it| it.op == self.op)?;
        Some(lower_call.reduce_op)
    }

    /// The call with the contents that the layer below reported.
    pub fn made_of(&self, lower_call: &Arc<LowerCall>) -> Self {
        let mut call = self.clone();
        if lower_call.op == call.op {
            call.root = call.root.or(lower_call.root);
        }
        call.on_stream = call.on_stream.or(lower_call.on_stream);
        call.lower_call = Some(Arc::clone(lower_call));
        call
    }

    /// Stream that the call occupies, so that later operations wait for it; `None`: not enqueued on
    /// one, or not recorded.
    pub fn queued_on(&self) -> Option<OnStream> {
        // All calls of c10d on NCCL do, whether or not the caller waits for them.
        self.on_stream.filter(|_| !self.is_async || self.lower_call.is_some())
    }
}
