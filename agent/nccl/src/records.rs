//! Records of calls: what goes into the black box, and when there is one.

use std::ffi::CStr;

use ddp_doctor_agent::blackbox::{Call, Writer};
use ddp_doctor_agent::current;
use ddp_doctor_proto::blackbox::{flags, on_stream};
use ddp_doctor_proto::{DType, ExceptionKind, Op, ReduceOp};

use crate::abi::{Status, Stream, is_taken, status_name};
use crate::comms::Communicator;
use crate::driver::Capture;

/// A collective or a message, as a program asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) op: Op,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    pub(crate) reduce_op: ReduceOp,
    /// Rank of the root or of the peer in the communicator; `None`: it has none.
    pub(crate) partner: Option<i32>,
    pub(crate) in_place: bool,
    /// The stream, by a number that other streams of the process do not have.
    pub(crate) stream: u64,
    /// The stream, as the program calls it.
    pub(crate) handle: Stream,
    pub(crate) capture: Capture,
}

impl Work {
    /// NCCL drops a collective of no elements where it is called: it meets no other rank's call, and
    /// whoever counts it pairs all that follow wrongly.
    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.count == 0 && !matches!(self.op, Op::Send | Op::Recv)
    }
}

/// Records that a call is about to be made. Gives its number.
#[inline]
pub(crate) fn issued(
    writer: &'static Writer,
    communicator: &Communicator,
    work: &Work,
    launch: u32,
) -> u64 {
    let mut flags = flags::NUMEL | flags::STREAM;
    let captured = work.capture == Capture::Yes;
    for (is, flag) in [
        (work.partner.is_some(), flags::ROOT),
        (work.in_place, flags::IN_PLACE),
        (captured, flags::CAPTURED),
        // Nothing is put on the stream: nobody can wait for it.
        (captured || work.count == 0, flags::ASYNC),
    ] {
        flags |= if is { flag } else { 0 };
    }
    writer.issued(&Call {
        op: work.op,
        dtype: work.dtype,
        reduce_op: work.reduce_op,
        flags,
        group: communicator.group,
        tensors: 1,
        root_or_peer: work.partner.unwrap_or(0),
        numel: work.count as u64,
        dims: on_stream::pack(work.stream, launch),
        ..Call::default()
    })
}

/// Records that a call of a communicator that is no collective is about to be made.
pub(crate) fn other(writer: &'static Writer, op: Op, group: u32) -> u64 {
    writer.issued(&Call {
        op,
        group,
        ..Call::default()
    })
}

/// Records that a call came back; `followed`: it will be told when it is complete.
#[inline]
pub(crate) fn came_back(writer: &'static Writer, call: u64, followed: bool) {
    match followed {
        true => writer.returned_followed(call),
        false => writer.returned(call),
    }
}

/// Records that calls came back, and how where NCCL refused them.
#[inline]
pub(crate) fn returned(writer: &'static Writer, call: u64, function: &CStr, status: Status) {
    if !is_taken(status) {
        refused(writer, function, status);
    }
    writer.returned(call);
}

/// Records that NCCL refused a call.
#[cold]
pub(crate) fn refused(writer: &'static Writer, function: &CStr, status: Status) {
    let name = function.to_bytes();
    let name = name.strip_prefix(b"p").unwrap_or(name);
    let text = [b"NCCL: ", status_name(status).as_bytes(), b" from ", name].concat();
    writer.exception(ExceptionKind::LeftCollective, &text, 0);
}

/// The box, and the communicator as it knows it.
#[inline]
pub(crate) fn of(
    communicator: Option<&'static Communicator>,
) -> Option<(&'static Writer, &'static Communicator)> {
    let (communicator, writer) = (communicator?, current()?);
    communicator.is_of(writer).then_some((writer, communicator))
}
