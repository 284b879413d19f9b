//! The arguments of a hook, read from the C++ object behind PyTorch's `PreHookArgs`. Reading an attribute creates a Python
//! object each time, and a list one for each tensor.
#![expect(unsafe_code, reason = "reads objects of PyTorch")]

use std::cell::Cell;
use std::ptr::{self, NonNull};

use crate::object::Ref;

/// `at::Tensor*`, which is alive while the hook runs.
pub(crate) type Tensor = NonNull<usize>;

/// Offset in an object of pybind11 of the pointer to its C++ object.
pub(super) const VALUE: usize = 16;
/// Number of calls whose arguments are compared with what PyTorch's attributes return.
const CHECKS: u8 = 4;

/// `std::vector<at::Tensor>` of libstdc++; a tensor is a pointer.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tensors {
    begin: usize,
    end: usize,
    capacity: usize,
}

impl Tensors {
    fn length(self) -> usize {
        self.end.wrapping_sub(self.begin) / size_of::<usize>()
    }

    fn first(self) -> Option<Tensor> {
        NonNull::new(ptr::with_exposed_provenance_mut(self.begin)).filter(|_| self.length() > 0)
    }
}

/// `c10d::PreHookArgs`, as far as it is read.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HookArguments {
    name: u8,
    is_async: u8,
    inputs: Tensors,
    outputs: Tensors,
    root: i64,
}

impl HookArguments {
    /// PyTorch's number of the operation.
    pub(crate) fn number(&self) -> i64 {
        self.name.into()
    }

    pub(crate) fn is_async(&self) -> bool {
        self.is_async != 0
    }

    pub(crate) fn root(&self) -> i64 {
        self.root
    }

    /// The first tensor of the inputs or outputs; `None`: there is none.
    pub(crate) fn first(&self, outputs: bool) -> Option<Tensor> {
        if outputs { self.outputs.first() } else { self.inputs.first() }
    }
}

/// What PyTorch's attributes return for the arguments of a hook.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) number: i64,
    pub(crate) is_async: bool,
    pub(crate) root: i64,
    /// Number of tensors, and address of the first one's C++ object.
    pub(crate) inputs: (usize, usize),
    pub(crate) outputs: (usize, usize),
}

/// Whether the layout of the arguments is that of [`HookArguments`].
pub(crate) struct Trust {
    /// Checks that are left; `None`: one has failed.
    checks: Cell<Option<u8>>,
    /// Type of the objects that were checked.
    kind: Cell<usize>,
}

impl Trust {
    pub(crate) fn new() -> Self {
        Self { checks: Cell::new(Some(CHECKS)), kind: Cell::new(0) }
    }

    /// The arguments behind this object; `None`: its layout is not known.
    pub(crate) fn arguments<'a>(&self, object: Ref<'a>) -> Option<&'a HookArguments> {
        if self.checks.get() != Some(0) || self.kind.get() != object.kind() {
            return None;
        }
        // SAFETY: the checks have found the arguments there in objects of this type, which live as long as the object.
        unsafe { object.pointer().byte_add(VALUE).cast::<*const HookArguments>().read().as_ref() }
    }

    /// Checks the layout by a call, if that is left to do. Calls without tensors decide nothing.
    pub(crate) fn check(&self, object: Ref<'_>, attributes: impl FnOnce() -> Option<Attributes>) {
        let Some(left) = self.checks.get().filter(|&left| left > 0) else {
            return;
        };
        let Some(expected) = attributes() else {
            self.checks.set(None);
            return;
        };
        let is_same_kind = left == CHECKS || self.kind.get() == object.kind();
        self.kind.set(object.kind());
        if !is_same_kind || read(object) != Some(expected) {
            self.checks.set(None);
        } else if expected.inputs.0 > 0 {
            self.checks.set(Some(left - 1));
        }
    }
}

/// Reads the arguments behind an object whose layout is not known yet.
fn read(object: Ref<'_>) -> Option<Attributes> {
    let [value] = copy(object.address() + VALUE)?;
    let [head, inputs, inputs_end, _, outputs, outputs_end, _, root] = copy(value)?;
    let [number, is_async, ..] = head.to_le_bytes();
    let tensors = |begin: usize, end: usize| {
        let length = end.wrapping_sub(begin) / size_of::<usize>();
        Some((length, if length > 0 { copy::<1>(begin)?[0] } else { 0 }))
    };
    Some(Attributes {
        number: number.into(),
        is_async: is_async != 0,
        root: root as i64,
        inputs: tensors(inputs, inputs_end)?,
        outputs: tensors(outputs, outputs_end)?,
    })
}

/// Copies words from an address of this process; `None`: they cannot be read.
pub(super) fn copy<const N: usize>(address: usize) -> Option<[usize; N]> {
    let mut words = [0; N];
    let length = size_of_val(&words);
    let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: length };
    let from = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address), iov_len: length };
    // SAFETY: the kernel checks both addresses.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (copied.cast_unsigned() == length).then_some(words)
}
