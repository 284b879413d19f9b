//! Ranks that several groups suspect: where the members of one group contradict each other, each may be wrong. If
//! one rank is on a side in every such group, it is the culprit, and the findings have one cause.

use std::collections::BTreeSet;

use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, Precedence};
use crate::model::GroupId;
use crate::words::{Ranks, begin};

/// Blames the only rank that is suspected in all of several groups: the earliest of their findings names it, and the
/// others follow from that one.
pub(crate) fn blame(found: &mut [Draft]) {
    let mut undecided: Vec<usize> =
        (0..found.len()).filter(|&at| is_undecided(&found[at])).collect();
    undecided.sort_by_key(|&at| (found[at].evidence_at, found[at].key.clone()));
    let Some(&first) = undecided.first() else { return };
    let roots = undecided.iter().map(|&at| found[at].root.iter().copied().collect());
    let common = roots.reduce(|a: BTreeSet<u32>, b| &a & &b).unwrap_or_default();
    let groups: BTreeSet<GroupId> =
        undecided.iter().filter_map(|&at| Some(found[at].place?.0)).collect();
    let [culprit] = common.into_iter().collect::<Vec<u32>>()[..] else { return };
    if groups.len() < 2 || undecided.iter().any(|&at| found[at].attempt != found[first].attempt) {
        return;
    }
    let key = found[first].key.clone();
    for &at in &undecided {
        let draft = &mut found[at];
        let suspects = std::mem::take(&mut draft.root);
        draft.blame([culprit], Confidence::Supported);
        draft.add_victims(suspects);
        if at != first {
            draft.follows = Some(key.clone());
        }
    }
    found[first].say(format!(
        "{} on one side in {} groups whose members disagree, and no other rank is in all of them.",
        begin(Ranks(&[culprit]).with("is", "are")),
        groups.len(),
    ));
}

/// Whether a finding suspects several members of a group, because their calls contradict each other.
fn is_undecided(draft: &Draft) -> bool {
    draft.precedence == Precedence::Wire
        && draft.follows.is_none()
        && draft.place.is_some()
        && draft.root.len() > 1
        && draft.root_confidence == Confidence::Suspected
}
