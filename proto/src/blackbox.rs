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

use crate::vocabulary::{DType, Op, RecordKind, ReduceOp};

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

/// Index entry of a string: one word.
pub mod string {
    use super::PUBLISHED;

    /// Maximum length of a text, in bytes; longer texts are cut at a character boundary.
    pub const MAX_TEXT: usize = 4096;

    /// Maximum length of an entry that the index can describe, in bytes.
    pub const MAX_BYTES: usize = (1 << 20) - 1;

    /// Set in an entry whose bytes are not text but the members of a group.
    pub const BINARY: u64 = 1 << 62;

    /// Index entry of a string of `bytes` bytes that starts `at` words into the heap.
    #[must_use]
    pub const fn entry(at: u32, bytes: u32) -> u64 {
        PUBLISHED | ((at as u64) << 20) | (bytes as u64)
    }

    /// `(words into the heap, bytes)` of a published entry.
    #[must_use]
    pub const fn parse(entry: u64) -> Option<(u32, u32)> {
        if entry & PUBLISHED == 0 {
            return None;
        }
        Some(((entry >> 20) as u32, (entry & 0xf_ffff) as u32))
    }
}

/// Words of a site.
pub mod site {
    /// `PUBLISHED | LIBRARY | site of the caller << 32 | string id of the file`. The caller is the
    /// site of the call that first led here; 0: unknown.
    pub const FILE: usize = 0;
    /// Set in the first word if the line is in an installed package. Its callers then lead to the
    /// line of the user's program, and are part of what the site identifies.
    pub const LIBRARY: u64 = 1 << 62;
    /// `string id of the function | line << 32`.
    pub const FUNCTION_AND_LINE: usize = 1;
    /// First character of a file that is not a name but a return address of machine code in
    /// hexadecimal. The reader resolves it while the process is alive.
    pub const ADDRESS: char = '@';
    /// Calls issued at the site.
    pub const COUNT: usize = 2;
    /// Monotonic time of the last call.
    pub const LAST_MONO: usize = 3;

    /// First word of a published site.
    #[must_use]
    pub const fn file(file: u32, caller: u32) -> u64 {
        super::PUBLISHED | (caller as u64 & 0x3fff_ffff) << 32 | file as u64
    }

    /// `(string id of the file, caller, whether it is in an installed package)` of a published
    /// first word.
    #[must_use]
    pub const fn parse(word: u64) -> Option<(u32, u32, bool)> {
        if word & super::PUBLISHED == 0 {
            return None;
        }
        let caller = (word >> 32) as u32 & 0x3fff_ffff;
        Some((word as u32, caller, word & LIBRARY != 0))
    }
}

/// Words of a group.
pub mod group {
    /// `PUBLISHED | string id of the name`.
    pub const NAME: usize = 0;
    /// `string id of the description | string id of the backend << 32`.
    pub const DESCRIPTION_AND_BACKEND: usize = 1;
    /// `string id of the members | epoch << 32`; the bytes are [`super::members`].
    pub const MEMBERS_AND_EPOCH: usize = 2;
    /// `ordinal | number of members << 32`.
    pub const ORDINAL_AND_SIZE: usize = 3;
    /// Monotonic time of its creation.
    pub const CREATED: usize = 4;
    /// Monotonic time of its destruction; 0: not destroyed.
    pub const DESTROYED: usize = 5;
    /// Highest collective sequence number issued.
    pub const ISSUED: usize = 6;
    /// Point-to-point calls issued.
    pub const P2P_ISSUED: usize = 7;
    /// Monotonic time of the last call.
    pub const LAST_MONO: usize = 8;
    /// Call id of the last call.
    pub const LAST_CALL: usize = 9;
    /// Collectives whose wait ended, or whose completion was recorded.
    pub const COMPLETED: usize = 10;
    /// This process's rank in the group plus one, if the members are unknown and therefore empty. 0: the
    /// members are complete.
    pub const SEAT_PLUS_1: usize = 11;
}

/// Members of a group as bytes: runs of `(first, stride, count)`, little-endian u32 each, in group
/// order. Nearly every group is one run: even 16 384 ranks take twelve bytes.
pub mod members {
    /// Bytes of one run.
    const RUN: usize = 12;

    /// Encodes global ranks in group order.
    #[must_use]
    pub fn encode(ranks: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = ranks;
        while let [first, ..] = *rest {
            let stride = rest.get(1).map_or(1, |second| second.wrapping_sub(first));
            let mut count = 1;
            while rest.get(count) == Some(&rest[count - 1].wrapping_add(stride)) {
                count += 1;
            }
            for word in [first, stride, count as u32] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            rest = &rest[count..];
        }
        bytes
    }

    /// Decodes the output of [`encode`]; `None` if the bytes are malformed or contain more than
    /// `limit` ranks.
    #[must_use]
    pub fn decode(bytes: &[u8], limit: usize) -> Option<Vec<u32>> {
        if !bytes.len().is_multiple_of(RUN) {
            return None;
        }
        let mut ranks = Vec::new();
        for run in bytes.chunks_exact(RUN) {
            let word = |i: usize| u32::from_le_bytes([run[i], run[i + 1], run[i + 2], run[i + 3]]);
            let (mut rank, stride, count) = (word(0), word(4), word(8));
            if count as usize > limit - ranks.len() {
                return None;
            }
            for _ in 0..count {
                ranks.push(rank);
                rank = rank.wrapping_add(stride);
            }
        }
        Some(ranks)
    }
}

/// Words of a thread.
pub mod thread {
    /// `PUBLISHED | generation << 32 | tid`. The generation (16 bits) counts the threads that used
    /// the entry before and have died.
    pub const TID: usize = 0;
    /// String id of its name.
    pub const NAME: usize = 1;
    /// Sequence lock over the words below: odd during a change.
    pub const LOCK: usize = 2;
    /// [`super::inside`] `| op << 8 | group << 32`.
    pub const INSIDE: usize = 3;
    /// Call id.
    pub const CALL: usize = 4;
    /// Monotonic time since which it has been inside.
    pub const SINCE: usize = 5;
    /// Site.
    pub const SITE: usize = 6;
    /// Records this thread has written.
    pub const RECORDS: usize = 7;

    /// Maximum number of threads in a table, a limit of the encoding of [`id`].
    pub const MAX_THREADS: usize = 0xffff;

    /// Number by which records refer to a thread. Never 0.
    #[must_use]
    pub const fn id(entry: u16, generation: u16) -> u32 {
        (entry as u32 + 1) | (generation as u32) << 16
    }

    /// `(entry, generation)` of a thread's number; `None` for 0.
    #[must_use]
    pub const fn parse_id(id: u32) -> Option<(u16, u16)> {
        match (id & 0xffff) as u16 {
            0 => None,
            entry => Some((entry - 1, (id >> 16) as u16)),
        }
    }

    /// `(tid, generation)` of a published first word.
    #[must_use]
    pub const fn parse(word: u64) -> Option<(u32, u16)> {
        if word & super::PUBLISHED == 0 {
            return None;
        }
        Some((word as u32, (word >> 32) as u16))
    }
}

/// Location of a thread.
pub mod inside {
    /// In the user's own code.
    pub const NOTHING: u64 = 0;
    /// Inside a call that was issued and has not returned.
    pub const CALL: u64 = 1;
    /// Inside a wait for a call.
    pub const WAIT: u64 = 2;
}

/// Flags of a record.
pub mod flags {
    /// The caller requested an asynchronous call.
    pub const ASYNC: u16 = 1;
    /// Issued below a frame of DDP or the autograd engine, not directly by the user's code.
    pub const HIDDEN: u16 = 2;
    /// A point-to-point call.
    pub const P2P: u16 = 4;
    /// `numel` is known.
    pub const NUMEL: u16 = 8;
    /// `dims` is the whole shape.
    pub const SHAPE: u16 = 16;
    /// `root_or_peer` is known.
    pub const ROOT: u16 = 32;
    /// `tag` is known.
    pub const TAG: u16 = 64;
    /// The site is the main thread's, because the issuing thread runs no Python.
    pub const BORROWED_SITE: u16 = 128;
    /// For split sizes: those of the output, not of the input.
    pub const OUTPUT: u16 = 256;
    /// For a step: it began with a training forward pass at the record's site, and the program did
    /// not mark it itself. `numel`: batches drawn so far at the place where the last one was drawn.
    pub const FORWARD: u16 = 512;
    /// For such a step: the input is that of the previous forward pass.
    pub const REPEATED: u16 = 1024;
    /// For such a step: its gradients are not to be synchronised.
    pub const UNSYNCHRONISED: u16 = 2048;
    /// Enqueued on a stream of a device: the words of `dims` are those of [`super::on_stream`].
    pub const STREAM: u16 = 4096;
    /// The result replaces the input.
    pub const IN_PLACE: u16 = 8192;
    /// Captured into a graph: nothing runs yet, and its later execution is not recorded.
    pub const CAPTURED: u16 = 16384;
    /// For a call that returned: its completion will be recorded.
    pub const FOLLOWED: u16 = 32768;
}

/// Maximum number of dimensions in a record.
pub const MAX_DIMS: usize = 10;
/// Maximum number of split sizes in a record of kind [`RecordKind::Splits`].
pub const SPLITS_PER_RECORD: usize = 20;

/// An unpacked record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "explained field by field in `ddpdoctor/v1/agent.proto`"
)]
pub struct Record {
    pub mono_ns: u64,
    pub kind: RecordKind,
    pub op: Op,
    pub dtype: DType,
    pub reduce_op: ReduceOp,
    pub flags: u16,
    pub ndim: u8,
    pub group: u32,
    pub thread: u32,
    pub seq: u64,
    pub call: u64,
    pub site: u32,
    pub tensors: u32,
    pub root_or_peer: i32,
    pub tag: i32,
    pub numel: u64,
    pub dims: [u32; MAX_DIMS],
    pub step: u32,
    /// String id of the phase.
    pub phase: u32,
    /// String id; its meaning depends on the kind.
    pub text: u32,
    pub code: i32,
}

impl Record {
    /// Payload words of the record's slot: all but the lock.
    #[inline]
    #[must_use]
    pub fn pack(&self) -> [u64; RECORD_WORDS - 1] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let mut words = [0; RECORD_WORDS - 1];
        words[0] = self.mono_ns;
        words[1] = u64::from(self.kind.number())
            | u64::from(self.op.number()) << 8
            | u64::from(self.dtype.number()) << 16
            | u64::from(self.reduce_op.number()) << 24
            | u64::from(self.flags) << 32
            | u64::from(self.ndim) << 48;
        words[2] = pair(self.group, self.thread);
        words[3] = self.seq;
        words[4] = self.call;
        words[5] = pair(self.site, self.tensors);
        words[6] = pair(self.root_or_peer.cast_unsigned(), self.tag.cast_unsigned());
        words[7] = self.numel;
        for (i, dims) in self.dims.chunks_exact(2).enumerate() {
            words[8 + i] = pair(dims[0], dims[1]);
        }
        words[13] = pair(self.step, self.phase);
        words[14] = pair(self.text, self.code.cast_unsigned());
        words
    }

    /// Decodes the output of [`Record::pack`]. Unknown enum numbers become `Unspecified`.
    #[must_use]
    pub fn unpack(words: &[u64; RECORD_WORDS - 1]) -> Self {
        let low = |word: u64| (word & 0xffff_ffff) as u32;
        let high = |word: u64| (word >> 32) as u32;
        let byte = |shift: u32| ((words[1] >> shift) & 0xff) as u8;
        let mut dims = [0; MAX_DIMS];
        for i in 0..MAX_DIMS / 2 {
            dims[2 * i] = low(words[8 + i]);
            dims[2 * i + 1] = high(words[8 + i]);
        }
        Self {
            mono_ns: words[0],
            kind: RecordKind::from_number(byte(0)),
            op: Op::from_number(byte(8)),
            dtype: DType::from_number(byte(16)),
            reduce_op: ReduceOp::from_number(byte(24)),
            flags: ((words[1] >> 32) & 0xffff) as u16,
            ndim: byte(48),
            group: low(words[2]),
            thread: high(words[2]),
            seq: words[3],
            call: words[4],
            site: low(words[5]),
            tensors: high(words[5]),
            root_or_peer: low(words[6]).cast_signed(),
            tag: high(words[6]).cast_signed(),
            numel: words[7],
            dims,
            step: low(words[13]),
            phase: high(words[13]),
            text: low(words[14]),
            code: high(words[14]).cast_signed(),
        }
    }

    /// Shape of the first tensor; `None` if unknown.
    #[must_use]
    pub fn shape(&self) -> Option<&[u32]> {
        (self.flags & flags::SHAPE != 0).then(|| &self.dims[..usize::from(self.ndim).min(MAX_DIMS)])
    }
}

/// Layout of a record of kind [`RecordKind::Splits`]: payload words 5 … 14 contain split sizes.
pub mod splits {
    use super::{RECORD_WORDS, SPLITS_PER_RECORD};

    /// First payload word that contains sizes.
    const AT: usize = 5;

    /// Writes up to [`SPLITS_PER_RECORD`] sizes into packed words. `seq` of the record is the index
    /// of the first size, `ndim` the number of sizes; `tensors` is not used.
    pub fn pack(words: &mut [u64; RECORD_WORDS - 1], sizes: &[u32]) {
        for (i, pair) in sizes.chunks(2).take(SPLITS_PER_RECORD / 2).enumerate() {
            let high = pair.get(1).copied().unwrap_or(0);
            words[AT + i] = u64::from(pair[0]) | u64::from(high) << 32;
        }
    }

    /// Reads `count` sizes.
    #[must_use]
    pub fn unpack(words: &[u64; RECORD_WORDS - 1], count: u8) -> Vec<u32> {
        (0..usize::from(count).min(SPLITS_PER_RECORD))
            .map(|i| (words[AT + i / 2] >> (32 * (i % 2))) as u32)
            .collect()
    }
}

/// Layout of `dims` in a record of kind [`RecordKind::Issued`] whose op creates a group. `text` is
/// the name of the group; `group` is 0, since the group does not exist yet.
pub mod creation {
    /// String id of the members, encoded as [`super::members`]; 0: the table was full.
    pub const MEMBERS: usize = 0;
    /// Number of members.
    pub const SIZE: usize = 1;
    /// Index of the initialisation of the world, from 0.
    pub const EPOCH: usize = 2;
    /// String id of the description.
    pub const DESCRIPTION: usize = 3;
    /// String id of the backend.
    pub const BACKEND: usize = 4;
    /// 1: the creation is known to block each participant until all members take part; 0: unknown.
    pub const TAKES_ALL: usize = 5;
    /// This process's rank among the members plus one, if it does not know them; 0: `MEMBERS` has
    /// the members.
    pub const SEAT_PLUS_1: usize = 6;
}

/// Layout of `dims` in a record of kind [`RecordKind::Issued`] with [`flags::STREAM`]: the stream
/// of a device on which the call was enqueued.
pub mod on_stream {
    use super::MAX_DIMS;

    /// Identifies the stream within its process: two words, the low one first.
    pub const STREAM: usize = 0;
    /// Calls with the same number were launched together, without an order among them; 0: launched
    /// alone.
    pub const LAUNCH: usize = 2;

    /// Encodes a stream and a launch as `dims`.
    #[inline]
    #[must_use]
    pub const fn pack(stream: u64, launch: u32) -> [u32; MAX_DIMS] {
        let mut dims = [0; MAX_DIMS];
        dims[STREAM] = stream as u32;
        dims[STREAM + 1] = (stream >> 32) as u32;
        dims[LAUNCH] = launch;
        dims
    }

    /// Decodes `(stream, launch)`.
    #[must_use]
    pub const fn unpack(dims: &[u32; MAX_DIMS]) -> (u64, u32) {
        let stream = dims[STREAM] as u64 | (dims[STREAM + 1] as u64) << 32;
        (stream, dims[LAUNCH])
    }
}

/// Values of `code` in a record of kind [`RecordKind::Transfer`]: what the first incomplete step
/// waits for.
pub mod transfer {
    /// The transfer makes progress again, or is complete.
    pub const MOVES: i32 = 0;
    /// The device: it has not yet provided the data to send, or not yet taken the received data.
    pub const DEVICE: i32 = 1;
    /// The peer, which is not ready.
    pub const PEER: i32 = 2;
    /// The network: a send was posted and not acknowledged, or a receive was posted and has no
    /// data.
    pub const NETWORK: i32 = 3;
    /// Unknown.
    pub const UNKNOWN: i32 = 4;
}

/// Layout of a record of kind [`RecordKind::Memory`]: payload words 3 and 5 … 14 contain the memory
/// values measured by the process.
pub mod memory {
    use super::RECORD_WORDS;

    /// First payload word in use.
    const AT: usize = 5;
    /// Word of `largest`, plus one. 0 in boxes of versions without it.
    const LARGEST: usize = 14;
    /// Word of `nccl`, plus one. 0 in boxes of versions without it.
    const NCCL_PLUS_1: usize = 3;
    /// Value of an unknown field.
    const UNKNOWN: u64 = u64::MAX;

    /// Memory of a device as measured in the process; `None`: unknown.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Sample {
        /// Index of the device in the process.
        pub device: Option<u32>,
        /// Bytes in use on the device, by all processes.
        pub used: Option<u64>,
        /// Capacity of the device, in bytes.
        pub total: Option<u64>,
        /// Bytes that the framework's allocator has allocated to tensors.
        pub allocated: Option<u64>,
        /// Bytes that the framework's allocator has reserved on the device.
        pub reserved: Option<u64>,
        /// Maximum of `allocated` so far.
        pub peak: Option<u64>,
        /// Bytes reserved in the unused rest of split blocks.
        pub split: Option<u64>,
        /// Number of times that the allocator released its cached memory to retry an allocation.
        pub retries: Option<u64>,
        /// Number of allocations that failed.
        pub ooms: Option<u64>,
        /// Bytes of the largest free piece of reserved memory.
        pub largest: Option<u64>,
        /// Bytes that NCCL holds on the device for the communicators of the process.
        pub nccl: Option<u64>,
    }

    /// Writes a sample into packed words.
    pub fn pack(words: &mut [u64; RECORD_WORDS - 1], sample: &Sample) {
        let values = [
            sample.device.map(u64::from),
            sample.used,
            sample.total,
            sample.allocated,
            sample.reserved,
            sample.peak,
            sample.split,
            sample.retries,
            sample.ooms,
        ];
        for (i, value) in values.into_iter().enumerate() {
            words[AT + i] = value.unwrap_or(UNKNOWN);
        }
        words[LARGEST] = sample.largest.map_or(0, |it| it.saturating_add(1));
        words[NCCL_PLUS_1] = sample.nccl.map_or(0, |it| it.saturating_add(1));
    }

    /// Reads a sample.
    #[must_use]
    pub fn unpack(words: &[u64; RECORD_WORDS - 1]) -> Sample {
        let value = |i: usize| Some(words[AT + i]).filter(|&it| it != UNKNOWN);
        Sample {
            device: value(0).and_then(|it| u32::try_from(it).ok()),
            used: value(1),
            total: value(2),
            allocated: value(3),
            reserved: value(4),
            peak: value(5),
            split: value(6),
            retries: value(7),
            ooms: value(8),
            largest: words[LARGEST].checked_sub(1),
            nccl: words[NCCL_PLUS_1].checked_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_memory_sample_unpacks_unchanged() {
        for sample in [
            memory::Sample::default(),
            memory::Sample {
                device: Some(7),
                used: Some(1 << 36),
                allocated: Some(0),
                ooms: Some(3),
                ..memory::Sample::default()
            },
            memory::Sample {
                largest: Some(0),
                nccl: Some(0),
                ..memory::Sample::default()
            },
        ] {
            let mut words = Record::default().pack();
            memory::pack(&mut words, &sample);
            assert_eq!(memory::unpack(&words), sample);
            // As written by a version without the word of NCCL.
            words[3] = 0;
            assert_eq!(memory::unpack(&words).nccl, None);
        }
        let written_before = Record::default().pack();
        assert_eq!(memory::unpack(&written_before).largest, None);
    }

    #[test]
    fn packed_record_unpacks_unchanged() {
        let record = Record {
            mono_ns: u64::MAX - 5,
            kind: RecordKind::Issued,
            op: Op::Broadcast,
            dtype: DType::BFloat16,
            reduce_op: ReduceOp::PremulSum,
            flags: flags::ASYNC | flags::SHAPE | flags::BORROWED_SITE,
            ndim: 3,
            group: 7,
            thread: 3,
            seq: 1 << 40,
            call: 99,
            site: 12,
            tensors: 4,
            root_or_peer: -1,
            tag: -7,
            numel: 1 << 50,
            dims: [1, 2, 3, 4, 5, 6, 7, 8, 9, u32::MAX],
            step: 8,
            phase: 2,
            text: 5,
            code: -11,
        };
        assert_eq!(Record::unpack(&record.pack()), record);
        assert_eq!(record.shape(), Some(&[1, 2, 3][..]));
    }

    #[test]
    fn packed_splits_unpack_unchanged() {
        for n in 0..=SPLITS_PER_RECORD {
            let sizes: Vec<u32> = (0..n as u32).map(|i| i * 7 + u32::MAX / 2).collect();
            let mut words = Record::default().pack();
            splits::pack(&mut words, &sizes);
            assert_eq!(splits::unpack(&words, n as u8), sizes);
        }
    }

    #[test]
    fn encoded_members_decode_unchanged() {
        for ranks in [
            vec![],
            vec![3],
            vec![0, 1, 2, 3],
            vec![6, 4, 2],
            vec![0, 5, 1, 6],
            vec![2, 2],
        ] {
            assert_eq!(members::decode(&members::encode(&ranks), 10), Some(ranks));
        }
        let world: Vec<u32> = (0..16_384).collect();
        assert_eq!(members::encode(&world).len(), 12);
        assert_eq!(members::decode(&members::encode(&world), 100), None);
        assert_eq!(members::decode(&[1, 2, 3], 100), None);
    }

    #[test]
    fn packed_streams_unpack_unchanged() {
        for (stream, launch) in [(0, 0), (u64::MAX - 1, 7), (1 << 40, u32::MAX)] {
            assert_eq!(
                on_stream::unpack(&on_stream::pack(stream, launch)),
                (stream, launch)
            );
        }
    }

    #[test]
    fn locks_of_tickets_and_states_differ() {
        assert!(committed(0) > writing(0) && writing(1) > committed(0));
        assert_eq!(committed(5) % 2, 0);
        assert_eq!(writing(5) % 2, 1);
        assert_eq!(
            string::parse(string::entry(70_000, 4096)),
            Some((70_000, 4096))
        );
        assert_eq!(string::parse(0), None);
        assert_eq!(
            string::parse(string::entry(u32::MAX, 5) | string::BINARY),
            Some((u32::MAX, 5))
        );
    }

    #[test]
    fn thread_id_parses_to_entry_and_generation() {
        for (entry, generation) in [(0, 0), (127, 3), (0xfffe, 0xffff)] {
            let id = thread::id(entry, generation);
            assert_ne!(id, 0);
            assert_eq!(thread::parse_id(id), Some((entry, generation)));
        }
        assert_eq!(thread::parse_id(0), None);
        assert_eq!(thread::parse_id(3 << 16), None);
        assert_eq!(thread::parse(PUBLISHED | 7 << 32 | 1234), Some((1234, 7)));
        assert_eq!(thread::parse(1234), None);
    }

    #[test]
    fn default_box_fits_its_budget() {
        let layout = Capacities::default().layout();
        assert!(
            layout.words * WORD <= 2 << 20,
            "{} bytes",
            layout.words * WORD
        );
        assert_eq!(layout.ring_at % 8, 0);
    }
}
