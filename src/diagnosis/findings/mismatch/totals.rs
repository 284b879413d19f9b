//! DD108 split-mismatch in dumps, which contain totals instead of splits: an `all_to_all` whose ranks send
//! another number of elements than they expect.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::mismatch::divergence::{DivergedJoin, OTHER_LINES, hypothesis};
use crate::findings::view::rank_calls;
use crate::input::align::{Mismatch, OddOnes, odd_ones};
use crate::input::provenance::DumpedCollective;
use crate::model::{Group, GroupId};
use crate::situation::Situation;
use crate::words::{self, Ranks};

/// Advice for calls at one line that were not meant for each other.
const SAME_ORDER: &str =
    "Make every rank of the group issue the same collectives in the same order.";

/// Number of the first call of a group whose totals do not fit.
pub(crate) fn first_of(situation: &Situation<'_>, group: GroupId) -> Option<u64> {
    let key = &situation.model.group(group).info.key;
    let collectives = situation.config.provenance.dumps()?.collectives.iter();
    let of_group = collectives.filter(|it| it.totals.is_some() && it.group == *key);
    of_group.map(|it| it.seq).min()
}

/// DD108: each `all_to_all` that is incomplete, or has calls of different dtypes.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let Some(dumps) = situation.config.provenance.dumps() else { return Vec::new() };
    let drafts = dumps.collectives.iter().filter_map(|known| {
        let totals = known.totals?;
        let group = situation.model.groups().find(|group| group.info.key == known.group)?;
        draft(situation, known, totals, group)
    });
    drafts.collect()
}

fn draft(
    situation: &Situation<'_>,
    known: &DumpedCollective,
    [sent, expected]: [u64; 2],
    group: &Group,
) -> Option<Draft> {
    let (id, seq) = (group.id, known.seq);
    let join = group.open_or_entered(seq)?;
    let mut divergences = situation.divergences.iter();
    let dtypes =
        divergences.find(|it| (it.group, it.seq, it.mismatch) == (id, seq, Mismatch::DType));
    let has_dtypes = dtypes.is_some();
    let is_recent = situation.config.provenance.dumps().is_some_and(|it| it.at_most.is_some());
    if is_recent && !has_dtypes {
        return None;
    }
    let mut draft = Draft::new(&catalogue::DD108, KeyPlace::Join(id, seq), join.last_at());
    draft.effect = Effect::Blocks;
    draft.place = Some((id, seq));
    draft.op = join.calls.values().next().map(|joined| joined.call.op);
    draft.per_rank = rank_calls(situation, id, seq);
    draft.blocked_at = join.calls.values().map(|joined| joined.call.at).min();
    draft.summary = format!(
        "The sizes of all_to_all #{seq} of {} do not match: its ranks send {sent} elements and expect \
         {expected}",
        words::group(&group.info),
    );
    draft
        .say("In an all_to_all, a rank sends to each peer exactly what this peer expects from it.");
    draft.advise(match known.by_line.len() {
        0 | 1 if has_dtypes => SAME_ORDER,
        0 | 1 => {
            "Exchange the sizes first: an all_to_all_single of the input splits (one integer for each peer) gives \
             every rank its output splits."
        }
        _ => OTHER_LINES,
    });
    let odd_dtypes = has_dtypes.then(|| join.odd_ones()).filter(|it| it.is_minority);
    let lines = Some(odd_ones(&known.by_line)).filter(|it| it.is_minority);
    if let Some(OddOnes { ranks, .. }) = odd_dtypes {
        draft.say(format!(
            "{} from the other {}, which agree.",
            words::begin(Ranks(&ranks).with("differs", "differ")),
            join.calls.len() - ranks.len(),
        ));
        draft.blame(ranks, Confidence::Supported);
    } else if let Some(OddOnes { ranks, .. }) = lines {
        draft.say(format!(
            "{} it at a different line from the others: a rank that skips a call is in the next one.",
            words::begin(Ranks(&ranks).with("calls", "call")),
        ));
        draft.blame(ranks, Confidence::Suspected);
    } else if let Some((next, odd)) = next_mismatch(situation, id, seq) {
        draft.say(format!(
            "{} from the others in #{next}: a call may have been skipped or repeated.",
            words::begin(Ranks(&odd).with("differs", "differ")),
        ));
        draft.next = vec![SAME_ORDER.into()];
        draft.blame(odd, Confidence::Suspected);
    } else {
        draft.say("Dumps contain the totals of each rank alone: the wrong rank is unknown.");
    }
    if let Some(divergence) = dtypes {
        draft.attribute(hypothesis(situation, DivergedJoin { divergence, join }, &join.classes()));
    }
    draft.set_victims(group.info.key.members.iter().copied());
    Some(draft)
}

/// The first call of the group after this one in which ranks clearly differ from the others, and these ranks.
fn next_mismatch(situation: &Situation<'_>, group: GroupId, seq: u64) -> Option<(u64, Vec<u32>)> {
    let mut later = situation.divergences.iter().filter(|it| it.group == group && it.seq > seq);
    let found = later.next()?;
    let odd = situation.join(group, found.seq)?.odd_ones();
    odd.is_minority.then_some((found.seq, odd.ranks))
}
