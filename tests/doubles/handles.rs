//! Objects by handles that resemble addresses. Both doubles include this file.

use std::sync::{Mutex, PoisonError};

/// Bytes between two handles.
const APART: usize = 0x100;

/// Objects of one kind. The lowest free handle is used first so that, as with an allocator, a new
/// object often gets the handle of a destroyed one.
pub(crate) struct Handles<T> {
    first: usize,
    slots: Mutex<Vec<Option<T>>>,
}

impl<T: Clone> Handles<T> {
    pub(crate) const fn new(first: usize) -> Self {
        Self { first, slots: Mutex::new(Vec::new()) }
    }

    pub(crate) fn insert(&self, object: T) -> usize {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let free = slots.iter().position(Option::is_none);
        let at = free.unwrap_or(slots.len());
        if at == slots.len() {
            slots.push(None);
        }
        slots[at] = Some(object);
        self.first + at * APART
    }

    pub(crate) fn get(&self, handle: usize) -> Option<T> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get(self.slot(handle)?)?.clone()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<T> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get_mut(self.slot(handle)?)?.take()
    }

    fn slot(&self, handle: usize) -> Option<usize> {
        let offset = handle.checked_sub(self.first)?;
        (offset % APART == 0).then_some(offset / APART)
    }
}
