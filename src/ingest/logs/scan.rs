//! Small scanners of text.

use ddp_doctor_diagnosis::model::MAX_WORLD;
pub(super) use ddp_doctor_evidence::values::cut;

/// What precedes and what follows `key` in `text`.
pub(super) fn split<'a>(text: &'a str, key: &str) -> Option<(&'a str, &'a str)> {
    // Most lines do not have it, which `has` finds faster.
    if !has(text, key) {
        return None;
    }
    text.split_once(key)
}

/// Whether `text` has `key`.
pub(super) fn has(text: &str, key: &str) -> bool {
    /// Longest text for which the standard library needs no preparation.
    const MAX_FAST: usize = 32;
    let begin = key.get(..MAX_FAST).unwrap_or(key);
    text.contains(begin) && (begin.len() == key.len() || text.contains(key))
}

/// What follows `key` in `text`.
pub(super) fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    split(text, key).map(|(_, rest)| rest)
}

/// The number at the beginning of `text`.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

/// The number at the beginning of `text`, if it fits.
pub(super) fn small(text: &str) -> Option<u32> {
    u32::try_from(number(text)?).ok()
}

/// The rank at the beginning of `text`; `None` if it is not a possible one.
pub(super) fn rank(text: &str) -> Option<u32> {
    small(text).filter(|it| *it < MAX_WORLD)
}

/// The world size that follows `key`; `None` if it is not a possible one.
pub(super) fn world_size_after(text: &str, key: &str) -> Option<u32> {
    small_after(text, key).filter(|size| (1..=MAX_WORLD).contains(size))
}

/// The number that follows `key`.
pub(super) fn number_after(text: &str, key: &str) -> Option<u64> {
    number(after(text, key)?)
}

/// The number that follows `key`, if it fits.
pub(super) fn small_after(text: &str, key: &str) -> Option<u32> {
    small(after(text, key)?)
}

/// The part of `text` before the first of `ends`.
pub(super) fn until<'a>(text: &'a str, ends: &[char]) -> &'a str {
    text.split(ends).next().unwrap_or(text)
}
