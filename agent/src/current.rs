//! The one black box of this process, whoever writes it: the Rust API or the C API.
#![expect(unsafe_code, reason = "lends what a static pointer leads to")]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::blackbox::{CreateError, Options, Place, Writer};
use crate::{reporter, sys};

/// The open box; null: there is none. A box is never freed, for another thread may be in it.
static OPEN: AtomicPtr<Writer> = AtomicPtr::new(ptr::null_mut());
/// The box of this process, open or closed.
static OWN: AtomicPtr<Writer> = AtomicPtr::new(ptr::null_mut());
/// A thread is making a box. No lock: a child forked meanwhile would inherit it, taken for ever.
static MAKING: AtomicBool = AtomicBool::new(false);
/// The fork handler is registered: once is enough, also for children.
static HANDLER: AtomicBool = AtomicBool::new(false);

/// The open box of this process.
#[inline]
#[must_use]
pub fn current() -> Option<&'static Writer> {
    lend(&OPEN)
}

#[inline]
fn lend(from: &AtomicPtr<Writer>) -> Option<&'static Writer> {
    let writer = from.load(Ordering::Acquire);
    // SAFETY: null, or a box that was leaked before it was stored; those live for ever and are only
    // shared.
    unsafe { writer.as_ref() }
}

/// How [`open`] went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// A box was made, or the closed one opened again.
    Now,
    /// There was one already, or another thread is making it.
    Already,
}

/// Makes the box of this process, unless it has one: that is kept, and told the identity.
///
/// A new box that nobody follows is reported to the coordinator that `DDP_DOCTOR_COORDINATOR` names:
/// the program `ddp-doctor` is started for it.
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
        // Where it cannot be registered, a child might write here: better no box.
        if !HANDLER.swap(true, Ordering::AcqRel)
            && let Err(error) = sys::after_fork_in_child(be_silent)
        {
            HANDLER.store(false, Ordering::Release);
            return Err(CreateError::NoForkHandler(error));
        }
        let writer = Box::new(Writer::create(place, options)?);
        reporter::start(writer.path(), options.local_rank);
        OWN.store(Box::into_raw(writer), Ordering::Release);
    }
    OPEN.store(OWN.load(Ordering::Acquire), Ordering::Release);
    #[cfg(feature = "cuda")]
    if let Some(writer) = current() {
        crate::gpu::start(writer);
    }
    Ok(Opened::Now)
}

/// Marks the box as closed. What other threads are writing at this moment still gets into it.
pub fn close() {
    if let Some(writer) = current() {
        OPEN.store(ptr::null_mut(), Ordering::Release);
        writer.close();
    }
}

/// A forked child has the memory of its parent, and with it the parent's box: it must not write
/// there, and is silent until it opens one of its own.
extern "C" fn be_silent() {
    OPEN.store(ptr::null_mut(), Ordering::Release);
    OWN.store(ptr::null_mut(), Ordering::Release);
    MAKING.store(false, Ordering::Release);
}
