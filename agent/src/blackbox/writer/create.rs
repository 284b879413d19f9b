//! Creation of a box.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ddp_doctor_proto::blackbox::{Capacities, LAYOUT_VERSION, Layout, MAGIC, WORD, header, thread};

use super::Writer;
use super::definitions::REMEMBERED_TEXTS;
use super::events::Phases;
use crate::blackbox::map::Map;
use crate::blackbox::place::{BoxName, NoBox, Place};
use crate::blackbox::protocol::ring;
use crate::blackbox::recent::RecentCalls;
use crate::blackbox::sites::Sites;
use crate::blackbox::{BOX_DIR, MAX_ENTRIES, MAX_STRINGS, MAX_WORDS, text};
use crate::{facts, sys};

/// Id of the next writer in this process. Threads store the id of the writer they registered with.
static WRITERS: AtomicU64 = AtomicU64::new(1);

/// Options for creating a box.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The reporting layer: "c10d", "nccl", "rust" or "c".
    pub layer: String,
    /// Job id.
    pub job: String,
    /// 0-based start count of the job.
    pub attempt: u32,
    /// Global rank, if known.
    pub rank: Option<u32>,
    /// Number of ranks, if known.
    pub world_size: Option<u32>,
    /// Rank within the node, if known.
    pub local_rank: Option<u32>,
    /// Distinguishes the world from others of the same job; empty: unknown.
    pub world: String,
    /// Capacities of the tables.
    pub capacities: Capacities,
}

impl Writer {
    /// Creates a box in the first directory of `place` that has room. If none has, a marker file is
    /// left for readers.
    pub fn create(place: &Place, options: &Options) -> Result<Self, CreateError> {
        let capacities = options.capacities;
        check(&capacities)?;
        let layout = capacities.layout();
        let process = facts::Process::this();
        let name = BoxName::new(process.pid, process.start_ticks, &options.layer);
        let make = |file: &File| {
            let map = Map::create(file, layout.words, layout.reserved_words)?;
            fill_header(&map, &layout, options, &process);
            Ok(map)
        };
        let marker = NoBox { pid: process.pid, rank: options.rank };
        let bytes = (layout.reserved_words * WORD) as u64;
        let (path, map) = place.create(&name, bytes, make).map_err(|refusals| {
            CreateError::NoRoom { refusals, marker: place.leave_marker(marker) }
        })?;
        place.remove_markers(marker);
        Ok(Self {
            map,
            path,
            layer: options.layer.as_str().into(),
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
}

/// Why a box could not be created.
#[derive(Debug)]
pub enum CreateError {
    /// No directory has room or is writable.
    NoRoom {
        /// The error for each directory.
        refusals: Vec<(PathBuf, io::Error)>,
        /// The marker file that was left.
        marker: Option<PathBuf>,
    },
    /// No fork handler could be registered, without which a child might write to its parent's box.
    NoForkHandler(io::Error),
    /// Invalid capacities: the number of records is 0 or no part of the maximum, or a table is too
    /// long.
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
                write!(f, " (set {BOX_DIR} to a directory with room)")
            }
            Self::NoForkHandler(error) => write!(f, "cannot watch for forks: {error}"),
            Self::BadCapacities => f.write_str(
                "a black box needs records and a small multiple of them at most, no more than 65535 \
                 sites, groups and threads, and no more than 256 MiB",
            ),
        }
    }
}

impl std::error::Error for CreateError {}

fn check(capacities: &Capacities) -> Result<(), CreateError> {
    let Capacities { records, max_records, strings, heap_words, sites, groups, threads } =
        *capacities;
    let bounded = max_records <= MAX_WORDS
        && heap_words <= MAX_WORDS
        && strings <= MAX_STRINGS
        && sites <= MAX_ENTRIES
        && groups <= MAX_ENTRIES;
    if bounded
        && ring::are_sizes(records, max_records)
        && threads <= thread::MAX_THREADS
        && capacities.layout().words <= MAX_WORDS
    {
        Ok(())
    } else {
        Err(CreateError::BadCapacities)
    }
}

/// Writes all constant header words, the magic last.
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
    set(header::PARENT_PID, u64::from(process.parent));
    let (low, high) = process.boot_id;
    set(header::BOOT_ID, low);
    set(header::BOOT_ID + 1, high);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    set(header::ANCHOR_MONO, sys::monotonic_ns());
    set(header::ANCHOR_UNIX, unix.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(0)));
    set(header::RANK_PLUS_1, plus_1(options.rank));
    set(header::WORLD_SIZE, options.world_size.map_or(0, u64::from));
    set(header::LOCAL_RANK_PLUS_1, plus_1(options.local_rank));
    set(header::ATTEMPT, u64::from(options.attempt));

    let capacities = &options.capacities;
    for (at, start, capacity, entries) in [
        (header::RING_AT, layout.ring_at, header::RING_CAPACITY, capacities.max_records),
        (header::STRINGS_AT, layout.strings_at, header::STRINGS_CAPACITY, capacities.strings),
        (header::HEAP_AT, layout.heap_at, header::HEAP_CAPACITY, capacities.heap_words),
        (header::SITES_AT, layout.sites_at, header::SITES_CAPACITY, capacities.sites),
        (header::GROUPS_AT, layout.groups_at, header::GROUPS_CAPACITY, capacities.groups),
        (header::THREADS_AT, layout.threads_at, header::THREADS_CAPACITY, capacities.threads),
    ] {
        set(at, count(start));
        set(capacity, count(entries));
    }
    set(header::RING_STEP, count(capacities.records));
    set(header::RING_SIZE, count(capacities.records));
    set_text(header::JOB, &options.job);
    set_text(header::HOST, &process.host);
    set_text(header::LAYER, &options.layer);
    set_text(header::TOOL, ddp_doctor_proto::VERSION);
    set_text(header::WORLD, &options.world);
    if let Some(magic) = words.get(header::MAGIC) {
        magic.store(MAGIC, Ordering::Release);
    }
}
