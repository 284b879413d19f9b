//! Text and bytes in words.

use crate::sync::{AtomicU64, Ordering};

use ddp_doctor_proto::blackbox::WORD;

/// The longest beginning of at most `longest` bytes that does not cut a character.
pub(super) fn cut(text: &[u8], longest: usize) -> &[u8] {
    let Some(rest) = text.get(longest..) else {
        return text;
    };
    // Where the first byte left out continues a character, that character goes too.
    let continues = |byte: Option<&u8>| byte.is_some_and(|byte| byte & 0xc0 == 0x80);
    let mut end = longest;
    if continues(rest.first()) {
        // A character has at most three continuations; what has more is no UTF-8 anyway.
        for _ in 0..3 {
            if end > 0 && continues(text.get(end)) {
                end -= 1;
            }
        }
    }
    text.get(..end).unwrap_or_default()
}

/// Words that so many bytes take.
pub(super) const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

/// Stores bytes, padded with zeros to a whole word. What finds no room is left out.
pub(super) fn store(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(WORD)) {
        let mut padded = [0; WORD];
        for (to, from) in padded.iter_mut().zip(chunk) {
            *to = *from;
        }
        word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
    }
}

/// Loads so many bytes, or as many as there are.
pub(super) fn load(words: &[AtomicU64], length: usize) -> Vec<u8> {
    let length = length.min(words.len() * WORD);
    let mut bytes = Vec::with_capacity(words_for(length) * WORD);
    for word in words.iter().take(words_for(length)) {
        bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Whether the stored bytes are these. Allocates nothing.
pub(super) fn equal(words: &[AtomicU64], bytes: &[u8]) -> bool {
    words.len() == words_for(bytes.len())
        && words.iter().zip(bytes.chunks(WORD)).all(|(word, chunk)| {
            let stored = word.load(Ordering::Relaxed).to_le_bytes();
            stored.iter().zip(chunk).all(|(a, b)| a == b)
        })
}

/// A hash that spreads bytes over a table (FNV-1a). Nothing depends on its quality but speed.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
