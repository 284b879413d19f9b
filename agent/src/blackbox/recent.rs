//! What the latest calls were, so that whoever says "call 17 returned" need not say more.

use crate::sync::{AtomicU64, Ordering, fence};

use ddp_doctor_proto::Op;

/// Calls that are remembered. One that so many others followed is forgotten: the records about it
/// then carry its id alone.
pub(super) const REMEMBERED: usize = 2048;

/// Set in [`Entry::facts`] once the call counted as complete.
const COMPLETE: u64 = 1 << 63;

/// What is known of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) group: u32,
    pub(super) op: Op,
    pub(super) seq: u64,
}

#[derive(Debug)]
#[repr(align(32))]
struct Entry {
    /// Its id, by which the entry is checked; 0 while it changes.
    call: AtomicU64,
    /// `group | op << 32 | COMPLETE`.
    facts: AtomicU64,
    seq: AtomicU64,
}

/// A table of calls by the lowest bits of their ids.
#[derive(Debug)]
pub(super) struct RecentCalls {
    entries: Box<[Entry]>,
}

impl RecentCalls {
    pub(super) fn new() -> Self {
        Self::with_room_for(REMEMBERED)
    }

    pub(super) fn with_room_for(calls: usize) -> Self {
        let empty = |_| Entry {
            call: AtomicU64::new(0),
            facts: AtomicU64::new(0),
            seq: AtomicU64::new(0),
        };
        Self {
            entries: (0..calls).map(empty).collect(),
        }
    }

    fn entry(&self, call: u64) -> Option<&Entry> {
        let index = (call as usize).checked_rem(self.entries.len())?;
        self.entries.get(index)
    }

    pub(super) fn remember(&self, call: u64, known: Known) {
        let Some(entry) = self.entry(call) else {
            return;
        };
        entry.call.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let facts = u64::from(known.group) | u64::from(known.op.number()) << 32;
        entry.facts.store(facts, Ordering::Relaxed);
        entry.seq.store(known.seq, Ordering::Relaxed);
        entry.call.store(call, Ordering::Release);
    }

    pub(super) fn recall(&self, call: u64) -> Known {
        let find = || {
            let entry = self.entry(call).filter(|_| call != 0)?;
            if entry.call.load(Ordering::Acquire) != call {
                return None;
            }
            let facts = entry.facts.load(Ordering::Relaxed);
            let seq = entry.seq.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            let known = Known {
                group: facts as u32,
                op: Op::from_number((facts >> 32) as u8),
                seq,
            };
            (entry.call.load(Ordering::Relaxed) == call).then_some(known)
        };
        find().unwrap_or_default()
    }

    /// Notes that the call is complete; whether that was news.
    pub(super) fn complete(&self, call: u64) -> bool {
        self.entry(call).is_some_and(|entry| {
            let facts = entry.facts.load(Ordering::Relaxed);
            call != 0
                && entry.call.load(Ordering::Acquire) == call
                && facts & COMPLETE == 0
                // Fails where another thread was faster, or the entry is another call's by now.
                && entry
                    .facts
                    .compare_exchange(
                        facts,
                        facts | COMPLETE,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    )
                    .is_ok()
        })
    }
}
