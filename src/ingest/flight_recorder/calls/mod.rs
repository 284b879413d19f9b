//! The calls of a job: its process groups with the progress of each rank (`groups`), the calls of each rank as
//! the engine counts them (`units`), and the pairs of sends and receives (`messages`).

mod groups;
mod messages;
mod units;

pub(super) use groups::{DumpedGroup, GroupAt, Groups, Progress};
pub(super) use messages::{Messages, Placed};
pub(super) use units::{Calls, Unit};
