//! The one black box of this process, shared by the Rust API and the C API.
#![expect(unsafe_code, reason = "lends what a static pointer leads to")]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::blackbox::{self, CreateError, Options, Place, Writer};
use crate::{reporter, sys};

/// The open box; null: there is none. A box is never freed, since another thread may be using it.
static OPEN: AtomicPtr<Writer> = AtomicPtr::new(ptr::null_mut());
/// The box of this process, open or closed.
static OWN: AtomicPtr<Writer> = AtomicPtr::new(ptr::null_mut());
/// A thread is creating a box. A mutex would stay locked in a child that is forked meanwhile.
static MAKING: AtomicBool = AtomicBool::new(false);
/// The fork handler is registered. Children inherit it.
static HANDLER: AtomicBool = AtomicBool::new(false);

/// The open box of this process.
#[inline]
#[must_use]
pub fn current() -> Option<&'static Writer> {
    lend(&OPEN)
}

/// Whether the box may still be written: it is open and belongs to this process.
pub(crate) fn is_current(writer: &'static Writer) -> bool {
    current().is_some_and(|current| ptr::eq(current, writer))
}

#[inline]
fn lend(from: &AtomicPtr<Writer>) -> Option<&'static Writer> {
    let writer = from.load(Ordering::Acquire);
    // SAFETY: null, or a box that was leaked before it was stored, lives forever and is only
    // shared.
    unsafe { writer.as_ref() }
}

/// Result of [`open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// A box was created, or the closed one was reopened.
    Now,
    /// The process already had an open box, or another thread is creating it.
    Already,
}

/// Creates the box of this process. An existing box is kept and its identity updated.
///
/// If `DDP_DOCTOR_COORDINATOR` names a coordinator and `ddp-doctor run` does not follow the box,
/// the program `ddp-doctor` is started to report it.
pub fn open(place: &Place, options: &Options) -> Result<Opened, CreateError> {
    if let Some(writer) = current() {
        writer.set_identity(options.rank, options.world_size, options.local_rank);
        return Ok(Opened::Already);
    }
    if MAKING.swap(true, Ordering::Acquire) {
        return Ok(Opened::Already);
    }
    let opened = open_own(place, options);
    MAKING.store(false, Ordering::Release);
    opened
}

fn open_own(place: &Place, options: &Options) -> Result<Opened, CreateError> {
    if let Some(writer) = lend(&OWN) {
        writer.reopen();
        writer.set_identity(options.rank, options.world_size, options.local_rank);
    } else {
        // Without the handler a forked child could write into the parent's box, so no box is
        // created.
        if !HANDLER.swap(true, Ordering::AcqRel)
            && let Err(error) = sys::after_fork_in_child(be_silent)
        {
            HANDLER.store(false, Ordering::Release);
            return Err(CreateError::NoForkHandler(error));
        }
        let created = Writer::create(place, options);
        let writer = Box::new(
            created.inspect_err(|error| reporter::no_box(error, place, options.local_rank))?,
        );
        reporter::start(&writer, place, options.local_rank);
        OWN.store(Box::into_raw(writer), Ordering::Release);
    }
    OPEN.store(OWN.load(Ordering::Acquire), Ordering::Release);
    #[cfg(feature = "cuda")]
    if let Some(writer) = current() {
        crate::gpu::start(writer, is_current);
    }
    Ok(Opened::Now)
}

/// Marks the box as closed. Records that other threads are writing at this moment may still follow.
pub fn close() {
    if let Some(writer) = current() {
        OPEN.store(ptr::null_mut(), Ordering::Release);
        writer.close();
    }
}

/// Runs in a forked child, which inherits its parent's box and must not write to it. The child
/// records nothing until it opens a box of its own.
extern "C" fn be_silent() {
    OPEN.store(ptr::null_mut(), Ordering::Release);
    OWN.store(ptr::null_mut(), Ordering::Release);
    MAKING.store(false, Ordering::Release);
    blackbox::reset_after_fork();
}
