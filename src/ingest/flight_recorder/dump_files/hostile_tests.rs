//! Dumps whose values refer to each other often, and many small files that expand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::parse;
use crate::flight_recorder::dump::{Dump, Room};

/// Memo entries of the values that the pickles of these tests refer to.
const SHAPE: u8 = 0;
const SHARED: u8 = 1;
const ENTRY: u8 = 2;

/// Writes a pickle.
#[derive(Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn op(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    /// Remembers the latest value.
    fn remember(&mut self, at: u8) -> &mut Self {
        self.op(&[b'q', at])
    }

    /// Refers to a remembered value this many times.
    fn again(&mut self, at: u8, times: usize) -> &mut Self {
        self.op(&[b'h', at].repeat(times))
    }
}

/// A dump whose calls are one dictionary. Its number of the call is this text, and the sizes of its inputs are one
/// empty shape, many times.
fn dump_of_one_call(calls: usize, number: &str, shapes: usize) -> Vec<u8> {
    let mut it = Pickle::default();
    it.op(b"\x80\x02}(").text("shared").op(b")").remember(SHAPE);
    it.text("list").op(b"](").again(SHAPE, shapes).op(b"e").remember(SHARED);
    it.text("entry").op(b"}(");
    it.text("collective_seq_id").text(number);
    it.text("profiling_name").text("nccl:all_reduce");
    it.text("process_group").op(b"(").text("0").text("default_pg").op(b"t");
    it.text("input_sizes").again(SHARED, 1);
    it.op(b"u").remember(ENTRY);
    it.text("entries").op(b"](").again(ENTRY, calls).op(b"e");
    it.op(b"u.");
    it.0
}

fn dump(bytes: Vec<u8>) -> Dump {
    parse(bytes, None, &Room::new(1 << 20, u64::MAX)).unwrap()
}

#[test]
fn one_call_many_times_is_read() {
    let dump = dump(dump_of_one_call(1_000, "7", 2));
    assert_eq!((dump.count, dump.cut), (1_000, None));
}

#[test]
fn long_list_that_all_calls_share_is_not_read_for_each() {
    let dump = dump(dump_of_one_call(1_000, "7", 10_000));
    assert!((1..100).contains(&dump.count), "{}", dump.count);
    assert!(dump.cut.is_some_and(|it| it.contains("refer to each other too often")));
}

#[test]
fn long_text_is_no_number() {
    let number = format!("7{}", " ".repeat(1 << 16));
    let dump = dump(dump_of_one_call(100, &number, 0));
    assert_eq!((dump.count, dump.skipped), (0, 100));
}

#[test]
fn room_for_calls_grows_with_the_sizes_of_files() {
    let room = Room::growing(3 << 20, u64::MAX);
    let left = || room.take(usize::MAX);
    assert_eq!((left(), left()), (1 << 20, 0));
    room.grow(1 << 20);
    assert_eq!((left(), left()), (1 << 18, 0));
    room.grow(u64::MAX);
    room.grow(u64::MAX);
    assert_eq!(left(), (2 << 20) - (1 << 18));
}

#[test]
fn memory_for_dumps_that_are_decoded_is_shared() {
    let room = Room::new(1, 1);
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let decode = || {
        room.decode(40 << 20, || {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
            now.fetch_sub(1, Ordering::Relaxed);
        });
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(decode))));
    assert_eq!(most.into_inner(), 1);
    // A dump that is larger than all of it is decoded alone.
    assert_eq!(room.decode(1 << 30, || 7), 7);
}
