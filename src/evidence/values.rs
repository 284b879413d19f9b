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

/// A text, cut to at most this many bytes, without the rest of an address in which it is cut: a part of a user or password
/// would not be recognized as one.
pub fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let kept = &text[..end];
    let is_end = |c: char| c.is_whitespace() || "\"`<>".contains(c);
    let last = kept.rsplit(is_end).next().unwrap_or_default();
    if kept.len() == text.len() || last.contains('@') {
        return kept;
    }
    // JSON may escape the slashes.
    let authorities = ["://", ":\\/\\/"].into_iter();
    let begin = authorities.filter_map(|it| Some(last.find(it)? + it.len())).min();
    begin.map_or(kept, |at| &kept[..kept.len() - last.len() + at])
}

/// Converts a number that may be out of range.
pub fn number<T: Default>(number: i32, from_number: impl Fn(u8) -> T) -> T {
    u8::try_from(number).map_or_else(|_| T::default(), from_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_in_which_a_text_is_cut_is_left_out() {
        for (text, bytes, expected) in [
            ("at https://bob:PASSWORD@h/x", 20, "at https://"),
            (r#"{"at":"https:\/\/bob:PASSWORD@h"}"#, 24, r#"{"at":"https:\/\/"#),
            ("at https://bob:PASSWORD@hub/x", 26, "at https://bob:PASSWORD@hu"),
            ("at https://bob:PASSWORD@hub/x", 29, "at https://bob:PASSWORD@hub/x"),
            ("https://h/x is not: known", 20, "https://h/x is not: "),
            ("a: \u{e9}\u{e9}", 4, "a: "),
        ] {
            assert_eq!(cut(text, bytes), expected);
        }
    }
}
