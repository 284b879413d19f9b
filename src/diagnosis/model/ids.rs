//! What identifies worlds, groups and the places of calls in the model.

use std::sync::Arc;

use crate::evidence::event::CallId;

/// A set of processes that can meet in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    /// Distinguishes it from other worlds of the job; may be empty.
    pub name: Arc<str>,
    /// Number of earlier worlds of that name, that is, of restarts.
    pub generation: u32,
}

/// Identifies a group within the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// The place of a call that a thread may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The calls of a group with one sequence number.
    Join(GroupId, u64),
    /// A call in the point-to-point traffic of a group.
    Message(GroupId, Post),
}

impl Target {
    /// The group of the call.
    pub const fn group(self) -> GroupId {
        match self {
            Self::Join(group, _) | Self::Message(group, _) => group,
        }
    }
}

/// A side of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The sender's.
    Send,
    /// The receiver's.
    Receive,
}

/// The place of a point-to-point call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Its side.
    pub side: Side,
    /// The rank that issued it.
    pub rank: u32,
    /// Its peer; `None`: any rank.
    pub peer: Option<u32>,
    pub(super) lane: Option<i32>,
    pub(super) call: CallId,
}
