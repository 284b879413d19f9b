//! Sites of forwards by the instructions that lead to them, from the forward outwards to the program's
//! first function.

use std::cell::RefCell;

use crate::frame::{Frame, Step};
use crate::object::Owned;

/// Most stored paths: 64 KiB.
const MAX_PATHS: usize = 64;
/// Steps of the longest path that is stored.
const MAX_STEPS: usize = 64;

struct Entry {
    steps: Box<[Step]>,
    site: u32,
    /// The code objects of the functions, which keeps their addresses unique.
    _codes: Vec<Owned>,
}

/// Site by path. Programs have few of them, which are searched one by one.
pub(crate) struct Paths(RefCell<Stored>);

#[derive(Default)]
struct Stored {
    entries: Vec<Entry>,
    /// Index of the oldest entry of a full table, which the next one replaces.
    oldest: usize,
}

impl Stored {
    fn site(&self, steps: &[Step]) -> Option<u32> {
        self.entries.iter().find(|it| *it.steps == *steps).map(|it| it.site)
    }

    /// Returns the entry that was replaced.
    fn insert(&mut self, entry: Entry) -> Option<Entry> {
        if self.entries.len() < MAX_PATHS {
            self.entries.push(entry);
            return None;
        }
        let place = self.entries.get_mut(self.oldest)?;
        self.oldest = (self.oldest + 1) % MAX_PATHS;
        Some(std::mem::replace(place, entry))
    }
}

impl Paths {
    pub(crate) fn new() -> Self {
        Self(RefCell::default())
    }

    /// The site of the path to this frame. `find` finds one that is not stored.
    pub(crate) fn site(
        &self,
        frame: &Frame,
        find: impl FnOnce(&Frame) -> Option<u32>,
    ) -> Option<u32> {
        let mut stored = [[0; 2]; MAX_STEPS];
        let code = frame.code()?;
        let Some(mut rest) = frame.steps(code.as_ref()) else {
            return find(frame);
        };
        let mut length = 0;
        for (to, step) in stored.iter_mut().zip(&mut rest) {
            *to = step;
            length += 1;
        }
        let steps = stored.get(..length)?;
        if rest.next().is_some() {
            return find(frame);
        }
        if let Some(site) = self.0.try_borrow().ok().and_then(|it| it.site(steps)) {
            return Some(site);
        }
        let site = find(frame)?;
        let mut codes = vec![code];
        let mut outer = frame.back();
        while let Some(caller) = outer {
            codes.push(caller.code()?);
            outer = caller.back();
        }
        let entry = Entry { steps: steps.into(), site, _codes: codes };
        let replaced = self.0.try_borrow_mut().ok()?.insert(entry);
        drop(replaced); // not while the table is borrowed: a code object may have a destructor
        Some(site)
    }

    pub(crate) fn clear(&self) {
        let all = self.0.try_borrow_mut().map(|mut it| std::mem::take(&mut *it));
        drop(all);
    }
}
