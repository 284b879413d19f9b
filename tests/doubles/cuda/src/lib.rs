//! A CUDA driver for tests on machines that have none.
//!
//! A **stream** is a queue with a thread that works it off, so that calls return at once and what they
//! asked for is done later, in order; what is put into a stream is a host function (`cuLaunchHostFunc`),
//! an event, or a wait for one. The NCCL double is a client like any other: its collectives are host
//! functions that block their stream. **Device memory** is the host's, counted against a total per
//! device, so that allocations fail where the total is used up. **Captures** are kept and replayed; what
//! the driver forbids while one is under way is refused and spoils it, as there.
//!
//! Different from a driver: the default stream waits for no other; a capture does not spread to other
//! streams (their waits for a captured event are refused); devices are not shared by processes.
//!
//! | variable | |
//! |---|---|
//! | `CUDA_DOUBLE_DEVICES` | how many devices there are; 8 |
//! | `CUDA_DOUBLE_MEMORY` | bytes of each; 1 GiB |

#[path = "../../handles.rs"]
mod handles;

mod abi;
mod capture;
mod device;
mod event;
mod pointers;
mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A `CUresult` that is no success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status(i32);

type Result<T> = std::result::Result<T, Status>;

impl Status {
    const INVALID_VALUE: Self = Self(1);
    const OUT_OF_MEMORY: Self = Self(2);
    const NOT_INITIALIZED: Self = Self(3);
    const INVALID_DEVICE: Self = Self(101);
    const INVALID_CONTEXT: Self = Self(201);
    const INVALID_HANDLE: Self = Self(400);
    const NOT_FOUND: Self = Self(500);
    const NOT_READY: Self = Self(600);
    const CAPTURE_UNSUPPORTED: Self = Self(900);
    const CAPTURE_INVALIDATED: Self = Self(901);
    const CAPTURE_UNMATCHED: Self = Self(903);
    const CAPTURE_ISOLATION: Self = Self(905);
    const CAPTURED_EVENT: Self = Self(907);
    const CAPTURE_WRONG_THREAD: Self = Self(908);
}

/// Takes a lock. Whoever panicked with it has ended the test already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
