//! The reading side: of a box that is being written, that a dead process left, or that somebody
//! copied, cut or forged. Nothing in the file is believed: every offset, number and length is
//! checked, and what makes no sense is left out.
//!
//! Here is what follows a box from beginning to end. What is delivered is in [`items`]: definitions
//! come from [`definitions`], records from the ring in [`records`]. What the box says of this moment
//! is in [`state`].

mod definitions;
mod items;
mod records;
mod state;

use crate::sync::{AtomicU64, Ordering};
use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use ddp_doctor_proto::blackbox::{GROUP_WORDS, MAGIC, THREAD_WORDS, WORD, header, string};

pub use items::{Frontier, GroupCreation, Item, ReadRecord};
pub use state::{Identity, Inside, ThreadState};

use self::definitions::Progress;
use self::records::{BATCH, Copied};
use super::map::Map;
use super::open::{self, OpenError, Table, Tables, Trust};
use super::protocol::{ring::Cursor, strings::Strings};
use super::text;

/// Follows one black box.
///
/// It never waits for the writer, and never asks anything of it.
#[derive(Debug)]
pub struct Reader {
    map: Map,
    file: File,
    tables: Tables,
    cursor: Cursor,
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

impl Reader {
    /// Opens a box, whoever it belongs to.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_trusted(path, Trust::Any)
    }

    /// Opens a box of this user: evidence about a live job is accepted from nobody else.
    pub fn open_own(path: &Path) -> Result<Self, OpenError> {
        Self::open_trusted(path, Trust::Own)
    }

    fn open_trusted(path: &Path, trust: Trust) -> Result<Self, OpenError> {
        let file = open::file(path, trust)?;
        let (tables, words) = open::check(path, &file)?;
        let map = Map::read_only(&file, words).map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            map,
            file,
            tables,
            cursor: Cursor::default(),
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
            if self.cursor.next >= end {
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
        let oldest = self.oldest().min(self.cursor.passed);
        self.cursor.next = ticket.max(oldest).min(self.cursor.next);
    }

    /// Begins with this record: those before it are known from elsewhere, and are neither delivered
    /// nor counted as lost. Definitions come all the same. For a reader that has delivered nothing.
    pub fn begin_at(&mut self, ticket: u64) {
        self.cursor.next = ticket.min(self.head());
        self.cursor.passed = self.cursor.passed.max(self.cursor.next);
    }

    /// Whether the file was cut or cleared while it was read: what is missing of it says nothing.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.map.is_damaged() || self.header(header::MAGIC) != MAGIC
    }

    /// Records lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.cursor.lost
    }

    /// Definitions for which the box had no room: what records say of them is missing.
    #[must_use]
    pub fn definitions_dropped(&self) -> u64 {
        self.header(header::DEFINITIONS_DROPPED)
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

    fn strings(&self) -> Option<Strings<'_>> {
        let words = self.map.words();
        let table = |table: Table| words.get(table.at..table.at.checked_add(table.capacity)?);
        Some(Strings {
            index: table(self.tables.strings)?,
            heap: table(self.tables.heap)?,
        })
    }

    fn string_entry(&self, id: u32) -> Option<u64> {
        self.strings()?.entry(id)
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
            let (words, length) = self.strings()?.get(id)?;
            Some(text::load(words, length.min(longest)))
        };
        find().unwrap_or_default()
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
