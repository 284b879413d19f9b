//! The model at one moment: the first stage of a situation.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::config::Config;
use crate::model::{Attempts, Ending, Group, GroupId, Join, JoinedCall, Model};
use crate::situation::stall::Stall;
use crate::waits::Waits;
use crate::waits::device;

/// Time after which a wait that ended without its peers counts as failed. Evidence from other
/// processes may arrive that late.
pub(super) const FAILED_FOR: Duration = Duration::from_millis(500);

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

impl<'a> Moment<'a> {
    pub(super) fn new(model: &'a Model, config: &'a Config, now: Timestamp) -> Self {
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
