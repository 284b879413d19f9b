//! Records out of the ring, while their writer may be overwriting it.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use ddp_doctor_proto::RecordKind;
use ddp_doctor_proto::blackbox::{
    RECORD_WORDS, Record, committed, creation, header, members, memory, splits, string,
};

use super::definitions::MOST_MEMBERS;
use super::{GroupCreation, Item, ReadRecord, Reader, entry};
use crate::blackbox::MAX_MEMBERS;

/// How long a record may be on its way while others overtake it. A writer that is interrupted for
/// longer has its record counted as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// Records that are copied before the definitions they need are looked for.
pub(super) const BATCH: usize = 256;
/// Tickets end here. No writer gets that far; a forged head must not overflow.
const LAST_TICKET: u64 = 1 << 62;

impl Reader {
    pub(super) fn head(&self) -> u64 {
        self.map
            .words()
            .get(header::RING_HEAD)
            .map_or(0, |head| head.load(Ordering::Acquire))
            .min(LAST_TICKET)
    }

    /// The oldest ticket whose slot may still hold it.
    pub(super) fn oldest(&self, head: u64) -> u64 {
        head.saturating_sub(self.tables.ring.capacity as u64)
    }

    /// Copies up to `limit` records into the batch, and how many were lost between them; how many
    /// records. `dead`: what is not there now never will be.
    pub(super) fn copy(&mut self, limit: usize, dead: bool) -> usize {
        self.batch.clear();
        let head = self.head();
        let mut records = 0;
        let oldest = self.oldest(head);
        self.skip_to(oldest);
        while records < limit && self.next < head {
            match self.read_slot(self.next) {
                Slot::Record(payload) => {
                    self.batch.push(Copied::Record(self.next, payload));
                    self.next += 1;
                    self.passed = self.passed.max(self.next);
                    records += 1;
                }
                Slot::Overwritten => {
                    // More than this one is gone by now, if the writer is that fast.
                    let oldest = self.oldest(self.head());
                    self.skip_to(oldest.max(self.next + 1).min(head));
                }
                Slot::Missing if dead || self.is_overdue(head) => self.skip_to(self.next + 1),
                Slot::Missing => break,
            }
        }
        records
    }

    /// Goes forward; what was not passed before is lost.
    fn skip_to(&mut self, ticket: u64) {
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
        match self.batch.last_mut() {
            Some(Copied::Lost(count)) => *count = count.saturating_add(lost),
            _ => self.batch.push(Copied::Lost(lost)),
        }
    }

    /// Whether the next record has been missing for too long while later ones came.
    fn is_overdue(&mut self, head: u64) -> bool {
        if head <= self.next + 1 {
            return false;
        }
        match self.seen {
            Some((seen, at)) if self.next < seen => at.elapsed() >= PATIENCE,
            _ => {
                self.seen = Some((head, Instant::now()));
                false
            }
        }
    }

    fn read_slot(&self, ticket: u64) -> Slot {
        let ring = self.tables.ring;
        let index = ticket as usize & (ring.capacity - 1);
        let Some([lock, words @ ..]) = entry::<RECORD_WORDS>(self.map.words(), ring, index) else {
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
        let mut payload = [0; RECORD_WORDS - 1];
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

    /// Delivers what is new among the definitions and then the batch: whatever a record in it names
    /// was published before the record was committed, and so is found here.
    pub(super) fn deliver(&mut self, sink: &mut impl FnMut(Item)) {
        self.deliver_strings(sink);
        self.deliver_sites(sink);
        self.deliver_groups(sink);
        self.deliver_threads(sink);
        let mut batch = std::mem::take(&mut self.batch);
        for copied in batch.drain(..) {
            match copied {
                Copied::Lost(count) => sink(Item::Lost(count)),
                Copied::Record(ticket, payload) => {
                    let record = Record::unpack(&payload);
                    if record.kind == RecordKind::Memory {
                        sink(Item::Memory {
                            ticket,
                            mono_ns: record.mono_ns,
                            sample: memory::unpack(&payload),
                        });
                        continue;
                    }
                    let read = self.resolve(ticket, record, &payload);
                    self.deliver_gone_thread(read.record.thread, sink);
                    sink(match self.creation(&read) {
                        Some(group) => Item::Creation(read, group),
                        None => Item::Record(read),
                    });
                }
            }
        }
        self.batch = batch;
    }

    fn resolve(
        &self,
        ticket: u64,
        record: Record,
        payload: &[u64; RECORD_WORDS - 1],
    ) -> ReadRecord {
        if record.kind == RecordKind::Splits {
            return ReadRecord {
                ticket,
                record: Record {
                    mono_ns: record.mono_ns,
                    kind: record.kind,
                    op: record.op,
                    flags: record.flags,
                    ndim: record.ndim,
                    group: record.group,
                    thread: record.thread,
                    seq: record.seq,
                    call: record.call,
                    ..Record::default()
                },
                splits: splits::unpack(payload, record.ndim),
                ..ReadRecord::default()
            };
        }
        ReadRecord {
            ticket,
            record,
            text: self.text(record.text),
            phase: self.text(record.phase),
            ..ReadRecord::default()
        }
    }

    /// The group that a call is about to make, where the record says which.
    fn creation(&mut self, read: &ReadRecord) -> Option<GroupCreation> {
        let ReadRecord { record, text, .. } = read;
        let word = |at: usize| record.dims[at];
        let describes = record.kind == RecordKind::Issued && record.op.creates_group();
        let size = word(creation::SIZE) as usize;
        if !describes || word(creation::MEMBERS) == 0 || size == 0 {
            return None;
        }
        // A forged box may name the same long list of members in every record.
        let limit = MAX_MEMBERS.min(MOST_MEMBERS - self.members);
        let bytes = self.bytes(word(creation::MEMBERS), string::MAX_BYTES);
        let members = members::decode(&bytes, size.min(limit))?;
        if members.len() != size {
            return None;
        }
        self.members += size;
        Some(GroupCreation {
            name: text.clone(),
            description: self.text(word(creation::DESCRIPTION)),
            backend: self.text(word(creation::BACKEND)),
            epoch: word(creation::EPOCH),
            members,
        })
    }
}

/// What a slot of the ring says about a ticket.
enum Slot {
    Record([u64; RECORD_WORDS - 1]),
    /// A later record is there, or on its way.
    Overwritten,
    /// It is not there yet, or never will be.
    Missing,
}

/// What was taken out of the ring, in order.
#[derive(Debug)]
pub(super) enum Copied {
    Record(u64, [u64; RECORD_WORDS - 1]),
    Lost(u64),
}
