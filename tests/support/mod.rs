//! What tests share.

pub(crate) mod process;
pub(crate) mod scenario;
