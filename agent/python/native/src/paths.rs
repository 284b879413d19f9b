//! Sites of forwards by the instructions that lead to them, from the forward outwards to the program's
//! first function.

use std::cell::RefCell;

use crate::frame::{Frame, Step};
use crate::object::Owned;

/// Number of stored paths, a power of two: 64 KiB at most.
const SIZE: usize = 64;
/// Steps of the longest path that is stored.
const MAX_STEPS: usize = 64;

struct Entry {
    steps: Box<[Step]>,
    site: u32,
    /// The code objects of the functions, which keeps their addresses unique.
    _codes: Vec<Owned>,
}

/// Site by path.
pub(crate) struct Paths(RefCell<Vec<Option<Entry>>>);

fn place(steps: &[Step]) -> usize {
    let mix = |hash: u64, &[code, instruction]: &Step| {
        (hash.rotate_left(23) ^ (code ^ instruction) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    };
    (steps.iter().fold(0, mix) >> 40) as usize % SIZE
}

impl Paths {
    pub(crate) fn new() -> Self {
        Self(RefCell::new((0..SIZE).map(|_| None).collect()))
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
        let place = place(steps);
        if let Ok(entries) = self.0.try_borrow()
            && let Some(Some(entry)) = entries.get(place)
            && *entry.steps == *steps
        {
            return Some(entry.site);
        }
        let site = find(frame)?;
        let mut codes = vec![code];
        let mut outer = frame.back();
        while let Some(caller) = outer {
            codes.push(caller.code()?);
            outer = caller.back();
        }
        let entry = Some(Entry { steps: steps.into(), site, _codes: codes });
        let replaced =
            self.0.try_borrow_mut().ok()?.get_mut(place).map(|it| std::mem::replace(it, entry));
        drop(replaced); // not while the table is borrowed: a code object may have a destructor
        Some(site)
    }

    pub(crate) fn clear(&self) {
        let Ok(mut entries) = self.0.try_borrow_mut() else {
            return;
        };
        let all = std::mem::replace(&mut *entries, (0..SIZE).map(|_| None).collect());
        drop(entries);
        drop(all);
    }
}
