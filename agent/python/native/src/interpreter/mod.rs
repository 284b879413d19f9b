//! CPython: its functions, its objects and exceptions, and its frames; and panics, which do not reach it.

pub(crate) mod exceptions;
pub(crate) mod frame;
pub(crate) mod object;
pub(crate) mod panics;
pub(crate) mod python;
