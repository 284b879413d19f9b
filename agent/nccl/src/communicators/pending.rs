//! Communicators that NCCL creates in the background, whose handles are unknown when their creation
//! returns. Each is registered when its handle is first used.

use std::sync::Mutex;
use std::thread;

use super::communicator::Communicator;
use super::creation::NewCommunicator;
use super::table;
use crate::nccl::abi::Comm;
use crate::nccl::seat_of;
use crate::panic_guard::guarded;
use crate::recording::black_box::{self, BlackBox};

/// Maximum number of communicators without a handle.
const MAX_PENDING: usize = 256;

static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

struct Pending {
    /// The box in which to register it, see [`BlackBox::id`].
    black_box: usize,
    of_framework: bool,
    made: NewCommunicator,
}

/// Remembers a communicator until its handle is first used.
pub(super) fn add(black_box: BlackBox, made: NewCommunicator, of_framework: bool) {
    if let Ok(mut pending) = PENDING.try_lock()
        && pending.len() < MAX_PENDING
    {
        pending.push(Pending { black_box: black_box.id(), of_framework, made });
    }
}

/// The communicator that a handle stands for. One that was created in the background gets its handle
/// here, at its first use.
#[inline]
pub(crate) fn find_or_bind(comm: Comm) -> Option<&'static Communicator> {
    table::find(comm).or_else(|| guarded(|| bind(comm)))
}

/// Binds an unknown handle to the oldest pending communicator in which this process has the
/// handle's rank and size.
#[cold]
fn bind(comm: Comm) -> Option<&'static Communicator> {
    let black_box = black_box::current()?;
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
    let fits = |made: &NewCommunicator| made.seat.is_none() || made.seat == seat;
    let id = black_box.id();
    let mut open = pending.iter();
    let at = open.position(|it| it.black_box == id && fits(&it.made))?;
    let it = pending.remove(at);
    drop(pending);
    it.made.register(black_box, comm, it.of_framework, None);
    table::find(comm)
}
