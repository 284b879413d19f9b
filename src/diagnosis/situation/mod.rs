//! Stalls and divergences at one moment, and the origin of each.
//!
//! Which finding a stall leads to is decided here, for all findings: a stall has exactly one
//! [`StallOrigin`], and each detector handles only its own kinds of origin.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::config::Config;
use crate::delays::communication;
use crate::delays::lateness::Straggler;
use crate::model::{Attempts, Ending, Group, GroupId, Join, JoinedCall, Model};
use crate::trends::growth::{self, Grower};
use crate::waits::Waits;
use crate::waits::device;

mod absence;
pub mod contract;
pub mod creations;
mod devices;
mod divergence;
mod file_locks;
mod inside;
mod occupation;
mod omission;
mod origin;
mod overdue;
mod stall;
pub mod startup;
mod termination;

pub use absence::{Absent, OriginKind};
pub use contract::Breach;
pub use devices::DeviceCycle;
pub use divergence::{Divergence, Nature};
pub use file_locks::LockHolder;
pub use inside::{DumpedProgress, Inside};
pub use omission::{LeftOut, Omission};
pub use origin::StallOrigin;
pub use stall::Stall;

/// Time after which a wait that ended without its peers counts as failed. Evidence from other
/// processes may arrive that late.
const FAILED_FOR: Duration = Duration::from_millis(500);

/// The model at one moment: the first stage of a situation.
pub struct Moment<'a> {
    /// The evidence.
    pub model: &'a Model,
    /// Time of the evaluation.
    pub now: Timestamp,
    /// End of the time in which waits count: `now`, or when ranks began to end on request.
    pub until: Timestamp,
    /// Configuration of the engine.
    pub config: &'a Config,
    /// Restarts of the ranks by their launcher.
    pub attempts: Attempts,
    /// Graph of waits.
    pub waits: Waits,
}

/// The second stage: what is known of calls that ranks are in.
pub struct OpenCalls<'a> {
    earlier: Moment<'a>,
    /// The first collective of each group that every member has entered and ranks wait for.
    pub inside: Vec<Inside>,
    /// Ranks whose devices wait for each other.
    pub device_cycle: Option<DeviceCycle>,
    /// The first place in each group at which calls met that cannot match.
    pub divergences: Vec<Divergence>,
}

/// The third stage: waits for ranks that have not arrived, each with its origin.
pub struct Stalls<'a> {
    earlier: OpenCalls<'a>,
    /// Stalls: in each group the first place for each set of missing members, and the first
    /// point-to-point call of each rank that waits for a partner.
    pub stalls: Vec<Stall>,
    /// Calls that explain a cycle of waits: one rank left them out, or made them alone.
    pub omissions: Vec<Omission>,
}

/// The model at one moment, and what follows from it. It is built in stages, each of which is complete before the
/// next one begins, and has the fields and functions of the earlier ones.
pub struct Situation<'a> {
    earlier: Stalls<'a>,
    /// The first breach of DDP's contract in each group.
    pub breaches: Vec<Breach>,
    /// The first mismatch of group creations in each initialization of each world.
    pub mismatches: Vec<creations::Mismatch<'a>>,
    /// Time that ranks lose.
    pub losses: LostTime,
    /// Ranks whose memory grows with every step.
    pub growers: Vec<Grower<'a>>,
}

/// Analyses of lost time, which are reused from one evaluation to the next.
#[derive(Clone, Debug, Default)]
pub struct LostTime {
    /// Ranks that repeatedly keep the others waiting.
    pub straggler: Option<Straggler>,
    /// Analysis of the duration of collectives.
    pub communication: communication::CommunicationFindings,
}

impl<'a> Deref for OpenCalls<'a> {
    type Target = Moment<'a>;

    fn deref(&self) -> &Moment<'a> {
        &self.earlier
    }
}

impl<'a> Deref for Stalls<'a> {
    type Target = OpenCalls<'a>;

    fn deref(&self) -> &OpenCalls<'a> {
        &self.earlier
    }
}

impl<'a> Deref for Situation<'a> {
    type Target = Stalls<'a>;

    fn deref(&self) -> &Stalls<'a> {
        &self.earlier
    }
}

impl<'a> Moment<'a> {
    fn new(model: &'a Model, config: &'a Config, now: Timestamp) -> Self {
        Self {
            model,
            now,
            until: model.shutdown_at(now),
            config,
            attempts: model.attempts(),
            waits: Waits::new(model, now),
        }
    }

    /// The open join of a group at a sequence number.
    pub fn join(&self, group: GroupId, seq: u64) -> Option<&'a Join> {
        self.model.group(group).join(seq)
    }

    /// How the process of a member ended; `None`: it is not known.
    pub fn ending(&self, group: GroupId, rank: u32) -> Option<Ending<'a>> {
        self.model.member(group, rank).map(|process| self.model.ending_of(process))
    }

    /// NCCL groups whose members have all issued their last call, whose completion not all of them
    /// will report, with the time of the last of these calls.
    pub fn settled(&self) -> impl Iterator<Item = (&'a Group, Timestamp)> {
        let model = self.model;
        model.groups().filter_map(|group| Some((group, device::settled_at(model, group)?)))
    }

    /// The calls issued at the place of a stall.
    pub fn calls<'s>(&self, stall: &'s Stall) -> Vec<(u32, &'s JoinedCall)>
    where
        'a: 's,
    {
        match &stall.message {
            Some(unmatched) => vec![(unmatched.rank, &unmatched.joined)],
            None => {
                let join = self.model.group(stall.group).open_or_entered(stall.seq);
                join.into_iter().flat_map(Join::by_rank).collect()
            }
        }
    }
}

impl<'a> OpenCalls<'a> {
    fn new(moment: Moment<'a>) -> Self {
        let groups = moment.model.groups();
        Self {
            inside: inside::find(&moment),
            device_cycle: devices::cycle(&moment),
            divergences: groups.filter_map(|group| moment.divergence(group)).collect(),
            earlier: moment,
        }
    }
}

impl<'a> Stalls<'a> {
    fn new(calls: OpenCalls<'a>) -> Self {
        let model = calls.model;
        let mut stalls: Vec<Stall> =
            model.groups().flat_map(|group| calls.stalls_of(group)).collect();
        stalls.extend(model.groups().flat_map(|group| calls.unpartnered(group)));
        for (at, origin) in calls.origins(&stalls).into_iter().enumerate() {
            stalls[at].origin = origin;
        }
        let omissions = omission::find(&calls, &mut stalls);
        for stall in &mut stalls {
            let origin = stall.origin.clone();
            let astray = match origin.why {
                OriginKind::Leaving => true,
                OriginKind::Raised => origin.ranks == stall.waiting,
                _ => false,
            };
            // A rank is not a victim of a stall that it causes.
            stall.waiting.retain(|rank| astray || !origin.ranks.contains(rank));
            stall.rank_guard = calls.parting_of(stall);
        }
        Self { earlier: calls, stalls, omissions }
    }

    /// Stalls by origin, those at the origin itself first.
    pub fn stalls_by_origin(&self) -> BTreeMap<&StallOrigin, Vec<&Stall>> {
        let mut by_origin: BTreeMap<&StallOrigin, Vec<&Stall>> = BTreeMap::new();
        for stall in &self.stalls {
            by_origin.entry(&stall.origin).or_default().push(stall);
        }
        for stalls in by_origin.values_mut() {
            stalls.sort_by_key(|stall| (!stall.is_direct(), stall.since));
        }
        by_origin
    }

    /// What `of` makes of the stalls of each origin.
    pub fn by_origin<T>(&self, of: impl Fn(&StallOrigin, &[&Stall]) -> Option<T>) -> Vec<T> {
        let by_origin = self.stalls_by_origin().into_iter();
        by_origin.filter_map(|(origin, stalls)| of(origin, &stalls)).collect()
    }

    /// The stalls that this origin explains.
    pub fn stalls_from(&self, origin: &StallOrigin) -> Vec<&Stall> {
        self.stalls.iter().filter(|stall| stall.origin == *origin).collect()
    }
}

impl<'a> Situation<'a> {
    /// Evaluates the model at `now`.
    pub fn new(model: &'a Model, config: &'a Config, now: Timestamp, losses: LostTime) -> Self {
        let mut stalls = Stalls::new(OpenCalls::new(Moment::new(model, config, now)));
        let breaches = contract::breaches(&stalls);
        stalls.trace_back_to(&breaches);
        Self {
            breaches,
            mismatches: creations::mismatches(&stalls),
            losses,
            growers: growth::growers(model),
            earlier: stalls,
        }
    }
}
