//! The writer of a black box. Recording is wait-free, and neither allocates nor makes a system call
//! once a box, a group, a site and a thread are known.
//!
//! This module completes each record with the state of its thread and process and appends it to the
//! ring. The records are created in [`calls`] and [`events`], the definitions they refer to in
//! [`definitions`].

mod calls;
mod create;
mod creation;
mod definitions;
mod events;
mod lower_layer;
mod peers;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_doctor_proto::blackbox::{
    Capacities, GROUP_WORDS, Layout, PUBLISHED, RECORD_WORDS, Record, SITE_WORDS, THREAD_WORDS,
    box_flags, group, header, site,
};

pub use create::{CreateError, Options};
pub use creation::{Creation, Seat};
pub use events::{Forward, Parameters};
pub use lower_layer::{Outer, TransferProgress};

use self::events::Phases;
use self::peers::Peers;
use super::map::Map;
use super::nesting::Frame;
use super::protocol::{ring, take};
use super::recent::RecentCalls;
use super::sites::Sites;
use super::threads::{self, Local};
use crate::sync::{AtomicU64, Ordering};
use crate::sys;

/// The black box of this process.
///
/// Recording takes some tens of nanoseconds and cannot fail, except for creating the box, groups,
/// sites and strings, and for the first record of a thread. Losses for lack of room are counted.
#[derive(Debug)]
pub struct Writer {
    map: Map,
    path: PathBuf,
    layer: Box<str>,
    layout: Layout,
    capacities: Capacities,
    name: u64,
    next_call: AtomicU64,
    calls: RecentCalls,
    /// Per group, the sequence numbers of its point-to-point calls.
    peers: Box<[OnceLock<Peers>]>,
    /// `hash of the string << 32 | number`: a cache of string numbers.
    texts: Box<[AtomicU64]>,
    sites: Sites,
    phases: Phases,
}

impl Writer {
    /// Path of the box.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The reporting layer that created the box.
    #[must_use]
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// Sets or changes the identity. Fields that are `None` are kept.
    pub fn set_identity(
        &self,
        rank: Option<u32>,
        world_size: Option<u32>,
        local_rank: Option<u32>,
    ) {
        let header = self.header();
        let plus_1 = |value: Option<u32>| value.map(|it| u64::from(it) + 1);
        for (at, value) in [
            (header::RANK_PLUS_1, plus_1(rank)),
            (header::WORLD_SIZE, world_size.map(u64::from)),
            (header::LOCAL_RANK_PLUS_1, plus_1(local_rank)),
        ] {
            if let Some(value) = value {
                header[at].store(value, Ordering::Relaxed);
            }
        }
        header[header::IDENTITY_VERSION].fetch_add(1, Ordering::Release);
    }

    /// Marks the box as closed.
    pub fn close(&self) {
        self.header()[header::FLAGS].fetch_or(box_flags::CLOSED, Ordering::Release);
        self.header()[header::IDENTITY_VERSION].fetch_add(1, Ordering::Release);
    }

    /// Reverts [`Writer::close`].
    pub fn reopen(&self) {
        self.header()[header::FLAGS].fetch_and(!box_flags::CLOSED, Ordering::Release);
        self.header()[header::IDENTITY_VERSION].fetch_add(1, Ordering::Release);
    }

    /// Pid and start time of the process that follows the box, in its namespaces; `None`: none does yet.
    #[must_use]
    pub fn followed_by(&self) -> Option<(u32, u64)> {
        let header = self.header();
        // The reader stores its pid last.
        let pid = u32::try_from(header[header::READER_PID].load(Ordering::Acquire)).ok()?;
        (pid != 0).then(|| (pid, header[header::READER_START_TICKS].load(Ordering::Relaxed)))
    }

    // --- Records -------------------------------------------------------------------------------

    /// Completes a record with thread, step and phase, appends it, and updates the innermost call
    /// of the thread.
    #[inline]
    fn record(&self, change: Option<Change>, record: Record) {
        let header = self.header();
        let step = header[header::STEP].load(Ordering::Relaxed) as u32;
        let phase = header[header::PHASE].load(Ordering::Relaxed) as u32;
        self.with_thread(|local| {
            let mut record = record;
            record.thread = local.map_or(0, Local::id);
            record.step = step;
            record.phase = phase;
            self.append(&record.pack());
            let Some(local) = local else {
                return;
            };
            let entry = local.entry().and_then(|it| self.thread_words(it));
            if let Some(entry) = entry {
                threads::count_record(entry);
            }
            let changed = match change {
                Some(Change::Enter(frame)) => {
                    local.nesting.enter(frame);
                    true
                }
                Some(Change::Leave(kind, call)) => local.nesting.leave(kind, call),
                None => false,
            };
            if let Some(entry) = entry.filter(|_| changed) {
                threads::set_inside(entry, local.nesting.top());
            }
        });
    }

    /// Appends a record to the ring.
    #[inline]
    fn append(&self, payload: &[u64; RECORD_WORDS - 1]) {
        let header = self.header();
        let ticket = header[header::RING_HEAD].fetch_add(1, Ordering::Relaxed);
        // Bounded, since another process sets it.
        let size = header[header::RING_SIZE]
            .load(Ordering::Relaxed)
            .clamp(1, self.capacities.max_records as u64);
        let at = (ticket % size) as usize;
        let Some(slot) = self.entry::<RECORD_WORDS>(self.layout.ring_at, at) else {
            return;
        };
        if !ring::write(slot, ticket, payload) {
            header[header::RING_DROPPED].fetch_add(1, Ordering::Relaxed);
        }
        // The next slot was last used a lap ago, so a write to it would wait for memory.
        self.map.prefetch(self.layout.ring_at + (at + 1) * RECORD_WORDS, RECORD_WORDS);
    }

    // --- Threads -------------------------------------------------------------------------------

    /// Runs `work` with the state of the calling thread, which is registered first if necessary.
    #[inline]
    fn with_thread(&self, work: impl Fn(Option<&Local>)) {
        let done = Local::with(|local| {
            if !local.belongs_to(self.name) {
                self.register(local);
            }
            work(Some(local));
        });
        if done.is_none() {
            work(None);
        }
    }

    #[cold]
    fn register(&self, local: &Local) {
        let (tid, name, length) = threads::this_thread();
        let taken = self.take_thread(tid);
        if let Some((entry, generation)) = taken
            && let Some(words) = self.thread_words(entry)
        {
            let name = self.string(name.get(..length).unwrap_or_default());
            threads::publish(words, tid, generation, name);
        } else {
            self.count_dropped_definition();
        }
        local.register(self.name, taken);
    }

    /// Takes an entry for a new thread. Returns the entry and its generation.
    fn take_thread(&self, tid: u32) -> Option<(u16, u16)> {
        let capacity = self.capacities.threads as u64;
        let count = &self.header()[header::THREADS_COUNT];
        let used = count.load(Ordering::Acquire).min(capacity) as u16;
        let take_used = |may_live: fn(u32) -> bool| {
            (0..used).find_map(|entry| {
                let generation = threads::take(self.thread_words(entry)?, tid, may_live)?;
                Some((entry, generation))
            })
        };
        // An entry with the same, reused thread id is taken over first. Other entries of dead
        // threads are kept while there is room, for their last state.
        take_used(|_| true)
            .or_else(|| take(count, 1, capacity).map(|entry| (entry as u16, 0)))
            .or_else(|| take_used(sys::thread_lives))
    }

    // --- Words ---------------------------------------------------------------------------------

    #[inline]
    fn header(&self) -> &[AtomicU64; header::WORDS] {
        /// Absorbs writes if the map were shorter than a header, which does not happen.
        static NOWHERE: [AtomicU64; header::WORDS] = [const { AtomicU64::new(0) }; header::WORDS];
        self.map.words().first_chunk().unwrap_or(&NOWHERE)
    }

    #[inline]
    fn entry<const N: usize>(&self, table_at: usize, index: usize) -> Option<&[AtomicU64; N]> {
        self.map.words().get(table_at + index * N..)?.first_chunk()
    }

    /// The words of a published group.
    #[inline]
    fn group_words(&self, id: u32) -> Option<&[AtomicU64; GROUP_WORDS]> {
        let index = index(id).filter(|&it| it < self.capacities.groups)?;
        self.entry::<GROUP_WORDS>(self.layout.groups_at, index)
            .filter(|words| words[group::NAME].load(Ordering::Relaxed) & PUBLISHED != 0)
    }

    /// The words of a published site.
    #[inline]
    fn site_words(&self, id: u32) -> Option<&[AtomicU64; SITE_WORDS]> {
        let index = index(id).filter(|&it| it < self.capacities.sites)?;
        self.entry::<SITE_WORDS>(self.layout.sites_at, index)
            .filter(|words| words[site::FILE].load(Ordering::Relaxed) & PUBLISHED != 0)
    }

    #[inline]
    fn thread_words(&self, entry: u16) -> Option<&[AtomicU64; THREAD_WORDS]> {
        let index = usize::from(entry);
        (index < self.capacities.threads).then_some(())?;
        self.entry(self.layout.threads_at, index)
    }

    fn count_dropped_definition(&self) {
        self.header()[header::DEFINITIONS_DROPPED].fetch_add(1, Ordering::Relaxed);
    }
}

/// Change of a thread's nesting by a record.
#[derive(Clone, Copy, Debug)]
enum Change {
    Enter(Frame),
    /// Kind and call id.
    Leave(u64, u64),
}

/// Table index of a definition.
#[inline]
fn index(id: u32) -> Option<usize> {
    id.checked_sub(1).map(|index| index as usize)
}
