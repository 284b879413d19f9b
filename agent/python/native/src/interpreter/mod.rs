//! CPython: its functions, its objects and exceptions, and its frames.

pub(crate) mod exceptions;
pub(crate) mod frame;
pub(crate) mod object;
pub(crate) mod python;
