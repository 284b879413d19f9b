//! The memory of the GPUs that this process uses, by the CUDA driver.
//!
//! Only the process itself can ask for free: whoever else wants to know needs a context of its own on
//! the device, which takes of what is measured. So it is asked here, by a
//! thread that does nothing else. The driver is neither loaded nor initialised by us, and a device
//! without a context gets none: where the process uses no GPU, nothing happens.
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
use crate::{agent, sys};

/// Switches it on where it is "1".
const SWITCH: &str = "DDP_DOCTOR_GPU_MEMORY";
/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Devices that are looked at.
const MAX_DEVICES: i32 = 64;
/// What a device has more or less is worth a sample from that many bytes on, …
const STEP: u64 = 4 << 20;
/// … or that share of all it has, whichever is more.
const SHARE: u64 = 200;
/// Stack of the thread.
const STACK: usize = 256 << 10;

/// What is asked of the driver.
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

/// The process whose thread samples; a forked child has none.
static SAMPLED: AtomicU32 = AtomicU32::new(0);
/// The process is about to end: the driver may be gone at any moment.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Why nothing is known of the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuError {
    /// The process has not loaded the driver.
    NotLoaded,
    /// The process has not initialised the driver.
    NotInitialized,
    /// The driver is one that lacks what is asked of it.
    Incompatible,
    /// The driver answered with this error.
    Driver(u32),
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded => f.write_str("this process has not loaded the CUDA driver"),
            Self::NotInitialized => f.write_str("this process has not initialised CUDA"),
            Self::Incompatible => f.write_str("the CUDA driver lacks a function"),
            Self::Driver(error) => write!(f, "the CUDA driver answered with error {error}"),
        }
    }
}

impl std::error::Error for GpuError {}

/// The memory of every device on which this process has its primary context.
///
/// Takes some microseconds a device, and the locks of the driver: not for a training thread.
pub fn gpu_memory() -> Result<Vec<Sample>, GpuError> {
    // The bindings panic where a driver lacks a function.
    match sys::has_functions(c"libcuda.so.1", &FUNCTIONS) {
        None => return Err(GpuError::NotLoaded),
        Some(false) => return Err(GpuError::Incompatible),
        Some(true) => {}
    }
    match catch_unwind(AssertUnwindSafe(ask_driver)) {
        Ok(answer) => answer,
        Err(payload) => {
            // Dropping it might panic again.
            mem::forget(payload);
            Err(GpuError::Incompatible)
        }
    }
}

fn ask_driver() -> Result<Vec<Sample>, GpuError> {
    // SAFETY: looks for the library, which is loaded.
    if !unsafe { cuda::is_culib_present() } {
        return Err(GpuError::NotLoaded);
    }
    let mut devices = 0;
    // SAFETY: the pointer is to a live value. Before it is initialised, the driver says so.
    check(unsafe { cuda::cuDeviceGetCount(&raw mut devices) })?;
    // A thread that captures a graph forbids others what might disturb it, unless they say that they
    // will not.
    let mut mode = cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the pointer is to a live value; the mode is that of this thread.
    check(unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) })?;
    let samples = (0..devices.min(MAX_DEVICES)).filter_map(|device| ask_device(device).transpose());
    let samples = samples.collect();
    // SAFETY: as above; what it was before is put back.
    check(unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) })?;
    samples
}

/// `None`: the process does not use the device.
fn ask_device(number: i32) -> Result<Option<Sample>, GpuError> {
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
    // SAFETY: the pointer is to a live value. What is retained is released below.
    check(unsafe { cuda::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
    let answer = ask_context(context);
    // SAFETY: gives back what was retained; it stays as long as the process has it too.
    check(unsafe { cuda::cuDevicePrimaryCtxRelease_v2(device) })?;
    let (free, total) = answer?;
    Ok(Some(Sample {
        device: u32::try_from(number).ok(),
        used: Some(total.saturating_sub(free)),
        total: Some(total),
        ..Sample::default()
    }))
}

/// Free and total bytes of the device of a context.
fn ask_context(context: cuda::CUcontext) -> Result<(u64, u64), GpuError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the context is retained; the pointers are to live values. Which context is current is
    // this thread's own affair, and put back.
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

/// Starts the thread that samples for this box, where `DDP_DOCTOR_GPU_MEMORY=1` asks for it.
pub(crate) fn start(writer: &'static Writer) {
    if env::var_os(SWITCH).is_none_or(|value| value != "1") {
        return;
    }
    ENDING.store(false, Ordering::Relaxed);
    let process = std::process::id();
    if SAMPLED.swap(process, Ordering::AcqRel) == process {
        return;
    }
    let thread = thread::Builder::new()
        .name("ddp-memory".into())
        .stack_size(STACK);
    // Without a thread there are no samples, and nothing else is amiss.
    let started = sys::without_signals(|| {
        thread.spawn(move || {
            sample(writer);
            SAMPLED.store(0, Ordering::Release);
        })
    });
    if started.is_err() {
        SAMPLED.store(0, Ordering::Release);
    }
}

/// No more samples: the process says that it ends.
pub(crate) fn end() {
    ENDING.store(true, Ordering::Relaxed);
}

fn sample(writer: &'static Writer) {
    let mut told: Vec<Sample> = Vec::new();
    loop {
        thread::sleep(EVERY);
        if ENDING.load(Ordering::Relaxed) || !agent::is_current(writer) {
            return;
        }
        match gpu_memory() {
            Ok(samples) => {
                for sample in samples {
                    let before = told.iter_mut().find(|it| it.device == sample.device);
                    match before {
                        Some(before) if !differs(before, &sample) => continue,
                        Some(before) => *before = sample,
                        None => told.push(sample),
                    }
                    writer.memory(&sample);
                }
            }
            // It may yet come to use one.
            Err(GpuError::NotLoaded | GpuError::NotInitialized) => {}
            // Whatever is wrong with it, we are no part of it.
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
    fn a_process_without_cuda_gets_an_error() {
        // This one does not use CUDA, whether or not the machine has it.
        assert_eq!(gpu_memory(), Err(GpuError::NotLoaded));
        // And where there is no driver, what would ask it does not get that far.
        if !std::path::Path::new("/proc/driver/nvidia").exists() {
            let asked = catch_unwind(ask_driver);
            assert_eq!(asked.ok(), Some(Err(GpuError::NotLoaded)));
        }
    }

    #[test]
    fn a_driver_that_lacks_functions_is_told_from_none() {
        assert_eq!(sys::has_functions(c"libc.so.6", &[c"malloc"]), Some(true));
        let lacking = sys::has_functions(c"libc.so.6", &[c"malloc", c"cuMemGetInfo_v2"]);
        assert_eq!(lacking, Some(false));
        assert_eq!(sys::has_functions(c"libno_such.so", &[]), None);
    }

    #[test]
    fn what_is_noticeable_is_told() {
        let sample = |used| Sample {
            used: Some(used),
            total: Some(80 << 30),
            ..Sample::default()
        };
        assert!(!differs(
            &sample(10 << 30),
            &sample((10 << 30) + (100 << 20))
        ));
        assert!(differs(&sample(10 << 30), &sample(11 << 30)));
        assert!(differs(&sample(11 << 30), &sample(10 << 30)));
    }
}
