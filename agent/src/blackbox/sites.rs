//! Which site a place in a Rust program is.

use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Places that are remembered, a power of two. Those beyond are looked up by name each time.
const REMEMBERED: usize = 1024;
/// How far from its proper entry a place may be.
const PROBES: usize = 16;

/// Stands for "there was no room for this site", which need not be tried again.
const NO_ROOM: u32 = u32::MAX;

/// A table of `&'static Location` by address, lock-free.
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
    pub(super) fn get(
        &self,
        place: &'static Location<'static>,
        define: impl FnOnce(&'static Location<'static>) -> u32,
    ) -> u32 {
        let address = std::ptr::from_ref(place).addr();
        // Locations are 24 bytes apart at least.
        let home = (address >> 3).wrapping_mul(0x9e37_79b9) >> 8;
        for probe in 0..PROBES {
            let Some((key, site)) = self.entries.get((home + probe) % REMEMBERED) else {
                break;
            };
            let found = match key.load(Ordering::Relaxed) {
                0 => key
                    .compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|found| found, |_| address),
                found => found,
            };
            if found == address {
                return match site.load(Ordering::Acquire) {
                    // Two threads that come here at once define it twice, which does no harm.
                    0 => {
                        let id = define(place);
                        site.store(if id == 0 { NO_ROOM } else { id }, Ordering::Release);
                        id
                    }
                    NO_ROOM => 0,
                    id => id,
                };
            }
        }
        define(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_defined_once() {
        let sites = Sites::new();
        let here = Location::caller();
        assert_eq!(sites.get(here, |_| 7), 7);
        assert_eq!(sites.get(here, |_| 8), 7);
    }

    #[test]
    fn no_room_is_remembered() {
        let sites = Sites::new();
        let here = Location::caller();
        assert_eq!(sites.get(here, |_| 0), 0);
        assert_eq!(sites.get(here, |_| 8), 0);
    }
}
