//! Shared by the findings about breaches of DDP's contract.

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{Certificate, CertificateKind, Effect, Parameter, RankCall};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::facts;
use crate::findings::mismatch::divergence;
use crate::findings::view::{last_call, rank_calls};
use crate::input::align::OddOnes;
use crate::model::{Exception, ParameterCount, Process, ReducerReport};
use crate::situation::contract::{self, Breach, Kind};
use crate::situation::{Divergence, OriginKind, Situation, Stall, StallOrigin};
use crate::source::branches;
use crate::words;

/// Maximum number of parameters that a sentence names.
const NAMED: usize = 4;
/// Maximum number of parameters that a finding lists.
const LISTED: usize = 1024;

/// The findings of one code about breaches. `complete_draft` completes a draft that has what all breaches
/// share; it is called with breaches of this code alone.
pub(crate) fn findings(
    situation: &Situation<'_>,
    code: &'static Code,
    complete_draft: fn(&Situation<'_>, &Breach, Draft) -> Option<Draft>,
) -> Vec<Draft> {
    let breaches = situation.breaches.iter().enumerate();
    breaches
        .filter(|(_, breach)| code_of(&breach.kind) == code)
        .filter_map(|(index, breach)| {
            complete_draft(situation, breach, draft(situation, code, index, breach))
        })
        .collect()
}

/// The finding about this kind of breach.
fn code_of(kind: &Kind) -> &'static Code {
    match kind {
        Kind::Unused => &catalogue::DD401,
        Kind::UnusedDiffer => &catalogue::DD402,
        Kind::ReadyTwice | Kind::GraphChanged => &catalogue::DD403,
        Kind::Models(_) => &catalogue::DD404,
        Kind::Bypassed | Kind::Thawed => &catalogue::DD405,
        Kind::Boundaries(_) => &catalogue::DD406,
    }
}

/// A draft without sentences.
fn draft(situation: &Situation<'_>, code: &'static Code, index: usize, breach: &Breach) -> Draft {
    let place = KeyPlace::Join(breach.group, u64::from(breach.model));
    let mut draft = Draft::new(code, place, breach.evidence_at);
    let origin = StallOrigin::without_ranks(OriginKind::Breach(index));
    let stalls = situation.stalls_from(&origin);
    let stall = stalls.iter().find(|stall| stall.group == breach.group);
    let diverged =
        situation.divergences.iter().find(|it| it.origin == origin && it.group == breach.group);
    let seq = diverged.map(|it| it.seq).or_else(|| stall.map(|it| it.seq));
    let join = seq.and_then(|seq| situation.join(breach.group, seq));
    draft.blame_odd(OddOnes { ranks: breach.root.clone(), is_minority: breach.is_odd });
    draft.set_victims(Stall::victims(&stalls));
    if let Some(join) = join {
        draft.add_victims(join.calls.keys().copied());
        draft.op = join.calls.values().next().map(|it| it.call.op);
    }
    draft.place = Some((breach.group, seq.unwrap_or(0)));
    draft.per_rank = per_rank(situation, breach, seq);
    show_lines(situation, breach, &mut draft);
    let since = stalls.iter().map(|stall| stall.since);
    draft.blocked_at = since.chain([breach.at]).min();
    draft.parameters = parameters(situation, breach);
    draft.effect = effect(situation, breach, &draft);
    let raised = breach.root.iter().find_map(|&rank| {
        let exception = raised(situation.model.member(breach.group, rank)?, breach)?;
        Some(facts::raised(rank, exception))
    });
    match (raised, diverged) {
        (Some(raised), _) => draft.observed(vec![raised]),
        (None, Some(diverged)) => draft.proved_by(certificate(situation, diverged)),
        (None, None) => draft,
    }
}

fn certificate(situation: &Situation<'_>, diverged: &Divergence) -> Option<Certificate> {
    let join = situation.join(diverged.group, diverged.seq)?;
    let kind = CertificateKind::UnsatisfiableJoin;
    let proof = divergence::certificate(situation, diverged.group, join, kind);
    // Calls that differ in dtype alone can complete: the checker rejects such a proof.
    proof.filter(|proof| crate::proof::check(proof).is_ok())
}

/// Sentences on the lines at which parameters without gradients are used.
pub(crate) fn uses(situation: &Situation<'_>, breach: &Breach) -> impl Iterator<Item = String> {
    branches::left_out(situation, breach).into_iter().map(|it| it.sentence())
}

/// Calls of all members at the sequence number, or their last calls if there is none.
fn per_rank(situation: &Situation<'_>, breach: &Breach, seq: Option<u64>) -> Vec<RankCall> {
    if let Some(seq) = seq {
        return rank_calls(situation, breach.group, seq);
    }
    let ranks = situation.model.group(breach.group).members.keys();
    let members = situation.model.members(breach.group, ranks);
    members.map(|(rank, process)| last_call(rank, process)).collect()
}

/// Shows ranks that broke the contract at the line of the breach.
fn show_lines(situation: &Situation<'_>, breach: &Breach, draft: &mut Draft) {
    let place_of = |rank: u32| {
        let process = situation.model.member(breach.group, rank)?;
        let replica = process.models.get(breach.group, breach.model)?;
        let report = contract::report_of(situation, breach, rank);
        let place = report.map_or(&replica.place, |report| &report.place).as_deref();
        let raised = || raised(process, breach)?.place.as_deref();
        place.or_else(raised)
    };
    let is_of_all = matches!(breach.kind, Kind::Models(_));
    let broke_it = |rank: &u32| is_of_all || breach.root.contains(rank);
    draft.show_at(|rank| Some(rank).filter(broke_it).and_then(place_of));
}

/// The report of DDP's reducer on the first rank that broke the contract: its place (" at train.py:9"), and
/// the number of parameters that it is about.
pub(crate) fn first_report(situation: &Situation<'_>, breach: &Breach) -> (String, ParameterCount) {
    let first = breach.root.first();
    let report = first.and_then(|&rank| contract::report_of(situation, breach, rank));
    let place = report.and_then(|report| report.place.as_deref());
    (words::at(place), report.map(ReducerReport::count).unwrap_or_default())
}

/// The exception that DDP raised in a process because of the breach.
fn raised<'a>(process: &'a Process, breach: &Breach) -> Option<&'a Exception> {
    let words = match breach.kind {
        Kind::Models(_) | Kind::Boundaries(_) | Kind::Bypassed | Kind::Thawed => return None,
        Kind::Unused | Kind::UnusedDiffer => contract::UNFINISHED,
        Kind::ReadyTwice => contract::READY_TWICE,
        Kind::GraphChanged => contract::GRAPH_CHANGED,
    };
    process.exceptions.iter().find(|it| {
        it.kind != ExceptionKind::InFlight && it.at >= breach.at && it.text.contains(words)
    })
}

/// `Blocks` instead of `Crashes` if ranks wait and no member of the group has crashed.
fn effect(situation: &Situation<'_>, breach: &Breach, draft: &Draft) -> Effect {
    // Gradients that differ block the ranks that have them. If no rank has them all, each raises.
    let has_raised = |&rank: &u32| {
        let process = situation.model.member(breach.group, rank);
        process.is_some_and(|process| raised(process, breach).is_some())
    };
    let is_of_all = draft.victims.is_empty() && breach.root.iter().all(has_raised);
    if matches!(breach.kind, Kind::UnusedDiffer) && is_of_all {
        return Effect::Crashes;
    }
    if draft.code.effect != Effect::Crashes {
        return draft.code.effect;
    }
    let members = situation.model.group(breach.group).members.keys();
    let crashed = situation.has_one_crashed(breach.group, members);
    if crashed || draft.victims.is_empty() { Effect::Crashes } else { Effect::Blocks }
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
/// is `None`. `count` includes those that are not listed.
pub(crate) fn names(draft: &Draft, rank: Option<u32>, count: ParameterCount) -> String {
    let of_rank = |it: &&Parameter| rank.is_none_or(|rank| it.missing_on.contains(&rank));
    let named: Vec<&str> =
        draft.parameters.iter().filter(of_rank).map(|it| it.name.as_str()).take(NAMED).collect();
    let total = count.total.saturating_sub(named.len() as u64);
    let more = ParameterCount { total, ..count };
    match (named.is_empty(), more) {
        (true, ParameterCount { total: 1, is_minimum: false }) => "a parameter".to_owned(),
        (true, more) => format!("{more} parameters"),
        (false, ParameterCount { total: 0, is_minimum: false }) => named.join(", "),
        (false, more) => format!("{} and {more} more", named.join(", ")),
    }
}
