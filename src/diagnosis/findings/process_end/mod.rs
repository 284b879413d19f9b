//! Processes that ended, are stopped, or block on their way out.

pub(crate) mod death;
pub(crate) mod exception;
pub(crate) mod rank_died;
pub(crate) mod rank_exception;
pub(crate) mod rank_stopped;
pub(crate) mod stuck_in_teardown;
pub(crate) mod unplaced_failure;
