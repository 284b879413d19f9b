//! DD113 p2p-unmatched: a send or receive without a partner, or with a different tag or size.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{
    CauseKind, Certificate, CertificateKind, Confidence, Effect, RankCall, Severity, Timestamp,
};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::facts::issued;
use crate::findings::stalls::{cycle, idle, message, termination};
use crate::findings::view::{last_call_of, made_call, waiting_call};
use crate::input::event::Call;
use crate::model::{Clash, Ending, Group, GroupId, Side, UnmatchedMessage};
use crate::situation::{OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause;
use crate::waits::Blocked;
use crate::words::{self, Ranks, number};

/// DD113: sends and receives of different sizes.
pub(crate) fn other_sizes(situation: &Situation<'_>) -> Vec<Draft> {
    let drafts = situation.model.groups().flat_map(|group| {
        let clashes = group.traffic.clashes();
        clashes.filter_map(|(from, to, clash)| other_size(situation, group, from, to, clash))
    });
    drafts.collect()
}

/// A draft about a send and a receive, without victims and sentences.
fn draft_of_both(group: GroupId, from: u32, to: u32, receive: &Call, at: Timestamp) -> Draft {
    let place = KeyPlace::Channel(group, Some(from), Some(to));
    let mut draft = Draft::new(&catalogue::DD113, place, at);
    draft.place = Some((group, receive.seq));
    draft.op = Some(receive.op);
    draft.root = vec![from.min(to), from.max(to)];
    draft
}

/// A send and its receive with different sizes.
fn other_size(
    situation: &Situation<'_>,
    group: &Group,
    from: u32,
    to: u32,
    clash: &Clash,
) -> Option<Draft> {
    let (send, receive) = (&clash.send, &clash.receive);
    let paired_at = send.at.max(receive.at);
    let mut draft = draft_of_both(group.id, from, to, receive, paired_at);
    draft.blocked_at = Some(paired_at);
    if situation.have_ended_in_order(group.id, &[from, to]) {
        (draft.effect, draft.severity) = (Effect::Corrupts, Severity::Critical);
    }
    let mut hypothesis = message::cause(situation, &[from], &[to], paired_at);
    if hypothesis.cause.kind == CauseKind::Unknown {
        let mut sides = [(from, send), (to, receive)].into_iter();
        let sized = sides.find_map(|(rank, call)| {
            cause::of_size(situation.model.member(group.id, rank)?, call.place.as_ref()?)
        });
        hypothesis = sized.unwrap_or(hypothesis);
    }
    for (rank, call) in [(from, send), (to, receive)] {
        let process = situation.model.member(group.id, rank)?;
        draft.per_rank.push(made_call(situation, rank, process, call));
    }
    draft.summary = format!(
        "rank {from} sends {} to rank {to}{}, which receives {}{}",
        data(send),
        words::at(send.place.as_deref()),
        data(receive),
        words::at(receive.place.as_deref()),
    );
    draft.say(format!(
        "{} and {} in {} are paired by their order between the two ranks{}.",
        words::call(send),
        words::call(receive),
        words::group(&group.info),
        if group.traffic.lane(send).is_some() { " and by their tag" } else { "" },
    ));
    draft.say(if group.backend.aborts_on_excess {
        let label = group.backend.label;
        format!(
            "{label} aborts the process of a receiver whose tensor is too small for the message."
        )
    } else {
        "If the sizes differ, the message arrives incomplete, or its transfer never ends."
            .to_owned()
    });
    draft.attribute(hypothesis);
    draft.advise(
        "Receive into a tensor of the shape and dtype that is sent. If shape or dtype varies, send it first.",
    );
    let seen = situation.model.has_all_records(group.id, [from, to]);
    let proof = || {
        let facts = vec![issued(from, send, clash.nth)?, issued(to, receive, clash.nth)?];
        Some(Certificate { kind: CertificateKind::Contradiction, facts })
    };
    Some(draft.proved_by(seen.then(proof).flatten()))
}

/// DD113: a send and a receive that wait with different tags.
pub(crate) fn other_tag(
    situation: &Situation<'_>,
    origin: &StallOrigin,
    stalls: &[&Stall],
) -> Option<Draft> {
    let OriginKind::OtherTag(group_id, from, to) = origin.why else { return None };
    let group = situation.model.group(group_id);
    let (stall, unmatched, other) = stalls.iter().find_map(|stall| {
        let unmatched = stall.message.as_ref().filter(|_| stall.is_direct())?;
        Some((*stall, unmatched, group.traffic.other_tag(unmatched)?))
    })?;
    let (send, receive) = match unmatched.side {
        Side::Send => (unmatched, &other),
        Side::Receive => (&other, unmatched),
    };
    let began = send.since().max(receive.since());
    let mut draft = draft_of_both(group_id, from, to, &receive.joined.call, began);
    draft.set_victims(Stall::victims(stalls));
    draft.blocked_at = Some(send.since().min(receive.since()));
    draft.per_rank = sides(situation, group_id, &[send, receive]);
    let hypothesis = message::cause(situation, &[from], &[to], began);
    let (sent, awaited) = (tag(&send.joined.call), tag(&receive.joined.call));
    draft.summary = format!(
        "rank {from} sends to rank {to} with tag {sent}{}, but rank {to} waits for tag {awaited}{}",
        words::at(send.joined.call.place.as_deref()),
        words::at(receive.joined.call.place.as_deref()),
    );
    let partner = situation.model.member(group_id, from)?;
    let gone = situation.model.ending_of(partner) != Ending::None || group.is_destroyed_by(from);
    draft.say(format!(
        "In {}, a send and its receive must have the same tag. Rank {from} has not sent a message with tag \
         {awaited} to rank {to}, and rank {to} does not receive one with tag {sent}{}.",
        words::group(&group.info),
        if gone { format!("; rank {from} has ended") } else { "; neither can continue".into() },
    ));
    draft.attribute(hypothesis);
    draft.advise(format!(
        "Use one tag on both sides: {sent} or {awaited}. If both messages are intended, issue them with \
         isend and irecv and wait after all are issued.",
    ));
    let proof = if gone {
        termination::never_comes(situation, stall, (to, &receive.joined.call), from)
    } else {
        tags_proof(situation, group_id, send, receive).or_else(|| {
            let cycle = &situation.waits.cycles[situation.cycle_of(to)?];
            cycle::proof(situation, cycle)
        })
    };
    Some(draft.proved_by(proof))
}

/// The proof: each waits in the only thread of its process and has not issued the other's partner.
fn tags_proof(
    situation: &Situation<'_>,
    group: GroupId,
    send: &UnmatchedMessage,
    receive: &UnmatchedMessage,
) -> Option<Certificate> {
    let wait = |unmatched: &UnmatchedMessage| -> Option<&Blocked> {
        let mut threads = situation.waits.blocked.get(&unmatched.rank)?.iter();
        threads.find(|wait| {
            let waits_for = wait.message.as_ref().map(|m| m.joined.call.id);
            wait.group == group && waits_for == Some(unmatched.joined.call.id)
        })
    };
    let (receiver, sender) = (wait(receive)?, wait(send)?);
    let certain = [receiver, sender].iter().all(|wait| wait.recorded && wait.only_thread)
        && receive.sure
        && send.sure
        && situation.model.group(group).backend.sends_wait
        && situation.model.has_all_records(group, [send.rank, receive.rank]);
    certain.then(|| Certificate {
        kind: CertificateKind::Contradiction,
        facts: vec![
            message::waits(situation, receiver),
            message::waits(situation, sender),
            message::never_posted(situation, group, receive, send.rank),
            message::never_posted(situation, group, send, receive.rank),
        ],
    })
}

/// DD113: messages of ranks that use numbers within a group as ranks.
pub(crate) fn local_numbers(
    situation: &Situation<'_>,
    origin: &StallOrigin,
    stalls: &[&Stall],
) -> Option<Draft> {
    let OriginKind::LocalNumbers(group_id, numbers) = origin.why else { return None };
    let is_closed = |rank: &u32| {
        let index = situation.cycle_of(*rank);
        index.is_some_and(|it| cycle::is_believed(situation, it, &situation.waits.cycles[it]))
    };
    let own: Vec<&Stall> = stalls.iter().copied().filter(|it| it.is_direct()).collect();
    let ranks = &origin.ranks;
    if !ranks.iter().any(is_closed) && !own.iter().any(|it| situation.is_overdue(it)) {
        return None;
    }
    let first = own.first()?;
    let unmatched = first.message.as_ref()?;
    let call = &unmatched.joined.call;
    let mut draft = message::draft(situation, &catalogue::DD113, first, call, unmatched.since());
    draft.key.place = KeyPlace::Ranks(ranks.clone());
    draft.blame(&ranks[..], Confidence::Supported);
    draft.set_victims(Stall::victims(stalls));
    let distinct: BTreeSet<u32> = own.iter().filter_map(|it| it.message.as_ref()?.peer).collect();
    let peers: Vec<u32> = distinct.into_iter().collect();
    let mut rows: BTreeMap<u32, RankCall> = BTreeMap::new();
    for row in own.iter().flat_map(|stall| message::stalled_calls(situation, stall)) {
        rows.entry(row.rank).or_insert(row);
    }
    draft.per_rank = rows.into_values().collect();
    let [of_messages, of_numbers] = [group_id, numbers].map(|it| &situation.model.group(it).info);
    let at = words::at(call.place.as_deref());
    let (ranks, peers) = (Ranks(ranks), Ranks(&peers));
    let within = words::group(of_numbers);
    draft.summary = format!(
        "{ranks} pass group ranks of {within} where global ranks are expected{at}: their messages with {peers} have no matching call",
    );
    draft.say(format!(
        "The peers of their messages are group ranks of {within} ({}), but ranks of {} are expected: read as group ranks, \
         these messages match each other.",
        Ranks(&of_numbers.key.members),
        words::group(of_messages),
    ));
    draft.say(format!(
        "For {peers}, group rank and global rank are equal: they have exchanged messages with each other from this line \
         and need none from {ranks}.",
    ));
    draft.advise(
        "Convert group ranks to global ranks (dist.get_global_rank(group, group_rank)), or pass group= with group_peer= \
         (P2POp), group_dst= (send) and group_src= (recv).",
    );
    Some(draft)
}

/// DD113: an overdue call whose partner is alive and has not issued its side.
pub(crate) fn alone(
    situation: &Situation<'_>,
    from: &StallOrigin,
    stalls: &[&Stall],
) -> Option<Draft> {
    let StallOrigin { why: OriginKind::Elsewhere, ranks: absent } = from else { return None };
    // A wait in a collective is DD101.
    stalls.first()?.message.as_ref()?;
    let stall =
        *stalls.iter().find(|stall| stall.message.is_some() && situation.is_overdue(stall))?;
    let unmatched = stall.message.as_ref()?;
    let missing: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
    let absent = if absent.is_empty() { &missing } else { absent };
    let processes = || situation.model.members(stall.group, absent);
    // A rank in a phase that the program marked as long is expected to be late.
    if processes().any(|(_, process)| !process.phases.is_empty()) {
        return None;
    }
    let group = situation.model.group(stall.group);
    let other = group.traffic.other_tag(unmatched);

    let (call, evidence_at) = (&unmatched.joined.call, situation.overdue_at(stall));
    let mut draft = message::draft(situation, &catalogue::DD113, stall, call, evidence_at);
    draft.root = absent.to_vec();
    draft.set_victims(Stall::victims(stalls));
    let hypothesis = message::cause(situation, absent, &draft.victims, situation.now);
    if let Some(other) = &other {
        draft.per_rank = sides(situation, stall.group, &[unmatched, other]);
    }
    // A call with another tag is evidence; without one the partner may still make the call.
    draft.confidence = match other {
        Some(_) if !situation.is_cut_short(stall) => Confidence::Supported,
        _ => Confidence::Suspected,
    };

    draft.summary = match &other {
        Some(other) => tags_differ(unmatched, other),
        None => format!(
            "rank {} waits in {}, which {} not {}",
            unmatched.rank,
            words::call_at(call),
            Ranks(absent).with("has", "have"),
            counterpart(unmatched),
        ),
    };
    let over = situation.is_cut_short(stall) || processes().all(|(_, process)| process.has_ended());
    draft.say(lacks_partner(group, unmatched, absent, over));
    draft.attribute(hypothesis);
    for (rank, process) in processes() {
        match idle::standing(situation.model, process) {
            Some((still, sentence)) => {
                draft.next.extend(idle::advice(still.what, process));
                draft.say(sentence);
            }
            None => draft.say(format!("Rank {rank}: {}.", last_call_of(situation.model, process))),
        }
    }
    if situation.is_cut_short(stall) {
        draft.say("The job was interrupted while it waited.");
    }
    if stall.failed {
        draft.say("The wait has already failed.");
    }
    draft.advise(make_the_partner(unmatched, absent));
    Some(draft)
}

/// What the partner of a call does: "received" or "sent".
const fn counterpart(unmatched: &UnmatchedMessage) -> &'static str {
    match unmatched.side {
        Side::Send => "received",
        Side::Receive => "sent",
    }
}

/// "Rank 0 is alive, and has made no matching call: …", in the past tense if the job is over.
fn lacks_partner(
    group: &Group,
    unmatched: &UnmatchedMessage,
    absent: &[u32],
    over: bool,
) -> String {
    let ranks = Ranks(absent);
    format!(
        "{} alive, and {} made no matching call: {} in {} has no partner.",
        words::begin(if over { ranks.with("was", "were") } else { ranks.with("is", "are") }),
        number(absent, "has", "have"),
        words::call(&unmatched.joined.call),
        words::group(&group.info),
    )
}

/// "rank 0 has sent with tag 1 at train.py:31; rank 1 waits for tag 2 at train.py:33"
fn tags_differ(unmatched: &UnmatchedMessage, other: &UnmatchedMessage) -> String {
    let [theirs, own] = [other, unmatched].map(|it| words::at(it.joined.call.place.as_deref()));
    format!(
        "rank {} has {} with tag {}{theirs}; rank {} waits for tag {}{own}",
        other.rank,
        counterpart(unmatched),
        tag(&other.joined.call),
        unmatched.rank,
        tag(&unmatched.joined.call),
    )
}

/// Advice to make the call that a rank waits for.
fn make_the_partner(unmatched: &UnmatchedMessage, absent: &[u32]) -> String {
    format!(
        "Find out what {} after that call, and make the {} that rank {} waits for, or neither call.",
        Ranks(absent).with("does", "do"),
        match unmatched.side {
            Side::Send => "receive",
            Side::Receive => "send",
        },
        unmatched.rank,
    )
}

/// The calls of both sides.
fn sides(situation: &Situation<'_>, group: GroupId, lones: &[&UnmatchedMessage]) -> Vec<RankCall> {
    let row = |unmatched: &&UnmatchedMessage| {
        let process = situation.model.member(group, unmatched.rank)?;
        Some(waiting_call(situation, unmatched.rank, process, &unmatched.joined))
    };
    lones.iter().filter_map(row).collect()
}

fn tag(call: &Call) -> String {
    call.tag.map_or_else(|| "?".into(), |tag| tag.to_string())
}

/// "float32[8] (32 bytes)".
fn data(call: &Call) -> String {
    let size = words::size(call).unwrap_or_else(|| "[?]".into());
    let bytes = call
        .numel
        .zip(call.dtype.size())
        .and_then(|(numel, size)| numel.checked_mul(size))
        .map_or_else(String::new, |bytes| format!(" ({bytes} bytes)"));
    format!("{}{size}{bytes}", call.dtype.name().unwrap_or("?"))
}
