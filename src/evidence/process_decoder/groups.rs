//! Process groups of a process.

use std::collections::HashMap;
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Event, GroupInfo, ProcessId, Seat, Unstated};
use ddp_doctor_diagnosis::model::STACK_LAYER;
use ddp_doctor_proto::report::GroupRef;
use ddp_doctor_proto::v1;
use ddp_doctor_proto::vocabulary::NCCL_LAYER;

use crate::limits::Limits;
use crate::members::{self, Listed};
use crate::values::name;

/// Maximum number of process groups per process.
const MAX_GROUPS: usize = 8192;
/// Maximum number of group creations per process.
const MAX_CREATIONS: usize = 65_536;

/// The groups of a process, by number.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: HashMap<u32, Arc<GroupInfo>>,
    /// Number of group creations so far.
    creations: usize,
}

impl Groups {
    pub(super) fn get(&self, id: u32) -> Option<&Arc<GroupInfo>> {
        self.groups.get(&id)
    }

    /// Adds a group; `None`: it is invalid, or over a limit.
    pub(super) fn define(
        &mut self,
        process: ProcessId,
        layer: &str,
        group: v1::GroupDefined,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        if self.groups.contains_key(&group.id) {
            return Some(());
        }
        if group.id == 0 || self.groups.len() >= MAX_GROUPS {
            return None;
        }
        let seat = seat(group.seat)?;
        let unbounded = GroupInfo {
            key: GroupRef {
                layer: layer_of(layer, seat).into(),
                epoch: group.epoch,
                name: name(&group.name).as_ref().into(),
                ordinal: group.ordinal,
                members: Vec::new(),
            },
            description: name(&group.description),
            backend: name(&group.backend),
            seat,
            unstated: Unstated { numbers: layer == STACK_LAYER, ..Unstated::default() },
        };
        let info = limits.group(unbounded, Listed::new(group.members, group.runs))?;
        self.groups.insert(group.id, info.clone());
        out.push(Event::GroupJoined { process, group: info });
        Some(())
    }

    /// The group that a call is about to create; `None`: not recorded, invalid, or over a limit.
    pub(super) fn created(
        &mut self,
        layer: &str,
        group: Option<v1::GroupCreation>,
        limits: &mut Limits,
    ) -> Option<Arc<GroupInfo>> {
        let group = group.filter(|group| !group.name.is_empty())?;
        let seat = seat(group.seat)?;
        if self.creations >= MAX_CREATIONS {
            return None;
        }
        self.creations += 1;
        let info = GroupInfo {
            key: GroupRef {
                layer: layer_of(layer, seat).into(),
                epoch: group.epoch,
                name: name(&group.name).as_ref().into(),
                ordinal: 0,
                members: Vec::new(),
            },
            description: name(&group.description),
            backend: name(&group.backend),
            seat,
            ..GroupInfo::default()
        };
        limits.group(info, Listed::new(group.members, group.runs))
    }
}

/// Layer of a group of a process whose box was made by `layer`. c10d records the members of its groups: a
/// group without them in its box is an NCCL communicator.
fn layer_of(layer: &str, seat: Option<Seat>) -> &str {
    match (layer, seat) {
        ("c10d", Some(_)) => NCCL_LAYER,
        // Stacks show calls of c10d.
        (STACK_LAYER, _) => "c10d",
        (layer, _) => layer,
    }
}

/// Converts a group rank to a global rank; stays a group rank if the members are unknown.
pub(super) fn global(group: Option<&GroupInfo>, rank: i32) -> Option<u32> {
    let group = group?;
    if let Some(seat) = group.seat {
        return u32::try_from(rank).ok().filter(|&rank| rank < seat.size);
    }
    let members = &group.key.members;
    members.get(usize::try_from(rank).ok()?).copied()
}

/// Validates the rank in a group; outer `None`: invalid, inner `None`: absent.
fn seat(seat: Option<v1::Seat>) -> Option<Option<Seat>> {
    let Some(v1::Seat { rank, size }) = seat else {
        return Some(None);
    };
    (rank < size && size as usize <= members::MAX).then_some(Some(Seat { rank, size }))
}
