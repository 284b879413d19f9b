//! The making of process groups: who asked for what, by what the makers meet by.
//!
//! A group's makers meet by its name, within one initialisation of one world. Where they ask for the
//! same members, that is one group; its making is call 0 of it, and is waited for like any other call.
//! Where they do not, the makers cannot all get what they asked for. Ranks that are no member take
//! part: they too count on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::process::World;
use crate::diagnosis::event::{Call, GroupInfo, ProcessId};

/// Most meetings that are kept while not everybody came to them.
const KEPT: usize = 1024;

/// What makers of groups meet by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeetingPoint {
    /// The world they are of.
    pub world: World,
    /// The n-th initialisation of it.
    pub epoch: u32,
    /// The name of the group.
    pub name: String,
}

/// Ranks that met, or are to meet, to make a group.
#[derive(Debug, Default)]
pub struct Meeting {
    /// What they asked for, each once. More than one: they cannot be one group.
    pub requests: Vec<Request>,
}

/// A group, and who asked for it.
#[derive(Debug)]
pub struct Request {
    /// What was asked for.
    pub group: Arc<GroupInfo>,
    /// By whom: members and others.
    pub ranks: BTreeMap<u32, Asked>,
}

/// How one rank asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its process.
    pub process: ProcessId,
    /// The call.
    pub call: Arc<Call>,
    /// It was the n-th group that this process made, from 1.
    pub nth: u64,
}

/// All meetings that are not settled.
#[derive(Debug, Default)]
pub struct Creations {
    meetings: BTreeMap<MeetingPoint, Meeting>,
    /// In the order in which they began.
    order: Vec<MeetingPoint>,
}

impl Creations {
    /// The meetings that are not settled.
    pub fn meetings(&self) -> impl Iterator<Item = (&MeetingPoint, &Meeting)> {
        self.meetings.iter()
    }

    /// What a rank asked for at a meeting.
    #[must_use]
    pub fn asked(&self, at: &MeetingPoint, rank: u32) -> Option<&Request> {
        let meeting = self.meetings.get(at)?;
        meeting
            .requests
            .iter()
            .find(|request| request.ranks.contains_key(&rank))
    }

    /// A rank of a world of that many asks for a group.
    pub(super) fn ask(
        &mut self,
        at: MeetingPoint,
        rank: u32,
        group: &Arc<GroupInfo>,
        asked: Asked,
        world_size: Option<u32>,
    ) {
        if !self.meetings.contains_key(&at) {
            self.make_room();
            self.order.push(at.clone());
        }
        let meeting = self.meetings.entry(at.clone()).or_default();
        let same = meeting
            .requests
            .iter_mut()
            .find(|request| request.group.key.members == group.key.members);
        match same {
            Some(request) => {
                request.ranks.entry(rank).or_insert(asked);
            }
            None => meeting.requests.push(Request {
                group: Arc::clone(group),
                ranks: BTreeMap::from([(rank, asked)]),
            }),
        }
        if meeting.is_settled(&at, world_size) {
            self.forget(&at);
        }
    }

    /// Forgets the oldest meeting that went well so far, or else the oldest.
    fn make_room(&mut self) {
        if self.order.len() < KEPT {
            return;
        }
        let well = |at: &&MeetingPoint| self.meetings[*at].requests.len() < 2;
        let oldest = self.order.iter().find(well).or(self.order.first()).cloned();
        if let Some(oldest) = oldest {
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, at: &MeetingPoint) {
        self.meetings.remove(at);
        self.order.retain(|other| other != at);
    }
}

impl Meeting {
    /// Whether everybody who may come came, and all asked for the same.
    fn is_settled(&self, at: &MeetingPoint, world_size: Option<u32>) -> bool {
        let [request] = &self.requests[..] else {
            return false;
        };
        let everybody = world_size.is_some_and(|size| request.ranks.len() >= size as usize);
        // A name that is no number is made of the members, and nobody else comes to it.
        let members_only = at.name.parse::<u64>().is_err();
        let members = &request.group.key.members;
        everybody || (members_only && members.iter().all(|rank| request.ranks.contains_key(rank)))
    }
}
