//! Frames of the running program.
#![expect(unsafe_code, reason = "calls functions of CPython")]

use std::cell::OnceCell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::object::{Owned, Ref, find};
use crate::python::{Pointer, PyEval_GetFrame, PyFrame_GetCode};

type GetBack = unsafe extern "C" fn(Pointer) -> Pointer;
type GetLasti = unsafe extern "C" fn(Pointer) -> c_int;
type GetVar = unsafe extern "C" fn(Pointer, Pointer) -> Pointer;

/// Functions outside the limited API of 3.9. Without one, the attribute of the frame is read.
struct Functions {
    /// Since 3.9.
    back: Option<GetBack>,
    /// Since 3.11.
    lasti: Option<GetLasti>,
    /// Since 3.12.
    var: Option<GetVar>,
}

/// Names of attributes of frames.
pub(crate) struct Names {
    pub(crate) back: Ref<'static>,
    pub(crate) lasti: Ref<'static>,
    pub(crate) locals: Ref<'static>,
}

impl Names {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            back: Owned::name(c"f_back")?.leak(),
            lasti: Owned::name(c"f_lasti")?.leak(),
            locals: Owned::name(c"f_locals")?.leak(),
        })
    }
}

fn functions() -> &'static Functions {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        // SAFETY: the functions of these names have these types in every version that has them.
        unsafe {
            Functions {
                back: find(c"PyFrame_GetBack")
                    .map(|it| mem::transmute::<NonNull<c_void>, GetBack>(it)),
                lasti: find(c"PyFrame_GetLasti")
                    .map(|it| mem::transmute::<NonNull<c_void>, GetLasti>(it)),
                var: find(c"PyFrame_GetVar")
                    .map(|it| mem::transmute::<NonNull<c_void>, GetVar>(it)),
            }
        }
    })
}

/// A frame. Its names are needed where the interpreter lacks a function.
pub(crate) struct Frame {
    object: Owned,
    names: &'static Names,
}

impl Frame {
    /// The frame of the innermost Python function of this thread.
    pub(crate) fn current(names: &'static Names) -> Option<Self> {
        // SAFETY: the function returns a frame that is running, or null.
        let object = unsafe { Ref::new(PyEval_GetFrame()) }?.own();
        Some(Self { object, names })
    }

    /// Another reference to this frame.
    pub(crate) fn again(&self) -> Self {
        Self {
            object: self.object().own(),
            names: self.names,
        }
    }

    pub(crate) fn object(&self) -> Ref<'_> {
        self.object.as_ref()
    }

    pub(crate) fn code(&self) -> Option<Owned> {
        // SAFETY: the frame is alive; returns a new reference.
        unsafe { Owned::new(PyFrame_GetCode(self.object().pointer())) }
    }

    /// The caller's frame.
    pub(crate) fn back(&self) -> Option<Self> {
        let object = match functions().back {
            // SAFETY: the frame is alive; returns a new reference, or null without an exception.
            Some(back) => unsafe { Owned::new(back(self.object().pointer())) },
            None => self.object().attribute(self.names.back),
        }?;
        let is_frame = !object.as_ref().is_none();
        is_frame.then_some(Self {
            object,
            names: self.names,
        })
    }

    /// Index of the instruction that the frame executes.
    pub(crate) fn instruction(&self) -> Option<i32> {
        match functions().lasti {
            // SAFETY: the frame is alive.
            Some(lasti) => Some(unsafe { lasti(self.object().pointer()) }),
            None => {
                let lasti = self.object().attribute(self.names.lasti)?;
                i32::try_from(lasti.as_ref().as_int()?).ok()
            }
        }
    }
}

/// The local variables of a running function.
pub(crate) struct Variables<'a> {
    frame: &'a Frame,
    code: Ref<'a>,
    /// A dictionary of all of them, for interpreters that have no other way.
    copy: OnceCell<Option<Owned>>,
}

impl<'a> Variables<'a> {
    pub(crate) fn of(frame: &'a Frame, code: Ref<'a>) -> Self {
        Self {
            frame,
            code,
            copy: OnceCell::new(),
        }
    }

    /// The function's code.
    pub(crate) fn code(&self) -> Ref<'a> {
        self.code
    }

    /// Value of an argument; `None`: it has none.
    pub(crate) fn argument(&self, name: Ref<'_>) -> Option<Owned> {
        if let Some(var) = functions().var {
            // SAFETY: both objects are alive; returns a new reference or null.
            return unsafe { Owned::new(var(self.frame.object().pointer(), name.pointer())) };
        }
        let locals = || self.frame.object().attribute(self.frame.names.locals);
        let copy = self.copy.get_or_init(locals).as_ref()?;
        copy.as_ref().value(name)
    }
}
