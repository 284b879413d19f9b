//! What passes a call to this library: a hook of PyTorch, a replaced method of `ProcessGroup`, or a kernel.

use crate::object::{self, Owned, Ref};
use crate::state::State;
use crate::tables::{Kernel, Method};
use crate::torch::{Attributes, HookArguments, Tensor};

/// What passes a call to this library.
pub(crate) enum Source<'a> {
    /// PyTorch's `PreHookArgs`, and the arguments behind it if their layout is known.
    Hook(Ref<'a>, Option<&'a HookArguments>),
    /// A method of `ProcessGroup`, with its index and the arguments after the group.
    Method(&'a Method, usize, &'a [Ref<'a>]),
    /// An operator of c10d, with its arguments.
    Kernel(&'a Kernel, &'a [Ref<'a>]),
}

impl<'a> Source<'a> {
    /// The source of a hook.
    pub(crate) fn of_hook(state: &State, args: Ref<'a>) -> Self {
        state.trust.check(args, || attributes(state, args));
        Self::Hook(args, state.trust.arguments(args))
    }

    /// The C++ object of [`Source::first`], if it is known.
    pub(crate) fn tensor(&self, outputs: bool) -> Option<Tensor> {
        match *self {
            Self::Hook(_, Some(known)) => known.first(outputs),
            _ => None,
        }
    }

    /// The first tensor of the inputs or outputs; `Some(None)`: there is none.
    pub(crate) fn first(&self, state: &State, outputs: bool) -> Option<Option<Owned>> {
        let tensors = match *self {
            Self::Hook(args, _) if outputs => args.attribute(state.names.output_tensors)?,
            Self::Hook(args, _) => args.attribute(state.names.input_tensors)?,
            Self::Method(Method { inputs, outputs: output, .. }, _, arguments)
            | Self::Kernel(Kernel { inputs, outputs: output, .. }, arguments) => {
                let Some(at) = (if outputs { *output } else { *inputs }) else {
                    return Some(None);
                };
                let value = *arguments.get(at)?;
                if state.is_plain_tensor(value) {
                    return Some(Some(value.own()));
                }
                value.own()
            }
        };
        if tensors.as_ref().length()? == 0 {
            return Some(None);
        }
        tensors.as_ref().item(0).map(Some)
    }

    pub(crate) fn root(&self, state: &State) -> Option<i64> {
        match *self {
            Self::Hook(_, Some(known)) => return Some(known.root()),
            Self::Hook(args, None) => args.attribute(state.names.root)?,
            Self::Method(method, _, arguments) => {
                let options = *arguments.get(method.options?)?;
                options.attribute(state.names.root_rank)?
            }
            Self::Kernel(kernel, arguments) => match kernel.root {
                Some(at) => arguments.get(at)?.own(),
                None => Owned::int(-1)?,
            },
        }
        .as_ref()
        .as_int()
    }

    /// PyTorch's number of the operation.
    pub(crate) fn number(&self, state: &State) -> Option<i64> {
        match *self {
            Self::Hook(_, Some(known)) => Some(known.number()),
            Self::Hook(args, None) => args.attribute(state.names.name)?.as_ref().to_int(),
            Self::Method(method, ..) => Some(method.number),
            Self::Kernel(kernel, _) => Some(kernel.number),
        }
    }

    /// Whether the call is asynchronous, if the source itself says it.
    pub(crate) fn is_async(&self, state: &State) -> Option<bool> {
        match *self {
            Self::Hook(_, Some(known)) => Some(known.is_async()),
            Self::Hook(args, None) => args.attribute(state.names.async_op)?.as_ref().is_true(),
            Self::Method(..) => None,
            Self::Kernel(..) => Some(true),
        }
    }

    /// The call as `_hooks.issue` expects it; `None`: its first call is left to Python.
    pub(crate) fn args(&self, state: &State) -> Option<Owned> {
        match *self {
            Self::Hook(args, _) => Some(args.own()),
            Self::Method(_, index, arguments) => describe(state, index, arguments, None),
            Self::Kernel(..) => None,
        }
    }

    /// Whether the source itself has a reduction operator.
    pub(crate) fn has_reduce_op(&self) -> bool {
        matches!(self, Self::Method(method, ..) if method.reduces)
    }
}

/// The call as `_hooks.issue` expects it.
pub(crate) fn describe(
    state: &State,
    index: usize,
    arguments: &[Ref<'_>],
    keywords: Option<Ref<'_>>,
) -> Option<Owned> {
    let index = Owned::int(index as i64)?;
    let all = object::Arguments::new(index.as_ref(), arguments);
    state.python.described.call_with(all.list(), keywords)
}

/// What the attributes of PyTorch's `PreHookArgs` return.
fn attributes(state: &State, args: Ref<'_>) -> Option<Attributes> {
    let source = Source::Hook(args, None);
    let tensors = |name| {
        let list = args.attribute(name)?;
        let length = list.as_ref().length()?;
        let first = match length {
            0 => 0,
            _ => list
                .as_ref()
                .item(0)?
                .as_ref()
                .attribute(state.names.address)?
                .as_ref()
                .as_number()?,
        };
        Some((length.unsigned_abs(), usize::try_from(first).ok()?))
    };
    Some(Attributes {
        number: source.number(state)?,
        is_async: source.is_async(state)?,
        root: source.root(state)?,
        inputs: tensors(state.names.input_tensors)?,
        outputs: tensors(state.names.output_tensors)?,
    })
}
