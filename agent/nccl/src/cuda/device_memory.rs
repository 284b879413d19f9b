//! Samples the used memory of the rank's device, by all processes, through the CUDA driver.
//!
//! A separate thread samples, using the driver that the program has loaded and the program's
//! context. The interval is shorter if little memory is left, since memory may run out between two
//! steps.
//!
//! Off unless `DDP_DOCTOR_GPU_MEMORY=1` is set: its cost has not been measured on a GPU.

use std::env;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ddp_doctor_agent::blackbox::Writer;
use ddp_doctor_agent::current;
use ddp_doctor_proto::blackbox::memory::Sample;

use super::driver::{self, SUCCESS, current_context, mem_get_info};

/// Enables sampling if set to "1".
const SWITCH: &str = "DDP_DOCTOR_GPU_MEMORY";
/// Sampling interval.
const EVERY: Duration = Duration::from_secs(1);
/// Below this fraction of free memory (1/4), the interval is [`SOON`].
const LITTLE: u64 = 4;
/// Sampling interval while little memory is free.
const SOON: Duration = Duration::from_millis(100);
/// Minimum change of the used bytes that is recorded; see also [`SHARE`].
const STEP: u64 = 4 << 20;
/// Minimum change as a fraction of the device's total: 1/200. The larger minimum applies.
const SHARE: u64 = 200;

/// Whether memory sampling is enabled.
pub(crate) fn is_enabled() -> bool {
    env::var_os(SWITCH).is_some_and(|value| value == "1")
}

/// Starts sampling the device with this number, which the calling thread uses.
pub(crate) fn start(writer: &'static Writer, device: c_int) {
    /// Set once a device is sampled; a rank has one.
    static STARTED: AtomicBool = AtomicBool::new(false);
    if !is_enabled() {
        return;
    }
    let (Some(context), Ok(device)) = (current_context(), u32::try_from(device)) else {
        return;
    };
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    driver::in_a_thread(c"ddp-nccl-memory", context, move || sample_until_end(writer, device));
}

/// Samples until the process exits or the box is closed, and records large changes.
fn sample_until_end(writer: &'static Writer, device: u32) {
    let mut recorded: Option<u64> = None;
    while !driver::is_ending() {
        let open = current().is_some_and(|open| std::ptr::eq(open, writer));
        let (mut free, mut total) = (0, 0);
        if !open || mem_get_info(&mut free, &mut total) != Some(SUCCESS) {
            return;
        }
        let (free, total) = (free as u64, total as u64);
        let used = total.saturating_sub(free);
        if recorded.is_none_or(|recorded| recorded.abs_diff(used) >= STEP.max(total / SHARE)) {
            recorded = Some(used);
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
