//! Exceptions of the interpreter: those that operations clear, those that are kept until the outermost function of
//! this library raises them, and those that were set when the library was called.
#![expect(unsafe_code, reason = "calls functions of CPython")]

use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::object::{Owned, Ref};
use crate::python::*;

/// Number of threads that keep an exception, so that the common path needs no thread-local variable.
static KEEPING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The kept exception of this thread: type, value and traceback; nulls: none.
    static ESCAPING: Cell<[Pointer; 3]> = const { Cell::new([ptr::null_mut(); 3]) };
}

/// Clears the exception that is set, if there is one. One that is not an `Exception` is kept.
pub(crate) fn clear() {
    // SAFETY: called with the GIL; the type is a constant of the interpreter; the references of an
    // earlier exception are owned.
    unsafe {
        if PyErr_Occurred().is_null() {
            return;
        }
        if PyErr_ExceptionMatches(PyExc_Exception) != 0 {
            PyErr_Clear();
            return;
        }
        if !is_escaping() {
            KEEPING.fetch_add(1, Ordering::Relaxed);
        }
        for earlier in ESCAPING.replace(fetch()) {
            if !earlier.is_null() {
                Py_DecRef(earlier);
            }
        }
    }
}

/// Type, value and traceback of the exception that is set, which is cleared; nulls: none is set.
fn fetch() -> [Pointer; 3] {
    let [mut kind, mut value, mut trace] = [ptr::null_mut(); 3];
    // SAFETY: called with the GIL; the function stores references that the caller owns.
    unsafe { PyErr_Fetch(&mut kind, &mut value, &mut trace) };
    [kind, value, trace]
}

/// Runs `work` while the exception that is set is put aside.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let pending = Pending::take();
    let result = work();
    drop(pending);
    result
}

/// Whether an exception is kept that escapes `except Exception`.
pub(crate) fn is_escaping() -> bool {
    KEEPING.load(Ordering::Relaxed) != 0 && !ESCAPING.get()[0].is_null()
}

/// Sets the kept exception. Returns whether there was one.
fn raise_escaping() -> bool {
    if !is_escaping() {
        return false;
    }
    KEEPING.fetch_sub(1, Ordering::Relaxed);
    let [kind, value, trace] = ESCAPING.replace([ptr::null_mut(); 3]);
    // SAFETY: called with the GIL; the references are passed on.
    unsafe { PyErr_Restore(kind, value, trace) };
    true
}

/// The result of a function that the interpreter has called; `None`: its exception is set. If an
/// exception is kept, it is raised instead.
pub(crate) fn unless_escaping(result: Option<Owned>) -> Pointer {
    let result = result.filter(|_| !is_escaping());
    raise_escaping();
    result.map_or(ptr::null_mut(), Owned::give)
}

/// Whether an exception is set, which is cleared.
pub(crate) fn has_failed() -> bool {
    // SAFETY: called with the GIL.
    let failed = unsafe { !PyErr_Occurred().is_null() };
    if failed {
        clear();
    }
    failed
}

/// Raises the kept exception, or a ValueError if there is none. Returns null.
pub(crate) fn raise(message: &CStr) -> Pointer {
    if !raise_escaping() {
        // SAFETY: the type is a constant of the interpreter.
        unsafe { PyErr_SetString(PyExc_ValueError, message.as_ptr()) };
    }
    ptr::null_mut()
}

/// The exception that an `except` clause handles at the moment.
pub(crate) fn handled_exception() -> Option<Owned> {
    let [mut kind, mut value, mut trace] = [ptr::null_mut(); 3];
    // SAFETY: the function stores new references or null.
    let value = unsafe {
        PyErr_GetExcInfo(&mut kind, &mut value, &mut trace);
        for other in [kind, trace] {
            if !other.is_null() {
                Py_DecRef(other);
            }
        }
        if value.is_null() {
            return None;
        }
        Owned::new(value)
    };
    value.filter(|value| !value.as_ref().is_none())
}

/// The exception that was set, which is set again when this is dropped.
pub(crate) struct Pending([Pointer; 3]);

impl Pending {
    /// Takes the exception, if one is set.
    pub(crate) fn take() -> Option<Self> {
        // SAFETY: called with the GIL.
        let is_set = unsafe { !PyErr_Occurred().is_null() };
        is_set.then(|| Self(fetch()))
    }

    /// The exception as an instance of its class, with its traceback.
    pub(crate) fn exception(&mut self) -> Option<Ref<'_>> {
        let [kind, value, trace] = &mut self.0;
        // SAFETY: these are the references that the interpreter stored.
        unsafe {
            PyErr_NormalizeException(kind, value, trace);
            if !trace.is_null() && PyException_SetTraceback(*value, *trace) < 0 {
                clear();
            }
            Ref::new(*value)
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let [kind, value, trace] = self.0;
        // SAFETY: the references are passed on.
        unsafe { PyErr_Restore(kind, value, trace) }
    }
}
