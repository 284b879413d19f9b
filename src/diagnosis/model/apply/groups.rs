//! Events about the groups of a process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::input::event::{Call, Event, GroupInfo, ProcessId};
use crate::model::Model;
use crate::model::group::{CreationRequest, Group, MeetingPoint, Member};
use crate::model::ids::{GroupId, GroupKey, Target, World};

impl Model {
    /// Takes an event about the groups of a process; returns any other one.
    pub(super) fn apply_groups(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::GroupJoined { process, group } => {
                self.group_joined(process, &group);
            }
            Event::GroupDestroyed { process, group, at } => {
                let is_own = self.is_before_shutdown(at);
                self.member_mut(process, &group)?.destroyed = Some(at).filter(|_| is_own);
            }
            Event::GroupTimeout { process, group, timeout, at } => {
                self.recorded(process, at)?;
                self.group_timeout(process, &group, Some(timeout));
            }
            Event::Frontier { process, group, issued, p2p_issued } => {
                let (id, rank) = self.membership(process, &group)?;
                let group = &mut self.groups[id.0 as usize];
                group.advance(rank, issued);
                group.completed.clear();
                group.traffic.advance(rank, p2p_issued);
            }
            other => return Some(other),
        }
        None
    }

    pub(super) fn group_joined(&mut self, process: ProcessId, info: &Arc<GroupInfo>) {
        let Some(process) = self.processes.get_mut(&process) else { return };
        let Some(rank) = process.rank else {
            process.early_groups.push((Arc::clone(info), None));
            return;
        };
        // Only listed ranks can be members.
        if !info.key.members.contains(&rank) {
            return;
        }
        let world = process.world.clone();
        let id = group_of(&mut self.groups, &mut self.group_ids, world, info);
        process.groups.insert(Arc::as_ptr(info) as usize, (Arc::clone(info), id));
        let process = process.id;
        self.groups[id.0 as usize].join_member(rank, process);
    }

    pub(super) fn group_timeout(
        &mut self,
        id: ProcessId,
        info: &Arc<GroupInfo>,
        timeout: Option<Duration>,
    ) {
        if let Some(member) = self.member_mut(id, info) {
            member.timeout = timeout.or(member.timeout);
        } else if let Some(process) = self.processes.get_mut(&id) {
            let mut early = process.early_groups.iter_mut();
            if let Some((_, known)) = early.find(|(group, _)| Arc::ptr_eq(group, info)) {
                *known = timeout;
            }
        }
    }

    /// The group and rank of a process that joined the group.
    pub(super) fn membership(
        &self,
        process: ProcessId,
        info: &Arc<GroupInfo>,
    ) -> Option<(GroupId, u32)> {
        let process = self.processes.get(&process)?;
        let (_, id) = process.groups.get(&(Arc::as_ptr(info) as usize))?;
        Some((*id, process.rank?))
    }

    /// The process as a member of a group that it joined.
    fn member_mut(&mut self, process: ProcessId, info: &Arc<GroupInfo>) -> Option<&mut Member> {
        let (group, rank) = self.membership(process, info)?;
        self.groups[group.0 as usize].members.get_mut(&rank)
    }

    /// A process is about to create a group.
    pub(super) fn creates(&mut self, id: ProcessId, call: &Arc<Call>) {
        let world_size = self.world_size();
        let Some(process) = self.processes.get_mut(&id) else { return };
        let (Some(rank), Some(info)) = (process.rank, &call.group) else {
            process.made_unknown_groups = true;
            process.issued(call, None);
            return;
        };
        process.groups_made += 1;
        let asked =
            CreationRequest { process: id, call: Arc::clone(call), nth: process.groups_made };
        let world = process.world.clone();
        let at = MeetingPoint::new(info, &world);
        self.creations.ask(at, rank, info, asked, world_size);
        if !info.key.members.contains(&rank) {
            process.issued(call, None);
            return;
        }
        let group = group_of(&mut self.groups, &mut self.group_ids, world, info);
        process.issued(call, Some(Target::Join(group, 0)));
        self.groups[group.0 as usize].begin(rank, id, call);
    }
}

/// The group with this key in this world; created if there is none.
fn group_of(
    groups: &mut Vec<Group>,
    ids: &mut BTreeMap<GroupKey, GroupId>,
    world: World,
    info: &Arc<GroupInfo>,
) -> GroupId {
    let next = GroupId(groups.len() as u32);
    let id = *ids.entry(GroupKey::new(&world, info)).or_insert(next);
    match groups.get_mut(id.0 as usize) {
        Some(group) => group.describe(info),
        None => groups.push(Group::new(id, world, Arc::clone(info))),
    }
    id
}
