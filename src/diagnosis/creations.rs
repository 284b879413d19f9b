//! Groups whose makers do not agree: they met under one name and asked for different members.

use std::collections::BTreeMap;

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::report::Timestamp;

use super::model::{
    Asked, GroupId, Meeting, MeetingPoint, Model, Process, Request, World, is_inside,
};
use super::situation::{Origin, Situation, Stall};
use super::waits::Blocked;

/// Makers who met and do not agree.
#[derive(Debug)]
pub struct Mismatch<'a> {
    /// Where they met.
    pub at: &'a MeetingPoint,
    /// What they asked for.
    pub requests: Vec<&'a Request>,
    /// A maker, and a rank that it needs and that asked for another group: these can never be one.
    /// `None`: the groups have no rank in common, and only their names collide.
    pub pair: Option<[(u32, &'a Request); 2]>,
    /// When that was so.
    pub since: Timestamp,
}

/// The first mismatch of each initialisation of each world; what comes after it follows from it.
#[must_use]
pub fn mismatches<'a>(situation: &Situation<'a>) -> Vec<Mismatch<'a>> {
    let mut first: BTreeMap<(&World, u32), (u64, Mismatch<'a>)> = BTreeMap::new();
    for (at, meeting) in situation.model.creations.meetings() {
        let Some(mismatch) = mismatch(situation, at, meeting) else {
            continue;
        };
        let asked = meeting.requests.iter().flat_map(|it| it.ranks.values());
        let nth = asked.map(|asked| asked.nth).min().unwrap_or(0);
        let place = (&at.world, at.epoch);
        let key = (nth, mismatch.since);
        match first.get(&place) {
            Some((known, other)) if (*known, other.since) <= key => {}
            _ => {
                first.insert(place, (nth, mismatch));
            }
        }
    }
    first.into_values().map(|(_, mismatch)| mismatch).collect()
}

fn mismatch<'a>(
    situation: &Situation<'a>,
    at: &'a MeetingPoint,
    meeting: &'a Meeting,
) -> Option<Mismatch<'a>> {
    let requests: Vec<&Request> = meeting.requests.iter().collect();
    let mut found: Option<(Timestamp, [(u32, &Request); 2])> = None;
    for wanted in &requests {
        let members = &wanted.group.key.members;
        let maker = earliest(wanted, |rank| members.contains(&rank));
        let Some((maker, begun)) = maker else {
            continue;
        };
        for other in requests
            .iter()
            .filter(|other| !std::ptr::eq(**other, *wanted))
        {
            let Some((absent, asked)) = earliest(other, |rank| members.contains(&rank)) else {
                continue;
            };
            let since = begun.call.at.max(asked.call.at);
            if found.is_none_or(|(known, _)| since < known) {
                found = Some((since, [(maker, *wanted), (absent, *other)]));
            }
        }
    }
    if let Some((since, pair)) = found {
        return Some(Mismatch {
            at,
            requests,
            pair: Some(pair),
            since,
        });
    }
    collision(situation, at, requests)
}

/// Groups without a rank in common whose names collide: their makers may find each other in the
/// store instead of their own. It may also go well, so only what went wrong is believed.
fn collision<'a>(
    situation: &Situation<'a>,
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
    let since = makers
        .filter_map(|(&rank, asked)| trouble(situation, rank, asked))
        .min()?;
    (since <= situation.now).then_some(Mismatch {
        at,
        requests,
        pair: None,
        since,
    })
}

/// When a maker was in trouble: it raised, or did not come back in time.
fn trouble(situation: &Situation<'_>, rank: u32, asked: &Asked) -> Option<Timestamp> {
    let process = situation.model.processes.get(&asked.process)?;
    let raised = process.exceptions.iter().find(|exception| {
        exception.kind == ExceptionKind::LeftCollective && exception.after_calls == asked.call.id.0
    });
    if let Some(exception) = raised {
        return Some(exception.at);
    }
    if !is_inside(process, &asked.call) || process.has_ended() {
        return None;
    }
    let is_missed = |stall: &&Stall| match &stall.origin {
        Origin::Making(ranks) => ranks.contains(&rank),
        _ => false,
    };
    let stalls = situation.stalls.iter().filter(is_missed);
    let overdue = stalls.map(|stall| situation.overdue_at(stall));
    let unfinished = asked.call.at.plus(situation.model.timing.group_creation);
    overdue.chain([unfinished]).min()
}

/// The rank of that kind that asked first.
fn earliest(request: &Request, of: impl Fn(u32) -> bool) -> Option<(u32, &Asked)> {
    let asked = request.ranks.iter().filter(|(rank, _)| of(**rank));
    asked
        .map(|(&rank, asked)| (rank, asked))
        .min_by_key(|(rank, asked)| (asked.call.at, *rank))
}

impl Mismatch<'_> {
    /// Whether the same groups are made in another order, as far as can be seen: what one side asks
    /// for here, the other asks for elsewhere.
    #[must_use]
    pub fn is_other_order(&self, model: &Model) -> bool {
        let Some([(maker, wanted), (absent, other)]) = self.pair else {
            return false;
        };
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

/// Whether a cycle of waits is about the making of groups: somebody in it makes one, or waits for a
/// rank that never made the group.
#[must_use]
pub fn is_making_cycle(model: &Model, cycle: &[Blocked]) -> bool {
    let next = cycle.iter().cycle().skip(1);
    cycle.iter().all(|wait| wait.message.is_none())
        && cycle.iter().zip(next).any(|(wait, next)| {
            wait.seq == 0 || !model.group(wait.group).members.contains_key(&next.rank)
        })
}

/// The world and the initialisation that a group is of.
#[must_use]
pub fn place_of(model: &Model, group: GroupId) -> (&World, u32) {
    let group = model.group(group);
    (&group.world, group.info.key.epoch)
}

/// The process of a maker.
#[must_use]
pub fn process_of<'a>(model: &'a Model, asked: &Asked) -> Option<&'a Process> {
    model.processes.get(&asked.process)
}
