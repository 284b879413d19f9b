//! Calls of a group, from the program's side to the end of the outermost one: as in [`watch`](crate::watch),
//! for calls that NCCL tells of.

use std::cell::RefCell;

use super::events;
use crate::comms::Communicator;
use crate::records::{self, Work};
use crate::{sink, watch};

/// Calls that are put in order; of a larger group, so many at a time.
const MOST: usize = 1024;

/// What a thread has called and not ended.
struct Launch {
    /// The stream's handle is the number of the call's event instead: nothing is put on the stream here.
    works: Vec<(&'static Communicator, Work)>,
    /// Calls that were recorded as begun.
    begun: Vec<(&'static Communicator, u64)>,
    /// Numbers the launch; 0: none is under way.
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
    // A thread at its end has none, and whoever is called from within a call of ours is not NCCL.
    drop(LAUNCH.try_with(|launch| launch.try_borrow_mut().map(|mut launch| work(&mut launch))));
}

/// A call of the group that this thread is in.
pub(super) fn gather(communicator: &'static Communicator, work: Work) {
    with(|launch| {
        if launch.works.capacity() == 0 {
            launch.works.reserve_exact(MOST);
            launch.begun.reserve_exact(MOST);
        }
        launch.works.push((communicator, work));
        if launch.works.len() >= MOST {
            launch.begin();
            launch.end();
        }
    });
}

/// The group's calls are about to be made.
pub(super) fn begin() {
    with(Launch::begin);
}

/// A message that is made now, as part of what has begun. Gives its call.
pub(super) fn message(communicator: &'static Communicator, work: &Work) -> u64 {
    let mut call = 0;
    with(|launch| {
        let number = launch.number();
        if let Some((sink, communicator)) = records::of(Some(communicator)) {
            call = records::issued(sink, communicator, work, number);
            launch.begun.push((communicator, call));
        }
    });
    call
}

/// They were made.
pub(super) fn end() {
    with(Launch::end);
}

/// The kernel of a call has ended.
pub(super) fn complete(call: u64) {
    if let Some(sink) = sink::current() {
        sink.completed(call);
    }
}

impl Launch {
    fn number(&mut self) -> u32 {
        if self.number == 0 {
            self.number = watch::next_launch();
        }
        self.number
    }

    fn begin(&mut self) {
        let number = self.number();
        watch::in_order(&mut self.works);
        for (communicator, work) in self.works.drain(..) {
            let Some((sink, communicator)) = records::of(Some(communicator)) else {
                continue;
            };
            let call = records::issued(sink, communicator, &work, number);
            let event = events::find(work.handle.addr());
            if let Some(done) = event.and_then(|event| event.recorded(call)) {
                complete(done);
            }
            self.begun.push((communicator, call));
        }
    }

    fn end(&mut self) {
        for (communicator, call) in self.begun.drain(..) {
            // The box may have been closed meanwhile, and a fork has another one.
            if let Some((sink, _)) = records::of(Some(communicator)) {
                sink.returned(call, false);
            }
        }
        self.number = 0;
    }
}
