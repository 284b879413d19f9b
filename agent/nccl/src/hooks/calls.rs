//! Records NCCL calls outside groups, or hands them to the group of their thread.

use std::ffi::CStr;

use ddp_doctor_proto::Op;

use super::thread::outermost;
use crate::communicators::creation::PendingCreation;
use crate::communicators::{self, Communicator, memory};
use crate::cuda::completion;
use crate::nccl::abi::{Comm, Status, is_taken};
use crate::panic_guard::guarded;
use crate::recording::black_box::Outer;
use crate::recording::call_records::{self, Work};

/// Makes and records a collective or a message.
#[inline]
pub(super) fn work(
    function: &'static CStr,
    comm: Comm,
    describe: impl FnOnce(&'static Communicator) -> Work,
    real: impl FnOnce() -> Status,
) -> Status {
    // A communicator created in the background is registered at its first call.
    let known = communicators::find_or_bind(comm);
    let Some((black_box, communicator)) = call_records::with_box(known) else {
        return unrecorded(real);
    };
    outermost(real, |thread, real| {
        let work = guarded(|| Some(describe(communicator)));
        let Some(work) = work.filter(|it| !it.call.is_dropped()) else {
            return real();
        };
        match communicator.outer() {
            Outer::Nothing => {}
            outer => return thread.part(black_box, communicator, outer, &work, real),
        }
        if thread.depth.get() > 0 {
            let status = real();
            guarded(|| {
                if is_taken(status) {
                    // Registers the communicator; its group number is the first sort key.
                    communicator.group(black_box);
                    thread.gather(communicator, work);
                } else {
                    call_records::refused(black_box, function, status);
                }
            });
            return status;
        }
        let call = guarded(|| call_records::issued(black_box, communicator, &work, 0));
        let status = real();
        guarded(|| {
            if is_taken(status) {
                let followed = completion::track(black_box, communicator, &work, call);
                black_box.returned(call, followed);
            } else {
                call_records::returned(black_box, call, function, status);
            }
            memory::after_call(black_box, communicator, status);
        });
        status
    })
}

/// Makes and records a call that is not compared with other ranks' calls.
pub(super) fn other(
    function: &'static CStr,
    comm: Comm,
    op: Op,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |_, real| {
        let known = call_records::with_box(communicators::find(comm));
        let Some((black_box, communicator)) = known.filter(|(_, it)| !it.is_of_framework()) else {
            return real();
        };
        let call = guarded(|| call_records::other(black_box, op, communicator.group(black_box)));
        let status = real();
        guarded(|| call_records::returned(black_box, call, function, status));
        status
    })
}

/// Makes a call that creates communicators. `begin` records it first.
pub(super) fn create(
    begin: impl FnOnce() -> Option<PendingCreation>,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |thread, real| {
        let creation = guarded(begin);
        let status = real();
        guarded(|| {
            let Some(creation) = creation else { return };
            // Within a group, the communicator is created when the group ends.
            if thread.depth.get() > 0 && is_taken(status) {
                thread.group.borrow_mut().creations.push(creation);
            } else {
                creation.end(status);
            }
        });
        status
    })
}

/// Makes and records a call that releases a communicator, and removes its handle.
pub(super) fn release(
    function: &'static CStr,
    comm: Comm,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |_, real| {
        let known = guarded(|| {
            communicators::find(comm).inspect(|it| memory::before_release(it));
            call_records::with_box(communicators::remove(comm))
        });
        // The framework records the destruction of its groups itself.
        let own = known
            .filter(|(_, it)| !it.is_of_framework())
            .and_then(|(black_box, it)| Some((black_box, it.registered()?)));
        let Some((black_box, group)) = own else {
            let status = real();
            guarded(|| known.inspect(|(black_box, it)| memory::after_release(*black_box, it)));
            return status;
        };
        let op = Op::DestroyProcessGroup;
        let call = guarded(|| call_records::other(black_box, op, group));
        let status = real();
        guarded(|| {
            black_box.destroyed(group);
            call_records::returned(black_box, call, function, status);
            known.inspect(|(black_box, it)| memory::after_release(*black_box, it));
        });
        status
    })
}

/// Makes a call without recording it. Calls that NCCL makes inside it are not recorded either.
pub(super) fn unrecorded(real: impl FnOnce() -> Status) -> Status {
    outermost(real, |_, real| real())
}
