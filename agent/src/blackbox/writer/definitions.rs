//! Definitions that records refer to by number: strings, sites and process groups. Each is written
//! once and then published. If there is no room, its number is 0 and the loss is counted.

use std::panic::Location;
use std::ptr;

use ddp_doctor_proto::blackbox::{
    GROUP_WORDS, PUBLISHED, SITE_WORDS, group, header, members, site, string,
};

use super::peers::Peers;
use super::{Writer, index};
use crate::blackbox::protocol::{strings::Strings, take};
use crate::blackbox::{MAX_MEMBERS, text};
use crate::sync::{AtomicU64, Ordering};
use crate::sys;

/// An entry of the table of groups, with strings by number.
#[derive(Clone, Copy)]
struct Described {
    name: u32,
    description: u32,
    backend: u32,
    epoch: u32,
    members: u32,
    size: u32,
    /// Rank of this process in the group, if the members are unknown.
    seat: Option<u32>,
}

/// Number of strings whose number is cached, a power of two.
pub(super) const REMEMBERED_TEXTS: usize = 1024;

impl Writer {
    /// Number of a string, cut to [`string::MAX_TEXT`] bytes; 0: it is empty or there is no room.
    pub fn string(&self, value: &[u8]) -> u32 {
        self.intern(text::cut_message(value, string::MAX_TEXT), 0)
    }

    /// Number of a source location; 0: no room. `line` 0: unknown.
    pub fn site(&self, file: &[u8], function: &[u8], line: u32) -> u32 {
        self.site_from(file, function, line, 0)
    }

    /// Like [`Writer::site`], with the site of the caller; 0: unknown.
    pub fn site_from(&self, file: &[u8], function: &[u8], line: u32, caller: u32) -> u32 {
        self.define_site(file, function, line, site::file(0, caller))
    }

    /// Number of a line in an installed package, called from the site `caller` (0: unknown), which
    /// is part of what the number identifies; 0: no room.
    pub fn library_site(&self, file: &[u8], function: &[u8], line: u32, caller: u32) -> u32 {
        self.define_site(file, function, line, site::file(0, caller) | site::LIBRARY)
    }

    /// `word` is the first word without the file.
    fn define_site(&self, file: &[u8], function: &[u8], line: u32, word: u64) -> u32 {
        let (file, function) = (self.string(file), self.string(function));
        let Some((id, words)) = self.define::<SITE_WORDS>(
            self.layout.sites_at,
            header::SITES_COUNT,
            self.capacities.sites,
        ) else {
            return 0;
        };
        words[site::FUNCTION_AND_LINE].store(pair(function, line), Ordering::Relaxed);
        words[site::FILE].store(word | u64::from(file), Ordering::Release);
        id
    }

    /// Number of a Rust source location; 0: no room. The lookup takes no lock.
    #[inline]
    pub fn rust_site(&self, place: &'static Location<'static>) -> u32 {
        self.sites.get(ptr::from_ref(place).addr(), || {
            self.site(place.file().as_bytes(), b"", place.line())
        })
    }

    /// Number of the location of a call with this return address; 0: no room, or no address. The
    /// lookup takes no lock and allocates nothing.
    #[inline]
    pub fn native_site(&self, address: usize) -> u32 {
        /// Not set in addresses of Rust locations.
        const OF_CODE: usize = 1 << (usize::BITS - 2);
        if address == 0 {
            return 0;
        }
        self.sites.get(address | OF_CODE, || {
            let mut text = [site::ADDRESS as u8; 1 + 2 * size_of::<usize>()];
            for (digit, at) in text.iter_mut().skip(1).rev().zip(0..) {
                *digit = b"0123456789abcdef"[address >> (4 * at) & 0xf];
            }
            self.site(&text, b"", 0)
        })
    }

    /// Number of a C source location; 0: no room. `file` is the address of the file's name, which
    /// is unique, and `define` assigns the number. The lookup takes no lock.
    #[inline]
    pub fn c_site(&self, file: usize, line: u32, define: impl FnOnce() -> u32) -> u32 {
        /// Not set in user-space addresses.
        const OF_C: usize = 1 << (usize::BITS - 1);
        match u16::try_from(line) {
            Ok(line) => self.sites.get(OF_C | file << 16 | usize::from(line), define),
            Err(_) => define(),
        }
    }

    /// Number of a process group. `members` are global ranks in group order; 0: no room.
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
        // Without its name or members, the group would be mistaken for another one.
        if (name_id == 0 && !name.is_empty()) || (members_id == 0 && !members.is_empty()) {
            return 0;
        }
        // The limit above fits in 32 bits.
        self.define_group(Described {
            name: name_id,
            description,
            backend,
            epoch,
            members: members_id,
            size: members.len() as u32,
            seat: None,
        })
    }

    /// Number of a process group of which this process knows only the size and its own rank; 0: no
    /// room. A reader of all members' boxes finds the members by the name, which must be the same
    /// on all members and unique to the group.
    pub fn communicator(
        &self,
        name: &[u8],
        description: &[u8],
        backend: &[u8],
        rank: u32,
        size: u32,
    ) -> u32 {
        let name = self.string(name);
        if name == 0 || size as usize > MAX_MEMBERS || rank >= size {
            self.count_dropped_definition();
            return 0;
        }
        let description = self.string(description);
        self.define_group(Described {
            name,
            description,
            backend: self.string(backend),
            epoch: 0,
            members: 0,
            size,
            seat: Some(rank),
        })
    }

    /// Adds an entry to the table of groups.
    fn define_group(&self, group: Described) -> u32 {
        let Some((id, words)) = self.define::<GROUP_WORDS>(
            self.layout.groups_at,
            header::GROUPS_COUNT,
            self.capacities.groups,
        ) else {
            return 0;
        };
        let count = (1..id)
            .filter(|&earlier| self.is_group(earlier, group.epoch, group.name, group.members))
            .count();
        let ordinal = u32::try_from(count).unwrap_or(u32::MAX);
        if let Some(peers) = index(id).and_then(|i| self.peers.get(i)) {
            peers.get_or_init(|| Peers::new(group.size as usize));
        }
        for (at, value) in [
            (group::DESCRIPTION_AND_BACKEND, pair(group.description, group.backend)),
            (group::MEMBERS_AND_EPOCH, pair(group.members, group.epoch)),
            (group::ORDINAL_AND_SIZE, pair(ordinal, group.size)),
            (group::SEAT_PLUS_1, group.seat.map_or(0, |rank| u64::from(rank) + 1)),
            (group::CREATED, sys::monotonic_ns()),
        ] {
            words[at].store(value, Ordering::Relaxed);
        }
        words[group::NAME].store(PUBLISHED | u64::from(group.name), Ordering::Release);
        id
    }

    /// Whether group `id` has this epoch, name and members.
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

    /// Number of a string with these bytes, which is added unless its number is cached.
    pub(super) fn intern(&self, bytes: &[u8], kind: u64) -> u32 {
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
        let (count, used) = (&header[header::STRINGS_COUNT], &header[header::HEAP_USED]);
        self.strings()?.add(count, used, bytes, kind)
    }

    /// The words and the length in bytes of a string.
    fn string_words(&self, id: u32) -> Option<(&[AtomicU64], usize)> {
        self.strings()?.get(id)
    }

    fn strings(&self) -> Option<Strings<'_>> {
        let words = self.map.words();
        let table = |at: usize, capacity: usize| words.get(at..at + capacity);
        Some(Strings {
            index: table(self.layout.strings_at, self.capacities.strings)?,
            heap: table(self.layout.heap_at, self.capacities.heap_words)?,
        })
    }

    /// Takes the next free entry of a table.
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
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
