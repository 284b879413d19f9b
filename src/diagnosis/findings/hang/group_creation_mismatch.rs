//! DD114 group-creation-mismatch: ranks do not create the same groups in the same order.
//!
//! Checked in this order: requests under one name that disagree, cycles of waits that include the
//! creation of a group, creations that have waited longer than the stall limit. Each initialization
//! of a world gets at most one of these findings.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{
    CallState, Certificate, CertificateKind, Confidence, Effect, RankCall, Severity, Timestamp,
};
use ddp_doctor_proto::vocabulary::NCCL_LAYER;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::facts::creates;
use crate::findings::stalls::{cycle, idle};
use crate::findings::view::{blocked_call, describe, last_call_of, rank_calls, waiting_until};
use crate::input::align::odd_ones;
use crate::input::backends;
use crate::model::{CreationRequest, Group, GroupId, Model, Process, Request, Wait};
use crate::situation::creations::{self, Mismatch};
use crate::situation::{OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause;
use crate::waits::Blocked;
use crate::words::{self, Ranks};

/// A draft, and a group in whose world it is.
type Found = (GroupId, Draft);

/// DD114: groups that some ranks do not create, or create differently.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let model = situation.model;
    let mismatches = situation.mismatches.iter().filter_map(|it| of_mismatch(situation, it));
    let cycles =
        cycle::led_to(situation).into_iter().filter_map(|(i, cycle)| of_cycle(situation, i, cycle));
    let stalls = situation.by_origin(|origin, stalls| match origin {
        StallOrigin { why: OriginKind::Making, ranks } => of_stall(situation, ranks, stalls),
        _ => None,
    });
    let groups = model.groups().filter_map(|group| of_group(situation, group));
    // At most one finding for each world: the first one explains the others.
    let mut explained = BTreeSet::new();
    let drafts = mismatches
        .chain(cycles)
        .chain(stalls)
        .chain(groups)
        .filter(|(group, _)| explained.insert(creations::place_of(model, *group)))
        .map(|(_, mut draft)| {
            // Adds why the ranks created groups differently.
            let (calls, at) = (&draft.per_rank, draft.evidence_at);
            let hypothesis = cause::of_requests(situation, calls, &draft.root, &draft.victims, at);
            draft.attribute(hypothesis);
            draft
        });
    drafts.collect()
}

/// The group of one of the requests that disagree.
fn group_of<'a>(model: &'a Model, mismatch: &Mismatch<'_>) -> Option<&'a Group> {
    model.groups().find(|group| {
        let members = &group.info.key.members;
        let wanted = mismatch.pair.map_or(mismatch.requests[0], |[(_, it), _]| it);
        is_under_name(group, mismatch) && *members == wanted.group.key.members
    })
}

/// Whether ranks created a group under the name for which their requests disagree.
fn is_under_name(group: &Group, mismatch: &Mismatch<'_>) -> bool {
    group.world == mismatch.at.world
        && group.info.key.epoch == mismatch.at.epoch
        && group.info.key.name == mismatch.at.name
}

/// The key of the finding about the name under which ranks created this group differently.
pub(crate) fn created_differently(situation: &Situation<'_>, group: GroupId) -> Option<KeyPlace> {
    let model = situation.model;
    let mut mismatches = situation.mismatches.iter();
    let mismatch = mismatches.find(|it| is_under_name(model.group(group), it))?;
    Some(KeyPlace::Join(group_of(model, mismatch)?.id, 0))
}

/// Ranks create different groups under one name.
fn of_mismatch(situation: &Situation<'_>, mismatch: &Mismatch<'_>) -> Option<Found> {
    let model = situation.model;
    let group = group_of(model, mismatch)?;
    let mut draft = Draft::new(&catalogue::DD114, KeyPlace::Join(group.id, 0), mismatch.since);
    draft.place = Some((group.id, 0));
    let mut requests = mismatch.requests.clone();
    requests.sort_by_key(|it| (std::cmp::Reverse(it.ranks.len()), it.ranks.keys().next()));
    let classes: Vec<Vec<u32>> = requests.iter().map(|it| ranks_of(it)).collect();
    draft.blame_odd(odd_ones(&classes));
    for (&rank, asked) in mismatch.requests.iter().flat_map(|it| &it.ranks) {
        if let Some(call) = creating_call(situation, rank, asked) {
            draft.op = Some(asked.call.op);
            draft.per_rank.push(call);
        }
    }
    draft.per_rank.sort_by_key(|call| call.rank);
    let is_making = |stall: &&Stall| match stall.origin.why {
        OriginKind::Making => true,
        OriginKind::Cycle(i) => creations::making(model, &situation.waits.cycles[i]).is_some(),
        _ => false,
    };
    let stalls = situation.stalls.iter().filter(is_making);
    let here = stalls.filter(|stall| model.group(stall.group).world == mismatch.at.world);
    let stalls: Vec<&Stall> = here.collect();
    draft.blocked_at = stalls.iter().map(|stall| stall.since).min();
    let asked = requests.iter().flat_map(|request| request.ranks.values());
    let mut creators =
        asked.filter_map(|asked| Some((model.processes.get(&asked.process)?, &asked.call)));
    if stalls.is_empty() && !creators.any(|(process, call)| process.is_inside(call)) {
        // Where nothing is sent to create a group, ranks go on until they use it.
        (draft.effect, draft.severity) = (Effect::None, Severity::Warning);
    }
    // No member of these groups can use them.
    let is_member = |rank: &u32| {
        let mut requests = requests.iter();
        requests.any(|request| request.group.key.members.contains(rank))
    };
    let members = classes.concat().into_iter().filter(is_member);
    draft.set_victims(Stall::victims(&stalls).into_iter().chain(members));
    let parts = words::joined(requests.iter().map(|it| requested(it)), ", where ");
    let order = if mismatch.is_other_order(model) {
        "; they create the same groups in another order"
    } else {
        ""
    };
    draft.summary = parts + order;
    draft.why = why_they_differ(situation, mismatch);
    let mut places = draft.per_rank.iter().map(|call| &call.place);
    let first = places.next();
    let is_one_line = places.all(|it| Some(it) == first);
    if is_counted_on_members(model, group, &classes.concat()) {
        draft.advise(COUNT_GROUPS);
    } else if mismatch.is_other_order(model) {
        draft.advise("Create the groups in the same order on every rank.");
    } else if is_one_line {
        draft.advise("Pass the same ranks to new_group on every rank, and create the groups in the same order.");
    } else {
        draft.advise(CALL_ON_EVERY_RANK);
    }
    Some((group.id, draft.proved_by(contradiction(model, mismatch))))
}

fn ranks_of(request: &Request) -> Vec<u32> {
    request.ranks.keys().copied().collect()
}

/// The call with which a rank made a request.
fn creating_call(
    situation: &Situation<'_>,
    rank: u32,
    asked: &CreationRequest,
) -> Option<RankCall> {
    let process = situation.model.processes.get(&asked.process)?;
    // It did not go on if an exception left the call.
    if let Some(at) = creations::failed_at(process, asked) {
        return Some(waiting_until(rank, at, &asked.call));
    }
    if !process.is_inside(&asked.call) {
        return Some(describe(rank, CallState::Returned, None, &asked.call));
    }
    let until = process.end.map_or(situation.now, |end| end.at);
    Some(waiting_until(rank, until, &asked.call))
}

/// "ranks 0 and 1 create a group of ranks 0–3 at train.py:9"
fn requested(request: &Request) -> String {
    let ranks = ranks_of(request);
    let place = request.ranks.values().next().and_then(|asked| asked.call.place.as_deref());
    format!(
        "{} a group of {}{}",
        Ranks(&ranks).with("creates", "create"),
        Ranks(&sorted(&request.group.key.members)),
        words::at(place),
    )
}

fn why_they_differ(situation: &Situation<'_>, mismatch: &Mismatch<'_>) -> Vec<String> {
    let requests = mismatch.requests.iter();
    let asked = requests.flat_map(|request| request.ranks.values());
    let nths: BTreeSet<String> = asked.map(|asked| nth(asked.nth)).collect();
    // Stacks do not show how many groups a rank has created.
    let number = if situation.config.provenance.is_attached() {
        String::new()
    } else {
        format!(": the {} group that these ranks create", words::joined(nths, " or "))
    };
    vec![
        format!(
            "Ranks that create a group find each other by its name, and PyTorch numbers the groups that \
             a process takes part in creating. Here, both are named {:?}{number}.",
            mismatch.at.name,
        ),
        match mismatch.pair {
            Some([(maker, wanted), (absent, _)]) => format!(
                "Rank {maker} needs rank {absent} for its group of {}, but rank {absent} uses that name for a different group.",
                Ranks(&sorted(&wanted.group.key.members))
            ),
            None => "The groups have no rank in common, but their ranks look for each other under the same \
                     name, and find the wrong ones."
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
fn of_cycle(situation: &Situation<'_>, index: usize, cycle: &[Blocked]) -> Option<Found> {
    let model = situation.model;
    let making = creations::making(model, cycle)?;
    let group = model.group(making.group);
    let closed: Timestamp = cycle.iter().map(|wait| wait.since).max()?;
    let mut draft = Draft::new(&catalogue::DD114, KeyPlace::Join(making.group, 0), closed);
    draft.place = Some((making.group, making.seq));
    draft.op = Some(making.call.op);
    draft.blocked_at = cycle.iter().map(|wait| wait.since).min();
    let elsewhere: Vec<RankCall> =
        cycle.iter().filter_map(|wait| blocked_call(situation, wait)).collect();
    draft.per_rank = rank_calls(situation, making.group, making.seq);
    draft.per_rank.retain(|call| elsewhere.iter().all(|other| other.rank != call.rank));
    draft.per_rank.extend(elsewhere);
    draft.per_rank.sort_by_key(|call| call.rank);

    let makers: Vec<u32> = group.members.keys().copied().collect();
    let absent = model.not_made_by(group);
    // The smaller side is the root cause: members that create the group, or those that do not.
    let mut classes = vec![makers.clone(), absent.clone()];
    classes.retain(|ranks| !ranks.is_empty());
    draft.blame_odd(odd_ones(&classes));
    let stalls = situation.stalls_from(&StallOrigin::without_ranks(OriginKind::Cycle(index)));
    let in_cycle = cycle.iter().map(|wait| wait.rank);
    draft.set_victims(Stall::victims(&stalls).into_iter().chain(in_cycle));
    draft.summary = format!(
        "{} a group that {} not: {} wait for each other",
        Ranks(&makers).with("creates", "create"),
        Ranks(&absent).with("does", "do"),
        if makers.len() + absent.len() == 2 { "they" } else { "ranks" },
    );
    draft.say(cycle::steps(situation, cycle));
    draft.say(
        "None of these waits can end before the other rank does its part, and no rank can do it \
         before its current wait ends.",
    );
    let other = other_name(situation, group, &absent);
    if let Some(other) = &other {
        let own = &group.info.key.name;
        draft.summary = format!(
            "{} a group as {own:?}, and {} one of the same ranks as {:?}: ranks wait for each other",
            Ranks(&makers).with("creates", "create"),
            Ranks(&absent).with("creates", "create"),
            other.name,
        );
    }
    draft.why.extend(other.map(|it| it.sentence));
    draft.advise(advice_on(model, group, &[makers, absent].concat()));

    Some((cycle[0].group, draft.proved_by(cycle::proof(situation, cycle))))
}

/// Creators have waited longer than the stall limit for live ranks.
fn of_stall(situation: &Situation<'_>, absent: &[u32], stalls: &[&Stall]) -> Option<Found> {
    let stall = stalls.iter().find(|stall| situation.is_overdue(stall))?;
    let model = situation.model;
    let group = model.group(stall.group);
    // Two captures may show that such a rank moves: it may be slow.
    let waits =
        |process: &Process| process.is_inside_a_call() || idle::standing(model, process).is_some();
    let mut processes = model.members(stall.group, absent);
    if situation.config.provenance.is_attached() && !processes.all(|(_, it)| waits(it)) {
        return None;
    }
    let mut calls = situation.join(stall.group, stall.seq)?.calls.iter();
    let (_, waiting) = calls.find(|(rank, _)| stall.waiting.contains(rank))?;
    let mut draft =
        Draft::new(&catalogue::DD114, KeyPlace::Join(stall.group, 0), situation.overdue_at(stall));
    draft.place = Some((stall.group, stall.seq));
    draft.op = Some(waiting.call.op);
    draft.root = absent.to_vec();
    draft.set_victims(Stall::victims(stalls));
    draft.per_rank = rank_calls(situation, stall.group, stall.seq);
    draft.blocked_at = Some(stall.since);
    let complete = model.has_all_records(stall.group, absent.iter().copied());
    if !complete || situation.is_cut_short(stall) {
        draft.confidence = Confidence::Suspected;
    }
    let mut not_begun = absent.to_vec();
    not_begun.retain(|rank| !group.members.contains_key(rank));
    let lack = if not_begun.len() == absent.len() {
        Ranks(absent).with("has not created", "have not created")
    } else {
        Ranks(absent).with("has not returned from creating", "have not returned from creating")
    };
    let name = words::group(&group.info);
    let is_split = is_communicator(group) && waiting.call.op == Op::SplitGroup;
    let made_in = if is_split {
        "ncclCommSplit".into()
    } else if is_communicator(group) {
        "NCCL, which creates it".into()
    } else {
        words::call(&waiting.call)
    };
    draft.summary = format!("{lack} {name}; {} in {made_in}", draft.waits_for_root());
    let begun: Vec<u32> = group.members.keys().copied().collect();
    let (begun, members) = (Ranks(&begun), Ranks(&sorted(&group.info.key.members)).to_string());
    draft.say(if is_split {
        format!(
            "{} of the parent have to call ncclCommSplit, including those that do not get a \
             communicator (NCCL_SPLIT_NOCOLOR); {}.",
            words::begin(members),
            begun.with("has", "have"),
        )
    } else {
        let begun = begun.with("has", "have");
        format!("{} has {members}; {begun} begun to create it.", words::begin(&name))
    });
    for (rank, process) in model.members(stall.group, absent) {
        add_activity(situation, &mut draft, rank, process);
    }
    draft.why.extend(other_name(situation, group, &not_begun).map(|it| it.sentence));
    if is_split {
        let has = Ranks(absent).with("has", "have");
        draft.advise(format!("Find out why {has} not called ncclCommSplit."));
    } else if is_communicator(group) {
        draft.advise(create_together(absent));
    } else {
        draft.advise(advice_on(model, group, &sorted(&group.info.key.members)));
    }
    Some((stall.group, draft))
}

/// Adds the line at which an absent rank is stuck, or its last call.
fn add_activity(situation: &Situation<'_>, draft: &mut Draft, rank: u32, process: &Process) {
    if let Some((still, sentence)) = idle::standing(situation.model, process) {
        draft.say(sentence);
        draft.show_at(|it| still.line.filter(|_| it == rank));
        return;
    }
    let made = match process.groups_made {
        _ if process.is_attached() => String::new(),
        1 => "; it has created 1 group".into(),
        made => format!("; it has created {made} groups"),
    };
    draft.say(format!("Rank {rank} is alive; {}{made}.", last_call_of(situation.model, process)));
}

/// Advice on an NCCL communicator that some ranks do not create.
fn create_together(absent: &[u32]) -> String {
    format!(
        "Find out why {} not create it. All ranks of a communicator create it together; PyTorch \
         creates one with the first collective of a group, which has to be the same on all of them.",
        Ranks(absent).with("does", "do"),
    )
}

/// Whether it is an NCCL communicator, created by the program or by a group's first collective.
fn is_communicator(group: &Group) -> bool {
    group.info.key.layer == NCCL_LAYER
}

/// All members create the group, and one has not returned within the stall limit.
fn of_group(situation: &Situation<'_>, group: &Group) -> Option<Found> {
    let join = group.join(0)?;
    let inside: Vec<(&Process, u32, Timestamp)> = join
        .calls
        .iter()
        .filter_map(|(&rank, joined)| {
            let process = situation.model.member(group.id, rank)?;
            let is_inside = joined.wait == Wait::NotSeen && process.is_inside(&joined.call);
            (is_inside && !process.has_ended()).then_some((process, rank, joined.call.at))
        })
        .collect();
    let all = situation.model.not_made_by(group).is_empty() && group.is_fully_seen();
    // Time at which the last member began.
    let begun = join.calls.values().map(|joined| joined.call.at).max()?;
    let due = begun.plus(situation.config.stall_after);
    let known = situation.known_of(group.id, group.members.keys().copied());
    let has_stopped = inside.iter().any(|(process, ..)| process.is_stopped());
    if inside.is_empty() || !all || due > known || has_stopped {
        return None;
    }
    let ranks: Vec<u32> = inside.iter().map(|(_, rank, _)| *rank).collect();
    let mut draft = Draft::new(&catalogue::DD114, KeyPlace::Join(group.id, 0), due);
    draft.place = Some((group.id, 0));
    draft.op = join.calls.values().next().map(|joined| joined.call.op);
    draft.root = ranks.clone();
    draft.per_rank = rank_calls(situation, group.id, 0);
    draft.blocked_at = inside.iter().map(|(.., at)| *at).min();
    draft.summary = format!(
        "{} not returned from creating {}, although all its members create it",
        Ranks(&ranks).with("has", "have"),
        words::group(&group.info),
    );
    draft.say(
        "Every member has begun to create it and is connecting to the others: no rank is missing.",
    );
    draft.advise(format!(
        "Check that ranks can reach each other: the network interface in use ({}), firewalls, and the host of the store \
         (MASTER_ADDR).",
        backends::interface_variables(),
    ));
    Some((group.id, draft))
}

/// The other name if absent members create a group of the same members under it, because they
/// have created a different number of groups before.
fn other_name(situation: &Situation<'_>, group: &Group, absent: &[u32]) -> Option<OtherName> {
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
        let at_its = Ranks(&ranks).with("is at its", "are at their");
        Some(format!("{at_its} {}", nth(process.groups_made)))
    };
    let numbers = if situation.config.provenance.is_attached() {
        // Stacks do not show how many groups a rank has created.
        String::new()
    } else {
        let here = made(group.members.keys().copied().collect())?;
        let there = made(twin.members.keys().copied().collect())?;
        format!(": {here} group, {there}")
    };
    let name = twin.info.key.name.to_string();
    let ranks: Vec<u32> = group.members.keys().chain(twin.members.keys()).copied().collect();
    let reason = if is_counted_on_members(situation.model, group, &ranks) {
        "A group with use_local_synchronization=True counts only on its members, and shifts the names of all later \
         groups there."
    } else {
        "A group that only some ranks take part in creating shifts the names of all later ones."
    };
    let sentence = format!(
        "Others create a group of the same ranks under another name ({name:?}, not {:?}){numbers}. {reason}",
        group.info.key.name,
    );
    Some(OtherName { name, sentence })
}

/// The name under which other ranks create a group of the same ranks.
struct OtherName {
    name: String,
    sentence: String,
}

const CALL_ON_EVERY_RANK: &str = "Call new_group on every rank, including those that are not members, in the same order and with \
     the same ranks.";
const COUNT_GROUPS: &str = "Let every rank create the same number of groups with use_local_synchronization=True before the \
     next one that all ranks create, or leave that option out and call new_group on every rank.";

/// Advice on a group that ranks do not create, or create under another name.
fn advice_on(model: &Model, group: &Group, ranks: &[u32]) -> &'static str {
    if is_counted_on_members(model, group, ranks) {
        COUNT_GROUPS
    } else if is_named_by_members(&group.info.key.name) {
        "Call new_group on every member of the group, in the same order and with the same ranks."
    } else {
        CALL_ON_EVERY_RANK
    }
}

/// Whether the number in the group's name counts groups with `use_local_synchronization=True`, and these ranks have
/// not created the same number of them: only members create such a group, and PyTorch 2.15 counts it there. Earlier
/// versions do not.
fn is_counted_on_members(model: &Model, group: &Group, ranks: &[u32]) -> bool {
    let Ok(number) = group.info.key.name.parse::<u64>() else { return false };
    let local: Vec<&Group> = model
        .groups()
        .filter(|it| {
            let (key, own) = (&it.info.key, &group.info.key);
            it.world == group.world && key.epoch == own.epoch && is_named_by_members(&key.name)
        })
        .collect();
    let made = |rank: &u32| local.iter().filter(|it| it.members.contains_key(rank)).count() as u64;
    let counts_them = |rank: &u32| {
        let process = model.member(group.id, *rank);
        // Without them, the rank has created fewer groups than the number.
        made(rank) > 0 && process.is_some_and(|it| it.groups_made < number + made(rank))
    };
    let numbers: BTreeSet<u64> = ranks.iter().map(made).collect();
    numbers.len() > 1 && ranks.iter().any(counts_them)
}

/// Whether it is the name that `torch.distributed` gives to a group with `use_local_synchronization=True`: a SHA-1 in
/// hexadecimal digits (`_hash_ranks_to_str`).
fn is_named_by_members(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|it| it.is_ascii_hexdigit())
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
