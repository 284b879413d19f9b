//! Shared by the findings about breaches of DDP's contract.

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{
    Certificate, CertificateKind, Confidence, Effect, Fact, Parameter, RankCall,
};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::mismatch::divergence;
use crate::findings::view::{last_call, rank_calls, with_place};
use crate::model::{Ending, Exception, Process, ReducerReport};
use crate::situation::contract::{self, Breach, Kind};
use crate::situation::{Divergence, Origin, Situation, Stall};

/// Maximum number of parameters that a sentence names.
const NAMED: usize = 4;
/// Maximum number of parameters that a finding lists.
const LISTED: usize = 1024;

/// A breach of the contract with the draft of its finding.
pub(crate) struct Consequence<'a> {
    pub(crate) breach: &'a Breach,
    pub(crate) draft: Draft,
}

/// A draft without sentences for each breach that is of the finding's kind.
pub(crate) fn of<'a>(
    situation: &'a Situation<'_>,
    code: &'static Code,
    is: fn(&Kind) -> bool,
) -> Vec<Consequence<'a>> {
    let breaches = situation.breaches.iter().enumerate();
    breaches
        .filter(|(_, breach)| is(&breach.kind))
        .map(|(index, breach)| consequence(situation, code, index, breach))
        .collect()
}

fn consequence<'a>(
    situation: &'a Situation<'_>,
    code: &'static Code,
    index: usize,
    breach: &'a Breach,
) -> Consequence<'a> {
    let place = KeyPlace::Join(breach.group, u64::from(breach.model));
    let mut draft = Draft::new(code, place, breach.evidence_at);
    let origin = Origin::Breach(index);
    let stalls: Vec<&Stall> =
        situation.stalls.iter().filter(|stall| stall.origin == origin).collect();
    let here = |group| group == breach.group;
    let stall = stalls.iter().copied().find(|stall| here(stall.group));
    let met = situation.divergences.iter();
    let met = met.filter(|it| it.origin == origin).find(|it| here(it.group));
    draft.victims = stalls
        .iter()
        .flat_map(|stall| stall.waiting.iter().copied())
        .filter(|rank| !breach.root.contains(rank))
        .collect();
    let seq = met.map(|it| it.seq).or_else(|| stall.map(|it| it.seq));
    let join = seq.and_then(|seq| situation.join(breach.group, seq));
    if let Some(join) = join {
        let others = join.calls.keys().filter(|it| !breach.root.contains(it));
        draft.victims.extend(others);
        draft.op = join.calls.values().next().map(|it| it.call.op);
    }
    draft.victims.sort_unstable();
    draft.victims.dedup();
    draft.place = Some((breach.group, seq.unwrap_or(0)));
    draft.per_rank = per_rank(situation, breach, seq);
    draft.root = breach.root.clone();
    draft.root_confidence =
        if breach.is_odd { Confidence::Supported } else { Confidence::Suspected };
    let since = stalls.iter().map(|stall| stall.since);
    draft.blocked_at = since.chain([breach.at]).min();
    draft.parameters = parameters(situation, breach);
    draft.effect = effect(situation, breach, &draft);
    let raised = breach.root.iter().find_map(|&rank| {
        let process = situation.model.member(breach.group, rank)?;
        let exception = raised(process, breach)?;
        Some(Fact::Raised {
            rank,
            text: exception.text.to_string(),
            seen: exception.kind.to_string(),
        })
    });
    if let Some(raised) = raised {
        draft = draft.proved_by(Some(Certificate {
            kind: CertificateKind::Observation,
            facts: vec![raised],
        }));
    } else if let Some(met) = met {
        draft = draft.proved_by(certificate(situation, met, code));
    }
    Consequence { breach, draft }
}

fn certificate(
    situation: &Situation<'_>,
    met: &Divergence,
    code: &'static Code,
) -> Option<Certificate> {
    let join = situation.join(met.group, met.seq)?;
    let certain = join.calls.keys().all(|&rank| {
        let process = situation.model.member(met.group, rank);
        process.is_some_and(|process| process.lost == 0)
    });
    let kind = CertificateKind::UnsatisfiableJoin;
    let proof = certain.then(|| divergence::certificate(join, code, kind));
    proof.flatten().filter(|proof| {
        // Calls that differ in dtype alone can complete: the checker rejects such a proof.
        crate::proof::check(proof).is_ok()
    })
}

/// Calls of all members at the sequence number, or their last calls if there is none. Ranks that
/// broke the contract are shown at the line of the breach.
fn per_rank(situation: &Situation<'_>, breach: &Breach, seq: Option<u64>) -> Vec<RankCall> {
    let calls = match seq {
        Some(seq) => rank_calls(situation, breach.group, seq),
        None => {
            let members = situation.model.group(breach.group).members.keys();
            members
                .filter_map(|&rank| {
                    let process = situation.model.member(breach.group, rank)?;
                    Some(last_call(rank, process))
                })
                .collect()
        }
    };
    let place_of = |rank: u32| {
        let process = situation.model.member(breach.group, rank)?;
        let replica = process.models.get(breach.group, breach.model)?;
        let report = contract::report_of(situation, breach, rank);
        let place = report.map_or(&replica.place, |report| &report.place).as_deref();
        let raised = || raised(process, breach)?.place.as_deref();
        place.or_else(raised)
    };
    calls
        .into_iter()
        .map(|call| {
            let tells = matches!(breach.kind, Kind::Models(_)) || breach.root.contains(&call.rank);
            let place = tells.then(|| place_of(call.rank)).flatten();
            with_place(call, place)
        })
        .collect()
}

/// What DDP's reducer reported on the first rank that broke the contract.
pub(crate) fn first_report<'a>(
    situation: &Situation<'a>,
    breach: &Breach,
) -> Option<&'a ReducerReport> {
    contract::report_of(situation, breach, *breach.root.first()?)
}

/// The exception that DDP raised in a process because of the breach.
fn raised<'a>(process: &'a Process, breach: &Breach) -> Option<&'a Exception> {
    let words: &[&str] = match breach.kind {
        Kind::Models(_) | Kind::Boundaries(_) | Kind::Bypassed => return None,
        Kind::Unused | Kind::UnusedDiffer => &[contract::UNFINISHED],
        Kind::ReadyTwice => &[contract::READY_TWICE],
        Kind::GraphChanged => &[contract::GRAPH_CHANGED],
    };
    process.exceptions.iter().find(|it| {
        it.kind != ExceptionKind::InFlight
            && it.at >= breach.at
            && words.iter().any(|words| it.text.contains(words))
    })
}

/// `Blocks` instead of `Crashes` if ranks wait and no member of the group has crashed.
fn effect(situation: &Situation<'_>, breach: &Breach, draft: &Draft) -> Effect {
    if draft.code.effect != Effect::Crashes {
        return draft.code.effect;
    }
    let members = situation.model.group(breach.group).members.keys();
    let mut processes = members.filter_map(|&rank| situation.model.member(breach.group, rank));
    let crashed = processes.any(|process| {
        let ending = situation.model.ending_of(process);
        matches!(ending, Ending::Raised(_) | Ending::Died(_))
    });
    match (crashed, draft.victims.is_empty()) {
        (false, false) => Effect::Blocks,
        _ => Effect::Crashes,
    }
}

fn parameters(situation: &Situation<'_>, breach: &Breach) -> Vec<Parameter> {
    let missing = contract::missing(situation, breach).into_iter();
    missing
        .take(LISTED)
        .map(|(parameter, ranks)| Parameter {
            name: parameter.name.to_owned(),
            shape: parameter.shape(),
            missing_on: ranks,
        })
        .collect()
}

/// "head.weight, head.bias and 3 more": parameters that are missing on `rank`, or on any rank if it
/// is `None`. `total` counts also those that are not listed.
pub(crate) fn names(draft: &Draft, rank: Option<u32>, total: u64) -> String {
    let of_rank = |it: &&Parameter| rank.is_none_or(|rank| it.missing_on.contains(&rank));
    let named: Vec<&str> =
        draft.parameters.iter().filter(of_rank).map(|it| it.name.as_str()).take(NAMED).collect();
    let more = total.saturating_sub(named.len() as u64);
    match (named.is_empty(), more) {
        (true, 1) => "a parameter".to_owned(),
        (true, _) => format!("{total} parameters"),
        (false, 0) => named.join(", "),
        (false, more) => format!("{} and {more} more", named.join(", ")),
    }
}
