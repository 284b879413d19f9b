//! `libddp_doctor_python.so`: the common path of the Python capture as an extension of CPython.
//!
//! The hooks, `Work.wait` and the replaced methods of `ProcessGroup` do what `_hooks.py`, `_calls.py`
//! and `_methods.py` of the Python package do, for calls without anything unusual; all other calls
//! are passed to `_hooks.py`. One file serves CPython 3.9 to 3.14: it uses the limited API, and looks up newer
//! functions by name. It links to nothing but libc, and finds the interpreter's functions in the
//! process that loads it.
//!
//! No function raises an `Exception` into the user's call, or changes an exception that is set.
//! Others, such as the `KeyboardInterrupt` of a signal handler that runs in a callback, are raised,
//! as by the Python code.
#![expect(unsafe_code, reason = "is called by the interpreter")]

mod calls;
mod hooks;
mod interpreter;
mod kernels;
mod library;
mod memo;
mod methods;
mod origins;
mod paths;
mod signatures;
mod source;
mod state;
mod tables;
mod torch;
mod training;
mod variables;

use std::ffi::CStr;
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use calls::Place;
use ddp_doctor_proto::blackbox::Call;
use exceptions::{aside, raise, unless_escaping};
use interpreter::{exceptions, frame, object, panics, python};
use library::Library;
use object::{Owned, Ref, none};
use panics::guarded;
use python::{
    API_VERSION, Implementation, METH_FASTCALL, METH_KEYWORDS, METH_O, MethodDef, ModuleDef,
    Pointer, PyCFunction_NewEx, PyDescr_NewMethod, PyModule_Create2,
};
use state::State;
use tables::{Kernel, MAX_METHODS, Method};

/// The state, which is used with the GIL only.
struct Shared(State);

// SAFETY: the GIL keeps threads apart.
unsafe impl Send for Shared {}
// SAFETY: the GIL keeps threads apart.
unsafe impl Sync for Shared {}

static STATE: OnceLock<Shared> = OnceLock::new();

/// Runs `work` if the state exists.
fn with_state<T: Default>(work: impl FnOnce(&'static State) -> Option<T>) -> T {
    let state = STATE.get().map(|it| &it.0);
    state.and_then(|state| guarded(|| work(state))).unwrap_or_default()
}

/// Runs `work` as a function of Python that returns `None` and leaves the set exception as it is.
fn quietly(work: impl FnOnce(&'static State) -> Option<()>) -> Pointer {
    aside(|| with_state(work));
    unless_escaping(Some(Owned::none()))
}

/// The arguments of a function.
///
/// # Safety
///
/// `arguments` points to `count` live objects.
unsafe fn list<'a>(arguments: *const Pointer, count: isize) -> &'a [Ref<'a>] {
    if arguments.is_null() || count <= 0 {
        return &[];
    }
    // SAFETY: a `Ref` is a pointer to an object, and the caller vouches for the objects.
    unsafe { slice::from_raw_parts(arguments.cast(), count.unsigned_abs()) }
}

/// The positional and named values of a call, and the names of the latter.
///
/// # Safety
///
/// `arguments` has `count` live objects, and one for each name in `keywords`, a tuple or null.
unsafe fn passed<'a>(
    arguments: *const Pointer,
    count: isize,
    keywords: Pointer,
) -> (&'a [Ref<'a>], Option<Ref<'a>>) {
    // SAFETY: by the contract of this function.
    unsafe {
        let keywords = Ref::new(keywords);
        let named = keywords.and_then(Ref::tuple_length).unwrap_or(0);
        (list(arguments, count + named), keywords)
    }
}

/// Group and generation, as the `self` of a hook.
fn group_of(this: Pointer) -> Option<(u32, u64)> {
    // SAFETY: the function was made with an integer, which it keeps alive.
    let key = unsafe { Ref::new(this) }?.as_number()?;
    Some((key as u32, key >> 32))
}

/// The hook before a call: `(args)`.
unsafe extern "C" fn before(this: Pointer, args: Pointer) -> Pointer {
    quietly(|state| {
        let (group, generation) = group_of(this)?;
        if generation != state.generation.get() {
            return None;
        }
        // SAFETY: the interpreter passes a live object.
        hooks::before(state, unsafe { Ref::new(args) }?, group)
    })
}

/// The hook after a call: `(args)`.
unsafe extern "C" fn after(_this: Pointer, args: Pointer) -> Pointer {
    quietly(|state| {
        // SAFETY: the interpreter passes a live object.
        let args = unsafe { Ref::new(args) }?;
        calls::finish(state, || args.attribute(state.names.work));
        Some(())
    })
}

/// `Work.wait`, with the arguments of the original.
unsafe extern "C" fn wait(
    this: Pointer,
    arguments: *const Pointer,
    count: isize,
    keywords: Pointer,
) -> Pointer {
    // SAFETY: the interpreter passes live objects, of which `keywords` may be null and names the
    // last values.
    unsafe {
        let state = STATE.get().map(|it| &it.0);
        let wait = state.and_then(|state| Some((state, *state.original_wait.get()?)));
        let (Some(work), Some((state, original))) = (Ref::new(this), wait) else {
            return raise(c"this Work has no function wait");
        };
        let (arguments, keywords) = passed(arguments, count, keywords);
        let all = object::Arguments::new(work, arguments);
        calls::wait(state, original, all.list(), keywords)
    }
}

/// `(record, group, site, code, flags, visible)` → call; `record` is an address. Its flags include
/// `flags`.
unsafe extern "C" fn begin(_this: Pointer, arguments: *const Pointer, count: isize) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let arguments = unsafe { list(arguments, count) };
    let call = with_state(|state| {
        let &[record, group, site, code, _flags, visible] = arguments else {
            return None;
        };
        let record =
            ptr::with_exposed_provenance::<Call>(usize::try_from(record.as_number()?).ok()?);
        let place = Place {
            group: group.as_number()? as u32,
            site: site.as_number()? as u32,
            code: Some(code).filter(|code| !code.is_none()),
            visible: visible.is_true()?,
        };
        if !record.is_aligned() {
            return None;
        }
        // SAFETY: the package passes the address of a record that it keeps alive.
        let record = unsafe { record.as_ref() }?;
        Some(calls::begin(state, record, &place))
    });
    unless_escaping(Some(Owned::number(call).unwrap_or_else(Owned::none)))
}

/// `(work)`: this thread's call returned it.
unsafe extern "C" fn finish(_this: Pointer, work: Pointer) -> Pointer {
    quietly(|state| {
        // SAFETY: the interpreter passes a live object.
        let work = unsafe { Ref::new(work) }?;
        calls::finish(state, || Some(work.own()));
        Some(())
    })
}

/// `()`: this thread's call has raised.
unsafe extern "C" fn interrupted(
    _this: Pointer,
    _arguments: *const Pointer,
    _count: isize,
) -> Pointer {
    quietly(|state| {
        calls::interrupted(state);
        Some(())
    })
}

/// `(group)` → whether this thread is inside a recorded call on it, as an integer.
unsafe extern "C" fn is_inside(_this: Pointer, group: Pointer) -> Pointer {
    let recorded = with_state(|state| {
        // SAFETY: the interpreter passes a live object.
        let group = unsafe { Ref::new(group) }?.as_number()?;
        Some(calls::is_inside(state, u32::try_from(group).ok()?))
    });
    let inside = Owned::int(recorded.into());
    unless_escaping(Some(inside.unwrap_or_else(Owned::none)))
}

/// `(nothing)` → the id of this thread's last call; 0: it made none.
unsafe extern "C" fn last_call(_this: Pointer, _nothing: Pointer) -> Pointer {
    let call = with_state(|state| Some(calls::last_call(state)));
    unless_escaping(Some(Owned::number(call).unwrap_or_else(Owned::none)))
}

/// `(generation)`: a black box was opened; 0: there is none any more.
unsafe extern "C" fn bind(_this: Pointer, generation: Pointer) -> Pointer {
    quietly(|state| {
        // SAFETY: the interpreter passes a live object.
        state.bind(unsafe { Ref::new(generation) }?.as_number()?);
        Some(())
    })
}

/// `(module, inputs, kwargs)`: a forward begins.
unsafe extern "C" fn forward(_this: Pointer, arguments: *const Pointer, count: isize) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let arguments = unsafe { list(arguments, count) };
    quietly(|state| {
        let &[module, inputs, keywords] = arguments else {
            return None;
        };
        training::forward(state, module, inputs, keywords)
    })
}

/// `()` → what `backward_ended` needs: a backward begins.
unsafe extern "C" fn backward_begins(
    _this: Pointer,
    _arguments: *const Pointer,
    _count: isize,
) -> Pointer {
    let outer = with_state(|state| Some(training::backward_begins(state)));
    unless_escaping(Some(outer.unwrap_or_else(Owned::none)))
}

/// `(outer, well)`: a backward has returned (`well`) or raised.
unsafe extern "C" fn backward_ended(
    _this: Pointer,
    arguments: *const Pointer,
    count: isize,
) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let arguments = unsafe { list(arguments, count) };
    quietly(|state| {
        let &[outer, well] = arguments else {
            return None;
        };
        training::backward_ended(state, outer, well.is_true()?)
    })
}

/// `_engine_run_backward`, with the arguments of the original.
unsafe extern "C" fn run_backward(
    _this: Pointer,
    arguments: *const Pointer,
    count: isize,
    keywords: Pointer,
) -> Pointer {
    // SAFETY: the interpreter passes live objects, of which `keywords` may be null and names the
    // last values.
    unsafe {
        let state = STATE.get().map(|it| &it.0);
        let found = state.and_then(|state| Some((state, *state.training.original_backward.get()?)));
        let Some((state, original)) = found else {
            return raise(c"this function was not replaced");
        };
        let (arguments, keywords) = passed(arguments, count, keywords);
        training::run_backward(state, original, arguments, keywords)
    }
}

/// `(original)` → the function to call instead of it for a backward.
unsafe extern "C" fn wrap_backward(_this: Pointer, original: Pointer) -> Pointer {
    // SAFETY: the interpreter passes a live object.
    let original = unsafe { Ref::new(original) };
    let wrapped = STATE.get().zip(original).and_then(|(state, original)| {
        state.0.training.original_backward.set(original.own().leak()).ok()
    });
    if wrapped.is_none() {
        return raise(c"the extension is not prepared, or the function is wrapped already");
    }
    // SAFETY: the definition is constant.
    unsafe { PyCFunction_NewEx(&raw const BACKWARD, ptr::null_mut(), ptr::null_mut()) }
}

/// `()`: DDP sends a bucket from this thread.
unsafe extern "C" fn bucket_sent(
    _this: Pointer,
    _arguments: *const Pointer,
    _count: isize,
) -> Pointer {
    quietly(training::bucket_sent)
}

/// `()`: the graph of this thread's backward is done.
unsafe extern "C" fn graph_done(
    _this: Pointer,
    _arguments: *const Pointer,
    _count: isize,
) -> Pointer {
    training::graph_done();
    unless_escaping(Some(Owned::none()))
}

/// The kernel of an operator of c10d: `(keys, arguments…)`.
unsafe extern "C" fn kernel(
    this: Pointer,
    arguments: *const Pointer,
    count: isize,
    keywords: Pointer,
) -> Pointer {
    // SAFETY: the interpreter passes live objects, of which `keywords` may be null and names the
    // last values. The function was made with an integer.
    unsafe {
        let state = STATE.get().map(|it| &it.0);
        let index = Ref::new(this).and_then(Ref::as_int).and_then(|it| usize::try_from(it).ok());
        let found =
            state.zip(index).and_then(|(state, index)| Some((state, state.kernels.get(index)?)));
        let Some((state, kernel)) = found else {
            return raise(c"this kernel was not made");
        };
        let (arguments, keywords) = passed(arguments, count, keywords);
        kernels::call(state, kernel, arguments, keywords)
    }
}

/// `(number, group, inputs, outputs, root, redispatch, below, unbox, begins)` → a kernel. Positions
/// are -1 for arguments that do not exist.
unsafe extern "C" fn make_kernel(
    _this: Pointer,
    arguments: *const Pointer,
    count: isize,
) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let arguments = unsafe { list(arguments, count) };
    let index = with_state(|state| Some(state.kernels.add(Kernel::new(arguments)?)));
    let Some(index) = index.and_then(|index| Owned::int(index as i64)) else {
        return raise(c"make_kernel was called with other arguments, or too often");
    };
    // SAFETY: the definition is constant. The function keeps the index.
    unsafe { PyCFunction_NewEx(&raw const KERNEL, index.as_ref().pointer(), ptr::null_mut()) }
}

/// `(passed, issued_at, returned, wait_begin, wait_end, forward, spent)`: what the package passes, and the
/// addresses of functions of `libddp_doctor.so`.
unsafe extern "C" fn prepare(_this: Pointer, arguments: *const Pointer, count: isize) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let arguments = unsafe { list(arguments, count) };
    let made = guarded(|| {
        let [passed, addresses @ ..] = arguments else {
            return None;
        };
        let address = |it: &Ref<'_>| usize::try_from(it.as_number()?).ok();
        let addresses =
            addresses.iter().map(address).collect::<Option<Vec<_>>>()?.try_into().ok()?;
        // SAFETY: the package passes the addresses of these functions.
        let library = unsafe { Library::new(addresses) }?;
        STATE.set(Shared(State::new(library, *passed)?)).ok()
    });
    match made {
        Some(()) => none(),
        _ => {
            raise(c"the extension was prepared already, or something that it needs was not passed")
        }
    }
}

/// `(type, original, doc)` → the method `wait` of this type, in place of the original.
unsafe extern "C" fn wrap_wait(_this: Pointer, arguments: *const Pointer, count: isize) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let &[kind, original, doc] = (unsafe { list(arguments, count) }) else {
        return raise(c"wrap_wait takes a type, a function and its documentation");
    };
    let wrapped = STATE.get().map(|state| state.0.original_wait.set(original.own().leak()));
    if wrapped != Some(Ok(())) {
        return raise(c"the extension is not prepared, or Work.wait is wrapped already");
    }
    descriptor(kind, c"wait", wait, doc)
}

/// A method of a type that calls `implementation`.
fn descriptor(
    kind: Ref<'_>,
    name: &'static CStr,
    implementation: python::FastWithKeywords,
    doc: Ref<'_>,
) -> Pointer {
    let definition = Box::leak(Box::new(MethodDef {
        name: name.as_ptr(),
        function: Implementation { with_keywords: implementation },
        flags: METH_FASTCALL | METH_KEYWORDS,
        doc: object::constant(doc).map_or(ptr::null(), CStr::as_ptr),
    }));
    // SAFETY: the definition lives forever; a null pointer comes with an exception.
    unsafe { PyDescr_NewMethod(kind.pointer(), definition) }
}

/// A replaced method of `ProcessGroup`, with the arguments of the original.
unsafe extern "C" fn method<const INDEX: usize>(
    this: Pointer,
    arguments: *const Pointer,
    count: isize,
    keywords: Pointer,
) -> Pointer {
    // SAFETY: the interpreter passes live objects, of which `keywords` may be null and names the
    // last values.
    unsafe {
        let state = STATE.get().map(|it| &it.0);
        let method = state.and_then(|state| Some((state, state.methods.get(INDEX)?.get()?)));
        let (Some(group), Some((state, method))) = (Ref::new(this), method) else {
            return raise(c"this method was not replaced");
        };
        let (arguments, keywords) = passed(arguments, count, keywords);
        let all = object::Arguments::new(group, arguments);
        methods::call(state, method, INDEX, all.list(), keywords)
    }
}

/// The implementations of the replaced methods.
macro_rules! implementations {
    ($($index:literal)*) => { [$(method::<$index>),*] };
}
static METHODS: [python::FastWithKeywords; MAX_METHODS] =
    implementations!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23);

/// `(index, type, name, original, doc, number, inputs, outputs, options, reduces)` → a method of
/// this type, in place of the original. Positions are -1 for arguments that do not exist.
unsafe extern "C" fn wrap_method(
    _this: Pointer,
    arguments: *const Pointer,
    count: isize,
) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let arguments = unsafe { list(arguments, count) };
    let made = || {
        let &[index, kind, name, original, doc, number, inputs, outputs, options, reduces] =
            arguments
        else {
            return None;
        };
        let index = usize::try_from(index.as_int()?).ok()?;
        let position = |at: Ref<'_>| Some(usize::try_from(at.as_int()?).ok());
        let method = Method {
            original: original.own().leak(),
            number: number.as_int()?,
            inputs: position(inputs)?,
            outputs: position(outputs)?,
            options: position(options)?,
            reduces: reduces.is_true()?,
        };
        let implementation = *METHODS.get(index)?;
        STATE.get()?.0.methods.get(index)?.set(method).ok()?;
        Some((kind, object::constant(name)?, implementation, doc))
    };
    match made() {
        Some((kind, name, implementation, doc)) => descriptor(kind, name, implementation, doc),
        None => raise(c"wrap_method was called with other arguments, or twice for one method"),
    }
}

/// `(group, generation)` → the hooks before and after a call.
unsafe extern "C" fn hooks_of(_this: Pointer, arguments: *const Pointer, count: isize) -> Pointer {
    // SAFETY: the interpreter passes live objects.
    let arguments = unsafe { list(arguments, count) };
    let numbers = match arguments {
        [group, generation] => group.as_number().zip(generation.as_number()),
        _ => None,
    };
    let key = numbers.and_then(|(group, generation)| Owned::number(generation << 32 | group));
    let Some(key) = key else {
        return raise(c"hooks_of takes the numbers of a group and a generation");
    };
    // SAFETY: the definitions are constant. Both functions keep the key.
    unsafe {
        let hook = |definition| {
            Owned::new(PyCFunction_NewEx(definition, key.as_ref().pointer(), ptr::null_mut()))
        };
        match (hook(&raw const BEFORE), hook(&raw const AFTER)) {
            (Some(before), Some(after)) => {
                unless_escaping(object::tuple(&[before.as_ref(), after.as_ref()]))
            }
            _ => raise(c"no memory for hooks"),
        }
    }
}

const fn one(name: &'static CStr, one: python::One) -> MethodDef {
    MethodDef {
        name: name.as_ptr(),
        function: Implementation { one },
        flags: METH_O,
        doc: ptr::null(),
    }
}

const fn fast(name: &'static CStr, fast: python::Fast) -> MethodDef {
    MethodDef {
        name: name.as_ptr(),
        function: Implementation { fast },
        flags: METH_FASTCALL,
        doc: ptr::null(),
    }
}

static BEFORE: MethodDef = one(c"before", before);
static AFTER: MethodDef = one(c"after", after);
static KERNEL: MethodDef = MethodDef {
    name: c"kernel".as_ptr(),
    function: Implementation { with_keywords: kernel },
    flags: METH_FASTCALL | METH_KEYWORDS,
    doc: ptr::null(),
};
static BACKWARD: MethodDef = MethodDef {
    name: c"_engine_run_backward".as_ptr(),
    function: Implementation { with_keywords: run_backward },
    flags: METH_FASTCALL | METH_KEYWORDS,
    doc: ptr::null(),
};
static FUNCTIONS: [MethodDef; 18] = [
    fast(c"prepare", prepare),
    one(c"bind", bind),
    fast(c"hooks_of", hooks_of),
    fast(c"wrap_wait", wrap_wait),
    fast(c"wrap_method", wrap_method),
    fast(c"begin", begin),
    one(c"finish", finish),
    fast(c"interrupted", interrupted),
    one(c"is_inside", is_inside),
    one(c"last_call", last_call),
    fast(c"forward", forward),
    fast(c"backward_begins", backward_begins),
    fast(c"backward_ended", backward_ended),
    one(c"wrap_backward", wrap_backward),
    fast(c"bucket_sent", bucket_sent),
    fast(c"graph_done", graph_done),
    fast(c"make_kernel", make_kernel),
    MethodDef {
        name: ptr::null(),
        function: Implementation { none: ptr::null() },
        flags: 0,
        doc: ptr::null(),
    },
];

/// Creates the module.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn PyInit_ddp_doctor_python() -> Pointer {
    // The interpreter keeps and changes the definition.
    let definition = Box::leak(Box::new(ModuleDef {
        base: [1, 0, 0, 0, 0],
        name: c"ddp_doctor_python".as_ptr(),
        doc: ptr::null(),
        size: -1,
        methods: FUNCTIONS.as_ptr(),
        rest: [0; 4],
    }));
    // SAFETY: the definition lives forever.
    unsafe { PyModule_Create2(definition, API_VERSION) }
}
