//! DD108 split-mismatch: an `all_to_all` whose ranks send another number of elements than they expect. Dumps
//! contain totals instead of splits.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Finding, Role};

use super::make_root_cause;
use crate::diagnosis::evidence::align::{OddOnes, odd_ones};
use crate::diagnosis::words::{self, Ranks, number};
use crate::ingest::flight_recorder::calls::Unit;
use crate::ingest::flight_recorder::replay::Replay;

/// Advice for calls at one line that were not meant for each other.
const SAME_ORDER: &str =
    "Make every rank of the group issue the same collectives in the same order.";
/// Advice for calls at different lines that were not meant for each other.
pub(super) const OTHER_LINES: &str = "Check the two lines: the call that only some ranks reach has to be reached by \
     all of them, or by none.";

/// The elements that all members of an `all_to_all` send and expect.
pub(super) fn totals(replay: &Replay<'_>, calls: &[(u32, &Unit)]) -> Option<(u64, u64)> {
    let (mut sent, mut expected) = (0_u64, 0_u64);
    for (rank, unit) in calls {
        let entry = &replay.job.ranks[rank].entries[unit.entries.start];
        let (own_sent, own_expected) = entry.exchanged?;
        sent = sent.checked_add(own_sent)?;
        expected = expected.checked_add(own_expected)?;
    }
    Some((sent, expected))
}

/// Turns the finding about such a call into DD108; `sent` and `expected`: its [`totals`].
pub(super) fn explain(
    finding: &mut Finding,
    replay: &Replay<'_>,
    calls: &[(u32, &Unit)],
    [sent, expected]: [u64; 2],
) {
    let Some((group, seq)) = replay.group_of(finding).zip(finding.seq) else {
        return;
    };
    let lines = replay.ranks_by_line(calls);
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
        words::group(&replay.groups.all[group].info),
    );
}

/// Names the ranks whose calls are at another line than those of most, if there are any.
fn name_other_line(finding: &mut Finding, lines: &[Vec<u32>]) {
    let OddOnes { ranks: odd, is_minority: true } = odd_ones(lines) else {
        return;
    };
    finding.why.push(format!(
        "{} {} it at another line than the others: a rank that leaves out a call is in the next one.",
        words::begin(Ranks(&odd)),
        number(&odd, "calls", "call"),
    ));
    finding.ranks.root_confidence = Confidence::Suspected;
    make_root_cause(finding, odd);
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
                words::begin(Ranks(&odd)),
                number(&odd, "differs", "differ"),
            ));
            own.next = vec![SAME_ORDER.into()];
            own.ranks.root_confidence = Confidence::Suspected;
            make_root_cause(own, odd);
        } else if own.ranks.root.is_empty() {
            let why = "Dumps contain the totals of each rank alone: the wrong rank is unknown.";
            own.why.push(why.into());
        }
    }
}
