//! Creates records of NCCL calls.

use std::ffi::CStr;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{Call, on_stream};

use super::black_box::{self, BlackBox};
use crate::communicators::Communicator;
use crate::nccl::abi::{Status, Stream, is_taken, status_name};
use crate::return_address::returns_to;

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
    black_box: BlackBox,
    communicator: &'static Communicator,
    work: &Work,
    launch: u32,
) -> u64 {
    let group = communicator.group(black_box);
    if group == 0 {
        return 0;
    }
    let mut call = Call { group, ..work.call };
    call.dims[on_stream::LAUNCH] = launch;
    black_box.issued(&call, work.returns_to)
}

/// Records that a call other than a collective or a message is about to be made. Returns its id.
pub(crate) fn other(black_box: BlackBox, op: Op, group: u32) -> u64 {
    let call = Call { op: op.number(), group, tensors: 1, ..Call::default() };
    black_box.issued(&call, returns_to())
}

/// Records that a call returned, and the error if NCCL rejected it.
#[inline]
pub(crate) fn returned(black_box: BlackBox, call: u64, function: &CStr, status: Status) {
    if !is_taken(status) {
        refused(black_box, function, status);
    }
    black_box.returned(call, false);
}

/// Records that NCCL rejected a call.
#[cold]
pub(crate) fn refused(black_box: BlackBox, function: &CStr, status: Status) {
    let name = public_name(function);
    let text = [b"NCCL: ", status_name(status).as_bytes(), b" from ", name].concat();
    black_box.exception(&text);
}

/// The public name of a function with this `pnccl` alias.
pub(crate) fn public_name(function: &CStr) -> &[u8] {
    let name = function.to_bytes();
    name.strip_prefix(b"p").unwrap_or(name)
}

/// The communicator with its box, if that box is open.
#[inline]
pub(crate) fn with_box(
    communicator: Option<&'static Communicator>,
) -> Option<(BlackBox, &'static Communicator)> {
    let communicator = communicator?;
    Some((black_box::with_id(communicator.black_box)?, communicator))
}
