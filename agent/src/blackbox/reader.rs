//! The reading side: of a box that is being written, that a dead process left, or that somebody
//! copied, cut or forged. Nothing in the file is believed: every offset, number and length is
//! checked, and what makes no sense is left out.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use ddp_doctor_proto::blackbox::{
    GROUP_WORDS, PUBLISHED, RECORD_WORDS, Record, SITE_WORDS, THREAD_WORDS, WORD, box_flags,
    committed, group, header, inside, members, site, splits, string, thread,
};
use ddp_doctor_proto::{Op, RecordKind};

use super::map::Map;
use super::open::{self, OpenError, Table, Tables};
use super::{MAX_MEMBERS, text};

/// How long a record may be on its way while others overtake it. A writer that is interrupted for
/// longer has its record counted as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// Records that are copied before the definitions they need are looked for.
const BATCH: usize = 256;
/// Members of all groups of a box together: what a forged box can make us hold.
const MOST_MEMBERS: usize = 64 * MAX_MEMBERS;
/// Tickets end here. No writer gets that far; a forged head must not overflow.
const LAST_TICKET: u64 = 1 << 62;
/// Threads that are told apart; for the same reason.
const MOST_THREADS: usize = 1 << 20;
/// How often a thread's words are read again because they changed meanwhile.
const RETRIES: usize = 64;

/// Follows one black box.
///
/// It never waits for the writer, and never asks anything of it.
#[derive(Debug)]
pub struct Reader {
    map: Map,
    file: File,
    tables: Tables,
    /// Ticket of the next record.
    next: u64,
    /// Tickets below were delivered or counted as lost.
    passed: u64,
    lost: u64,
    /// A head that was seen, and when: what is missing below it long afterwards will not come.
    seen: Option<(u64, Instant)>,
    strings: Progress,
    sites: Progress,
    groups: Progress,
    /// First words of the entries of threads as they were delivered.
    threads: Vec<u64>,
    /// Numbers of all threads that were delivered.
    known_threads: HashSet<u32>,
    /// Bytes of the texts that were delivered.
    text_bytes: usize,
    /// Members of the groups that were delivered.
    members: usize,
    batch: Vec<Copied>,
}

/// What [`Reader::poll`] delivers. Definitions come before the records that use them.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A text.
    String {
        /// Its number, from 1.
        id: u32,
        /// The text, without what is no UTF-8.
        value: String,
    },
    /// A place in the program.
    Site {
        /// Its number, from 1.
        id: u32,
        /// File; empty: unknown.
        file: String,
        /// Function; empty: unknown.
        function: String,
        /// Line, from 1; 0: unknown.
        line: u32,
    },
    /// A process group.
    Group {
        /// Its number, from 1.
        id: u32,
        /// The name that its members share.
        name: String,
        /// The framework's description.
        description: String,
        /// "gloo", "nccl", …
        backend: String,
        /// The n-th initialisation of the world, from 0.
        epoch: u32,
        /// The n-th creation of the same epoch, name and members, from 0.
        ordinal: u32,
        /// Global ranks in group order.
        members: Vec<u32>,
    },
    /// A thread. Its number is its own: a later thread in the same entry has another one.
    Thread {
        /// Its number, never 0.
        id: u32,
        /// Its number in the operating system; 0: it was gone before it was seen.
        tid: u32,
        /// Its name.
        name: String,
    },
    /// A record.
    Record(ReadRecord),
    /// So many records were overwritten before they were read, or never completed.
    Lost(u64),
    /// How far a group came: once for each group, when the writer is dead.
    Frontier(Frontier),
}

/// A record, with what its numbers of texts stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRecord {
    /// Names the record within its box.
    pub ticket: u64,
    /// The record. Of a piece of splits, only the fields that such a record has.
    pub record: Record,
    /// Its text, meaning by kind.
    pub text: String,
    /// The phase it happened in; empty: none.
    pub phase: String,
    /// Of a piece of splits: the sizes. `record.seq` says at which index they begin.
    pub splits: Vec<u32>,
}

/// Cumulative counters of a group, which outlive the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    /// The group.
    pub group: u32,
    /// Highest sequence number of a collective that was issued; 0: none.
    pub issued: u64,
    /// Point-to-point calls that were issued, all peers together.
    pub p2p_issued: u64,
}

/// Whose box it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained at the header's words")]
pub struct Identity {
    pub pid: u32,
    pub start_ticks: u64,
    pub boot_id: [u8; 16],
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub local_rank: Option<u32>,
    pub attempt: u32,
    pub job: String,
    pub host: String,
    pub layer: String,
    pub tool: String,
    pub anchor_mono_ns: u64,
    pub anchor_unix_ns: u64,
    /// The process said that it writes no more.
    pub closed: bool,
}

/// A thread at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// What records call it.
    pub id: u32,
    /// What the operating system calls it.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// What it is inside of; `None`: the user's own code, or it changed too fast to be read.
    pub inside: Option<Inside>,
}

/// What a thread is inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The op of the call.
    pub op: Op,
    /// Its group; 0: none.
    pub group: u32,
    /// The call; 0: unknown.
    pub call: u64,
    /// Where; 0: unknown.
    pub site: u32,
    /// Since when, on the monotonic clock.
    pub since_mono_ns: u64,
    /// It waits for a call that it issued earlier.
    pub is_wait: bool,
}

impl Reader {
    /// Opens a box.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let file = open::file(path)?;
        let (tables, words) = open::check(path, &file)?;
        let map = Map::read_only(&file, words).map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            map,
            file,
            tables,
            next: 0,
            passed: 0,
            lost: 0,
            seen: None,
            strings: Progress::default(),
            sites: Progress::default(),
            groups: Progress::default(),
            threads: vec![0; tables.threads.capacity],
            known_threads: HashSet::new(),
            text_bytes: 0,
            members: 0,
            batch: Vec::new(),
        })
    }

    /// Whose box it is, as far as the box knows by now.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let word = |at| self.header(at);
        let narrow = |at| u32::try_from(word(at)).ok();
        let plus_1 = |at| narrow(at).and_then(|it| it.checked_sub(1));
        let mut boot_id = [0; 16];
        for (to, from) in boot_id.iter_mut().zip(
            [word(header::BOOT_ID), word(header::BOOT_ID + 1)]
                .into_iter()
                .flat_map(u64::to_le_bytes),
        ) {
            *to = from;
        }
        Identity {
            pid: narrow(header::PID).unwrap_or(0),
            start_ticks: word(header::START_TICKS),
            boot_id,
            rank: plus_1(header::RANK_PLUS_1),
            world_size: narrow(header::WORLD_SIZE).filter(|&it| it != 0),
            local_rank: plus_1(header::LOCAL_RANK_PLUS_1),
            attempt: narrow(header::ATTEMPT).unwrap_or(0),
            job: self.header_text(header::JOB),
            host: self.header_text(header::HOST),
            layer: self.header_text(header::LAYER),
            tool: self.header_text(header::TOOL),
            anchor_mono_ns: word(header::ANCHOR_MONO),
            anchor_unix_ns: word(header::ANCHOR_UNIX),
            closed: word(header::FLAGS) & box_flags::CLOSED != 0,
        }
    }

    /// Changes whenever [`Reader::identity`] may have changed.
    #[must_use]
    pub fn identity_version(&self) -> u64 {
        self.header(header::IDENTITY_VERSION)
    }

    /// Delivers new definitions and up to `budget` records, in order; how many records.
    ///
    /// Where a record is still being written, it stops before it and goes on at a later call; after
    /// a while without it that record is lost.
    pub fn poll(&mut self, budget: usize, sink: &mut impl FnMut(Item)) -> usize {
        let mut delivered = 0;
        loop {
            let copied = self.copy((budget - delivered).min(BATCH), false);
            self.deliver(sink);
            delivered += copied;
            if copied == 0 || delivered >= budget {
                return delivered;
            }
        }
    }

    /// Delivers everything that is left of a dead writer, and how far each group came.
    pub fn finish(&mut self, sink: &mut impl FnMut(Item)) {
        // A writer that lives nonetheless must not keep us here.
        let end = self.head();
        loop {
            self.copy(BATCH, true);
            self.deliver(sink);
            if self.next >= end {
                break;
            }
        }
        for frontier in self.frontiers() {
            sink(Item::Frontier(frontier));
        }
    }

    /// Goes back to the oldest record that is left; definitions come again too. What was delivered
    /// before and is overwritten by now is not counted as lost.
    pub fn rewind(&mut self) {
        self.strings = Progress::default();
        self.sites = Progress::default();
        self.groups = Progress::default();
        self.text_bytes = 0;
        self.members = 0;
        self.threads.fill(0);
        self.known_threads.clear();
        self.rewind_to(0);
    }

    /// Goes back to a record, or to the oldest one after it that is left. Definitions do not come
    /// again. Never goes forward.
    pub fn rewind_to(&mut self, ticket: u64) {
        let oldest = self.oldest(self.head()).min(self.passed);
        self.next = ticket.max(oldest).min(self.next);
    }

    /// Records lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Definitions for which the box had no room: what records say of them is missing.
    #[must_use]
    pub fn definitions_dropped(&self) -> u64 {
        self.header(header::DEFINITIONS_DROPPED)
    }

    /// Every thread, and what it is inside of.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadState> {
        let used = self.count(header::THREADS_COUNT, self.tables.threads);
        (0..used)
            .filter_map(|index| {
                let words = self.thread_words(index)?;
                let first = words[thread::TID].load(Ordering::Acquire);
                let (tid, generation) = thread::parse(first)?;
                let state = ThreadState {
                    id: thread::id(index as u16, generation),
                    tid,
                    name: self.text(words[thread::NAME].load(Ordering::Relaxed) as u32),
                    inside: read_inside(words),
                };
                fence(Ordering::Acquire);
                // Otherwise the entry has passed to another thread, which comes at the next call.
                (words[thread::TID].load(Ordering::Relaxed) == first).then_some(state)
            })
            .collect()
    }

    /// How far each group came.
    #[must_use]
    pub fn frontiers(&self) -> Vec<Frontier> {
        let used = self.count(header::GROUPS_COUNT, self.tables.groups);
        (0..used)
            .filter_map(|index| {
                let words = self.group_words(index)?;
                (words[group::NAME].load(Ordering::Acquire) & PUBLISHED != 0).then(|| Frontier {
                    group: index as u32 + 1,
                    issued: words[group::ISSUED].load(Ordering::Relaxed),
                    p2p_issued: words[group::P2P_ISSUED].load(Ordering::Relaxed),
                })
            })
            .collect()
    }

    /// Tells the writer who reads its box. A box that may only be read is not told.
    pub fn claim(&self, pid: u32, start_ticks: u64) {
        // Through the file and not the map: the map is read-only, and both are the same memory. The
        // time comes first, so that a new pid never stands beside an old time.
        for (at, value) in [
            (header::READER_START_TICKS, start_ticks),
            (header::READER_PID, u64::from(pid)),
        ] {
            if self
                .file
                .write_all_at(&value.to_le_bytes(), (at * WORD) as u64)
                .is_err()
            {
                return;
            }
        }
    }

    /// Who said that he reads the box: pid and start time.
    #[must_use]
    pub fn claimed_by(&self) -> Option<(u32, u64)> {
        let pid = u32::try_from(self.header(header::READER_PID)).ok()?;
        (pid != 0).then(|| (pid, self.header(header::READER_START_TICKS)))
    }

    // --- Records -------------------------------------------------------------------------------

    fn head(&self) -> u64 {
        self.map
            .words()
            .get(header::RING_HEAD)
            .map_or(0, |head| head.load(Ordering::Acquire))
            .min(LAST_TICKET)
    }

    /// The oldest ticket whose slot may still hold it.
    fn oldest(&self, head: u64) -> u64 {
        head.saturating_sub(self.tables.ring.capacity as u64)
    }

    /// Copies up to `limit` records into the batch, and how many were lost between them; how many
    /// records. `dead`: what is not there now never will be.
    fn copy(&mut self, limit: usize, dead: bool) -> usize {
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
    fn deliver(&mut self, sink: &mut impl FnMut(Item)) {
        self.deliver_strings(sink);
        self.deliver_sites(sink);
        self.deliver_groups(sink);
        self.deliver_threads(sink);
        let mut batch = std::mem::take(&mut self.batch);
        for copied in batch.drain(..) {
            match copied {
                Copied::Lost(count) => sink(Item::Lost(count)),
                Copied::Record(ticket, payload) => {
                    let read = self.resolve(ticket, &payload);
                    self.deliver_gone_thread(read.record.thread, sink);
                    sink(Item::Record(read));
                }
            }
        }
        self.batch = batch;
    }

    fn resolve(&self, ticket: u64, payload: &[u64; RECORD_WORDS - 1]) -> ReadRecord {
        let record = Record::unpack(payload);
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
            splits: Vec::new(),
        }
    }

    // --- Definitions ---------------------------------------------------------------------------

    fn deliver_strings(&mut self, sink: &mut impl FnMut(Item)) {
        let used = self.count(header::STRINGS_COUNT, self.tables.strings);
        // What is no UTF-8 grows when it is replaced: by three bytes for one.
        let longest = self.tables.heap.capacity * WORD * 3;
        let mut text_bytes = self.text_bytes;
        let mut progress = std::mem::take(&mut self.strings);
        progress.advance(used, |index| {
            let Some(entry) = self.string_entry(index as u32 + 1) else {
                return false;
            };
            if entry & string::BINARY == 0 {
                let mut value = self.text(index as u32 + 1);
                // Texts of a forged box may lie upon each other, and together be endless.
                text_bytes = text_bytes.saturating_add(value.len());
                if text_bytes > longest {
                    value.clear();
                }
                sink(Item::String {
                    id: index as u32 + 1,
                    value,
                });
            }
            true
        });
        self.text_bytes = text_bytes;
        self.strings = progress;
    }

    fn deliver_sites(&mut self, sink: &mut impl FnMut(Item)) {
        let table = self.tables.sites;
        let used = self.count(header::SITES_COUNT, table);
        let mut progress = std::mem::take(&mut self.sites);
        progress.advance(used, |index| {
            let Some(words) = entry::<SITE_WORDS>(self.map.words(), table, index) else {
                return false;
            };
            let file = words[site::FILE].load(Ordering::Acquire);
            if file & PUBLISHED == 0 {
                return false;
            }
            let (function, line) = halves(&words[site::FUNCTION_AND_LINE]);
            sink(Item::Site {
                id: index as u32 + 1,
                file: self.text(file as u32),
                function: self.text(function),
                line,
            });
            true
        });
        self.sites = progress;
    }

    fn deliver_groups(&mut self, sink: &mut impl FnMut(Item)) {
        let used = self.count(header::GROUPS_COUNT, self.tables.groups);
        let mut progress = std::mem::take(&mut self.groups);
        let mut taken = self.members;
        progress.advance(used, |index| {
            let Some(words) = self.group_words(index) else {
                return false;
            };
            let name = words[group::NAME].load(Ordering::Acquire);
            if name & PUBLISHED == 0 {
                return false;
            }
            let (description, backend) = halves(&words[group::DESCRIPTION_AND_BACKEND]);
            let (member_bytes, epoch) = halves(&words[group::MEMBERS_AND_EPOCH]);
            let (ordinal, size) = halves(&words[group::ORDINAL_AND_SIZE]);
            let limit = (size as usize).min(MAX_MEMBERS).min(MOST_MEMBERS - taken);
            let members = members::decode(&self.bytes(member_bytes, string::MAX_BYTES), limit)
                .filter(|members| members.len() == size as usize)
                .unwrap_or_default();
            taken += members.len();
            sink(Item::Group {
                id: index as u32 + 1,
                name: self.text(name as u32),
                description: self.text(description),
                backend: self.text(backend),
                epoch,
                ordinal,
                members,
            });
            true
        });
        self.members = taken;
        self.groups = progress;
    }

    fn deliver_threads(&mut self, sink: &mut impl FnMut(Item)) {
        let used = self.count(header::THREADS_COUNT, self.tables.threads);
        let mut delivered = std::mem::take(&mut self.threads);
        for (index, delivered) in delivered.iter_mut().enumerate().take(used) {
            let Some(words) = self.thread_words(index) else {
                break;
            };
            let first = words[thread::TID].load(Ordering::Acquire);
            let Some((tid, generation)) = thread::parse(first).filter(|_| first != *delivered)
            else {
                continue;
            };
            let name = words[thread::NAME].load(Ordering::Relaxed) as u32;
            *delivered = first;
            let id = thread::id(index as u16, generation);
            if self.known_threads.len() < MOST_THREADS {
                self.known_threads.insert(id);
            }
            sink(Item::Thread {
                id,
                tid,
                name: self.text(name),
            });
        }
        self.threads = delivered;
    }

    /// A record may be of a thread whose entry has passed to another one before anybody looked.
    fn deliver_gone_thread(&mut self, id: u32, sink: &mut impl FnMut(Item)) {
        let possible = thread::parse_id(id)
            .is_some_and(|(entry, _)| usize::from(entry) < self.tables.threads.capacity);
        if possible && self.known_threads.len() < MOST_THREADS && self.known_threads.insert(id) {
            sink(Item::Thread {
                id,
                tid: 0,
                name: String::new(),
            });
        }
    }

    // --- Words ---------------------------------------------------------------------------------

    fn header(&self, at: usize) -> u64 {
        self.map
            .words()
            .get(at)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Entries of a table that are taken.
    fn count(&self, at: usize, table: Table) -> usize {
        usize::try_from(self.header(at)).map_or(table.capacity, |it| it.min(table.capacity))
    }

    fn header_text(&self, range: Range<usize>) -> String {
        let bytes = self
            .map
            .words()
            .get(range)
            .map(|words| text::load(words, words.len() * WORD))
            .unwrap_or_default();
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    fn group_words(&self, index: usize) -> Option<&[AtomicU64; GROUP_WORDS]> {
        entry(self.map.words(), self.tables.groups, index)
    }

    fn thread_words(&self, index: usize) -> Option<&[AtomicU64; THREAD_WORDS]> {
        entry(self.map.words(), self.tables.threads, index)
    }

    fn string_entry(&self, id: u32) -> Option<u64> {
        let index = id.checked_sub(1)? as usize;
        let [word] = entry::<1>(self.map.words(), self.tables.strings, index)?;
        let entry = word.load(Ordering::Acquire);
        (entry & PUBLISHED != 0).then_some(entry)
    }

    /// A text by its number; empty where there is none.
    fn text(&self, id: u32) -> String {
        let bytes = self.bytes(id, string::MAX_TEXT);
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    fn bytes(&self, id: u32, longest: usize) -> Vec<u8> {
        let find = || {
            let (at, length) = string::parse(self.string_entry(id)?)?;
            let heap = self.tables.heap;
            let end = (at as usize).checked_add(text::words_for(length as usize))?;
            if end > heap.capacity {
                return None;
            }
            let words = self.map.words().get(heap.at + at as usize..heap.at + end)?;
            Some(text::load(words, (length as usize).min(longest)))
        };
        find().unwrap_or_default()
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
enum Copied {
    Record(u64, [u64; RECORD_WORDS - 1]),
    Lost(u64),
}

/// Which entries of a table were delivered: all up to a point but a few that were taken and are not
/// published yet.
#[derive(Debug, Default)]
struct Progress {
    next: usize,
    holes: Vec<usize>,
}

impl Progress {
    /// Offers every entry that was not delivered; `deliver` says whether it was there.
    fn advance(&mut self, used: usize, mut deliver: impl FnMut(usize) -> bool) {
        self.holes.retain(|&index| !deliver(index));
        for index in self.next..used {
            if !deliver(index) {
                self.holes.push(index);
            }
        }
        self.next = self.next.max(used);
    }
}

fn entry<const N: usize>(
    words: &[AtomicU64],
    table: Table,
    index: usize,
) -> Option<&[AtomicU64; N]> {
    if index >= table.capacity {
        return None;
    }
    words.get(table.at + index * N..)?.first_chunk()
}

fn halves(word: &AtomicU64) -> (u32, u32) {
    let word = word.load(Ordering::Relaxed);
    (word as u32, (word >> 32) as u32)
}

fn read_inside(words: &[AtomicU64; THREAD_WORDS]) -> Option<Inside> {
    for _ in 0..RETRIES {
        let before = words[thread::LOCK].load(Ordering::Acquire);
        let what = words[thread::INSIDE].load(Ordering::Relaxed);
        let call = words[thread::CALL].load(Ordering::Relaxed);
        let since_mono_ns = words[thread::SINCE].load(Ordering::Relaxed);
        let site = words[thread::SITE].load(Ordering::Relaxed) as u32;
        fence(Ordering::Acquire);
        if before % 2 == 1 || words[thread::LOCK].load(Ordering::Relaxed) != before {
            std::hint::spin_loop();
            continue;
        }
        let is_wait = match what & 0xff {
            inside::CALL => false,
            inside::WAIT => true,
            _ => return None,
        };
        return Some(Inside {
            op: Op::from_number((what >> 8) as u8),
            group: (what >> 32) as u32,
            call,
            site,
            since_mono_ns,
            is_wait,
        });
    }
    None
}
