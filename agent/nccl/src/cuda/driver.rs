//! The CUDA driver, if the process has loaded it. This module neither loads nor initializes it.
#![expect(unsafe_code, reason = "calls functions of the CUDA driver")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::thread;

use crate::nccl::abi::Stream;

/// File name of the driver's library.
const NAME: &CStr = c"libcuda.so.1";

/// `CUresult`; 0 is success.
pub(crate) type Answer = c_int;
/// `CUDA_SUCCESS`
pub(crate) const SUCCESS: Answer = 0;

/// `cudaStreamLegacy` and `cudaStreamPerThread`: handles that stand for one stream per device, and
/// for one per device and thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// A function of the driver.
pub(crate) struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Address of the function; null: the driver is not loaded or lacks the function.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let library = LIBRARY.load(Ordering::Acquire);
        if library.is_null() {
            return ptr::null_mut();
        }
        let known = self.address.load(Ordering::Acquire);
        if known.is_null() { self.find(library) } else { known }
    }

    #[cold]
    fn find(&self, library: *mut c_void) -> *mut c_void {
        // SAFETY: `library` is a library handle, the name is NUL-terminated.
        let found = unsafe { libc::dlsym(library, self.name.as_ptr()) };
        self.address.store(found, Ordering::Release);
        found
    }
}

/// Defines a safe wrapper of a driver function; `None`: the function does not exist.
macro_rules! driver {
    ($name:ident, $symbol:literal, ($($arg:ident: $type:ty),*)) => {
        pub(crate) fn $name($($arg: $type),*) -> Option<Answer> {
            static FUNCTION: Function = Function::new($symbol);
            let address = FUNCTION.address();
            if address.is_null() {
                return None;
            }
            // SAFETY: the function of this name has this type in every driver since CUDA 10. The
            // arguments are pointers to live values and handles that the driver returned.
            Some(unsafe {
                let function: unsafe extern "C" fn($($type),*) -> Answer = mem::transmute(address);
                function($($arg),*)
            })
        }
    };
}

driver!(ctx_get_current, c"cuCtxGetCurrent", (context: *mut *mut c_void));
driver!(ctx_set_current, c"cuCtxSetCurrent", (context: *mut c_void));
driver!(exchange_capture_mode, c"cuThreadExchangeStreamCaptureMode", (mode: *mut c_int));
driver!(event_create, c"cuEventCreate", (event: *mut *mut c_void, flags: c_uint));
driver!(event_record, c"cuEventRecord", (event: *mut c_void, stream: *mut c_void));
driver!(event_query, c"cuEventQuery", (event: *mut c_void));
driver!(mem_get_info, c"cuMemGetInfo_v2", (free: *mut usize, total: *mut usize));

/// CUDA context of the calling thread.
pub(crate) fn current_context() -> Option<*mut c_void> {
    let mut context = ptr::null_mut();
    (ctx_get_current(&mut context) == Some(SUCCESS) && !context.is_null()).then_some(context)
}

/// Handle of the driver's library; null: not loaded.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Finds the driver, which NCCL loads before it creates a communicator.
pub(crate) fn find_library() {
    if LIBRARY.load(Ordering::Acquire).is_null() {
        // SAFETY: the name is NUL-terminated; nothing is loaded.
        let found = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        LIBRARY.store(found, Ordering::Release);
    }
}

// --- Threads that use the driver -----------------------------------------------------------------

/// The process is about to exit; the driver may become unusable.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Whether the driver must not be used any more.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Acquire)
}

/// Runs `work` in a new thread that uses that context and does not disturb graph captures. `work`
/// must poll [`is_ending`]. If the thread cannot be prepared, `work` does not run.
pub(crate) fn in_a_thread(name: &CStr, context: *mut c_void, work: impl FnOnce() + Send + 'static) {
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`
    const RELAXED: c_int = 2;
    /// Stack size of the thread.
    const STACK: usize = 256 << 10;
    extern "C" fn end() {
        ENDING.store(true, Ordering::Release);
    }
    // Exit handlers run in reverse order of registration, so this one runs before the driver's.
    // SAFETY: the function is part of this library, which is not unloaded before the process exits.
    if unsafe { libc::atexit(end) } != 0 {
        return;
    }
    let context = context.expose_provenance();
    let builder =
        thread::Builder::new().name(name.to_string_lossy().into_owned()).stack_size(STACK);
    let start = || {
        builder.spawn(move || {
            let mut mode = RELAXED;
            let context = ptr::with_exposed_provenance_mut(context);
            let is_ready = exchange_capture_mode(&mut mode) == Some(SUCCESS)
                && ctx_set_current(context) == Some(SUCCESS);
            if is_ready {
                work();
            }
        })
    };
    drop(without_signals(start));
}

/// Runs `start` with signals blocked, so that a thread it starts receives none.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut every = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the masks are live values, and the first call initializes what the second one reads.
    unsafe {
        libc::sigfillset(every.as_mut_ptr());
        // Raised by faults of the thread itself. The agent handles it for truncated black boxes.
        libc::sigdelset(every.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

// --- Streams -----------------------------------------------------------------------------------------

/// Identifies a stream within the process. Handles that stand for one stream per device are
/// combined with the device, and per-thread handles with the thread.
pub(crate) fn name_of(stream: Stream, device: c_int) -> u64 {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    /// Set in no user-space address.
    const BY_NAME: u64 = 1 << 63;
    let of_device = BY_NAME | u64::from(device.cast_unsigned() & 0x7fff) << 48;
    match stream.addr() {
        // Both stand for the legacy default stream.
        0 | LEGACY => of_device,
        PER_THREAD => {
            let thread = HERE.try_with(|here| ptr::from_ref(here).addr());
            of_device | thread.unwrap_or(1) as u64 & 0xffff_ffff_ffff
        }
        address => address as u64,
    }
}

/// Capture state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// Work on the stream runs.
    No,
    /// Work on the stream becomes part of a graph.
    Yes,
    /// The driver is not loaded or returned an error.
    Unknown,
}

/// Whether work on the stream is captured into a graph. The query does not disturb a capture.
pub(crate) fn capture(stream: Stream) -> Capture {
    /// `CU_STREAM_CAPTURE_STATUS_NONE`
    const NONE: c_int = 0;
    static IS_CAPTURING: Function = Function::new(c"cuStreamIsCapturing");
    let function = IS_CAPTURING.address();
    if function.is_null() {
        return Capture::Unknown;
    }
    let mut status = NONE;
    // SAFETY: this is the function's type since CUDA 10; the program uses this stream.
    let answer = unsafe {
        let function: unsafe extern "C" fn(Stream, *mut c_int) -> Answer = mem::transmute(function);
        function(stream, &mut status)
    };
    match (answer, status) {
        (SUCCESS, NONE) => Capture::No,
        (SUCCESS, _) => Capture::Yes,
        // For example the legacy stream while a stream that synchronizes with it is captured.
        _ => Capture::Unknown,
    }
}
