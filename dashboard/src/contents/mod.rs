//! What screens show, computed once per version of the state and kept between frames.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use ddp_doctor_proto::report::Where;

mod stacks;
mod waits;

pub(crate) use stacks::Stacks;
pub(crate) use waits::Waits;

/// Expensive rows, kept until the state changes.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    pub(crate) sides: HashMap<usize, (u64, Rc<Sides>)>,
    calls_by_rank: RefCell<Option<CallRows>>,
    /// Contents of whole screens.
    pub(crate) waits: Versioned<Waits>,
    pub(crate) stacks: Versioned<Stacks>,
    pub(crate) memory: Versioned<(usize, Vec<u32>)>,
}

/// A value that is computed once per version of the state.
#[derive(Debug)]
pub(crate) struct Versioned<T>(RefCell<Option<(u64, Rc<T>)>>);

impl<T> Default for Versioned<T> {
    fn default() -> Self {
        Self(RefCell::new(None))
    }
}

impl<T> Versioned<T> {
    /// Returns the value of this version if `is_good` accepts it, otherwise a new one.
    pub(crate) fn get(
        &self,
        version: u64,
        is_good: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Rc<T> {
        let mut cache = self.0.borrow_mut();
        if let Some((of, made)) = &*cache
            && *of == version
            && is_good(made)
        {
            return Rc::clone(made);
        }
        let made = Rc::new(make());
        *cache = Some((version, Rc::clone(&made)));
        made
    }
}

/// Rows and call sites of a finding, root cause ranks first.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    /// Ranks, state, place, source text, call.
    pub(crate) rows: Vec<[String; 5]>,
    /// Call sites of the finding, each with its ranks.
    pub(crate) places: Vec<(Where, String)>,
}

/// The calls at one sequence number of a group, with the version and the place as their key.
type CallRows = (u64, (u32, u64), Rc<Vec<[String; 4]>>);

impl Cache {
    /// The calls at one sequence number of a group.
    pub(crate) fn calls_by_rank(
        &self,
        version: u64,
        place: (u32, u64),
        make: impl FnOnce() -> Vec<[String; 4]>,
    ) -> Rc<Vec<[String; 4]>> {
        let mut cache = self.calls_by_rank.borrow_mut();
        match &*cache {
            Some((of, at, rows)) if (*of, *at) == (version, place) => Rc::clone(rows),
            _ => {
                let rows = Rc::new(make());
                *cache = Some((version, place, Rc::clone(&rows)));
                rows
            }
        }
    }
}
