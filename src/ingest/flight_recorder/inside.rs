//! Calls that do not complete although all ranks have made them: what dumps show of the reason.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Finding, RankCall, Role, Where};

use super::dump::State;
use super::play::Play;
use super::units::Unit;
use crate::diagnosis::evidence::align::{OddOnes, odd_ones};
use crate::diagnosis::words::{self, Capital, Ranks, number};

/// Advice for calls at one line that were not meant for each other.
const SAME_ORDER: &str =
    "Make every rank of the group issue the same collectives in the same order.";
/// Advice for calls at different lines that were not meant for each other.
const OTHER_LINES: &str = "Check the two lines: the call that only some ranks reach has to be reached by \
     all of them, or by none.";

/// Adds to a finding about such a call why it does not complete, if that shows.
pub(super) fn explain(finding: &mut Finding, play: &Play<'_>) {
    let is_message = |it: &RankCall| it.peer.is_some();
    let is_inside = finding.code == catalogue::DD116.code;
    // Sizes come before dtypes.
    let may_be_sizes = is_inside || finding.code == catalogue::DD105.code;
    if !may_be_sizes || finding.per_rank.iter().any(is_message) {
        return;
    }
    let Some(calls) = calls(finding, play) else {
        return;
    };
    match totals(play, &calls) {
        Some((sent, expected)) if sent != expected => {
            explain_sizes(finding, play, &calls, [sent, expected]);
        }
        _ if is_inside => {
            let op =
                |(rank, unit): &(u32, &Unit)| play.job.ranks[rank].entries[unit.entries.start].op;
            if calls.iter().any(|it| op(it).is_rooted()) {
                let why = "Dumps do not contain the root of a call: ranks that pass different ones \
                           wait as well.";
                finding.why.push(why.into());
            }
            name_devices(finding, play, &calls);
            name_strange_line(finding, play, &calls);
        }
        _ => {}
    }
}

/// Makes mismatches effects of a smaller number of their group whose sizes do not fit. Only
/// [`explain`] shows that it is one. A rank that differs from most in both is named in both.
pub(super) fn lead(findings: &mut [Finding]) {
    let is_mismatch = |it: &Finding| ("DD103"..="DD109").contains(&&*it.code);
    for at in 0..findings.len() {
        if findings[at].code != catalogue::DD108.code {
            continue;
        }
        let (first, group) = (findings[at].seq, findings[at].group.clone());
        let later = findings.iter_mut();
        let later = later.filter(|it| is_mismatch(it) && it.seq > first && it.group == group);
        let mut next: Option<(u64, Vec<u32>)> = None;
        for finding in later {
            if finding.role == Role::Initiating {
                finding.role = Role::Cascade;
                finding.caused_by = vec![at];
            }
            let is_clear = finding.ranks.root_confidence > Confidence::Suspected;
            let seq = finding.seq.filter(|_| is_clear).unwrap_or(u64::MAX);
            if next.as_ref().is_none_or(|(known, _)| seq < *known) {
                next = Some((seq, finding.ranks.root.clone()));
            }
        }
        let own = &mut findings[at];
        if let Some((seq, odd)) = next.filter(|it| it.0 < u64::MAX && own.ranks.root.is_empty()) {
            own.why.push(format!(
                "{} {} from the others in #{seq}: a call may have been left out, or made once more.",
                Capital(Ranks(&odd)),
                number(&odd, "differs", "differ"),
            ));
            own.next = vec![SAME_ORDER.into()];
            own.ranks.root_confidence = Confidence::Suspected;
            blame(own, odd);
        } else if own.ranks.root.is_empty() {
            let why = "Dumps contain the totals of each rank alone: the wrong rank is unknown.";
            own.why.push(why.into());
        }
    }
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
    blame(finding, not_started);
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

/// Turns the finding into DD108 split-mismatch: the ranks of an `all_to_all` send another number of
/// elements than they expect. Dumps contain totals instead of splits.
fn explain_sizes(
    finding: &mut Finding,
    play: &Play<'_>,
    calls: &[(u32, &Unit)],
    [sent, expected]: [u64; 2],
) {
    let Some((group, seq)) = play.group_of(finding).zip(finding.seq) else {
        return;
    };
    let lines = lines(play, calls);
    let next = if lines.len() > 1 {
        OTHER_LINES
    } else if finding.code == catalogue::DD105.code {
        SAME_ORDER
    } else {
        "Exchange the sizes first: an all_to_all_single of the input splits (one integer for each \
         peer) gives every rank its output splits."
    };
    finding.next = vec![next.into()];
    if finding.code == catalogue::DD105.code {
        // Its sentence on bytes.
        finding.why.remove(0);
    } else {
        finding.why.clear();
        name_other_line(finding, &lines);
    }
    let why = "In an all_to_all, a rank sends to each peer exactly what this peer expects from it.";
    finding.why.insert(0, why.into());
    finding.code = catalogue::DD108.code.into();
    finding.name = catalogue::DD108.name.into();
    finding.severity = catalogue::DD108.severity;
    finding.effect = Effect::Blocks;
    finding.confidence = Confidence::Supported;
    finding.certificate = None;
    finding.summary = format!(
        "The sizes of all_to_all #{seq} of {} do not fit together: its ranks send {sent} elements \
         and expect {expected}",
        words::group(&play.groups.all[group].info),
    );
}

/// Ranks by the line of their calls, those of most first; empty: a line is unknown.
fn lines(play: &Play<'_>, calls: &[(u32, &Unit)]) -> Vec<Vec<u32>> {
    let mut by_line: BTreeMap<(&str, u32), Vec<u32>> = BTreeMap::new();
    for (rank, unit) in calls {
        let Some(place) = play.place(*rank, unit) else {
            return Vec::new();
        };
        let ranks = by_line.entry((&place.file, place.line)).or_default();
        ranks.push(*rank);
    }
    let mut lines: Vec<Vec<u32>> = by_line.into_values().collect();
    lines.sort_by_key(|ranks| Reverse(ranks.len()));
    lines
}

/// Names the ranks whose calls are at another line than those of most, if earlier calls of the group
/// were at one of these lines, and the two never met.
fn name_strange_line(finding: &mut Finding, play: &Play<'_>, calls: &[(u32, &Unit)]) {
    let OddOnes { ranks: odd, is_minority: true } = odd_ones(&lines(play, calls)) else {
        return;
    };
    let Some((most, _)) = calls.iter().find(|(rank, _)| !odd.contains(rank)) else {
        return;
    };
    let of = |rank: &u32| calls.iter().copied().find(|it| it.0 == *rank);
    let never_met = |rank: &u32| {
        let pair = of(most).zip(of(rank));
        pair.is_some_and(|(one, other)| never_met(play, one, other))
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
            Capital(Ranks(&odd)),
            number(&odd, "makes", "make"),
        ),
    ];
    finding.next = vec![OTHER_LINES.into()];
    finding.ranks.root_confidence = Confidence::Suspected;
    blame(finding, odd);
}

/// Whether the lines of two calls of one collective never met before, although one was in use.
fn never_met(play: &Play<'_>, (one, unit): (u32, &Unit), (other, of_other): (u32, &Unit)) -> bool {
    let lines = play.place(one, unit).zip(play.place(other, of_other));
    let Some((line, line_of_other)) = lines else {
        return false;
    };
    let earlier = |rank: u32| -> BTreeMap<u64, &Where> {
        let units = play.calls[&rank].units.iter();
        let units =
            units.filter(|it| !it.is_message && it.group == unit.group && it.seq < unit.seq);
        units.filter_map(|it| Some((it.seq, play.place(rank, it)?))).collect()
    };
    let of_other = earlier(other);
    let pairs = earlier(one).into_iter().filter_map(|(seq, place)| {
        let place_of_other = of_other.get(&seq)?;
        Some([place.is_same_line(line), place_of_other.is_same_line(line_of_other)])
    });
    let pairs: Vec<[bool; 2]> = pairs.collect();
    pairs.iter().any(|it| it.contains(&true)) && !pairs.contains(&[true; 2])
}

/// Names the ranks whose calls are at another line than those of most, if there are any.
fn name_other_line(finding: &mut Finding, lines: &[Vec<u32>]) {
    let OddOnes { ranks: odd, is_minority: true } = odd_ones(lines) else {
        return;
    };
    finding.why.push(format!(
        "{} {} it at another line than the others: a rank that leaves out a call is in the next one.",
        Capital(Ranks(&odd)),
        number(&odd, "calls", "call"),
    ));
    finding.ranks.root_confidence = Confidence::Suspected;
    blame(finding, odd);
}

/// Makes ranks the root cause.
fn blame(finding: &mut Finding, odd: Vec<u32>) {
    let ranks = &mut finding.ranks;
    ranks.victims.append(&mut ranks.root);
    ranks.victims.retain(|rank| !odd.contains(rank));
    ranks.victims.sort_unstable();
    ranks.root = odd;
}

/// The elements that all members of an `all_to_all` send and expect.
fn totals(play: &Play<'_>, calls: &[(u32, &Unit)]) -> Option<(u64, u64)> {
    let (mut sent, mut expected) = (0_u64, 0_u64);
    for (rank, unit) in calls {
        let entry = &play.job.ranks[rank].entries[unit.entries.start];
        let (own_sent, own_expected) = entry.exchanged?;
        sent = sent.checked_add(own_sent)?;
        expected = expected.checked_add(own_expected)?;
    }
    Some((sent, expected))
}
