//! Values in messages, brought into their range.

use std::sync::Arc;

/// Maximum length of a name (job, host, layer) from a node, in bytes.
const MAX_NAME: usize = 256;
/// Maximum length of a text from a node, in bytes.
const MAX_TEXT: usize = 8192;

/// A name, cut to the maximum length.
pub(super) fn name(text: &str) -> Arc<str> {
    cut(text, MAX_NAME).into()
}

/// A text, cut to the maximum length.
pub(super) fn text(text: &str) -> Arc<str> {
    cut(text, MAX_TEXT).into()
}

/// A text, cut to at most this many bytes.
pub fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Converts a number that may be out of range.
pub fn number<T: Default>(number: i32, from_number: impl Fn(u8) -> T) -> T {
    u8::try_from(number).map_or_else(|_| T::default(), from_number)
}
