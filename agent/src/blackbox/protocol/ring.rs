//! The ring: one record a slot, overwriting, any number of producers; and whoever goes along it.
//!
//! The protocol is explained in [`ddp_doctor_proto::blackbox`].

use ddp_doctor_proto::blackbox::{committed, writing};

use crate::sync::{AtomicU64, Ordering, fence};

/// Puts a record into a slot, after its lock; whether it could.
#[inline]
pub(crate) fn write<const N: usize>(slot: &[AtomicU64; N], ticket: u64, payload: &[u64]) -> bool {
    let [lock, words @ ..] = slot.as_slice() else {
        return false;
    };
    let found = lock.load(Ordering::Relaxed);
    // Odd: its writer has slept for a lap. Later: this writer has.
    let claimed = found % 2 == 0
        && found < writing(ticket)
        && lock
            .compare_exchange(found, writing(ticket), Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
    if !claimed {
        return false;
    }
    // A reader that sees one of the words below must see the claim as well.
    fence(Ordering::Release);
    for (word, value) in words.iter().zip(payload) {
        word.store(*value, Ordering::Relaxed);
    }
    lock.store(committed(ticket), Ordering::Release);
    true
}

/// What a slot says about a ticket.
#[derive(Debug)]
pub(crate) enum Slot<P> {
    /// The record.
    Record(P),
    /// A later record is there, or on its way.
    Overwritten,
    /// It is not there yet, or never will be.
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
        return if before > committed(ticket) {
            Slot::Overwritten
        } else {
            Slot::Missing
        };
    }
    let mut payload = [0; P];
    for (to, from) in payload.iter_mut().zip(words) {
        *to = from.load(Ordering::Relaxed);
    }
    fence(Ordering::Acquire);
    if lock.load(Ordering::Relaxed) == before {
        Slot::Record(payload)
    } else {
        Slot::Overwritten
    }
}

/// What was taken out of the ring, in order.
#[derive(Debug)]
pub(crate) enum Copied<P> {
    /// A record, by its ticket.
    Record(u64, P),
    /// So many that are gone.
    Lost(u64),
}

/// How far a reader has come.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// Ticket of the next record.
    pub(crate) next: u64,
    /// Tickets below were delivered or counted as lost.
    pub(crate) passed: u64,
    /// How many were counted as lost.
    pub(crate) lost: u64,
}

impl Cursor {
    /// Copies up to `limit` records into the batch, and how many were lost between them; how many
    /// records. `is_gone` is asked, with the head, whether the next one, which is missing, never comes.
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
                    // More than this one is gone by now, if the writer is that fast.
                    let oldest = head().saturating_sub(capacity);
                    self.skip_to(oldest.max(self.next + 1).min(until), batch);
                }
                Slot::Missing if is_gone(self, until) => self.skip_to(self.next + 1, batch),
                Slot::Missing => break,
            }
        }
        records
    }

    /// Goes forward; what was not passed before is lost.
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
