//! Creations of process groups: which rank requested which group.
//!
//! Creators meet by the name of the group, within one initialization of one world. If they request
//! the same members, they create one group; its creation is call 0 of the group, with waits like
//! those of any other call. If not, some requests cannot be satisfied. Ranks that are not members
//! take part because they count group names as well.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::input::event::{Call, GroupInfo, ProcessId};
use crate::model::ids::World;

/// Maximum number of incomplete meetings kept.
const MAX_KEPT: usize = 1024;

/// What the creators of a group meet by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeetingPoint {
    /// World of the creators.
    pub world: World,
    /// Number of earlier initializations of the world.
    pub epoch: u32,
    /// Name of the group.
    pub name: String,
}

impl MeetingPoint {
    /// Where the members of a group meet to create it.
    pub(in crate::model) fn new(group: &GroupInfo, world: &World) -> Self {
        Self { world: world.clone(), epoch: group.key.epoch, name: group.key.name.clone() }
    }
}

/// The ranks that create a group under one name.
#[derive(Debug, Default)]
pub struct Meeting {
    /// Distinct requests. More than one cannot be satisfied together.
    pub requests: Vec<Request>,
    /// Counts meetings in the order in which they began.
    number: u64,
}

/// A requested group, and the ranks that requested it.
#[derive(Debug)]
pub struct Request {
    /// The requested group.
    pub group: Arc<GroupInfo>,
    /// Requesting ranks, members or not.
    pub ranks: BTreeMap<u32, CreationRequest>,
}

/// The request of one rank.
#[derive(Clone, Debug)]
pub struct CreationRequest {
    /// Process of the rank.
    pub process: ProcessId,
    /// The call that creates the group.
    pub call: Arc<Call>,
    /// 1-based index among the groups that the process created.
    pub nth: u64,
}

/// All meetings that are not settled.
#[derive(Debug, Default)]
pub struct Creations {
    meetings: BTreeMap<MeetingPoint, Meeting>,
    /// Number of meetings that have begun.
    begun: u64,
}

impl Creations {
    /// The meetings that are not settled.
    pub fn meetings(&self) -> impl Iterator<Item = (&MeetingPoint, &Meeting)> {
        self.meetings.iter()
    }

    /// The request of a rank at a meeting.
    pub fn asked(&self, at: &MeetingPoint, rank: u32) -> Option<&Request> {
        let meeting = self.meetings.get(at)?;
        meeting.requests.iter().find(|request| request.ranks.contains_key(&rank))
    }

    /// Adds the request of a rank in a world of `world_size` ranks.
    pub(in crate::model) fn ask(
        &mut self,
        at: MeetingPoint,
        rank: u32,
        group: &Arc<GroupInfo>,
        asked: CreationRequest,
        world_size: Option<u32>,
    ) {
        if !self.meetings.contains_key(&at) {
            self.make_room();
            self.begun += 1;
        }
        let new = || Meeting { requests: Vec::new(), number: self.begun };
        let meeting = self.meetings.entry(at.clone()).or_insert_with(new);
        let same = meeting
            .requests
            .iter_mut()
            .find(|request| request.group.key.members == group.key.members);
        match same {
            Some(request) => {
                request.ranks.entry(rank).or_insert(asked);
            }
            None => meeting
                .requests
                .push(Request { group: Arc::clone(group), ranks: BTreeMap::from([(rank, asked)]) }),
        }
        if meeting.is_settled(&at, world_size) {
            self.meetings.remove(&at);
        }
    }

    /// Drops the oldest meeting without conflict, or else the oldest.
    fn make_room(&mut self) {
        if self.meetings.len() < MAX_KEPT {
            return;
        }
        let age = |it: &(&MeetingPoint, &Meeting)| (it.1.requests.len() > 1, it.1.number);
        if let Some(oldest) = self.meetings.iter().min_by_key(age).map(|(at, _)| at.clone()) {
            self.meetings.remove(&oldest);
        }
    }
}

impl Meeting {
    /// Whether all ranks that may take part have requested the same group.
    fn is_settled(&self, at: &MeetingPoint, world_size: Option<u32>) -> bool {
        let [request] = &self.requests[..] else { return false };
        let everybody = world_size.is_some_and(|size| request.ranks.len() >= size as usize);
        // A name that is not a number is derived from the members, and only they use it.
        let members_only = at.name.parse::<u64>().is_err();
        let members = &request.group.key.members;
        everybody || (members_only && members.iter().all(|rank| request.ranks.contains_key(rank)))
    }
}
