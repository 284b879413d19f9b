//! Shared by the findings about calls that cannot match.

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{Certificate, CertificateKind, Effect, Severity, Timestamp};

use crate::evidence::align::{Mismatch, compare};
use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::facts::{issued, split_facts};
use crate::findings::view::rank_calls;
use crate::model::{Ending, GroupId, Join, Wait};
use crate::situation::{Divergence, Origin, Situation};
use crate::source::cause::{self, Reading};
use crate::words::{self, Capital, Ranks};

/// Minimum wait after which calls that disagree count as blocked instead of slow.
const BLOCKED_AFTER: std::time::Duration = std::time::Duration::from_secs(2);

/// A draft with root cause, victims, effect and proof of calls that disagree, without sentences.
/// Also returns the classes of ranks that agree, the largest first.
pub(crate) fn parted(
    situation: &Situation<'_>,
    divergence: &Divergence,
    join: &Join,
    code: &'static Code,
    proof: CertificateKind,
) -> (Draft, Vec<Vec<u32>>) {
    let (group_id, seq) = (divergence.group, divergence.seq);
    let everybody: Vec<u32> = join.calls.keys().copied().collect();
    let classes = join.classes();
    let odd_ones = join.odd_ones();
    let root = odd_ones.ranks.clone();
    let mut victims: Vec<u32> = everybody.iter().copied().filter(|r| !root.contains(r)).collect();
    for stall in &situation.stalls {
        if stall.origin == Origin::Diverged(group_id, seq) {
            victims.extend(stall.waiting.iter().filter(|rank| !root.contains(rank)));
        }
    }
    victims.sort_unstable();
    victims.dedup();

    let mut draft = Draft::new(code, KeyPlace::Join(group_id, seq), divergence.met);
    draft.place = Some((group_id, seq));
    draft.op = join.calls.values().next().map(|joined| joined.call.op);
    draft.per_rank = rank_calls(situation, group_id, seq);
    draft.blocked_at = join.calls.values().map(|joined| joined.call.at).min();
    (draft.effect, draft.severity) = effect(situation, divergence, join, code, &everybody);
    if odd_ones.is_minority {
        draft.why.push(format!(
            "{} {} from {} others that agree.",
            Capital(Ranks(&root)),
            words::number(&root, "differs", "differ"),
            everybody.len() - root.len(),
        ));
    }
    draft.blame(odd_ones);
    draft.victims = victims;

    let certain = everybody
        .iter()
        .all(|&rank| situation.model.member(group_id, rank).is_some_and(|p| p.lost == 0));
    let proof = certain.then(|| certificate(join, code, proof)).flatten();
    (draft.proved_by(proof), classes)
}

/// The hypothesis why the classes of a divergence differ: the first one against all others.
pub(crate) fn reading(
    situation: &Situation<'_>,
    group: GroupId,
    seq: u64,
    classes: &[Vec<u32>],
    met: Timestamp,
) -> Reading {
    let (first, rest) = classes.split_first().map_or((&[][..], &[][..]), |(a, b)| (&a[..], b));
    cause::read(situation, Some((group, seq)), &rest.concat(), first, met)
}

/// The proof: the first two calls that disagree.
pub(crate) fn certificate(join: &Join, code: &Code, kind: CertificateKind) -> Option<Certificate> {
    let (mismatch, _) = join.mismatch?;
    if mismatch == Mismatch::Splits {
        let facts = split_facts(join, join.misfits().first()?)?;
        return Some(Certificate { kind, facts });
    }
    let mut calls = join.calls.iter();
    while let Some((&a, first)) = calls.next() {
        for (&b, second) in calls.clone() {
            if compare(&first.call, &second.call) == Some(mismatch) {
                let facts = vec![issued(a, &first.call)?, issued(b, &second.call)?];
                return Some(Certificate { kind, facts });
            }
        }
    }
    debug_assert!(false, "{}: no two calls disagree", code.code);
    None
}

/// Whether a rank has waited in one of the calls for at least [`BLOCKED_AFTER`].
pub(crate) fn is_blocked(situation: &Situation<'_>, join: &Join) -> bool {
    join.calls.values().any(|joined| {
        let until = |since: Timestamp| situation.now.since(since) >= BLOCKED_AFTER;
        match joined.wait {
            Wait::Since(since) => until(since),
            Wait::NotSeen => joined.call.hidden && until(joined.call.at),
            Wait::Over(_) => false,
        }
    })
}

/// Effect of the mismatch on the job so far, and its severity.
fn effect(
    situation: &Situation<'_>,
    divergence: &Divergence,
    join: &Join,
    code: &Code,
    everybody: &[u32],
) -> (Effect, Severity) {
    let model = situation.model;
    let endings: Vec<Ending<'_>> = everybody
        .iter()
        .filter_map(|&rank| Some(model.ending_of(model.member(divergence.group, rank)?)))
        .collect();
    if situation.have_ended_in_order(divergence.group, everybody) {
        return (Effect::Corrupts, Severity::Critical);
    }
    match code.effect {
        Effect::Corrupts => {
            // Such calls usually complete, with wrong results.
            if is_blocked(situation, join) {
                (Effect::Blocks, Severity::Error)
            } else {
                (code.effect, code.severity)
            }
        }
        Effect::Crashes => {
            let has_crashed = |it| matches!(it, Ending::Raised(_) | Ending::Died(_));
            let effect =
                if endings.into_iter().any(has_crashed) { Effect::Crashes } else { Effect::Blocks };
            (effect, code.severity)
        }
        effect => (effect, code.severity),
    }
}
