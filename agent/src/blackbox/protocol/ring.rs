//! The ring: one record per slot, overwriting, with any number of writers; and the cursor of a
//! reader.
//!
//! The protocol is explained in [`ddp_doctor_proto::blackbox`].

use ddp_doctor_proto::blackbox::{committed, writing};

use crate::sync::{AtomicU64, Ordering, fence};

/// Writes a record into a slot, whose first word is its lock. Returns whether it succeeded.
#[inline]
pub(crate) fn write<const N: usize>(slot: &[AtomicU64; N], ticket: u64, payload: &[u64]) -> bool {
    let [lock, words @ ..] = slot.as_slice() else {
        return false;
    };
    let found = lock.load(Ordering::Relaxed);
    // Odd: its writer is delayed by a lap. Later: this writer is.
    let claimed = found % 2 == 0
        && found < writing(ticket)
        && lock
            .compare_exchange(found, writing(ticket), Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
    if !claimed {
        return false;
    }
    // A reader that sees one of the words below must also see the claim.
    fence(Ordering::Release);
    for (word, value) in words.iter().zip(payload) {
        word.store(*value, Ordering::Relaxed);
    }
    lock.store(committed(ticket), Ordering::Release);
    true
}

/// Maximum number of sizes that a ring may have.
const MAX_SIZES: usize = 8;

/// Whether a ring may have the multiples of `step` up to `capacity` as sizes.
pub(crate) const fn are_sizes(step: usize, capacity: usize) -> bool {
    step != 0 && capacity.is_multiple_of(step) && capacity != 0 && capacity / step <= MAX_SIZES
}

/// Reads the record with a ticket from a ring with this size and this step, which may have been
/// smaller when it was written. `read` reads one slot.
#[inline]
pub(crate) fn find<P>(
    ticket: u64,
    step: usize,
    size: usize,
    read: impl Fn(usize) -> Slot<P>,
) -> Slot<P> {
    let read = |size: usize| read((ticket % size as u64) as usize);
    let latest = read(size);
    if matches!(latest, Slot::Record(_)) {
        return latest;
    }
    let smaller = (1..size / step).map(|steps| read(steps * step));
    smaller.rev().find(|slot| matches!(slot, Slot::Record(_))).unwrap_or(latest)
}

/// State of a slot with respect to a ticket.
#[derive(Debug)]
pub(crate) enum Slot<P> {
    /// The record with the ticket.
    Record(P),
    /// The slot has a later record, or one is being written.
    Overwritten,
    /// The record is not written yet, or never will be.
    Missing,
}

/// Copies a record out of its slot. `P` is `N - 1`.
#[inline]
pub(crate) fn read<const N: usize, const P: usize>(
    slot: &[AtomicU64; N],
    ticket: u64,
) -> Slot<[u64; P]> {
    let [lock, words @ ..] = slot.as_slice() else {
        return Slot::Missing;
    };
    let before = lock.load(Ordering::Acquire);
    if before != committed(ticket) {
        return if before > committed(ticket) { Slot::Overwritten } else { Slot::Missing };
    }
    let mut payload = [0; P];
    for (to, from) in payload.iter_mut().zip(words) {
        *to = from.load(Ordering::Relaxed);
    }
    fence(Ordering::Acquire);
    if lock.load(Ordering::Relaxed) == before { Slot::Record(payload) } else { Slot::Overwritten }
}

/// Items copied from the ring, in order.
#[derive(Debug)]
pub(crate) enum Copied<P> {
    /// A record with its ticket.
    Record(u64, P),
    /// Number of lost records.
    Lost(u64),
}

/// Position of a reader.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// Ticket of the next record.
    pub(crate) next: u64,
    /// Tickets below this were delivered or counted as lost.
    pub(crate) passed: u64,
    /// Number of records counted as lost.
    pub(crate) lost: u64,
}

impl Cursor {
    /// Copies up to `limit` records into the batch, with the numbers of records lost between them.
    /// Returns the number of records. If the next record is missing, `is_gone` is called with the
    /// head and decides whether to skip it.
    pub(crate) fn copy<P>(
        &mut self,
        batch: &mut Vec<Copied<P>>,
        limit: usize,
        capacity: u64,
        head: impl Fn() -> u64,
        read: impl Fn(u64) -> Slot<P>,
        mut is_gone: impl FnMut(&Self, u64) -> bool,
    ) -> usize {
        let until = head();
        let mut records = 0;
        self.skip_to(until.saturating_sub(capacity), batch);
        while records < limit && self.next < until {
            match read(self.next) {
                Slot::Record(payload) => {
                    batch.push(Copied::Record(self.next, payload));
                    self.next += 1;
                    self.passed = self.passed.max(self.next);
                    records += 1;
                }
                Slot::Overwritten => {
                    // The writer may meanwhile have overwritten more than this record.
                    let oldest = head().saturating_sub(capacity);
                    self.skip_to(oldest.max(self.next + 1).min(until), batch);
                }
                Slot::Missing if is_gone(self, until) => self.skip_to(self.next + 1, batch),
                Slot::Missing => break,
            }
        }
        records
    }

    /// Moves forward; records that were not passed before are lost.
    fn skip_to<P>(&mut self, ticket: u64, batch: &mut Vec<Copied<P>>) {
        if ticket <= self.next {
            return;
        }
        self.next = ticket;
        let lost = ticket.saturating_sub(self.passed);
        if lost == 0 {
            return;
        }
        self.passed = ticket;
        self.lost = self.lost.saturating_add(lost);
        match batch.last_mut() {
            Some(Copied::Lost(count)) => *count = count.saturating_add(lost),
            _ => batch.push(Copied::Lost(lost)),
        }
    }
}
