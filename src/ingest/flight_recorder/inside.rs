//! Calls that do not complete although all ranks have made them: what dumps show of the reason.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Finding, RankCall};

use super::dump::State;
use super::groups::GroupAt;
use super::play::Play;
use super::units::Unit;
use crate::diagnosis::words::{self, Capital, Ranks, number};

/// Adds to a finding about such a call why it does not complete, if that shows.
pub(super) fn explain(finding: &mut Finding, play: &Play<'_>) {
    let is_message = |it: &RankCall| it.peer.is_some();
    if finding.code != catalogue::DD116.code || finding.per_rank.iter().any(is_message) {
        return;
    }
    if let Some(calls) = calls(finding, play) {
        name_devices(finding, play, &calls);
    }
    explain_sizes(finding, play);
}

/// The calls of all members of the group.
fn calls<'a>(finding: &Finding, play: &'a Play<'_>) -> Option<Vec<(u32, &'a Unit)>> {
    let group = play.group_of(finding)?;
    let members = play.groups.all[group].info.key.members.iter();
    let calls = members.map(|&rank| Some((rank, play.collective(rank, group, finding.seq?)?.1)));
    calls.collect()
}

/// Names the ranks whose devices have not started the call, if all others have, and are no fewer.
pub(super) fn name_devices(finding: &mut Finding, play: &Play<'_>, calls: &[(u32, &Unit)]) {
    let Some(not_started) = not_started(play, calls).filter(|it| !it.is_empty()) else {
        return;
    };
    finding.why.push(format!(
        "{} {} not started it, and all others have: {} still executing earlier work.",
        Capital(Ranks(&not_started)),
        number(&not_started, "has", "have"),
        number(&not_started, "its device is", "their devices are"),
    ));
    let blame = &mut finding.ranks;
    blame.victims.append(&mut blame.root);
    blame.victims.retain(|rank| !not_started.contains(rank));
    blame.victims.sort_unstable();
    blame.root = not_started;
}

/// Ranks whose dumps record starts, and not that of the call; `None` if they are more than the others,
/// or if it is unknown whether a rank has started the call.
fn not_started(play: &Play<'_>, calls: &[(u32, &Unit)]) -> Option<Vec<u32>> {
    let mut not_started = Vec::new();
    for (rank, unit) in calls {
        let dump = &play.job.ranks[rank];
        if dump.entries[unit.entries.start].state == State::Scheduled {
            let records_starts = dump.status.values().any(|it| it.started.is_some());
            // The start of a batch is not recorded in its messages.
            let is_known = records_starts && !(unit.is_message && unit.launch != 0);
            not_started.push(is_known.then_some(*rank)?);
        }
    }
    (2 * not_started.len() <= calls.len()).then_some(not_started)
}

/// Turns the finding into DD108 split-mismatch, if the ranks of an `all_to_all` send another number of
/// elements than they expect. Dumps contain totals instead of splits.
fn explain_sizes(finding: &mut Finding, play: &Play<'_>) {
    let Some((group, sent, expected)) = totals(finding, play) else {
        return;
    };
    let Some(seq) = finding.seq.filter(|_| sent != expected) else {
        return;
    };
    finding.code = catalogue::DD108.code.into();
    finding.name = catalogue::DD108.name.into();
    finding.severity = catalogue::DD108.severity;
    finding.effect = Effect::Blocks;
    finding.confidence = Confidence::Supported;
    finding.summary = format!(
        "The sizes of all_to_all #{seq} of {} do not fit together: its ranks send {sent} elements \
         and expect {expected}",
        words::group(&play.groups.all[group].info),
    );
    finding.why = vec![
        "In an all_to_all, a rank sends to each peer exactly what this peer expects from it. Dumps \
         contain the totals of each rank alone, so that the wrong rank is unknown."
            .into(),
    ];
    finding.next = vec![
        "Exchange the sizes first: an all_to_all_single of the input splits (one integer for each \
         peer) gives every rank its output splits."
            .into(),
    ];
}

/// The group of an `all_to_all`, and the elements that all members send and expect.
fn totals(finding: &Finding, play: &Play<'_>) -> Option<(GroupAt, u64, u64)> {
    let group = play.group_of(finding)?;
    let (mut sent, mut expected) = (0_u64, 0_u64);
    for (rank, unit) in calls(finding, play)? {
        let entry = &play.job.ranks[&rank].entries[unit.entries.start];
        let (own_sent, own_expected) = entry.exchanged?;
        sent = sent.checked_add(own_sent)?;
        expected = expected.checked_add(own_expected)?;
    }
    Some((group, sent, expected))
}
