//! NCCL for tests on machines without a GPU: the interface of version 2.29, over the host's memory, but for what
//! kernels of a program's own do, one-sided messages and what gives memory back for a while.
//!
//! Ranks are processes (or threads, with `ncclCommInitAll`). They meet where the unique id says: the
//! process that made it listens there, as NCCL's bootstrap root does. Collectives exchange the data of
//! buffers and wait for each other; they are host functions in the streams of the CUDA double, so that
//! calls return at once and their work is done later, in the order of the stream and, within a
//! communicator, in the order of the calls.
//!
//! What is kept of NCCL's behaviour, because programs and tools hang by it:
//!
//! * Nothing compares what ranks call. A call whose peers do something else (another collective, another
//!   size, another root) never completes; other dtypes of as many bytes, or another reduction, give
//!   wrong results.
//! * The initialisation, split, shrink, grow and the end of a communicator are collective, and block the host
//!   until all who must have come. So does the first send or receive between two ranks, which connects
//!   them: each side waits for the other to want the same, so that a pair which one side groups and the
//!   other does not never connects.
//! * A send ends when it was received, a broadcast's root and a reduction's leaves as soon as they have
//!   sent.
//! * Groups: depth by thread; calls are launched, and errors told, at the outermost end; collectives of
//!   one group are done in the order of their sizes. What a call with a bad argument says, the end of the
//!   group says too, and launches nothing.
//! * Whoever loses a peer waits for ever, and is told nothing.
//! * Handles of communicators that are gone are given out again.
//!
//! Of registrations only the calls are there. `NCCL_DOUBLE_FAULTS` makes calls late, stuck or fail;
//! see `fault.rs`.

#[path = "../../handles.rs"]
mod handles;
// NCCL's hashes, which are tested there by what its source gives.
#[path = "../../../../agent/src/identity.rs"]
pub mod identity;

mod abi;
mod arithmetic;
mod bootstrap;
mod calls;
mod comm;
mod driver;
mod fault;
mod group;
mod lifecycle;
mod mesh;
mod pointers;
mod work;

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An `ncclResult_t` that is no success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status(i32);

type Result<T> = std::result::Result<T, Status>;

impl Status {
    const CUDA_ERROR: Self = Self(1);
    const SYSTEM_ERROR: Self = Self(2);
    const INTERNAL_ERROR: Self = Self(3);
    const INVALID_ARGUMENT: Self = Self(4);
    const INVALID_USAGE: Self = Self(5);
    const REMOTE_ERROR: Self = Self(6);
    const IN_PROGRESS: Self = Self(7);
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Leaves a text for `ncclGetLastError`.
fn refuse<T>(status: Status, why: String) -> Result<T> {
    LAST_ERROR.set(CString::new(why).unwrap_or_default());
    Err(status)
}

/// The text of the last error on this thread, which stands until the next one.
fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// Takes a lock. Whoever panicked with it has ended the test already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
