//! What a C program hands us, turned into what Rust can trust. Every raw pointer that is
//! dereferenced in this crate is dereferenced here.
#![expect(unsafe_code, reason = "turns pointers of C programs into references")]

use std::ffi::{CStr, c_char};
use std::{ptr, slice};

use crate::abi::Text;

/// No structure of this interface will ever be longer.
const LARGEST: usize = 4096;

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

/// The name that a pointer leads to, which ends in a zero. Null stands for an empty one.
///
/// # Safety
///
/// A pointer that is not null leads to bytes that end in a zero and that nobody changes during the
/// call.
pub(crate) unsafe fn name<'a>(pointer: *const c_char) -> &'a [u8] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(pointer) }.to_bytes()
}

/// A structure that says how long it is. Of an older caller's, which is shorter, the rest is as in
/// `default`; of a newer one's, what this version does not know is left out.
///
/// # Safety
///
/// `T` begins with a `usize`, and any bits are valid in each of its fields.
/// A pointer that is neither null nor misaligned leads to a size and, as long as that is not less, to
/// so many bytes of a `T` or of a later version of it, that nobody changes during the call.
pub(crate) unsafe fn sized<T: Sized>(pointer: *const T, default: T) -> Result<T, BadPointer> {
    // SAFETY: the caller vouches for the size.
    let size = *unsafe { value(pointer.cast::<usize>()) }?;
    if !pointer.is_aligned() || !(size_of::<usize>()..=LARGEST).contains(&size) {
        return Err(BadPointer);
    }
    let mut taken = default;
    let length = size.min(size_of::<T>());
    // SAFETY: the caller vouches for `size` bytes; `taken` has at least so many, and apart from
    // `pointer`. The bytes are those of fields of a `T`, whose types take any bits.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut taken).cast(), length) };
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_an_error() {
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
    fn structures_of_other_versions_are_taken_as_far_as_they_go() {
        let default = [0_usize, 10, 20];
        let take = |given: &[usize]| {
            // SAFETY: what is given is as long as it says, but where that is refused.
            unsafe { sized(given.as_ptr().cast::<[usize; 3]>(), default) }
        };
        let word = size_of::<usize>();
        assert_eq!(take(&[2 * word, 1]), Ok([2 * word, 1, 20]));
        assert_eq!(take(&[3 * word, 1, 2]), Ok([3 * word, 1, 2]));
        assert_eq!(take(&[4 * word, 1, 2, 3]), Ok([4 * word, 1, 2]));
        assert_eq!(take(&[0, 1, 2]), Err(BadPointer));
        assert_eq!(take(&[usize::MAX, 1, 2]), Err(BadPointer));
        // SAFETY: null.
        let null = unsafe { sized(ptr::null(), default) };
        assert_eq!(null, Err(BadPointer));
    }
}
