//! DD116 stuck-inside: collectives that do not complete although all ranks have made them.

use std::collections::BTreeMap;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Finding, RankCall, Where};

use super::make_root_cause;
use super::split_mismatch::{self, OTHER_LINES};
use crate::diagnosis::evidence::align::{OddOnes, odd_ones};
use crate::diagnosis::words::{Ranks, begin, number};
use crate::ingest::flight_recorder::calls::Unit;
use crate::ingest::flight_recorder::dump::State;
use crate::ingest::flight_recorder::replay::Replay;

/// Adds to a finding about such a call why it does not complete, if that shows.
pub(super) fn explain(finding: &mut Finding, replay: &Replay<'_>) {
    let is_message = |it: &RankCall| it.peer.is_some();
    let is_inside = finding.code == catalogue::DD116.code;
    // Sizes come before dtypes.
    let may_be_sizes = is_inside || finding.code == catalogue::DD105.code;
    if !may_be_sizes || finding.per_rank.iter().any(is_message) {
        return;
    }
    let Some(calls) = replay.calls_of(finding) else {
        return;
    };
    match split_mismatch::totals(replay, &calls) {
        Some((sent, expected)) if sent != expected => {
            split_mismatch::explain(finding, replay, &calls, [sent, expected]);
        }
        _ if is_inside => {
            let op =
                |(rank, unit): &(u32, &Unit)| replay.job.ranks[rank].entries[unit.entries.start].op;
            if calls.iter().any(|it| op(it).is_rooted()) {
                let why = "Dumps do not contain the root of a call: ranks that pass different ones \
                           wait as well.";
                finding.why.push(why.into());
            }
            name_devices(finding, replay, &calls);
            name_strange_line(finding, replay, &calls);
        }
        _ => {}
    }
}

/// Names the ranks whose devices have not started the call, if all others have, and are no fewer.
pub(super) fn name_devices(finding: &mut Finding, replay: &Replay<'_>, calls: &[(u32, &Unit)]) {
    let Some(not_started) = not_started(replay, calls).filter(|it| !it.is_empty()) else {
        return;
    };
    finding.why.push(format!(
        "{} {} not started it, and all others have: {} still executing earlier work.",
        begin(Ranks(&not_started)),
        number(&not_started, "has", "have"),
        number(&not_started, "its device is", "their devices are"),
    ));
    make_root_cause(finding, not_started);
}

/// Ranks whose dumps record starts, and not that of the call; `None` if they are more than the others,
/// or if it is unknown whether a rank has started the call.
fn not_started(replay: &Replay<'_>, calls: &[(u32, &Unit)]) -> Option<Vec<u32>> {
    let mut not_started = Vec::new();
    for (rank, unit) in calls {
        let dump = &replay.job.ranks[rank];
        if dump.entries[unit.entries.start].state == State::Scheduled {
            let records_starts = dump.status.values().any(|it| it.started.is_some());
            // The start of a batch is not recorded in its messages.
            let is_known = records_starts && !(unit.is_message && unit.launch != 0);
            not_started.push(is_known.then_some(*rank)?);
        }
    }
    (2 * not_started.len() <= calls.len()).then_some(not_started)
}

/// Names the ranks whose calls are at another line than those of most, if earlier calls of the group
/// were at one of these lines, and the two never met.
fn name_strange_line(finding: &mut Finding, replay: &Replay<'_>, calls: &[(u32, &Unit)]) {
    let OddOnes { ranks: odd, is_minority: true } = odd_ones(&replay.ranks_by_line(calls)) else {
        return;
    };
    let Some((most, _)) = calls.iter().find(|(rank, _)| !odd.contains(rank)) else {
        return;
    };
    let of = |rank: &u32| calls.iter().copied().find(|it| it.0 == *rank);
    let never_met = |rank: &u32| {
        let pair = of(most).zip(of(rank));
        pair.is_some_and(|(one, other)| never_met(replay, one, other))
    };
    if !odd.iter().all(never_met) {
        return;
    }
    finding.why = vec![
        "All members have made the call. Dumps contain neither its root nor its reduce operator."
            .into(),
        format!(
            "{} {} it at another line than the others, which that line did not meet in any earlier \
             call of the group: a call may have been left out, or made once more.",
            begin(Ranks(&odd)),
            number(&odd, "makes", "make"),
        ),
    ];
    finding.next = vec![OTHER_LINES.into()];
    finding.ranks.root_confidence = Confidence::Suspected;
    make_root_cause(finding, odd);
}

/// Whether the lines of two calls of one collective never met before, although one was in use.
fn never_met(
    replay: &Replay<'_>,
    (one, unit): (u32, &Unit),
    (other, of_other): (u32, &Unit),
) -> bool {
    let lines = replay.place(one, unit).zip(replay.place(other, of_other));
    let Some((line, line_of_other)) = lines else {
        return false;
    };
    let earlier = |rank: u32| -> BTreeMap<u64, &Where> {
        let units = replay.calls[&rank].units.iter();
        let units =
            units.filter(|it| !it.is_message && it.group == unit.group && it.seq < unit.seq);
        units.filter_map(|it| Some((it.seq, replay.place(rank, it)?))).collect()
    };
    let of_other = earlier(other);
    let pairs = earlier(one).into_iter().filter_map(|(seq, place)| {
        let place_of_other = of_other.get(&seq)?;
        Some([place.is_same_line(line), place_of_other.is_same_line(line_of_other)])
    });
    let pairs: Vec<[bool; 2]> = pairs.collect();
    pairs.iter().any(|it| it.contains(&true)) && !pairs.contains(&[true; 2])
}
