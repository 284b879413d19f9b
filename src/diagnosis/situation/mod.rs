//! What is the matter, before it has a name: stalls, divergences, and what each of them comes from.
//!
//! The decision which finding a stall leads to is made here, in one place and for all findings: a
//! stall has one [`Origin`], and every detector speaks only of origins of its own kind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::Config;
use super::communication;
use super::contract::{self, Breach};
use super::creations;
use super::device;
use super::event::CallId;
use super::growth::{self, Grower};
use super::lateness::Straggler;
use super::model::{Group, GroupId, Join, JoinedCall, Model, Process};
use super::waits::Waits;

mod absence;
mod divergence;
mod inside;
mod origin;
mod overdue;
mod stall;

pub use absence::{Absence, Absent};
pub use divergence::{Divergence, Nature};
pub use inside::Inside;
pub use origin::Origin;
pub use stall::Stall;

/// A wait that ended without its peers: only believed after this long, since the evidence of other
/// processes may be that late.
const FAILED_FOR: Duration = Duration::from_millis(500);

/// The model at one moment, and what can be seen in it.
pub struct Situation<'a> {
    /// What is known.
    pub model: &'a Model,
    /// The moment.
    pub now: Timestamp,
    /// Up to when waits count.
    pub until: Timestamp,
    /// Settings.
    pub config: &'a Config,
    /// Who waits for whom.
    pub waits: Waits,
    /// Groups in which ranks wait for members that have not come: the first such place for each of
    /// those, and the first point-to-point call of each rank that waits for a partner.
    pub stalls: Vec<Stall>,
    /// Groups in which calls met that cannot match: the first such place of each.
    pub divergences: Vec<Divergence>,
    /// Collectives that every member has entered and somebody waits for: the first of each group.
    pub inside: Vec<Inside>,
    /// Where DDP's contract was broken: the first time in each group.
    pub breaches: Vec<Breach>,
    /// Makers of groups who do not agree: the first such in each world.
    pub mismatches: Vec<creations::Mismatch<'a>>,
    /// Who keeps the others waiting, again and again.
    pub straggler: Option<Straggler>,
    /// What collectives take by themselves.
    pub took: communication::Found,
    /// Ranks whose memory grows with every step.
    pub growers: Vec<Grower<'a>>,
}

impl<'a> Situation<'a> {
    /// Looks at the model.
    #[must_use]
    pub fn of(model: &'a Model, config: &'a Config, now: Timestamp) -> Self {
        let mut situation = Self {
            model,
            now,
            until: model.own_doing_until(now),
            config,
            waits: Waits::of(model, now),
            stalls: Vec::new(),
            divergences: Vec::new(),
            inside: Vec::new(),
            breaches: Vec::new(),
            mismatches: Vec::new(),
            straggler: None,
            took: communication::Found::default(),
            growers: growth::growers(model),
        };
        situation.inside = inside::all(&situation);

        situation.divergences = model
            .groups()
            .filter_map(|group| situation.divergence(group))
            .collect();
        let mut stalls: Vec<Stall> = model
            .groups()
            .flat_map(|group| situation.stalls_of(group))
            .collect();
        let unpartnered = model.groups();
        stalls.extend(unpartnered.flat_map(|group| situation.unpartnered(group)));
        for i in 0..stalls.len() {
            stalls[i].origin = situation.origin(&stalls, i, &mut BTreeSet::new());
        }
        for stall in &mut stalls {
            let origin = stall.origin.clone();
            let astray = match &origin {
                Origin::Leaving(_) => true,
                Origin::Raised(ranks) => *ranks == stall.waiting,
                _ => false,
            };
            // A rank that waits for one which waits for it has itself to thank.
            stall
                .waiting
                .retain(|rank| astray || !origin.ranks().contains(rank));
        }
        for stall in &mut stalls {
            stall.parting = situation.parting_of(stall);
        }
        situation.stalls = stalls;
        situation.breaches = contract::breaches(&situation);
        situation.trace_back_to_breaches();
        situation.mismatches = creations::mismatches(&situation);
        situation
    }

    /// The join of a group at a sequence number.
    #[must_use]
    pub fn join(&self, group: GroupId, seq: u64) -> Option<&'a Join> {
        self.model.group(group).join(seq)
    }

    /// Groups of NCCL's in which everybody has come, and of which nobody tells whether the devices go on:
    /// since when.
    pub fn settled(&self) -> impl Iterator<Item = (&'a Group, Timestamp)> {
        let model = self.model;
        let groups = model.groups().filter(|group| !group.entered.is_empty());
        groups.filter_map(move |group| {
            let (seq, since) = device::settled_at(model, group)?;
            let mut calls = group.entered.get(&seq)?.all();
            let is_followed = |rank, call: CallId| {
                let process = model.member(group.id, rank);
                process.is_some_and(|it| it.followed.contains(&call))
            };
            let all = calls.all(|(rank, joined)| is_followed(rank, joined.call.id));
            (!all).then_some((group, since))
        })
    }

    /// The calls that were made where ranks wait.
    #[must_use]
    pub fn calls<'s>(&self, stall: &'s Stall) -> Vec<(u32, &'s JoinedCall)>
    where
        'a: 's,
    {
        match &stall.message {
            Some(lone) => vec![(lone.rank, &lone.joined)],
            None => {
                let group = self.model.group(stall.group);
                let join = group.join(stall.seq);
                let join = join.or_else(|| group.entered.get(&stall.seq));
                join.into_iter().flat_map(Join::all).collect()
            }
        }
    }

    /// Stalls by what they come from, the one nearest to the origin first.
    #[must_use]
    pub fn stalls_by_origin(&self) -> BTreeMap<&Origin, Vec<&Stall>> {
        let mut by_origin: BTreeMap<&Origin, Vec<&Stall>> = BTreeMap::new();
        for stall in &self.stalls {
            by_origin.entry(&stall.origin).or_default().push(stall);
        }
        for stalls in by_origin.values_mut() {
            stalls.sort_by_key(|stall| (!stall.is_direct(), stall.since));
        }
        by_origin
    }
}

/// Whether the process has made no call after this one.
fn is_last_call(process: &Process, joined: &JoinedCall) -> bool {
    process
        .last_call
        .as_ref()
        .is_some_and(|last| last.id == joined.call.id)
}
