//! The contents of one dump, of any version from 2.1 on and in either dialect.
//!
//! `entries` reads an entry: `fields` finds its fields, `profiling_name` names its operation, and
//! `frames` its line. `packed` keeps them, and `backends` states how the calls of a backend are executed.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ddp_doctor_diagnosis::event::{Call, CallId, GroupInfo, ThreadId};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{DType, Op};

use super::document::{Invalid, Node};

mod backends;
mod entries;
mod fields;
mod frames;
mod packed;
mod profiling_name;

pub(super) use backends::{have_one_backend, silent_backends};
use entries::{EntryReader, counted, ranks, text};
use packed::Packer;
pub(super) use packed::{Entries, Numbers};

/// Maximum number of entries of a dump.
const MAX_ENTRIES: usize = 1 << 20;
/// Number of bytes of a file, compressed or not, that make room for one more entry: its times alone take as many.
const BYTES_OF_ENTRY: u64 = 4;
/// Maximum number of process groups of a dump.
const MAX_GROUPS: usize = 1 << 14;
/// Maximum number of members of all groups of a dump.
const MAX_MEMBERS: usize = 1 << 22;
/// Room that a kind of calls takes, in entries.
pub(super) const KIND: usize = 6;

/// What one process recorded.
#[derive(Debug, Default)]
pub(super) struct Dump {
    /// Version of the format, as written.
    pub(super) version: String,
    /// Process groups by name. Two groups of one name overwrite each other within a process.
    pub(super) groups: BTreeMap<Arc<str>, Config>,
    /// Progress by `pg_id`, a number local to the process.
    pub(super) status: BTreeMap<i64, Status>,
    /// Calls, oldest first; later without those that concern nothing. [`Dump::entries`] unpacks them.
    pub(super) packed: Entries,
    /// Number of calls that were read.
    pub(super) count: usize,
    /// Times of the first and of the latest call, in nanoseconds since the Unix epoch; 0: unknown.
    pub(super) period: (u64, u64),
    /// The ring was not full: the entries are all calls since the start of the process.
    pub(super) is_whole: bool,
    /// The first incomplete call of each group is among the entries.
    pub(super) shows_waits: bool,
    /// No calls are left out between those that are recorded.
    pub(super) is_contiguous: bool,
    /// Names of the threads that made calls.
    pub(super) threads: Vec<Arc<str>>,
    /// Kinds of calls, by their index: in the order of their first calls.
    pub(super) kinds: Vec<Kind>,
    /// Number of entries that were skipped because their fields are missing.
    pub(super) skipped: usize,
    /// Why the file ends too early, if it does.
    pub(super) cut: Option<String>,
    /// When its file was last changed, in nanoseconds since the Unix epoch. The dump was written then or
    /// before: a copy may be newer.
    pub(super) written: Option<u64>,
}

/// Members of a process group.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) description: Arc<str>,
    /// Global ranks in the order of their ranks within the group.
    pub(super) members: Arc<[u32]>,
}

/// Progress of a process in a group; `None`: not recorded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Status {
    pub(super) enqueued: Option<u64>,
    pub(super) started: Option<u64>,
    pub(super) completed: Option<u64>,
}

/// State of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Scheduled,
    Started,
    Completed,
}

/// The group of a call, as the call names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NamedGroup {
    pub(super) name: Arc<str>,
    pub(super) description: Arc<str>,
    pub(super) backend: Arc<str>,
    /// Threads of the host execute its calls.
    pub(super) is_on_host: bool,
}

/// One recorded call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// What it has in common with calls of the same line.
    pub(super) kind: &'a Kind,
    pub(super) record: i64,
    /// Sequence number among the collectives of the group, or among its messages.
    pub(super) seq: u64,
    pub(super) seq_of_messages: u64,
    /// Nanoseconds since the Unix epoch; 0: not recorded.
    pub(super) created: u64,
    /// When its watchdog found it complete, in the same unit; 0: not recorded.
    pub(super) completed: u64,
    pub(super) state: State,
    /// The watchdog no longer waits for it.
    pub(super) retired: bool,
    /// All members completed the collective alike, long ago: the diagnosis does not need it.
    pub(super) is_settled: bool,
}

impl std::ops::Deref for Entry<'_> {
    type Target = Kind;

    fn deref(&self) -> &Kind {
        self.kind
    }
}

/// Record number of calls that counters alone show.
const COUNTED: i64 = -1;

impl<'a> Entry<'a> {
    /// A call that was made at this time or before, and that counters alone show.
    pub(super) const fn counted(kind: &'a Kind, seq: u64, created: u64) -> Self {
        Self {
            kind,
            record: COUNTED,
            seq,
            seq_of_messages: 0,
            created,
            completed: 0,
            state: State::Scheduled,
            retired: false,
            is_settled: false,
        }
    }

    /// Whether counters alone show the call.
    pub(super) const fn is_counted(&self) -> bool {
        self.record == COUNTED
    }

    /// The call in its group, with what its peers must agree on.
    pub(super) fn content(&self, group: &Arc<GroupInfo>) -> Call {
        Call {
            group: Some(Arc::clone(group)),
            dtype: self.dtype,
            numel: self.numel,
            whole: self.pieces.map(|(whole, _)| whole),
            tensors: self.tensors,
            ..Call::new(CallId(0), Timestamp(self.created), ThreadId(self.thread), self.op)
        }
    }
}

/// What many calls of a process have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Kind {
    /// Number of the kind in its dump, beginning with 0.
    pub(super) index: u32,
    pub(super) pg: i64,
    pub(super) group: Arc<NamedGroup>,
    /// Index of its thread in [`Dump::threads`].
    pub(super) thread: u32,
    pub(super) op: Op,
    /// Whether this version knows the operation.
    pub(super) is_known: bool,
    /// It closes a coalesced group and has no tensors.
    pub(super) ends_group: bool,
    /// Own rank and peer within the group, for messages.
    pub(super) ends: Option<(u32, Option<u32>)>,
    pub(super) is_message: bool,
    pub(super) timeout_ms: Option<u64>,
    pub(super) dtype: DType,
    pub(super) numel: Option<u64>,
    pub(super) shape: Option<Arc<[u32]>>,
    pub(super) tensors: u32,
    /// Elements of the whole and of a rank's piece, for operations that gather or scatter pieces
    /// of equal size.
    pub(super) pieces: Option<(u64, u64)>,
    /// Elements that a rank sends to all members of its group in an `all_to_all`, and expects from them.
    pub(super) exchanged: Option<(u64, u64)>,
    pub(super) place: Option<Arc<Where>>,
    /// It is a message of `batch_isend_irecv`.
    pub(super) is_batched: bool,
    /// Hash of what the calls of all ranks have to agree on.
    pub(super) signature: u64,
}

impl Dump {
    /// Reads a dump from the data of a file; `room` is for the entries of all dumps.
    pub(super) fn new(root: Node<'_>, cut: Option<String>, room: &Room) -> Result<Self, Invalid> {
        let keys = ["entries", "pg_config", "pg_status", "version"];
        if !root.is_dict() || (cut.is_none() && !keys.iter().any(|key| root.get(key).is_some())) {
            return Err(Invalid(
                "it is not a Flight Recorder dump: expected a dictionary with `version`, `pg_config` \
                 and `entries`"
                    .into(),
            ));
        }
        let mut reader = EntryReader::new();
        let mut dump = Self {
            version: text(root, "version").unwrap_or_default().to_owned(),
            cut,
            ..Self::default()
        };
        let mut members = 0;
        for key in ["pg_config", "pg_status"] {
            let count = root.get(key).map_or(0, |groups| groups.pairs().iter().len());
            if count > MAX_GROUPS {
                let text = format!("it has {count} process groups, of which {MAX_GROUPS} are read");
                dump.cut.get_or_insert(text);
            }
        }
        let groups = |key| {
            let pairs = root.get(key).into_iter().flat_map(|it| it.pairs().iter());
            pairs.take(MAX_GROUPS)
        };
        for (name, config) in groups("pg_config") {
            let Some(name) = name.text() else { continue };
            let config = Config {
                description: reader.text(text(config, "desc").unwrap_or_default()),
                members: room.share(&config.get("ranks").map(ranks).unwrap_or_default()),
            };
            members += config.members.len();
            if members > MAX_MEMBERS {
                let text = format!("its process groups have more than {MAX_MEMBERS} members");
                return Err(Invalid(text));
            }
            dump.groups.insert(reader.text(name), config);
        }
        for (id, status) in groups("pg_status") {
            let Some(id) = id.int() else { continue };
            let count = |key| counted(status.get(key)?.int()?);
            let status = Status {
                enqueued: count("last_enqueued_collective"),
                started: count("last_started_collective"),
                completed: count("last_completed_collective"),
            };
            dump.status.insert(id, status);
        }
        let entries = root.get("entries");
        let count = entries.map_or(0, |it| it.items().len());
        let accepted = room.take(count.min(MAX_ENTRIES));
        if accepted < count {
            let text = format!("its {count} entries are too many");
            dump.cut.get_or_insert(text);
        }
        let entries = entries.into_iter().flat_map(Node::items).take(accepted);
        let mut kinds = 0;
        // Entries that may still be read.
        let mut left = accepted;
        let mut packer = Packer::default();
        let mut record = None;
        let (mut begins, mut has_complete) = (false, false);
        dump.is_contiguous = true;
        for entry in entries.filter(|entry| !entry.is_cut()) {
            if left == 0 {
                let text =
                    "its calls are too different from each other: the later ones are left out";
                dump.cut.get_or_insert(text.into());
                break;
            }
            left -= 1;
            let entry = reader.entry(entry);
            if root.is_exhausted() {
                break;
            }
            if let Some(entry) = entry {
                match record {
                    None => begins = entry.record == 0,
                    Some(last) => dump.is_contiguous &= entry.record == i64::wrapping_add(last, 1),
                }
                record = Some(entry.record);
                let (first, last) = dump.period;
                let is_first = entry.created > 0 && (first == 0 || entry.created < first);
                dump.period =
                    (if is_first { entry.created } else { first }, last.max(entry.created));
                has_complete |= entry.is_complete();
                packer.push(&entry);
            } else {
                dump.skipped += 1;
            }
            if reader.kinds.len() > kinds {
                // Without further room, a kind takes that of entries.
                left = left.saturating_sub(KIND - room.take(KIND));
            }
            kinds = reader.kinds.len();
        }
        if root.is_exhausted() {
            let text = "its values refer to each other too often: later ones are left out";
            dump.cut.get_or_insert(text.into());
        }
        dump.packed = packer.finish();
        dump.kinds = reader.kinds;
        dump.threads = reader.threads;
        dump.count = dump.packed.len();
        // A dump of incomplete calls alone leaves others out before its first one.
        dump.is_contiguous &= dump.skipped == 0 && (begins || has_complete);
        dump.is_whole = dump.is_contiguous && dump.cut.is_none() && begins;
        Ok(dump)
    }

    /// The calls, oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.packed.iter(&self.kinds)
    }

    /// Number of entries whose kind is like this.
    pub(super) fn count(&self, is: impl Fn(&Kind) -> bool) -> usize {
        let kinds = self.kinds.iter().filter(|kind| is(kind));
        kinds.map(|kind| self.packed.numbers(kind).count as usize).sum()
    }

    /// Whether it shows nothing of the process but its groups.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.status.is_empty()
    }

    /// Whether calls are missing among the entries that the file contained.
    pub(super) const fn is_partial(&self) -> bool {
        self.cut.is_some() || self.skipped > 0
    }

    /// Number of calls that are not among the entries, at least: they could not be read, or a counter
    /// shows incomplete calls of a group without entries.
    pub(super) fn lost(&self) -> u64 {
        let is_open = |it: &Status| it.enqueued > it.completed && it.completed.is_some();
        let mut open = self.status.iter().filter(|(_, status)| is_open(status));
        let is_counted_alone = open.any(|(id, _)| self.kinds.iter().all(|kind| kind.pg != *id));
        self.skipped as u64 + u64::from(self.cut.is_some()) + u64::from(is_counted_alone)
    }

    /// Whether the recorder was not in use: another one may have recorded the calls.
    pub(super) fn is_unused(&self) -> bool {
        self.is_empty() && self.groups.is_empty()
    }
}

impl Entry<'_> {
    /// Whether its device completed it.
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Completed
    }
}

/// Maximum number of bytes of dumps that are decoded at once, unless one dump has more: decoded, a byte takes up to 32.
const MAX_DECODED: u64 = 64 << 20;

/// Room for the entries of all dumps, and what the dumps share.
#[derive(Debug)]
pub(super) struct Room {
    entries: AtomicUsize,
    /// Room for entries that files may still add, by their sizes.
    more_entries: AtomicUsize,
    bytes: AtomicU64,
    /// Number of bytes that are being decoded.
    decoded: Mutex<u64>,
    is_decoded: Condvar,
    /// Lists of members: every dump of a job has that of the group of all ranks.
    members: Mutex<HashSet<Arc<[u32]>>>,
}

impl Room {
    /// Room for this many entries and bytes.
    pub(super) fn new(entries: usize, bytes: u64) -> Self {
        Self {
            entries: AtomicUsize::new(entries),
            more_entries: AtomicUsize::new(0),
            bytes: AtomicU64::new(bytes),
            decoded: Mutex::default(),
            is_decoded: Condvar::new(),
            members: Mutex::default(),
        }
    }

    /// Room that grows with the sizes of files, up to this many entries.
    pub(super) fn growing(entries: usize, bytes: u64) -> Self {
        let first = entries.min(MAX_ENTRIES);
        Self { more_entries: AtomicUsize::new(entries - first), ..Self::new(first, bytes) }
    }

    /// Adds the room that a file of this many bytes explains.
    pub(super) fn grow(&self, bytes: u64) {
        let wanted = usize::try_from(bytes / BYTES_OF_ENTRY).unwrap_or(usize::MAX);
        let added = take(&self.more_entries, wanted);
        self.entries.fetch_add(added, Ordering::Relaxed);
    }

    /// Decodes a dump of this many bytes, once there is memory for it.
    pub(super) fn decode<T>(&self, bytes: u64, decode: impl FnOnce() -> T) -> T {
        let decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        let is_too_much = |decoded: &mut u64| *decoded > 0 && *decoded + bytes > MAX_DECODED;
        let waited = self.is_decoded.wait_while(decoded, is_too_much);
        *waited.unwrap_or_else(PoisonError::into_inner) += bytes;
        let _decoding = Decoding { room: self, bytes };
        decode()
    }

    /// Takes room for bytes that were read. Returns whether there was room.
    pub(super) fn take_bytes(&self, count: u64) -> bool {
        let rest = |left: u64| left.checked_sub(count);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
    }

    /// A list of members, stored once for all dumps.
    fn share(&self, members: &[u32]) -> Arc<[u32]> {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(members) {
            return Arc::clone(known);
        }
        let members = Arc::from(members);
        known.insert(Arc::clone(&members));
        members
    }

    /// Takes room for `wanted` entries, or what is left.
    pub(super) fn take(&self, wanted: usize) -> usize {
        take(&self.entries, wanted)
    }
}

/// Bytes that are being decoded, which make room for others at the end, also after a panic.
struct Decoding<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Drop for Decoding<'_> {
    fn drop(&mut self) {
        *self.room.decoded.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.room.is_decoded.notify_all();
    }
}

/// Subtracts `wanted`, or what is left. Returns what was subtracted.
fn take(left: &AtomicUsize, wanted: usize) -> usize {
    let rest = |left: usize| Some(left.saturating_sub(wanted));
    let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    wanted.min(before.unwrap_or(0))
}
