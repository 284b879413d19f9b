//! Creates records of NCCL calls.

use std::ffi::CStr;

use ddp_doctor_agent::shared::CallArguments;
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::{DType, Op, ReduceOp};

use crate::abi::{Status, Stream, is_taken, status_name};
use crate::caller::returns_to;
use crate::comms::Communicator;
use crate::driver::Capture;
use crate::sink::{self, Sink};

/// Arguments of a collective or a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) op: Op,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    pub(crate) reduce_op: ReduceOp,
    /// Rank of the root or of the peer in the communicator; `None`: not applicable.
    pub(crate) partner: Option<i32>,
    pub(crate) in_place: bool,
    /// Identifies the stream within the process, see [`crate::driver::name_of`].
    pub(crate) stream: u64,
    /// The program's handle of the stream.
    pub(crate) handle: Stream,
    pub(crate) capture: Capture,
    /// Return address of the call; 0: unknown.
    pub(crate) returns_to: usize,
}

impl Work {
    /// Whether NCCL ignores the call: a collective of no elements is not matched with other ranks'
    /// calls. Counting it would shift all later sequence numbers.
    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.count == 0 && !matches!(self.op, Op::Send | Op::Recv)
    }

    #[inline]
    fn asked(&self, launch: u32) -> CallArguments {
        let mut flags = flags::NUMEL | flags::STREAM;
        let captured = self.capture == Capture::Yes;
        for (is, flag) in [
            (self.partner.is_some(), flags::ROOT),
            (self.in_place, flags::IN_PLACE),
            (captured, flags::CAPTURED),
            // Nothing is enqueued, so nothing waits for it.
            (captured || self.count == 0, flags::ASYNC),
        ] {
            flags |= if is { flag } else { 0 };
        }
        CallArguments {
            op: self.op.number(),
            dtype: self.dtype.number(),
            reduce_op: self.reduce_op.number(),
            flags,
            group: 0,
            root_or_peer: self.partner.unwrap_or(0),
            launch,
            numel: self.count as u64,
            stream: self.stream,
            returns_to: self.returns_to,
        }
    }
}

/// Records that a call is about to be made. Returns its id; 0: it was not recorded.
#[inline]
pub(crate) fn issued(
    sink: Sink,
    communicator: &'static Communicator,
    work: &Work,
    launch: u32,
) -> u64 {
    let group = communicator.group(sink);
    if group == 0 {
        return 0;
    }
    sink.issued(&CallArguments {
        group,
        ..work.asked(launch)
    })
}

/// Records the NCCL call inside the framework's call of this thread.
#[inline]
pub(crate) fn lower_call(sink: Sink, communicator: &Communicator, work: &Work, launch: u32) {
    let asked = CallArguments {
        // The framework's call already has a source line.
        returns_to: 0,
        ..work.asked(launch)
    };
    sink.lower_call(&asked, communicator.size);
}

/// Records that a call other than a collective or a message is about to be made. Returns its id.
pub(crate) fn other(sink: Sink, op: Op, group: u32) -> u64 {
    sink.issued(&CallArguments {
        op: op.number(),
        group,
        returns_to: returns_to(),
        ..CallArguments::default()
    })
}

/// Records that a call returned, and the error if NCCL rejected it.
#[inline]
pub(crate) fn returned(sink: Sink, call: u64, function: &CStr, status: Status) {
    if !is_taken(status) {
        refused(sink, function, status);
    }
    sink.returned(call, false);
}

/// Records that NCCL rejected a call.
#[cold]
pub(crate) fn refused(sink: Sink, function: &CStr, status: Status) {
    let name = first_name(function);
    let text = [b"NCCL: ", status_name(status).as_bytes(), b" from ", name].concat();
    sink.exception(&text);
}

/// The public name of a function with this `pnccl` alias.
pub(crate) fn first_name(function: &CStr) -> &[u8] {
    let name = function.to_bytes();
    name.strip_prefix(b"p").unwrap_or(name)
}

/// The communicator with its box, if that box is open.
#[inline]
pub(crate) fn of(
    communicator: Option<&'static Communicator>,
) -> Option<(Sink, &'static Communicator)> {
    let communicator = communicator?;
    Some((sink::named(communicator.sink)?, communicator))
}
