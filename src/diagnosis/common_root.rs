//! One mistake in several groups, as in meshes. Where the members of one group contradict each other, each may be
//! wrong: if one rank is on a side in every such group, it is the culprit. Where the same lines contradict each other
//! in groups without a common rank, the findings have one cause.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{Confidence, Effect};

use crate::findings::draft::{Draft, Precedence};
use crate::model::GroupId;
use crate::situation::Situation;
use crate::words::{self, Ranks, begin};

/// Blames the only rank that is suspected in all of several groups: the earliest of their findings names it, and the
/// others follow from that one.
pub(crate) fn blame(situation: &Situation<'_>, found: &mut [Draft]) {
    join_repeated(situation, found);
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
        let mut suspects = std::mem::take(&mut draft.root);
        // A collective keeps all its members waiting; a message of another size may have ended for both ranks.
        let is_message = draft.op.is_some_and(Op::is_point_to_point);
        suspects.retain(|&rank| !is_message || situation.waits.stuck_in(rank).is_some());
        draft.blame([culprit], Confidence::Supported);
        draft.add_victims(suspects);
        if at != first {
            draft.follows = Some(key.clone());
        }
    }
    found[first].say(format!(
        "In {} groups whose members disagree, rank {culprit} is on one side, and no other rank is in all of them.",
        groups.len(),
    ));
}

/// Makes findings follow from the earliest one that has the same code, and the same lines in another group.
fn join_repeated(situation: &Situation<'_>, found: &mut [Draft]) {
    let mut order: Vec<usize> = (0..found.len())
        .filter(|&at| found[at].follows.is_none() && found[at].place.is_some())
        .filter(|&at| !lines(&found[at]).is_empty() && found[at].effect != Effect::None)
        .collect();
    order.sort_by_key(|&at| (found[at].evidence_at, found[at].key.clone()));
    for (index, &at) in order.iter().enumerate() {
        let same = |&first: &usize| is_repeated(&found[first], &found[at]);
        let Some(first) = order[..index].iter().copied().find(same) else { continue };
        found[at].follows = Some(found[first].key.clone());
        let root = found[at].root.clone();
        let group = found[at].place.map(|(group, _)| situation.model.group(group));
        let name = group.map(|group| words::group(&group.info)).unwrap_or_default();
        let first = &mut found[first];
        first.say(format!("{} the same in {name}.", begin(Ranks(&root).with("does", "do"))));
        first.blame_too(root);
    }
}

/// Whether the later of two findings is the same mistake in another group.
fn is_repeated(first: &Draft, later: &Draft) -> bool {
    let groups = first.place.zip(later.place);
    first.follows.is_none()
        && first.code == later.code
        && first.attempt == later.attempt
        && first.root_confidence == later.root_confidence
        && groups.is_some_and(|(first, later)| first.0 != later.0)
        && !later.root.iter().any(|rank| first.root.contains(rank))
        && lines(first) == lines(later)
}

/// The lines at which the ranks of a finding are.
fn lines(draft: &Draft) -> BTreeSet<(&str, u32)> {
    let places = draft.per_rank.iter().filter_map(|call| call.place.as_ref());
    places.map(|place| (&*place.file, place.line)).collect()
}

/// Whether a finding suspects several members of a group, because their calls contradict each other.
fn is_undecided(draft: &Draft) -> bool {
    draft.precedence == Precedence::Wire
        && draft.follows.is_none()
        && draft.place.is_some()
        && draft.root.len() > 1
        && draft.root_confidence == Confidence::Suspected
}
