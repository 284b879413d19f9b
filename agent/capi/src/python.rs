//! The four functions of the hot path as built-in functions of the Python interpreter.
//!
//! The interpreter calls a built-in function several times faster than ctypes calls a C function. A
//! built-in needs two functions of CPython's stable ABI to convert integers. The Python package
//! passes their addresses to [`ddp_doctor_py_use`], so this library neither links to Python nor
//! searches for it. The calling convention is `METH_FASTCALL` (available since Python 3.7, stable
//! since 3.10), <https://docs.python.org/3/c-api/structures.html>.
//!
//! All of these functions are called with the GIL held and return a Python integer.
#![expect(unsafe_code, reason = "speaks with the interpreter through pointers")]
#![expect(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "what each function does, and what its caller must keep to, is in the header"
)]

use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use ddp_doctor_proto::blackbox::Call;

/// `unsigned long long PyLong_AsUnsignedLongLongMask(PyObject *)`
type ToNumber = unsafe extern "C" fn(*mut c_void) -> u64;
/// `PyObject *PyLong_FromUnsignedLongLong(unsigned long long)`
type FromNumber = unsafe extern "C" fn(u64) -> *mut c_void;

static TO_NUMBER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static FROM_NUMBER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_py_use(to_number: *mut c_void, from_number: *mut c_void) {
    TO_NUMBER.store(to_number, Ordering::Release);
    FROM_NUMBER.store(from_number, Ordering::Release);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_py_issued_at(
    _module: *mut c_void,
    arguments: *const *mut c_void,
    count: isize,
) -> *mut c_void {
    // SAFETY: the interpreter passes `count` objects.
    unsafe {
        answer(arguments, count, |[call, group, site]: [u64; 3]| {
            crate::ddp_doctor_issued_at(call as *const Call, group as u32, site as u32)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_py_returned(
    _module: *mut c_void,
    arguments: *const *mut c_void,
    count: isize,
) -> *mut c_void {
    // SAFETY: the interpreter passes `count` objects.
    unsafe {
        answer(arguments, count, |[call]: [u64; 1]| {
            crate::ddp_doctor_returned(call);
            0
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_py_wait_begin(
    _module: *mut c_void,
    arguments: *const *mut c_void,
    count: isize,
) -> *mut c_void {
    // SAFETY: the interpreter passes `count` objects.
    unsafe {
        answer(arguments, count, |[call, site]: [u64; 2]| {
            crate::ddp_doctor_wait_begin(call, site as u32);
            0
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_py_wait_end(
    _module: *mut c_void,
    arguments: *const *mut c_void,
    count: isize,
) -> *mut c_void {
    // SAFETY: the interpreter passes `count` objects.
    unsafe {
        answer(arguments, count, |[call]: [u64; 1]| {
            crate::ddp_doctor_wait_end(call);
            0
        })
    }
}

/// Runs `work` on the arguments, which must be integers. If one is not, the interpreter has set an
/// exception and the result is null. If arguments are missing, all of them are 0.
///
/// # Safety
///
/// The GIL is held, and `arguments` points to `count` live objects.
#[inline]
unsafe fn answer<const N: usize>(
    arguments: *const *mut c_void,
    count: isize,
    work: impl FnOnce([u64; N]) -> u64,
) -> *mut c_void {
    let to_number = TO_NUMBER.load(Ordering::Acquire);
    let from_number = FROM_NUMBER.load(Ordering::Acquire);
    if to_number.is_null() || from_number.is_null() {
        return ptr::null_mut(); // `ddp_doctor_py_use` is called before these functions exist
    }
    // SAFETY: the package passed the addresses of functions of these types.
    let (to_number, from_number) = unsafe {
        (
            mem::transmute::<*mut c_void, ToNumber>(to_number),
            mem::transmute::<*mut c_void, FromNumber>(from_number),
        )
    };
    let mut numbers = [0; N];
    if count >= N as isize && !arguments.is_null() {
        for (i, number) in numbers.iter_mut().enumerate() {
            // SAFETY: there are at least N objects.
            *number = unsafe { to_number(*arguments.add(i)) };
            if *number == u64::MAX {
                return ptr::null_mut();
            }
        }
    }
    // SAFETY: the function accepts any number.
    unsafe { from_number(work(numbers)) }
}
