//! The black box that this library opens if the process has none, and the identity that it gives it.
#![expect(unsafe_code, reason = "registers a handler of the C library")]

use std::env;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use ddp_doctor_agent::blackbox::{Place, Seat, Writer};
use ddp_doctor_agent::{current, is_disabled, open, options_from_env};

use super::black_box::{self, BlackBox};
use crate::nccl;
use crate::panic_guard::guarded;

/// Environment variables of launchers: rank, world size, and the optional local rank. A launcher
/// counts only if it sets rank and world size.
const LAUNCHERS: [[&str; 3]; 5] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// The open box of this process; opens this library's box if there is none. `None`: nothing is
/// recorded.
pub(crate) fn open_box(seat: Option<Seat>) -> Option<BlackBox> {
    black_box::find_services();
    match black_box::current() {
        Some(black_box) => {
            if black_box.is_shared() {
                record_libraries(black_box);
            }
            Some(black_box)
        }
        None => own_box(seat).map(BlackBox::Own),
    }
}

/// The box of this library, which is created with the process's first communicator. `seat` is the
/// process's place in that communicator. `None`: nothing is recorded, or another library has the
/// box.
pub(crate) fn own_box(seat: Option<Seat>) -> Option<&'static Writer> {
    if let Some(writer) = current() {
        return Some(writer);
    }
    black_box::find_services();
    if is_disabled() || black_box::current().is_some_and(BlackBox::is_shared) {
        return None;
    }
    let mut options = options_from_env("nccl");
    let size = seat.map_or(1, |seat| seat.size);
    let launched = LAUNCHERS.iter().find_map(|names| variables_of(names, size));
    let own = || seat.map(|seat| (seat.rank, seat.size, None));
    if let Some((rank, world_size, local_rank)) = launched.or_else(own) {
        options.rank = Some(rank);
        options.world_size = Some(world_size);
        options.local_rank = local_rank;
    }
    let place = Place::from_env(&options.job, &options.world);
    open(&place, &options).ok()?;
    let writer = current()?;
    if let Some(version) = nccl::version() {
        writer.setting(b"nccl", version.as_bytes());
    }
    record_libraries(BlackBox::Own(writer));
    announce_the_end();
    Some(writer)
}

/// Registers a handler that records the exit status. A parent may reap the process before it is
/// seen from outside.
fn announce_the_end() {
    /// Registered once; a forked child inherits the handler, which does nothing without a box.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" {
        /// From the C library, like `atexit` with the exit status.
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn ends(status: c_int, _: *mut c_void) {
        guarded(|| {
            if let Some(writer) = current() {
                writer.exit(status & 0xff, b"exit", 0);
            }
        });
    }
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the function is part of this library, which is not unloaded before the process
        // exits.
        unsafe { on_exit(ends, ptr::null_mut()) };
    }
}

/// Rank, world size and local rank from a launcher's variables; `None`: they are not set, or not
/// for this program, since the communicator is larger than the world.
fn variables_of(names: &[&str; 3], size: u32) -> Option<(u32, u32, Option<u32>)> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    let [rank, world_size, local_rank] = names;
    let (rank, world_size) = (number(rank)?, number(world_size)?);
    (rank < world_size && size <= world_size).then(|| (rank, world_size, number(local_rank)))
}

/// Records the loaded NCCL libraries once, if there are several.
fn record_libraries(black_box: BlackBox) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::AcqRel) {
        return;
    }
    let loaded = nccl::loaded();
    if loaded.len() > 1 {
        let described = |path: &CString| {
            let version = nccl::version_of(path).unwrap_or_else(|| "?".into());
            [version.as_bytes(), b" ", path.to_bytes()].concat()
        };
        let libraries: Vec<Vec<u8>> = loaded.iter().map(described).collect();
        black_box.setting(b"nccl libraries", &libraries.join(&b", "[..]));
    }
}
