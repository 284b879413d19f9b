//! Unit tests of files that `tests/loom.rs` compiles with loom's atomics, which work only inside a
//! model.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::WORD;

use super::recent::{CallFacts, REMEMBERED, RecentCalls};
use super::text::{cut, equal, load, store, words_for};
use crate::sync::AtomicU64;

#[test]
fn text_is_cut_at_a_character_boundary() {
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
        let words: Vec<AtomicU64> =
            (0..words_for(bytes.len())).map(|_| AtomicU64::new(u64::MAX)).collect();
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
fn call_is_known_until_its_entry_is_reused() {
    let calls = RecentCalls::new();
    let known = CallFacts { group: u32::MAX, op: Op::Broadcast, seq: 9 };
    calls.remember(5, known);
    assert_eq!(calls.recall(5), known);
    assert_eq!(calls.recall(0), CallFacts::default());
    assert!(calls.complete(5) && !calls.complete(5));
    assert_eq!(calls.recall(5), known);
    calls.remember(5 + REMEMBERED as u64, CallFacts::default());
    assert_eq!(calls.recall(5), CallFacts::default());
    assert!(!calls.complete(5));
}

fn calls(op: Op) -> RecentCalls {
    let calls = RecentCalls::new();
    calls.remember(5, CallFacts { group: u32::MAX, op, seq: 9 });
    calls
}

#[test]
fn call_is_complete_after_its_return_and_all_parts() {
    let first = calls(Op::AllReduce);
    assert!(first.follow(5) && first.follow(5));
    assert!(!first.part_done(5) && !first.part_done(5));
    // All tracked parts are complete, but more may follow before the return.
    assert_eq!(first.set_returned(5), (true, true));

    let last = calls(Op::AllReduce);
    assert!(last.follow(5) && last.follow(5));
    assert!(!last.part_done(5));
    assert_eq!(last.set_returned(5), (true, false));
    // It has returned before; its parts are not reported again.
    assert_eq!(last.set_returned(5), (false, false));
    assert!(last.part_done(5));
    assert!(!last.part_done(5), "there is no other");
    assert_eq!(last.recall(5).group, u32::MAX, "its name is untouched");
    assert_eq!((last.recall(5).op, last.recall(5).seq), (Op::AllReduce, 9));
    assert!(last.complete(5) && !last.complete(5));
}

#[test]
fn late_parts_and_messages_are_not_tracked() {
    let late = calls(Op::AllReduce);
    assert_eq!(late.set_returned(5), (false, false));
    assert!(!late.follow(5) && !late.part_done(5));
    assert!(!calls(Op::Send).follow(5));
    let others = calls(Op::AllReduce);
    assert!(!others.follow(0) && !others.follow(6));
    assert_eq!(others.set_returned(6), (false, false));
}

#[test]
fn tracked_parts_are_limited_by_their_counter() {
    let many = calls(Op::AllReduce);
    assert!((0..255).all(|_| many.follow(5)));
    assert!(!many.follow(5));
    assert_eq!(many.set_returned(5), (true, false));
    assert!((0..254).all(|_| !many.part_done(5)));
    assert!(many.part_done(5));
}

#[test]
fn call_is_described_once() {
    let calls = calls(Op::AllReduce);
    assert!(calls.describe(5) && !calls.describe(5));
    assert!(!calls.describe(6));
}
