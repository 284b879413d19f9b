//! What is known of calls by the instructions that lead to them: from that of distributed_c10d which
//! makes the call, outwards to that of the user. Most calls are made again and again on the same
//! way, and are found here without looking at each function on it.

use std::cell::RefCell;
use std::iter;

use crate::frame::Step;
use crate::tables::{Arguments, What};

/// Number of stored ways, a power of two: 48 KiB.
const SIZE: usize = 256;
/// Steps of the longest way that is stored.
const MAX_STEPS: usize = 8;
/// Steps that decide where a way is stored.
const HASHED: usize = 3;

/// A call, as far as the way to it decides.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    /// Known only of calls by distributed_c10d; the other code makes several calls at one instruction.
    pub(crate) what: What,
    /// Whether a function of distributed_c10d makes it.
    pub(crate) is_of_c10d: bool,
    /// That function's arguments; `None`: its other variables may describe the call as well.
    pub(crate) arguments: Option<Arguments>,
    /// Of the user.
    pub(crate) site: u32,
    /// Of the functions between the user's and the call.
    pub(crate) flags: u16,
}

#[derive(Clone, Copy)]
struct Entry {
    steps: [Step; MAX_STEPS],
    length: usize,
    origin: Origin,
}

/// Origins by the steps to them. Their code objects are kept alive elsewhere ([`crate::memo`]).
pub(crate) struct Origins(RefCell<Vec<Option<Entry>>>);

/// The first steps of a way.
fn begin(steps: &mut impl Iterator<Item = Step>) -> [Step; HASHED] {
    let mut first = [[0; 2]; HASHED];
    for (to, step) in iter::zip(&mut first, steps) {
        *to = step;
    }
    first
}

/// The place of the ways that begin with these steps.
fn place(first: [Step; HASHED]) -> usize {
    let mix = |hash: u64, [_, instruction]: Step| {
        (hash.rotate_left(23) ^ instruction as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    };
    (first.into_iter().fold(0, mix) >> 40) as usize % SIZE
}

impl Origins {
    pub(crate) fn new() -> Self {
        Self(RefCell::new(vec![None; SIZE]))
    }

    /// The origin of the way that begins with these steps.
    pub(crate) fn get(&self, mut steps: impl Iterator<Item = Step>) -> Option<Origin> {
        let first = begin(&mut steps);
        let entries = self.0.try_borrow().ok()?;
        let entry = entries.get(place(first))?.as_ref()?;
        let known = entry.steps.get(..entry.length)?;
        let is_it = first.into_iter().chain(steps).take(known.len()).eq(known.iter().copied());
        is_it.then_some(entry.origin)
    }

    /// Stores the origin of the way of these steps, up to the first one in the user's code. Long
    /// ways are not stored, nor those through code that is not kept.
    pub(crate) fn put(
        &self,
        mut steps: impl Iterator<Item = Step>,
        user: usize,
        is_kept: impl Fn(usize) -> bool,
        origin: Origin,
    ) {
        let first = begin(&mut steps);
        let mut stored = [[0; 2]; MAX_STEPS];
        for ((to, step), length) in iter::zip(&mut stored, first.into_iter().chain(steps)).zip(1..)
        {
            let [code, _] = step;
            *to = step;
            if !is_kept(code) {
                return;
            }
            if code == user {
                if let Ok(mut entries) = self.0.try_borrow_mut()
                    && let Some(entry) = entries.get_mut(place(first))
                {
                    *entry = Some(Entry { steps: stored, length, origin });
                }
                return;
            }
        }
    }

    pub(crate) fn clear(&self) {
        if let Ok(mut entries) = self.0.try_borrow_mut() {
            entries.fill(None);
        }
    }
}
