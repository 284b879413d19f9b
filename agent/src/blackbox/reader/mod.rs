//! The reader of a black box: of a live process, of a dead one, or a copy that may be truncated or
//! forged. All offsets, numbers and lengths in the file are checked, and invalid parts are skipped.
//!
//! This module follows a box from beginning to end. The delivered items are defined in [`items`];
//! [`definitions`] and [`records`] deliver them. The current state of the box is read in [`state`].

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
use super::open::{self, OpenError, Table, Tables};
use super::protocol::{ring::Cursor, strings::Strings};
use super::text;

/// Follows one black box.
///
/// It never waits for the writer and does not depend on its cooperation.
#[derive(Debug)]
pub struct Reader {
    map: Map,
    file: File,
    tables: Tables,
    cursor: Cursor,
    /// A head with the time it was read: a record missing below it long afterwards will not come.
    seen: Option<(u64, Instant)>,
    /// A head with the time it was read, for the rate of records.
    rate: Option<(u64, Instant)>,
    sites: Progress,
    groups: Progress,
    /// First words of the entries of delivered threads.
    threads: Vec<u64>,
    /// Numbers of all delivered threads.
    known_threads: HashSet<u32>,
    /// Total number of members of the delivered groups.
    members: usize,
    batch: Vec<Copied>,
}

impl Reader {
    /// Opens a box of any user.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::of_file(open::any(path)?, path)
    }

    /// Opens a box of this user. Evidence about a live job is accepted from this user only.
    pub fn open_own(path: &Path) -> Result<Self, OpenError> {
        Self::of_file(open::own(path)?, path)
    }

    /// Reads an open box. `path` is only for messages.
    pub fn of_file(file: File, path: &Path) -> Result<Self, OpenError> {
        let (tables, words) = open::check(path, &file)?;
        let map = Map::read_only(&file, words)
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Ok(Self {
            map,
            file,
            tables,
            cursor: Cursor::default(),
            seen: None,
            rate: None,
            sites: Progress::default(),
            groups: Progress::default(),
            threads: vec![0; tables.threads.capacity],
            known_threads: HashSet::new(),
            members: 0,
            batch: Vec::new(),
        })
    }

    /// Delivers new definitions and up to `budget` records, in order. Returns the number of
    /// records.
    ///
    /// Stops before a record that is still being written and continues at a later call. If the
    /// record is not completed for a while, it is lost.
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

    /// Delivers all remaining items of a dead writer, and the final counters of each group.
    pub fn finish(&mut self, sink: &mut impl FnMut(Item)) {
        // If the writer is alive nevertheless, records after this head are not awaited.
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

    /// Rewinds to the oldest remaining record; definitions are delivered again. Records that were
    /// delivered before and are overwritten now do not count as lost.
    pub fn rewind(&mut self) {
        self.sites = Progress::default();
        self.groups = Progress::default();
        self.members = 0;
        self.threads.fill(0);
        self.known_threads.clear();
        self.rewind_to(0);
    }

    /// Rewinds to a record, or to the oldest remaining one after it. Definitions are not delivered
    /// again. Never moves forward.
    pub fn rewind_to(&mut self, ticket: u64) {
        let oldest = self.oldest().min(self.cursor.passed);
        self.cursor.next = ticket.max(oldest).min(self.cursor.next);
    }

    /// The record that is delivered next.
    #[must_use]
    pub const fn next_ticket(&self) -> u64 {
        self.cursor.next
    }

    /// Starts at this record: earlier ones are neither delivered nor counted as lost. Definitions
    /// are delivered. For a reader that has delivered nothing yet.
    pub fn begin_at(&mut self, ticket: u64) {
        self.cursor.next = ticket.min(self.head());
        self.cursor.passed = self.cursor.passed.max(self.cursor.next);
    }

    /// Whether the file was truncated or cleared while it was read, so that missing data means
    /// nothing.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.map.is_damaged() || self.header(header::MAGIC) != MAGIC
    }

    /// Number of records lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.cursor.lost
    }

    /// Number of definitions for which the box had no room. Records that refer to them are
    /// incomplete.
    #[must_use]
    pub fn definitions_dropped(&self) -> u64 {
        self.header(header::DEFINITIONS_DROPPED)
    }

    // --- Words ---------------------------------------------------------------------------------

    fn header(&self, at: usize) -> u64 {
        self.map.words().get(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Number of used entries of a table.
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
        Some(Strings { index: table(self.tables.strings)?, heap: table(self.tables.heap)? })
    }

    /// A string by its number; empty if there is none.
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
