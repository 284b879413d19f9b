//! Unit tests of the files that `tests/loom.rs` compiles too: their atomics know no test outside a model.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::WORD;

use super::recent::{Known, REMEMBERED, RecentCalls};
use super::text::{cut, equal, load, store, words_for};
use crate::sync::AtomicU64;

#[test]
fn no_character_is_cut() {
    assert_eq!(cut(b"abc", 5), b"abc");
    assert_eq!(cut(b"abc", 2), b"ab");
    assert_eq!(cut("aé".as_bytes(), 2), b"a");
    assert_eq!(cut("a€".as_bytes(), 3), b"a");
    assert_eq!(cut("𝄞".as_bytes(), 3), b"");
    assert_eq!(cut("é".as_bytes(), 0), b"");
    assert_eq!(cut(&[0x80; 9], 8).len(), 5);
}

#[test]
fn bytes_survive_words() {
    for n in 0..20 {
        let bytes: Vec<u8> = (1..=n).collect();
        let words: Vec<AtomicU64> = (0..words_for(bytes.len()))
            .map(|_| AtomicU64::new(u64::MAX))
            .collect();
        store(&words, &bytes);
        assert_eq!(load(&words, bytes.len()), bytes);
        assert_eq!(load(&words, 1000).len(), words.len() * WORD);
        assert!(equal(&words, &bytes));
        let mut other = bytes.clone();
        if let Some(last) = other.last_mut() {
            *last ^= 1;
            assert!(!equal(&words, &other));
        }
    }
}

#[test]
fn a_call_is_known_until_its_entry_is_taken() {
    let calls = RecentCalls::new();
    let known = Known {
        group: u32::MAX,
        op: Op::Broadcast,
        seq: 9,
    };
    calls.remember(5, known);
    assert_eq!(calls.recall(5), known);
    assert_eq!(calls.recall(0), Known::default());
    assert!(calls.complete(5) && !calls.complete(5));
    assert_eq!(calls.recall(5), known);
    calls.remember(5 + REMEMBERED as u64, Known::default());
    assert_eq!(calls.recall(5), Known::default());
    assert!(!calls.complete(5));
}
