//! Calls from the events that NCCL reports.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::Call;

use super::events::{self, Event};
use super::layout::{Coll, Descriptor, kind};
use super::{groups, network_transfers};
use crate::communicators::Communicator;
use crate::cuda::driver;
use crate::recording::call_records::Work;

/// Whether this plugin uses the event.
pub(super) fn is_used(descriptor: Descriptor) -> bool {
    let works = kind::GROUP | kind::COLL | kind::P2P | kind::KERNEL_CHANNEL;
    let calls = kind::GROUP_API | kind::COLL_API | kind::P2P_API;
    match descriptor.kind() {
        // A proxy's work for another process belongs to that process's calls.
        kind::PROXY_OP => network_transfers::is_on() && !descriptor.is_foreign(),
        kind::PROXY_STEP => {
            let of = events::find(descriptor.parent());
            network_transfers::is_on() && of.is_some_and(|it| it.kind() == kind::PROXY_OP)
        }
        kind => kind & (works | calls) != 0,
    }
}

/// Records the call of an event that has begun, or prepares its record.
pub(super) fn begin(
    communicator: &'static Communicator,
    descriptor: Descriptor,
    number: usize,
    event: &'static Event,
) {
    let is_old = descriptor.version() < 5;
    match descriptor.kind() {
        kind::COLL_API => {
            let asked = descriptor.coll_api();
            let stream = driver::name_of(asked.stream, communicator.device);
            let call = Call::nccl(asked.op(), asked.dtype(), asked.count)
                .on_stream(stream, asked.is_captured());
            gather(communicator, rooted(call, asked.root), number);
        }
        kind::P2P_API => {
            let asked = descriptor.p2p_api();
            event.stream.store(asked.stream, Ordering::Relaxed);
            event.is_captured.store(asked.is_captured(), Ordering::Relaxed);
        }
        kind::COLL if is_old => {
            let made = descriptor.coll();
            event.expect(made.channels);
            let call = Call::nccl(made.op(), made.dtype(), made.count)
                .on_stream(own_stream(communicator), false);
            gather(communicator, rooted(call, made.root), number);
        }
        kind::COLL => expect(event, &descriptor.coll()),
        kind::PROXY_OP => {
            // The parent may be forgotten before the transfer is over.
            let part_of = events::find(descriptor.parent()).map_or(0, Event::call);
            event.recorded(part_of);
            network_transfers::begins(event, &descriptor.proxy_op());
        }
        kind::PROXY_STEP => network_transfers::step_begins(event, descriptor.step()),
        kind::P2P => {
            let made = descriptor.p2p();
            let asked = events::find(descriptor.parent()).filter(|it| it.kind() == kind::P2P_API);
            // Messages that implement a collective are not messages of the program.
            if !is_old && asked.is_none() {
                return;
            }
            let stream = asked.map(|it| it.stream.load(Ordering::Relaxed));
            let is_captured = asked.is_some_and(|it| it.is_captured.load(Ordering::Relaxed));
            let stream = stream.map_or_else(
                || own_stream(communicator),
                |stream| driver::name_of(stream, communicator.device),
            );
            let call = Call::nccl(made.op(), made.dtype(), made.count)
                .with_partner(made.peer)
                .on_stream(stream, is_captured);
            if is_old {
                gather(communicator, call, number);
                return;
            }
            event.expect(made.channels);
            let call = groups::message(communicator, &work(call, number));
            if let Some(done) = event.recorded(call) {
                groups::complete(done);
            }
        }
        _ => {}
    }
}

/// Expects the kernel of a collective that was recorded when it was called.
fn expect(event: &Event, made: &Coll) {
    event.expect(made.channels);
    let asked = events::find(event.parent.load(Ordering::Relaxed));
    let call = asked.filter(|it| it.kind() == kind::COLL_API).map_or(0, Event::call);
    if let Some(done) = event.recorded(call) {
        groups::complete(done);
    }
}

fn gather(communicator: &'static Communicator, call: Call, number: usize) {
    if call.op != Op::Other.number() && !call.is_dropped() {
        groups::gather(communicator, work(call, number));
    }
}

fn work(call: Call, number: usize) -> Work {
    Work {
        call,
        handle: ptr::without_provenance_mut(number),
        // NCCL reports completion.
        enqueues: false,
        // NCCL does not report return addresses.
        returns_to: 0,
    }
}

/// NCCL passes 0 if the operation has no root.
fn rooted(call: Call, root: c_int) -> Call {
    if Op::from_number(call.op).is_rooted() { call.with_partner(root) } else { call }
}

/// Stream id for work of version 4, whose stream is unknown: one per communicator, since the work
/// of one communicator is ordered and that of several is not.
fn own_stream(communicator: &Communicator) -> u64 {
    /// Set in no user-space address and in no result of [`driver::name_of`].
    const OF_COMMUNICATOR: u64 = 3 << 62;
    OF_COMMUNICATOR | u64::from(communicator.registered().unwrap_or(0))
}

/// Counts the end of a kernel part. It may be reported twice.
pub(super) fn kernel_part_ended(event: &Event) {
    let parent = event.parent.swap(0, Ordering::AcqRel);
    let done = events::find(parent).and_then(Event::part_ended);
    if let Some(call) = done {
        groups::complete(call);
    }
}
