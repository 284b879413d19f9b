//! Forwards and backward passes of DDP's models. The same as `_patch.py`, `_backward.py` and `_buckets.py`
//! of the package's folder `_ddp`, whose variables it uses. What is rare is left to them and to
//! `_parameters.py`.

use std::cell::Cell;

use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::vocabulary::Spending;

use crate::exceptions::{Pending, aside, is_escaping, unless_escaping};
use crate::frame::Frame;
use crate::library;
use crate::object::{self, Attribute, Owned, Ref, bool};
use crate::panics::guarded;
use crate::python::Pointer;
use crate::state::State;
use crate::variables::Training;

/// States of a thread's backward; any other value is the time at which the wait began, in nanoseconds.
const NOTHING_SENT: u64 = 0;
const UNDER_WAY: u64 = 1;

thread_local! {
    /// Generation of the black box, and state of this thread's innermost backward in it; `None`: no backward.
    static BACKWARD: Cell<(u64, Option<u64>)> = const { Cell::new((0, None)) };
}

/// State of this thread's innermost backward.
fn backward(state: &State) -> Option<u64> {
    let (generation, backward) = BACKWARD.get();
    backward.filter(|_| generation == state.generation.get())
}

fn set_backward(state: &State, backward: Option<u64>) {
    BACKWARD.set((state.generation.get(), backward));
}

/// `_MOST_OUTSIDE` of `_parameters.py`.
const MAX_OUTSIDE: i64 = 3;

/// Calls a function of the package with this thread's frame as the last argument.
fn call_with_frame(
    state: &'static State,
    function: Ref<'_>,
    arguments: [Ref<'_>; 2],
) -> Option<()> {
    let frame = Frame::current(&state.frames)?;
    let [first, second] = arguments;
    function.call(&[first, second, frame.object()]).map(drop)
}

/// Called before a forward, as `_patch.begins`.
pub(crate) fn forward(
    state: &'static State,
    module: Ref<'_>,
    inputs: Ref<'_>,
    keywords: Ref<'_>,
) -> Option<()> {
    let this = &state.training;
    let names = &this.names;
    let is_enabled = state.torch.is_grad_enabled();
    if !is_enabled.or_else(|| this.grad_enabled.call(&[])?.as_ref().is_true())? {
        return this.forward.call(&[module, inputs, keywords]).map(drop);
    }
    let synchronizes = module.own_attribute(names.sync);
    let id = Owned::number(module.address() as u64)?;
    if let Some(model) = this.by_module.value(id.as_ref()) {
        forward_of(state, model.as_ref(), module, synchronizes.as_ref()?.as_ref())?;
    }
    if !this.steps.value(names.automatic)?.as_ref().is_true()?
        || !module.own_attribute(names.training)?.as_ref().is_true()?
        || !is_stepper(this, module)?
    {
        return Some(());
    }
    let mut flags = if is_repeated(state, inputs, keywords) { flags::REPEATED } else { 0 };
    if synchronizes.is_some_and(|it| it.as_ref().is_true() == Some(false)) {
        flags |= flags::UNSYNCHRONISED;
    }
    let updates = update_flags(this).or_else(|| {
        let updates = this.update_flags.call(&[module])?;
        u16::try_from(updates.as_ref().as_int()?).ok()
    });
    flags |= updates.unwrap_or(0);
    let frame = Frame::current(&state.frames)?;
    let site = this.paths.site(&frame, |frame| {
        let site = this.path_of.call(&[frame.object()])?;
        u32::try_from(site.as_ref().as_int()?).ok()
    })?;
    if is_escaping() {
        return None; // the forward is not run
    }
    state.library.forward(site, drawn(this).unwrap_or(-1), flags.into());
    state.sample_memory();
    Some(())
}

/// As `_parameters.forward_begins`, for the model of a module.
fn forward_of(
    state: &'static State,
    model: Ref<'_>,
    module: Ref<'_>,
    synchronizes: Ref<'_>,
) -> Option<()> {
    let members = &state.training.members;
    members.forward.set(model, bool(true))?;
    members.outside.set(model, Owned::int(0)?.as_ref())?;
    members.synchronizes.set(model, synchronizes)?;
    let compared = members.compared.get(model)?;
    if !compared.as_ref().is_none()
        && compared.as_ref().as_int()? != members.finished.get(model)?.as_ref().as_int()?
    {
        call_with_frame(state, state.training.compare, [model, module])?;
    }
    Some(())
}

/// Whether the forwards of this module are the steps.
fn is_stepper(this: &Training, module: Ref<'_>) -> Option<bool> {
    let stepper = this.steps.value(this.names.stepper)?;
    let known = if stepper.as_ref().is_none() { None } else { stepper.as_ref().referent() };
    match known {
        Some(known) => Some(known.as_ref() == module),
        None => {
            this.steps.set_value(this.names.stepper, Some(module.weak()?.as_ref()))?;
            Some(true)
        }
    }
}

/// Whether the first input is that of the previous forward.
fn is_repeated(state: &'static State, inputs: Ref<'_>, keywords: Ref<'_>) -> bool {
    let this = &state.training;
    let repeated = match inputs.tuple_item(0) {
        Some(tensor) if state.is_plain_tensor(tensor) => same_input(this, tensor),
        _ => this.is_repeated.call(&[inputs, keywords]).and_then(|it| it.as_ref().is_true()),
    };
    repeated == Some(true)
}

fn same_input(this: &Training, tensor: Ref<'_>) -> Option<bool> {
    let last = this.steps.value(this.names.last_input)?;
    let known = if last.as_ref().is_none() { None } else { last.as_ref().referent() };
    if known.is_some_and(|known| known.as_ref() == tensor) {
        return Some(true);
    }
    this.steps.set_value(this.names.last_input, Some(tensor.weak()?.as_ref()))?;
    Some(false)
}

/// As `_patch.update_flags`; `None`: it has to choose parameters first.
fn update_flags(this: &Training) -> Option<u16> {
    let watched = this.steps.value(this.names.watched)?;
    let versions = this.steps.value(this.names.versions)?;
    let (watched, versions) = (watched.as_ref(), versions.as_ref());
    let version = |at| this.version_of.get(watched.tuple_item(at)?.referent()?.as_ref());
    let last = watched.tuple_length()?.checked_sub(1)?;
    if last < 0 {
        return None;
    }
    // The first and the last parameter, or the only one.
    let (first, second) = (version(0)?, version(last)?);
    let differs =
        |at, now: &Owned| Some(now.as_ref().as_int()? != versions.tuple_item(at)?.as_int()?);
    if !differs(0, &first)? && !differs(last, &second)? {
        return Some(flags::SEES_UPDATES);
    }
    let all = [first.as_ref(), second.as_ref()];
    let now = object::tuple(all.get(..last.unsigned_abs() + 1)?)?;
    this.steps.set_value(this.names.versions, Some(now.as_ref()))?;
    Some(flags::SEES_UPDATES | flags::UPDATED)
}

/// Number of batches drawn, as `_data.drawn`.
fn drawn(this: &Training) -> Option<i64> {
    let last = this.inputs.value(this.names.last)?;
    this.inputs.value(this.names.drawn)?.as_ref().value(last.as_ref())?.as_ref().as_int()
}

/// Called before a backward. Returns what [`backward_ended`] needs: the state of the thread's outer
/// backward, or `None`.
pub(crate) fn backward_begins(state: &'static State) -> Option<Owned> {
    let this = &state.training;
    begins_of_models(this);
    if state.generation.get() == 0 {
        return None;
    }
    let outer = backward(state);
    set_backward(state, Some(NOTHING_SENT));
    Owned::number(outer?)
}

fn begins_of_models(this: &Training) -> Option<()> {
    let members = &this.members;
    this.running.append(Owned::none().as_ref())?;
    if this.running.length()? > 1 {
        return Some(());
    }
    for at in 0..this.models.length()? {
        let item = this.models.item(at)?;
        let model = item.as_ref();
        if !members.forward.get(model)?.as_ref().is_true()?
            && members.outside.get(model)?.as_ref().as_int()? < MAX_OUTSIDE
        {
            this.begins_outside.call(&[model])?;
        }
    }
    Some(())
}

/// Called when DDP sends a bucket from this thread, as `_buckets.sent`.
pub(crate) fn bucket_sent(state: &'static State) -> Option<()> {
    let this = &state.training;
    let names = &this.names;
    if backward(state)? != NOTHING_SENT || this.buckets.value(names.hooked)?.as_ref().is_true()? {
        return Some(());
    }
    let queue = this.buckets.value(names.queue_callback)?;
    if queue.as_ref().is_none() {
        return Some(());
    }
    set_backward(state, Some(UNDER_WAY));
    if queue.as_ref() == this.queue_callback && state.torch.queue(graph_done) {
        return Some(());
    }
    queue.as_ref().call(&[this.buckets.value(names.waits)?.as_ref()]).map(drop)
}

/// Called when the graph of this thread's backward is done, without the GIL.
pub(crate) fn graph_done() {
    if let (generation, Some(UNDER_WAY)) = BACKWARD.get() {
        BACKWARD.set((generation, Some(library::nanoseconds())));
    }
}

/// Called when a backward has returned (`well`) or raised, as `_backward.ended`.
pub(crate) fn backward_ended(state: &'static State, outer: Ref<'_>, well: bool) -> Option<()> {
    let this = &state.training;
    let since = backward(state);
    set_backward(state, if outer.is_none() { None } else { outer.as_number() });
    if !well {
        return Some(());
    }
    if let Some(since) = since.filter(|&since| since > UNDER_WAY) {
        state.library.spent(Spending::Buckets as i32, library::nanoseconds().saturating_sub(since));
    }
    if this.running.pop()? > 0 {
        return Some(());
    }
    for at in 0..this.models.length()? {
        let item = this.models.item(at)?;
        let model = item.as_ref();
        let reference = this.members.reference.get(model)?;
        if let Some(module) = reference.as_ref().referent()
            && !check(this, model, module.as_ref())?
        {
            call_with_frame(state, this.check_model, [model, module.as_ref()])?;
        }
    }
    Some(())
}

/// As `_parameters.check`, if all gradients are there. Returns false, and has changed nothing, if anything else is
/// to be checked.
fn check(this: &Training, model: Ref<'_>, module: Ref<'_>) -> Option<bool> {
    let members = &this.members;
    let is = |member: &Attribute| member.get(model)?.as_ref().is_true();
    if !is(&members.forward)? || !is(&members.is_plain)? {
        return Some(false);
    }
    let all_there = module
        .own_attribute(this.names.reducer)
        .and_then(|reducer| reducer.as_ref().attribute(this.names.check_finalized))
        .and_then(|check| check.as_ref().call(&[]));
    if all_there.is_none() {
        return Some(false);
    }
    members.forward.set(model, bool(false))?;
    if is(&members.synchronizes)? {
        members.synchronizes.set(model, bool(false))?;
        let finished = members.finished.get(model)?.as_ref().as_int()?;
        members.finished.set(model, Owned::int(finished + 1)?.as_ref())?;
    }
    Some(true)
}

/// `_engine_run_backward`: calls the original function, as `_backward._wrap`.
pub(crate) fn run_backward(
    state: &'static State,
    original: Ref<'_>,
    arguments: &[Ref<'_>],
    keywords: Option<Ref<'_>>,
) -> Pointer {
    let outer = aside(|| guarded(|| backward_begins(state)).unwrap_or_else(Owned::none));
    if is_escaping() {
        return unless_escaping(None);
    }
    let result = original.call_raising(arguments, keywords);
    let mut raised = Pending::take();
    guarded(|| backward_ended(state, outer.as_ref(), result.is_some()));
    if let Some(exception) = raised.as_mut().and_then(Pending::exception) {
        guarded(|| {
            let frame = Frame::current(&state.frames)?;
            state.training.backward_raised.call(&[exception, frame.object()]).map(drop)
        });
    }
    drop(raised);
    unless_escaping(result)
}
