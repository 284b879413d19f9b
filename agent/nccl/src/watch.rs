//! Context of NCCL calls: groups and nested calls.
//!
//! NCCL collects the calls of a group (`ncclGroupStart` to `ncclGroupEnd`, counted per thread) and
//! makes them when the outermost group ends, in an order of its own. They are recorded at that
//! point, in an order that is the same on all ranks that make the same calls: ranks must agree on
//! the calls of a group, not on their order.
//!
//! NCCL also calls its own exported functions, which are hooked. Only the outermost call of a
//! thread is the program's.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{Comm, SUCCESS, Status, is_taken};
use crate::comms::{self, Communicator};
use crate::guarded::guarded;
use crate::init::Making;
use crate::records::{self, Work};
use crate::sink::{self, Outer, Sink};
use crate::{comm_memory, done, pending};

/// Maximum number of calls of a group that are sorted together; larger groups are recorded in
/// pieces.
const MOST_GATHERED: usize = 1024;
/// Maximum number of parts of a framework's calls that are tracked per group.
const MOST_PARTS: usize = 64;

/// Call state of a thread.
struct Thread {
    /// The thread is in a call of the program; further calls are NCCL's own.
    inside: Cell<bool>,
    /// Number of open groups.
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
                parts: Vec::new(),
                of_framework: false,
                parts_cut: false,
                issued: Vec::new(),
                makings: Vec::new(),
            }),
        }
    };
}

/// Calls collected until the group ends.
struct Gathered {
    works: Vec<(&'static Communicator, Work)>,
    /// NCCL calls made by framework's calls, with the ids of those; they are already recorded.
    parts: Vec<(u64, &'static Communicator, Work)>,
    /// The group has calls of a framework, recorded or not.
    of_framework: bool,
    /// There were more parts than are kept. In that case none is tracked.
    parts_cut: bool,
    /// Buffer for the ids of the calls.
    issued: Vec<u64>,
    makings: Vec<Making>,
}

/// Number of the next launch.
static LAUNCHES: AtomicU32 = AtomicU32::new(1);

/// Returns a new launch number, never 0.
pub(crate) fn next_launch() -> u32 {
    LAUNCHES.fetch_add(1, Ordering::Relaxed).max(1)
}

/// Makes a call of the program through `watched`, which gets the thread's state. A call made by
/// NCCL itself, or by a thread that is ending, is made by `real` alone.
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

/// Makes and records a collective or a message.
#[inline]
pub(crate) fn work(
    function: &'static CStr,
    comm: Comm,
    describe: impl FnOnce(&'static Communicator) -> Work,
    real: impl FnOnce() -> Status,
) -> Status {
    // A communicator created in the background is registered at its first call.
    let known = comms::find(comm).or_else(|| guarded(|| pending::bind(comm)));
    let Some((sink, communicator)) = records::of(known) else {
        return unseen(real);
    };
    outermost(real, |thread, real| {
        let work = guarded(|| Some(describe(communicator)));
        let Some(work) = work.filter(|it| !it.call.is_dropped()) else {
            return real();
        };
        match communicator.outer() {
            Outer::Nothing => {}
            outer => return thread.part(sink, communicator, outer, &work, real),
        }
        if thread.depth.get() > 0 {
            let status = real();
            guarded(|| {
                if is_taken(status) {
                    // Registers the communicator; its group number is the first sort key.
                    communicator.group(sink);
                    thread.gather(communicator, work);
                } else {
                    records::refused(sink, function, status);
                }
            });
            return status;
        }
        let call = guarded(|| records::issued(sink, communicator, &work, 0));
        let status = real();
        guarded(|| {
            if is_taken(status) {
                let followed = done::after(sink, communicator, &work, call);
                sink.returned(call, followed);
            } else {
                records::returned(sink, call, function, status);
            }
            comm_memory::after(sink, communicator, status);
        });
        status
    })
}

/// Makes and records a call that is not compared with other ranks' calls.
pub(crate) fn other(
    function: &'static CStr,
    comm: Comm,
    op: ddp_doctor_proto::Op,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |_, real| {
        let known = records::of(comms::find(comm));
        let Some((sink, communicator)) = known.filter(|(_, it)| !it.is_of_framework()) else {
            return real();
        };
        let call = guarded(|| records::other(sink, op, communicator.group(sink)));
        let status = real();
        guarded(|| records::returned(sink, call, function, status));
        status
    })
}

/// Makes a call that creates communicators. `begin` records it first.
pub(crate) fn making(
    begin: impl FnOnce() -> Option<Making>,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |thread, real| {
        let making = guarded(begin);
        let status = real();
        guarded(|| {
            let Some(making) = making else { return };
            // Within a group, the communicator is created when the group ends.
            if thread.depth.get() > 0 && is_taken(status) {
                thread.group.borrow_mut().makings.push(making);
            } else {
                making.end(status);
            }
        });
        status
    })
}

/// Makes and records a call that releases a communicator, and removes its handle.
pub(crate) fn leaving(
    function: &'static CStr,
    comm: Comm,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |_, real| {
        let known = guarded(|| {
            comms::find(comm).inspect(|it| comm_memory::leaves(it));
            records::of(comms::remove(comm))
        });
        // The framework records the destruction of its groups itself.
        let own = known.filter(|(_, it)| !it.is_of_framework());
        let own = own.and_then(|(sink, it)| Some((sink, it.registered()?)));
        let Some((sink, group)) = own else {
            let status = real();
            guarded(|| known.inspect(|(sink, it)| comm_memory::left(*sink, it)));
            return status;
        };
        let op = ddp_doctor_proto::Op::DestroyProcessGroup;
        let call = guarded(|| records::other(sink, op, group));
        let status = real();
        guarded(|| {
            sink.destroyed(group);
            records::returned(sink, call, function, status);
            known.inspect(|(sink, it)| comm_memory::left(*sink, it));
        });
        status
    })
}

/// Makes a call without recording it. Calls that NCCL makes inside it are not recorded either.
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

/// `ncclGroupEnd`; `simulates`: the group is discarded and its calls are not made.
pub(crate) fn group_end(
    function: &'static CStr,
    simulates: bool,
    real: impl FnOnce() -> Status,
) -> Status {
    outermost(real, |thread, real| {
        let depth = thread.depth.get();
        // An unmatched end is an error of NCCL and does not change the depth.
        thread.depth.set(depth.saturating_sub(1));
        if depth != 1 {
            return real();
        }
        if simulates {
            let status = real();
            guarded(|| {
                thread.group.borrow_mut().forget();
                let makings = mem::take(&mut thread.group.borrow_mut().makings);
                makings.into_iter().for_each(Making::drop_unmade);
            });
            return status;
        }
        let kept = guarded(|| thread.launch(function));
        let status = real();
        guarded(|| {
            if let Some(sink) = kept {
                sink.within(b"");
            }
            thread.launched(function, status);
        });
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
            self.launch(c"pncclGroupEnd");
            self.launched(c"pncclGroupEnd", SUCCESS);
        }
    }

    /// Makes a part of a framework's call and records it as such.
    fn part(
        &self,
        sink: Sink,
        communicator: &'static Communicator,
        outer: Outer,
        work: &Work,
        real: &mut dyn FnMut() -> Status,
    ) -> Status {
        guarded(|| sink.lower_call(&work.call, communicator.size));
        let status = real();
        guarded(|| {
            let grouped = self.depth.get() > 0;
            self.group.borrow_mut().of_framework |= grouped;
            let Outer::Call(call) = outer else { return };
            if !is_taken(status) {
                return;
            }
            if grouped {
                self.group.borrow_mut().part(call, communicator, *work);
            } else {
                done::after_part(sink, communicator, work, call);
                comm_memory::after(sink, communicator, status);
            }
        });
        status
    }

    /// Records the calls of the group, which are about to be made. If the group contains calls of a
    /// framework that have already returned, also records that the thread enters the function, and
    /// returns where to record that it left.
    fn launch(&self, function: &'static CStr) -> Option<Sink> {
        let Gathered { works, issued, of_framework, .. } = &mut *self.group.borrow_mut();
        let kept = *of_framework && sink::outer() == Outer::Nothing;
        let kept = sink::current().filter(|_| kept);
        if let Some(sink) = kept {
            sink.within(records::first_name(function));
        }
        if works.is_empty() {
            return kept;
        }
        let launch = next_launch();
        // The sort is stable, since messages between two ranks are matched in order, and allocates
        // nothing.
        in_order(works);
        issued.clear();
        for (communicator, work) in works.iter() {
            let Some((sink, communicator)) = records::of(Some(communicator)) else {
                continue;
            };
            issued.push(records::issued(sink, communicator, work, launch));
        }
        kept
    }

    /// Records that the calls of the group were made or rejected.
    fn launched(&self, function: &'static CStr, status: Status) {
        let makings = {
            let mut group = self.group.borrow_mut();
            let Gathered { works, parts, parts_cut, issued, makings, .. } = &mut *group;
            let recorded = works
                .iter()
                .filter_map(|(communicator, work)| Some((records::of(Some(communicator))?, work)));
            let mut refused = !is_taken(status);
            for (((sink, communicator), work), &call) in recorded.zip(issued.iter()) {
                if mem::take(&mut refused) {
                    records::refused(sink, function, status);
                }
                let followed = is_taken(status) && done::after(sink, communicator, work, call);
                sink.returned(call, followed);
                comm_memory::after(sink, communicator, status);
            }
            if is_taken(status) && !*parts_cut {
                for (call, communicator, work) in parts.iter() {
                    if let Some((sink, communicator)) = records::of(Some(communicator)) {
                        done::after_part(sink, communicator, work, *call);
                        comm_memory::after(sink, communicator, status);
                    }
                }
            }
            let makings = mem::take(makings);
            group.forget();
            makings
        };
        for making in makings {
            making.end(status);
        }
    }
}

impl Gathered {
    /// Adds a part of a framework's call. Of consecutive parts on one stream only the last is
    /// tracked.
    fn part(&mut self, call: u64, communicator: &'static Communicator, work: Work) {
        let same =
            |(other, _, last): &&mut (u64, _, Work)| *other == call && last.handle == work.handle;
        if let Some(last) = self.parts.last_mut().filter(same) {
            *last = (call, communicator, work);
            return;
        }
        if self.parts.capacity() == 0 {
            self.parts.reserve_exact(MOST_PARTS);
        }
        if self.parts.len() < MOST_PARTS {
            self.parts.push((call, communicator, work));
        } else {
            self.parts_cut = true;
        }
    }

    fn forget(&mut self) {
        self.works.clear();
        self.parts.clear();
        self.issued.clear();
        self.of_framework = false;
        self.parts_cut = false;
    }
}

/// Sorts the calls of a group in the order in which all ranks record them: by communicator;
/// collectives by what ranks must agree on, messages in issue order. An insertion sort, since it is
/// stable and the calls are usually sorted already.
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
    (communicator.registered(), work.call.launch_key())
}
