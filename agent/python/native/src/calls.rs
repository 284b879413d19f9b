//! The last call of each thread, and its wait. The same as the functions of these names in
//! `_calls.py`.

use std::cell::Cell;

use ddp_doctor_proto::blackbox::{Call, flags};

use crate::exceptions::{Pending, aside, is_escaping, unless_escaping};
use crate::frame::Frame;
use crate::object::{Owned, Ref};
use crate::panics::guarded;
use crate::python::Pointer;
use crate::state::State;

/// The last call of a thread.
#[derive(Clone, Copy)]
struct Last {
    /// Generation of the black box, which the other fields refer to.
    generation: u64,
    call: u64,
    /// Address of the code of the c10d function that waits for a synchronous call directly after
    /// it; 0: none.
    code: usize,
    site: u32,
    group: u32,
    /// The flags of an asynchronous call that are relevant later; 0: it is synchronous.
    asynchronous: u16,
    /// Whether the call's Work is visible in Python.
    visible: bool,
    /// Whether the call has not returned yet.
    inside: bool,
}

thread_local! {
    static LAST: Cell<Last> = const {
        Cell::new(Last {
            generation: 0,
            call: 0,
            code: 0,
            site: 0,
            group: 0,
            asynchronous: 0,
            visible: false,
            inside: false,
        })
    };
}

/// Where a call was made.
pub(crate) struct Place<'a> {
    pub(crate) group: u32,
    pub(crate) site: u32,
    /// Code of the calling c10d function.
    pub(crate) code: Option<Ref<'a>>,
    pub(crate) visible: bool,
}

/// The last call of this thread, if it is in the open black box.
fn last(state: &State) -> Option<Last> {
    let last = LAST.get();
    (last.generation == state.generation.get() && last.generation != 0).then_some(last)
}

/// Records that a call is issued. Returns its id.
pub(crate) fn begin(state: &State, record: &Call, place: &Place<'_>) -> u64 {
    if let Some(raised) = last(state).filter(|last| last.inside) {
        state.library.returned(raised.call); // it raised before its post-hook
    }
    let call = state.library.issued_at(record, place.group, place.site);
    let is_async = record.flags & flags::ASYNC != 0;
    LAST.set(Last {
        generation: state.generation.get(),
        call,
        code: place.code.map_or(0, Ref::address),
        site: place.site,
        group: place.group,
        asynchronous: u16::from(is_async) * (record.flags & (flags::ASYNC | flags::HIDDEN)),
        visible: place.visible,
        inside: true,
    });
    call
}

/// Records that this thread's call returned a Work.
pub(crate) fn finish(state: &State, work: impl FnOnce() -> Option<Owned>) {
    let Some(last) = last(state).filter(|last| last.inside) else {
        return;
    };
    state.library.returned(last.call);
    let is_waited_for = last.code != 0 && last.asynchronous == 0;
    LAST.set(Last { inside: false, code: if is_waited_for { last.code } else { 0 }, ..last });
    if is_waited_for {
        if state.checking.get()
            && let Some(work) = work()
        {
            state.python.expect.call(&[work.as_ref()]);
        }
        return;
    }
    if !last.visible {
        return;
    }
    let is_users = last.code != 0 && last.asynchronous & flags::HIDDEN == 0;
    let site = if is_users { last.site } else { 0 };
    if let (Some(work), Some(call), Some(site)) =
        (work(), Owned::number(last.call), Owned::int(site.into()))
    {
        let arguments = [work.as_ref(), call.as_ref(), site.as_ref()];
        state.python.remember.call(&arguments);
    }
}

/// Records the return of this thread's call, which has raised.
pub(crate) fn interrupted(state: &State) {
    if let Some(last) = last(state) {
        if last.inside {
            state.library.returned(last.call);
        }
        LAST.set(Last { generation: 0, ..last });
    }
}

/// Whether this thread is inside a recorded call on the group.
pub(crate) fn is_inside(state: &State, group: u32) -> bool {
    last(state).is_some_and(|last| last.inside && last.group == group)
}

/// The id of this thread's last call; 0: it made none.
pub(crate) fn last_call(state: &State) -> u64 {
    last(state).map_or(0, |last| last.call)
}

/// `Work.wait`: calls the original function. The first argument is the Work.
pub(crate) fn wait(
    state: &'static State,
    original: Ref<'_>,
    arguments: &[Ref<'_>],
    keywords: Option<Ref<'_>>,
) -> Pointer {
    let call = aside(|| guarded(|| wait_begins(state, arguments)));
    if is_escaping() {
        return unless_escaping(None);
    }
    let result = original.call_raising(arguments, keywords);
    let mut raised = Pending::take();
    if let Some(exception) = raised.as_mut().and_then(Pending::exception) {
        state.python.record_exception.call(&[exception]);
    }
    if let Some(call) = call {
        state.library.wait_end(call);
    }
    drop(raised);
    unless_escaping(result)
}

/// Records that a wait begins. Returns its call; `None`: nothing was recorded.
fn wait_begins(state: &'static State, arguments: &[Ref<'_>]) -> Option<u64> {
    if state.generation.get() == 0 {
        return None;
    }
    let frame = Frame::current(&state.frames)?;
    let work = *arguments.first()?;
    let last = last(state).filter(|last| last.code != 0);
    let Some(last) = last.filter(|last| is_of(&frame, last.code)) else {
        return state.python.waits.call(&[work, frame.object()])?.as_ref().as_number();
    };
    LAST.set(Last { code: 0, ..last });
    if state.checking.get() {
        let checking = state.python.check.call(&[work])?;
        state.checking.set(checking.as_ref().is_true() == Some(true));
    }
    state.library.wait_begin(last.call, last.site);
    Some(last.call)
}

fn is_of(frame: &Frame, code: usize) -> bool {
    frame.code().is_some_and(|it| it.as_ref().address() == code)
}
