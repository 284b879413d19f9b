//! DD108 split-mismatch, as far as dumps show it: they contain totals instead of splits.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Finding};

use super::play::Play;
use crate::diagnosis::words;

/// Turns a finding about an `all_to_all` that does not complete into one about its sizes, if its ranks
/// send another number of elements than they expect.
pub(super) fn explain(finding: &mut Finding, play: &Play<'_>) {
    if finding.code != catalogue::DD116.code {
        return;
    }
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
fn totals(finding: &Finding, play: &Play<'_>) -> Option<(usize, u64, u64)> {
    let group = play.group_of(finding)?;
    let members = &play.groups.all[group].info.key.members;
    let (mut sent, mut expected) = (0_u64, 0_u64);
    for &rank in members {
        let (_, unit) = play.collective(rank, group, finding.seq?)?;
        let entry = &play.job.ranks[&rank].entries[unit.entries.start];
        let (own_sent, own_expected) = entry.exchanged?;
        sent = sent.checked_add(own_sent)?;
        expected = expected.checked_add(own_expected)?;
    }
    Some((group, sent, expected))
}
