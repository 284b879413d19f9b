//! A CUDA driver for tests on machines without one.
//!
//! A **stream** is a queue with a thread that runs its tasks in order, so that calls return at once
//! and their work is done later. A task is a host function (`cuLaunchHostFunc`), a copy, an event,
//! or a wait for one. The NCCL double is an ordinary client: its collectives are host functions
//! that block their stream. **Device memory** is host memory, counted against a total per device;
//! an allocation beyond it fails. **Captures** are stored and replayed; as with the driver, a call
//! that is forbidden during a capture fails and invalidates it.
//!
//! Unlike a driver: the default stream waits for no other; a capture does not extend to other
//! streams (their waits for a captured event fail); processes do not share devices.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `CUDA_DOUBLE_DEVICES` | number of devices | 8 |
//! | `CUDA_DOUBLE_MEMORY` | memory of each device, in bytes | 1 GiB |

#[path = "../../handles.rs"]
mod handles;

mod abi;
mod capture;
mod device;
mod event;
mod pointers;
mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A `CUresult` other than success.
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

/// Takes a lock. A panic while it was held has already failed the test, so that poisoning is
/// ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
