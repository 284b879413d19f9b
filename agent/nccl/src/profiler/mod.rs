//! The profiler plugin that NCCL loads (`NCCL_PROFILER_PLUGIN`), for programs whose calls bypass
//! the [`hooks`](crate::hooks): those that look NCCL's functions up at run time or link NCCL
//! statically.
//!
//! NCCL reports calls, the work into which it turns them when their group ends, and their kernels.
//! It does not report reduction operators, and reports a communicator only after all its ranks have
//! joined. A process has one profiler; another plugin that the user has configured is called from
//! here ([`user_plugin`]).
//!
//! ```text
//! version 4 (NCCL 2.27)    Group ─ Coll, P2p ─ KernelCh
//! from 5 on (2.28)         GroupApi ─ CollApi, P2pApi ─ Coll, P2p ─ KernelCh
//! ```
//!
//! Since version 5, a collective is recorded from its `CollApi`, as the program called it. The peer
//! of a message is known only from its `P2p`. With "kernels", proxies also report network transfers
//! (`ProxyOp ─ ProxyStep`, children of a `Coll` or a `P2p`, see [`network_transfers`]). Version 4 reports
//! only work, with sizes in bytes for operations that only move data.
//!
//! [`plugin`] has the functions that NCCL calls, [`layout`] what they are passed, and [`events`]
//! the state of events. [`calls`] records calls from events, after [`groups`] has collected them.

mod calls;
mod events;
mod groups;
mod layout;
mod network_transfers;
mod plugin;
mod user_plugin;
