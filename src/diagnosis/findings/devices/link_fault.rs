//! DD803 link-fault: a network port went down, or its errors rise while ranks wait; or the NVLinks of a GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::catalogue::{DD116, DD202, DD601, DD604, DD803};
use ddp_doctor_proto::report::{Confidence, Effect};

use super::links::{self, Fault, FaultKind};
use super::{began, blocked_before};
use crate::findings::draft::{Draft, KeyPlace};
use crate::situation::Situation;
use crate::words::{self, Ranks};

/// Maximum time by which the measurement after which a port went down may follow what it led to: clocks and intervals of
/// measurement.
const MEASURED_WITHIN: Duration = Duration::from_secs(1);
/// Maximum time between a port that went down and came up again, and what it led to.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of ports that are listed.
const LISTED: usize = 4;

/// DD803: links of ranks that failed.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    by_ranks(situation).iter().filter_map(|(ranks, faults)| draft(ranks, faults)).collect()
}

/// The faults of the links of the same ranks, the gravest first.
fn by_ranks<'a>(situation: &Situation<'a>) -> BTreeMap<Vec<u32>, Vec<Fault<'a>>> {
    let mut by_ranks: BTreeMap<Vec<u32>, Vec<Fault<'_>>> = BTreeMap::new();
    for fault in links::faults(situation) {
        by_ranks.entry(fault.ranks.clone()).or_default().push(fault);
    }
    for faults in by_ranks.values_mut() {
        faults.sort_by_key(|it| (matches!(it.kind, FaultKind::Errors { .. }), it.after));
    }
    by_ranks
}

fn draft(ranks: &[u32], faults: &[Fault<'_>]) -> Option<Draft> {
    let (first, others) = faults.split_first()?;
    let mut draft = Draft::new(&DD803, KeyPlace::Ranks(ranks.to_vec()), first.at);
    draft.summary = format!("{} {}", links::name(first.port, ranks), first.what());
    draft.effect = Effect::None;
    let confidence = match first.kind {
        FaultKind::Down(_) => Confidence::Supported,
        FaultKind::Errors { .. } => Confidence::Suspected,
    };
    draft.confidence = confidence;
    draft.blame(ranks, confidence);
    draft.why.extend(first.measured());
    for other in others.iter().take(LISTED) {
        let name = words::begin(links::name(other.port, ranks));
        draft.say(format!("{name} {} as well.", other.what()));
    }
    draft.advise(first.advice());
    Some(draft)
}

/// Sets what follows from the faults of links, and what they follow from.
pub(crate) fn lead(situation: &Situation<'_>, found: &mut [Draft]) {
    if !found.iter().any(|it| it.code == &DD803) {
        return;
    }
    let by_ranks = by_ranks(situation);
    let mut faults: Vec<(usize, &Fault<'_>)> = Vec::new();
    for (at, draft) in found.iter().enumerate().filter(|(_, it)| it.code == &DD803) {
        let first = by_ranks.get(&draft.root).and_then(|it| it.first());
        faults.extend(first.map(|first| (at, first)));
    }
    faults.sort_by_key(|(_, it)| (matches!(it.kind, FaultKind::Errors { .. }), it.after));
    for (at, fault) in faults {
        let key = found[at].key.clone();
        let mut first_effect: Option<Draft> = None;
        for draft in found.iter_mut().filter(|it| it.follows.is_none()) {
            if may_follow(situation, draft, fault) {
                draft.follows = Some(key.clone());
                if first_effect.as_ref().is_none_or(|it| began(draft) < began(it)) {
                    first_effect = Some(draft.clone());
                }
            }
        }
        match first_effect {
            Some(effect) => attach(&mut found[at], effect, fault),
            None if matches!(fault.kind, FaultKind::Down(_)) => {
                found[at].follows = blocked_before(found, at);
            }
            None => {}
        }
    }
}

/// Takes the ranks and calls of what followed from a fault.
fn attach(draft: &mut Draft, effect: Draft, fault: &Fault<'_>) {
    let began = began(&effect);
    let victims = [&effect.root[..], &effect.victims].concat();
    // A job is not ended for a fault, but for what would end it without that.
    draft.confidence = draft.confidence.min(effect.confidence);
    if let FaultKind::Down(_) = fault.kind {
        let what = match effect.code.code {
            "DD202" => format!("{} raised an exception", Ranks(&effect.root)),
            "DD601" | "DD604" => "the job became slow".to_owned(),
            _ => "the first rank began to wait".to_owned(),
        };
        let when = if fault.at <= began {
            format!("{} before", words::short_time(began.since(fault.at)))
        } else {
            format!("at most {} after", words::short_time(fault.at.since(began)))
        };
        draft.why.insert(0, format!("That was seen {when} {what}."));
    }
    draft.take_calls(effect);
    draft.add_victims(victims);
}

/// Whether a finding follows from a fault: ranks of the link need it, and it may have been there before.
fn may_follow(situation: &Situation<'_>, draft: &Draft, fault: &Fault<'_>) -> bool {
    let began = began(draft);
    if fault.after > began.plus(MEASURED_WITHIN) {
        return false;
    }
    let is_recent = match fault.kind {
        FaultKind::Down(down) => !down.is_up || began <= fault.at.plus(NOTICED_WITHIN),
        FaultKind::Errors { .. } => true,
    };
    let uses_it = |ranks: &mut dyn Iterator<Item = u32>| {
        let ranks: Vec<u32> = ranks.collect();
        let is_of_link = |rank: &u32| fault.ranks.contains(rank);
        ranks.iter().any(is_of_link) && (fault.is_of_gpu() || !ranks.iter().all(is_of_link))
    };
    let of_group = || {
        let group = draft.place.map(|(group, _)| situation.model.group(group));
        group.is_some_and(|it| uses_it(&mut it.members.keys().copied()))
    };
    let is_of_link = || draft.root.iter().all(|rank| fault.ranks.contains(rank));
    is_recent
        && match draft.code {
            it if it == &DD116 || it == &DD604 => of_group(),
            it if it == &DD601 => is_of_link() && of_group(),
            // Either end of a connection may raise.
            it if it == &DD202 => {
                matches!(fault.kind, FaultKind::Down(_))
                    && draft.fact.is_some_and(|it| it.from_communication)
                    && uses_it(&mut situation.model.ranks.keys().copied())
            }
            _ => false,
        }
}
