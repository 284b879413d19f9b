//! What is known of code objects and of their instructions: a copy of what `_sites` and `_hooks`
//! keep in dictionaries, in a table that is found without creating a Python object.

use std::cell::{Cell, RefCell};
use std::iter;

use crate::object::{Owned, Ref};
use crate::origins::Origins;

/// Number of entries, a power of two.
const SIZE: usize = 8192;
/// How many entries may be full before all are removed.
const MAX_ENTRIES: usize = SIZE / 2;
/// Instead of an instruction, for the code object itself.
pub(crate) const WHOLE: i32 = i32::MIN;
/// Instead of an instruction, for the arguments of a code object.
pub(crate) const ARGUMENTS: i32 = i32::MIN + 1;

/// The frames of installed packages that were passed on the way outwards, as a number.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Way(u32);

impl Way {
    /// No such frame.
    pub(crate) const NONE: Self = Self(0);
}

#[derive(Clone, Copy, Default)]
struct Entry {
    code: usize,
    instruction: i32,
    way: Way,
    value: u32,
}

/// `(way, code object, instruction)` → value
pub(crate) struct Memo {
    entries: Box<[Cell<Entry>]>,
    /// The code objects, which keeps their addresses unique.
    codes: RefCell<Vec<Owned>>,
    count: Cell<usize>,
    /// Number of the last way. Never assigned again, so that a way from before [`Memo::clear`]
    /// leads nowhere.
    last_way: Cell<u32>,
    pub(crate) origins: Origins,
}

impl Memo {
    pub(crate) fn new() -> Self {
        Self {
            entries: iter::repeat_with(Cell::default).take(SIZE).collect(),
            codes: RefCell::new(Vec::with_capacity(MAX_ENTRIES)),
            count: Cell::new(0),
            last_way: Cell::new(0),
            origins: Origins::new(),
        }
    }

    /// The entry of this key, or the empty one to use for it.
    fn entry(&self, way: Way, code: usize, instruction: i32) -> &Cell<Entry> {
        let inner = u64::from(way.0).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let instruction_bits = u64::from(instruction.cast_unsigned()).rotate_left(40);
        let key = (code as u64) ^ instruction_bits ^ inner;
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % SIZE;
        loop {
            let entry = &self.entries[at];
            let found = entry.get();
            let is_it = (found.code, found.instruction, found.way) == (code, instruction, way);
            if found.code == 0 || is_it {
                return entry;
            }
            at = (at + 1) % SIZE; // at most MAX_ENTRIES entries are full, so one is empty
        }
    }

    pub(crate) fn get(&self, code: Ref<'_>, instruction: i32) -> Option<u32> {
        self.get_by(Way::NONE, code, instruction)
    }

    /// Like [`Memo::get`], for a way.
    pub(crate) fn get_by(&self, way: Way, code: Ref<'_>, instruction: i32) -> Option<u32> {
        let entry = self.entry(way, code.address(), instruction).get();
        (entry.code != 0).then_some(entry.value)
    }

    /// The way that continues `way` by a frame of an installed package; `None`: no number is left.
    pub(crate) fn extend(&self, way: Way, code: Ref<'_>, instruction: i32) -> Option<Way> {
        if let Some(next) = self.get_by(way, code, instruction) {
            return Some(Way(next));
        }
        let next = self.last_way.get().checked_add(1)?;
        self.last_way.set(next);
        self.put_by(way, code, instruction, next);
        Some(Way(next))
    }

    /// Stores a value. It is ignored if the code object itself is not stored ([`WHOLE`]): only
    /// stored code objects are kept, and another one may get the address of one that is not.
    pub(crate) fn put(&self, code: Ref<'_>, instruction: i32, value: u32) {
        self.put_by(Way::NONE, code, instruction, value);
    }

    /// Like [`Memo::put`], for a way.
    pub(crate) fn put_by(&self, way: Way, code: Ref<'_>, instruction: i32, value: u32) {
        if self.count.get() >= MAX_ENTRIES {
            self.clear();
        }
        if instruction != WHOLE && !self.is_kept(code.address()) {
            return;
        }
        let entry = self.entry(way, code.address(), instruction);
        if entry.get().code == 0 {
            if instruction == WHOLE {
                let Ok(mut codes) = self.codes.try_borrow_mut() else {
                    return;
                };
                codes.push(code.own());
            }
            self.count.set(self.count.get() + 1);
        }
        entry.set(Entry { code: code.address(), instruction, way, value });
    }

    /// Whether this is the address of a stored code object.
    pub(crate) fn is_kept(&self, code: usize) -> bool {
        self.entry(Way::NONE, code, WHOLE).get().code != 0
    }

    pub(crate) fn clear(&self) {
        self.origins.clear();
        for entry in &self.entries {
            entry.set(Entry::default());
        }
        self.count.set(0);
        if let Ok(mut codes) = self.codes.try_borrow_mut() {
            codes.clear();
        }
    }
}
