//! Pointers of callers, and the host functions that they hand over.
#![expect(
    unsafe_code,
    reason = "writes through pointers of C programs and calls their functions"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use crate::{Result, Status};

/// Where a caller wants a value. Null where it wants none.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes a value that has to be wanted.
    pub(crate) fn put(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; whoever calls the driver vouches for the pointers that it hands over.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes a value where one is wanted.
    pub(crate) fn offer(&self, value: T) {
        let wanted = self.put(value);
        debug_assert!(wanted.is_ok() || self.0.is_null());
    }

    /// Puts a value in the place of the one that is there.
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

    /// Writes as many of these values as there is room for.
    pub(crate) fn fill(&self, values: &[T], room: usize) -> Result<()>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller vouches for so much room.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len().min(room)) };
        Ok(())
    }
}

/// The text that a caller hands over.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller vouches for a text that ends in a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().or(Err(Status::INVALID_VALUE))
    }
}

/// A function of a program that a stream is to call.
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
        Ok(Self {
            function,
            data: data.expose_provenance(),
        })
    }

    pub(crate) fn call(self) {
        // SAFETY: whoever put it into a stream vouches that it may be called, from any thread, with
        // what was handed over with it.
        unsafe { (self.function)(ptr::with_exposed_provenance_mut(self.data)) };
    }
}

/// As aligned as the memory of a device.
fn layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes, 256).or(Err(Status::OUT_OF_MEMORY))
}

/// The address of that many bytes of zeros, of which those take room that are written to.
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

/// Gives back what [`allocate`] gave for so many bytes, once.
pub(crate) fn free(address: usize, bytes: usize) -> Result<()> {
    let layout = layout(bytes)?;
    // SAFETY: it came from there with this size, and is not known any more.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(address), layout) };
    Ok(())
}

/// Copies within the host.
pub(crate) fn copy(to: usize, from: usize, bytes: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    let from = ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: the caller of the driver vouches for both ranges; they may overlap.
    unsafe { ptr::copy(from, to, bytes) };
}

/// Sets bytes to a value.
pub(crate) fn set(to: usize, value: u8, bytes: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: the caller of the driver vouches for the range.
    unsafe { ptr::write_bytes(to, value, bytes) };
}
