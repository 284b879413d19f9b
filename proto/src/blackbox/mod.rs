//! The black box: one file per process and capture layer. The training process maps it to write,
//! and a reader maps it at any time, also after the process has ended.
//!
//! Every field is a little-endian 64-bit word, and every access is an atomic access to a word: a
//! reader in another process causes no data race in the sense of the memory model. Offsets here are
//! **in words**.
//!
//! ```text
//! header   512 words   identity, clock anchor, counters, positions of the tables
//! strings  index: one word each; heap: bytes, append-only
//! sites    4 words each: call sites, with counters
//! groups   16 words each: process groups, with frontiers that survive the ring
//! threads  8 words each: "inside call X since t", a sequence lock each
//! ring     16 words per record, overwriting, a sequence lock per slot; last, and often a hole at its end
//! ```
//!
//! # Numbers of definitions
//!
//! Strings, sites and groups are numbered from 1 in the order of their tables: number `n` is entry
//! `n - 1`, and 0 means "none" or "table full". An entry of a thread is reused once the thread
//! is dead, so the number of a thread combines its entry with a generation, see [`thread::id`].
//!
//! A definition is published before any record that refers to it is committed. A reader that copies
//! a record first and reads the tables afterwards finds every definition of the record.
//!
//! # The ring's protocol
//!
//! A writer takes ticket `t` from the head (fetch-add), and slot `t % size`. It claims the slot
//! by a compare-exchange of its lock from the even value that it read to [`writing`]`(t)`. If the
//! lock is odd or the exchange fails, another writer has been suspended in the slot for a whole
//! lap; if the lock belongs to a later ticket, this writer has been. In both cases the record is
//! dropped and counted. A release fence follows the claim, then the 15 payload words and, as a
//! release, [`committed`]`(t)`.
//!
//! A reader of ticket `t` accepts the payload if the lock is `committed(t)` before and after the
//! copy (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012). A
//! lock of a later ticket means that the record was overwritten. A lock of an earlier ticket or
//! `writing(t)` means that the record is not committed yet, or never will be.
//!
//! The size is [`header::RING_STEP`] at first. The reader that follows the box may raise it by
//! multiples of the step, up to [`header::RING_CAPACITY`], after it has reserved the memory; the
//! writer only loads it. As writers may see a new size late, and earlier records lie where the
//! earlier size put them, a reader looks for `t` in the slots `t % s` of all sizes `s`: the lock says
//! which one has it.

mod call;
mod definitions;
mod record;

pub use call::Call;
pub use definitions::{group, inside, members, site, string, thread};
pub use record::{
    MAX_DIMS, Record, SPLITS_PER_RECORD, creation, flags, memory, on_stream, splits, transfer,
};

/// First word of every black box: "DDPDBOX\n".
pub const MAGIC: u64 = u64::from_le_bytes(*b"DDPDBOX\n");

/// Version of this layout. A reader rejects a later version with an error that names it.
pub const LAYOUT_VERSION: u64 = 2;

/// Bytes per word.
pub const WORD: usize = 8;

/// Positions of the words in the header.
pub mod header {
    /// [`super::MAGIC`]; written last, so that an incomplete file is not recognized as a black box.
    pub const MAGIC: usize = 0;
    /// [`super::LAYOUT_VERSION`].
    pub const VERSION: usize = 1;
    /// Words in the file.
    pub const FILE_WORDS: usize = 2;
    /// Process id of the writer.
    pub const PID: usize = 3;
    /// Start time of the writer in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub const START_TICKS: usize = 4;
    /// The boot id of the host as 16 bytes: two words.
    pub const BOOT_ID: usize = 5;
    /// Time of the clock anchor on the monotonic clock, in nanoseconds.
    pub const ANCHOR_MONO: usize = 7;
    /// Time of the clock anchor in nanoseconds since the Unix epoch.
    pub const ANCHOR_UNIX: usize = 8;
    /// Global rank plus one; 0: unknown.
    pub const RANK_PLUS_1: usize = 9;
    /// Number of ranks; 0: unknown.
    pub const WORLD_SIZE: usize = 10;
    /// Rank within the node plus one; 0: unknown.
    pub const LOCAL_RANK_PLUS_1: usize = 11;
    /// Index of this start of the job, from 0.
    pub const ATTEMPT: usize = 12;
    /// Bits of [`super::box_flags`].
    pub const FLAGS: usize = 13;
    /// Process id of the current reader; 0: none is registered.
    pub const READER_PID: usize = 14;
    /// Start time of that reader.
    pub const READER_START_TICKS: usize = 15;
    /// Number of changes of rank, world size or flags.
    pub const IDENTITY_VERSION: usize = 16;
    /// Process id of the writer's parent when the box was created; 0: unknown. It distinguishes a
    /// helper of a rank, which has a world of its own, from a rank.
    pub const PARENT_PID: usize = 17;

    /// First word of the ring.
    pub const RING_AT: usize = 20;
    /// Maximum number of records in the ring, a multiple of its step.
    pub const RING_CAPACITY: usize = 21;
    /// Records in the ring at first. 0 (layout 1): its capacity.
    pub const RING_STEP: usize = 22;
    /// Records in the ring, a multiple of its step.
    pub const RING_SIZE: usize = 23;
    /// First word of the string index.
    pub const STRINGS_AT: usize = 24;
    /// Entries in the string index.
    pub const STRINGS_CAPACITY: usize = 25;
    /// Entries in use.
    pub const STRINGS_COUNT: usize = 26;
    /// First word of the string heap.
    pub const HEAP_AT: usize = 27;
    /// Words in the string heap.
    pub const HEAP_CAPACITY: usize = 28;
    /// Words in use.
    pub const HEAP_USED: usize = 29;
    /// First word of the sites.
    pub const SITES_AT: usize = 31;
    /// Entries in the table of sites.
    pub const SITES_CAPACITY: usize = 32;
    /// Entries in use.
    pub const SITES_COUNT: usize = 33;
    /// First word of the groups.
    pub const GROUPS_AT: usize = 35;
    /// Entries in the table of groups.
    pub const GROUPS_CAPACITY: usize = 36;
    /// Entries in use.
    pub const GROUPS_COUNT: usize = 37;
    /// First word of the threads.
    pub const THREADS_AT: usize = 39;
    /// Entries in the table of threads.
    pub const THREADS_CAPACITY: usize = 40;
    /// Entries in use.
    pub const THREADS_COUNT: usize = 41;
    /// Definitions (strings, sites, groups, threads) dropped because a table was full.
    pub const DEFINITIONS_DROPPED: usize = 43;
    /// Training steps begun.
    pub const STEP: usize = 44;
    /// String id of the innermost phase; 0: none.
    pub const PHASE: usize = 45;

    /// Job id: UTF-8, padded with zeros.
    pub const JOB: std::ops::Range<usize> = 48..64;
    /// Host name, encoded likewise.
    pub const HOST: std::ops::Range<usize> = 64..72;
    /// Layer ("c10d", "nccl", "rust", "c"), encoded likewise.
    pub const LAYER: std::ops::Range<usize> = 72..74;
    /// Version of ddp-doctor, encoded likewise.
    pub const TOOL: std::ops::Range<usize> = 74..78;
    /// Distinguishes this process's world from others of the same job, encoded likewise: ranks with
    /// different values never communicate. Empty: unknown.
    pub const WORLD: std::ops::Range<usize> = 80..96;

    /// Next ticket of the ring. On a cache line of its own because every record changes it.
    pub const RING_HEAD: usize = 128;
    /// Records dropped by writers because the slot was in use.
    pub const RING_DROPPED: usize = 136;

    /// Words in the header.
    pub const WORDS: usize = 512;
}

/// Flags of a black box.
pub mod box_flags {
    /// The process ended normally: the box is final.
    pub const CLOSED: u64 = 1;
}

/// Words of a record; the first is its lock.
pub const RECORD_WORDS: usize = 16;
/// Words of a site.
pub const SITE_WORDS: usize = 4;
/// Words of a group.
pub const GROUP_WORDS: usize = 16;
/// Words of a thread.
pub const THREAD_WORDS: usize = 8;

/// Set in the first word of a string, site, group or thread once the entry is complete.
pub const PUBLISHED: u64 = 1 << 63;

/// Lock of a slot while the record with this ticket is being written.
#[must_use]
pub const fn writing(ticket: u64) -> u64 {
    (ticket + 1) * 2 - 1
}

/// Lock of a slot that contains the record with this ticket.
#[must_use]
pub const fn committed(ticket: u64) -> u64 {
    (ticket + 1) * 2
}

/// Capacities of the tables of a new box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Records in the ring at first.
    pub records: usize,
    /// Maximum number of records in the ring, a multiple of `records`. Room beyond `records` takes
    /// no memory before it is used.
    pub max_records: usize,
    /// Strings.
    pub strings: usize,
    /// Words for their bytes.
    pub heap_words: usize,
    /// Call sites.
    pub sites: usize,
    /// Process groups.
    pub groups: usize,
    /// Threads.
    pub threads: usize,
}

impl Default for Capacities {
    /// About 1.6 MiB: room for minutes of calls of an ordinary job. At most 3.6 MiB in a job that
    /// makes many calls, below the 4 MiB per rank that all of ddp-doctor may use.
    fn default() -> Self {
        Self {
            records: 8192,
            max_records: 3 * 8192,
            strings: 8192,
            heap_words: 32 * 1024,
            sites: 4096,
            groups: 512,
            threads: 128,
        }
    }
}

impl Capacities {
    /// Positions of the tables of such a box, and its size.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        let strings_at = header::WORDS;
        let heap_at = strings_at + self.strings;
        let sites_at = heap_at + self.heap_words;
        let groups_at = sites_at + self.sites * SITE_WORDS;
        let threads_at = groups_at + self.groups * GROUP_WORDS;
        // A record fills two cache lines; align it with them.
        let ring_at = (threads_at + self.threads * THREAD_WORDS).next_multiple_of(8);
        Layout {
            strings_at,
            heap_at,
            sites_at,
            groups_at,
            threads_at,
            ring_at,
            reserved_words: ring_at + self.records * RECORD_WORDS,
            words: ring_at + self.max_records * RECORD_WORDS,
        }
    }
}

/// First words of the tables of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the header's words")]
pub struct Layout {
    pub strings_at: usize,
    pub heap_at: usize,
    pub sites_at: usize,
    pub groups_at: usize,
    pub threads_at: usize,
    pub ring_at: usize,
    /// Words up to the end of the ring's initial size.
    pub reserved_words: usize,
    pub words: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_tickets_and_states_differ() {
        assert!(committed(0) > writing(0) && writing(1) > committed(0));
        assert_eq!(committed(5) % 2, 0);
        assert_eq!(writing(5) % 2, 1);
    }

    #[test]
    fn default_box_fits_its_budget() {
        let layout = Capacities::default().layout();
        let bytes = |words: usize| words * WORD;
        assert!(bytes(layout.reserved_words) <= 2 << 20, "{layout:?}");
        assert!(bytes(layout.words) <= 4 << 20, "{layout:?}");
        assert_eq!(layout.ring_at % 8, 0);
    }
}
