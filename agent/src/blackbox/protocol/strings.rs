//! Strings: an index of published entries, and an append-only heap.

use ddp_doctor_proto::blackbox::string;

use super::super::text;
use super::take;
use crate::sync::{AtomicU64, Ordering};

/// The words of a box's strings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strings<'a> {
    /// One entry per string.
    pub(crate) index: &'a [AtomicU64],
    /// The bytes of the strings.
    pub(crate) heap: &'a [AtomicU64],
}

impl<'a> Strings<'a> {
    /// Adds a string, publishes it and returns its number. `count` and `used` are the used sizes of
    /// the index and of the heap.
    pub(crate) fn add(
        &self,
        count: &AtomicU64,
        used: &AtomicU64,
        bytes: &[u8],
        kind: u64,
    ) -> Option<u32> {
        // Both need room: space taken in one of them alone would be lost.
        if count.load(Ordering::Relaxed) >= self.index.len() as u64 {
            return None;
        }
        let length = text::words_for(bytes.len());
        let at = take(used, length as u64, self.heap.len() as u64)?;
        let start = at as usize;
        text::store(self.heap.get(start..start + length)?, bytes);
        let index = take(count, 1, self.index.len() as u64)?;
        let entry = string::entry(u32::try_from(at).ok()?, u32::try_from(bytes.len()).ok()?);
        self.index.get(index as usize)?.store(entry | kind, Ordering::Release);
        Some(index as u32 + 1)
    }

    /// The words and the length in bytes of a published string.
    pub(crate) fn get(&self, id: u32) -> Option<(&'a [AtomicU64], usize)> {
        let index = id.checked_sub(1)? as usize;
        let (at, length) = string::parse(self.index.get(index)?.load(Ordering::Acquire))?;
        let start = at as usize;
        let end = start.checked_add(text::words_for(length as usize))?;
        Some((self.heap.get(start..end)?, length as usize))
    }
}
