//! Queries to NCCL: its version, and properties of communicators.
#![expect(unsafe_code, reason = "calls functions of NCCL")]

use std::ffi::{CStr, c_int, c_void};
use std::mem;

use ddp_doctor_agent::blackbox::Seat;

use super::abi::{Comm, Status};
use super::library::{self, Function};

static VERSION: Function = Function::new(c"pncclGetVersion");
static COUNT: Function = Function::new(c"pncclCommCount");
static USER_RANK: Function = Function::new(c"pncclCommUserRank");
static CU_DEVICE: Function = Function::new(c"pncclCommCuDevice");

/// Version of the NCCL that is called, such as "2.27.5".
pub(crate) fn version() -> Option<String> {
    version_text(library::query_version(VERSION.address())?)
}

/// Version of an NCCL library that is already loaded.
pub(crate) fn version_of(path: &CStr) -> Option<String> {
    version_text(library::version_of(path)?)
}

/// Formats a version code of NCCL, such as "2.27.5".
fn version_text(code: c_int) -> Option<String> {
    let code = u32::try_from(code).ok()?;
    let of = |major: u32| (code / major, code % major / 100, code % 100);
    // NCCL 2.9 changed the encoding.
    let (major, minor, patch) = of(if code < 10_000 { 1000 } else { 10_000 });
    Some(format!("{major}.{minor}.{patch}"))
}

/// Queries an integer property of a communicator.
fn query(function: &Function, comm: Comm) -> Option<c_int> {
    let function = function.address();
    if function.is_null() {
        return None;
    }
    let mut answer: c_int = 0;
    // SAFETY: all three functions have this type, and NCCL returned the handle.
    let status = unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *mut c_int) -> Status =
            mem::transmute(function);
        function(comm, &mut answer)
    };
    (status == 0).then_some(answer)
}

/// Number of a communicator's device in this process; `None`: unknown.
pub(crate) fn device_of(comm: Comm) -> Option<c_int> {
    query(&CU_DEVICE, comm)
}

/// Rank and size according to NCCL.
pub(crate) fn seat_of(comm: Comm) -> Option<Seat> {
    seat(query(&USER_RANK, comm)?, query(&COUNT, comm)?)
}

/// Rank and size in a communicator; `None`: invalid.
pub(crate) fn seat(rank: c_int, size: c_int) -> Option<Seat> {
    let (rank, size) = (u32::try_from(rank).ok()?, u32::try_from(size).ok()?);
    (rank < size).then_some(Seat { rank, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_outside_the_communicator_is_invalid() {
        assert_eq!(seat(1, 2), Some(Seat { rank: 1, size: 2 }));
        for (rank, size) in [(2, 2), (-1, 2), (0, 0), (0, -1)] {
            assert_eq!(seat(rank, size), None);
        }
    }
}
