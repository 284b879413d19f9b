//! The memory of the device that a rank uses, by the CUDA driver: how much of it is taken, by whomever.
//!
//! A thread of its own asks, and only the driver that the program has loaded, in a context that the program
//! has. It asks the oftener the less is left, since memory that runs out does so between two steps.
//!
//! Off unless `DDP_DOCTOR_GPU_MEMORY=1`, since it has not been run on a GPU yet.

use std::env;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ddp_doctor_agent::blackbox::Writer;
use ddp_doctor_agent::current;
use ddp_doctor_proto::blackbox::memory::Sample;

use crate::driver::{self, SUCCESS, current_context, mem_get_info};

/// Switches it on where it is "1".
const SWITCH: &str = "DDP_DOCTOR_GPU_MEMORY";
/// Time between two looks, …
const EVERY: Duration = Duration::from_secs(1);
/// … where so little of all is left, a quarter, …
const LITTLE: u64 = 4;
/// … this.
const SOON: Duration = Duration::from_millis(100);
/// What a device has more or less is worth a sample from that many bytes on, …
const STEP: u64 = 4 << 20;
/// … or that share of all it has, whichever is more.
const SHARE: u64 = 200;

/// Whether the memory of devices is asked for.
pub(crate) fn is_wanted() -> bool {
    env::var_os(SWITCH).is_some_and(|value| value == "1")
}

/// Begins to ask for the device with that number, which the calling thread uses.
pub(crate) fn watch(writer: &'static Writer, device: c_int) {
    /// One device is a rank's.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !is_wanted() {
        return;
    }
    let (Some(context), Ok(device)) = (current_context(), u32::try_from(device)) else {
        return;
    };
    if WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    driver::in_a_thread(c"ddp-nccl-memory", context, move || ask(writer, device));
}

/// Asks until the process ends, and tells what is noticeable.
fn ask(writer: &'static Writer, device: u32) {
    let mut told: Option<u64> = None;
    while !driver::is_ending() {
        let open = current().is_some_and(|open| std::ptr::eq(open, writer));
        let (mut free, mut total) = (0, 0);
        if !open || mem_get_info(&mut free, &mut total) != Some(SUCCESS) {
            return;
        }
        let (free, total) = (free as u64, total as u64);
        let used = total.saturating_sub(free);
        if told.is_none_or(|told| told.abs_diff(used) >= STEP.max(total / SHARE)) {
            told = Some(used);
            writer.memory(&Sample {
                device: Some(device),
                used: Some(used),
                total: Some(total),
                ..Sample::default()
            });
        }
        thread::sleep(if free < total / LITTLE { SOON } else { EVERY });
    }
}
