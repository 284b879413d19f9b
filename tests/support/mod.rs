//! What tests share.

pub(crate) mod scenario;
