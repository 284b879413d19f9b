//! The replaced methods of `ProcessGroup`. The same as `_methods.py`.

use crate::calls;
use crate::exceptions::{Pending, aside, is_escaping, unless_escaping};
use crate::frame::Frame;
use crate::hooks;
use crate::object::{Owned, Ref};
use crate::panics::guarded;
use crate::python::Pointer;
use crate::source::{Source, describe};
use crate::state::State;
use crate::tables::Method;

/// A group whose calls are recorded.
pub(crate) struct RecordedGroup {
    pub(crate) number: u32,
    /// None of its backends is written in Python.
    is_native: bool,
}

/// Enters a guard that makes the dispatcher skip the Autograd keys. `None`: it cannot be entered.
fn enter_guard(state: &State) -> Option<Owned> {
    // A guard can be entered once.
    let guard = state.python.below_autograd.call(&[])?;
    state.python.enter_guard.call(&[guard.as_ref()])?;
    Some(guard)
}

fn exit_guard(state: &State, guard: &Owned) {
    let (guard, none) = (guard.as_ref(), Owned::none());
    let none = none.as_ref();
    state.python.exit_guard.call(&[guard, none, none, none]);
}

/// Calls a replaced method, and records the call. `arguments` begin with the group; the last ones
/// belong to `keywords`.
pub(crate) fn call(
    state: &'static State,
    method: &Method,
    index: usize,
    arguments: &[Ref<'_>],
    keywords: Option<Ref<'_>>,
) -> Pointer {
    let pending = Pending::take();
    let group = arguments.first().and_then(|&group| find(state, group));
    let guard = group.as_ref().and_then(|group| {
        guarded(|| begin(state, method, index, group, arguments, keywords));
        group.is_native.then(|| enter_guard(state))?
    });
    drop(pending);
    if is_escaping() {
        return unless_escaping(None); // no callback follows the guard, so it was not entered
    }
    let result = method.original.call_raising(arguments, keywords);
    if group.is_none() {
        return unless_escaping(result);
    }
    aside(|| {
        if let Some(guard) = guard {
            exit_guard(state, &guard);
        }
        match result.as_ref().map(Owned::as_ref) {
            Some(work) if !work.is_none() => calls::finish(state, || Some(work.own())),
            _ => calls::interrupted(state),
        }
    });
    unless_escaping(result)
}

/// Records that the call begins.
fn begin(
    state: &'static State,
    method: &Method,
    index: usize,
    group: &RecordedGroup,
    arguments: &[Ref<'_>],
    keywords: Option<Ref<'_>>,
) -> Option<()> {
    let others = arguments.get(1..)?;
    let named = keywords.and_then(Ref::tuple_length).unwrap_or(0);
    let positional = others.get(..others.len().checked_sub(named.unsigned_abs())?)?;
    let frame = Frame::current(&state.frames);
    let source = Source::Method(method, index, positional);
    if let Some(()) = hooks::issue(state, &source, frame.as_ref(), group.number) {
        return Some(());
    }
    let args = describe(state, index, others, keywords)?;
    hooks::leave_to_python(state, args.as_ref(), frame.as_ref(), group.number)
}

/// The same as `_groups.find`.
pub(crate) fn find(state: &State, group: Ref<'_>) -> Option<RecordedGroup> {
    let members = &state.group;
    let id = Owned::number(group.address() as u64)?;
    let entry = state.python.groups.value(id.as_ref())?;
    let found = entry.as_ref();
    if members.generation.get(found)?.as_ref().as_number()? != state.generation.get() {
        return None;
    }
    let referent = members.reference.get(found)?.as_ref().call(&[])?;
    if referent.as_ref() != group {
        return None;
    }
    Some(RecordedGroup {
        number: u32::try_from(members.number.get(found)?.as_ref().as_number()?).ok()?,
        is_native: members.is_native.get(found)?.as_ref().is_true()?,
    })
}
