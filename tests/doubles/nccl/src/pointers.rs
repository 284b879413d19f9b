//! Pointers passed by callers.
#![expect(unsafe_code, reason = "reads and writes through pointers of C programs")]

use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::{Result, Status, refuse};

/// An output parameter.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// An output parameter of a call within this library.
    pub(crate) fn to(place: &mut MaybeUninit<T>) -> Self {
        Self(place.as_mut_ptr())
    }

    pub(crate) fn put(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return refuse(Status::INVALID_ARGUMENT, "a result pointer is NULL".into());
        }
        // SAFETY: not null; the caller guarantees that its pointers are valid.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Element of an array that begins here.
    pub(crate) fn at(&self, index: usize) -> Self {
        if self.0.is_null() {
            return Self(self.0);
        }
        Self(self.0.wrapping_add(index))
    }

    /// The same place for a later write; the caller must keep it valid.
    pub(crate) fn later(&self) -> Later<T> {
        Later(self.0.expose_provenance(), std::marker::PhantomData)
    }
}

/// A place that is written at the end of a call, possibly by another thread.
#[derive(Debug)]
pub(crate) struct Later<T>(usize, std::marker::PhantomData<fn(T)>);

impl<T> Later<T> {
    pub(crate) fn put(&self, value: T) -> Result<()> {
        Out(ptr::with_exposed_provenance_mut(self.0)).put(value)
    }
}

/// An input parameter passed by pointer; may be null.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// A null pointer.
    pub(crate) const fn none() -> Self {
        Self(ptr::null())
    }

    /// The value; `None` if the pointer is null.
    pub(crate) fn get(&self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null; the caller guarantees that it is valid.
        Some(unsafe { self.0.read() })
    }

    /// The first `count` values; none if the pointer is null.
    pub(crate) fn values(&self, count: usize) -> Vec<T> {
        if self.0.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: not null; the caller guarantees this many values.
        unsafe { slice::from_raw_parts(self.0, count) }.to_vec()
    }
}

/// Address of a program's buffer, which is valid until the call's work is done.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer(usize);

impl Buffer {
    pub(crate) fn is_null(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn read(self, bytes: usize) -> Vec<u8> {
        if bytes == 0 {
            return Vec::new();
        }
        // SAFETY: the caller guarantees that its buffers are valid until the work is done, and that
        // nothing else writes to them meanwhile.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.0), bytes) }.to_vec()
    }

    /// Writes bytes at an offset of the buffer.
    pub(crate) fn write(self, at: usize, bytes: &[u8]) {
        let to = ptr::with_exposed_provenance_mut::<u8>(self.0.wrapping_add(at));
        // SAFETY: as above; `bytes` is not part of the buffer.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}
