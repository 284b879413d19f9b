//! Groups of NCCL calls.
//!
//! NCCL collects the calls of a group (`ncclGroupStart` to `ncclGroupEnd`, counted per thread) and
//! makes them when the outermost group ends, in an order of its own. They are recorded at that
//! point, in an order that is the same on all ranks that make the same calls: ranks must agree on
//! the calls of a group, not on their order.

use std::ffi::CStr;
use std::mem;

use super::thread::{Thread, outermost};
use crate::communicators::creation::PendingCreation;
use crate::communicators::{Communicator, memory};
use crate::cuda::completion;
use crate::nccl::abi::{SUCCESS, Status, is_taken};
use crate::panic_guard::guarded;
use crate::recording::black_box::{self, BlackBox, Outer};
use crate::recording::call_records::{self, Work};
use crate::recording::launches;

/// Maximum number of calls of a group that are sorted together; larger groups are recorded in
/// pieces.
const MAX_GATHERED: usize = 1024;
/// Maximum number of parts of a framework's calls that are tracked per group.
const MAX_PARTS: usize = 64;

/// Calls collected until the group ends.
pub(super) struct Gathered {
    works: Vec<(&'static Communicator, Work)>,
    /// NCCL calls made by framework's calls, with the ids of those; they are already recorded.
    parts: Vec<(u64, &'static Communicator, Work)>,
    /// The group has calls of a framework, recorded or not.
    of_framework: bool,
    /// There were more parts than are kept. In that case none is tracked.
    parts_cut: bool,
    /// Buffer for the ids of the calls.
    issued: Vec<u64>,
    pub(super) creations: Vec<PendingCreation>,
}

/// `ncclGroupStart`
pub(super) fn group_start(real: impl FnOnce() -> Status) -> Status {
    outermost(real, |thread, real| {
        let status = real();
        if status == SUCCESS {
            thread.depth.set(thread.depth.get() + 1);
        }
        status
    })
}

/// `ncclGroupEnd`; `simulates`: the group is discarded and its calls are not made.
pub(super) fn group_end(
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
                let creations = mem::take(&mut thread.group.borrow_mut().creations);
                creations.into_iter().for_each(PendingCreation::discard);
            });
            return status;
        }
        let kept = guarded(|| thread.launch(function));
        let status = real();
        guarded(|| {
            if let Some(black_box) = kept {
                black_box.within(b"");
            }
            thread.launched(function, status);
        });
        status
    })
}

impl Thread {
    pub(super) fn gather(&self, communicator: &'static Communicator, work: Work) {
        let full = {
            let mut group = self.group.borrow_mut();
            if group.works.capacity() == 0 {
                group.works.reserve_exact(MAX_GATHERED);
                group.issued.reserve_exact(MAX_GATHERED);
            }
            group.works.push((communicator, work));
            group.works.len() >= MAX_GATHERED
        };
        if full {
            self.launch(c"pncclGroupEnd");
            self.launched(c"pncclGroupEnd", SUCCESS);
        }
    }

    /// Makes a part of a framework's call and records it as such.
    pub(super) fn part(
        &self,
        black_box: BlackBox,
        communicator: &'static Communicator,
        outer: Outer,
        work: &Work,
        real: &mut dyn FnMut() -> Status,
    ) -> Status {
        guarded(|| black_box.lower_call(&work.call, communicator.size));
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
                completion::track_part(black_box, communicator, work, call);
                memory::after_call(black_box, communicator, status);
            }
        });
        status
    }

    /// Records the calls of the group, which are about to be made. If the group contains calls of a
    /// framework that have already returned, also records that the thread enters the function, and
    /// returns where to record that it left.
    fn launch(&self, function: &'static CStr) -> Option<BlackBox> {
        let Gathered { works, issued, of_framework, .. } = &mut *self.group.borrow_mut();
        let is_kept = *of_framework && black_box::outer() == Outer::Nothing;
        let kept = black_box::current().filter(|_| is_kept);
        if let Some(black_box) = kept {
            black_box.within(call_records::public_name(function));
        }
        if works.is_empty() {
            return kept;
        }
        let launch = launches::next_number();
        // The sort is stable, since messages between two ranks are matched in order, and allocates
        // nothing.
        launches::sort(works);
        issued.clear();
        for (communicator, work) in works.iter() {
            let Some((black_box, communicator)) = call_records::with_box(Some(communicator)) else {
                continue;
            };
            issued.push(call_records::issued(black_box, communicator, work, launch));
        }
        kept
    }

    /// Records that the calls of the group were made or rejected.
    fn launched(&self, function: &'static CStr, status: Status) {
        let creations = {
            let mut group = self.group.borrow_mut();
            let Gathered { works, parts, parts_cut, issued, creations, .. } = &mut *group;
            let recorded = works.iter().filter_map(|(communicator, work)| {
                Some((call_records::with_box(Some(communicator))?, work))
            });
            let mut refused = !is_taken(status);
            for (((black_box, communicator), work), &call) in recorded.zip(issued.iter()) {
                if mem::take(&mut refused) {
                    call_records::refused(black_box, function, status);
                }
                let followed =
                    is_taken(status) && completion::track(black_box, communicator, work, call);
                black_box.returned(call, followed);
                memory::after_call(black_box, communicator, status);
            }
            if is_taken(status) && !*parts_cut {
                for (call, communicator, work) in parts.iter() {
                    if let Some((black_box, communicator)) =
                        call_records::with_box(Some(communicator))
                    {
                        completion::track_part(black_box, communicator, work, *call);
                        memory::after_call(black_box, communicator, status);
                    }
                }
            }
            let creations = mem::take(creations);
            group.forget();
            creations
        };
        for creation in creations {
            creation.end(status);
        }
    }
}

impl Gathered {
    pub(super) const fn new() -> Self {
        Self {
            works: Vec::new(),
            parts: Vec::new(),
            of_framework: false,
            parts_cut: false,
            issued: Vec::new(),
            creations: Vec::new(),
        }
    }

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
            self.parts.reserve_exact(MAX_PARTS);
        }
        if self.parts.len() < MAX_PARTS {
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
