//! Records of calls: issue, return, waits, completion.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ddp_doctor_proto::blackbox::{
    Call, GROUP_WORDS, MAX_DIMS, Record, SPLITS_PER_RECORD, flags, group, inside, site, splits,
};
use ddp_doctor_proto::{Op, RecordKind};

use super::{Change, Writer, index};
use crate::blackbox::nesting::Frame;
use crate::blackbox::recent::CallFacts;
use crate::blackbox::threads::Local;
use crate::sys;

/// Maximum number of split sizes that are recorded per list, so that they do not fill the ring.
const MAX_SPLITS: usize = 50 * SPLITS_PER_RECORD;

impl Writer {
    /// Records a call before it is made. Returns its id, never 0.
    pub fn issued(&self, call: &Call) -> u64 {
        let now = sys::monotonic_ns();
        let id = self.next_call.fetch_add(1, Ordering::Relaxed);
        let op = Op::from_number(call.op);
        let group = self.group_words(call.group);
        let group_id = if group.is_some() { call.group } else { 0 };
        let mut flags = call.flags & !flags::P2P;
        if op.is_point_to_point() {
            flags |= flags::P2P;
        }
        if usize::from(call.ndim) > MAX_DIMS {
            flags &= !flags::SHAPE;
        }
        let mut seq = 0;
        if let Some(group) = group {
            seq = self.next_in_group(group, op, call, flags);
            group[group::LAST_MONO].store(now, Ordering::Relaxed);
            group[group::LAST_CALL].store(id, Ordering::Relaxed);
        }
        let site = self.count_at_site(call.site, now);
        self.calls.remember(id, CallFacts { group: group_id, op, seq });
        let frame = Frame { kind: inside::CALL, op, group: group_id, call: id, since: now, site };
        self.record(
            Some(Change::Enter(frame)),
            Record {
                mono_ns: now,
                kind: RecordKind::Issued,
                op,
                flags,
                ndim: call.ndim.min(MAX_DIMS as u8),
                group: group_id,
                seq,
                call: id,
                site,
                ..Record::from(call)
            },
        );
        id
    }

    /// Records a call of native code before it is made, at its return address; 0: unknown. Returns
    /// its id, never 0.
    pub fn issued_natively(&self, call: &Call, returns_to: usize) -> u64 {
        self.issued(&Call { site: self.native_site(returns_to), ..*call })
    }

    /// Counts the call in its group. Returns its sequence number; 0: none.
    fn next_in_group(
        &self,
        group: &[AtomicU64; GROUP_WORDS],
        op: Op,
        call: &Call,
        flags: u16,
    ) -> u64 {
        if op.encloses_calls() {
            return 0;
        }
        if !op.is_point_to_point() {
            return group[group::ISSUED].fetch_add(1, Ordering::Relaxed) + 1;
        }
        group[group::P2P_ISSUED].fetch_add(1, Ordering::Relaxed);
        if flags & flags::ROOT == 0 {
            return 0;
        }
        index(call.group)
            .and_then(|i| self.peers.get(i))
            .and_then(OnceLock::get)
            .map_or(0, |peers| peers.next(op, call.root_or_peer))
    }

    /// Counts a call at its site. Returns the site; 0: there is no such site.
    pub(super) fn count_at_site(&self, id: u32, now: u64) -> u32 {
        let Some(words) = self.site_words(id) else {
            return 0;
        };
        words[site::COUNT].fetch_add(1, Ordering::Relaxed);
        words[site::LAST_MONO].store(now, Ordering::Relaxed);
        id
    }

    /// Records the input or output split sizes of an `all_to_all`. Long lists are cut.
    pub fn splits(&self, call: u64, output: bool, sizes: impl IntoIterator<Item = u32>) {
        let known = self.calls.recall(call);
        let mut sizes = sizes.into_iter().take(MAX_SPLITS);
        let mut first = 0;
        loop {
            let mut piece = [0; SPLITS_PER_RECORD];
            let mut count = 0_u8;
            for (to, from) in piece.iter_mut().zip(&mut sizes) {
                *to = from;
                count += 1;
            }
            if count == 0 {
                return;
            }
            let record = Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::Splits,
                op: known.op,
                flags: if output { flags::OUTPUT } else { 0 },
                ndim: count,
                group: known.group,
                seq: first,
                call,
                ..Record::default()
            };
            self.with_thread(|local| {
                let mut record = record;
                record.thread = local.map_or(0, Local::id);
                let mut words = record.pack();
                splits::pack(&mut words, piece.get(..usize::from(count)).unwrap_or(&[]));
                self.append(&words);
            });
            first += u64::from(count);
        }
    }

    /// Records that the call returned to its caller.
    pub fn returned(&self, call: u64) {
        let (followed, complete) = self.calls.set_returned(call);
        if followed {
            self.returned_followed(call);
        } else {
            let change = Change::Leave(inside::CALL, call);
            self.about_call(RecordKind::Returned, call, Some(change));
        }
        if complete {
            self.completed(call);
        }
    }

    /// Records that the call returned to its caller and that its completion will be recorded.
    pub fn returned_followed(&self, call: u64) {
        let known = self.calls.recall(call);
        let record = Self::of_call(RecordKind::Returned, call, known, sys::monotonic_ns());
        self.record(
            Some(Change::Leave(inside::CALL, call)),
            Record { flags: record.flags | flags::FOLLOWED, ..record },
        );
    }

    /// Records that this thread is about to wait for a call at a site; both may be 0: unknown.
    pub fn wait_begin(&self, call: u64, site: u32) {
        let known = self.calls.recall(call);
        let site = self.site_words(site).map_or(0, |_| site);
        let now = sys::monotonic_ns();
        let frame =
            Frame { kind: inside::WAIT, op: known.op, group: known.group, call, since: now, site };
        self.record(
            Some(Change::Enter(frame)),
            Record { site, ..Self::of_call(RecordKind::WaitBegin, call, known, now) },
        );
    }

    /// Records that the wait is over.
    pub fn wait_end(&self, call: u64) {
        self.count_completed(call);
        let change = Change::Leave(inside::WAIT, call);
        self.about_call(RecordKind::WaitEnd, call, Some(change));
    }

    /// Records that the call is complete.
    pub fn completed(&self, call: u64) {
        self.count_completed(call);
        self.about_call(RecordKind::Completed, call, None);
    }

    /// Records that the call was never waited for and no longer can be. `site`: where it was
    /// issued.
    pub fn unawaited(&self, call: u64, site: u32) {
        let known = self.calls.recall(call);
        let site = self.site_words(site).map_or(0, |_| site);
        let record = Self::of_call(RecordKind::Unawaited, call, known, sys::monotonic_ns());
        self.record(None, Record { site, ..record });
    }

    fn about_call(&self, kind: RecordKind, call: u64, change: Option<Change>) {
        let known = self.calls.recall(call);
        let record = Self::of_call(kind, call, known, sys::monotonic_ns());
        self.record(change, record);
    }

    /// A record about an issued call.
    #[inline]
    fn of_call(kind: RecordKind, call: u64, known: CallFacts, now: u64) -> Record {
        let p2p = known.op.is_point_to_point();
        Record {
            mono_ns: now,
            kind,
            op: known.op,
            flags: if p2p { flags::P2P } else { 0 },
            group: known.group,
            seq: known.seq,
            call,
            ..Record::default()
        }
    }

    fn count_completed(&self, call: u64) {
        let known = self.calls.recall(call);
        if known.seq != 0
            && !known.op.is_point_to_point()
            && let Some(group) = self.group_words(known.group)
            && self.calls.complete(call)
        {
            group[group::COMPLETED].fetch_add(1, Ordering::Relaxed);
        }
    }
}
