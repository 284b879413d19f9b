//! What identifies worlds, groups and the places of calls in the model.

use std::cmp::Ordering;
use std::sync::Arc;

use ddp_doctor_proto::report::GroupRef;

use crate::input::event::{CallId, GroupInfo};

/// A set of processes that can meet in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    /// Distinguishes it from other worlds of the job; may be empty.
    pub name: Arc<str>,
    /// Number of earlier worlds of that name, that is, of restarts.
    pub generation: u32,
}

/// Identity of a group: its world, and what its members agree on. Ordered by these.
#[derive(Debug)]
pub(in crate::model) struct GroupKey {
    world: World,
    info: Arc<GroupInfo>,
}

impl GroupKey {
    pub(in crate::model) fn new(world: &World, info: &Arc<GroupInfo>) -> Self {
        Self { world: world.clone(), info: Arc::clone(info) }
    }

    /// Whether the group is described like this one, in whichever world.
    pub(in crate::model) fn is_described_as(&self, info: &GroupInfo) -> bool {
        self.info.key == info.key
    }

    fn parts(&self) -> (&World, &GroupRef) {
        (&self.world, &self.info.key)
    }
}

impl PartialEq for GroupKey {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for GroupKey {}

impl PartialOrd for GroupKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GroupKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
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
