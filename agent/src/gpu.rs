//! Samples the memory of the GPUs that this process uses, through the CUDA driver.
//!
//! Another process would need its own context on the device, which takes some of the memory to be
//! measured. The sampling thread uses the contexts of this process instead. It neither loads nor
//! initializes the driver, and creates no context on a device that has none.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fmt, mem, thread};

use cudarc::driver::sys as cuda;
use ddp_doctor_proto::blackbox::memory::Sample;

use crate::blackbox::Writer;
use crate::sys;

/// Enables sampling if set to "1".
const SWITCH: &str = "DDP_DOCTOR_GPU_MEMORY";
/// Sampling interval.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of devices.
const MAX_DEVICES: i32 = 64;
/// Minimum change of the used bytes that is recorded; see also [`SHARE`].
const STEP: u64 = 4 << 20;
/// Minimum change as a fraction of the device's total: 1/200. The larger minimum applies.
const SHARE: u64 = 200;
/// Stack size of the thread.
const STACK: usize = 256 << 10;

/// Driver functions that are called.
const FUNCTIONS: [&CStr; 9] = [
    c"cuCtxPopCurrent_v2",
    c"cuCtxPushCurrent_v2",
    c"cuDeviceGet",
    c"cuDeviceGetCount",
    c"cuDevicePrimaryCtxGetState",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuDevicePrimaryCtxRetain",
    c"cuMemGetInfo_v2",
    c"cuThreadExchangeStreamCaptureMode",
];

/// Id of the process whose thread samples. A forked child has no such thread.
static SAMPLED: AtomicU32 = AtomicU32::new(0);
/// The process is about to exit; the driver may become unusable at any moment.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Why the memory of the GPUs is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuError {
    /// The process has not loaded the driver.
    NotLoaded,
    /// The process has not initialized the driver.
    NotInitialized,
    /// The driver lacks a required function.
    Incompatible,
    /// A driver call failed with this error.
    Driver(u32),
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded => f.write_str("this process has not loaded the CUDA driver"),
            Self::NotInitialized => f.write_str("this process has not initialized CUDA"),
            Self::Incompatible => f.write_str("the CUDA driver lacks a function"),
            Self::Driver(error) => write!(f, "a CUDA driver call failed with error {error}"),
        }
    }
}

impl std::error::Error for GpuError {}

/// The memory of every device on which this process has a primary context.
///
/// Takes some microseconds per device and driver locks: do not call it in a training thread.
pub fn gpu_memory() -> Result<Vec<Sample>, GpuError> {
    // The bindings panic if the driver lacks a function.
    match sys::has_functions(c"libcuda.so.1", &FUNCTIONS) {
        None => return Err(GpuError::NotLoaded),
        Some(false) => return Err(GpuError::Incompatible),
        Some(true) => {}
    }
    match catch_unwind(AssertUnwindSafe(query_driver)) {
        Ok(answer) => answer,
        Err(payload) => {
            // Dropping the payload might panic again.
            mem::forget(payload);
            Err(GpuError::Incompatible)
        }
    }
}

fn query_driver() -> Result<Vec<Sample>, GpuError> {
    // SAFETY: searches for the library, which is loaded.
    if !unsafe { cuda::is_culib_present() } {
        return Err(GpuError::NotLoaded);
    }
    let mut devices = 0;
    // SAFETY: the pointer is to a live value. An uninitialized driver returns an error.
    check(unsafe { cuda::cuDeviceGetCount(&raw mut devices) })?;
    // While another thread captures a graph, calls that might disturb the capture fail in other
    // capture modes.
    let mut mode = cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the pointer is to a live value; the mode belongs to this thread.
    check(unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) })?;
    let samples = (0..devices.min(MAX_DEVICES))
        .filter_map(|device| query_device(device).transpose())
        .collect();
    // SAFETY: as above; restores the previous mode.
    check(unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) })?;
    samples
}

/// Memory of a device; `None`: the process does not use the device.
fn query_device(number: i32) -> Result<Option<Sample>, GpuError> {
    let mut device = 0;
    let (mut flags, mut is_active) = (0, 0);
    // SAFETY: the pointers are to live values.
    unsafe {
        check(cuda::cuDeviceGet(&raw mut device, number))?;
        let state = cuda::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut is_active);
        check(state)?;
    }
    if is_active == 0 {
        return Ok(None);
    }
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is to a live value. The context is released below.
    check(unsafe { cuda::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
    let answer = query_context(context);
    // SAFETY: releases what was retained above; the process's own reference keeps the context.
    check(unsafe { cuda::cuDevicePrimaryCtxRelease_v2(device) })?;
    let (free, total) = answer?;
    Ok(Some(Sample {
        device: u32::try_from(number).ok(),
        used: Some(total.saturating_sub(free)),
        total: Some(total),
        ..Sample::default()
    }))
}

/// Free and total bytes of a context's device.
fn query_context(context: cuda::CUcontext) -> Result<(u64, u64), GpuError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the context is retained; the pointers are to live values. The current context belongs
    // to this thread and is restored.
    unsafe {
        check(cuda::cuCtxPushCurrent_v2(context))?;
        let answer = cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total);
        let mut popped = ptr::null_mut();
        check(cuda::cuCtxPopCurrent_v2(&raw mut popped))?;
        check(answer)?;
    }
    Ok((free as u64, total as u64))
}

fn check(result: cuda::CUresult) -> Result<(), GpuError> {
    match result {
        cuda::CUresult::CUDA_SUCCESS => Ok(()),
        cuda::CUresult::CUDA_ERROR_NOT_INITIALIZED => Err(GpuError::NotInitialized),
        error => Err(GpuError::Driver(error as u32)),
    }
}

/// Whether a box may still be written.
type IsOpen = fn(&'static Writer) -> bool;

/// Starts the sampling thread for this box if `DDP_DOCTOR_GPU_MEMORY=1` is set. It ends with the box.
pub(crate) fn start(writer: &'static Writer, is_open: IsOpen) {
    if env::var_os(SWITCH).is_none_or(|value| value != "1") {
        return;
    }
    ENDING.store(false, Ordering::Relaxed);
    let process = std::process::id();
    if SAMPLED.swap(process, Ordering::AcqRel) == process {
        return;
    }
    let thread = thread::Builder::new().name("ddp-memory".into()).stack_size(STACK);
    // If the thread cannot be started, there are no samples.
    let started = sys::without_signals(|| {
        thread.spawn(move || {
            sample(writer, is_open);
            SAMPLED.store(0, Ordering::Release);
        })
    });
    if started.is_err() {
        SAMPLED.store(0, Ordering::Release);
    }
}

/// Stops sampling: the process is about to exit.
pub(crate) fn end() {
    ENDING.store(true, Ordering::Relaxed);
}

fn sample(writer: &'static Writer, is_open: IsOpen) {
    let mut reported: Vec<Sample> = Vec::new();
    loop {
        thread::sleep(EVERY);
        if ENDING.load(Ordering::Relaxed) || !is_open(writer) {
            return;
        }
        match gpu_memory() {
            Ok(samples) => {
                for sample in samples {
                    let before = reported.iter_mut().find(|it| it.device == sample.device);
                    match before {
                        Some(before) if !differs(before, &sample) => continue,
                        Some(before) => *before = sample,
                        None => reported.push(sample),
                    }
                    writer.memory(&sample);
                }
            }
            // The process may use CUDA later.
            Err(GpuError::NotLoaded | GpuError::NotInitialized) => {}
            // Sampling stops at any other driver error.
            Err(_) => return,
        }
    }
}

fn differs(before: &Sample, now: &Sample) -> bool {
    let step = STEP.max(now.total.unwrap_or(0) / SHARE);
    before.used.unwrap_or(0).abs_diff(now.used.unwrap_or(0)) >= step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_cuda_gets_an_error() {
        // This process does not use CUDA, even if the machine has it.
        assert_eq!(gpu_memory(), Err(GpuError::NotLoaded));
        // Without a driver, the query itself returns the error as well.
        if !std::path::Path::new("/proc/driver/nvidia").exists() {
            let asked = catch_unwind(query_driver);
            assert_eq!(asked.ok(), Some(Err(GpuError::NotLoaded)));
        }
    }

    #[test]
    fn incomplete_driver_differs_from_missing_driver() {
        assert_eq!(sys::has_functions(c"libc.so.6", &[c"malloc"]), Some(true));
        let lacking = sys::has_functions(c"libc.so.6", &[c"malloc", c"cuMemGetInfo_v2"]);
        assert_eq!(lacking, Some(false));
        assert_eq!(sys::has_functions(c"libno_such.so", &[]), None);
    }

    #[test]
    fn only_large_changes_are_recorded() {
        let sample = |used| Sample { used: Some(used), total: Some(80 << 30), ..Sample::default() };
        assert!(!differs(&sample(10 << 30), &sample((10 << 30) + (100 << 20))));
        assert!(differs(&sample(10 << 30), &sample(11 << 30)));
        assert!(differs(&sample(11 << 30), &sample(10 << 30)));
    }
}
