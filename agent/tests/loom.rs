//! The protocols of the black box in a model checker, which explores interleavings of a few
//! threads, and all values that memory orders allow a load to return, up to a bound of preemptions.
//!
//! The library's own source files are compiled a second time, with `loom`'s atomics.
//! `LOOM_MAX_PREEMPTIONS` raises the bound (`make loom`).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(dead_code, reason = "of what the library uses, the models use a part")]

use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{THREAD_WORDS, thread as words};
use loom::thread;

use protocol::ring::{self, Copied, Cursor};
use protocol::strings::Strings;
use recent::{CallFacts, RecentCalls};
use sync::{AtomicU64, Ordering};

#[path = "../src/blackbox/protocol/mod.rs"]
mod protocol;
#[path = "../src/blackbox/recent.rs"]
mod recent;
#[path = "../src/blackbox/text.rs"]
mod text;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
    pub(crate) use loom::thread::yield_now as spin_loop;
}

/// Words of a slot: its lock and two more, which reveal a torn record.
const SLOT: usize = 3;

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

/// Runs a model with the bound from the environment, or with `preemptions`.
///
/// All concurrent work is done in threads that the model starts. If the model's main thread takes
/// part, `loom` 0.7.2 skips executions in which the other thread finishes first.
fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

/// A ring like that of a black box, with its own words.
struct Ring {
    head: AtomicU64,
    dropped: AtomicU64,
    step: usize,
    size: AtomicU64,
    slots: Vec<[AtomicU64; SLOT]>,
}

impl Ring {
    fn new(capacity: usize) -> Arc<Self> {
        Self::extensible(capacity, capacity)
    }

    fn extensible(step: usize, capacity: usize) -> Arc<Self> {
        let size = word();
        size.store(step as u64, Ordering::Relaxed);
        Arc::new(Self {
            head: word(),
            dropped: word(),
            step,
            size,
            slots: (0..capacity).map(|_| [word(), word(), word()]).collect(),
        })
    }

    fn slot(&self, ticket: u64) -> &[AtomicU64; SLOT] {
        &self.slots[(ticket % self.size.load(Ordering::Relaxed)) as usize]
    }

    /// Like `Writer::append`; counts dropped records.
    fn append(&self, value: u64) {
        let ticket = self.head.fetch_add(1, Ordering::Relaxed);
        if !ring::write(self.slot(ticket), ticket, &[value, !value]) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Like `Reader::copy`; returns the values that were read.
    fn copy(&self, cursor: &mut Cursor, dead: bool) -> Vec<u64> {
        let mut batch = Vec::new();
        let size = self.size.load(Ordering::Relaxed);
        let read = |ticket| {
            ring::find(ticket, self.step, size as usize, |slot| {
                ring::read::<SLOT, 2>(&self.slots[slot], ticket)
            })
        };
        cursor.copy(&mut batch, 8, size, || self.head.load(Ordering::Acquire), read, |_, _| dead);
        let mut values = Vec::new();
        for copied in batch {
            if let Copied::Record(_, [value, inverse]) = copied {
                assert_eq!(value, !inverse, "a torn record was accepted");
                values.push(value);
            }
        }
        values
    }
}

/// Two writers overwrite each other's records while a reader copies them.
fn overwritten_while_read(capacity: usize, each: u64) {
    let ring = Ring::new(capacity);
    let produce = |producer: u64| {
        let ring = Arc::clone(&ring);
        move || (0..each).for_each(|i| ring.append(10 * producer + i))
    };
    let reads = Arc::clone(&ring);
    let read = move || {
        let mut cursor = Cursor::default();
        let values = reads.copy(&mut cursor, false);
        (cursor, values)
    };
    let threads = (thread::spawn(produce(1)), thread::spawn(produce(2)), thread::spawn(read));
    threads.0.join().unwrap();
    threads.1.join().unwrap();
    let (mut cursor, mut values) = threads.2.join().unwrap();

    values.extend(ring.copy(&mut cursor, true));
    assert_eq!(cursor.next, 2 * each, "the reader came to the end");
    assert_eq!(values.len() as u64 + cursor.lost, 2 * each, "what was not read was counted");
    let dropped = ring.dropped.load(Ordering::Relaxed);
    assert!(dropped <= cursor.lost);
    let mut once = values.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), values.len(), "no record was read twice");
}

#[test]
fn torn_records_are_rejected_and_lost_ones_counted() {
    model(2, || overwritten_while_read(1, 1));
}

#[test]
fn writers_may_lap_each_other() {
    model(1, || overwritten_while_read(2, 2));
}

/// A writer that is delayed after taking its ticket does not overwrite a later record. `loom` does
/// not explore this case, because a thread's own load hides the other's earlier store, so the steps
/// are explicit.
#[test]
fn earlier_ticket_does_not_overwrite_a_later_record() {
    model(0, || {
        let ring = Ring::new(1);
        ring.head.store(2, Ordering::Relaxed);
        assert!(ring::write(ring.slot(1), 1, &[1, !1]));
        assert!(!ring::write(ring.slot(0), 0, &[0, !0]), "it was asleep");
        assert_eq!(ring.copy(&mut Cursor::default(), true), [1]);
    });
}

/// A reader extends the ring while a writer, which may see the new size late, appends to it.
#[test]
fn ring_is_extended_while_records_are_written() {
    model(3, || {
        let ring = Ring::extensible(2, 4);
        ring.append(0);
        ring.append(1);
        let mut cursor = Cursor::default();
        assert_eq!(ring.copy(&mut cursor, false), [0, 1]);
        let writes = Arc::clone(&ring);
        let writer = thread::spawn(move || (2..4).for_each(|value| writes.append(value)));
        let reader = thread::spawn(move || {
            ring.size.store(4, Ordering::Relaxed);
            let values = ring.copy(&mut cursor, false);
            (ring, cursor, values)
        });
        writer.join().unwrap();
        let (ring, mut cursor, mut values) = reader.join().unwrap();
        values.extend(ring.copy(&mut cursor, true));
        assert_eq!((values, cursor.lost), (vec![2, 3], 0));
    });
}

/// The strings of a box, and the writer's cached number of one.
struct Texts {
    index: [AtomicU64; 2],
    heap: [AtomicU64; 2],
    count: AtomicU64,
    used: AtomicU64,
    known: AtomicU64,
}

impl Texts {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            index: [word(), word()],
            heap: [word(), word()],
            count: word(),
            used: word(),
            known: word(),
        })
    }

    fn strings(&self) -> Strings<'_> {
        Strings { index: &self.index, heap: &self.heap }
    }

    /// Like `Writer::intern`.
    fn intern(&self) -> u64 {
        match self.known.load(Ordering::Acquire) {
            0 => {
                let strings = self.strings();
                let id = u64::from(strings.add(&self.count, &self.used, b"train.py", 0).unwrap());
                self.known.store(id, Ordering::Release);
                id
            }
            known => known,
        }
    }

    fn is_whole(&self, id: u32) -> Option<bool> {
        let (words, length) = self.strings().get(id)?;
        Some(text::load(words, length) == b"train.py")
    }
}

#[test]
fn published_string_is_complete() {
    model(3, || {
        let texts = Texts::new();
        let shared = Arc::clone(&texts);
        let adds = thread::spawn(move || shared.intern());
        let looks = thread::spawn(move || {
            assert_ne!(texts.is_whole(1), Some(false), "half a text");
        });
        adds.join().unwrap();
        looks.join().unwrap();
    });
}

/// A record may refer to a string that another thread added; a reader of the record finds the
/// string.
#[test]
fn strings_are_published_before_records() {
    model(2, || {
        let (texts, ring) = (Texts::new(), Ring::new(2));
        let name = || {
            let (texts, ring) = (Arc::clone(&texts), Arc::clone(&ring));
            move || ring.append(texts.intern())
        };
        let (one, other) = (thread::spawn(name()), thread::spawn(name()));
        let reader = thread::spawn(move || {
            for id in ring.copy(&mut Cursor::default(), false) {
                assert_eq!(texts.is_whole(id as u32), Some(true));
            }
        });
        one.join().unwrap();
        other.join().unwrap();
        reader.join().unwrap();
    });
}

type Entry = [AtomicU64; THREAD_WORDS];

/// An entry owned by thread 1, whose name is string 100.
fn entry() -> Arc<Entry> {
    let entry: Arc<Entry> = Arc::new(std::array::from_fn(|_| word()));
    protocol::thread::publish(&entry, 1, 0, 100);
    entry
}

/// Reads an entry while `writes` changes it. The name and the call must belong to the owner that
/// was read.
fn read_while(writes: impl Fn(&Entry) + Send + Sync + 'static, entry: Arc<Entry>) {
    let written = Arc::clone(&entry);
    let writer = thread::spawn(move || writes(&written));
    let reader = thread::spawn(move || {
        let Some((first, name, inside)) = protocol::thread::read(&entry, 1) else {
            return;
        };
        let (tid, generation) = words::parse(first).unwrap();
        assert_eq!((name, u32::from(generation)), (100 * tid, tid - 1));
        if let Some(inside) = inside {
            let own: &[u64] = if tid == 1 { &[0, 5] } else { &[0] };
            assert!(own.contains(&inside[0]), "{tid} is inside of {inside:?}");
            assert!(inside.iter().all(|it| *it == inside[0]), "mixed: {inside:?}");
        }
    });
    writer.join().unwrap();
    reader.join().unwrap();
}

#[test]
fn state_of_a_thread_is_never_torn() {
    model(2, || {
        read_while(|entry| protocol::thread::enter(entry, [5; 4]), entry());
    });
}

#[test]
fn reused_entry_belongs_to_exactly_one_thread() {
    model(2, || {
        let entry = entry();
        protocol::thread::enter(&entry, [5; 4]);
        let takes = |entry: &Entry| {
            let generation = protocol::thread::take(entry, 2, |_| false).unwrap();
            protocol::thread::publish(entry, 2, generation, 200);
        };
        read_while(takes, entry);
    });
}

/// A call that is looked up while its entry is reused is found or unknown.
#[test]
fn recalled_facts_belong_to_the_call() {
    model(3, || {
        let known = |call: u64| CallFacts { group: call as u32, op: Op::AllReduce, seq: call };
        let calls = Arc::new(RecentCalls::with_room_for(1));
        calls.remember(1, known(1));
        let remembers = Arc::clone(&calls);
        let writer = thread::spawn(move || remembers.remember(2, known(2)));
        let recalls = Arc::clone(&calls);
        let reader = thread::spawn(move || {
            let found = recalls.recall(1);
            assert!(found == known(1) || found == CallFacts::default(), "{found:?}");
        });
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(calls.recall(2), known(2));
    });
}
