//! Names of NCCL communicators: the same on all ranks of a communicator, and different for others.
//!
//! NCCL identifies a communicator by a hash that appears in its logs. Since 2.26, the hash of a
//! communicator created with a unique id is [`of_unique_id`]; older versions compute a different
//! one. This module computes the same hash for every version of NCCL.

use std::net::{IpAddr, SocketAddr};

/// NCCL's hash function (`eat` and `digest` in its `hash.cc` as of 2.26).
#[derive(Clone, Copy, Debug)]
struct Hash([u64; 2]);

impl Hash {
    const fn new() -> Self {
        Self([1, 1])
    }

    fn eat(mut self, bytes: &[u8]) -> Self {
        let Self([a, b]) = &mut self;
        *a ^= bytes.len() as u64;
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            *a = a.wrapping_add(*b);
            *b ^= *a;
            *a ^= *a >> 31;
            *a = a.wrapping_mul(0x9de6_2bbc_8cef_3ce3);
            *b ^= *b >> 32;
            *b = b.wrapping_mul(0x485c_d631_1b59_9e79);
            *a = a.wrapping_add(u64::from_le_bytes(word));
        }
        self
    }

    const fn digest(self) -> u64 {
        let Self([a, b]) = self;
        let mut hash = a;
        hash ^= hash >> 31;
        hash = hash.wrapping_mul(0xbac3_bd56_2846_de6b);
        hash = hash.wrapping_add(b);
        hash ^= hash >> 32;
        hash.wrapping_mul(0x995a_187a_14e7_b445)
    }
}

/// Hash of a communicator created with this unique id.
#[must_use]
pub fn of_unique_id(id: &[u8; 128]) -> u64 {
    Hash::new().eat(id).digest()
}

/// Hash of the communicator that the `nth` division of `parent` creates for the ranks of a color.
#[must_use]
pub fn of_split(parent: u64, nth: u32, color: i32) -> u64 {
    Hash::new()
        .eat(&parent.to_le_bytes())
        .eat(&nth.to_le_bytes())
        .eat(&color.to_le_bytes())
        .digest()
}

/// Hash of the communicator that remains of `parent` without the ranks `excluded`, the `nth` such
/// shrink. In NCCL, all communicators that remain of one parent have the same hash.
#[must_use]
pub fn of_shrink(parent: u64, nth: u32, excluded: &[i32]) -> u64 {
    let mut excluded = excluded.to_vec();
    excluded.sort_unstable();
    excluded.dedup();
    excluded
        .iter()
        .fold(
            Hash::new().eat(b"shrink").eat(&parent.to_le_bytes()).eat(&nth.to_le_bytes()),
            |hash, rank| hash.eat(&rank.to_le_bytes()),
        )
        .digest()
}

/// Hash of the communicator with `size` ranks that a communicator grows into. New ranks know
/// `growth`, see [`of_growth`], from the unique id that they are given.
#[must_use]
pub fn of_grow(growth: u64, ranks: u32) -> u64 {
    combined(growth, u64::from(ranks))
}

/// First bytes of the unique id with which new ranks join a communicator in its `nth` division.
/// `magic`: [`magic_of`] the communicator's own unique id, or its hash if it was derived from
/// another communicator.
#[must_use]
pub fn of_growth(magic: u64, nth: u32) -> u64 {
    combined(magic, u64::from(nth))
}

/// The first eight bytes of a unique id: a random number, or [`of_growth`].
#[must_use]
pub fn magic_of(id: &[u8; 128]) -> u64 {
    id.first_chunk().map_or(0, |it| u64::from_le_bytes(*it))
}

fn combined(a: u64, b: u64) -> u64 {
    let hash = Hash::new().eat(&a.to_le_bytes());
    hash.eat(&b.to_le_bytes()).digest()
}

/// The address and port at which the ranks that create a communicator with this unique id meet.
/// NCCL since 2.5 stores them as a `sockaddr` after eight random bytes. `None`: no valid address.
#[must_use]
pub fn meeting_place(id: &[u8; 128]) -> Option<SocketAddr> {
    const INTERNET: u16 = libc::AF_INET as u16;
    const INTERNET_6: u16 = libc::AF_INET6 as u16;
    let [.., a, b] = *id.first_chunk::<10>()?;
    let [.., c, d] = *id.first_chunk::<12>()?;
    let port = u16::from_be_bytes([c, d]);
    let address = match u16::from_ne_bytes([a, b]) {
        INTERNET => IpAddr::from(*id.get(12..)?.first_chunk::<4>()?),
        // The flow information precedes the address.
        INTERNET_6 => IpAddr::from(*id.get(16..)?.first_chunk::<16>()?),
        _ => return None,
    };
    (port != 0 && !address.is_unspecified()).then(|| SocketAddr::new(address, port))
}

/// Name of a communicator: its hash as NCCL writes it, and its number among those with the same
/// unique id.
#[must_use]
pub fn name(hash: u64, occurrence: u32) -> String {
    match occurrence {
        0 => format!("0x{hash:x}"),
        n => format!("0x{hash:x}#{n}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unique id of consecutive bytes.
    fn id(first: u8) -> [u8; 128] {
        std::array::from_fn(|i| first.wrapping_add(i as u8))
    }

    #[test]
    fn hashes_match_the_nccl_source() {
        assert_eq!(of_unique_id(&id(0)), 0x6afe_1cc1_7717_e1f4);
        assert_eq!(of_unique_id(&id(128)), 0x1379_339b_dc3a_fbdc);
        assert_eq!(of_unique_id(&[0; 128]), 0xcc97_6ec6_c24b_b53c);
        let parent = of_unique_id(&id(0));
        assert_eq!(of_split(parent, 1, 0), 0x7903_0d07_3b3c_579f);
        assert_eq!(of_split(parent, 2, 3), 0x7618_90fa_7504_6d6c);
        // NCCL hashes a shrunk communicator as division 0.
        assert_eq!(of_split(parent, 0, 0), 0x3ab8_d78e_8fb6_dbda);
        let growth = of_growth(magic_of(&id(0)), 1);
        assert_eq!(growth, 0x3850_3679_d539_6e63);
        assert_eq!(of_grow(growth, 4), 0xf1c6_5f34_274a_facc);
    }

    #[test]
    fn shrink_hash_ignores_the_order_of_excluded_ranks() {
        assert_eq!(of_shrink(7, 1, &[3, 1]), of_shrink(7, 1, &[1, 3, 3]));
        assert_ne!(of_shrink(7, 1, &[3]), of_shrink(7, 2, &[3]));
        assert_ne!(of_shrink(7, 1, &[3]), of_shrink(7, 1, &[]));
    }

    #[test]
    fn root_address_is_read_from_the_unique_id() {
        let with = |family: libc::c_int, at: usize, address: &[u8]| {
            let mut id = [7; 128];
            id[8..10].copy_from_slice(&(family as u16).to_ne_bytes());
            id[10..12].copy_from_slice(&40_321_u16.to_be_bytes());
            id[at..at + address.len()].copy_from_slice(address);
            meeting_place(&id).map(|it| it.to_string())
        };
        let internet = with(libc::AF_INET, 12, &[10, 0, 0, 4]);
        assert_eq!(internet.as_deref(), Some("10.0.0.4:40321"));
        let mut address = [0; 16];
        (address[0], address[15]) = (0xfe, 9);
        let internet = with(libc::AF_INET6, 16, &address);
        assert_eq!(internet.as_deref(), Some("[fe00::9]:40321"));
        assert_eq!(with(libc::AF_INET, 12, &[0; 4]), None);
        assert_eq!(with(libc::AF_UNIX, 12, &[10, 0, 0, 4]), None);
        assert_eq!(meeting_place(&[0; 128]), None);
    }

    #[test]
    fn names_of_one_unique_id_differ() {
        assert_eq!(name(0xab, 0), "0xab");
        assert_eq!(name(0xab, 2), "0xab#2");
    }
}
