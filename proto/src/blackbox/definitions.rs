//! The definitions to which records refer: strings, sites, groups and threads.

use super::PUBLISHED;

/// Index entry of a string: one word.
pub mod string {
    use super::PUBLISHED;

    /// Maximum length of a text, in bytes; longer texts are cut at a character boundary.
    pub const MAX_TEXT: usize = 4096;

    /// Maximum length of an entry that the index can describe, in bytes.
    pub const MAX_BYTES: usize = (1 << 20) - 1;

    /// Set in an entry whose bytes are not text but the members of a group.
    pub const BINARY: u64 = 1 << 62;

    /// Index entry of a string of `bytes` bytes that starts `at` words into the heap.
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
    /// `PUBLISHED | LIBRARY | site of the caller << 32 | string id of the file`. The caller is the
    /// site of the call that first led here; 0: unknown.
    pub const FILE: usize = 0;
    /// Set in the first word if the line is in an installed package. Its callers then lead to the
    /// line of the user's program, and are part of what the site identifies.
    pub const LIBRARY: u64 = 1 << 62;
    /// `string id of the function | line << 32`.
    pub const FUNCTION_AND_LINE: usize = 1;
    /// First character of a file that is not a name but a return address of machine code in
    /// hexadecimal. The reader resolves it while the process is alive.
    pub const ADDRESS: char = '@';
    /// Calls issued at the site.
    pub const COUNT: usize = 2;
    /// Monotonic time of the last call.
    pub const LAST_MONO: usize = 3;

    /// First word of a published site.
    #[must_use]
    pub const fn file(file: u32, caller: u32) -> u64 {
        super::PUBLISHED | (caller as u64 & 0x3fff_ffff) << 32 | file as u64
    }

    /// `(string id of the file, caller, whether it is in an installed package)` of a published
    /// first word.
    #[must_use]
    pub const fn parse(word: u64) -> Option<(u32, u32, bool)> {
        if word & super::PUBLISHED == 0 {
            return None;
        }
        let caller = (word >> 32) as u32 & 0x3fff_ffff;
        Some((word as u32, caller, word & LIBRARY != 0))
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
    /// Monotonic time of its destruction; 0: not destroyed.
    pub const DESTROYED: usize = 5;
    /// Highest collective sequence number issued.
    pub const ISSUED: usize = 6;
    /// Point-to-point calls issued.
    pub const P2P_ISSUED: usize = 7;
    /// Monotonic time of the last call.
    pub const LAST_MONO: usize = 8;
    /// Call id of the last call.
    pub const LAST_CALL: usize = 9;
    /// Collectives whose wait ended, or whose completion was recorded.
    pub const COMPLETED: usize = 10;
    /// This process's rank in the group plus one, if the members are unknown and therefore empty. 0: the
    /// members are complete.
    pub const SEAT_PLUS_1: usize = 11;
}

/// Members of a group as bytes: runs of `(first, stride, count)`, little-endian u32 each, in group
/// order. Nearly every group is one run: even 16 384 ranks take twelve bytes.
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

    /// Number of ranks in the output of [`encode`]; `None` if the bytes are malformed.
    #[must_use]
    pub fn count(bytes: &[u8]) -> Option<usize> {
        let mut count: usize = 0;
        for run in bytes.chunks_exact(RUN) {
            let of_run = u32::from_le_bytes([run[8], run[9], run[10], run[11]]);
            count = count.checked_add(of_run as usize)?;
        }
        bytes.len().is_multiple_of(RUN).then_some(count)
    }

    /// Decodes the output of [`encode`]; `None` if the bytes are malformed or contain more than
    /// `limit` ranks.
    #[must_use]
    pub fn decode(bytes: &[u8], limit: usize) -> Option<Vec<u32>> {
        let count = count(bytes).filter(|&count| count <= limit)?;
        let mut ranks = Vec::with_capacity(count);
        for run in bytes.chunks_exact(RUN) {
            let word = |i: usize| u32::from_le_bytes([run[i], run[i + 1], run[i + 2], run[i + 3]]);
            let (mut rank, stride, count) = (word(0), word(4), word(8));
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
    /// `PUBLISHED | generation << 32 | tid`. The generation (16 bits) counts the threads that used
    /// the entry before and have died.
    pub const TID: usize = 0;
    /// String id of its name.
    pub const NAME: usize = 1;
    /// Sequence lock over the words below: odd during a change.
    pub const LOCK: usize = 2;
    /// [`super::inside`] `| op << 8 | group << 32`.
    pub const INSIDE: usize = 3;
    /// Call id.
    pub const CALL: usize = 4;
    /// Monotonic time since which it has been inside.
    pub const SINCE: usize = 5;
    /// Site.
    pub const SITE: usize = 6;
    /// Records this thread has written.
    pub const RECORDS: usize = 7;

    /// Maximum number of threads in a table, a limit of the encoding of [`id`].
    pub const MAX_THREADS: usize = 0xffff;

    /// Number by which records refer to a thread. Never 0.
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

    /// `(tid, generation)` of a published first word.
    #[must_use]
    pub const fn parse(word: u64) -> Option<(u32, u16)> {
        if word & super::PUBLISHED == 0 {
            return None;
        }
        Some((word as u32, (word >> 32) as u16))
    }
}

/// Location of a thread.
pub mod inside {
    /// In the user's own code.
    pub const NOTHING: u64 = 0;
    /// Inside a call that was issued and has not returned.
    pub const CALL: u64 = 1;
    /// Inside a wait for a call.
    pub const WAIT: u64 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_entry_parses_to_position_and_length() {
        assert_eq!(string::parse(string::entry(70_000, 4096)), Some((70_000, 4096)));
        assert_eq!(string::parse(0), None);
        assert_eq!(string::parse(string::entry(u32::MAX, 5) | string::BINARY), Some((u32::MAX, 5)));
    }

    #[test]
    fn encoded_members_decode_unchanged() {
        for ranks in
            [vec![], vec![3], vec![0, 1, 2, 3], vec![6, 4, 2], vec![0, 5, 1, 6], vec![2, 2]]
        {
            assert_eq!(members::decode(&members::encode(&ranks), 10), Some(ranks));
        }
        let world: Vec<u32> = (0..16_384).collect();
        assert_eq!(members::encode(&world).len(), 12);
        assert_eq!(members::decode(&members::encode(&world), 100), None);
        assert_eq!(members::decode(&[1, 2, 3], 100), None);
    }

    #[test]
    fn thread_id_parses_to_entry_and_generation() {
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
}
