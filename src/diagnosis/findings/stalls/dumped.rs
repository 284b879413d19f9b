//! Shared by the findings about calls that dumps show: groups that ranks created differently, and devices that
//! have not started a call.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::input::provenance::Dumps;
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

/// DD114 in place of a draft about ranks that wait for each other, if the dumps of these ranks show that they
/// created the group of a call with different members; otherwise the draft.
pub(crate) fn created_differently(situation: &Situation<'_>, draft: Draft, dumps: &Dumps) -> Draft {
    let mut ranks = [&draft.root[..], &draft.victims[..]].concat();
    ranks.sort_unstable();
    let mut waits = ranks.iter().filter_map(|&rank| {
        let call = dumps.ranks.get(&rank)?.waits_in.as_ref()?;
        let info = call.group.as_ref()?;
        let created = dumps.created(info);
        (created.len() > 1).then_some((rank, call, info, created))
    });
    let Some((rank, call, info, created)) = waits.next() else { return draft };
    let Some(group) = situation.model.groups().find(|group| group.info.key == info.key) else {
        return draft;
    };
    let mut found = Draft::new(&catalogue::DD114, KeyPlace::Join(group.id, 0), draft.evidence_at);
    found.confidence = draft.confidence.min(Confidence::Supported);
    found.root_confidence = draft.root_confidence;
    found.per_rank = draft.per_rank;
    found.blocked_at = draft.blocked_at;
    found.place = Some((group.id, call.seq));
    found.op = Some(call.op);
    let is_tie = created[0].1.len() == created[1].1.len();
    let odd = &created[..if is_tie { created.len() } else { 1 }];
    found.root = odd.iter().flat_map(|(_, ranks)| ranks).copied().collect();
    found.root.sort_unstable();
    found.set_victims(ranks);
    let sides = created.iter().map(|(members, ranks)| {
        let has = Ranks(ranks).with("has", "have");
        format!("{has} created it with {}", Ranks(members))
    });
    found.summary = format!(
        "the members of {} differ between ranks: {}",
        words::group(info),
        words::joined(sides, ", "),
    );
    found.say(format!(
        "Rank {rank} waits in a call of the group, which needs all members that it created the group with.",
    ));
    found.advise("Pass the same ranks to new_group on all ranks.");
    found
}

/// Makes ranks the root cause whose devices have not started the call of a draft, although the others have.
pub(crate) fn name_devices(draft: &mut Draft, not_started: &[u32]) {
    if not_started.is_empty() {
        return;
    }
    draft.say(format!(
        "{} not started it, and all others have: {} still executing earlier work.",
        words::begin(Ranks(not_started).with("has", "have")),
        number(not_started, "its device is", "their devices are"),
    ));
    draft.blame_instead(not_started.to_vec());
}
