//! Texts: an index of published entries, and a heap that only grows.

use ddp_doctor_proto::blackbox::string;

use super::super::text;
use super::take;
use crate::sync::{AtomicU64, Ordering};

/// The words of the texts of a box.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strings<'a> {
    /// One entry each.
    pub(crate) index: &'a [AtomicU64],
    /// Their bytes.
    pub(crate) heap: &'a [AtomicU64],
}

impl<'a> Strings<'a> {
    /// Adds a text and publishes it; its number. `count` and `used` say how much of the index and of the
    /// heap is taken.
    pub(crate) fn add(
        &self,
        count: &AtomicU64,
        used: &AtomicU64,
        bytes: &[u8],
        kind: u64,
    ) -> Option<u32> {
        // Both must have room, or what one gives is lost.
        if count.load(Ordering::Relaxed) >= self.index.len() as u64 {
            return None;
        }
        let length = text::words_for(bytes.len());
        let at = take(used, length as u64, self.heap.len() as u64)?;
        let start = at as usize;
        text::store(self.heap.get(start..start + length)?, bytes);
        let index = take(count, 1, self.index.len() as u64)?;
        let entry = string::entry(u32::try_from(at).ok()?, u32::try_from(bytes.len()).ok()?);
        self.index
            .get(index as usize)?
            .store(entry | kind, Ordering::Release);
        Some(index as u32 + 1)
    }

    /// The entry of a text that is published.
    pub(crate) fn entry(&self, id: u32) -> Option<u64> {
        let index = id.checked_sub(1)? as usize;
        let entry = self.index.get(index)?.load(Ordering::Acquire);
        string::parse(entry).map(|_| entry)
    }

    /// The words and the length in bytes of a text that is published.
    pub(crate) fn get(&self, id: u32) -> Option<(&'a [AtomicU64], usize)> {
        let (at, length) = string::parse(self.entry(id)?)?;
        let start = at as usize;
        let end = start.checked_add(text::words_for(length as usize))?;
        Some((self.heap.get(start..end)?, length as usize))
    }
}
