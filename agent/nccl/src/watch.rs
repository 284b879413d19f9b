//! What a call is part of: a group, or another call.
//!
//! NCCL gathers the calls of a group (`ncclGroupStart` to `ncclGroupEnd`, counted by each thread) and makes
//! all of them at the end of the outermost one, in an order of its own. So they are kept until then, and
//! recorded in an order that is the same on every rank that asks for the same: what ranks must agree on
//! within a group is what is asked for, not in which order.
//!
//! NCCL also calls its own functions, by the names that lead here: only the outermost call of a thread is
//! the program's.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{Comm, SUCCESS, Status, is_taken};
use crate::comms::{self, Communicator};
use crate::done;
use crate::init::{self, Making};
use crate::records::{self, Work};

/// Calls of one group that are put in order; of a larger one, so many at a time.
const MOST_GATHERED: usize = 1024;

/// What a thread is in the middle of.
struct Thread {
    /// A call of the program's: what comes meanwhile is NCCL's own.
    inside: Cell<bool>,
    /// Groups that were begun and not ended.
    depth: Cell<u32>,
    group: RefCell<Gathered>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            depth: Cell::new(0),
            group: RefCell::new(Gathered {
                works: Vec::new(),
                issued: Vec::new(),
                makings: Vec::new(),
            }),
        }
    };
}

/// What a group is to do when it ends.
struct Gathered {
    works: Vec<(&'static Communicator, Work)>,
    /// Room for the numbers of the calls.
    issued: Vec<u64>,
    makings: Vec<Making>,
}

/// Numbers launches.
static LAUNCHES: AtomicU32 = AtomicU32::new(1);

/// The number of another launch.
pub(crate) fn next_launch() -> u32 {
    LAUNCHES.fetch_add(1, Ordering::Relaxed).max(1)
}

/// Runs what is ours. It should not panic; if it does, the program must not hear of it.
pub(crate) fn guarded<T: Default>(work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        // Dropping it might panic again.
        mem::forget(payload);
        T::default()
    })
}

/// Makes a call of the program's. `watched` gets the depth of groups that it is made at; where the call is
/// one of NCCL's own, or the thread is at its end, it is made by `real` alone.
fn outermost(
    real: impl FnOnce() -> Status,
    watched: impl FnOnce(&Thread, &mut dyn FnMut() -> Status) -> Status,
) -> Status {
    let mut real = Some(real);
    let mut call = || real.take().map_or(SUCCESS, |real| real());
    let watched = THREAD.try_with(|thread| {
        if thread.inside.replace(true) {
            return None;
        }
        let status = watched(thread, &mut call);
        thread.inside.set(false);
        Some(status)
    });
    match watched {
        Ok(Some(status)) => status,
        _ => call(),
    }
}

/// A collective or a message.
#[inline]
pub(crate) fn work(
    function: &'static CStr,
    comm: Comm,
    describe: impl FnOnce(&'static Communicator) -> Work,
    real: impl FnOnce() -> Status,
) -> Status {
    // One that was made while nobody waited for it is known from now on: its first call counts.
    let known = comms::find(comm).or_else(|| guarded(|| init::bind(comm)));
    let Some((writer, communicator)) = records::of(known) else {
        return unseen(real);
    };
    outermost(real, |thread, real| {
        let work = guarded(|| Some(describe(communicator)));
        let Some(work) = work.filter(|it| !it.is_dropped()) else {
            return real();
        };
        if thread.depth.get() > 0 {
            let status = real();
            guarded(|| {
                if is_taken(status) {
                    thread.gather(communicator, work);
                } else {
                    records::refused(writer, function, status);
                }
            });
            return status;
        }
        let call = guarded(|| records::issued(writer, communicator, &work, 0));
        let status = real();
        guarded(|| {
            if is_taken(status) {
                let followed = done::after(writer, communicator, &work, call);
                records::came_back(writer, call, followed);
            } else {
                records::returned(writer, call, function, status);
            }
        });
        status
    })
}

/// A call of a communicator that is recorded and not compared with those of others.
pub(crate) fn other(
    function: &'static CStr,
    comm: Comm,
    op: ddp_doctor_proto::Op,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |_, real| {
        let Some((writer, communicator)) = records::of(comms::find(comm)) else {
            return real();
        };
        let call = guarded(|| records::other(writer, op, communicator.group));
        let status = real();
        guarded(|| records::returned(writer, call, function, status));
        status
    })
}

/// A call that makes communicators. `begin` records it before it is made.
pub(crate) fn making(
    begin: impl FnOnce() -> Option<Making>,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |thread, real| {
        let making = guarded(begin);
        let status = real();
        guarded(|| {
            let Some(making) = making else { return };
            // What is asked for within a group is made at its end.
            if thread.depth.get() > 0 && is_taken(status) {
                thread.group.borrow_mut().makings.push(making);
            } else {
                making.end(status);
            }
        });
        status
    })
}

/// A call that gives a communicator back: its handle stands for nothing from now on.
pub(crate) fn leaving(
    function: &'static CStr,
    comm: Comm,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |_, real| {
        let known = guarded(|| records::of(comms::remove(comm)));
        let Some((writer, communicator)) = known else {
            return real();
        };
        let op = ddp_doctor_proto::Op::DestroyProcessGroup;
        let call = guarded(|| records::other(writer, op, communicator.group));
        let status = real();
        guarded(|| {
            writer.group_destroyed(communicator.group);
            records::returned(writer, call, function, status);
        });
        status
    })
}

/// A call that only must not be taken for the program's, whatever it calls.
pub(crate) fn unseen(real: impl FnOnce() -> Status) -> Status {
    outermost(real, |_, real| real())
}

/// `ncclGroupStart`
pub(crate) fn group_start(real: impl FnOnce() -> Status) -> Status {
    outermost(real, |thread, real| {
        let status = real();
        if status == SUCCESS {
            thread.depth.set(thread.depth.get() + 1);
        }
        status
    })
}

/// `ncclGroupEnd`; `simulates`: the group is dropped, and nothing of it is made.
pub(crate) fn group_end(
    function: &'static CStr,
    simulates: bool,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |thread, real| {
        let depth = thread.depth.get();
        // Whoever ends what was not begun gets an error, and so counts nothing.
        thread.depth.set(depth.saturating_sub(1));
        if depth != 1 {
            return real();
        }
        if simulates {
            let status = real();
            guarded(|| {
                thread.group.borrow_mut().works.clear();
                let makings = mem::take(&mut thread.group.borrow_mut().makings);
                makings.into_iter().for_each(Making::drop_unmade);
            });
            return status;
        }
        guarded(|| thread.launch());
        let status = real();
        guarded(|| thread.launched(function, status));
        status
    })
}

impl Thread {
    fn gather(&self, communicator: &'static Communicator, work: Work) {
        let full = {
            let mut group = self.group.borrow_mut();
            if group.works.capacity() == 0 {
                group.works.reserve_exact(MOST_GATHERED);
                group.issued.reserve_exact(MOST_GATHERED);
            }
            group.works.push((communicator, work));
            group.works.len() >= MOST_GATHERED
        };
        if full {
            self.launch();
            self.launched(c"pncclGroupEnd", SUCCESS);
        }
    }

    /// Records the calls of the group: they are about to be made.
    fn launch(&self) {
        let Gathered { works, issued, .. } = &mut *self.group.borrow_mut();
        let launch = next_launch();
        // Messages between two ranks meet in their order: a stable order, without memory for it.
        in_order(works);
        issued.clear();
        for (communicator, work) in works.iter() {
            let Some((writer, communicator)) = records::of(Some(communicator)) else {
                continue;
            };
            issued.push(records::issued(writer, communicator, work, launch));
        }
    }

    /// They were made, or refused.
    fn launched(&self, function: &'static CStr, status: Status) {
        let makings = {
            let Gathered {
                works,
                issued,
                makings,
            } = &mut *self.group.borrow_mut();
            let recorded = works
                .iter()
                .filter_map(|(communicator, work)| Some((records::of(Some(communicator))?, work)));
            let mut refused = !is_taken(status);
            for (((writer, communicator), work), &call) in recorded.zip(issued.iter()) {
                if mem::take(&mut refused) {
                    records::refused(writer, function, status);
                }
                let followed = is_taken(status) && done::after(writer, communicator, work, call);
                records::came_back(writer, call, followed);
            }
            works.clear();
            issued.clear();
            mem::take(makings)
        };
        for making in makings {
            making.end(status);
        }
    }
}

/// Puts the calls of a group into the order that all ranks record them in: by communicator, collectives by
/// what ranks must agree on, messages as they were asked for. Insertion keeps what is equal in its order,
/// and mostly there is nothing to do: programs that run on all ranks ask in one order.
pub(crate) fn in_order(works: &mut [(&'static Communicator, Work)]) {
    for end in 1..works.len() {
        let mut at = end;
        while at > 0 && key(&works[at]) < key(&works[at - 1]) {
            works.swap(at, at - 1);
            at -= 1;
        }
    }
}

fn key((communicator, work): &(&'static Communicator, Work)) -> impl Ord + use<> {
    let agreed = (!work.op.is_point_to_point()).then(|| {
        (
            work.op.number(),
            work.count,
            work.dtype.number(),
            work.reduce_op.number(),
            work.partner,
        )
    });
    (communicator.group, agreed)
}
