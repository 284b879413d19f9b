//! Frames of the running program.
#![expect(unsafe_code, reason = "calls functions of CPython")]

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::mem;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::object::{Owned, Ref, find};
use crate::python::{Pointer, Py_GetVersion, PyEval_GetFrame, PyFrame_GetCode};

type GetBack = unsafe extern "C" fn(Pointer) -> Pointer;
type GetLasti = unsafe extern "C" fn(Pointer) -> c_int;
type GetVar = unsafe extern "C" fn(Pointer, Pointer) -> Pointer;

/// Functions outside the limited API of 3.9. Without `back` or `lasti`, the attribute of the frame is
/// read.
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
}

impl Names {
    pub(crate) fn new() -> Option<Self> {
        Some(Self { back: Owned::name(c"f_back")?.leak(), lasti: Owned::name(c"f_lasti")?.leak() })
    }
}

/// Where a version of CPython keeps code, variables and caller of a running function. These
/// versions change no more, except for their security.
#[derive(Clone, Copy)]
struct Layout {
    /// Offset in the frame object of the pointer to the structure with code and variables; `None`:
    /// it is the object itself.
    inner: Option<usize>,
    /// Offset of the pointer to the code.
    code: usize,
    /// Offset of the pointers to the variables, the arguments first.
    variables: usize,
    /// `None`: callers are other objects.
    outwards: Option<Outwards>,
}

/// Offsets of pointers of a running function.
#[derive(Clone, Copy)]
struct Outwards {
    /// To the structure of its caller.
    caller: usize,
    /// To the instruction that it executes.
    instruction: usize,
}

impl Layout {
    /// `PyFrameObject` (Include/cpython/frameobject.h)
    const PYTHON_3_9: Self = Self { inner: None, code: 32, variables: 360, outwards: None };
    const PYTHON_3_10: Self = Self { variables: 352, ..Self::PYTHON_3_9 };
    /// `_PyInterpreterFrame` (Include/internal/pycore_frame.h)
    const PYTHON_3_11: Self = Self {
        inner: Some(24),
        code: 32,
        variables: 72,
        outwards: Some(Outwards { caller: 48, instruction: 56 }),
    };

    const PYTHON_3_12: Self = Self {
        code: 0,
        outwards: Some(Outwards { caller: 8, instruction: 56 }),
        ..Self::PYTHON_3_11
    };

    /// The layout of this process.
    fn find() -> Option<Self> {
        static FOUND: OnceLock<Option<Layout>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            // SAFETY: returns a constant text that ends with NUL.
            let version = unsafe { CStr::from_ptr(Py_GetVersion()) };
            match version.to_bytes() {
                [b'3', b'.', b'9', b'.', ..] => Some(Self::PYTHON_3_9),
                [b'3', b'.', b'1', b'0', b'.', ..] => Some(Self::PYTHON_3_10),
                [b'3', b'.', b'1', b'1', b'.', ..] => Some(Self::PYTHON_3_11),
                [b'3', b'.', b'1', b'2' | b'3', b'.', ..] => Some(Self::PYTHON_3_12),
                _ => None,
            }
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

/// A code object and one of its instructions, as addresses; both 0: none.
pub(crate) type Step = [usize; 2];

/// The instructions that running functions execute, from the innermost function outwards. Reading
/// them creates no frame objects, which their functions would have to free.
pub(crate) struct Steps<'a> {
    layout: Layout,
    /// The structure of the next function; null: there is none.
    inner: Pointer,
    outwards: Outwards,
    frame: PhantomData<&'a Frame>,
}

impl Iterator for Steps<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.inner.is_null() {
            return None;
        }
        let Outwards { caller, instruction } = self.outwards;
        // SAFETY: the frame is running, so its callers are as well, and their structures are alive.
        unsafe {
            let word = |offset| self.inner.byte_add(offset).cast::<usize>().read();
            let step = [word(self.layout.code), word(instruction)];
            self.inner = self.inner.byte_add(caller).cast::<Pointer>().read();
            Some(step)
        }
    }
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
        Self { object: self.object().own(), names: self.names }
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
        is_frame.then_some(Self { object, names: self.names })
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

    /// The structure with the frame's code and variables, and its layout; `None`: it cannot be read.
    /// `code` is the frame's code.
    fn structure(&self, code: Ref<'_>) -> Option<(Pointer, Layout)> {
        let frame = self.object().pointer();
        let layout = Layout::find()?;
        // SAFETY: the frame is running, which keeps its structure alive. A build with another layout
        // has something else in the place of the code, inside the frame object.
        unsafe {
            let inner = match layout.inner {
                Some(offset) => frame.byte_add(offset).cast::<Pointer>().read(),
                None => frame,
            };
            let found = inner.byte_add(layout.code).cast::<usize>().read();
            (found == code.address()).then_some((inner, layout))
        }
    }

    /// The instructions of this frame and of its callers; `None`: they cannot be read. `code` is the
    /// frame's code.
    pub(crate) fn steps(&self, code: Ref<'_>) -> Option<Steps<'_>> {
        let (inner, layout) = self.structure(code)?;
        Some(Steps { layout, inner, outwards: layout.outwards?, frame: PhantomData })
    }

    /// Value of the argument of this name and position; `None`: it is deleted, or cannot be read.
    /// `code` is the frame's code, and none of its variables is a cell.
    pub(crate) fn argument(&self, code: Ref<'_>, name: Ref<'_>, at: u8) -> Option<Owned> {
        if let Some((inner, layout)) = self.structure(code) {
            // SAFETY: the frame is running, which keeps its arguments alive.
            return unsafe {
                let variables = inner.byte_add(layout.variables).cast::<Pointer>();
                Ref::new(variables.add(at.into()).read()).map(Ref::own)
            };
        }
        let var = functions().var?;
        // SAFETY: both objects are alive; returns a new reference or null.
        unsafe { Owned::new(var(self.object().pointer(), name.pointer())) }
    }
}
