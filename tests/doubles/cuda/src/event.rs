//! Events: numbered marks in streams.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::handles::Handles;
use crate::{Result, Status, lock};

static EVENTS: Handles<Arc<Event>> = Handles::new(0x7e00_0000_0000);

/// An event, which refers to its latest mark.
#[derive(Debug)]
pub(crate) struct Event {
    /// Context in which the event was created.
    pub(crate) context: usize,
    marks: Mutex<Marks>,
    passed: Condvar,
}

#[derive(Debug, Default)]
struct Marks {
    /// Number of marks created so far, which is the number of the latest one.
    made: u64,
    /// Number of the latest mark that was passed.
    passed: u64,
    /// Time at which it was passed.
    at: Option<Instant>,
    is_captured: bool,
}

pub(crate) fn create(context: usize) -> usize {
    EVENTS.insert(Arc::new(Event { context, marks: Mutex::default(), passed: Condvar::new() }))
}

pub(crate) fn get(handle: usize) -> Result<Arc<Event>> {
    EVENTS.get(handle).ok_or(Status::INVALID_HANDLE)
}

pub(crate) fn destroy(handle: usize) -> Result<()> {
    EVENTS.remove(handle).map(|_| ()).ok_or(Status::INVALID_HANDLE)
}

impl Event {
    /// Creates a mark for a stream or a capture.
    pub(crate) fn mark(&self, is_captured: bool) -> u64 {
        let mut marks = lock(&self.marks);
        marks.made += 1;
        marks.is_captured = is_captured;
        marks.made
    }

    /// The mark that a new wait is for; `None` if it was captured.
    pub(crate) fn latest(&self) -> Option<u64> {
        let marks = lock(&self.marks);
        (!marks.is_captured).then_some(marks.made)
    }

    pub(crate) fn pass(&self, mark: u64) {
        let mut marks = lock(&self.marks);
        marks.passed = marks.passed.max(mark);
        marks.at = Some(Instant::now());
        self.passed.notify_all();
    }

    pub(crate) fn wait_for(&self, mark: u64) {
        let marks = lock(&self.marks);
        let is_ahead = |marks: &mut Marks| marks.passed < mark;
        let waited = self.passed.wait_while(marks, is_ahead);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn query(&self) -> Result<()> {
        let marks = lock(&self.marks);
        if marks.is_captured {
            return Err(Status::CAPTURED_EVENT);
        }
        if marks.passed < marks.made {
            return Err(Status::NOT_READY);
        }
        Ok(())
    }

    /// Time at which the latest mark was passed.
    pub(crate) fn at(&self) -> Result<Instant> {
        self.query()?;
        lock(&self.marks).at.ok_or(Status::INVALID_HANDLE)
    }
}
