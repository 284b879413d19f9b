//! Entry of a thread: its owner, and under a sequence lock the owner's innermost call or wait.

use ddp_doctor_proto::blackbox::{PUBLISHED, THREAD_WORDS, thread};

use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

/// Words of a thread's entry.
pub(crate) type Entry = [AtomicU64; THREAD_WORDS];

/// The words from [`thread::INSIDE`] on.
pub(crate) type Inside = [u64; 4];

/// Takes over the entry of a dead thread and returns its new generation; `None`: another thread was
/// faster, or the owner is alive.
///
/// A published entry with the same `tid` belongs to a dead thread, since thread ids are reused.
pub(crate) fn take(entry: &Entry, tid: u32, may_live: impl FnOnce(u32) -> bool) -> Option<u16> {
    let found = entry[thread::TID].load(Ordering::Acquire);
    let generation = match thread::parse(found) {
        Some((owner, _)) if owner != tid && may_live(owner) => return None,
        Some((_, generation)) => generation.wrapping_add(1),
        None => return None,
    };
    let unpublished = u64::from(generation) << 32 | u64::from(tid);
    entry[thread::TID]
        .compare_exchange(found, unpublished, Ordering::Acquire, Ordering::Relaxed)
        .ok()?;
    fence(Ordering::Release);
    Some(generation)
}

/// Fills and publishes an entry that the caller has taken.
pub(crate) fn publish(entry: &Entry, tid: u32, generation: u16, name: u32) {
    entry[thread::NAME].store(u64::from(name), Ordering::Relaxed);
    enter(entry, [0; 4]);
    entry[thread::RECORDS].store(0, Ordering::Relaxed);
    let word = PUBLISHED | u64::from(generation) << 32 | u64::from(tid);
    entry[thread::TID].store(word, Ordering::Release);
}

/// Stores the innermost call or wait of an entry's owner. Called only by the owner.
#[inline]
pub(crate) fn enter(entry: &Entry, inside: Inside) {
    // A dead owner may have left the lock odd.
    let odd = entry[thread::LOCK].load(Ordering::Relaxed) | 1;
    entry[thread::LOCK].store(odd, Ordering::Relaxed);
    fence(Ordering::Release);
    for (word, value) in entry[thread::INSIDE..].iter().zip(inside) {
        word.store(value, Ordering::Relaxed);
    }
    entry[thread::LOCK].store(odd.wrapping_add(1), Ordering::Release);
}

/// Reads an entry: its first word, the number of its name, and the owner's innermost call, if that
/// was stable in one of `tries` reads. `None`: the entry is free, or its owner changed.
pub(crate) fn read(entry: &Entry, tries: usize) -> Option<(u64, u32, Option<Inside>)> {
    let first = entry[thread::TID].load(Ordering::Acquire);
    thread::parse(first)?;
    let name = entry[thread::NAME].load(Ordering::Relaxed) as u32;
    let inside = read_inside(entry, tries);
    fence(Ordering::Acquire);
    (entry[thread::TID].load(Ordering::Relaxed) == first).then_some((first, name, inside))
}

fn read_inside(entry: &Entry, tries: usize) -> Option<Inside> {
    for _ in 0..tries {
        let before = entry[thread::LOCK].load(Ordering::Acquire);
        let mut inside = [0; 4];
        for (to, from) in inside.iter_mut().zip(&entry[thread::INSIDE..]) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        if before.is_multiple_of(2) && entry[thread::LOCK].load(Ordering::Relaxed) == before {
            return Some(inside);
        }
        spin_loop();
    }
    None
}
