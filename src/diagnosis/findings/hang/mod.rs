//! Ranks that wait for calls which others do not make.

pub(crate) mod early_exit;
pub(crate) mod group_creation_mismatch;
pub(crate) mod group_order_deadlock;
pub(crate) mod long_phase;
pub(crate) mod missing_rank;
pub(crate) mod omitted_call;
pub(crate) mod only_outside;
pub(crate) mod p2p_deadlock;
pub(crate) mod p2p_unmatched;
pub(crate) mod rank_conditional_call;
pub(crate) mod stuck_inside;
pub(crate) mod stuck_message;
pub(crate) mod stuck_outside;
pub(crate) mod unawaited_work;
