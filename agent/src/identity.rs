//! What a communicator of NCCL's is called: the same on all its ranks, and different for every other one.
//!
//! NCCL knows a communicator by a hash, which it writes into its logs. From 2.26 on that of a communicator
//! which is made with a unique id is [`of_unique_id`]; older ones compute another. Ranks compute it here in
//! one way, whatever their NCCL.

use std::net::{IpAddr, SocketAddr};

/// NCCL's own hash (`eat` and `digest` in its `hash.cc` as of 2.26).
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

/// Of a communicator that is made with this unique id.
#[must_use]
pub fn of_unique_id(id: &[u8; 128]) -> u64 {
    Hash::new().eat(id).digest()
}

/// Of the one that the `nth` division of a communicator gives to the ranks of a color.
#[must_use]
pub fn of_split(parent: u64, nth: u32, color: i32) -> u64 {
    Hash::new()
        .eat(&parent.to_le_bytes())
        .eat(&nth.to_le_bytes())
        .eat(&color.to_le_bytes())
        .digest()
}

/// Of the one that is left of a communicator without these ranks of it, the `nth` such time. NCCL gives all
/// that are left of one communicator the same hash.
#[must_use]
pub fn of_shrink(parent: u64, nth: u32, excluded: &[i32]) -> u64 {
    let mut excluded = excluded.to_vec();
    excluded.sort_unstable();
    excluded.dedup();
    excluded
        .iter()
        .fold(
            Hash::new()
                .eat(b"shrink")
                .eat(&parent.to_le_bytes())
                .eat(&nth.to_le_bytes()),
            |hash, rank| hash.eat(&rank.to_le_bytes()),
        )
        .digest()
}

/// Of the one of so many ranks that a communicator grows into. Whoever is new to it knows [`of_growth`] from
/// the id that it is given.
#[must_use]
pub fn of_grow(growth: u64, ranks: u32) -> u64 {
    combined(growth, u64::from(ranks))
}

/// What the unique id begins with by which others come to a communicator in its `nth` division. `magic`: what
/// that began with itself, [`magic_of`] its unique id, or its own hash where it was made out of another one.
#[must_use]
pub fn of_growth(magic: u64, nth: u32) -> u64 {
    combined(magic, u64::from(nth))
}

/// What a unique id begins with: a random number, or [`of_growth`].
#[must_use]
pub fn magic_of(id: &[u8; 128]) -> u64 {
    id.first_chunk().map_or(0, |it| u64::from_le_bytes(*it))
}

fn combined(a: u64, b: u64) -> u64 {
    let hash = Hash::new().eat(&a.to_le_bytes());
    hash.eat(&b.to_le_bytes()).digest()
}

/// Where the ranks meet that make a communicator with this unique id: its root's address and port, which
/// every NCCL since 2.5 puts behind eight random bytes as the system's own `sockaddr`. `None`: it says
/// something else there.
#[must_use]
pub fn meeting_place(id: &[u8; 128]) -> Option<SocketAddr> {
    const INTERNET: u16 = libc::AF_INET as u16;
    const INTERNET_6: u16 = libc::AF_INET6 as u16;
    let [.., a, b] = *id.first_chunk::<10>()?;
    let [.., c, d] = *id.first_chunk::<12>()?;
    let port = u16::from_be_bytes([c, d]);
    let address = match u16::from_ne_bytes([a, b]) {
        INTERNET => IpAddr::from(*id.get(12..)?.first_chunk::<4>()?),
        // A word about the flow stands before it.
        INTERNET_6 => IpAddr::from(*id.get(16..)?.first_chunk::<16>()?),
        _ => return None,
    };
    (port != 0 && !address.is_unspecified()).then(|| SocketAddr::new(address, port))
}

/// Its name: as NCCL writes it, and which one of several that have the same unique id.
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
    fn the_hash_is_that_of_nccls_source() {
        assert_eq!(of_unique_id(&id(0)), 0x6afe_1cc1_7717_e1f4);
        assert_eq!(of_unique_id(&id(128)), 0x1379_339b_dc3a_fbdc);
        assert_eq!(of_unique_id(&[0; 128]), 0xcc97_6ec6_c24b_b53c);
        let parent = of_unique_id(&id(0));
        assert_eq!(of_split(parent, 1, 0), 0x7903_0d07_3b3c_579f);
        assert_eq!(of_split(parent, 2, 3), 0x7618_90fa_7504_6d6c);
        // As what shrinks, which is no division there.
        assert_eq!(of_split(parent, 0, 0), 0x3ab8_d78e_8fb6_dbda);
        let growth = of_growth(magic_of(&id(0)), 1);
        assert_eq!(growth, 0x3850_3679_d539_6e63);
        assert_eq!(of_grow(growth, 4), 0xf1c6_5f34_274a_facc);
    }

    #[test]
    fn what_is_left_of_one_does_not_depend_on_the_order_of_those_who_leave() {
        assert_eq!(of_shrink(7, 1, &[3, 1]), of_shrink(7, 1, &[1, 3, 3]));
        assert_ne!(of_shrink(7, 1, &[3]), of_shrink(7, 2, &[3]));
        assert_ne!(of_shrink(7, 1, &[3]), of_shrink(7, 1, &[]));
    }

    #[test]
    fn the_roots_address_is_read_out_of_a_unique_id() {
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
    fn names_of_one_id_differ() {
        assert_eq!(name(0xab, 0), "0xab");
        assert_eq!(name(0xab, 2), "0xab#2");
    }
}
