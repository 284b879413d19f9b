//! Records of calls: what goes into the black box, and when there is one.

use std::ffi::CStr;

use ddp_doctor_agent::shared::Asked;
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::{DType, Op, ReduceOp};

use crate::abi::{Status, Stream, is_taken, status_name};
use crate::caller::returns_to;
use crate::comms::Communicator;
use crate::driver::Capture;
use crate::sink::{self, Sink};

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
    /// Where in the program it was asked for: the address that the call returns to.
    pub(crate) returns_to: usize,
}

impl Work {
    /// NCCL drops a collective of no elements where it is called: it meets no other rank's call, and
    /// whoever counts it pairs all that follow wrongly.
    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.count == 0 && !matches!(self.op, Op::Send | Op::Recv)
    }

    #[inline]
    fn asked(&self, launch: u32) -> Asked {
        let mut flags = flags::NUMEL | flags::STREAM;
        let captured = self.capture == Capture::Yes;
        for (is, flag) in [
            (self.partner.is_some(), flags::ROOT),
            (self.in_place, flags::IN_PLACE),
            (captured, flags::CAPTURED),
            // Nothing is put on the stream: nobody can wait for it.
            (captured || self.count == 0, flags::ASYNC),
        ] {
            flags |= if is { flag } else { 0 };
        }
        Asked {
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

/// Records that a call is about to be made. Gives its number; 0: it found no room.
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
    sink.issued(&Asked {
        group,
        ..work.asked(launch)
    })
}

/// Records what the framework's call that this thread is inside of asks for.
#[inline]
pub(crate) fn beneath(sink: Sink, communicator: &Communicator, work: &Work, launch: u32) {
    let asked = Asked {
        // The line is known better.
        returns_to: 0,
        ..work.asked(launch)
    };
    sink.beneath(&asked, communicator.size);
}

/// Records that a call of a communicator that is no collective is about to be made.
pub(crate) fn other(sink: Sink, op: Op, group: u32) -> u64 {
    sink.issued(&Asked {
        op: op.number(),
        group,
        returns_to: returns_to(),
        ..Asked::default()
    })
}

/// Records that calls came back, and how where NCCL refused them.
#[inline]
pub(crate) fn returned(sink: Sink, call: u64, function: &CStr, status: Status) {
    if !is_taken(status) {
        refused(sink, function, status);
    }
    sink.returned(call, false);
}

/// Records that NCCL refused a call.
#[cold]
pub(crate) fn refused(sink: Sink, function: &CStr, status: Status) {
    let name = first_name(function);
    let text = [b"NCCL: ", status_name(status).as_bytes(), b" from ", name].concat();
    sink.exception(&text);
}

/// What a program calls a function that has that second name.
pub(crate) fn first_name(function: &CStr) -> &[u8] {
    let name = function.to_bytes();
    name.strip_prefix(b"p").unwrap_or(name)
}

/// The box that knows a communicator, where that is open.
#[inline]
pub(crate) fn of(
    communicator: Option<&'static Communicator>,
) -> Option<(Sink, &'static Communicator)> {
    let communicator = communicator?;
    Some((sink::named(communicator.sink)?, communicator))
}
