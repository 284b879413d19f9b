//! The functions of CPython that this library calls, as C declares them.
//!
//! CPython 3.9 to 3.14 exports all of them, under the limited API or before they were added to it.
//! [`crate::object::find`] looks up functions that only newer versions export.
#![expect(unsafe_code, reason = "declares functions of CPython")]

use std::ffi::{c_char, c_int, c_longlong, c_ulonglong, c_void};

/// The head of every object; its layout is part of the stable ABI.
#[repr(C)]
pub(crate) struct PyObject {
    pub(crate) references: isize,
    pub(crate) kind: *mut Self,
}

/// A pointer to an object, as functions of CPython take and return it.
pub(crate) type Pointer = *mut PyObject;

/// Calling convention of a function with one argument.
pub(crate) const METH_O: c_int = 0x8;
/// Calling convention of a function with an array of arguments (3.7; in the limited API since 3.10).
pub(crate) const METH_FASTCALL: c_int = 0x80;
/// With [`METH_FASTCALL`]: keyword arguments follow the others, and a tuple names them.
pub(crate) const METH_KEYWORDS: c_int = 0x2;
/// Version of the API that a module is created for.
pub(crate) const API_VERSION: c_int = 3;

/// `METH_O`
pub(crate) type One = unsafe extern "C" fn(Pointer, Pointer) -> Pointer;
/// `METH_FASTCALL`
pub(crate) type Fast = unsafe extern "C" fn(Pointer, *const Pointer, isize) -> Pointer;
/// `METH_FASTCALL | METH_KEYWORDS`
pub(crate) type FastWithKeywords =
    unsafe extern "C" fn(Pointer, *const Pointer, isize, Pointer) -> Pointer;

/// `descrgetfunc`: the value of a descriptor for an object of this type.
pub(crate) type Get = unsafe extern "C" fn(Pointer, Pointer, Pointer) -> Pointer;
/// Slot of a type with its [`Get`].
pub(crate) const SLOT_GET: c_int = 54;
/// `descrsetfunc`: sets the value of a descriptor for an object of this type.
pub(crate) type Set = unsafe extern "C" fn(Pointer, Pointer, Pointer) -> c_int;
/// Slot of a type with its [`Set`].
pub(crate) const SLOT_SET: c_int = 55;

/// An implementation of a function, by its calling convention.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Implementation {
    pub(crate) none: *const c_void,
    pub(crate) one: One,
    pub(crate) fast: Fast,
    pub(crate) with_keywords: FastWithKeywords,
}

/// `PyMethodDef`
#[repr(C)]
pub(crate) struct MethodDef {
    pub(crate) name: *const c_char,
    pub(crate) function: Implementation,
    pub(crate) flags: c_int,
    pub(crate) doc: *const c_char,
}

// SAFETY: a definition is constant, and points to constants.
unsafe impl Sync for MethodDef {}

/// `PyModuleDef`
#[repr(C)]
pub(crate) struct ModuleDef {
    /// References, type, initializer, index and copy, which the interpreter maintains.
    pub(crate) base: [usize; 5],
    pub(crate) name: *const c_char,
    pub(crate) doc: *const c_char,
    pub(crate) size: isize,
    pub(crate) methods: *const MethodDef,
    /// Slots and functions for garbage collection, which this module does not need.
    pub(crate) rest: [usize; 4],
}

unsafe extern "C" {
    pub(crate) static mut _Py_NoneStruct: PyObject;
    pub(crate) static mut _Py_TrueStruct: PyObject;
    pub(crate) static mut _Py_FalseStruct: PyObject;
    pub(crate) static PyExc_Exception: Pointer;
    pub(crate) static PyExc_ValueError: Pointer;

    pub(crate) fn Py_GetVersion() -> *const c_char;
    pub(crate) fn Py_IncRef(object: Pointer);
    pub(crate) fn Py_DecRef(object: Pointer);
    pub(crate) fn PyErr_Occurred() -> Pointer;
    pub(crate) fn PyErr_Clear();
    pub(crate) fn PyErr_ExceptionMatches(kind: Pointer) -> c_int;
    pub(crate) fn PyErr_Fetch(kind: *mut Pointer, value: *mut Pointer, trace: *mut Pointer);
    pub(crate) fn PyErr_Restore(kind: Pointer, value: Pointer, trace: Pointer);
    pub(crate) fn PyErr_NormalizeException(
        kind: *mut Pointer,
        value: *mut Pointer,
        trace: *mut Pointer,
    );
    pub(crate) fn PyException_SetTraceback(exception: Pointer, trace: Pointer) -> c_int;
    pub(crate) fn PyErr_GetExcInfo(kind: *mut Pointer, value: *mut Pointer, trace: *mut Pointer);
    pub(crate) fn PyErr_SetString(kind: Pointer, message: *const c_char);
    pub(crate) fn PyEval_GetFrame() -> Pointer;
    pub(crate) fn PyFrame_GetCode(frame: Pointer) -> Pointer;
    pub(crate) fn PyObject_SetAttr(object: Pointer, name: Pointer, value: Pointer) -> c_int;
    pub(crate) fn PyObject_GetAttr(object: Pointer, name: Pointer) -> Pointer;
    pub(crate) fn PyObject_GenericGetAttr(object: Pointer, name: Pointer) -> Pointer;
    pub(crate) fn PyType_GetSlot(kind: Pointer, slot: c_int) -> *mut c_void;
    pub(crate) fn PyObject_IsTrue(object: Pointer) -> c_int;
    pub(crate) fn PyObject_Call(callable: Pointer, args: Pointer, keywords: Pointer) -> Pointer;
    pub(crate) fn PyLong_FromUnsignedLongLong(value: c_ulonglong) -> Pointer;
    pub(crate) fn PyLong_FromLongLong(value: c_longlong) -> Pointer;
    pub(crate) fn PyLong_AsUnsignedLongLongMask(object: Pointer) -> c_ulonglong;
    pub(crate) fn PyLong_AsLongLong(object: Pointer) -> c_longlong;
    pub(crate) fn PyNumber_Long(object: Pointer) -> Pointer;
    pub(crate) fn PyNumber_And(left: Pointer, right: Pointer) -> Pointer;
    pub(crate) fn PyList_GetItem(list: Pointer, at: isize) -> Pointer;
    pub(crate) fn PyList_Append(list: Pointer, item: Pointer) -> c_int;
    pub(crate) fn PyList_SetSlice(list: Pointer, from: isize, to: isize, items: Pointer) -> c_int;
    pub(crate) fn PyWeakref_NewRef(object: Pointer, callback: Pointer) -> Pointer;
    pub(crate) fn PyTuple_New(length: isize) -> Pointer;
    pub(crate) fn PyTuple_Size(tuple: Pointer) -> isize;
    pub(crate) fn PyTuple_GetItem(tuple: Pointer, at: isize) -> Pointer;
    pub(crate) fn PyTuple_SetItem(tuple: Pointer, at: isize, item: Pointer) -> c_int;
    pub(crate) fn PySequence_Size(sequence: Pointer) -> isize;
    pub(crate) fn PySequence_GetItem(sequence: Pointer, at: isize) -> Pointer;
    pub(crate) fn PyDict_New() -> Pointer;
    pub(crate) fn PyDict_SetItem(dict: Pointer, key: Pointer, value: Pointer) -> c_int;
    pub(crate) fn PyDict_DelItem(dict: Pointer, key: Pointer) -> c_int;
    pub(crate) fn PyDict_GetItemWithError(dict: Pointer, key: Pointer) -> Pointer;
    pub(crate) fn PyDict_Next(
        dict: Pointer,
        position: *mut isize,
        key: *mut Pointer,
        value: *mut Pointer,
    ) -> c_int;
    pub(crate) fn PyUnicode_AsUTF8AndSize(text: Pointer, length: *mut isize) -> *const c_char;
    pub(crate) fn PyUnicode_InternFromString(text: *const c_char) -> Pointer;
    pub(crate) fn PyCFunction_NewEx(
        definition: *const MethodDef,
        this: Pointer,
        module: Pointer,
    ) -> Pointer;
    pub(crate) fn PyDescr_NewMethod(kind: Pointer, definition: *const MethodDef) -> Pointer;
    pub(crate) fn PyModule_Create2(definition: *mut ModuleDef, version: c_int) -> Pointer;
}
