//! PyTorch's C++ libraries: functions by their mangled names, which contain the types of their arguments, and the
//! arguments of hooks. What a build lacks or has laid out differently is left to PyTorch's Python interface.

mod arguments;
mod boxes;
mod functions;

pub(crate) use arguments::{Attributes, HookArguments, Tensor, Trust};
pub(crate) use boxes::Boxes;
pub(crate) use functions::Torch;
