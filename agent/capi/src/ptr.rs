//! Converts pointers passed by C programs into Rust references and values. Such pointers are
//! dereferenced only here.
#![expect(unsafe_code, reason = "turns pointers of C programs into references")]

use std::ffi::{CStr, c_char};
use std::{ptr, slice};

use crate::abi::Text;

/// Maximum size of a structure of this interface, in bytes.
const MAX_SIZE: usize = 4096;

/// A null or misaligned pointer, or an impossible length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadPointer;

/// Borrows the value behind a pointer.
///
/// # Safety
///
/// A pointer that is neither null nor misaligned must point to a `T` that is not modified during
/// the call.
pub(crate) unsafe fn value<'a, T>(pointer: *const T) -> Result<&'a T, BadPointer> {
    if !pointer.is_aligned() {
        return Err(BadPointer);
    }
    // SAFETY: `as_ref` handles null; the caller vouches for the rest.
    unsafe { pointer.as_ref() }.ok_or(BadPointer)
}

/// Borrows `length` values behind a pointer. A null pointer is valid if `length` is 0.
///
/// # Safety
///
/// A pointer that is neither null nor misaligned must point to `length` values that are not
/// modified during the call.
pub(crate) unsafe fn values<'a, T>(
    pointer: *const T,
    length: usize,
) -> Result<&'a [T], BadPointer> {
    if length == 0 {
        return Ok(&[]);
    }
    let bytes = length.checked_mul(size_of::<T>());
    if pointer.is_null()
        || !pointer.is_aligned()
        || bytes.is_none_or(|bytes| isize::try_from(bytes).is_err())
    {
        return Err(BadPointer);
    }
    // SAFETY: not null, aligned, and no longer than an object can be; the caller vouches that the
    // values exist.
    Ok(unsafe { slice::from_raw_parts(pointer, length) })
}

/// Borrows the bytes of a text.
///
/// # Safety
///
/// As for [`values`].
pub(crate) unsafe fn bytes<'a>(text: Text) -> Result<&'a [u8], BadPointer> {
    // SAFETY: the caller vouches for it.
    unsafe { values(text.data, text.length) }
}

/// Borrows a NUL-terminated name. A null pointer is an empty name.
///
/// # Safety
///
/// A pointer that is not null must point to NUL-terminated bytes that are not modified during the
/// call.
pub(crate) unsafe fn name<'a>(pointer: *const c_char) -> &'a [u8] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(pointer) }.to_bytes()
}

/// Copies a structure that begins with its size. Fields missing in the shorter structure of an
/// older caller are taken from `default`; fields that only a newer caller knows are ignored.
///
/// # Safety
///
/// `T` begins with a `usize`, and all bit patterns are valid in each of its fields. A pointer that
/// is neither null nor misaligned must point to a size. If that size is valid, as many bytes of a
/// `T` or of a later version of `T` must follow from there, and must not be modified during the
/// call.
pub(crate) unsafe fn sized<T: Sized>(pointer: *const T, default: T) -> Result<T, BadPointer> {
    // SAFETY: the caller vouches for the size.
    let size = *unsafe { value(pointer.cast::<usize>()) }?;
    if !pointer.is_aligned() || !(size_of::<usize>()..=MAX_SIZE).contains(&size) {
        return Err(BadPointer);
    }
    let mut taken = default;
    let length = size.min(size_of::<T>());
    // SAFETY: the caller vouches for `size` bytes; `taken` has at least `length` bytes and does not
    // overlap `pointer`. The bytes are those of fields of a `T`, for which all bit patterns are
    // valid.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut taken).cast(), length) };
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_pointers_are_errors() {
        let numbers = [1_u32, 2, 3];
        // SAFETY: the pointers are null, misaligned, or lead to `numbers`.
        unsafe {
            assert_eq!(value(ptr::null::<u32>()), Err(BadPointer));
            let odd = numbers.as_ptr().byte_add(1);
            assert_eq!(value(odd), Err(BadPointer));
            assert_eq!(values(odd, 2), Err(BadPointer));
            assert_eq!(values(ptr::null::<u32>(), 2), Err(BadPointer));
            assert_eq!(values(numbers.as_ptr(), usize::MAX), Err(BadPointer));
            assert_eq!(values(ptr::null::<u32>(), 0), Ok(&[][..]));
            assert_eq!(values(numbers.as_ptr(), 3), Ok(&numbers[..]));
            assert_eq!(value(&raw const numbers[1]), Ok(&2));
            assert_eq!(name(ptr::null()), b"");
            assert_eq!(name(c"x.c".as_ptr()), b"x.c");
        }
    }

    #[test]
    fn common_fields_of_other_versions_are_copied() {
        let default = [0_usize, 10, 20];
        let take = |given: &[usize]| {
            // SAFETY: `given` is as long as its size says, except where the size is rejected.
            unsafe { sized(given.as_ptr().cast::<[usize; 3]>(), default) }
        };
        let word = size_of::<usize>();
        assert_eq!(take(&[2 * word, 1]), Ok([2 * word, 1, 20]));
        assert_eq!(take(&[3 * word, 1, 2]), Ok([3 * word, 1, 2]));
        assert_eq!(take(&[4 * word, 1, 2, 3]), Ok([4 * word, 1, 2]));
        assert_eq!(take(&[0, 1, 2]), Err(BadPointer));
        assert_eq!(take(&[usize::MAX, 1, 2]), Err(BadPointer));
        // SAFETY: the pointer is null.
        let null = unsafe { sized(ptr::null(), default) };
        assert_eq!(null, Err(BadPointer));
    }
}
