//! References to Python objects, and operations on them that leave no exception set.
//!
//! An operation that fails clears its exception, as `except Exception: pass` does. One that escapes
//! this clause, such as the `KeyboardInterrupt` of a signal handler, is kept until the outermost
//! function of this library raises it ([`unless_escaping`]).
//!
//! Every function of this library is called with the GIL.
#![expect(unsafe_code, reason = "calls functions of CPython")]

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use crate::exceptions::{clear, has_failed, is_escaping};
use crate::python::*;

/// Maximum number of arguments that [`Arguments`] keeps without an allocation.
const MAX_ARGUMENTS: usize = 8;

/// An object that lives for `'a`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Ref<'a>(NonNull<PyObject>, PhantomData<&'a PyObject>);

/// A counted reference to an object.
pub(crate) struct Owned(Ref<'static>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: this owns one reference.
        unsafe { Py_DecRef(self.0.pointer()) }
    }
}

impl Owned {
    /// Takes a new reference, as functions of CPython return it. Null: the function has failed, and
    /// its exception is cleared.
    ///
    /// # Safety
    ///
    /// The pointer is null or a reference that the caller owns.
    pub(crate) unsafe fn new(pointer: Pointer) -> Option<Self> {
        // SAFETY: the caller vouches for the reference.
        let object = unsafe { Self::or_raised(pointer) };
        if object.is_none() {
            clear();
        }
        object
    }

    /// Like [`Owned::new`], but the exception stays set.
    ///
    /// # Safety
    ///
    /// As for [`Owned::new`].
    unsafe fn or_raised(pointer: Pointer) -> Option<Self> {
        Some(Self(Ref(NonNull::new(pointer)?, PhantomData)))
    }

    pub(crate) fn as_ref(&self) -> Ref<'_> {
        self.0
    }

    pub(crate) fn int(value: i64) -> Option<Self> {
        // SAFETY: returns a new reference or null.
        unsafe { Self::new(PyLong_FromLongLong(value)) }
    }

    pub(crate) fn number(value: u64) -> Option<Self> {
        // SAFETY: returns a new reference or null.
        unsafe { Self::new(PyLong_FromUnsignedLongLong(value)) }
    }

    pub(crate) fn none() -> Self {
        // SAFETY: returns a new reference.
        unsafe { Self(Ref(NonNull::new_unchecked(none()), PhantomData)) }
    }

    pub(crate) fn name(text: &CStr) -> Option<Self> {
        // SAFETY: the text ends with NUL; returns a new reference or null.
        unsafe { Self::new(PyUnicode_InternFromString(text.as_ptr())) }
    }

    /// Keeps the object alive forever.
    pub(crate) fn leak(self) -> Ref<'static> {
        let object = self.0;
        mem::forget(self);
        object
    }

    /// Passes the reference on to the interpreter.
    pub(crate) fn give(self) -> Pointer {
        self.leak().pointer()
    }
}

impl<'a> Ref<'a> {
    /// # Safety
    ///
    /// The pointer is null or an object that lives for `'a`.
    pub(crate) unsafe fn new(pointer: Pointer) -> Option<Self> {
        Some(Self(NonNull::new(pointer)?, PhantomData))
    }

    pub(crate) fn pointer(self) -> Pointer {
        self.0.as_ptr()
    }

    pub(crate) fn address(self) -> usize {
        self.pointer().addr()
    }

    pub(crate) fn own(self) -> Owned {
        // SAFETY: the object is alive.
        unsafe { Py_IncRef(self.pointer()) };
        Owned(Ref(self.0, PhantomData))
    }

    /// Address of the object's type.
    pub(crate) fn kind(self) -> usize {
        // SAFETY: every object begins with this head.
        unsafe { (*self.pointer()).kind }.addr()
    }

    pub(crate) fn is_none(self) -> bool {
        self.pointer() == &raw mut _Py_NoneStruct
    }

    pub(crate) fn attribute(self, name: Ref<'_>) -> Option<Owned> {
        // SAFETY: both objects are alive; returns a new reference or null.
        unsafe { Owned::new(PyObject_GetAttr(self.pointer(), name.pointer())) }
    }

    /// An attribute that is usually the instance's own, of an object whose class defines `__getattr__`.
    pub(crate) fn own_attribute(self, name: Ref<'_>) -> Option<Owned> {
        // SAFETY: both objects are alive; returns a new reference or null.
        let found = unsafe { Owned::new(PyObject_GenericGetAttr(self.pointer(), name.pointer())) };
        found.or_else(|| self.attribute(name))
    }

    pub(crate) fn is_true(self) -> Option<bool> {
        if self.pointer() == &raw mut _Py_TrueStruct {
            return Some(true);
        }
        if self.pointer() == &raw mut _Py_FalseStruct {
            return Some(false);
        }
        // SAFETY: the object is alive.
        match unsafe { PyObject_IsTrue(self.pointer()) } {
            0 => Some(false),
            1 => Some(true),
            _ => {
                clear();
                None
            }
        }
    }

    pub(crate) fn as_int(self) -> Option<i64> {
        // SAFETY: the object is alive.
        let value = unsafe { PyLong_AsLongLong(self.pointer()) };
        (value != -1 || !has_failed()).then_some(value)
    }

    /// The lowest 64 bits of an integer.
    pub(crate) fn as_number(self) -> Option<u64> {
        // SAFETY: the object is alive.
        let value = unsafe { PyLong_AsUnsignedLongLongMask(self.pointer()) };
        (value != u64::MAX || !has_failed()).then_some(value)
    }

    /// `int(self)`
    pub(crate) fn to_int(self) -> Option<i64> {
        // SAFETY: the object is alive; returns a new reference or null.
        unsafe { Owned::new(PyNumber_Long(self.pointer())) }?.as_ref().as_int()
    }

    /// Length of a sequence.
    pub(crate) fn length(self) -> Option<isize> {
        // SAFETY: the object is alive.
        let length = unsafe { PySequence_Size(self.pointer()) };
        if length < 0 {
            clear();
            return None;
        }
        Some(length)
    }

    /// Item of a sequence.
    pub(crate) fn item(self, at: isize) -> Option<Owned> {
        // SAFETY: the object is alive; returns a new reference or null.
        unsafe { Owned::new(PySequence_GetItem(self.pointer(), at)) }
    }

    /// Length of a tuple; `None`: it is none.
    pub(crate) fn tuple_length(self) -> Option<isize> {
        // SAFETY: the object is alive, and the function checks its type.
        let length = unsafe { PyTuple_Size(self.pointer()) };
        if length < 0 {
            clear();
            return None;
        }
        Some(length)
    }

    /// Item of a tuple, which keeps it alive.
    pub(crate) fn tuple_item(self, at: isize) -> Option<Self> {
        // SAFETY: the object is alive, and the function checks its type and the position.
        let item = unsafe { Ref::new(PyTuple_GetItem(self.pointer(), at)) };
        if item.is_none() {
            clear();
        }
        item
    }

    /// Value of a key in a dictionary.
    pub(crate) fn value(self, key: Ref<'_>) -> Option<Owned> {
        // SAFETY: both objects are alive. A borrowed reference is counted before anything can
        // change the dictionary.
        let value = unsafe { Ref::new(PyDict_GetItemWithError(self.pointer(), key.pointer())) };
        if value.is_none() {
            clear();
        }
        value.map(Ref::own)
    }

    /// Sets the value of a key in a dictionary; `None` as the value removes the key.
    pub(crate) fn set_value(self, key: Ref<'_>, value: Option<Ref<'_>>) -> Option<()> {
        // SAFETY: all objects are alive.
        done(unsafe {
            match value {
                Some(value) => PyDict_SetItem(self.pointer(), key.pointer(), value.pointer()),
                None => PyDict_DelItem(self.pointer(), key.pointer()),
            }
        })
    }

    /// Item of a list; `None`: it is not a list, or too short.
    pub(crate) fn list_item(self, at: isize) -> Option<Owned> {
        // SAFETY: the object is alive, and the function checks its type and the position. A borrowed
        // reference is counted before anything can change the list.
        let item = unsafe { Ref::new(PyList_GetItem(self.pointer(), at)) };
        if item.is_none() {
            clear();
        }
        item.map(Ref::own)
    }

    /// Appends an item to a list.
    pub(crate) fn append(self, item: Ref<'_>) -> Option<()> {
        // SAFETY: both objects are alive, and the function checks the type.
        done(unsafe { PyList_Append(self.pointer(), item.pointer()) })
    }

    /// Removes the last item of a list. Returns the number of the others.
    pub(crate) fn pop(self) -> Option<isize> {
        let length = self.length()?.checked_sub(1)?;
        // SAFETY: the object is alive, and the function checks the type; null deletes the slice.
        done(unsafe { PyList_SetSlice(self.pointer(), length, length + 1, ptr::null_mut()) })?;
        Some(length)
    }

    /// A weak reference to this object.
    pub(crate) fn weak(self) -> Option<Owned> {
        // SAFETY: the object is alive; returns a new reference or null.
        unsafe { Owned::new(PyWeakref_NewRef(self.pointer(), ptr::null_mut())) }
    }

    /// The object that a weak reference refers to; `None`: it does not exist any more.
    pub(crate) fn referent(self) -> Option<Owned> {
        self.call(&[]).filter(|it| !it.as_ref().is_none())
    }

    /// `self & other`
    pub(crate) fn and(self, other: Ref<'_>) -> Option<Owned> {
        // SAFETY: both objects are alive; returns a new reference or null.
        unsafe { Owned::new(PyNumber_And(self.pointer(), other.pointer())) }
    }

    /// Value of a text in a dictionary.
    pub(crate) fn entry(self, key: &CStr) -> Option<Owned> {
        self.value(Owned::name(key)?.as_ref())
    }

    /// Calls `each` for all keys and values of a dictionary. It must not change the dictionary.
    pub(crate) fn each(self, mut each: impl FnMut(Ref<'_>, Ref<'_>)) {
        let mut position = 0;
        let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the dictionary is alive and not changed meanwhile; keys and values are borrowed.
        while unsafe { PyDict_Next(self.pointer(), &mut position, &mut key, &mut value) } != 0 {
            // SAFETY: the dictionary keeps both alive.
            if let (Some(key), Some(value)) = unsafe { (Ref::new(key), Ref::new(value)) } {
                each(key, value);
            }
        }
    }

    /// Calls this object. `None`: it has raised, or an exception is kept.
    pub(crate) fn call(self, arguments: &[Ref<'_>]) -> Option<Owned> {
        self.call_with(arguments, None)
    }

    /// Calls this object; the values of `keywords` are the last arguments. `None`: it has raised, or
    /// an exception is kept.
    pub(crate) fn call_with(
        self,
        arguments: &[Ref<'_>],
        keywords: Option<Ref<'_>>,
    ) -> Option<Owned> {
        if is_escaping() {
            return None;
        }
        let result = self.call_raising(arguments, keywords);
        if result.is_none() {
            clear();
        }
        result
    }

    /// Calls this object; the values of `keywords` are the last arguments. `None`: it has raised,
    /// and its exception is set.
    pub(crate) fn call_raising(
        self,
        arguments: &[Ref<'_>],
        keywords: Option<Ref<'_>>,
    ) -> Option<Owned> {
        let names = keywords.map_or(ptr::null_mut(), Ref::pointer);
        let named = keywords.and_then(Ref::tuple_length).unwrap_or(0);
        let count = arguments.len() - named.unsigned_abs().min(arguments.len());
        if let Some(vectorcall) = vectorcall() {
            // SAFETY: `Ref` is a pointer, and all objects are alive; returns a new reference or null.
            return unsafe {
                let arguments = arguments.as_ptr().cast();
                Owned::or_raised(vectorcall(self.pointer(), arguments, count, names))
            };
        }
        // SAFETY: as for `Owned::new`; a null tuple or dictionary has set an exception.
        unsafe {
            let tuple = PyTuple_New(count as isize);
            let dict = if named > 0 { PyDict_New() } else { ptr::null_mut() };
            if !tuple.is_null() {
                for (at, argument) in arguments.iter().take(count).enumerate() {
                    PyTuple_SetItem(tuple, at as isize, argument.own().give());
                }
                if !dict.is_null() {
                    for (at, argument) in arguments.iter().skip(count).enumerate() {
                        let name = PyTuple_GetItem(names, at as isize);
                        PyDict_SetItem(dict, name, argument.pointer());
                    }
                }
            }
            let result = if tuple.is_null() || (named > 0 && dict.is_null()) {
                ptr::null_mut()
            } else {
                PyObject_Call(self.pointer(), tuple, dict)
            };
            for made in [tuple, dict] {
                if !made.is_null() {
                    Py_DecRef(made);
                }
            }
            Owned::or_raised(result)
        }
    }
}

/// An attribute of a type that is implemented in C, or in its `__slots__`, without a search for its name.
pub(crate) struct Attribute {
    name: Ref<'static>,
    /// The descriptor.
    descriptor: Ref<'static>,
    /// Its functions; `None`: Python 3.9 does not tell them.
    get: Option<Get>,
    set: Option<Set>,
}

impl Attribute {
    /// `descriptor` is the value of the attribute for the type itself.
    pub(crate) fn new(name: &CStr, descriptor: Ref<'static>) -> Option<Self> {
        // SAFETY: the type is alive, and the functions in these slots have these types.
        let (get, set) = unsafe {
            let slot = |number| {
                let function = PyType_GetSlot((*descriptor.pointer()).kind, number);
                clear();
                NonNull::new(function)
            };
            (
                slot(SLOT_GET).map(|it| mem::transmute::<NonNull<c_void>, Get>(it)),
                slot(SLOT_SET).map(|it| mem::transmute::<NonNull<c_void>, Set>(it)),
            )
        };
        Some(Self { name: Owned::name(name)?.leak(), descriptor, get, set })
    }

    /// The attribute of this name of a class.
    pub(crate) fn of_class(class: Ref<'_>, name: &CStr) -> Option<Self> {
        Self::new(name, class.attribute(Owned::name(name)?.as_ref())?.leak())
    }

    /// Its value for an instance of the type.
    pub(crate) fn get(&self, object: Ref<'_>) -> Option<Owned> {
        let Some(get) = self.get else {
            return object.attribute(self.name);
        };
        let (descriptor, object) = (self.descriptor.pointer(), object.pointer());
        // SAFETY: all objects are alive; returns a new reference or null.
        unsafe { Owned::new(get(descriptor, object, (*object).kind)) }
    }

    /// Sets its value for an instance of the type.
    pub(crate) fn set(&self, object: Ref<'_>, value: Ref<'_>) -> Option<()> {
        let descriptor = self.descriptor.pointer();
        // SAFETY: all objects are alive.
        done(unsafe {
            match self.set {
                Some(set) => set(descriptor, object.pointer(), value.pointer()),
                None => PyObject_SetAttr(object.pointer(), self.name.pointer(), value.pointer()),
            }
        })
    }
}

/// Result of a function of CPython that returns -1 with an exception, which is cleared.
fn done(result: c_int) -> Option<()> {
    if result < 0 {
        clear();
        return None;
    }
    Some(())
}

/// `True` or `False`
pub(crate) fn bool(value: bool) -> Ref<'static> {
    let object = if value { &raw mut _Py_TrueStruct } else { &raw mut _Py_FalseStruct };
    // SAFETY: both objects live forever.
    unsafe { Ref(NonNull::new_unchecked(object), PhantomData) }
}

/// A new reference to `None`.
pub(crate) fn none() -> Pointer {
    let none = &raw mut _Py_NoneStruct;
    // SAFETY: `None` is always alive.
    unsafe { Py_IncRef(none) };
    none
}

/// A text as an object of C, which is never freed; `None`: it is not a text.
pub(crate) fn constant(text: Ref<'_>) -> Option<&'static CStr> {
    let mut length = 0;
    // SAFETY: the object is alive; the text ends with NUL and is copied at once.
    let text = unsafe {
        let text = PyUnicode_AsUTF8AndSize(text.pointer(), &mut length);
        if text.is_null() {
            clear();
            return None;
        }
        CStr::from_ptr(text).to_owned()
    };
    Some(Box::leak(text.into_boxed_c_str()))
}

/// A new tuple of these objects.
pub(crate) fn tuple(items: &[Ref<'_>]) -> Option<Owned> {
    // SAFETY: returns a new reference or null; the tuple takes the references.
    unsafe {
        let tuple = Owned::new(PyTuple_New(items.len() as isize))?;
        for (at, item) in items.iter().enumerate() {
            PyTuple_SetItem(tuple.as_ref().pointer(), at as isize, item.own().give());
        }
        Some(tuple)
    }
}

/// The arguments of a method, beginning with the object that it belongs to.
pub(crate) enum Arguments<'a> {
    Few([Ref<'a>; MAX_ARGUMENTS], usize),
    Many(Vec<Ref<'a>>),
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(this: Ref<'a>, others: &[Ref<'a>]) -> Self {
        let count = others.len() + 1;
        let mut few = [this; MAX_ARGUMENTS];
        match few.get_mut(1..count) {
            Some(places) => {
                places.copy_from_slice(others);
                Self::Few(few, count)
            }
            None => Self::Many([&[this], others].concat()),
        }
    }

    pub(crate) fn list(&self) -> &[Ref<'a>] {
        match self {
            Self::Few(few, count) => few.get(..*count).unwrap_or_default(),
            Self::Many(many) => many,
        }
    }
}

type Vectorcall = unsafe extern "C" fn(Pointer, *const Pointer, usize, Pointer) -> Pointer;

/// Address of a function of the interpreter that is not in the limited API of 3.9; `None`: this
/// version has none.
pub(crate) fn find(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name ends with NUL.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// `PyObject_Vectorcall`, exported since 3.11.
fn vectorcall() -> Option<Vectorcall> {
    static FOUND: OnceLock<Option<Vectorcall>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the function of this name has this type.
        find(c"PyObject_Vectorcall")
            .map(|it| unsafe { mem::transmute::<NonNull<c_void>, Vectorcall>(it) })
    })
}
