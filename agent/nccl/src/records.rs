//! Creates records of NCCL calls.

use std::ffi::CStr;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{Call, on_stream};

use crate::abi::{Status, Stream, is_taken, status_name};
use crate::caller::returns_to;
use crate::comms::Communicator;
use crate::sink::{self, Sink};

/// A collective or a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The call, without its group and site.
    pub(crate) call: Call,
    /// The program's handle of the stream.
    pub(crate) handle: Stream,
    /// Whether it certainly enqueues work on the stream now, which an event can follow.
    pub(crate) enqueues: bool,
    /// Return address of the call; 0: unknown.
    pub(crate) returns_to: usize,
}

/// Records that a call is about to be made, in this group launch; 0: alone. Returns its id; 0: it
/// was not recorded.
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
    let mut call = Call { group, ..work.call };
    call.dims[on_stream::LAUNCH] = launch;
    sink.issued(&call, work.returns_to)
}

/// Records that a call other than a collective or a message is about to be made. Returns its id.
pub(crate) fn other(sink: Sink, op: Op, group: u32) -> u64 {
    let call = Call { op: op.number(), group, tensors: 1, ..Call::default() };
    sink.issued(&call, returns_to())
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
