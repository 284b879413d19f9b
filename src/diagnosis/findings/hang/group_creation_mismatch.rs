//! DD114 group-creation-mismatch: ranks do not create the same groups in the same order.
//!
//! Checked in this order: requests under one name that disagree, cycles of waits that include the
//! creation of a group, creations that have waited longer than the stall limit. Each initialisation
//! of a world gets at most one of these findings.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{
    CallState, Certificate, CertificateKind, Confidence, RankCall, Timestamp,
};

use crate::evidence::align::odd_ones;
use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::facts::creates;
use crate::findings::hang::cycle;
use crate::findings::hang::idle::where_it_is;
use crate::findings::view::{blocked_call, describe, last_call_of, rank_calls, with_place};
use crate::model::{Group, GroupId, Model, Process, Request, Wait, World, is_inside};
use crate::situation::creations::{self, Mismatch};
use crate::situation::{Origin, Situation, Stall};
use crate::source::cause;
use crate::stacks;
use crate::waits::Blocked;
use crate::words::{self, Ranks, number};

/// DD114: groups that some ranks do not create, or create differently.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let mut explained = BTreeSet::new();
    let mut drafts = Vec::new();
    for mismatch in &situation.mismatches {
        if let Some(draft) = of_mismatch(situation, mismatch) {
            explained.insert((&mismatch.at.world, mismatch.at.epoch));
            drafts.push(draft);
        }
    }
    let model = situation.model;
    let is_new = |explained: &BTreeSet<(&World, u32)>, group: GroupId| {
        !explained.contains(&creations::place_of(model, group))
    };
    for (i, cycle) in situation.waits.cycles.iter().enumerate() {
        let is_making = creations::is_making_cycle(model, cycle);
        let stalls = stalls_of(situation, |stall| stall.origin == Origin::Cycle(i));
        if is_making
            && !stalls.is_empty()
            && is_new(&explained, cycle[0].group)
            && let Some(draft) = of_cycle(situation, cycle, &stalls)
        {
            explained.insert(creations::place_of(model, cycle[0].group));
            drafts.push(draft);
        }
    }
    for (origin, stalls) in situation.stalls_by_origin() {
        let Origin::Making(absent) = origin else {
            continue;
        };
        let overdue = stalls.iter().find(|stall| situation.is_overdue(stall));
        if let Some(stall) = overdue
            && is_new(&explained, stall.group)
            && let Some(draft) = of_stall(situation, stall, absent, &stalls)
        {
            explained.insert(creations::place_of(model, stall.group));
            drafts.push(draft);
        }
    }
    for group in model.groups() {
        if is_new(&explained, group.id)
            && let Some(draft) = of_group(situation, group)
        {
            explained.insert(creations::place_of(model, group.id));
            drafts.push(draft);
        }
    }
    let drafts = drafts.into_iter();
    drafts.map(|draft| explain(situation, draft)).collect()
}

fn stalls_of<'a>(situation: &'a Situation<'_>, of: impl Fn(&Stall) -> bool) -> Vec<&'a Stall> {
    let stalls = situation.stalls.iter();
    stalls.filter(|stall| of(stall)).collect()
}

/// Ranks create different groups under one name.
fn of_mismatch(situation: &Situation<'_>, mismatch: &Mismatch<'_>) -> Option<Draft> {
    let model = situation.model;
    let group = model.groups().find(|group| {
        let members = &group.info.key.members;
        let wanted = mismatch.pair.map_or(mismatch.requests[0], |[(_, it), _]| it);
        group.world == mismatch.at.world
            && group.info.key.epoch == mismatch.at.epoch
            && group.info.key.name == mismatch.at.name
            && *members == wanted.group.key.members
    })?;
    let mut draft = Draft::new(&catalogue::DD114, KeyPlace::Join(group.id, 0), mismatch.since);
    draft.place = Some((group.id, 0));
    let mut requests = mismatch.requests.clone();
    requests.sort_by_key(|it| (std::cmp::Reverse(it.ranks.len()), it.ranks.keys().next()));
    let classes: Vec<Vec<u32>> = requests.iter().map(|it| ranks_of(it)).collect();
    draft.blame(odd_ones(&classes));
    for request in &mismatch.requests {
        for (op, call) in creating_calls(situation, request) {
            draft.op = Some(op);
            draft.per_rank.push(call);
        }
    }
    draft.per_rank.sort_by_key(|call| call.rank);
    let stalls = stalls_of(situation, |stall| {
        let is_making = match &stall.origin {
            Origin::Making(_) => true,
            Origin::Cycle(i) => creations::is_making_cycle(model, &situation.waits.cycles[*i]),
            _ => false,
        };
        is_making && model.group(stall.group).world == mismatch.at.world
    });
    draft.blocked_at = stalls.iter().map(|stall| stall.since).min();
    // No member of these groups can use them.
    let is_member = |rank: &u32| {
        let mut requests = requests.iter();
        requests.any(|request| request.group.key.members.contains(rank))
    };
    let members = classes.concat().into_iter().filter(is_member);
    set_victims(&mut draft, &stalls, members);
    let parts: Vec<String> = requests.iter().map(|it| requested(it)).collect();
    let order = if mismatch.is_other_order(model) {
        "; they create the same groups in another order"
    } else {
        ""
    };
    draft.summary = format!("{}{order}", parts.join(", where "));
    draft.why = why_they_differ(mismatch);
    draft.next = next_steps();
    Some(draft.proved_by(contradiction(model, mismatch)))
}

fn ranks_of(request: &Request) -> Vec<u32> {
    request.ranks.keys().copied().collect()
}

/// The calls with which ranks made a request.
fn creating_calls(situation: &Situation<'_>, request: &Request) -> Vec<(Op, RankCall)> {
    let calls = request.ranks.iter().filter_map(|(&rank, asked)| {
        let process = situation.model.processes.get(&asked.process)?;
        let call = if is_inside(process, &asked.call) {
            let until = process.end.map_or(situation.now, |end| end.at);
            let waited = until.since(asked.call.at).as_millis() as u64;
            describe(rank, CallState::Waiting, Some(waited), &asked.call)
        } else {
            describe(rank, CallState::Returned, None, &asked.call)
        };
        Some((asked.call.op, call))
    });
    calls.collect()
}

/// "ranks 0 and 1 create a group of ranks 0–3 at train.py:9"
fn requested(request: &Request) -> String {
    let ranks = ranks_of(request);
    let place = request.ranks.values().next();
    let place = place.and_then(|asked| asked.call.place.as_deref());
    format!(
        "{} {} a group of {}{}",
        Ranks(&ranks),
        number(&ranks, "creates", "create"),
        Ranks(&sorted(&request.group.key.members)),
        words::at(place),
    )
}

fn why_they_differ(mismatch: &Mismatch<'_>) -> Vec<String> {
    let requests = mismatch.requests.iter();
    let asked = requests.flat_map(|request| request.ranks.values());
    let mut nths: Vec<String> = asked.map(|asked| nth(asked.nth)).collect();
    nths.sort_unstable();
    nths.dedup();
    vec![
        format!(
            "Ranks that create a group find each other by its name, and PyTorch numbers the groups that \
             a process takes part in creating. Both are {:?} here: the {} group that these ranks create.",
            mismatch.at.name,
            nths.join(" or "),
        ),
        match mismatch.pair {
            Some([(maker, wanted), (absent, _)]) => format!(
                "Rank {maker} needs rank {absent} for its group of {}, but rank {absent} uses that name for another one.",
                Ranks(&sorted(&wanted.group.key.members))
            ),
            None => "The groups have no rank in common, but their ranks look for each other under one name, \
                     and find the wrong ones."
                .into(),
        },
    ]
}

/// The proof: a creator needs a rank that requested another group under the same name.
fn contradiction(model: &Model, mismatch: &Mismatch<'_>) -> Option<Certificate> {
    let [a, b] = mismatch.pair?;
    let fact = |(rank, request): (u32, &Request)| {
        let asked = request.ranks.get(&rank)?;
        let process = model.processes.get(&asked.process)?;
        let only_thread = process.threads.len() == 1;
        (process.lost == 0).then(|| creates(rank, &asked.call, only_thread)).flatten()
    };
    Some(Certificate { kind: CertificateKind::Contradiction, facts: vec![fact(a)?, fact(b)?] })
}

/// A cycle of waits in which a rank creates a group.
fn of_cycle(situation: &Situation<'_>, cycle: &[Blocked], stalls: &[&Stall]) -> Option<Draft> {
    let model = situation.model;
    let next = |i: usize| cycle[(i + 1) % cycle.len()].rank;
    let at = cycle.iter().enumerate().position(|(i, wait)| {
        wait.seq == 0 || !model.group(wait.group).members.contains_key(&next(i))
    })?;
    let making = &cycle[at];
    let group = model.group(making.group);
    let closed: Timestamp = cycle.iter().map(|wait| wait.since).max()?;
    let mut draft = Draft::new(&catalogue::DD114, KeyPlace::Join(making.group, 0), closed);
    draft.place = Some((making.group, making.seq));
    draft.op = Some(making.call.op);
    makers_and_others(situation, group, &mut draft);
    draft.blocked_at = cycle.iter().map(|wait| wait.since).min();
    set_victims(&mut draft, stalls, cycle.iter().map(|wait| wait.rank));
    let elsewhere = cycle.iter().filter_map(|wait| blocked_call(situation, wait));
    let elsewhere: Vec<RankCall> = elsewhere.collect();
    draft.per_rank = rank_calls(situation, making.group, making.seq);
    draft.per_rank.retain(|call| elsewhere.iter().all(|other| other.rank != call.rank));
    draft.per_rank.extend(elsewhere);
    draft.per_rank.sort_by_key(|call| call.rank);

    let makers: Vec<u32> = group.members.keys().copied().collect();
    let absent = model.not_made_by(group);
    draft.summary = format!(
        "{} {} a group that {} {} not: {} wait for each other",
        Ranks(&makers),
        number(&makers, "creates", "create"),
        Ranks(&absent),
        number(&absent, "does", "do"),
        if makers.len() + absent.len() == 2 { "they" } else { "ranks" },
    );
    draft.why = vec![
        format!("{}.", cycle::steps(situation, cycle).join("; ")),
        "None of these waits can end before the other rank does its part, and no rank can do it \
         before its present wait ends."
            .into(),
    ];
    draft.why.extend(other_name(situation, group, &absent));
    draft.next = next_steps();

    Some(draft.proved_by(cycle::proof(situation, cycle)))
}

/// Creators have waited longer than the stall limit for live ranks.
fn of_stall(
    situation: &Situation<'_>,
    stall: &Stall,
    absent: &[u32],
    stalls: &[&Stall],
) -> Option<Draft> {
    let model = situation.model;
    let group = model.group(stall.group);
    let mut calls = situation.join(stall.group, stall.seq)?.calls.iter();
    let (_, waiting) = calls.find(|(rank, _)| stall.waiting.contains(rank))?;
    let mut draft =
        Draft::new(&catalogue::DD114, KeyPlace::Join(stall.group, 0), situation.overdue_at(stall));
    draft.place = Some((stall.group, stall.seq));
    draft.op = Some(waiting.call.op);
    draft.root = absent.to_vec();
    draft.victims = Stall::victims(stalls);
    draft.victims.retain(|rank| !absent.contains(rank));
    draft.per_rank = rank_calls(situation, stall.group, stall.seq);
    draft.blocked_at = Some(stall.since);
    let complete = absent
        .iter()
        .all(|&rank| model.member(stall.group, rank).is_some_and(|process| process.lost == 0));
    if !complete || situation.is_cut_short(stall) {
        draft.confidence = Confidence::Suspected;
    }
    let not_begun: Vec<u32> =
        absent.iter().copied().filter(|rank| !group.members.contains_key(rank)).collect();
    let does = if not_begun.len() == absent.len() {
        number(absent, "has not created", "have not created")
    } else {
        number(absent, "has not returned from creating", "have not returned from creating")
    };
    let name = words::group(&group.info);
    let made_in = if is_communicator(group) {
        "NCCL, which creates it".into()
    } else {
        words::call(&waiting.call)
    };
    draft.summary = format!(
        "{} {does} {name}; {} {} for {} in {made_in}",
        Ranks(absent),
        Ranks(&draft.victims),
        number(&draft.victims, "waits", "wait"),
        number(absent, "it", "them"),
    );
    let begun: Vec<u32> = group.members.keys().copied().collect();
    draft.why = vec![format!(
        "{} has {}; {} {} begun to create it.",
        words::begin(&name),
        Ranks(&sorted(&group.info.key.members)),
        Ranks(&begun),
        number(&begun, "has", "have"),
    )];
    for &rank in absent {
        if let Some(process) = model.member(stall.group, rank) {
            add_activity(situation, &mut draft, rank, process);
        }
    }
    draft.why.extend(other_name(situation, group, &not_begun));
    draft.next = if is_communicator(group) { vec![create_together(absent)] } else { next_steps() };
    Some(draft)
}

/// Adds the line at which an absent rank stands still, or its last call.
fn add_activity(situation: &Situation<'_>, draft: &mut Draft, rank: u32, process: &Process) {
    let still = stacks::of(process, &situation.model.timing).filter(|it| !it.moves);
    if let Some(still) = still
        && let Some(place) = where_it_is(situation.model, process, &still)
    {
        draft.why.push(place);
        let rows = draft.per_rank.iter_mut().filter(|it| it.rank == rank);
        rows.for_each(|row| *row = with_place(row.clone(), still.line));
        return;
    }
    draft.why.push(format!(
        "Rank {rank} is alive; {}; it has created {} {}.",
        last_call_of(situation.model, process),
        process.groups_made,
        if process.groups_made == 1 { "group" } else { "groups" },
    ));
}

/// Advice on an NCCL communicator that some ranks do not create.
fn create_together(absent: &[u32]) -> String {
    format!(
        "Find out why {} {} not create it. All ranks of a communicator create it together; PyTorch \
         creates one with the first collective of a group, which has to be the same on all of them.",
        Ranks(absent),
        number(absent, "does", "do"),
    )
}

/// Whether it is an NCCL communicator, created by the program or by a group's first collective.
fn is_communicator(group: &Group) -> bool {
    group.info.key.layer == "nccl"
}

/// All members create the group, and one has not returned within the stall limit.
fn of_group(situation: &Situation<'_>, group: &Group) -> Option<Draft> {
    let join = group.join(0)?;
    let inside: Vec<(u32, Timestamp)> =
        join.calls
            .iter()
            .filter(|(rank, joined)| {
                joined.wait == Wait::NotSeen
                    && situation.model.member(group.id, **rank).is_some_and(|process| {
                        is_inside(process, &joined.call) && !process.has_ended()
                    })
            })
            .map(|(&rank, joined)| (rank, joined.call.at))
            .collect();
    let all = situation.model.not_made_by(group).is_empty() && group.is_fully_seen();
    // Time at which the last member began.
    let begun = join.calls.values().map(|joined| joined.call.at).max()?;
    let due = begun.plus(situation.config.stall_after);
    let known = situation.known_of(group.id, group.members.keys().copied());
    if inside.is_empty() || !all || due > known {
        return None;
    }
    let stopped = |(rank, _): &(u32, Timestamp)| {
        situation.model.member(group.id, *rank).is_some_and(|process| process.is_stopped())
    };
    if inside.iter().any(stopped) {
        return None;
    }
    let ranks: Vec<u32> = inside.iter().map(|(rank, _)| *rank).collect();
    let mut draft = Draft::new(&catalogue::DD114, KeyPlace::Join(group.id, 0), due);
    draft.place = Some((group.id, 0));
    draft.op = join.calls.values().next().map(|joined| joined.call.op);
    draft.root = ranks.clone();
    draft.per_rank = rank_calls(situation, group.id, 0);
    draft.blocked_at = inside.iter().map(|(_, at)| *at).min();
    draft.summary = format!(
        "{} {} not returned from creating {}, although all its members create it",
        Ranks(&ranks),
        number(&ranks, "has", "have"),
        words::group(&group.info),
    );
    draft.why = vec![
        "Every member has begun to create it and is connecting to the others: no rank is missing."
            .into(),
    ];
    draft.next = vec![
        "Check that ranks reach each other: the interface that is used (GLOO_SOCKET_IFNAME, \
         NCCL_SOCKET_IFNAME), firewalls, and the host of the store (MASTER_ADDR)."
            .into(),
    ];
    Some(draft)
}

/// Makes the smaller side the root cause: members that create the group, or those that do not.
fn makers_and_others(situation: &Situation<'_>, group: &Group, draft: &mut Draft) {
    let makers: Vec<u32> = group.members.keys().copied().collect();
    let mut classes = vec![makers, situation.model.not_made_by(group)];
    classes.retain(|ranks| !ranks.is_empty());
    draft.blame(odd_ones(&classes));
}

/// Makes the ranks of stalls and `others` victims, unless they are a root cause.
fn set_victims(draft: &mut Draft, stalls: &[&Stall], others: impl Iterator<Item = u32>) {
    draft.victims = Stall::victims(stalls);
    draft.victims.extend(others);
    draft.victims.sort_unstable();
    draft.victims.dedup();
    draft.victims.retain(|rank| !draft.root.contains(rank));
}

/// Adds why the ranks created groups differently.
fn explain(situation: &Situation<'_>, mut draft: Draft) -> Draft {
    let reading = cause::of_requests(
        situation,
        &draft.per_rank,
        &draft.root,
        &draft.victims,
        draft.evidence_at,
    );
    draft.why.extend(reading.because);
    draft.cause = Some(reading.cause);
    draft
}

/// A sentence if absent members create a group of the same members under another name, because they
/// have created a different number of groups before.
fn other_name(situation: &Situation<'_>, group: &Group, absent: &[u32]) -> Option<String> {
    let twin = situation.model.groups().find(|other| {
        other.id != group.id
            && other.world == group.world
            && other.info.key.epoch == group.info.key.epoch
            && other.info.key.members == group.info.key.members
            && other.joins.contains_key(&0)
            && other.members.keys().any(|rank| absent.contains(rank))
    })?;
    let made = |ranks: Vec<u32>| {
        let first = ranks.first()?;
        let process = situation.model.member(group.id, *first)?;
        Some(format!(
            "{} {} {}",
            Ranks(&ranks),
            number(&ranks, "is at its", "are at their"),
            nth(process.groups_made),
        ))
    };
    let here = made(group.members.keys().copied().collect())?;
    let there = made(twin.members.keys().copied().collect())?;
    Some(format!(
        "Others create a group of the same ranks under another name ({:?}, not {:?}): {here} group, {there}. \
         A group that only some ranks take part in creating shifts the names of all later ones, also \
         with use_local_synchronization=True.",
        twin.info.key.name, group.info.key.name,
    ))
}

fn next_steps() -> Vec<String> {
    vec![
        "Call new_group on every rank, also on those that do not become members, in one order and \
         with the same ranks."
            .into(),
        "If only members call it (use_local_synchronization=True), let every rank create the same \
         number of groups before the next one that all ranks create."
            .into(),
    ]
}

fn sorted(members: &[u32]) -> Vec<u32> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members
}

/// "1st", "2nd", …
fn nth(n: u64) -> String {
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}
