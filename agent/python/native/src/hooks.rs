//! Describes and records a call as `_hooks.issue` does. Calls with anything unusual are left to that
//! function, which is the reference.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{Call, flags};

use crate::calls::{self, Place};
use crate::exceptions::{handled_exception, is_escaping};
use crate::frame::Frame;
use crate::memo::Way;
use crate::object::{Owned, Ref};
use crate::origins::Origin;
use crate::source::Source;
use crate::state::{LIBRARY, State};
use crate::tables::{Arguments, What, tensor};
use crate::training;

/// Records a call of the group before it is made. `None`: it is left to Python.
pub(crate) fn issue(
    state: &'static State,
    source: &Source<'_>,
    frame: Option<&Frame>,
    group: u32,
) -> Option<()> {
    let Some((call, code)) = describe(state, source, frame?)? else {
        return Some(()); // recorded elsewhere
    };
    if !state.signatures.insert(&call) {
        state.python.record_gpu.call(&[source.args(state)?.as_ref()]);
    }
    if let Some(exception) = handled_exception() {
        state.python.in_flight.call(&[exception.as_ref()]);
    }
    if is_escaping() {
        return None; // the call is not made
    }
    // The Works of DDP's reducer are not visible in Python.
    let visible = code.is_some() || call.flags & flags::HIDDEN == 0;
    let place = Place { group, site: call.site, code: code.as_ref().map(Owned::as_ref), visible };
    calls::begin(state, &call, &place);
    if !visible && call.op == Op::AllReduce as u8 {
        training::bucket_sent(state);
    }
    state.sample_memory();
    Some(())
}

/// The hook before a call of the group. `args` are PyTorch's `PreHookArgs`.
pub(crate) fn before(state: &'static State, args: Ref<'_>, group: u32) -> Option<()> {
    let frame = Frame::current(&state.frames);
    issue(state, &Source::of_hook(state, args), frame.as_ref(), group)
        .or_else(|| leave_to_python(state, args, frame.as_ref(), group))
}

/// Calls `_hooks.issue`.
pub(crate) fn leave_to_python(
    state: &State,
    args: Ref<'_>,
    frame: Option<&Frame>,
    group: u32,
) -> Option<()> {
    let none = Owned::none();
    let frame = frame.map_or(none.as_ref(), Frame::object);
    let group = Owned::int(group.into())?;
    state.python.issue.call(&[args, group.as_ref(), frame])?;
    Some(())
}

/// Describes a call, except for its group; also returns the code of the c10d function that makes
/// it, if there is one. `Some(None)`: it is recorded elsewhere. `None`: it is left to Python.
fn describe(
    state: &State,
    source: &Source<'_>,
    frame: &Frame,
) -> Option<Option<(Call, Option<Owned>)>> {
    let code = frame.code()?;
    let Origin { what, is_of_c10d, arguments, site, flags } =
        origin(state, source, frame, code.as_ref())?;
    if !what.is_recorded() {
        return Some(None);
    }
    let is_message = [Op::Send as u8, Op::Recv as u8].contains(&what.op());
    if is_message || what.op() == Op::AllToAll as u8 {
        return None;
    }
    let mut record = Call { op: what.op(), site, root_or_peer: -1, ..Call::default() };
    let function = arguments.map(|arguments| Function { frame, code: code.as_ref(), arguments });
    let is_async = match &function {
        Some(function) => of_function(state, source, what, function, &mut record)?,
        None if is_of_c10d && what.has_more() => return None,
        None => of_source(state, source, what, &mut record)?,
    };
    record.flags |= flags;
    if is_async {
        record.flags |= flags::ASYNC;
    }
    if what.has_root() {
        let root = function.and_then(|it| it.root(state, what)).or_else(|| source.root(state))?;
        if root >= 0 {
            record.root_or_peer = i32::try_from(root).ok()?;
            record.flags |= flags::ROOT;
        }
    }
    Some(Some((record, is_of_c10d.then_some(code))))
}

/// The origin of a call that is made in this frame.
fn origin(state: &State, source: &Source<'_>, frame: &Frame, code: Ref<'_>) -> Option<Origin> {
    if let Some(known) = frame.steps(code).and_then(|steps| state.memo.origins.get(steps)) {
        if known.is_of_c10d {
            return Some(known);
        }
        return Some(Origin { what: state.numbered(source.number(state)?)?, ..known });
    }
    let (_, is_of_c10d) = state.kind(code)?;
    let (what, arguments, start) = if is_of_c10d {
        (state.at_place(code, frame.instruction()?)?, state.arguments(code), frame.back()?)
    } else {
        (state.numbered(source.number(state)?)?, None, frame.again())
    };
    let (user, site, flags) = locate(state, start)?;
    let found = Origin { what, is_of_c10d, arguments, site, flags };
    if let Some(steps) = frame.steps(code) {
        let is_kept = |code| state.memo.is_kept(code);
        state.memo.origins.put(steps, user.as_ref().address(), is_kept, found);
    }
    Some(found)
}

/// Code of the innermost user frame at or outside this one, its site, and the flags of the frames
/// inside it.
fn locate(state: &State, start: Frame) -> Option<(Owned, u32, u16)> {
    let mut flags = 0;
    let mut way = Way::NONE;
    let mut frame = start.again();
    loop {
        let code = frame.code()?;
        let (kind, _) = state.kind(code.as_ref())?;
        if kind == 0 {
            let site = if way == Way::NONE {
                state.site(code.as_ref(), frame.instruction()?)?
            } else {
                state.site_by(way, &frame, &start)?
            };
            return Some((code, site, flags & flags::HIDDEN));
        }
        if kind == LIBRARY {
            way = state.extend(way, code.as_ref(), &frame)?;
        }
        flags |= u16::try_from(kind).ok()?;
        frame = frame.back()?;
    }
}

/// A running c10d function whose arguments describe its call.
struct Function<'a> {
    frame: &'a Frame,
    code: Ref<'a>,
    arguments: Arguments,
}

impl<'a> Function<'a> {
    /// The argument of this name and position, if it is not `None`.
    fn value(&self, name: Ref<'_>, at: u8) -> Option<Owned> {
        let value = self.frame.argument(self.code, name, at)?;
        (!value.as_ref().is_none()).then_some(value)
    }

    /// The root's rank in the group, if it is in an argument.
    fn root(&self, state: &State, what: What) -> Option<i64> {
        let receives = [Op::Reduce as u8, Op::Gather as u8].contains(&what.op());
        let name = if receives { state.names.group_dst } else { state.names.group_src };
        self.value(name, self.arguments.root?)?.as_ref().as_int()
    }
}

/// Reads the arguments of the c10d function. Returns whether the call is asynchronous.
fn of_function(
    state: &State,
    source: &Source<'_>,
    what: What,
    function: &Function<'_>,
    record: &mut Call,
) -> Option<bool> {
    let names = &state.names;
    let arguments = function.arguments;
    if let Some(at) = arguments.op {
        let value = function.value(names.op, at)?;
        record.reduce_op = state.reduce_op(value.as_ref())?;
    } else if source.has_reduce_op() {
        return None;
    }
    match arguments.tensor {
        Some(at) if what.tensor() == tensor::INPUT => {
            let tensor = function.value(names.tensor, at)?;
            set_tensor(state, tensor.as_ref(), record)?;
        }
        _ => set_tensor_of_source(state, source, what, record)?,
    }
    match arguments.async_op {
        Some(at) => function.value(names.async_op, at)?.as_ref().is_true(),
        None => source.is_async(state),
    }
}

/// Reads what the source passes. Returns whether the call is asynchronous.
fn of_source(state: &State, source: &Source<'_>, what: What, record: &mut Call) -> Option<bool> {
    if source.has_reduce_op() {
        return None;
    }
    let tensor = match what.tensor() {
        tensor::INPUT => source.tensor(false),
        tensor::OUTPUT => source.tensor(true).or_else(|| source.tensor(false)),
        _ => None,
    };
    let known = tensor.and_then(|tensor| state.torch.describe(tensor, record));
    if known.is_none() {
        set_tensor_of_source(state, source, what, record)?;
        if let Some(tensor) = tensor {
            state.torch.learn(tensor, record.dtype);
        }
    }
    source.is_async(state)
}

fn set_tensor_of_source(
    state: &State,
    source: &Source<'_>,
    what: What,
    record: &mut Call,
) -> Option<()> {
    let first = match what.tensor() {
        tensor::NONE => return Some(()),
        tensor::INPUT => source.first(state, false)?,
        tensor::OUTPUT => match source.first(state, true)? {
            Some(output) => Some(output),
            None => source.first(state, false)?,
        },
        _ => return None, // a list of tensors
    };
    match first {
        Some(tensor) => set_tensor(state, tensor.as_ref(), record),
        None => {
            record.tensors = 1;
            Some(())
        }
    }
}

fn set_tensor(state: &State, tensor: Ref<'_>, record: &mut Call) -> Option<()> {
    if !state.is_plain_tensor(tensor) {
        return None; // its attributes may be those of a subclass
    }
    record.tensors = 1;
    record.dtype = state.dtype_of(tensor)?;
    let shape = state.shape_of(tensor)?;
    let dimensions = shape.as_ref().tuple_length()?;
    let mut is_known = true;
    record.set_shape((0..dimensions).map_while(|at| {
        let size = shape.as_ref().tuple_item(at).and_then(Ref::as_int);
        is_known = size.is_some();
        size.map(i64::cast_unsigned)
    }));
    is_known.then_some(())
}
