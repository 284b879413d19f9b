//! Ranks that disagree on their calls: the smaller side is the root cause.
//!
//! If some ranks wait in a call and others have gone on without it, the call is one too many, or one
//! too few. Dumps do not show which. If the ranks without the call have made no other, they may also
//! have stopped. This is assumed unless they outnumber those that wait, and stopped at one call.

use std::collections::BTreeSet;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Finding};

use super::make_root_cause;
use crate::diagnosis::words::{Ranks, begin, number};
use crate::ingest::flight_recorder::replay::Replay;

/// Makes the smaller side the root cause of a finding.
pub(super) fn blame(finding: &mut Finding, replay: &Replay<'_>) {
    if finding.code == catalogue::DD101.code {
        blame_lone_callers(finding, replay);
    } else if [catalogue::DD111.code, catalogue::DD112.code].contains(&&*finding.code) {
        blame_outnumbered(finding, replay);
    }
}

/// The smaller side of ranks that wait for each other, because some went on without a call that others
/// made before.
fn blame_outnumbered(finding: &mut Finding, replay: &Replay<'_>) {
    let root = &finding.ranks.root;
    let mut contradictions = replay.waits.contradictions.iter();
    let is_within = |ranks: &BTreeSet<u32>| root.iter().all(|it| ranks.contains(it));
    let Some(found) = contradictions.find(|it| is_within(&it.ranks)) else {
        return;
    };
    let minority = if let Some((minority, others)) = found.sides() {
        finding.why.push(format!(
            "{} agree on the order of these calls, and {} {} not.",
            begin(Ranks(&others)),
            Ranks(&minority),
            number(&minority, "does", "do"),
        ));
        minority
    } else {
        // Of the ranks of the cycle, which are the fewest that wait for each other, those that disagree.
        let disagrees = |rank: &&u32| found.waiting.contains(rank) || found.missing.contains(rank);
        root.iter().filter(disagrees).copied().collect()
    };
    make_root_cause(finding, minority);
}

fn blame_lone_callers(finding: &mut Finding, replay: &Replay<'_>) {
    let Some(callers) = lone_callers(finding, replay) else {
        return;
    };
    let missing = Ranks(&finding.ranks.root);
    finding.why.push(format!(
        "{} have all stopped after one call: {} may have made one call too many.",
        begin(missing),
        Ranks(&callers),
    ));
    finding.next = vec![format!(
        "Find out why {} {} this call and {missing} do not.",
        Ranks(&callers),
        number(&callers, "makes", "make"),
    )];
    finding.confidence = Confidence::Suspected;
    finding.ranks.victims.retain(|rank| !callers.contains(rank));
    finding.ranks.root_confidence = Confidence::Suspected;
    finding.ranks.root = callers;
}

/// Ranks that wait in a call, if more ranks have not made it, and have all stopped after one call.
fn lone_callers(finding: &Finding, replay: &Replay<'_>) -> Option<Vec<u32>> {
    let missing = &finding.ranks.root;
    let stopped_after = |rank: &u32| {
        let units = &replay.calls.get(rank)?.units;
        let is_idle = units.iter().all(|unit| unit.is_complete);
        let last = units.last().filter(|unit| is_idle && !unit.is_message)?;
        Some((last.group, last.seq))
    };
    let places: BTreeSet<_> = missing.iter().map(stopped_after).collect();
    let is_one_place = places.len() == 1 && !places.contains(&None);
    let (group, seq) = (replay.group_of(finding)?, finding.seq?);
    let waits = |rank: &u32| {
        let own = replay.collective(*rank, group, seq);
        own.is_some_and(|(_, unit)| !unit.is_complete)
    };
    let callers = replay.calls.keys().copied().filter(waits);
    let callers: Vec<u32> = callers.collect();
    (is_one_place && !callers.is_empty() && callers.len() < missing.len()).then_some(callers)
}
