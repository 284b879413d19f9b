//! Mismatched group creations: ranks met under one name and requested different members.

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::report::Timestamp;

use crate::model::{
    CreationRequest, GroupId, Meeting, MeetingPoint, Model, Process, Request, World,
};
use crate::situation::origin_kind::{OriginKind, StallOrigin};
use crate::situation::stall_origins::Stalls;
use crate::waits::Blocked;

/// Creators that met with different requests.
#[derive(Debug)]
pub struct Mismatch<'a> {
    /// The name under which they met, with world and initialization.
    pub at: &'a MeetingPoint,
    /// The different requests.
    pub requests: Vec<&'a Request>,
    /// A creator, and a rank that it needs but that requested another group: they can never be one
    /// group. `None`: the groups have no rank in common, and only their names collide.
    pub pair: Option<[(u32, &'a Request); 2]>,
    /// When the mismatch arose.
    pub since: Timestamp,
}

/// The first mismatch of each initialization of each world; later ones follow from it.
pub fn mismatches<'a>(stalls: &Stalls<'a>) -> Vec<Mismatch<'a>> {
    let mut found: Vec<(u64, Mismatch<'a>)> = stalls
        .model
        .creations
        .meetings()
        .filter_map(|(at, meeting)| {
            let asked = meeting.requests.iter().flat_map(|it| it.ranks.values());
            let nth = asked.map(|asked| asked.nth).min().unwrap_or(0);
            Some((nth, mismatch(stalls, at, meeting)?))
        })
        .collect();
    let place = |it: &Mismatch<'a>| (&it.at.world, it.at.epoch);
    found.sort_by_key(|(nth, it)| (place(it), *nth, it.since));
    found.dedup_by_key(|(_, it)| place(it));
    found.into_iter().map(|(_, mismatch)| mismatch).collect()
}

fn mismatch<'a>(
    stalls: &Stalls<'a>,
    at: &'a MeetingPoint,
    meeting: &'a Meeting,
) -> Option<Mismatch<'a>> {
    let requests: Vec<&Request> = meeting.requests.iter().collect();
    let mut found: Option<(Timestamp, [(u32, &Request); 2])> = None;
    for wanted in &requests {
        let members = &wanted.group.key.members;
        let Some((maker, begun)) = earliest(wanted, members) else { continue };
        for other in requests.iter().filter(|other| !std::ptr::eq(**other, *wanted)) {
            let Some((absent, asked)) = earliest(other, members) else { continue };
            let since = begun.call.at.max(asked.call.at);
            if found.is_none_or(|(known, _)| since < known) {
                found = Some((since, [(maker, *wanted), (absent, *other)]));
            }
        }
    }
    if let Some((since, pair)) = found {
        return Some(Mismatch { at, requests, pair: Some(pair), since });
    }
    collision(stalls, at, requests)
}

/// Groups without a common rank whose names collide: creators may find those of the other group in
/// the store. This may succeed, so only failures count.
fn collision<'a>(
    stalls: &Stalls<'a>,
    at: &'a MeetingPoint,
    requests: Vec<&'a Request>,
) -> Option<Mismatch<'a>> {
    let is_made = |request: &&&Request| {
        let members = &request.group.key.members;
        members.len() > 1 && request.ranks.keys().any(|rank| members.contains(rank))
    };
    if requests.iter().filter(is_made).count() < 2 {
        return None;
    }
    let makers = requests.iter().flat_map(|request| &request.ranks);
    let since = makers.filter_map(|(&rank, asked)| trouble(stalls, rank, asked)).min()?;
    (since <= stalls.now).then_some(Mismatch { at, requests, pair: None, since })
}

/// When a creator failed: it raised, or did not return in time.
fn trouble(stalls: &Stalls<'_>, rank: u32, asked: &CreationRequest) -> Option<Timestamp> {
    let process = stalls.model.processes.get(&asked.process)?;
    if let Some(at) = failed_at(process, asked) {
        return Some(at);
    }
    if !process.is_inside(&asked.call) || process.has_ended() {
        return None;
    }
    let is_missed = |StallOrigin { why, ranks }: &StallOrigin| {
        *why == OriginKind::Making && ranks.contains(&rank)
    };
    let missed = stalls.stalls.iter().filter(|stall| is_missed(&stall.origin));
    let overdue = missed.map(|stall| stalls.overdue_at(stall));
    let unfinished = asked.call.at.plus(stalls.model.timing.group_creation);
    overdue.chain([unfinished]).min()
}

/// When an exception left the call with which a process requested a group.
pub fn failed_at(process: &Process, asked: &CreationRequest) -> Option<Timestamp> {
    let raised = process.exceptions.iter().find(|exception| {
        exception.kind == ExceptionKind::LeftCollective && exception.after_calls == asked.call.id.0
    });
    raised.map(|exception| exception.at)
}

/// The earliest request by one of these ranks.
fn earliest<'a>(request: &'a Request, ranks: &[u32]) -> Option<(u32, &'a CreationRequest)> {
    let asked = request.ranks.iter().filter(|(rank, _)| ranks.contains(rank));
    asked.map(|(&rank, asked)| (rank, asked)).min_by_key(|(rank, asked)| (asked.call.at, *rank))
}

impl Mismatch<'_> {
    /// Whether the same groups are created in a different order, as far as known: what one side
    /// requests here, the other requests elsewhere.
    pub fn is_other_order(&self, model: &Model) -> bool {
        let Some([(maker, wanted), (absent, other)]) = self.pair else { return false };
        let asks = |rank: u32, members: &[u32]| {
            model.creations.meetings().any(|(at, meeting)| {
                at.world == self.at.world
                    && at.epoch == self.at.epoch
                    && at.name != self.at.name
                    && meeting.requests.iter().any(|request| {
                        request.group.key.members == members && request.ranks.contains_key(&rank)
                    })
            })
        };
        asks(absent, &wanted.group.key.members) && asks(maker, &other.group.key.members)
    }
}

/// The wait because of which a cycle of waits concerns the creation of groups: its rank creates one,
/// or waits for a rank that never created the group.
pub fn making<'c>(model: &Model, cycle: &'c [Blocked]) -> Option<&'c Blocked> {
    if cycle.iter().any(|wait| wait.message.is_some()) {
        return None;
    }
    let mut waits = cycle.iter().zip(cycle.iter().cycle().skip(1));
    let making = waits.find(|(wait, next)| {
        wait.seq == 0 || !model.group(wait.group).members.contains_key(&next.rank)
    });
    making.map(|(wait, _)| wait)
}

/// The world and the initialization of a group.
pub fn place_of(model: &Model, group: GroupId) -> (&World, u32) {
    let group = model.group(group);
    (&group.world, group.info.key.epoch)
}
