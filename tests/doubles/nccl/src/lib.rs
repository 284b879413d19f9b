//! NCCL for tests on machines without a GPU: the interface of version 2.29 over host memory,
//! without the device API, one-sided messages and suspension of memory.
//!
//! Ranks are processes (or threads, with `ncclCommInitAll`). They meet at the address in the unique
//! id, where the process that created it listens, like NCCL's bootstrap root. Collectives exchange
//! the data of buffers and wait for each other; they are host functions in the streams of the CUDA
//! double, so that calls return at once and their work is done later, in the order of the stream
//! and, within a communicator, in the order of the calls.
//!
//! NCCL's behavior that causes hangs is preserved:
//!
//! * The calls of ranks are not compared. A call whose peers do something else (another
//!   collective, size or root) never completes; another dtype of the same size, or another
//!   reduction, gives wrong results.
//! * Initialization, split, shrink, grow and the end of a communicator are collective, and block
//!   the host until all required ranks have arrived. So does the first send or receive between two
//!   ranks, which connects them: each side waits until the other requests the matching directions,
//!   so that a pair that only one side groups never connects.
//! * A send ends when it was received; the root of a broadcast and the leaves of a reduction end as
//!   soon as they have sent.
//! * The depth of groups is per thread. Calls are launched, and errors returned, at the outermost
//!   end. The collectives of a group are ordered by size. If a call in a group fails, the end of
//!   the group returns the same error and launches nothing.
//! * A rank that loses a peer waits for ever, without an error.
//! * Handles of destroyed communicators are reused.
//!
//! Registrations have no effect. `NCCL_DOUBLE_FAULTS` delays calls, blocks them or makes them fail;
//! see `fault.rs`.

#[path = "../../handles.rs"]
mod handles;
// NCCL's hashes; that file tests them with values from NCCL's source.
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

/// An `ncclResult_t` other than success.
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

/// Returns an error and stores its text for `ncclGetLastError`.
fn refuse<T>(status: Status, why: String) -> Result<T> {
    LAST_ERROR.set(CString::new(why).unwrap_or_default());
    Err(status)
}

/// Text of the last error on this thread; valid until the next one.
fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// Takes a lock. A panic while it was held has already failed the test, so that poisoning is
/// ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
