//! What a C program hands us, turned into what Rust can trust. Every raw pointer that is
//! dereferenced in this crate is dereferenced here.
#![expect(unsafe_code, reason = "turns pointers of C programs into references")]

use std::slice;

use crate::abi::Text;

/// A pointer that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadPointer;

/// What a pointer leads to.
///
/// # Safety
///
/// A pointer that is neither null nor misaligned leads to a `T` that nobody changes during the call.
pub(crate) unsafe fn value<'a, T>(pointer: *const T) -> Result<&'a T, BadPointer> {
    if !pointer.is_aligned() {
        return Err(BadPointer);
    }
    // SAFETY: null is told apart; the caller vouches for the rest.
    unsafe { pointer.as_ref() }.ok_or(BadPointer)
}

/// The `length` values that a pointer leads to. Null stands for none of them.
///
/// # Safety
///
/// A pointer that is neither null nor misaligned leads to `length` values that nobody changes during
/// the call.
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
    // values are there.
    Ok(unsafe { slice::from_raw_parts(pointer, length) })
}

/// The bytes of a text.
///
/// # Safety
///
/// As for [`values`].
pub(crate) unsafe fn bytes<'a>(text: Text) -> Result<&'a [u8], BadPointer> {
    // SAFETY: the caller vouches for it.
    unsafe { values(text.data, text.length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_an_error() {
        let numbers = [1_u32, 2, 3];
        // SAFETY: the pointers are null, misaligned, or lead to `numbers`.
        unsafe {
            assert_eq!(value(std::ptr::null::<u32>()), Err(BadPointer));
            let odd = numbers.as_ptr().byte_add(1);
            assert_eq!(value(odd), Err(BadPointer));
            assert_eq!(values(odd, 2), Err(BadPointer));
            assert_eq!(values(std::ptr::null::<u32>(), 2), Err(BadPointer));
            assert_eq!(values(numbers.as_ptr(), usize::MAX), Err(BadPointer));
            assert_eq!(values(std::ptr::null::<u32>(), 0), Ok(&[][..]));
            assert_eq!(values(numbers.as_ptr(), 3), Ok(&numbers[..]));
            assert_eq!(value(&raw const numbers[1]), Ok(&2));
        }
    }
}
