//! Table of source locations by address.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of locations that are remembered, a power of two. Others are defined again each time.
const REMEMBERED: usize = 1024;
/// Maximum distance of a location from its home entry.
const PROBES: usize = 16;

/// Marks a location for which there is no room, so that it is not tried again.
const NO_ROOM: u32 = u32::MAX;

/// A lock-free table of locations, keyed by nonzero numbers.
#[derive(Debug)]
pub(super) struct Sites {
    entries: Box<[(AtomicUsize, AtomicU32)]>,
}

impl Sites {
    pub(super) fn new() -> Self {
        Self {
            entries: (0..REMEMBERED).map(|_| (AtomicUsize::new(0), AtomicU32::new(0))).collect(),
        }
    }

    /// The site of a location. `define` is called once per location, except in a race.
    #[inline]
    pub(super) fn get(&self, place: usize, define: impl FnOnce() -> u32) -> u32 {
        // Addresses of Rust locations are multiples of 8; keys of C differ in the line.
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
                    // Two threads may define a location twice, which does no harm.
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
    fn location_is_defined_once() {
        let sites = Sites::new();
        assert_eq!(sites.get(4, || 7), 7);
        assert_eq!(sites.get(4, || 8), 7);
        assert_eq!(sites.get(5, || 8), 8);
    }

    #[test]
    fn lack_of_room_is_remembered() {
        let sites = Sites::new();
        assert_eq!(sites.get(4, || 0), 0);
        assert_eq!(sites.get(4, || 8), 0);
    }
}
