//! What tests share.

pub(crate) mod coordinator;
pub(crate) mod process;
pub(crate) mod scenario;
pub(crate) mod tmux;
