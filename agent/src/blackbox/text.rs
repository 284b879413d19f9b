//! Text and bytes stored in words.

use crate::sync::{AtomicU64, Ordering};

use ddp_doctor_proto::blackbox::WORD;

/// The longest prefix of at most `longest` bytes that ends at a character boundary.
pub(super) fn cut(text: &[u8], longest: usize) -> &[u8] {
    let Some(rest) = text.get(longest..) else {
        return text;
    };
    // If the first omitted byte continues a character, the whole character is omitted.
    let continues = |byte: Option<&u8>| byte.is_some_and(|byte| byte & 0xc0 == 0x80);
    let mut end = longest;
    if continues(rest.first()) {
        // A UTF-8 character has at most three continuation bytes.
        for _ in 0..3 {
            if end > 0 && continues(text.get(end)) {
                end -= 1;
            }
        }
    }
    text.get(..end).unwrap_or_default()
}

/// Like [`cut`], without the rest of an address that is cut: a part of a user or password would not be recognized as one.
pub(super) fn cut_message(text: &[u8], longest: usize) -> &[u8] {
    const AUTHORITY: &[u8] = b"://";
    let kept = cut(text, longest);
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\"`<>".contains(byte);
    let last = kept.rsplit(is_end).next().unwrap_or_default();
    let address = last.windows(AUTHORITY.len()).position(|it| it == AUTHORITY);
    let Some(at) = address.filter(|_| kept.len() < text.len() && !last.contains(&b'@')) else {
        return kept;
    };
    kept.get(..kept.len() - last.len() + at + AUTHORITY.len()).unwrap_or_default()
}

/// Number of words for this many bytes.
pub(super) const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

/// Stores bytes, padded with zeros to a whole word. Bytes beyond the end are dropped.
pub(super) fn store(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(WORD)) {
        let mut padded = [0; WORD];
        for (to, from) in padded.iter_mut().zip(chunk) {
            *to = *from;
        }
        word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
    }
}

/// Loads this many bytes, or as many as there are.
pub(super) fn load(words: &[AtomicU64], length: usize) -> Vec<u8> {
    let length = length.min(words.len() * WORD);
    let mut bytes = Vec::with_capacity(words_for(length) * WORD);
    for word in words.iter().take(words_for(length)) {
        bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Whether the stored bytes are equal to `bytes`. Allocates nothing.
pub(super) fn equal(words: &[AtomicU64], bytes: &[u8]) -> bool {
    words.len() == words_for(bytes.len())
        && words.iter().zip(bytes.chunks(WORD)).all(|(word, chunk)| {
            let stored = word.load(Ordering::Relaxed).to_le_bytes();
            stored.iter().zip(chunk).all(|(a, b)| a == b)
        })
}

/// FNV-1a hash. Its quality affects only speed.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
