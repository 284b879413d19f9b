//! The black box: one file per process and probe, mapped by the training process that writes it
//! and by whoever reads it, alive or dead.
//!
//! Every field is a little-endian 64-bit word, and every access is an atomic access to a word: a
//! reader in another process never races in the sense of the memory model, and neither side needs
//! anything but the words themselves. Offsets here are **in words**.
//!
//! ```text
//! header   512 words   identity, clock anchor, counters, where the tables are
//! strings  index: one word each; heap: bytes, append-only
//! sites    4 words each: places in the program, with counters
//! groups   16 words each: process groups, with frontiers that survive the ring
//! threads  8 words each: "inside call X since t", a sequence lock each
//! ring     16 words per record, overwriting, a sequence lock per slot
//! ```
//!
//! # Numbers of definitions
//!
//! Strings, sites and groups are numbered from 1 in the order of their tables: number `n` is entry
//! `n - 1`, and 0 says "none" or "found no room". Entries of threads are used again once a thread is
//! dead, so the number of a thread is made of its entry and a generation, see [`thread::id`].
//!
//! A definition is published before any record that names it is committed. Whoever copies a record
//! and looks at the tables afterwards finds everything that the record names.
//!
//! # The ring's protocol
//!
//! A writer takes ticket `t` from the head (fetch-add), and slot `t % capacity`. It claims the slot
//! by a compare-exchange of its lock from the even value it found to [`writing`]`(t)`. Where the lock
//! is odd or the exchange fails, another writer has been asleep in the slot for a whole lap; where
//! the lock is of a later ticket, this writer has. Either way the record is dropped and counted. A
//! release fence follows the claim; then come the 15 payload words and, as a release,
//! [`committed`]`(t)`.
//!
//! A reader of ticket `t` wants the lock to be `committed(t)` before and after it copied the payload
//! (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012). A lock of
//! a later ticket means that the record was overwritten, one of an earlier ticket or `writing(t)`
//! that it is not there yet, or never will be.

use crate::vocabulary::{DType, Op, RecordKind, ReduceOp};

/// First word of every black box: "DDPDBOX\n".
pub const MAGIC: u64 = u64::from_le_bytes(*b"DDPDBOX\n");

/// Version of this layout. A reader refuses a later one by name.
pub const LAYOUT_VERSION: u64 = 1;

/// Bytes per word.
pub const WORD: usize = 8;

/// What is where in the header.
pub mod header {
    /// [`super::MAGIC`]; written last when a box is made, so that a half-made one is none.
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
    /// One moment on the monotonic clock, in nanoseconds …
    pub const ANCHOR_MONO: usize = 7;
    /// … and the same moment in nanoseconds since the Unix epoch.
    pub const ANCHOR_UNIX: usize = 8;
    /// Global rank plus one; 0: not known yet.
    pub const RANK_PLUS_1: usize = 9;
    /// Number of ranks; 0: not known yet.
    pub const WORLD_SIZE: usize = 10;
    /// Rank within the node plus one; 0: not known.
    pub const LOCAL_RANK_PLUS_1: usize = 11;
    /// The n-th start of the job.
    pub const ATTEMPT: usize = 12;
    /// Bits of [`super::box_flags`].
    pub const FLAGS: usize = 13;
    /// Process id of whoever reads the box now; 0: nobody said so.
    pub const READER_PID: usize = 14;
    /// Start time of that reader.
    pub const READER_START_TICKS: usize = 15;
    /// Counts changes of rank, world size or flags.
    pub const IDENTITY_VERSION: usize = 16;
    /// Process id of the writer's parent when the box was made; 0: not known. A rank's helper, with a
    /// world of its own, is told from a rank by it.
    pub const PARENT_PID: usize = 17;

    /// First word of the ring.
    pub const RING_AT: usize = 20;
    /// Records in the ring, a power of two.
    pub const RING_CAPACITY: usize = 21;
    /// First word of the string index.
    pub const STRINGS_AT: usize = 24;
    /// Entries in the string index.
    pub const STRINGS_CAPACITY: usize = 25;
    /// Entries taken.
    pub const STRINGS_COUNT: usize = 26;
    /// First word of the string heap.
    pub const HEAP_AT: usize = 27;
    /// Words in the string heap.
    pub const HEAP_CAPACITY: usize = 28;
    /// Words taken.
    pub const HEAP_USED: usize = 29;
    /// First word of the sites.
    pub const SITES_AT: usize = 31;
    /// Entries in the table of sites.
    pub const SITES_CAPACITY: usize = 32;
    /// Entries taken.
    pub const SITES_COUNT: usize = 33;
    /// First word of the groups.
    pub const GROUPS_AT: usize = 35;
    /// Entries in the table of groups.
    pub const GROUPS_CAPACITY: usize = 36;
    /// Entries taken.
    pub const GROUPS_COUNT: usize = 37;
    /// First word of the threads.
    pub const THREADS_AT: usize = 39;
    /// Entries in the table of threads.
    pub const THREADS_CAPACITY: usize = 40;
    /// Entries taken.
    pub const THREADS_COUNT: usize = 41;
    /// Definitions (strings, sites, groups, threads) that found no room.
    pub const DEFINITIONS_DROPPED: usize = 43;
    /// Training steps begun.
    pub const STEP: usize = 44;
    /// String id of the innermost phase; 0: none.
    pub const PHASE: usize = 45;

    /// Job id: UTF-8, padded with zeros.
    pub const JOB: std::ops::Range<usize> = 48..64;
    /// Host name, likewise.
    pub const HOST: std::ops::Range<usize> = 64..72;
    /// Layer ("c10d", "nccl", "rust", "c"), likewise.
    pub const LAYER: std::ops::Range<usize> = 72..74;
    /// Version of ddp-doctor, likewise.
    pub const TOOL: std::ops::Range<usize> = 74..78;
    /// What tells this process's world from others of the same job, likewise: ranks with different
    /// names here never meet. Empty: it is not known.
    pub const WORLD: std::ops::Range<usize> = 80..96;

    /// Next ticket of the ring. On a cache line of its own: every record touches it.
    pub const RING_HEAD: usize = 128;
    /// Records dropped by writers because their slot was held.
    pub const RING_DROPPED: usize = 136;

    /// Words in the header.
    pub const WORDS: usize = 512;
}

/// Flags of a black box.
pub mod box_flags {
    /// The process ended in order: nothing more will be written.
    pub const CLOSED: u64 = 1;
}

/// Words of a record, of which the first is its lock.
pub const RECORD_WORDS: usize = 16;
/// Words of a site.
pub const SITE_WORDS: usize = 4;
/// Words of a group.
pub const GROUP_WORDS: usize = 16;
/// Words of a thread.
pub const THREAD_WORDS: usize = 8;

/// Set in the first word of a string, site, group or thread once the rest of it is there.
pub const PUBLISHED: u64 = 1 << 63;

/// Lock of a slot while the record with this ticket is being written.
#[must_use]
pub const fn writing(ticket: u64) -> u64 {
    (ticket + 1) * 2 - 1
}

/// Lock of a slot that holds the record with this ticket.
#[must_use]
pub const fn committed(ticket: u64) -> u64 {
    (ticket + 1) * 2
}

/// How many entries each table has: what a box is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Records in the ring, a power of two.
    pub records: usize,
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
    /// About 1.6 MiB: minutes of an ordinary job's calls, and well inside the 4 MiB per rank that
    /// all of ddp-doctor may take.
    fn default() -> Self {
        Self {
            records: 8192,
            strings: 8192,
            heap_words: 32 * 1024,
            sites: 4096,
            groups: 512,
            threads: 128,
        }
    }
}

impl Capacities {
    /// Where the tables of such a box lie, and how long it is.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        let strings_at = header::WORDS;
        let heap_at = strings_at + self.strings;
        let sites_at = heap_at + self.heap_words;
        let groups_at = sites_at + self.sites * SITE_WORDS;
        let threads_at = groups_at + self.groups * GROUP_WORDS;
        // Records are two cache lines; keep them on cache lines.
        let ring_at = (threads_at + self.threads * THREAD_WORDS).next_multiple_of(8);
        Layout {
            strings_at,
            heap_at,
            sites_at,
            groups_at,
            threads_at,
            ring_at,
            words: ring_at + self.records * RECORD_WORDS,
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
    pub words: usize,
}

/// Words of a string's index entry: one.
pub mod string {
    use super::PUBLISHED;

    /// Longest text in bytes; longer ones are cut at a character boundary.
    pub const MAX_TEXT: usize = 4096;

    /// Longest entry in bytes that the index can describe.
    pub const MAX_BYTES: usize = (1 << 20) - 1;

    /// Set in an entry whose bytes are no text but the members of a group.
    pub const BINARY: u64 = 1 << 62;

    /// Index entry of a string of so many bytes at so many words into the heap.
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
    /// `PUBLISHED | site of the caller << 32 | string id of the file`. The caller is that of the call
    /// that first led there; 0: it is not known.
    pub const FILE: usize = 0;
    /// `string id of the function | line << 32`.
    pub const FUNCTION_AND_LINE: usize = 1;
    /// A file that begins so is none, but the address in hexadecimal that machine code returns to: who
    /// reads the box looks the line up as long as the process lives.
    pub const ADDRESS: char = '@';
    /// Calls issued there.
    pub const COUNT: usize = 2;
    /// Monotonic time of the last one.
    pub const LAST_MONO: usize = 3;

    /// First word of a published site.
    #[must_use]
    pub const fn file(file: u32, caller: u32) -> u64 {
        super::PUBLISHED | (caller as u64 & 0x7fff_ffff) << 32 | file as u64
    }

    /// `(string id of the file, caller)` out of a published first word.
    #[must_use]
    pub const fn parse(word: u64) -> Option<(u32, u32)> {
        if word & super::PUBLISHED == 0 {
            return None;
        }
        Some((word as u32, (word >> 32) as u32 & 0x7fff_ffff))
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
    /// Monotonic time of its destruction; 0: it lives.
    pub const DESTROYED: usize = 5;
    /// Highest collective sequence number issued.
    pub const ISSUED: usize = 6;
    /// Point-to-point calls issued.
    pub const P2P_ISSUED: usize = 7;
    /// Monotonic time of the last call.
    pub const LAST_MONO: usize = 8;
    /// Call id of the last call.
    pub const LAST_CALL: usize = 9;
    /// Collectives whose wait ended, or that are known to be complete.
    pub const COMPLETED: usize = 10;
    /// This process's rank in the group plus one, where it does not know the members: those stand
    /// empty. 0: it knows them.
    pub const SEAT_PLUS_1: usize = 11;
}

/// Members of a group as bytes: runs of `(first, stride, count)`, little-endian u32 each, in group
/// order. Nearly every group is one run, so that even 16 384 ranks take twelve bytes.
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

    /// Decodes what [`encode`] wrote; `None` where the bytes are no such thing or name more than
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
    /// `PUBLISHED | generation << 32 | tid`. The generation (16 bits) counts how often the entry was
    /// used before, each time for a thread that had died.
    pub const TID: usize = 0;
    /// String id of its name.
    pub const NAME: usize = 1;
    /// Sequence lock over the words below: odd while they change.
    pub const LOCK: usize = 2;
    /// [`super::inside`] `| op << 8 | group << 32`.
    pub const INSIDE: usize = 3;
    /// Call id.
    pub const CALL: usize = 4;
    /// Monotonic time since when.
    pub const SINCE: usize = 5;
    /// Site.
    pub const SITE: usize = 6;
    /// Records this thread has written.
    pub const RECORDS: usize = 7;

    /// Most threads of a table, because of how [`id`] is made.
    pub const MAX_THREADS: usize = 0xffff;

    /// Number of a thread: what records call it. Never 0.
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

    /// `(tid, generation)` out of a published first word.
    #[must_use]
    pub const fn parse(word: u64) -> Option<(u32, u16)> {
        if word & super::PUBLISHED == 0 {
            return None;
        }
        Some((word as u32, (word >> 32) as u16))
    }
}

/// What a thread is inside of.
pub mod inside {
    /// The user's own code.
    pub const NOTHING: u64 = 0;
    /// A call that was issued and has not returned.
    pub const CALL: u64 = 1;
    /// A wait for a call.
    pub const WAIT: u64 = 2;
}

/// Flags of a record.
pub mod flags {
    /// The caller did not ask to wait for it.
    pub const ASYNC: u16 = 1;
    /// Issued below a frame of DDP or the autograd engine, not by a call of the user's.
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
    /// The place is the main thread's, not the issuing thread's: that one runs no Python.
    pub const BORROWED_SITE: u16 = 128;
    /// Of splits: the output's, not the input's.
    pub const OUTPUT: u16 = 256;
    /// Of a step: it began with a training forward at the record's site, and the program did not
    /// mark it itself. `numel`: batches drawn so far where the last one was drawn.
    pub const FORWARD: u16 = 512;
    /// Of such a step: the input is that of the forward before.
    pub const REPEATED: u16 = 1024;
    /// Of such a step: its gradients are not to be synchronised.
    pub const UNSYNCHRONISED: u16 = 2048;
    /// Put on a stream of a device: the words of `dims` are those of [`super::on_stream`].
    pub const STREAM: u16 = 4096;
    /// Its result takes the place of its input.
    pub const IN_PLACE: u16 = 8192;
    /// It was captured into a graph: nothing runs yet, and nobody tells when it does.
    pub const CAPTURED: u16 = 16384;
    /// Of a call that came back: it will be told when it is complete.
    pub const FOLLOWED: u16 = 32768;
}

/// Most dimensions a record holds.
pub const MAX_DIMS: usize = 10;
/// Most split sizes one record of kind [`RecordKind::Splits`] holds.
pub const SPLITS_PER_RECORD: usize = 20;

/// A record, unpacked.
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
    /// String id, meaning by kind.
    pub text: u32,
    pub code: i32,
}

impl Record {
    /// The payload words of a slot: all but its lock.
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

    /// Reads what [`Record::pack`] wrote. Unknown numbers become `Unspecified`.
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

    /// Shape of the first tensor, where it is known.
    #[must_use]
    pub fn shape(&self) -> Option<&[u32]> {
        (self.flags & flags::SHAPE != 0).then(|| &self.dims[..usize::from(self.ndim).min(MAX_DIMS)])
    }
}

/// A record of kind [`RecordKind::Splits`] uses the payload words 5 … 14 for split sizes.
pub mod splits {
    use super::{RECORD_WORDS, SPLITS_PER_RECORD};

    /// First payload word that holds sizes.
    const AT: usize = 5;

    /// Puts up to [`SPLITS_PER_RECORD`] sizes into packed words. `seq` of the record says at which
    /// index the first of them stands, `tensors` is not used, `ndim` says how many there are.
    pub fn pack(words: &mut [u64; RECORD_WORDS - 1], sizes: &[u32]) {
        for (i, pair) in sizes.chunks(2).take(SPLITS_PER_RECORD / 2).enumerate() {
            let high = pair.get(1).copied().unwrap_or(0);
            words[AT + i] = u64::from(pair[0]) | u64::from(high) << 32;
        }
    }

    /// Reads `count` sizes back.
    #[must_use]
    pub fn unpack(words: &[u64; RECORD_WORDS - 1], count: u8) -> Vec<u32> {
        (0..usize::from(count).min(SPLITS_PER_RECORD))
            .map(|i| (words[AT + i / 2] >> (32 * (i % 2))) as u32)
            .collect()
    }
}

/// A record of kind [`RecordKind::Issued`] with an op that makes a group says which: `text` is its
/// name, and the words of `dims` are these. Its `group` is 0, since the group does not exist yet.
pub mod creation {
    /// String id of the members, encoded as [`super::members`]; 0: the group found no room.
    pub const MEMBERS: usize = 0;
    /// Number of members.
    pub const SIZE: usize = 1;
    /// The n-th initialisation of the world, from 0.
    pub const EPOCH: usize = 2;
    /// String id of the description.
    pub const DESCRIPTION: usize = 3;
    /// String id of the backend.
    pub const BACKEND: usize = 4;
    /// 1: whoever makes the group is kept until all its members make it; 0: that is not known.
    pub const TAKES_ALL: usize = 5;
    /// This process's rank among the members plus one, where it does not know them; 0: `MEMBERS` says
    /// who they are.
    pub const SEAT_PLUS_1: usize = 6;
}

/// A record of kind [`RecordKind::Issued`] with [`flags::STREAM`] says in the words of `dims` on which
/// stream of a device the call was put.
pub mod on_stream {
    use super::MAX_DIMS;

    /// Names the stream within its process: two words, the low one first.
    pub const STREAM: usize = 0;
    /// Calls with the same number were given to the device together, in no order; 0: by itself.
    pub const LAUNCH: usize = 2;

    /// The words of `dims`.
    #[inline]
    #[must_use]
    pub const fn pack(stream: u64, launch: u32) -> [u32; MAX_DIMS] {
        let mut dims = [0; MAX_DIMS];
        dims[STREAM] = stream as u32;
        dims[STREAM + 1] = (stream >> 32) as u32;
        dims[LAUNCH] = launch;
        dims
    }

    /// `(stream, launch)`.
    #[must_use]
    pub const fn unpack(dims: &[u32; MAX_DIMS]) -> (u64, u32) {
        let stream = dims[STREAM] as u64 | (dims[STREAM + 1] as u64) << 32;
        (stream, dims[LAUNCH])
    }
}

/// What `code` is in a record of kind [`RecordKind::Transfer`]: what the first step waits for that is not done.
pub mod transfer {
    /// The transfer goes on again, or is over.
    pub const MOVES: i32 = 0;
    /// The device: it has not filled what is to be sent, or not taken what has come.
    pub const DEVICE: i32 = 1;
    /// The other end, which is not ready for it.
    pub const PEER: i32 = 2;
    /// The network: what was given to it, or is to come from it.
    pub const NETWORK: i32 = 3;
    /// Nobody says.
    pub const UNKNOWN: i32 = 4;
}

/// A record of kind [`RecordKind::Memory`] uses the payload words 3 and 5 … 14 for what the process knows of
/// its memory.
pub mod memory {
    use super::RECORD_WORDS;

    /// First payload word that is used.
    const AT: usize = 5;
    /// The word of `largest`, as one more: boxes that were written without it have 0 there.
    const LARGEST: usize = 14;
    /// What NCCL holds, plus one: 0 is what older boxes have there, and says nothing.
    const NCCL_PLUS_1: usize = 3;
    /// Stands for "not known".
    const UNKNOWN: u64 = u64::MAX;

    /// What a process knows of the memory on a device; `None`: it does not know.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Sample {
        /// Number of the device, as the process counts them.
        pub device: Option<u32>,
        /// Bytes in use on the device, by whomever.
        pub used: Option<u64>,
        /// Bytes that the device has.
        pub total: Option<u64>,
        /// Bytes that the framework's allocator has given to tensors.
        pub allocated: Option<u64>,
        /// Bytes that the framework's allocator holds on the device.
        pub reserved: Option<u64>,
        /// The most bytes that it ever gave to tensors.
        pub peak: Option<u64>,
        /// Bytes that it holds in pieces left over of blocks in use.
        pub split: Option<u64>,
        /// How often it gave back all that it held before it could get more.
        pub retries: Option<u64>,
        /// How often it could get none.
        pub ooms: Option<u64>,
        /// Bytes of the largest piece that it holds and has given to nobody.
        pub largest: Option<u64>,
        /// Bytes that NCCL itself holds on the device, for the communicators of the process.
        pub nccl: Option<u64>,
    }

    /// Puts a sample into packed words.
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

    /// Reads it back.
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
    fn a_memory_sample_survives_packing() {
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
            // As written by whoever does not know of NCCL's.
            words[3] = 0;
            assert_eq!(memory::unpack(&words).nccl, None);
        }
        let written_before = Record::default().pack();
        assert_eq!(memory::unpack(&written_before).largest, None);
    }

    #[test]
    fn a_record_survives_packing() {
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
    fn splits_survive_packing() {
        for n in 0..=SPLITS_PER_RECORD {
            let sizes: Vec<u32> = (0..n as u32).map(|i| i * 7 + u32::MAX / 2).collect();
            let mut words = Record::default().pack();
            splits::pack(&mut words, &sizes);
            assert_eq!(splits::unpack(&words, n as u8), sizes);
        }
    }

    #[test]
    fn members_survive_encoding() {
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
    fn streams_survive_packing() {
        for (stream, launch) in [(0, 0), (u64::MAX - 1, 7), (1 << 40, u32::MAX)] {
            assert_eq!(
                on_stream::unpack(&on_stream::pack(stream, launch)),
                (stream, launch)
            );
        }
    }

    #[test]
    fn locks_tell_tickets_and_states_apart() {
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
    fn numbers_of_threads_lead_back_to_entry_and_generation() {
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
    fn the_default_box_keeps_its_budget() {
        let layout = Capacities::default().layout();
        assert!(
            layout.words * WORD <= 2 << 20,
            "{} bytes",
            layout.words * WORD
        );
        assert_eq!(layout.ring_at % 8, 0);
    }
}
