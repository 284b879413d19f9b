//! Opens a file that may be a black box, and locates its tables.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::blackbox::{
    GROUP_WORDS, LAYOUT_VERSION, MAGIC, RECORD_WORDS, SITE_WORDS, THREAD_WORDS, WORD, header,
    thread,
};

use super::protocol::ring;
use super::{MAX_ENTRIES, MAX_STRINGS, MAX_WORDS};
use crate::files::{self, Access, Dir};

/// Why a file cannot be read as a black box.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub enum OpenError {
    /// An operating system error.
    Io { path: PathBuf, source: io::Error },
    /// The file is not a black box.
    NotABox { path: PathBuf },
    /// A newer version of ddp-doctor wrote it.
    NewerLayout { path: PathBuf, found: u64 },
    /// The file is shorter than when it was created; lengths in bytes.
    Truncated { path: PathBuf, expected: u64, found: u64 },
    /// The header is inconsistent.
    Damaged { path: PathBuf, what: &'static str },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::NotABox { path } => write!(
                f,
                "{} is not a black box of a version that ddp-doctor {} reads (wrong magic number): if \
                 another version wrote it, read it with that version",
                path.display(),
                ddp_doctor_proto::VERSION,
            ),
            Self::NewerLayout { path, found } => write!(
                f,
                "{} has layout {found}, and this is ddp-doctor {}, which reads layouts up to \
                 {LAYOUT_VERSION}: read it with the ddp-doctor that wrote it, or a later one",
                path.display(),
                ddp_doctor_proto::VERSION,
            ),
            Self::Truncated { path, expected, found } => write!(
                f,
                "{} is truncated ({found} of {expected} bytes): copy it again",
                path.display()
            ),
            Self::Damaged { path, what } => write!(
                f,
                "{} is a damaged black box ({what}): copy it again, or leave it out",
                path.display()
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Position and capacity of a table, in words and entries. Checked against the length of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) at: usize,
    pub(super) capacity: usize,
}

/// Position and sizes of the ring, in words and records. The capacity is what the file has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingTable {
    pub(super) at: usize,
    pub(super) step: usize,
    pub(super) capacity: usize,
}

/// The tables of a box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    pub(super) ring: RingTable,
    pub(super) strings: Table,
    pub(super) heap: Table,
    pub(super) sites: Table,
    pub(super) groups: Table,
    pub(super) threads: Table,
}

/// Opens a file of any user for reading.
pub(super) fn any(path: &Path) -> Result<File, OpenError> {
    let opened =
        files::reach(path).and_then(|it| files::regular(&it.into(), path)).map(|(file, _)| file);
    opened.map_err(|source| OpenError::Io { path: path.to_owned(), source })
}

/// Opens a file of this user for reading, and for writing if permitted: a reader records its process
/// in the box.
pub(super) fn own(path: &Path) -> Result<File, OpenError> {
    let open = || {
        let (directory, name) = Dir::parent(path)?;
        directory
            .open_own_file(name, Access::ReadWrite)
            .or_else(|_| directory.open_own_file(name, Access::Read))
    };
    open().map_err(|source| OpenError::Io { path: path.to_owned(), source })
}

/// Reads the header: the positions of the tables, and the number of words to map.
pub(super) fn check(path: &Path, file: &File) -> Result<(Tables, usize), OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let damaged = |what| OpenError::Damaged { path: path.to_owned(), what };
    let found = file.metadata().map_err(io)?.len();
    let mut bytes = vec![0; header::WORDS * WORD];
    let have = usize::try_from(found).map_or(bytes.len(), |it| it.min(bytes.len()));
    file.read_exact_at(bytes.get_mut(..have).unwrap_or_default(), 0).map_err(io)?;
    let word = |at: usize| {
        let bytes = bytes.get(at * WORD..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };

    if word(header::MAGIC) != MAGIC {
        return Err(OpenError::NotABox { path: path.to_owned() });
    }
    let version = word(header::VERSION);
    if version > LAYOUT_VERSION && have >= (header::VERSION + 1) * WORD {
        return Err(OpenError::NewerLayout { path: path.to_owned(), found: version });
    }
    let truncated = |expected: usize| OpenError::Truncated {
        path: path.to_owned(),
        expected: expected as u64,
        found,
    };
    if have < bytes.len() {
        return Err(truncated(bytes.len()));
    }
    if version == 0 {
        return Err(damaged("its layout has no version"));
    }
    let words = usize::try_from(word(header::FILE_WORDS))
        .ok()
        .filter(|words| (header::WORDS..=MAX_WORDS).contains(words))
        .ok_or_else(|| damaged("its length is invalid"))?;
    let ring = ring(word, words).ok_or_else(|| damaged("its ring is invalid"))?;
    // A copy may end where the used part of the ring does.
    let needed = words - (ring.capacity - ring.step) * RECORD_WORDS;
    if found < (needed * WORD) as u64 {
        return Err(truncated(needed * WORD));
    }
    let words = usize::try_from(found).map_or(words, |it| words.min(it / WORD));
    let room = (words - ring.at) / RECORD_WORDS;
    let ring = RingTable { capacity: ring.capacity.min(room - room % ring.step), ..ring };

    let table = |at: usize, capacity: usize, entry_words: usize| {
        let find = || {
            let at = usize::try_from(word(at)).ok()?;
            let capacity = usize::try_from(word(capacity)).ok()?;
            let end = capacity.checked_mul(entry_words)?.checked_add(at)?;
            (at >= header::WORDS && end <= words).then_some(Table { at, capacity })
        };
        find().ok_or_else(|| damaged("a table lies outside of it"))
    };
    let tables = Tables {
        ring,
        strings: table(header::STRINGS_AT, header::STRINGS_CAPACITY, 1)?,
        heap: table(header::HEAP_AT, header::HEAP_CAPACITY, 1)?,
        sites: table(header::SITES_AT, header::SITES_CAPACITY, SITE_WORDS)?,
        groups: table(header::GROUPS_AT, header::GROUPS_CAPACITY, GROUP_WORDS)?,
        threads: table(header::THREADS_AT, header::THREADS_CAPACITY, THREAD_WORDS)?,
    };
    // A sparse file may be arbitrarily long; the memory of the reader is bounded.
    if tables.threads.capacity > thread::MAX_THREADS
        || tables.strings.capacity > MAX_STRINGS
        || tables.sites.capacity > MAX_ENTRIES
        || tables.groups.capacity > MAX_ENTRIES
    {
        return Err(damaged("a table is longer than a valid one can be"));
    }
    Ok((tables, words))
}

/// The ring of a box of this many words, by the words of its header; `None`: impossible.
fn ring(word: impl Fn(usize) -> u64, words: usize) -> Option<RingTable> {
    let number = |at: usize| usize::try_from(word(at)).ok();
    let (at, capacity) = (number(header::RING_AT)?, number(header::RING_CAPACITY)?);
    // Layout 1 has no step.
    let step = Some(number(header::RING_STEP)?).filter(|&it| it != 0).unwrap_or(capacity);
    let end = capacity.checked_mul(RECORD_WORDS)?.checked_add(at)?;
    // Only the last table can end later than the file.
    let fits = end == words || step == capacity && end <= words;
    let is_valid = at >= header::WORDS && fits && ring::are_sizes(step, capacity);
    is_valid.then_some(RingTable { at, step, capacity })
}
