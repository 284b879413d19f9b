//! Calls of a group, collected until the outermost group ends. Like `hooks/groups.rs`, for
//! calls that NCCL reports to its profiler.

use std::cell::RefCell;

use super::events;
use crate::communicators::Communicator;
use crate::recording::call_records::{self, Work};
use crate::recording::{black_box, launches};

/// Maximum number of calls that are sorted together; larger groups are recorded in pieces.
const MAX_SORTED: usize = 1024;

/// Calls of a thread in its current group.
struct Launch {
    /// Calls not yet recorded. `Work::handle` is the number of the call's event, since no stream is
    /// used.
    works: Vec<(&'static Communicator, Work)>,
    /// Calls that were recorded as issued.
    begun: Vec<(&'static Communicator, u64)>,
    /// Number of the launch; 0: none is in progress.
    number: u32,
}

thread_local! {
    static LAUNCH: RefCell<Launch> = const {
        RefCell::new(Launch {
            works: Vec::new(),
            begun: Vec::new(),
            number: 0,
        })
    };
}

fn with(work: impl FnOnce(&mut Launch)) {
    // Does nothing while the thread is ending, or if it is called recursively.
    drop(LAUNCH.try_with(|launch| launch.try_borrow_mut().map(|mut launch| work(&mut launch))));
}

/// Adds a call to the group of this thread.
pub(super) fn gather(communicator: &'static Communicator, work: Work) {
    with(|launch| {
        if launch.works.capacity() == 0 {
            launch.works.reserve_exact(MAX_SORTED);
            launch.begun.reserve_exact(MAX_SORTED);
        }
        launch.works.push((communicator, work));
        if launch.works.len() >= MAX_SORTED {
            launch.begin();
            launch.end();
        }
    });
}

/// Records the calls of the group, which are about to be made.
pub(super) fn begin() {
    with(Launch::begin);
}

/// Records a message that is made now, in the current launch. Returns its id; 0: not recorded.
pub(super) fn message(communicator: &'static Communicator, work: &Work) -> u64 {
    let mut call = 0;
    with(|launch| {
        let number = launch.number();
        if let Some((black_box, communicator)) = call_records::with_box(Some(communicator)) {
            call = call_records::issued(black_box, communicator, work, number);
            launch.begun.push((communicator, call));
        }
    });
    call
}

/// Records that the calls of the group were made.
pub(super) fn end() {
    with(Launch::end);
}

/// Records that the kernel of a call has ended.
pub(super) fn complete(call: u64) {
    if let Some(black_box) = black_box::current() {
        black_box.completed(call);
    }
}

impl Launch {
    fn number(&mut self) -> u32 {
        if self.number == 0 {
            self.number = launches::next_number();
        }
        self.number
    }

    fn begin(&mut self) {
        let number = self.number();
        launches::sort(&mut self.works);
        for (communicator, work) in self.works.drain(..) {
            let Some((black_box, communicator)) = call_records::with_box(Some(communicator)) else {
                continue;
            };
            let call = call_records::issued(black_box, communicator, &work, number);
            let event = events::find(work.handle.addr());
            if let Some(done) = event.and_then(|event| event.recorded(call)) {
                complete(done);
            }
            self.begun.push((communicator, call));
        }
    }

    fn end(&mut self) {
        for (communicator, call) in self.begun.drain(..) {
            // The box may have been closed, or replaced after a fork.
            if let Some((black_box, _)) = call_records::with_box(Some(communicator)) {
                black_box.returned(call, false);
            }
        }
        self.number = 0;
    }
}
