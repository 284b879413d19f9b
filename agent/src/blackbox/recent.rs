//! The latest calls by id, so that later records about a call repeat its facts.

use crate::sync::{AtomicU64, Ordering, fence};

use ddp_doctor_proto::Op;

/// Number of calls that are remembered. Records about older calls contain only the id.
pub(super) const REMEMBERED: usize = 2048;

/// Set in [`Entry::facts`] once the call was counted as complete.
const COMPLETE: u64 = 1 << 63;
/// Set once the call returned to its caller.
const RETURNED: u64 = 1 << 48;
/// Set once a part of the call is tracked on a device.
const FOLLOWED: u64 = 1 << 49;
/// Set once the first NCCL call inside this call was recorded.
const DESCRIBED: u64 = 1 << 50;
/// One tracked part that is not complete; [`PARTS`] is the mask of their count.
const PART: u64 = 1 << 40;
const PARTS: u64 = 0xff << 40;
/// Bounds the retries when threads change the facts of one call concurrently; its parts are few.
const TRIES: usize = 64;

/// Facts about a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallFacts {
    pub(super) group: u32,
    pub(super) op: Op,
    pub(super) seq: u64,
}

#[derive(Debug)]
#[repr(align(32))]
struct Entry {
    /// Id of the call in this entry; 0 while the entry changes.
    call: AtomicU64,
    /// `group | op << 32 | PARTS | RETURNED | FOLLOWED | DESCRIBED | COMPLETE`.
    facts: AtomicU64,
    seq: AtomicU64,
}

/// A table of calls, indexed by the lowest bits of their ids.
#[derive(Debug)]
pub(super) struct RecentCalls {
    entries: Box<[Entry]>,
}

impl RecentCalls {
    pub(super) fn new() -> Self {
        Self::with_room_for(REMEMBERED)
    }

    pub(super) fn with_room_for(calls: usize) -> Self {
        let empty =
            |_| Entry { call: AtomicU64::new(0), facts: AtomicU64::new(0), seq: AtomicU64::new(0) };
        Self { entries: (0..calls).map(empty).collect() }
    }

    fn entry(&self, call: u64) -> Option<&Entry> {
        let index = (call as usize).checked_rem(self.entries.len())?;
        self.entries.get(index)
    }

    pub(super) fn remember(&self, call: u64, known: CallFacts) {
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

    pub(super) fn recall(&self, call: u64) -> CallFacts {
        let find = || {
            let entry = self.entry(call).filter(|_| call != 0)?;
            if entry.call.load(Ordering::Acquire) != call {
                return None;
            }
            let facts = entry.facts.load(Ordering::Relaxed);
            let seq = entry.seq.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            let known =
                CallFacts { group: facts as u32, op: Op::from_number((facts >> 32) as u8), seq };
            (entry.call.load(Ordering::Relaxed) == call).then_some(known)
        };
        find().unwrap_or_default()
    }

    /// Marks the call as described by an NCCL call. Returns whether it was not before.
    pub(super) fn describe(&self, call: u64) -> bool {
        let before = self.change(call, |facts| Some(facts | DESCRIBED));
        before.is_some_and(|facts| facts & DESCRIBED == 0)
    }

    /// Adds a tracked part. Returns false for messages, calls that have returned, and too many parts.
    pub(super) fn follow(&self, call: u64) -> bool {
        let added = self.change(call, |facts| {
            let late = facts & RETURNED != 0 || facts & PARTS == PARTS;
            let message = Op::from_number((facts >> 32) as u8).is_point_to_point();
            (!late && !message).then_some((facts | FOLLOWED) + PART)
        });
        added.is_some()
    }

    /// Removes a completed part. Returns whether the whole call is now complete.
    pub(super) fn part_done(&self, call: u64) -> bool {
        let before = self.change(call, |facts| (facts & PARTS != 0).then(|| facts - PART));
        before.is_some_and(|facts| facts & PARTS == PART && facts & RETURNED != 0)
    }

    /// Marks the call as returned. Returns whether parts of it are tracked, and whether all are
    /// complete.
    pub(super) fn set_returned(&self, call: u64) -> (bool, bool) {
        let before = self.change(call, |facts| Some(facts | RETURNED));
        let facts = before.unwrap_or(RETURNED);
        let followed = facts & (FOLLOWED | RETURNED) == FOLLOWED;
        (followed, followed && facts & PARTS == 0)
    }

    /// Changes the facts of a call and returns the old ones; `None`: unknown call, or `change`
    /// declined.
    fn change(&self, call: u64, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let entry = self.entry(call).filter(|_| call != 0)?;
        let mut facts = entry.facts.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            // Checked again: the entry may be another call's by now.
            if entry.call.load(Ordering::Acquire) != call {
                return None;
            }
            let new = change(facts)?;
            let changed =
                entry.facts.compare_exchange(facts, new, Ordering::AcqRel, Ordering::Relaxed);
            match changed {
                Ok(before) => return Some(before),
                Err(now) => facts = now,
            }
        }
        None
    }

    /// Marks the call as complete. Returns whether it was not before.
    pub(super) fn complete(&self, call: u64) -> bool {
        let before = self.change(call, |facts| (facts & COMPLETE == 0).then_some(facts | COMPLETE));
        before.is_some()
    }
}
