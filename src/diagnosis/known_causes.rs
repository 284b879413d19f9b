//! Which findings follow from which: the causes that are known by the kind of the finding.
//!
//! A rule sets [`Draft::follows`] itself only if its sentences depend on the cause. Causes that follow
//! from times and ranks are found by [`crate::causal_order`].

use ddp_doctor_proto::catalogue::{
    Code, DD101, DD102, DD103, DD104, DD105, DD106, DD107, DD108, DD109, DD110, DD111, DD112,
    DD113, DD114, DD116, DD117, DD201, DD204, DD205, DD301, DD308, DD402, DD501, DD506, DD601,
    DD802,
};
use ddp_doctor_proto::report::{Effect, Severity};

use crate::findings::devices::{gpu_fault, gpu_slowed, link_fault};
use crate::findings::draft::{Draft, Key, KeyPlace, ReportPolicy};
use crate::findings::hang::group_creation_mismatch;
use crate::findings::memory::out_of_memory;
use crate::findings::mismatch::totals;
use crate::findings::startup::{interface_unusable, rendezvous_incomplete};
use crate::situation::Situation;
use crate::situation::contract::Breach;

/// Findings that follow from another one.
struct Link {
    /// Codes of the findings that follow.
    effects: &'static [&'static Code],
    /// Codes of the finding that they follow from.
    causes: &'static [&'static Code],
    /// Identifies the cause of a finding among those of these codes; `None`: there is none.
    place: fn(&Situation<'_>, &Draft) -> Option<KeyPlace>,
    /// Whether the link requires that the cause was found. Without it, a finding whose cause is not
    /// found has no other cause by kind.
    if_found: bool,
}

/// All links. Of several that apply to a finding, the first counts.
static LINKS: &[Link] = &[
    Link {
        effects: &[&DD101, &DD102, &DD103, &DD104, &DD105, &DD106, &DD107, &DD108, &DD109, &DD117],
        causes: &[&DD110],
        place: earlier_slip,
        if_found: false,
    },
    // Ranks go on after an all_to_all whose sizes do not fit, and pair calls that do not belong together.
    Link {
        effects: &[&DD103, &DD104, &DD105, &DD106, &DD107, &DD108, &DD109],
        causes: &[&DD108],
        place: earlier_totals,
        if_found: true,
    },
    // On NCCL, ranks go on after calls that do not match, until one of them has no more.
    Link {
        effects: &[&DD101, &DD102],
        causes: &[&DD103, &DD104, &DD105, &DD106, &DD107, &DD108, &DD109, &DD117],
        place: earlier_divergence,
        if_found: true,
    },
    // Members that disagree about a group cannot use it.
    Link {
        effects: &[&DD101, &DD102, &DD117, &DD204],
        causes: &[&DD114],
        place: created_differently,
        if_found: true,
    },
    // A rank whose device waits blocks where it needs a result.
    Link {
        effects: &[&DD101, &DD113, &DD116, &DD204, &DD205],
        causes: &[&DD111, &DD112],
        place: device_cycle,
        if_found: true,
    },
    // A rank waits in another group after a backward in which DDP sent no gradients.
    Link { effects: &[&DD111], causes: &[&DD402], place: breach_of_cycle, if_found: true },
    // A rank that is still joining the world cannot make the call.
    Link { effects: &[&DD101], causes: &[&DD301], place: unfinished_joining, if_found: false },
    // Ranks that have come, and do not reach each other.
    Link { effects: &[&DD301], causes: &[&DD308], place: unusable_interface, if_found: true },
    // Ranks whose GPU runs below its peers.
    Link { effects: &[&DD601], causes: &[&DD802], place: slowed_gpu, if_found: true },
    Link { effects: &[&DD201], causes: &[&DD506, &DD501], place: same_place, if_found: true },
];

/// Sets [`Draft::follows`] of drafts whose cause is known by their kind, and drops drafts that are
/// only reported as a cause and are none.
pub(crate) fn link(situation: &Situation<'_>, found: &mut Vec<Draft>) {
    for link in LINKS {
        let causes: Vec<Key> = found
            .iter()
            .filter(|it| link.causes.contains(&it.code) && it.policy != ReportPolicy::OnlyAsCause)
            .map(|it| it.key.clone())
            .collect();
        for draft in found.iter_mut() {
            if draft.follows.is_some() || !link.effects.contains(&draft.code) {
                continue;
            }
            draft.follows = (link.place)(situation, draft).and_then(|place| {
                let mut keys =
                    link.causes.iter().map(|code| Key { code: code.code, place: place.clone() });
                keys.find(|key| !link.if_found || causes.contains(key))
            });
        }
    }
    out_of_memory::lead(situation, found);
    gpu_fault::lead(situation, found);
    link_fault::lead(situation, found);
    pass_on_effects(found);
}

/// A finding without an effect takes that of a finding that follows from it: settings that differ
/// are harmless until ranks cannot join or connect.
fn pass_on_effects(found: &mut [Draft]) {
    let effects: Vec<Draft> = found
        .iter()
        .filter(|draft| draft.effect != Effect::None && draft.follows.is_some())
        .cloned()
        .collect();
    for effect in effects {
        let cause = found.iter_mut().find(|it| Some(&it.key) == effect.follows.as_ref());
        let Some(cause) = cause.filter(|it| it.effect == Effect::None) else { continue };
        cause.effect = effect.effect;
        cause.severity = cause.severity.max(Severity::Error);
        cause.blocked_at = effect.blocked_at;
        cause.set_victims([effect.root, effect.victims].concat());
    }
}

/// The slip of the group that began before this call. Point-to-point calls are not part of the
/// sequence.
fn earlier_slip(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let KeyPlace::Join(group, seq) = draft.key.place else { return None };
    let slip = situation.slip_before(group, seq)?;
    Some(KeyPlace::Join(group, slip.seq))
}

/// Calls of the group before this one that cannot match.
fn earlier_divergence(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let (group, seq) = draft.place?;
    let mut divergences = situation.divergences.iter();
    let found = divergences.find(|it| it.group == group && it.seq < seq)?;
    Some(KeyPlace::Join(group, found.seq))
}

/// An `all_to_all` of the group before this call whose total sizes do not fit, as dumps show it.
fn earlier_totals(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let (group, seq) = draft.place?;
    let first = totals::first_of(situation, group)?;
    (first < seq).then_some(KeyPlace::Join(group, first))
}

/// The creation of the group of this call, if its members disagreed about it.
fn created_differently(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let (group, _) = draft.place?;
    group_creation_mismatch::created_differently(situation, group)
}

/// The cycle among devices that a root cause rank belongs to.
fn device_cycle(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let ranks = situation.device_cycle.as_ref()?.ranks();
    draft.root.iter().any(|rank| ranks.contains(rank)).then_some(KeyPlace::Ranks(ranks))
}

/// The breach of DDP's contract for which ranks of a cycle wait in its group.
fn breach_of_cycle(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let is_of_cycle = |rank: &u32| draft.root.contains(rank);
    let keeps_waiting = |breach: &&Breach| {
        let mut stalls = situation.stalls.iter().filter(|it| it.group == breach.group);
        stalls.any(|stall| {
            let mut missing = stall.missing.iter();
            stall.waiting.iter().any(is_of_cycle)
                && missing.any(|it| is_of_cycle(&it.rank) && breach.root.contains(&it.rank))
        })
    };
    let breach = situation.breaches.iter().find(keeps_waiting)?;
    Some(KeyPlace::Join(breach.group, u64::from(breach.model)))
}

/// The world that the only root cause rank is joining.
fn unfinished_joining(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let (group, _) = draft.place?;
    let mut members = situation.model.members(group, &draft.root);
    let (_, process) = members.next()?;
    let is_alone = members.next().is_none();
    is_alone.then(|| rendezvous_incomplete::joined_by(situation, process)).flatten()
}

/// The first root cause rank whose interface cannot be used.
fn unusable_interface(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    let rank = interface_unusable::first_among(situation, &draft.root)?;
    Some(KeyPlace::Ranks(vec![rank]))
}

/// The slowed GPU of late ranks.
fn slowed_gpu(situation: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    gpu_slowed::of_ranks(situation, &draft.root, draft.blocked_at?)
}

/// The same process.
#[expect(clippy::unnecessary_wraps, reason = "the type of Link::place")]
fn same_place(_: &Situation<'_>, draft: &Draft) -> Option<KeyPlace> {
    Some(draft.key.place.clone())
}
