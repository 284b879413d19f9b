//! What is known of code objects and of their instructions: a copy of what `_sites` and `_hooks`
//! keep in dictionaries, in a table that is found without creating a Python object.

use std::array;
use std::cell::{Cell, RefCell};

use crate::object::{Owned, Ref};

/// Number of entries, a power of two.
const SIZE: usize = 2048;
/// How many entries may be full before all are removed.
const MAX_ENTRIES: usize = SIZE / 2;
/// Instead of an instruction, for the code object itself.
pub(crate) const WHOLE: i32 = i32::MIN;
/// Instead of an instruction, for the arguments of a code object.
pub(crate) const ARGUMENTS: i32 = i32::MIN + 1;

#[derive(Clone, Copy, Default)]
struct Entry {
    code: usize,
    instruction: i32,
    value: u32,
}

/// `(code object, instruction)` → value
pub(crate) struct Memo {
    entries: [Cell<Entry>; SIZE],
    /// The code objects, which keeps their addresses unique.
    codes: RefCell<Vec<Owned>>,
    count: Cell<usize>,
}

impl Memo {
    pub(crate) fn new() -> Self {
        Self {
            entries: array::from_fn(|_| Cell::default()),
            codes: RefCell::new(Vec::with_capacity(MAX_ENTRIES)),
            count: Cell::new(0),
        }
    }

    /// The entry of this key, or the empty one to use for it.
    fn entry(&self, code: usize, instruction: i32) -> &Cell<Entry> {
        let key = (code as u64) ^ u64::from(instruction.cast_unsigned()).rotate_left(40);
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % SIZE;
        loop {
            let entry = &self.entries[at];
            let Entry {
                code: found,
                instruction: of,
                ..
            } = entry.get();
            if found == 0 || (found == code && of == instruction) {
                return entry;
            }
            at = (at + 1) % SIZE; // at most MAX_ENTRIES entries are full, so one is empty
        }
    }

    pub(crate) fn get(&self, code: Ref<'_>, instruction: i32) -> Option<u32> {
        let entry = self.entry(code.address(), instruction).get();
        (entry.code != 0).then_some(entry.value)
    }

    /// Stores a value. It is ignored if the code object itself is not stored ([`WHOLE`]): only
    /// stored code objects are kept, and another one may get the address of one that is not.
    pub(crate) fn put(&self, code: Ref<'_>, instruction: i32, value: u32) {
        if self.count.get() >= MAX_ENTRIES {
            self.clear();
        }
        if instruction != WHOLE && self.get(code, WHOLE).is_none() {
            return;
        }
        let entry = self.entry(code.address(), instruction);
        if entry.get().code == 0 {
            if instruction == WHOLE {
                let Ok(mut codes) = self.codes.try_borrow_mut() else {
                    return;
                };
                codes.push(code.own());
            }
            self.count.set(self.count.get() + 1);
        }
        entry.set(Entry {
            code: code.address(),
            instruction,
            value,
        });
    }

    pub(crate) fn clear(&self) {
        for entry in &self.entries {
            entry.set(Entry::default());
        }
        self.count.set(0);
        if let Ok(mut codes) = self.codes.try_borrow_mut() {
            codes.clear();
        }
    }
}
