//! Pointers and host functions passed by callers.
#![expect(unsafe_code, reason = "writes through pointers of C programs and calls their functions")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use crate::{Result, Status};

/// An output parameter; may be null.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes a value. Fails if the pointer is null.
    pub(crate) fn put(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller of the driver guarantees that its pointers are valid.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes a value unless the pointer is null.
    pub(crate) fn offer(&self, value: T) {
        let wanted = self.put(value);
        debug_assert!(wanted.is_ok() || self.0.is_null());
    }

    /// Replaces the value. Fails if the pointer is null.
    pub(crate) fn exchange(&self, with: impl FnOnce(T) -> Result<T>) -> Result<()>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: as above.
        let value = unsafe { self.0.read() };
        self.put(with(value)?)
    }

    /// Writes at most `room` of these values.
    pub(crate) fn fill(&self, values: &[T], room: usize) -> Result<()>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller guarantees this much room.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len().min(room)) };
        Ok(())
    }
}

/// A text passed by a caller.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller guarantees a text that ends in a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().or(Err(Status::INVALID_VALUE))
    }
}

/// A function of the program that a stream calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFunction {
    function: unsafe extern "C" fn(*mut c_void),
    data: usize,
}

impl HostFunction {
    pub(crate) fn new(
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        data: *mut c_void,
    ) -> Result<Self> {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        Ok(Self { function, data: data.expose_provenance() })
    }

    pub(crate) fn call(self) {
        // SAFETY: the caller of `cuLaunchHostFunc` guarantees that the function may be called with
        // this data from any thread.
        unsafe { (self.function)(ptr::with_exposed_provenance_mut(self.data)) };
    }
}

/// Layout of an allocation with the alignment of device memory.
fn layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes, 256).or(Err(Status::OUT_OF_MEMORY))
}

/// Allocates zeroed bytes, which take physical memory only once they are written; returns the
/// address.
pub(crate) fn allocate(bytes: usize) -> Result<usize> {
    let layout = layout(bytes)?;
    if bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the size is not zero.
    let address = unsafe { alloc_zeroed(layout) };
    if address.is_null() {
        return Err(Status::OUT_OF_MEMORY);
    }
    Ok(address.expose_provenance())
}

/// Frees an allocation of [`allocate`] of this size; must be called once.
pub(crate) fn free(address: usize, bytes: usize) -> Result<()> {
    let layout = layout(bytes)?;
    // SAFETY: the address came from `allocate` with this size, and is no longer registered.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(address), layout) };
    Ok(())
}

/// Copies within the host.
pub(crate) fn copy(to: usize, from: usize, bytes: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    let from = ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: the caller of the driver guarantees both ranges; they may overlap.
    unsafe { ptr::copy(from, to, bytes) };
}

/// Sets bytes to a value.
pub(crate) fn set(to: usize, value: u8, bytes: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: the caller of the driver guarantees the range.
    unsafe { ptr::write_bytes(to, value, bytes) };
}
