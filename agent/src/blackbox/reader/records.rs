//! Reads records from the ring while the writer may be overwriting them.

use std::time::{Duration, Instant};

use ddp_doctor_proto::RecordKind;
use ddp_doctor_proto::blackbox::{
    RECORD_WORDS, Record, creation, header, members, memory, splits, string,
};

use super::definitions::MOST_MEMBERS;
use super::{GroupCreation, Item, ReadRecord, Reader, entry};
use crate::blackbox::protocol::ring::{self, Cursor, Slot};
use crate::blackbox::{MAX_MEMBERS, Seat};
use crate::sync::{AtomicU64, Ordering};

/// How long a record may be incomplete after later ones were written. Then it counts as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// Number of records that are copied before the definitions they need are read.
pub(super) const BATCH: usize = 256;
/// Bound on tickets, so that a forged head does not overflow. No writer reaches it.
const LAST_TICKET: u64 = 1 << 62;

impl Reader {
    pub(super) fn head(&self) -> u64 {
        head(self.map.words())
    }

    /// The oldest ticket that may still be in the ring.
    pub(super) fn oldest(&self) -> u64 {
        self.head().saturating_sub(self.tables.ring.capacity as u64)
    }

    /// Copies up to `limit` records into the batch, with the numbers of records lost between them.
    /// Returns the number of records. `dead`: missing records will never be written.
    pub(super) fn copy(&mut self, limit: usize, dead: bool) -> usize {
        let Self {
            map,
            tables,
            cursor,
            batch,
            seen,
            ..
        } = self;
        let (words, table) = (map.words(), tables.ring);
        batch.clear();
        let read = |ticket: u64| {
            let index = ticket as usize & (table.capacity - 1);
            entry::<RECORD_WORDS>(words, table, index)
                .map_or(Slot::Missing, |slot| ring::read(slot, ticket))
        };
        let is_gone = |cursor: &Cursor, head| dead || is_overdue(seen, cursor.next, head);
        cursor.copy(
            batch,
            limit,
            table.capacity as u64,
            || head(words),
            read,
            is_gone,
        )
    }

    /// Delivers new definitions and then the batch. Definitions are published before the records
    /// that refer to them are committed, so they are found here.
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

    /// Description of the group that a call is about to create, if the record has one.
    fn creation(&mut self, read: &ReadRecord) -> Option<GroupCreation> {
        let ReadRecord { record, text, .. } = read;
        let word = |at: usize| record.dims[at];
        let describes = record.kind == RecordKind::Issued && record.op.creates_group();
        let size = word(creation::SIZE) as usize;
        if !describes || size == 0 {
            return None;
        }
        let described = |members: Vec<u32>, seat: Option<Seat>| GroupCreation {
            name: text.clone(),
            description: self.text(word(creation::DESCRIPTION)),
            backend: self.text(word(creation::BACKEND)),
            takes_all: word(creation::TAKES_ALL) == 1,
            epoch: word(creation::EPOCH),
            members,
            seat,
        };
        if let Some(rank) = word(creation::SEAT_PLUS_1).checked_sub(1) {
            let size = word(creation::SIZE);
            return Some(described(Vec::new(), Some(Seat { rank, size })));
        }
        if word(creation::MEMBERS) == 0 {
            return None;
        }
        // A forged box may refer to the same long list of members in every record.
        let limit = MAX_MEMBERS.min(MOST_MEMBERS - self.members);
        let bytes = self.bytes(word(creation::MEMBERS), string::MAX_BYTES);
        let members = members::decode(&bytes, size.min(limit))?;
        if members.len() != size {
            return None;
        }
        let described = described(members, None);
        self.members += size;
        Some(described)
    }
}

/// An item copied from the ring.
pub(super) type Copied = ring::Copied<[u64; RECORD_WORDS - 1]>;

fn head(words: &[AtomicU64]) -> u64 {
    words
        .get(header::RING_HEAD)
        .map_or(0, |head| head.load(Ordering::Acquire))
        .min(LAST_TICKET)
}

/// Whether the next record has been missing for too long while later ones were written. `seen`: an
/// earlier head and the time it was read.
fn is_overdue(seen: &mut Option<(u64, Instant)>, next: u64, head: u64) -> bool {
    if head <= next + 1 {
        return false;
    }
    match *seen {
        Some((before, at)) if next < before => at.elapsed() >= PATIENCE,
        _ => {
            *seen = Some((head, Instant::now()));
            false
        }
    }
}
