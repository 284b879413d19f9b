//! Kernels that record calls from C++ on PyTorch without hooks. The same as `_kernels.py`, to which calls with
//! anything unusual are left.

use crate::calls;
use crate::exceptions::{Pending, aside, is_escaping, raise, unless_escaping};
use crate::frame::Frame;
use crate::hooks;
use crate::methods;
use crate::object::{Arguments, Owned, Ref};
use crate::panics::guarded;
use crate::python::Pointer;
use crate::source::Source;
use crate::state::State;
use crate::tables::Kernel;

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
        aside(|| calls::finish(state, || None));
    }
    unless_escaping(result)
}

/// Records that the call begins. Returns whether it is recorded.
fn begins(state: &'static State, kernel: &Kernel, arguments: &[Ref<'_>]) -> Option<bool> {
    let frame = Frame::current(&state.frames);
    let boxed = *arguments.get(kernel.group)?;
    if let Some(group) = state.boxes.find(boxed).or_else(|| convert(state, kernel, boxed))
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

/// Lets PyTorch convert a ScriptObject to the group.
fn convert(state: &State, kernel: &Kernel, boxed: Ref<'_>) -> Option<Owned> {
    let group = kernel.unbox.call(&[boxed])?;
    state.boxes.learn(boxed, group.as_ref());
    Some(group)
}

/// Whether a tensor, or the first one of a list, is one of PyTorch's own type.
fn is_plain(state: &State, value: Ref<'_>) -> bool {
    state.is_plain_tensor(value)
        || value.list_item(0).is_some_and(|first| state.is_plain_tensor(first.as_ref()))
}
