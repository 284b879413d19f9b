//! Which site a place in the program is that its address tells from others.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Places that are remembered, a power of two. Those beyond are looked up by name each time.
const REMEMBERED: usize = 1024;
/// How far from its proper entry a place may be.
const PROBES: usize = 16;

/// Stands for "there was no room for this site", which need not be tried again.
const NO_ROOM: u32 = u32::MAX;

/// A table of places, each named by a number of its own other than 0; lock-free.
#[derive(Debug)]
pub(super) struct Sites {
    entries: Box<[(AtomicUsize, AtomicU32)]>,
}

impl Sites {
    pub(super) fn new() -> Self {
        Self {
            entries: (0..REMEMBERED)
                .map(|_| (AtomicUsize::new(0), AtomicU32::new(0)))
                .collect(),
        }
    }

    /// The site of a place; `define` is asked once for each.
    #[inline]
    pub(super) fn get(&self, place: usize, define: impl FnOnce() -> u32) -> u32 {
        // Rust's places are addresses, 8 bytes apart at least; C's differ by the line.
        let home = (place ^ (place >> 3)).wrapping_mul(0x9e37_79b9) >> 8;
        for probe in 0..PROBES {
            let Some((key, site)) = self.entries.get((home + probe) % REMEMBERED) else {
                break;
            };
            let found = match key.load(Ordering::Relaxed) {
                0 => key
                    .compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|found| found, |_| place),
                found => found,
            };
            if found == place {
                return match site.load(Ordering::Acquire) {
                    // Two threads that come here at once define it twice, which does no harm.
                    0 => {
                        let id = define();
                        site.store(if id == 0 { NO_ROOM } else { id }, Ordering::Release);
                        id
                    }
                    NO_ROOM => 0,
                    id => id,
                };
            }
        }
        define()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_defined_once() {
        let sites = Sites::new();
        assert_eq!(sites.get(4, || 7), 7);
        assert_eq!(sites.get(4, || 8), 7);
        assert_eq!(sites.get(5, || 8), 8);
    }

    #[test]
    fn no_room_is_remembered() {
        let sites = Sites::new();
        assert_eq!(sites.get(4, || 0), 0);
        assert_eq!(sites.get(4, || 8), 0);
    }
}
