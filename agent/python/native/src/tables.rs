//! Entries of the package's tables of operations, arguments and methods, as numbers that are quick to keep.

use std::array;
use std::cell::{Cell, OnceCell};

use crate::object::Ref;

/// Maximum number of methods.
pub(crate) const MAX_METHODS: usize = 24;

/// A replaced method. Positions are those of arguments after the group.
pub(crate) struct Method {
    pub(crate) original: Ref<'static>,
    /// PyTorch's number of the operation.
    pub(crate) number: i64,
    pub(crate) inputs: Option<usize>,
    pub(crate) outputs: Option<usize>,
    pub(crate) options: Option<usize>,
    /// Whether the options have a reduction operator.
    pub(crate) reduces: bool,
}

/// Which tensor of a call is recorded, as in `_hooks.py`.
pub(crate) mod tensor {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const INPUT: u32 = 1;
    pub(crate) const OUTPUT: u32 = 2;
}

/// An entry of `_OPS` in `_hooks.py`.
#[derive(Clone, Copy)]
pub(crate) struct What(u32);

impl What {
    /// The call is recorded elsewhere.
    const ELSEWHERE: u32 = 1 << 20;

    pub(crate) fn read(entry: Ref<'_>) -> Option<Self> {
        if entry.is_none() {
            return Some(Self(Self::ELSEWHERE));
        }
        let op = u8::try_from(entry.tuple_item(0)?.as_int()?).ok()?;
        let tensor = u8::try_from(entry.tuple_item(1)?.as_int()?).ok()?;
        let flag = |at| Some(u32::from(entry.tuple_item(at)?.is_true()?));
        Some(Self(u32::from(op) | u32::from(tensor) << 8 | flag(2)? << 16 | flag(3)? << 17))
    }

    pub(crate) fn pack(self) -> u32 {
        self.0
    }

    pub(crate) fn unpack(packed: u32) -> Self {
        Self(packed)
    }

    pub(crate) fn is_recorded(self) -> bool {
        self.0 != Self::ELSEWHERE
    }

    pub(crate) fn op(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// A constant of [`tensor`], or a value for lists of tensors.
    pub(crate) fn tensor(self) -> u32 {
        self.0 >> 8 & 0xFF
    }

    pub(crate) fn has_root(self) -> bool {
        self.0 >> 16 & 1 != 0
    }

    /// The caller's locals have further arguments.
    pub(crate) fn has_more(self) -> bool {
        self.0 >> 17 & 1 != 0
    }
}

/// Positions of the arguments of a c10d function that describe its call; `None`: it lacks that one.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) tensor: Option<u8>,
    pub(crate) op: Option<u8>,
    pub(crate) async_op: Option<u8>,
    /// The root's rank in the group, which the function has computed when it makes the call.
    pub(crate) root: Option<u8>,
}

impl Arguments {
    /// Instead of a position: there is no such argument.
    const ABSENT: u8 = u8::MAX;
    /// Other variables may describe the call as well. No two arguments have the same position.
    pub(crate) const INSUFFICIENT: u32 = 0;

    pub(crate) fn pack(self) -> u32 {
        let positions = [self.tensor, self.op, self.async_op, self.root];
        u32::from_le_bytes(positions.map(|at| at.unwrap_or(Self::ABSENT)))
    }

    pub(crate) fn unpack(packed: u32) -> Option<Self> {
        if packed == Self::INSUFFICIENT {
            return None;
        }
        let [tensor, op, async_op, root] =
            packed.to_le_bytes().map(|at| (at != Self::ABSENT).then_some(at));
        Some(Self { tensor, op, async_op, root })
    }
}

/// Maximum number of kernels: one for each operator and dispatch key.
const MAX_KERNELS: usize = 64;

/// The kernel of an operator of c10d. Positions are those of its arguments.
pub(crate) struct Kernel {
    /// The number of the operation in `_hooks.py`.
    pub(crate) number: i64,
    pub(crate) group: usize,
    pub(crate) inputs: Option<usize>,
    pub(crate) outputs: Option<usize>,
    pub(crate) root: Option<usize>,
    /// `(keys, arguments…)`: forwards a call.
    pub(crate) redispatch: Ref<'static>,
    /// The dispatch keys after that of the kernel.
    pub(crate) below: Ref<'static>,
    /// `(script object)` → ProcessGroup
    pub(crate) unbox: Ref<'static>,
    /// `(frame, arguments…)` → whether the call was recorded.
    pub(crate) begins: Ref<'static>,
}

impl Kernel {
    pub(crate) fn new(arguments: &[Ref<'_>]) -> Option<Self> {
        let &[number, group, inputs, outputs, root, redispatch, below, unbox, begins] = arguments
        else {
            return None;
        };
        let position = |at: Ref<'_>| Some(usize::try_from(at.as_int()?).ok());
        let kept = |object: Ref<'_>| object.own().leak();
        Some(Self {
            number: number.as_int()?,
            group: position(group)??,
            inputs: position(inputs)?,
            outputs: position(outputs)?,
            root: position(root)?,
            redispatch: kept(redispatch),
            below: kept(below),
            unbox: kept(unbox),
            begins: kept(begins),
        })
    }
}

/// All kernels.
pub(crate) struct Kernels([OnceCell<Kernel>; MAX_KERNELS], Cell<usize>);

impl Kernels {
    pub(crate) fn new() -> Self {
        Self(array::from_fn(|_| OnceCell::new()), Cell::new(0))
    }

    /// Adds a kernel. Returns its index.
    pub(crate) fn add(&self, kernel: Kernel) -> Option<usize> {
        let index = self.1.get();
        self.0.get(index)?.set(kernel).ok()?;
        self.1.set(index + 1);
        Some(index)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Kernel> {
        self.0.get(index)?.get()
    }
}
