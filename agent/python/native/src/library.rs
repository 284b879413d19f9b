//! The functions of `libddp_doctor.so`, whose addresses the Python package passes. This library
//! neither links nor loads that one, so both write the same black box.
#![expect(unsafe_code, reason = "calls functions by their addresses")]

use std::mem;

use ddp_doctor_proto::blackbox::Call;

type IssuedAt = unsafe extern "C" fn(*const Call, u32, u32) -> u64;
type OfCall = unsafe extern "C" fn(u64);
type OfCallAndSite = unsafe extern "C" fn(u64, u32);
type Forward = unsafe extern "C" fn(u32, i64, u32) -> u32;
type Spent = unsafe extern "C" fn(i32, u64, u32);

/// The functions of the C API that record calls, waits and steps.
pub(crate) struct Library {
    issued_at: IssuedAt,
    returned: OfCall,
    wait_begin: OfCallAndSite,
    wait_end: OfCall,
    forward: Forward,
    spent: Spent,
}

impl Library {
    /// # Safety
    ///
    /// The addresses are those of `ddp_doctor_issued_at`, `ddp_doctor_returned`,
    /// `ddp_doctor_wait_begin`, `ddp_doctor_wait_end`, `ddp_doctor_forward` and `ddp_doctor_spent`, or 0.
    pub(crate) unsafe fn new(addresses: [usize; 6]) -> Option<Self> {
        if addresses.contains(&0) {
            return None;
        }
        let [issued_at, returned, wait_begin, wait_end, forward, spent] = addresses;
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            Some(Self {
                issued_at: mem::transmute::<usize, IssuedAt>(issued_at),
                returned: mem::transmute::<usize, OfCall>(returned),
                wait_begin: mem::transmute::<usize, OfCallAndSite>(wait_begin),
                wait_end: mem::transmute::<usize, OfCall>(wait_end),
                forward: mem::transmute::<usize, Forward>(forward),
                spent: mem::transmute::<usize, Spent>(spent),
            })
        }
    }

    pub(crate) fn issued_at(&self, call: &Call, group: u32, site: u32) -> u64 {
        // SAFETY: the function reads the call before it returns, and accepts any numbers.
        unsafe { (self.issued_at)(call, group, site) }
    }

    pub(crate) fn returned(&self, call: u64) {
        // SAFETY: the function accepts any number.
        unsafe { (self.returned)(call) }
    }

    pub(crate) fn wait_begin(&self, call: u64, site: u32) {
        // SAFETY: the function accepts any numbers.
        unsafe { (self.wait_begin)(call, site) }
    }

    pub(crate) fn wait_end(&self, call: u64) {
        // SAFETY: the function accepts any number.
        unsafe { (self.wait_end)(call) }
    }

    pub(crate) fn forward(&self, site: u32, batches: i64, flags: u32) {
        // SAFETY: the function accepts any numbers.
        unsafe { (self.forward)(site, batches, flags) };
    }

    pub(crate) fn spent(&self, on: i32, nanoseconds: u64) {
        // SAFETY: the function accepts any numbers.
        unsafe { (self.spent)(on, nanoseconds, 0) }
    }
}

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live value.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now
}

/// Nanoseconds of the clock of `time.perf_counter_ns()`.
pub(crate) fn nanoseconds() -> u64 {
    let now = read(libc::CLOCK_MONOTONIC);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000) + now.tv_nsec.cast_unsigned()
}

/// Milliseconds of the monotonic clock, which advances with the kernel's ticks: reading it costs a few nanoseconds.
pub(crate) fn coarse_milliseconds() -> u64 {
    let now = read(libc::CLOCK_MONOTONIC_COARSE);
    now.tv_sec.cast_unsigned().wrapping_mul(1000) + now.tv_nsec.cast_unsigned() / 1_000_000
}
