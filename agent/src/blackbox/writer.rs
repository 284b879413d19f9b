//! The writing side: wait-free, without allocation and without system calls once a box, a group, a
//! site and a thread are known.

use std::fs::File;
use std::io;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{SystemTime, UNIX_EPOCH};

use ddp_doctor_proto::blackbox::{
    Capacities, GROUP_WORDS, LAYOUT_VERSION, Layout, MAGIC, MAX_DIMS, PUBLISHED, RECORD_WORDS,
    Record, SITE_WORDS, SPLITS_PER_RECORD, THREAD_WORDS, WORD, box_flags, committed, flags, group,
    header, inside, members, site, splits, string, thread, writing,
};
use ddp_doctor_proto::{DType, ExceptionKind, NoteKind, Op, RecordKind, ReduceOp};

use super::calls::{Known, RecentCalls};
use super::map::Map;
use super::nesting::Frame;
use super::place::{BoxName, NoBox, Place};
use super::sites::Sites;
use super::threads::{self, Local};
use super::{MAX_ENTRIES, MAX_MEMBERS, MAX_STRINGS, MAX_WORDS, text};
use crate::{facts, sys};

/// Ops with this number or a higher one contain others and have no sequence number.
const FIRST_ENCLOSING: u8 = Op::InitProcessGroup.number();
/// Texts whose number is remembered, a power of two.
const REMEMBERED_TEXTS: usize = 1024;
/// Phases that may be inside each other.
const DEEPEST_PHASE: usize = 16;
/// Split sizes that are recorded of one call; the ring holds other things too.
const MOST_SPLITS: usize = 50 * SPLITS_PER_RECORD;

/// Names writers within this process, so that a thread knows which one it is registered with.
static WRITERS: AtomicU64 = AtomicU64::new(1);

/// What a box is made with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What reports: "c10d", "nccl", "rust", "c".
    pub layer: String,
    /// The job.
    pub job: String,
    /// The n-th start of the job, from 0.
    pub attempt: u32,
    /// Global rank, where it is known.
    pub rank: Option<u32>,
    /// Number of ranks, where it is known.
    pub world_size: Option<u32>,
    /// Rank within the node, where it is known.
    pub local_rank: Option<u32>,
    /// Sizes of the tables.
    pub capacities: Capacities,
}

/// A call that is about to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub op: Op,
    /// Element type.
    pub dtype: DType,
    /// Reduction operator.
    pub reduce_op: ReduceOp,
    /// Bits of [`flags`].
    pub flags: u16,
    /// Dimensions in `dims`.
    pub ndim: u8,
    /// The group; 0: none.
    pub group: u32,
    /// The place in the program; 0: unknown.
    pub site: u32,
    /// Number of tensors.
    pub tensors: u32,
    /// Group rank of the root or of the peer, with [`flags::ROOT`].
    pub root_or_peer: i32,
    /// With [`flags::TAG`].
    pub tag: i32,
    /// Elements of the first tensor, with [`flags::NUMEL`].
    pub numel: u64,
    /// Its shape, with [`flags::SHAPE`].
    pub dims: [u32; MAX_DIMS],
}

/// A black box that this process writes.
///
/// Everything but its making, groups, sites, texts and the first record of a thread costs some tens
/// of nanoseconds and cannot fail: what finds no room is counted.
#[derive(Debug)]
pub struct Writer {
    map: Map,
    path: PathBuf,
    layout: Layout,
    capacities: Capacities,
    name: u64,
    next_call: AtomicU64,
    calls: RecentCalls,
    /// Per group, the sequence numbers of its point-to-point calls.
    peers: Box<[OnceLock<Peers>]>,
    /// `hash of the text << 32 | number`: the same text mostly gets the same number.
    texts: Box<[AtomicU64]>,
    sites: Sites,
    phases: Phases,
}

impl Writer {
    /// Makes a box in the first directory of `place` that has room. Where none has, a marker tells
    /// so to whoever looks for this process.
    pub fn create(place: &Place, options: &Options) -> Result<Self, CreateError> {
        let capacities = options.capacities;
        check(&capacities)?;
        let layout = capacities.layout();
        let process = facts::Process::this();
        let name = BoxName::new(process.pid, process.start_ticks, &options.layer);
        let make = |file: &File| {
            let map = Map::create(file, layout.words)?;
            fill_header(&map, &layout, options, &process);
            Ok(map)
        };
        let marker = NoBox {
            pid: process.pid,
            rank: options.rank,
        };
        let bytes = (layout.words * WORD) as u64;
        let (path, map) =
            place
                .create(&name, bytes, make)
                .map_err(|refusals| CreateError::NoRoom {
                    refusals,
                    marker: place.leave_marker(marker),
                })?;
        place.remove_markers(marker);
        Ok(Self {
            map,
            path,
            layout,
            capacities,
            name: WRITERS.fetch_add(1, Ordering::Relaxed),
            next_call: AtomicU64::new(1),
            calls: RecentCalls::new(),
            peers: (0..capacities.groups).map(|_| OnceLock::new()).collect(),
            texts: (0..REMEMBERED_TEXTS).map(|_| AtomicU64::new(0)).collect(),
            sites: Sites::new(),
            phases: Phases::default(),
        })
    }

    /// Where the box lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The rank became known, or another one with a new generation. What is `None` stays as it is.
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

    /// Says that nothing more will be written.
    pub fn close(&self) {
        self.header()[header::FLAGS].fetch_or(box_flags::CLOSED, Ordering::Release);
        self.header()[header::IDENTITY_VERSION].fetch_add(1, Ordering::Release);
    }

    /// Takes [`Writer::close`] back.
    pub fn reopen(&self) {
        self.header()[header::FLAGS].fetch_and(!box_flags::CLOSED, Ordering::Release);
        self.header()[header::IDENTITY_VERSION].fetch_add(1, Ordering::Release);
    }

    // --- Definitions ---------------------------------------------------------------------------

    /// Number of a text, cut to [`string::MAX_TEXT`] bytes; 0 for an empty one and where there is no
    /// room.
    pub fn string(&self, value: &[u8]) -> u32 {
        self.intern(text::cut(value, string::MAX_TEXT), 0)
    }

    /// Number of a place in the program; 0: no room. `line` 0: unknown.
    pub fn site(&self, file: &[u8], function: &[u8], line: u32) -> u32 {
        let (file, function) = (self.string(file), self.string(function));
        let Some((id, words)) = self.define::<SITE_WORDS>(
            self.layout.sites_at,
            header::SITES_COUNT,
            self.capacities.sites,
        ) else {
            return 0;
        };
        words[site::FUNCTION_AND_LINE].store(pair(function, line), Ordering::Relaxed);
        words[site::FILE].store(PUBLISHED | u64::from(file), Ordering::Release);
        id
    }

    /// Number of a place in a Rust program; 0: no room. Looked up without a lock.
    #[inline]
    pub fn rust_site(&self, place: &'static Location<'static>) -> u32 {
        self.sites.get(place, |place| {
            self.site(place.file().as_bytes(), b"", place.line())
        })
    }

    /// Number of a process group with these members, global ranks in group order; 0: no room.
    pub fn group(
        &self,
        name: &[u8],
        description: &[u8],
        backend: &[u8],
        epoch: u32,
        members: &[u32],
    ) -> u32 {
        let encoded = members::encode(members);
        let name_id = self.string(name);
        let description = self.string(description);
        let backend = self.string(backend);
        if members.len() > MAX_MEMBERS || encoded.len() > string::MAX_BYTES {
            self.count_dropped_definition();
            return 0;
        }
        let members_id = self.intern(&encoded, string::BINARY);
        // A group without its name or its members would be taken for another one.
        if (name_id == 0 && !name.is_empty()) || (members_id == 0 && !members.is_empty()) {
            return 0;
        }
        let Some((id, words)) = self.define::<GROUP_WORDS>(
            self.layout.groups_at,
            header::GROUPS_COUNT,
            self.capacities.groups,
        ) else {
            return 0;
        };
        let ordinal = (1..id)
            .filter(|&earlier| self.is_group(earlier, epoch, name_id, members_id))
            .count();
        let ordinal = u32::try_from(ordinal).unwrap_or(u32::MAX);
        // The check above keeps it in 32 bits.
        let size = members.len() as u32;
        if let Some(peers) = index(id).and_then(|i| self.peers.get(i)) {
            peers.get_or_init(|| Peers::new(members.len()));
        }
        words[group::DESCRIPTION_AND_BACKEND].store(pair(description, backend), Ordering::Relaxed);
        words[group::MEMBERS_AND_EPOCH].store(pair(members_id, epoch), Ordering::Relaxed);
        words[group::ORDINAL_AND_SIZE].store(pair(ordinal, size), Ordering::Relaxed);
        words[group::CREATED].store(sys::monotonic_ns(), Ordering::Relaxed);
        words[group::NAME].store(PUBLISHED | u64::from(name_id), Ordering::Release);
        id
    }

    /// Whether group `id` is of the same epoch, name and members.
    fn is_group(&self, id: u32, epoch: u32, name: u32, members: u32) -> bool {
        let Some(words) = self.group_words(id) else {
            return false;
        };
        let its_name = words[group::NAME].load(Ordering::Acquire) as u32;
        let its_members = words[group::MEMBERS_AND_EPOCH].load(Ordering::Relaxed);
        (its_members >> 32) as u32 == epoch
            && self.same_string(its_name, name)
            && self.same_string(its_members as u32, members)
    }

    fn same_string(&self, a: u32, b: u32) -> bool {
        a == b
            || match (self.string_words(a), self.string_words(b)) {
                (Some((a, length_a)), Some((b, length_b))) => {
                    length_a == length_b && text::equal(a, &text::load(b, length_b))
                }
                _ => false,
            }
    }

    /// Puts bytes into the heap, unless they are known to be there.
    fn intern(&self, bytes: &[u8], kind: u64) -> u32 {
        if bytes.is_empty() {
            return 0;
        }
        let hash = text::hash(bytes) ^ kind;
        let remembered = self.texts.get(hash as usize % REMEMBERED_TEXTS);
        if let Some(found) = remembered.map(|it| it.load(Ordering::Acquire))
            && found >> 32 == hash >> 32
            && let Some((words, length)) = self.string_words(found as u32)
            && length == bytes.len()
            && text::equal(words, bytes)
        {
            return found as u32;
        }
        let id = self.add_string(bytes, kind).unwrap_or_else(|| {
            self.count_dropped_definition();
            0
        });
        if let Some(remembered) = remembered.filter(|_| id != 0) {
            remembered.store(hash >> 32 << 32 | u64::from(id), Ordering::Release);
        }
        id
    }

    fn add_string(&self, bytes: &[u8], kind: u64) -> Option<u32> {
        let header = self.header();
        // Both must have room, or what one gives is lost.
        if header[header::STRINGS_COUNT].load(Ordering::Relaxed) >= self.capacities.strings as u64 {
            return None;
        }
        let length = text::words_for(bytes.len());
        let at = take(
            &header[header::HEAP_USED],
            length as u64,
            self.capacities.heap_words as u64,
        )?;
        let start = self.layout.heap_at + at as usize;
        text::store(self.map.words().get(start..start + length)?, bytes);
        let index = take(
            &header[header::STRINGS_COUNT],
            1,
            self.capacities.strings as u64,
        )?;
        let entry = string::entry(u32::try_from(at).ok()?, u32::try_from(bytes.len()).ok()?);
        self.map
            .words()
            .get(self.layout.strings_at + index as usize)?
            .store(entry | kind, Ordering::Release);
        Some(index as u32 + 1)
    }

    /// The words and the length of a string.
    fn string_words(&self, id: u32) -> Option<(&[AtomicU64], usize)> {
        let index = index(id).filter(|&it| it < self.capacities.strings)?;
        let words = self.map.words();
        let entry = words
            .get(self.layout.strings_at + index)?
            .load(Ordering::Acquire);
        let (at, length) = string::parse(entry)?;
        let start = self.layout.heap_at + at as usize;
        let end = start + text::words_for(length as usize);
        Some((words.get(start..end)?, length as usize))
    }

    /// Takes the next entry of a table.
    fn define<const N: usize>(
        &self,
        table_at: usize,
        count: usize,
        capacity: usize,
    ) -> Option<(u32, &[AtomicU64; N])> {
        let taken = take(&self.header()[count], 1, capacity as u64);
        let defined =
            taken.and_then(|index| Some((index as u32 + 1, self.entry(table_at, index as usize)?)));
        if defined.is_none() {
            self.count_dropped_definition();
        }
        defined
    }

    fn count_dropped_definition(&self) {
        self.header()[header::DEFINITIONS_DROPPED].fetch_add(1, Ordering::Relaxed);
    }

    // --- Records -------------------------------------------------------------------------------

    /// Records a call before it is made, and gives its id: never 0.
    pub fn issued(&self, call: &Call) -> u64 {
        let now = sys::monotonic_ns();
        let id = self.next_call.fetch_add(1, Ordering::Relaxed);
        let group = self.group_words(call.group);
        let group_id = if group.is_some() { call.group } else { 0 };
        let mut flags = call.flags & !flags::P2P;
        if call.op.is_point_to_point() {
            flags |= flags::P2P;
        }
        if usize::from(call.ndim) > MAX_DIMS {
            flags &= !flags::SHAPE;
        }
        let mut seq = 0;
        if let Some(group) = group {
            seq = self.next_in_group(group, call, flags);
            group[group::LAST_MONO].store(now, Ordering::Relaxed);
            group[group::LAST_CALL].store(id, Ordering::Relaxed);
        }
        let site = self.count_at_site(call.site, now);
        self.calls.remember(
            id,
            Known {
                group: group_id,
                op: call.op,
                seq,
            },
        );
        let frame = Frame {
            kind: inside::CALL,
            op: call.op,
            group: group_id,
            call: id,
            since: now,
            site,
        };
        self.record(
            Some(Change::Enter(frame)),
            Record {
                mono_ns: now,
                kind: RecordKind::Issued,
                op: call.op,
                dtype: call.dtype,
                reduce_op: call.reduce_op,
                flags,
                ndim: call.ndim.min(MAX_DIMS as u8),
                group: group_id,
                seq,
                call: id,
                site,
                tensors: call.tensors,
                root_or_peer: call.root_or_peer,
                tag: call.tag,
                numel: call.numel,
                dims: call.dims,
                ..Record::default()
            },
        );
        id
    }

    /// Counts the call in its group and gives its sequence number; 0: it has none.
    fn next_in_group(&self, group: &[AtomicU64; GROUP_WORDS], call: &Call, flags: u16) -> u64 {
        if call.op.number() >= FIRST_ENCLOSING {
            return 0;
        }
        if !call.op.is_point_to_point() {
            return group[group::ISSUED].fetch_add(1, Ordering::Relaxed) + 1;
        }
        group[group::P2P_ISSUED].fetch_add(1, Ordering::Relaxed);
        if flags & flags::ROOT == 0 {
            return 0;
        }
        index(call.group)
            .and_then(|i| self.peers.get(i))
            .and_then(OnceLock::get)
            .map_or(0, |peers| peers.next(call.op, call.root_or_peer))
    }

    /// Counts a call at its site and gives the site; 0 where there is no such site.
    fn count_at_site(&self, id: u32, now: u64) -> u32 {
        let Some(words) = self.site_words(id) else {
            return 0;
        };
        words[site::COUNT].fetch_add(1, Ordering::Relaxed);
        words[site::LAST_MONO].store(now, Ordering::Relaxed);
        id
    }

    /// Records split sizes of an `all_to_all`; `output`: those of the output. Long lists are cut.
    pub fn splits(&self, call: u64, output: bool, sizes: impl IntoIterator<Item = u32>) {
        let known = self.calls.recall(call);
        let mut sizes = sizes.into_iter().take(MOST_SPLITS);
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

    /// The call came back to its caller.
    pub fn returned(&self, call: u64) {
        let change = Change::Leave(inside::CALL, call);
        self.about_call(RecordKind::Returned, call, Some(change));
    }

    /// This thread is about to wait for a call (0: an unknown one) at a place (0: unknown).
    pub fn wait_begin(&self, call: u64, site: u32) {
        let known = self.calls.recall(call);
        let site = self.site_words(site).map_or(0, |_| site);
        let now = sys::monotonic_ns();
        let frame = Frame {
            kind: inside::WAIT,
            op: known.op,
            group: known.group,
            call,
            since: now,
            site,
        };
        self.record(
            Some(Change::Enter(frame)),
            Record {
                site,
                ..Self::of_call(RecordKind::WaitBegin, call, known, now)
            },
        );
    }

    /// That wait is over.
    pub fn wait_end(&self, call: u64) {
        self.count_completed(call);
        let change = Change::Leave(inside::WAIT, call);
        self.about_call(RecordKind::WaitEnd, call, Some(change));
    }

    /// The call is complete.
    pub fn completed(&self, call: u64) {
        self.count_completed(call);
        self.about_call(RecordKind::Completed, call, None);
    }

    fn about_call(&self, kind: RecordKind, call: u64, change: Option<Change>) {
        let known = self.calls.recall(call);
        let record = Self::of_call(kind, call, known, sys::monotonic_ns());
        self.record(change, record);
    }

    /// A record about a call that was issued.
    #[inline]
    fn of_call(kind: RecordKind, call: u64, known: Known, now: u64) -> Record {
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

    /// A training step begins. Gives its number, from 1.
    pub fn step(&self) -> u32 {
        let step = self.header()[header::STEP].fetch_add(1, Ordering::Relaxed) + 1;
        self.say(RecordKind::Step, 0, 0, 0);
        step as u32
    }

    /// A phase begins; its name is a [`Writer::string`].
    pub fn phase_begin(&self, name: u32) {
        self.say(RecordKind::PhaseBegin, 0, name, 0);
        self.phases.begin(&self.header()[header::PHASE], name);
    }

    /// A phase ends.
    pub fn phase_end(&self, name: u32) {
        self.say(RecordKind::PhaseEnd, 0, name, 0);
        self.phases.end(&self.header()[header::PHASE], name);
    }

    /// This process left the group.
    pub fn group_destroyed(&self, id: u32) {
        let Some(group) = self.group_words(id) else {
            return;
        };
        let now = sys::monotonic_ns();
        group[group::DESTROYED].store(now, Ordering::Relaxed);
        self.record(
            None,
            Record {
                mono_ns: now,
                kind: RecordKind::GroupDestroyed,
                group: id,
                ..Record::default()
            },
        );
    }

    /// An exception was seen: "Type: message".
    pub fn exception(&self, kind: ExceptionKind, value: &[u8], site: u32) {
        let value = self.string(value);
        let kind = i32::from(kind.number());
        self.say(RecordKind::Exception, kind, value, site);
    }

    /// The process is about to end by itself.
    pub fn exit(&self, code: i32, how: &[u8]) {
        let how = self.string(how);
        self.say(RecordKind::Exit, code, how, 0);
    }

    /// A remark about the capture itself.
    pub fn note(&self, kind: NoteKind, value: &[u8]) {
        let value = self.string(value);
        self.say(RecordKind::Note, i32::from(kind.number()), value, 0);
    }

    /// The program's input came to its end.
    pub fn input_ended(&self, site: u32) {
        self.say(RecordKind::InputEnded, 0, 0, site);
    }

    fn say(&self, kind: RecordKind, code: i32, text: u32, site: u32) {
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind,
                site: self.site_words(site).map_or(0, |_| site),
                text,
                code,
                ..Record::default()
            },
        );
    }

    /// Completes a record with what is known anyway, appends it, and says what the thread is inside
    /// of from now on.
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

    /// Puts a record into the ring.
    #[inline]
    fn append(&self, payload: &[u64; RECORD_WORDS - 1]) {
        let header = self.header();
        let ticket = header[header::RING_HEAD].fetch_add(1, Ordering::Relaxed);
        let index = ticket as usize & (self.capacities.records - 1);
        let Some([lock, words @ ..]) = self.entry::<RECORD_WORDS>(self.layout.ring_at, index)
        else {
            return;
        };
        let found = lock.load(Ordering::Relaxed);
        // Odd: its writer has slept for a lap. Later: this writer has.
        let claimed = found % 2 == 0
            && found < writing(ticket)
            && lock
                .compare_exchange(found, writing(ticket), Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !claimed {
            header[header::RING_DROPPED].fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A reader that sees one of the words below must see the claim as well.
        fence(Ordering::Release);
        for (word, value) in words.iter().zip(payload) {
            word.store(*value, Ordering::Relaxed);
        }
        lock.store(committed(ticket), Ordering::Release);
    }

    // --- Threads -------------------------------------------------------------------------------

    /// Runs `work` with what the calling thread knows of itself; registers it where need be.
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

    /// An entry for a new thread, and its generation.
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
        // The number of a dead thread, given again, must not stand there twice. Otherwise what dead
        // threads were inside of is kept while there is room.
        take_used(|_| true)
            .or_else(|| take(count, 1, capacity).map(|entry| (entry as u16, 0)))
            .or_else(|| take_used(sys::thread_lives))
    }

    // --- Words ---------------------------------------------------------------------------------

    #[inline]
    fn header(&self) -> &[AtomicU64; header::WORDS] {
        /// Takes what would be written beyond the end, which a map of a whole box does not have.
        static NOWHERE: [AtomicU64; header::WORDS] = [const { AtomicU64::new(0) }; header::WORDS];
        self.map.words().first_chunk().unwrap_or(&NOWHERE)
    }

    #[inline]
    fn entry<const N: usize>(&self, table_at: usize, index: usize) -> Option<&[AtomicU64; N]> {
        self.map.words().get(table_at + index * N..)?.first_chunk()
    }

    /// The words of a group that is published.
    #[inline]
    fn group_words(&self, id: u32) -> Option<&[AtomicU64; GROUP_WORDS]> {
        let index = index(id).filter(|&it| it < self.capacities.groups)?;
        self.entry::<GROUP_WORDS>(self.layout.groups_at, index)
            .filter(|words| words[group::NAME].load(Ordering::Relaxed) & PUBLISHED != 0)
    }

    /// The words of a site that is published.
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
}

/// What a record changes about what its thread is inside of.
#[derive(Clone, Copy, Debug)]
enum Change {
    Enter(Frame),
    /// Kind and call.
    Leave(u64, u64),
}

/// Sequence numbers of point-to-point calls per peer and direction: sends to a peer, then receives.
/// Most groups have none, and their words never take memory.
#[derive(Debug)]
struct Peers {
    issued: Option<Map>,
}

impl Peers {
    fn new(members: usize) -> Self {
        Self {
            // Without memory for it, these calls have no numbers.
            issued: Map::private(2 * members).ok(),
        }
    }

    /// The number of the next call to or from that peer; 0: there is no such peer.
    fn next(&self, op: Op, peer: i32) -> u64 {
        let counter = usize::try_from(peer)
            .ok()
            .and_then(|peer| {
                2_usize
                    .checked_mul(peer)?
                    .checked_add(usize::from(op != Op::Send))
            })
            .and_then(|at| self.issued.as_ref()?.words().get(at));
        counter.map_or(0, |counter| counter.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Phases that are begun and not ended, outermost first. They are the process's: two threads that
/// begin phases at once may get each other's, and that is all that can happen.
#[derive(Debug, Default)]
struct Phases {
    names: [AtomicU32; DEEPEST_PHASE],
    depth: AtomicUsize,
}

impl Phases {
    fn begin(&self, innermost: &AtomicU64, name: u32) {
        let depth = self.depth.load(Ordering::Relaxed);
        if let Some(cell) = self.names.get(depth) {
            cell.store(name, Ordering::Relaxed);
            self.depth.store(depth + 1, Ordering::Relaxed);
        }
        innermost.store(u64::from(name), Ordering::Relaxed);
    }

    /// Ends the phase, and those inside of it that nobody ended.
    fn end(&self, innermost: &AtomicU64, name: u32) {
        let names = self.names.get(..self.depth.load(Ordering::Relaxed));
        let found = names
            .unwrap_or_default()
            .iter()
            .rposition(|it| it.load(Ordering::Relaxed) == name);
        let depth = found.unwrap_or_else(|| names.map_or(0, <[_]>::len));
        self.depth.store(depth, Ordering::Relaxed);
        let outer = depth.checked_sub(1).and_then(|i| self.names.get(i));
        let outer = outer.map_or(0, |it| it.load(Ordering::Relaxed));
        innermost.store(u64::from(outer), Ordering::Relaxed);
    }
}

/// Adds `amount` to a counter of what is taken, unless that would exceed `capacity`; what it was.
fn take(counter: &AtomicU64, amount: u64, capacity: u64) -> Option<u64> {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |taken| {
            taken.checked_add(amount).filter(|&sum| sum <= capacity)
        })
        .ok()
}

/// Index of a definition by its number.
#[inline]
fn index(id: u32) -> Option<usize> {
    id.checked_sub(1).map(|index| index as usize)
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn check(capacities: &Capacities) -> Result<(), CreateError> {
    let Capacities {
        records,
        strings,
        heap_words,
        sites,
        groups,
        threads,
    } = *capacities;
    let bounded = records <= MAX_WORDS
        && heap_words <= MAX_WORDS
        && strings <= MAX_STRINGS
        && sites <= MAX_ENTRIES
        && groups <= MAX_ENTRIES;
    if bounded
        && records.is_power_of_two()
        && threads <= thread::MAX_THREADS
        && capacities.layout().words <= MAX_WORDS
    {
        Ok(())
    } else {
        Err(CreateError::BadCapacities)
    }
}

/// Fills everything that does not change any more; the magic comes last.
fn fill_header(map: &Map, layout: &Layout, options: &Options, process: &facts::Process) {
    let words = map.words();
    let set = |at: usize, value: u64| {
        if let Some(word) = words.get(at) {
            word.store(value, Ordering::Relaxed);
        }
    };
    let set_text = |range: std::ops::Range<usize>, value: &str| {
        let longest = range.len() * WORD;
        if let Some(words) = words.get(range) {
            text::store(words, text::cut(value.as_bytes(), longest));
        }
    };
    let plus_1 = |value: Option<u32>| value.map_or(0, |it| u64::from(it) + 1);
    let count = |value: usize| value as u64;

    set(header::VERSION, LAYOUT_VERSION);
    set(header::FILE_WORDS, count(layout.words));
    set(header::PID, u64::from(process.pid));
    set(header::START_TICKS, process.start_ticks);
    let (low, high) = process.boot_id;
    set(header::BOOT_ID, low);
    set(header::BOOT_ID + 1, high);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    set(header::ANCHOR_MONO, sys::monotonic_ns());
    set(
        header::ANCHOR_UNIX,
        unix.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(0)),
    );
    set(header::RANK_PLUS_1, plus_1(options.rank));
    set(header::WORLD_SIZE, options.world_size.map_or(0, u64::from));
    set(header::LOCAL_RANK_PLUS_1, plus_1(options.local_rank));
    set(header::ATTEMPT, u64::from(options.attempt));

    let capacities = &options.capacities;
    for (at, start, capacity, entries) in [
        (
            header::RING_AT,
            layout.ring_at,
            header::RING_CAPACITY,
            capacities.records,
        ),
        (
            header::STRINGS_AT,
            layout.strings_at,
            header::STRINGS_CAPACITY,
            capacities.strings,
        ),
        (
            header::HEAP_AT,
            layout.heap_at,
            header::HEAP_CAPACITY,
            capacities.heap_words,
        ),
        (
            header::SITES_AT,
            layout.sites_at,
            header::SITES_CAPACITY,
            capacities.sites,
        ),
        (
            header::GROUPS_AT,
            layout.groups_at,
            header::GROUPS_CAPACITY,
            capacities.groups,
        ),
        (
            header::THREADS_AT,
            layout.threads_at,
            header::THREADS_CAPACITY,
            capacities.threads,
        ),
    ] {
        set(at, count(start));
        set(capacity, count(entries));
    }
    set_text(header::JOB, &options.job);
    set_text(header::HOST, &process.host);
    set_text(header::LAYER, &options.layer);
    set_text(header::TOOL, ddp_doctor_proto::VERSION);
    if let Some(magic) = words.get(header::MAGIC) {
        magic.store(MAGIC, Ordering::Release);
    }
}

/// Why a box could not be made.
#[derive(Debug)]
pub enum CreateError {
    /// No directory has room for it, or takes it.
    NoRoom {
        /// What each directory answered.
        refusals: Vec<(PathBuf, io::Error)>,
        /// The file that now says so to whoever looks for this process.
        marker: Option<PathBuf>,
    },
    /// The system does not promise to tell us of forks, and a child must not write its parent's box.
    NoForkHandler(io::Error),
    /// The capacities make no box: records are no power of two, or a table is too long.
    BadCapacities,
}

impl std::fmt::Display for CreateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoRoom { refusals, .. } => {
                f.write_str("no room for a black box")?;
                for (directory, error) in refusals {
                    write!(f, "; {}: {error}", directory.display())?;
                }
                write!(f, " (set {} to a directory with room)", super::BOX_DIR)
            }
            Self::NoForkHandler(error) => write!(f, "cannot watch for forks: {error}"),
            Self::BadCapacities => f.write_str(
                "a black box needs a power of two of records, no more than 65535 sites, groups and \
                 threads, and no more than 256 MiB",
            ),
        }
    }
}

impl std::error::Error for CreateError {}
