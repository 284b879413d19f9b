//! The CUDA driver, as far as the process has loaded it: nothing here loads or initialises it.
#![expect(unsafe_code, reason = "calls functions of the CUDA driver")]

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::Stream;

/// File name of the driver's library.
const NAME: &CStr = c"libcuda.so.1";

/// `CUresult`: 0 is success.
pub(crate) type Answer = c_int;
/// `CUDA_SUCCESS`
pub(crate) const SUCCESS: Answer = 0;

/// `cudaStreamLegacy` and `cudaStreamPerThread`: names that stand for one stream of each device, and of
/// each device and thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// A function of the driver's.
pub(crate) struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Where it is; null: there is no driver, or it does not have it.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let library = LIBRARY.load(Ordering::Acquire);
        if library.is_null() {
            return ptr::null_mut();
        }
        let known = self.address.load(Ordering::Acquire);
        if known.is_null() {
            self.find(library)
        } else {
            known
        }
    }

    #[cold]
    fn find(&self, library: *mut c_void) -> *mut c_void {
        // SAFETY: the handle is that of a library, the name ends in a zero.
        let found = unsafe { libc::dlsym(library, self.name.as_ptr()) };
        self.address.store(found, Ordering::Release);
        found
    }
}

/// The driver's library; null: the process does not have it.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Looks for the driver, which NCCL loads before it makes a communicator.
pub(crate) fn look() {
    if LIBRARY.load(Ordering::Acquire).is_null() {
        // SAFETY: the name ends in a zero; nothing is loaded.
        let found = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        LIBRARY.store(found, Ordering::Release);
    }
}

/// Names a stream within the process: names that stand for another stream on each device are told apart by
/// it, and those of a thread by that.
pub(crate) fn name_of(stream: Stream, device: c_int) -> u64 {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    /// No address of a program's has it.
    const BY_NAME: u64 = 1 << 63;
    let of_device = BY_NAME | u64::from(device.cast_unsigned() & 0x7fff) << 48;
    match stream.addr() {
        // Two names of one stream.
        0 | LEGACY => of_device,
        PER_THREAD => {
            let thread = HERE.try_with(|here| ptr::from_ref(here).addr());
            of_device | thread.unwrap_or(1) as u64 & 0xffff_ffff_ffff
        }
        address => address as u64,
    }
}

/// What becomes of what is put on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// It runs.
    No,
    /// It becomes part of a graph.
    Yes,
    /// There is no driver to ask, or it does not say.
    Unknown,
}

/// Whether what is put on the stream is captured into a graph. Asking does not disturb that.
pub(crate) fn capture(stream: Stream) -> Capture {
    /// `CU_STREAM_CAPTURE_STATUS_NONE`
    const NONE: c_int = 0;
    static IS_CAPTURING: Function = Function::new(c"cuStreamIsCapturing");
    let function = IS_CAPTURING.address();
    if function.is_null() {
        return Capture::Unknown;
    }
    let mut status = NONE;
    // SAFETY: this is the function's type since CUDA 10; the stream is one that the program uses.
    let answer = unsafe {
        let function: unsafe extern "C" fn(Stream, *mut c_int) -> Answer = mem::transmute(function);
        function(stream, &mut status)
    };
    match (answer, status) {
        (SUCCESS, NONE) => Capture::No,
        (SUCCESS, _) => Capture::Yes,
        // The stream of the device, while another one that it waits for is captured.
        _ => Capture::Unknown,
    }
}
