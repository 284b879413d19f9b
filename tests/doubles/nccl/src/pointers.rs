//! Pointers of callers.
#![expect(
    unsafe_code,
    reason = "reads and writes through pointers of C programs"
)]

use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::{Result, Status, refuse};

/// Where a caller wants a value.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Where a call of our own wants it.
    pub(crate) fn to(place: &mut MaybeUninit<T>) -> Self {
        Self(place.as_mut_ptr())
    }

    pub(crate) fn put(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return refuse(Status::INVALID_ARGUMENT, "a result pointer is NULL".into());
        }
        // SAFETY: not null; whoever calls vouches for the pointers that it hands over.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// The place of a value in an array that begins here.
    pub(crate) fn at(&self, index: usize) -> Self {
        if self.0.is_null() {
            return Self(self.0);
        }
        Self(self.0.wrapping_add(index))
    }

    /// The same place for later, which it is up to the caller to keep.
    pub(crate) fn later(&self) -> Later<T> {
        Later(self.0.expose_provenance(), std::marker::PhantomData)
    }
}

/// A place that is written to when a call has come to its end, maybe by another thread.
#[derive(Debug)]
pub(crate) struct Later<T>(usize, std::marker::PhantomData<fn(T)>);

impl<T> Later<T> {
    pub(crate) fn put(&self, value: T) -> Result<()> {
        Out(ptr::with_exposed_provenance_mut(self.0)).put(value)
    }
}

/// What a caller hands over by a pointer.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Nothing.
    pub(crate) const fn none() -> Self {
        Self(ptr::null())
    }

    /// The value, if there is one.
    pub(crate) fn get(&self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null; the caller vouches for it.
        Some(unsafe { self.0.read() })
    }

    /// So many values; none where the pointer is null.
    pub(crate) fn values(&self, count: usize) -> Vec<T> {
        if self.0.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: not null; the caller vouches for so many.
        unsafe { slice::from_raw_parts(self.0, count) }.to_vec()
    }
}

/// A buffer of a program: an address, which stays good until the call's work is done.
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
        // SAFETY: whoever calls a collective vouches for its buffers until the work is done; nobody
        // else writes to them meanwhile.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.0), bytes) }.to_vec()
    }

    /// Writes bytes, that far into the buffer.
    pub(crate) fn write(self, at: usize, bytes: &[u8]) {
        let to = ptr::with_exposed_provenance_mut::<u8>(self.0.wrapping_add(at));
        // SAFETY: as above; the bytes are ours and so apart from the buffer.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}
