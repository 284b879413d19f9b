//! Entries of the package's tables of operations, arguments and methods, as numbers that are quick to keep.

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
