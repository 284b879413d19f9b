//! Commands that show a job, from its coordinator or from evidence: `watch`, `status` and `dump`.
//!
//! `target` resolves the argument. `connection` reaches a coordinator, `state` takes one update from it or from files,
//! and `feed` passes all updates to the screens. `attach` and `attach_follow` read a job that was not prepared.

mod attach;
mod attach_follow;
mod connection;
mod dump;
mod feed;
mod state;
mod status;
mod target;
mod watch;

pub(super) use attach::{Attach, ReadProcesses};
pub(super) use dump::ShowStacks;
pub(super) use status::ShowStatus;
pub(super) use target::newest_run;
pub(super) use watch::Watch;
