//! Communicators that NCCL creates in the background, whose handles are unknown when their creation
//! returns. Each is registered when its handle is first used.

use std::sync::Mutex;
use std::thread;

use crate::abi::Comm;
use crate::comms::{self, Communicator};
use crate::init::Made;
use crate::queries::seat_of;
use crate::sink::{self, Sink};

/// Maximum number of communicators without a handle.
const MOST_PENDING: usize = 256;

static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

struct Pending {
    /// The box in which to register it, see [`Sink::name`].
    sink: usize,
    of_framework: bool,
    made: Made,
}

/// Remembers a communicator until its handle is first used.
pub(crate) fn add(sink: Sink, made: Made, of_framework: bool) {
    if let Ok(mut pending) = PENDING.try_lock()
        && pending.len() < MOST_PENDING
    {
        pending.push(Pending { sink: sink.name(), of_framework, made });
    }
}

/// Binds an unknown handle to the oldest pending communicator in which this process has the
/// handle's rank and size.
#[cold]
pub(crate) fn bind(comm: Comm) -> Option<&'static Communicator> {
    let sink = sink::current()?;
    if comm.is_null() {
        return None;
    }
    // Other threads hold the lock only briefly. In a child forked meanwhile it is never released.
    let mut pending = (0..1000).find_map(|_| {
        let pending = PENDING.try_lock().ok();
        if pending.is_none() {
            thread::yield_now();
        }
        pending
    })?;
    if pending.is_empty() {
        return None;
    }
    let seat = seat_of(comm);
    let fits = |made: &Made| made.seat.is_none() || made.seat == seat;
    let name = sink.name();
    let mut open = pending.iter();
    let at = open.position(|it| it.sink == name && fits(&it.made))?;
    let it = pending.remove(at);
    drop(pending);
    it.made.known_as(sink, comm, it.of_framework, None);
    comms::find(comm)
}
