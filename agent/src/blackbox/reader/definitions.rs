//! Delivers sites, groups and threads: each once, before the records that refer to it.

use crate::sync::{AtomicU64, Ordering};

use ddp_doctor_proto::blackbox::{
    PUBLISHED, SITE_WORDS, group, header, members, site, string, thread,
};

use super::{Item, Reader, entry};
use crate::blackbox::{MAX_MEMBERS, Seat};

/// Maximum number of members of all groups of a box together. Bounds the memory for a forged box.
const MAX_ALL_MEMBERS: usize = 64 * MAX_MEMBERS;
/// Maximum number of distinct threads, for the same reason.
const MAX_THREADS: usize = 1 << 20;

impl Reader {
    pub(super) fn deliver_sites(&mut self, sink: &mut impl FnMut(Item)) {
        let table = self.tables.sites;
        let used = self.count(header::SITES_COUNT, table);
        let mut progress = std::mem::take(&mut self.sites);
        progress.advance(used, |index| {
            let Some(words) = entry::<SITE_WORDS>(self.map.words(), table, index) else {
                return false;
            };
            let Some((file, caller, library)) =
                site::parse(words[site::FILE].load(Ordering::Acquire))
            else {
                return false;
            };
            let (function, line) = halves(&words[site::FUNCTION_AND_LINE]);
            sink(Item::Site {
                id: index as u32 + 1,
                file: self.text(file),
                function: self.text(function),
                line,
                caller,
                library,
            });
            true
        });
        self.sites = progress;
    }

    pub(super) fn deliver_groups(&mut self, sink: &mut impl FnMut(Item)) {
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
            let (member_list, epoch) = halves(&words[group::MEMBERS_AND_EPOCH]);
            let (ordinal, size) = halves(&words[group::ORDINAL_AND_SIZE]);
            let seat = words[group::SEAT_PLUS_1]
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .map(|rank| Seat { rank: u32::try_from(rank).unwrap_or(u32::MAX), size });
            let members = match seat {
                Some(_) => Vec::new(),
                None => self.members(member_list, size, taken).unwrap_or_default(),
            };
            taken += members.len();
            sink(Item::Group {
                id: index as u32 + 1,
                name: self.text(name as u32),
                description: self.text(description),
                backend: self.text(backend),
                epoch,
                ordinal,
                members,
                seat,
            });
            true
        });
        self.members = taken;
        self.groups = progress;
    }

    /// A list of members by its string; `None`: it is not of this size, or too long beside the
    /// `taken` members of other groups.
    pub(super) fn members(&self, list: u32, size: u32, taken: usize) -> Option<Vec<u32>> {
        let size = size as usize;
        let limit = size.min(MAX_MEMBERS).min(MAX_ALL_MEMBERS - taken);
        let members = members::decode(&self.bytes(list, string::MAX_BYTES), limit)?;
        (members.len() == size).then_some(members)
    }

    pub(super) fn deliver_threads(&mut self, sink: &mut impl FnMut(Item)) {
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
            if self.known_threads.len() < MAX_THREADS {
                self.known_threads.insert(id);
            }
            sink(Item::Thread { id, tid, name: self.text(name) });
        }
        self.threads = delivered;
    }

    /// Delivers a thread whose entry was reused before it was read, so that only its records are
    /// left.
    pub(super) fn deliver_gone_thread(&mut self, id: u32, sink: &mut impl FnMut(Item)) {
        let possible = thread::parse_id(id)
            .is_some_and(|(entry, _)| usize::from(entry) < self.tables.threads.capacity);
        if possible && self.known_threads.len() < MAX_THREADS && self.known_threads.insert(id) {
            sink(Item::Thread { id, tid: 0, name: String::new() });
        }
    }
}

/// Progress through a table: all entries up to `next` were delivered, except `holes`, which were
/// taken but not published yet.
#[derive(Debug, Default)]
pub(super) struct Progress {
    next: usize,
    holes: Vec<usize>,
}

impl Progress {
    /// Calls `deliver` for every entry that was not delivered; it returns whether the entry was
    /// published.
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

fn halves(word: &AtomicU64) -> (u32, u32) {
    let word = word.load(Ordering::Relaxed);
    (word as u32, (word >> 32) as u32)
}
