//! Guards for a call: from its issue to the end of its waits.

use std::panic::Location;

use ddp_doctor_proto::blackbox::{Call, flags};
use ddp_doctor_proto::{DType, Op, ReduceOp};

use crate::blackbox::Writer;
use crate::current::{current, is_current};

/// Describes a call that is about to be made.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is recorded before `issue`"]
pub struct CallBuilder {
    call: Call,
    place: &'static Location<'static>,
}

impl CallBuilder {
    pub(crate) fn new(group: u32, op: Op, place: &'static Location<'static>) -> Self {
        Self { call: Call { op: op.number(), group, tensors: 1, ..Call::default() }, place }
    }

    /// Element type.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.call.dtype = dtype.number();
        self
    }

    /// Shape of the first tensor. If it has more dimensions than a record holds, or one above 32
    /// bits, only the number of elements is recorded.
    pub fn shape(mut self, shape: &[u64]) -> Self {
        self.call.set_shape(shape.iter().copied());
        self
    }

    /// Number of elements of the first tensor, if its shape is unknown.
    pub fn numel(mut self, numel: u64) -> Self {
        self.call.numel = numel;
        self.call.flags |= flags::NUMEL;
        self
    }

    /// Number of tensors, 1 by default.
    pub fn tensors(mut self, tensors: u32) -> Self {
        self.call.tensors = tensors;
        self
    }

    /// Reduction operator.
    pub fn reduce_op(mut self, reduce_op: ReduceOp) -> Self {
        self.call.reduce_op = reduce_op.number();
        self
    }

    /// Group rank of the root.
    pub fn root(mut self, rank: u32) -> Self {
        if let Ok(rank) = i32::try_from(rank) {
            self.call.root_or_peer = rank;
            self.call.flags |= flags::ROOT;
        }
        self
    }

    /// Group rank of the peer of a send or receive.
    pub fn peer(self, rank: u32) -> Self {
        self.root(rank)
    }

    /// Tag of a send or receive.
    pub fn tag(mut self, tag: i32) -> Self {
        self.call.tag = tag;
        self.call.flags |= flags::TAG;
        self
    }

    /// Marks the call as asynchronous: the caller does not wait for completion.
    pub fn asynchronous(mut self) -> Self {
        self.call.flags |= flags::ASYNC;
        self
    }

    /// Records the call. Make the call directly afterwards and drop the guard when it returns.
    pub fn issue(self) -> CallGuard {
        CallGuard {
            issued: current().map(|writer| {
                let mut call = self.call;
                call.site = writer.rust_site(self.place);
                (writer, writer.issued(&call))
            }),
        }
    }
}

/// A call that has not returned to its caller. Dropping the guard records its return.
#[derive(Debug)]
#[must_use = "the call is taken to have come back when this is dropped"]
pub struct CallGuard {
    issued: Option<(&'static Writer, u64)>,
}

impl CallGuard {
    /// Id of the call, for [`wait`](crate::Agent::wait) and [`completed`](crate::Agent::completed).
    #[must_use]
    pub fn id(&self) -> CallId {
        CallId(self.issued.map_or(0, |(_, call)| call))
    }

    /// Records the split sizes of an `all_to_all` in elements, for the input and the output: one per
    /// member, or one alone, a total that is divided evenly.
    pub fn splits(&self, input: &[u32], output: &[u32]) {
        if let Some((writer, call)) = self.issued
            && is_current(writer)
        {
            writer.splits(call, false, input.iter().copied());
            writer.splits(call, true, output.iter().copied());
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some((writer, call)) = self.issued
            && is_current(writer)
        {
            writer.returned(call);
        }
    }
}

/// Id of a call within its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

impl CallId {
    /// An unknown call.
    pub const UNKNOWN: Self = Self(0);

    /// The number in records; 0: unknown.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl From<&CallGuard> for CallId {
    fn from(guard: &CallGuard) -> Self {
        guard.id()
    }
}

/// A wait that lasts until this is dropped.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct WaitGuard {
    wait: Option<(&'static Writer, CallId)>,
}

impl WaitGuard {
    pub(crate) fn begin(call: CallId, place: &'static Location<'static>) -> Self {
        Self {
            wait: current().map(|writer| {
                writer.wait_begin(call.number(), writer.rust_site(place));
                (writer, call)
            }),
        }
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        if let Some((writer, call)) = self.wait
            && is_current(writer)
        {
            writer.wait_end(call.number());
        }
    }
}
