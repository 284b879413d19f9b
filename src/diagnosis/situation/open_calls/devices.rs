//! Ranks whose devices wait for each other, although every rank has made every call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::model::{GroupId, Process};
use crate::situation::moment::Moment;
use crate::waits::dumped::{self, Dumped};
use crate::waits::{Blocked, device, issue_order};

/// A cycle among devices, according to the order of c10d's calls.
#[derive(Clone, Debug)]
pub struct DeviceCycle {
    /// What each rank's device is in; each needs the rank of the next.
    pub waits: Vec<Blocked>,
    /// Other ranks that are stuck and belong to a group in which one of the cycle waits for a collective.
    pub victims: Vec<u32>,
    /// Time from which the ranks had waited long enough.
    pub evidence_at: Timestamp,
    /// When dumps were requested that show the call of each wait as the first one which its device has not completed;
    /// `None`: they do not, or there are none.
    pub dumped_at: Option<Timestamp>,
}

impl DeviceCycle {
    /// Whether a rank waits for a message.
    pub fn has_message(&self) -> bool {
        self.waits.iter().any(|wait| wait.call.op.is_point_to_point())
    }

    /// The ranks of the cycle, ascending.
    pub fn ranks(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.waits.iter().map(|wait| wait.rank).collect();
        ranks.sort_unstable();
        ranks
    }
}

/// The cycle among ranks that have waited, for a call or for their device, for as long as the stall
/// limit, or until the job was interrupted.
pub(super) fn cycle(moment: &Moment<'_>) -> Option<DeviceCycle> {
    let is_cut_short = moment.until < moment.now;
    let interrupted = moment.model.timing.interrupted_wait;
    let limit = if is_cut_short { interrupted } else { moment.config.stall_after };
    let of = |&rank: &u32| moment.model.process_of(rank);
    let ranks = moment.model.ranks.keys();
    let processes = ranks.filter_map(|rank| Some((*rank, of(rank)?)));
    let standing: BTreeMap<u32, BTreeSet<GroupId>> = processes
        .filter(|(_, process)| stands(moment, process, limit))
        .map(|(rank, process)| (rank, process.groups().collect()))
        .collect();
    let waits = issue_order::cycle(moment.model, &standing)?;
    let since = waits.iter().filter_map(|wait| Some(of(&wait.rank)?.last_at)).max()?;
    let is_victim = |rank: &u32| {
        let mut collectives = waits.iter().filter(|it| it.call.op.is_collective());
        !waits.iter().any(|it| it.rank == *rank)
            && collectives.any(|it| moment.model.group(it.group).members.contains_key(rank))
    };
    let shown: Vec<Option<Dumped>> = waits
        .iter()
        .map(|wait| {
            let group = moment.model.group(wait.group);
            let own = group.open_or_entered(wait.seq)?.calls.get(&wait.rank)?;
            dumped::of_call(moment.model, group, wait.rank, of(&wait.rank)?, &own.call)
        })
        .collect();
    // A call that is complete keeps no other one waiting, whatever the order of the calls says.
    if shown.iter().flatten().any(|it| it.progress == dumped::Progress::Complete) {
        return None;
    }
    let is_first = |it: &Option<Dumped>| {
        let first = it.filter(|it| matches!(it.progress, dumped::Progress::Incomplete { .. }));
        first.map(|it| it.at)
    };
    let dumped_at = shown
        .iter()
        .map(is_first)
        .collect::<Option<Vec<Timestamp>>>()
        .and_then(|it| it.into_iter().min());
    let victims = standing.keys().copied().filter(is_victim).collect();
    Some(DeviceCycle { waits, victims, evidence_at: since.plus(limit), dumped_at })
}

/// Whether a process with one thread has recorded nothing for at least `limit`, and waits: in a call
/// of any kind, or for its device.
fn stands(moment: &Moment<'_>, process: &Process, limit: Duration) -> bool {
    let threads = process.threads.values().filter(|thread| thread.of_the_program).count();
    // Threads may use streams of their own.
    let is_known = process.lost == 0 && threads == 1 && !process.is_stopped();
    let waits = || process.threads.values().any(|it| it.is_under_way());
    is_known
        && process.last_at.plus(limit) <= moment.until
        && (waits() || device::is_waited_for(process, &moment.model.timing))
}
