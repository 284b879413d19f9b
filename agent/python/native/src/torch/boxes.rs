//! The group of a call from C++ before PyTorch 2.14: a kernel gets it as a ScriptObject, and PyTorch takes 10 000
//! instructions to convert that to the group's object. Both lead to the same C++ object, as in `_script_objects.py`.
#![expect(unsafe_code, reason = "reads objects of PyTorch")]

use std::cell::{Cell, RefCell};

use crate::object::{Owned, Ref};

use super::arguments::{VALUE, copy};

/// Number of conversions with which the layout of a ScriptObject is compared.
const CHECKS: u8 = 4;
/// Offsets of the slots in `ivalue::Object`, by version.
const SLOTS: [usize; 2] = [80, 88];
/// Maximum number of known groups.
const MAX_GROUPS: usize = 64;

/// Address of a C++ object, and a weak reference to PyTorch's object for it.
struct Known(usize, Owned);

/// PyTorch's objects of groups by their C++ objects.
pub(crate) struct Boxes {
    /// Checks that are left; `None`: one has failed.
    checks: Cell<Option<u8>>,
    /// Type of the ScriptObjects that were checked, and offset of the slots in what they refer to.
    kind: Cell<usize>,
    slots: Cell<usize>,
    known: RefCell<Vec<Known>>,
}

impl Boxes {
    pub(crate) fn new() -> Self {
        Self {
            checks: Cell::new(Some(CHECKS)),
            kind: Cell::new(0),
            slots: Cell::new(0),
            known: RefCell::new(Vec::new()),
        }
    }

    /// The object of the group in a ScriptObject, if it is known.
    pub(crate) fn find(&self, boxed: Ref<'_>) -> Option<Owned> {
        if self.checks.get() != Some(0) || self.kind.get() != boxed.kind() {
            return None;
        }
        // SAFETY: the checks have found the address of a group there in objects of this type.
        let value = unsafe {
            let follow =
                |address: *const u8, offset| address.byte_add(offset).cast::<*const u8>().read();
            let object = follow(follow(boxed.pointer().cast(), VALUE), 0);
            follow(follow(object, self.slots.get()), 0).addr()
        };
        let known = self.known.try_borrow().ok()?;
        let Known(_, object) = known.iter().find(|Known(other, _)| *other == value)?;
        object.as_ref().referent() // as long as it lives, it refers to the same C++ object
    }

    /// Remembers that PyTorch has converted a ScriptObject to `object`.
    pub(crate) fn learn(&self, boxed: Ref<'_>, object: Ref<'_>) {
        let Some(left) = self.checks.get() else {
            return;
        };
        let Some([value]) = copy(object.address() + VALUE) else {
            return self.checks.set(None);
        };
        if left > 0 {
            let is_first = left == CHECKS;
            let leads = |slots: &usize| group_at(boxed, *slots) == Some(value);
            let is_same = |slots: &usize| {
                is_first || (self.slots.get() == *slots && self.kind.get() == boxed.kind())
            };
            let Some(slots) = SLOTS.into_iter().filter(is_same).find(leads) else {
                return self.checks.set(None);
            };
            self.slots.set(slots);
            self.kind.set(boxed.kind());
            self.checks.set(Some(left - 1));
        }
        if let (Some(object), Ok(mut known)) = (object.weak(), self.known.try_borrow_mut()) {
            known.retain(|Known(other, it)| *other != value && it.as_ref().referent().is_some());
            if known.len() < MAX_GROUPS {
                known.push(Known(value, object));
            }
        }
    }
}

/// Address of the group in a ScriptObject whose layout is not known yet.
fn group_at(boxed: Ref<'_>, slots: usize) -> Option<usize> {
    let [value] = copy(boxed.address() + VALUE)?;
    let [object] = copy(value)?;
    let [first] = copy(object + slots)?;
    let [group] = copy(first)?;
    Some(group)
}
