//! Reads records from the ring while the writer may be overwriting them.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use ddp_doctor_proto::RecordKind;
use ddp_doctor_proto::blackbox::{RECORD_WORDS, Record, WORD, creation, header, memory, splits};

use super::{GroupCreation, Item, ReadRecord, Reader, entry};
use crate::blackbox::Seat;
use crate::blackbox::open::{RingTable, Table};
use crate::blackbox::place::ensure_room;
use crate::blackbox::protocol::ring::{self, Cursor, Slot};
use crate::sync::{AtomicU64, Ordering};
use crate::sys;

/// How long a record may be incomplete after later ones were written. Then it counts as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// Number of records that are copied before the definitions they need are read.
pub(super) const BATCH: usize = 256;
/// Time during which a reader may be stopped without loss, as far as the capacity of the ring allows.
/// Stops of some seconds happen on machines that swap or are suspended.
const SPAN: Duration = Duration::from_secs(30);
/// Interval over which the rate of records is measured.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// Bound on tickets, so that a forged head does not overflow. No writer reaches it.
const LAST_TICKET: u64 = 1 << 62;

impl Reader {
    pub(super) fn head(&self) -> u64 {
        head(self.map.words())
    }

    /// Number of records that the ring has room for now.
    #[must_use]
    pub fn ring_size(&self) -> usize {
        let RingTable { step, capacity, .. } = self.tables.ring;
        let size = usize::try_from(self.header(header::RING_SIZE)).unwrap_or(capacity);
        (size - size % step).clamp(step, capacity)
    }

    /// Extends the ring, within its capacity, until it holds the records of 30 s at the current
    /// rate. That is how long this reader may be stopped, or a coordinator be unreachable, before
    /// records are lost. Called after each poll by the only reader that follows the box; it measures
    /// the rate itself.
    ///
    /// Memory is reserved here, since the writer must not wait for it.
    ///
    /// # Errors
    ///
    /// If there is not enough memory. The ring keeps its size, and later calls try again.
    pub fn extend_ring(&mut self, now: Instant) -> io::Result<()> {
        let head = self.head();
        let Some((before, at)) = self.rate else {
            self.rate = Some((head, now));
            return Ok(());
        };
        let elapsed = now.saturating_duration_since(at);
        if elapsed < RATE_INTERVAL {
            return Ok(());
        }
        self.rate = Some((head, now));
        let RingTable { at, step, capacity } = self.tables.ring;
        let rate = head.saturating_sub(before) as f64 / elapsed.as_secs_f64();
        let wanted = (rate * SPAN.as_secs_f64()) as usize;
        let (size, wanted) = (self.ring_size(), wanted.min(capacity).next_multiple_of(step));
        if wanted <= size {
            return Ok(());
        }
        let bytes = |records: usize| (records * RECORD_WORDS * WORD) as u64;
        ensure_room(&self.file, bytes(wanted - size))?;
        sys::reserve(&self.file, (at * WORD) as u64 + bytes(wanted))?;
        let value = (wanted as u64).to_le_bytes();
        self.file.write_all_at(&value, (header::RING_SIZE * WORD) as u64)
    }

    /// Bytes of the file up to the end of the ring. A copy of the box needs no more.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        ((self.tables.ring.at + self.ring_size() * RECORD_WORDS) * WORD) as u64
    }

    /// The oldest ticket that may still be in the ring.
    #[must_use]
    pub fn oldest(&self) -> u64 {
        self.head().saturating_sub(self.ring_size() as u64)
    }

    /// Copies up to `limit` records into the batch, with the numbers of records lost between them.
    /// Returns the number of records. `dead`: missing records will never be written.
    pub(super) fn copy(&mut self, limit: usize, dead: bool) -> usize {
        let size = self.ring_size();
        let Self { map, tables, cursor, batch, seen, .. } = self;
        let (words, ring) = (map.words(), tables.ring);
        let slots = Table { at: ring.at, capacity: size };
        batch.clear();
        let read = |ticket: u64| {
            ring::find(ticket, ring.step, size, |index| {
                entry::<RECORD_WORDS>(words, slots, index)
                    .map_or(Slot::Missing, |slot| ring::read(slot, ticket))
            })
        };
        let is_gone = |cursor: &Cursor, head| dead || observe_overdue(seen, cursor.next, head);
        cursor.copy(batch, limit, size as u64, || head(words), read, is_gone)
    }

    /// Delivers new definitions and then the batch. Definitions are published before the records
    /// that refer to them are committed, so they are found here.
    pub(super) fn deliver(&mut self, sink: &mut impl FnMut(Item)) {
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
                    self.deliver_gone_thread(record.thread, sink);
                    sink(Item::Record(read));
                }
            }
        }
        self.batch = batch;
    }

    fn resolve(
        &mut self,
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
        let text = self.text(record.text);
        ReadRecord {
            ticket,
            record,
            phase: self.text(record.phase),
            creation: self.creation(&record, &text).map(Box::new),
            text,
            ..ReadRecord::default()
        }
    }

    /// Description of the group that a call is about to create, if the record has one.
    fn creation(&mut self, record: &Record, name: &str) -> Option<GroupCreation> {
        let word = |at: usize| record.dims[at];
        let describes = record.kind == RecordKind::Issued && record.op.creates_group();
        let size = word(creation::SIZE);
        if !describes || size == 0 {
            return None;
        }
        let (members, seat) = match word(creation::SEAT_PLUS_1).checked_sub(1) {
            Some(rank) => (Vec::new(), Some(Seat { rank, size })),
            // A forged box may refer to the same long list of members in every record.
            None => {
                let list = word(creation::MEMBERS);
                (self.members(list, size, self.members)?, None)
            }
        };
        self.members += members.len();
        Some(GroupCreation {
            name: name.to_owned(),
            description: self.text(word(creation::DESCRIPTION)),
            backend: self.text(word(creation::BACKEND)),
            takes_all: word(creation::TAKES_ALL) == 1,
            epoch: word(creation::EPOCH),
            members,
            seat,
        })
    }
}

/// An item copied from the ring.
pub(super) type Copied = ring::Copied<[u64; RECORD_WORDS - 1]>;

fn head(words: &[AtomicU64]) -> u64 {
    words.get(header::RING_HEAD).map_or(0, |head| head.load(Ordering::Acquire)).min(LAST_TICKET)
}

/// Whether the next record has been missing for too long while later ones were written. `seen`: an
/// earlier head and the time it was read.
fn observe_overdue(seen: &mut Option<(u64, Instant)>, next: u64, head: u64) -> bool {
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
