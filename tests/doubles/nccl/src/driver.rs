//! The CUDA driver, loaded when first needed, as in NCCL: without one the library loads, and calls
//! that need it fail.
#![expect(unsafe_code, reason = "loads the driver and calls it")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::{mem, ptr};

use crate::work::Work;
use crate::{Result, Status, refuse};

type Handle = usize;
type Callback = unsafe extern "C" fn(*mut c_void);

/// Declares the functions to look up.
macro_rules! driver {
    ($($name:ident: fn($($type:ty),*)),* $(,)?) => {
        #[expect(non_snake_case, reason = "the names are the driver's")]
        struct Driver {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl Driver {
            fn find(library: *mut c_void) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let text = concat!(stringify!($name), "\0");
                        let name = CStr::from_bytes_with_nul(text.as_bytes()).ok()?;
                        // SAFETY: the library is open and never closed; the name ends in a zero.
                        let function = unsafe { libc::dlsym(library, name.as_ptr()) };
                        if function.is_null() {
                            return None;
                        }
                        // SAFETY: the driver's function of this name has this signature.
                        unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(function) }
                    },)*
                })
            }
        }
    };
}

driver! {
    cuInit: fn(c_uint),
    cuCtxGetCurrent: fn(*mut Handle),
    cuCtxSetCurrent: fn(Handle),
    cuCtxGetDevice: fn(*mut c_int),
    cuDevicePrimaryCtxRetain: fn(*mut Handle, c_int),
    cuEventCreate: fn(*mut Handle, c_uint),
    cuEventDestroy_v2: fn(Handle),
    cuEventRecord: fn(Handle, Handle),
    cuLaunchHostFunc: fn(Handle, Callback, *mut c_void),
    cuMemAlloc_v2: fn(*mut Handle, usize),
    cuMemFree_v2: fn(Handle),
    cuStreamIsCapturing: fn(Handle, *mut c_uint),
    cuStreamWaitEvent: fn(Handle, Handle, c_uint),
}

/// Converts a result of the driver.
fn check(what: &str, answer: c_int) -> Result<()> {
    if answer == 0 {
        return Ok(());
    }
    refuse(Status::CUDA_ERROR, format!("{what}: CUDA error {answer}"))
}

fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        // SAFETY: the name ends in a zero.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let driver = Driver::find(library)?;
        // SAFETY: the first call of a driver.
        let is_ready = unsafe { (driver.cuInit)(0) } == 0;
        is_ready.then_some(driver)
    });
    match driver {
        Some(driver) => Ok(driver),
        None => refuse(
            Status::CUDA_ERROR,
            "CUDA driver version is insufficient for CUDA runtime version".into(),
        ),
    }
}

/// The current context of this thread, which is made current if there is none.
pub(crate) fn context() -> Result<Handle> {
    let driver = driver()?;
    let mut context = 0;
    // SAFETY: the pointers are to live values.
    unsafe {
        check("context", (driver.cuCtxGetCurrent)(&raw mut context))?;
        if context == 0 {
            // Device 0 unless the program has chosen another, as in the CUDA runtime.
            let retained = (driver.cuDevicePrimaryCtxRetain)(&raw mut context, 0);
            check("primary context", retained)?;
            check("context", (driver.cuCtxSetCurrent)(context))?;
        }
    }
    Ok(context)
}

/// The primary context of a device.
pub(crate) fn context_of(device: c_int) -> Result<Handle> {
    let mut context = 0;
    // SAFETY: the pointer is to a live value.
    let retained = unsafe { (driver()?.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
    check("primary context", retained)?;
    Ok(context)
}

pub(crate) fn make_current(context: Handle) -> Result<()> {
    // SAFETY: the driver rejects contexts that do not exist.
    check("context", unsafe { (driver()?.cuCtxSetCurrent)(context) })
}

/// The device of the current context.
pub(crate) fn device() -> Result<c_int> {
    let mut device = 0;
    // SAFETY: the pointer is to a live value.
    check("device", unsafe { (driver()?.cuCtxGetDevice)(&raw mut device) })?;
    Ok(device)
}

/// Whether the stream is being captured.
pub(crate) fn is_capturing(stream: Handle) -> Result<bool> {
    let mut status = 0;
    // SAFETY: the pointer is to a live value; the driver rejects streams that do not exist.
    check("stream", unsafe { (driver()?.cuStreamIsCapturing)(stream, &raw mut status) })?;
    Ok(status != 0)
}

/// Puts work into a stream. Captured work runs as often as its graph is launched.
pub(crate) fn launch(work: Work, stream: Handle) -> Result<()> {
    let driver = driver()?;
    let function: Callback = if work.is_captured() { run_again } else { run_once };
    let work = Box::into_raw(Box::new(work));
    // SAFETY: the function expects a `Work` as its data.
    let answer = unsafe { (driver.cuLaunchHostFunc)(stream, function, work.cast()) };
    if answer != 0 {
        // SAFETY: the driver did not take ownership.
        drop(unsafe { Box::from_raw(work) });
    }
    check("launch", answer)
}

unsafe extern "C" fn run_once(work: *mut c_void) {
    // SAFETY: `launch` passed ownership; the driver calls this function once.
    unsafe { Box::from_raw(work.cast::<Work>()) }.run();
}

unsafe extern "C" fn run_again(work: *mut c_void) {
    // SAFETY: `launch` passed ownership. It is leaked, since the end of the last graph with it is
    // unknown.
    unsafe { &*work.cast::<Work>() }.run();
}

/// Makes a stream wait for the work that is in another one now.
pub(crate) fn join(waiting: Handle, for_stream: Handle) -> Result<()> {
    let driver = driver()?;
    let mut event = 0;
    // SAFETY: the pointer is to a live value; destroying the event does not affect waits in
    // progress.
    unsafe {
        check("event", (driver.cuEventCreate)(&raw mut event, 0))?;
        let joined = check("event", (driver.cuEventRecord)(event, for_stream))
            .and_then(|()| check("event", (driver.cuStreamWaitEvent)(waiting, event, 0)));
        check("event", (driver.cuEventDestroy_v2)(event))?;
        joined
    }
}

/// Allocates device memory.
pub(crate) fn allocate(bytes: usize) -> Result<*mut c_void> {
    context()?;
    let mut address = 0;
    // SAFETY: the pointer is to a live value.
    check("memory", unsafe { (driver()?.cuMemAlloc_v2)(&raw mut address, bytes) })?;
    Ok(ptr::with_exposed_provenance_mut(address))
}

pub(crate) fn free(address: usize) -> Result<()> {
    // SAFETY: the driver rejects addresses that it did not return.
    check("memory", unsafe { (driver()?.cuMemFree_v2)(address) })
}
