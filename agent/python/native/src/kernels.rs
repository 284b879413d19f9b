//! Kernels that record calls from C++ on PyTorch without hooks. The same as `_kernels.py`, to which calls with
//! anything unusual are left.

use std::array;
use std::cell::{Cell, OnceCell};

use crate::calls;
use crate::exceptions::{Pending, is_escaping, raise, unless_escaping};
use crate::frame::Frame;
use crate::hooks;
use crate::methods;
use crate::object::{Arguments, Owned, Ref};
use crate::panics::guarded;
use crate::python::Pointer;
use crate::source::Source;
use crate::state::State;

/// Maximum number of kernels: one for each operator and dispatch key.
const MAX_KERNELS: usize = 64;

/// The kernel of an operator of c10d. Positions are those of its arguments.
pub(crate) struct Kernel {
    /// The number of the operation in `_hooks.py`.
    pub(crate) number: i64,
    group: usize,
    pub(crate) inputs: Option<usize>,
    pub(crate) outputs: Option<usize>,
    pub(crate) root: Option<usize>,
    /// `(keys, arguments…)`: forwards a call.
    redispatch: Ref<'static>,
    /// The dispatch keys after that of the kernel.
    below: Ref<'static>,
    /// `(script object)` → ProcessGroup
    unbox: Ref<'static>,
    /// `(frame, arguments…)` → whether the call was recorded.
    begins: Ref<'static>,
}

impl Kernel {
    pub(crate) fn new(arguments: &[Ref<'_>]) -> Option<Self> {
        let &[number, group, inputs, outputs, root, redispatch, below, unbox, begins] = arguments
        else {
            return None;
        };
        let position = |at: Ref<'_>| Some(usize::try_from(at.as_int()?).ok());
        let kept = |object: Ref<'_>| object.own().leak();
        Some(Self {
            number: number.as_int()?,
            group: position(group)??,
            inputs: position(inputs)?,
            outputs: position(outputs)?,
            root: position(root)?,
            redispatch: kept(redispatch),
            below: kept(below),
            unbox: kept(unbox),
            begins: kept(begins),
        })
    }
}

/// All kernels.
pub(crate) struct Kernels([OnceCell<Kernel>; MAX_KERNELS], Cell<usize>);

impl Kernels {
    pub(crate) fn new() -> Self {
        Self(array::from_fn(|_| OnceCell::new()), Cell::new(0))
    }

    /// Adds a kernel. Returns its index.
    pub(crate) fn add(&self, kernel: Kernel) -> Option<usize> {
        let index = self.1.get();
        self.0.get(index)?.set(kernel).ok()?;
        self.1.set(index + 1);
        Some(index)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Kernel> {
        self.0.get(index)?.get()
    }
}

/// Records a call and forwards it. The first argument is the set of its dispatch keys.
pub(crate) fn call(
    state: &'static State,
    kernel: &Kernel,
    arguments: &[Ref<'_>],
    keywords: Option<Ref<'_>>,
) -> Pointer {
    let pending = Pending::take();
    let Some((&keys, others)) = arguments.split_first() else {
        return raise(c"a kernel was called without its keys");
    };
    let named = keywords.and_then(Ref::tuple_length).unwrap_or(0).unsigned_abs();
    let positional = others.get(..others.len().saturating_sub(named)).unwrap_or_default();
    let is_recorded = guarded(|| begins(state, kernel, positional)) == Some(true);
    let below = keys.and(kernel.below);
    drop(pending);
    let (Some(below), false) = (below, is_escaping()) else {
        return raise(c"the keys of a kernel are of another type");
    };
    let result =
        kernel.redispatch.call_raising(Arguments::new(below.as_ref(), others).list(), keywords);
    if is_recorded {
        let pending = Pending::take();
        calls::finish(state, || None);
        drop(pending);
    }
    unless_escaping(result)
}

/// Records that the call begins. Returns whether it is recorded.
fn begins(state: &'static State, kernel: &Kernel, arguments: &[Ref<'_>]) -> Option<bool> {
    let frame = Frame::current(&state.frames);
    let boxed = *arguments.get(kernel.group)?;
    if let Some(group) = kernel.unbox.call(&[boxed])
        && let Some(group) = methods::find(state, group.as_ref())
        && !calls::is_inside(state, group.number)
        && is_plain(state, *arguments.first()?)
    {
        let source = Source::Kernel(kernel, arguments);
        if let Some(()) = hooks::issue(state, &source, frame.as_ref(), group.number) {
            return Some(true);
        }
    }
    if is_escaping() {
        return None;
    }
    let none = Owned::none();
    let frame = frame.as_ref().map_or(none.as_ref(), Frame::object);
    let all = Arguments::new(frame, arguments);
    kernel.begins.call(all.list())?.as_ref().is_true()
}

/// Whether a tensor, or the first one of a list, is one of PyTorch's own type.
fn is_plain(state: &State, value: Ref<'_>) -> bool {
    state.is_plain_tensor(value)
        || value.list_item(0).is_some_and(|first| state.is_plain_tensor(first.as_ref()))
}
