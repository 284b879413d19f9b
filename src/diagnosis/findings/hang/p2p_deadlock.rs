//! DD112 p2p-deadlock: a cycle of waits that includes a send or a receive.

use std::sync::Arc;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, CauseKind, Confidence, Where};

use crate::findings::draft::Draft;
use crate::findings::stalls::cycle;
use crate::findings::view::describe;
use crate::guards;
use crate::input::align::by_key;
use crate::model::history::Meeting;
use crate::model::{Side, UnmatchedMessage};
use crate::situation::Situation;
use crate::source::cause::{self, CauseHypothesis, Detail, Mistake};
use crate::waits::Blocked;
use crate::words::{self, Ranks};

/// Maximum number of groups of senders in a sentence.
const MAX_SENDERS: usize = 4;

/// DD112: cycles of waits with a point-to-point call.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let drafts = cycle::led_to(situation)
        .into_iter()
        .filter(|(_, cycle)| cycle.iter().any(|wait| wait.message.is_some()))
        .filter(|(i, cycle)| cycle::is_believed(situation, *i, cycle))
        .filter_map(|(i, cycle)| draft(situation, i, cycle))
        .chain(on_devices(situation));
    match situation.config.provenance.dumps() {
        Some(dumps) => drafts.map(|draft| cycle::blame_minority(draft, dumps)).collect(),
        None => drafts.collect(),
    }
}

/// A cycle among devices with a message, according to the order of c10d's calls.
fn on_devices(situation: &Situation<'_>) -> Option<Draft> {
    let found = situation.device_cycle.as_ref().filter(|it| it.has_message())?;
    let waits = &found.waits[..];
    let mut draft = cycle::draft(situation, cycle::NOT_OF_THREADS, waits, &catalogue::DD112)?;
    draft.evidence_at = found.evidence_at;
    draft.victims.clone_from(&found.victims);
    draft.root_confidence = Confidence::Supported;
    let rows = waits.iter().map(|wait| {
        let waited = situation.until.since(wait.since).as_millis() as u64;
        describe(wait.rank, CallState::Issued, Some(waited), &wait.call)
    });
    draft.per_rank = rows.collect();
    let (ranks, calls) = (Ranks(&draft.root), cycle::calls(situation, waits));
    // If a call was skipped, or a message is one too many or too few, the order may be right.
    let is_skipped = cycle::not_made(situation, waits).is_some()
        || situation.omissions.iter().any(|it| it.cycle.is_none())
        || has_open_messages(situation, &draft.root);
    if is_skipped {
        draft.summary = format!("The devices of {ranks} wait for each other{calls}");
        if draft.next.is_empty() {
            draft.advise(advice_on_order(waits));
        }
    } else {
        let is_of_messages = waits.iter().all(|wait| wait.call.op.is_point_to_point());
        let (does, detail) = if is_of_messages {
            ("receive before they send", Detail::Exchange)
        } else {
            ("issue a message and a collective in different orders", Detail::Any)
        };
        draft.summary = format!("{ranks} {does}: their devices wait for each other{calls}");
        draft.mistake = None;
        (draft.why, draft.next) = (Vec::new(), Vec::new());
        draft.explain(cause::supported(CauseKind::SwappedCalls, None).with_detail(detail));
    }
    draft.say(cycle::steps(situation, waits));
    draft.say(
        "Every rank has made its calls, which return at once. But a device begins a call only once those before it on \
         the same stream are complete, and a receive is complete only once its message is sent.",
    );
    Some(draft)
}

/// Whether a message of these ranks has no partner.
fn has_open_messages(situation: &Situation<'_>, ranks: &[u32]) -> bool {
    let mut open = situation.model.groups().flat_map(|group| group.traffic.open());
    open.any(|it| ranks.contains(&it.rank))
}

fn draft(situation: &Situation<'_>, index: usize, waits: &[Blocked]) -> Option<Draft> {
    let mut draft = cycle::draft(situation, index, waits, &catalogue::DD112)?;
    draft.summary =
        format!("{} wait for each other{}", Ranks(&draft.root), cycle::calls(situation, waits));
    draft.why.extend(cycle::further_steps(situation, waits));
    let others = partners_of_others(situation, waits);
    let are_crossed = are_crossed(waits, &others);
    if are_crossed {
        draft.say(
            "Each of them waits for a rank whose own call here has another peer: these calls do not match in any \
             order.",
        );
    } else if waits.iter().any(|wait| is(wait, Side::Receive)) {
        draft.say(
            "A receive cannot return before its message is sent, and none of these ranks can send it \
             before its own wait ends.",
        );
    }
    if waits.iter().any(|wait| is(wait, Side::Send)) {
        draft.say(if cycle::is_rendezvous(situation, waits) {
            "On Gloo a send returns only once its receive is posted, however small the message is."
        } else {
            "A send returns once its message has left, and a large message leaves only once its receive is \
             posted. It has not returned yet."
        });
    }
    draft.why.extend(cycle::further_on(situation, waits));
    draft.why.extend(cycle::other_victims(&draft));
    let senders: Vec<(String, Mistake)> =
        waits.iter().filter_map(|wait| senders(situation, wait)).collect();
    let have_sent_differently = !senders.is_empty();
    let fewer = waits.iter().find_map(|wait| test_around_a_send(situation, wait));
    for (counts, mistake) in senders {
        draft.say(counts);
        draft.mistake = Some(mistake);
    }
    draft.why.extend(numbers_of_messages(waits));
    let partnered = waits.iter().find(|wait| has_partner(situation, wait));
    if let Some(partnered) = partnered {
        draft.say(format!(
            "Rank {} has made the call that {} needs, in a group (ncclGroupStart) with further calls \
             that need rank {}. NCCL connects two ranks for all calls of a group at once: both have to \
             group the same calls.",
            partnered.call.peer.unwrap_or_default(),
            words::call(&partnered.call),
            partnered.rank,
        ));
    }
    let misdirected = misdirected(&others);
    if let Some(Misdirected { wait, other, .. }) = misdirected {
        draft.say(format!(
            "Rank {} waits in {}, which would match the call of rank {} if that call had rank {0} as its peer.",
            other.rank,
            words::call_at(&other.joined.call),
            wait.rank,
        ));
    }
    if let Some(left) = left_out(situation, waits) {
        left.blame(situation, &mut draft);
        return Some(draft);
    }
    if !draft.next.is_empty() {
        return Some(draft);
    }
    if let Some((one_more, mistake)) = one_more(situation, waits) {
        draft.say(one_more);
        draft.mistake = Some(mistake);
        draft.advise(
            "Compare what the two loops run over: both ranks must make the same number of calls before they continue.",
        );
        return Some(draft);
    }
    let of_exchange = || {
        let is_of_order = !are_crossed && partnered.is_none();
        is_of_order.then(|| first_exchange(situation, waits))?
    };
    let hypothesis = fewer
        .or_else(|| left_loop(situation, waits))
        .or_else(|| lengths(situation, waits))
        .or_else(of_exchange);
    if misdirected.is_none()
        && let Some(hypothesis) = hypothesis
    {
        draft.explain(hypothesis);
        return Some(draft);
    }
    draft.advise(match misdirected {
        Some(Misdirected { wait, other, .. }) => format!(
            "Check the peer of rank {}'s call{}: rank {} waits for rank {0}, and rank {} does not.",
            wait.rank,
            words::at(wait.call.place.as_deref()),
            other.rank,
            wait.call.peer.unwrap_or_default(),
        ),
        None if are_crossed => {
            let mut lines: Vec<String> =
                waits.iter().map(|it| words::at(it.call.place.as_deref())).collect();
            lines.dedup();
            format!(
                "Check the peers of these calls{}: each send needs a matching receive on its peer, and each \
                 receive a matching send.",
                if let [line] = &lines[..] { line } else { "" },
            )
        }
        None if partnered.is_some() => "Put the same sends and receives between ncclGroupStart and ncclGroupEnd on \
             both sides."
            .into(),
        None if have_sent_differently => "Send as many messages from every rank as the receiver expects, or tell the \
             receiver the number first: these ranks have sent different numbers of messages."
            .into(),
        None => advice_on_order(waits).into(),
    });
    Some(draft)
}

/// A rank that continued to a collective while several ranks wait for messages of it.
struct LeftOut<'a> {
    /// Its wait in the collective.
    collective: &'a Blocked,
    /// The ranks that wait for it.
    waiting: Vec<u32>,
    /// Where they wait.
    place: &'a Arc<Where>,
}

/// The rank of the cycle that left out messages: it alone is in a collective, and several ranks are at one line in
/// messages with it, as they were before.
fn left_out<'a>(situation: &Situation<'_>, waits: &'a [Blocked]) -> Option<LeftOut<'a>> {
    let (collectives, messages): (Vec<&Blocked>, Vec<&Blocked>) =
        waits.iter().partition(|wait| wait.message.is_none());
    let [collective] = collectives[..] else { return None };
    let place = messages.first()?.call.place.as_ref()?;
    let mut waiting = Vec::new();
    for group in situation.model.groups() {
        let needs_it = |unmatched: &UnmatchedMessage| {
            let is_here = unmatched.joined.call.place.as_ref() == Some(place);
            unmatched.is_awaited()
                && unmatched.nth > 1
                && unmatched.peer == Some(collective.rank)
                && is_here
        };
        waiting.extend(group.traffic.open().filter(needs_it).map(|unmatched| unmatched.rank));
    }
    waiting.sort_unstable();
    waiting.dedup();
    let is_alone =
        situation.join(collective.group, collective.seq).is_some_and(|it| it.calls.len() == 1);
    let is_left = is_alone && waiting.len() > 1 && !waiting.contains(&collective.rank);
    is_left.then_some(LeftOut { collective, waiting, place })
}

impl LeftOut<'_> {
    fn blame(&self, situation: &Situation<'_>, draft: &mut Draft) {
        let (rank, waiting) = (self.collective.rank, Ranks(&self.waiting));
        let suspects = std::mem::take(&mut draft.root);
        draft.blame([rank], Confidence::Supported);
        draft.add_victims(suspects.into_iter().chain(self.waiting.iter().copied()));
        draft.summary = format!(
            "rank {rank} has continued to {}; {waiting} wait for messages with it{}",
            words::call_at(&self.collective.call),
            words::at(Some(self.place)),
        );
        draft.say(format!(
            "Earlier messages of {waiting} with rank {rank} at this line were exchanged. Only rank {rank} has left \
             the line, so it skipped a call there.",
        ));
        if let Some(hypothesis) =
            cause::of_test_on_rank(situation, self.place, &self.waiting, &[rank])
        {
            draft.explain(hypothesis);
            return;
        }
        draft.advise(format!(
            "Find out why rank {rank} ends this exchange early: each rank has to make all sends and receives that \
             its peers expect, even if it does not need the data.",
        ));
    }
}

/// Whether every call would meet another one of the cycle, if their peers were others. Of calls that block, the
/// right partners may come later.
fn are_crossed(waits: &[Blocked], others: &[Misdirected<'_>]) -> bool {
    let is_here = |rank: u32| waits.iter().any(|wait| wait.rank == rank);
    waits.iter().all(|wait| {
        let mut partners = others.iter().filter(|it| it.wait.rank == wait.rank);
        wait.call.is_async && partners.any(|it| is_here(it.other.rank))
    })
}

/// Minimum number of calls that two ranks have made in loops before one of them makes one more.
const MIN_CALLS_OF_LOOPS: usize = 3;

/// A sentence, and a headline, on loops of collectives in which one rank makes one more, while the other one has gone on to
/// the first message between them.
fn one_more(situation: &Situation<'_>, waits: &[Blocked]) -> Option<(String, Mistake)> {
    let collective = waits.iter().find(|wait| wait.message.is_none())?;
    let other =
        waits.iter().find(|it| it.message.is_some() && collective.needs.contains(&it.rank))?;
    if is_later(other) {
        return None;
    }
    let group = situation.model.group(collective.group);
    let place = collective.call.place.as_ref()?;
    let mut calls = group.history.recent().skip_while(|it| it.seq >= collective.seq);
    let lines = |it: &Meeting| {
        Some([it.place_of(collective.rank)?, it.place_of(other.rank)?].map(Arc::clone))
    };
    let latest = calls.next().filter(|it| it.seq + 1 == collective.seq)?;
    let [here, there] = lines(latest)?;
    let is_there = |it: &&Meeting| lines(it).is_some_and(|[a, b]| a == here && b == there);
    let times = 1 + calls.take_while(is_there).count();
    if !here.is_same_line(place) || times < MIN_CALLS_OF_LOOPS {
        return None;
    }
    let over = |rank: u32, line: &Arc<Where>| {
        let process = situation.model.member(collective.group, rank)?;
        let over = guards::loop_around(process, line)?;
        Some(format!("`{}` (line {})", over.test, over.line))
    };
    let (first, second) = (other.rank, collective.rank);
    let (over_first, over_second) = (over(first, &there)?, over(second, &here)?);
    let because = format!(
        "The {times} collectives before come from two loops: rank {first} made them at {}, in a loop over {over_first}, and \
         has left it; rank {second} makes another one at {}, in a loop over {over_second}.",
        words::source_line(&there),
        words::source_line(&here),
    );
    let clause = format!(
        "rank {first} left its loop over {over_first} after {times} calls, rank {second} makes one more in its loop over \
         {over_second}",
    );
    Some((because, Mistake::new(&[first, second], clause)))
}

/// The test by which a rank that waits in a collective has left the loop in which another one waits in a message with it.
fn left_loop(situation: &Situation<'_>, waits: &[Blocked]) -> Option<CauseHypothesis> {
    let (collectives, messages): (Vec<&Blocked>, Vec<&Blocked>) =
        waits.iter().partition(|wait| wait.message.is_none());
    let ([collective], [message]) = (&collectives[..], &messages[..]) else { return None };
    have_exchanged(waits).then(|| cause::of_loop_left(situation, collective.rank, message.rank))?
}

/// The test that decides how often a loop runs around a message of a cycle whose ranks have exchanged others before: the
/// peer has left that loop, or has a loop of its own, and each rank sends and receives as many as it counts.
fn lengths(situation: &Situation<'_>, waits: &[Blocked]) -> Option<CauseHypothesis> {
    let mut messages = waits.iter().filter(|wait| is_later(wait) && !wait.needs_any());
    messages.find_map(|wait| {
        let standing = |wait: &Blocked| {
            let process = situation.model.member(wait.group, wait.rank)?;
            Some((process, wait.call.place.clone()?))
        };
        let peer = wait.message.as_ref()?.peer?;
        let (process, place) = standing(wait)?;
        let (other, there) = standing(waits.iter().find(|it| it.rank == peer)?)?;
        let has_left = guards::is_outside_of_loop((process, &place), (other, &there));
        has_left.then(|| cause::of_length(situation, process, &place, &[wait.rank, peer]))?
    })
}

/// All ranks of the cycle are at one line of an exchange, each in its first message at all, and all send there or all
/// receive.
fn first_exchange(situation: &Situation<'_>, waits: &[Blocked]) -> Option<CauseHypothesis> {
    let line = cycle::common_line(waits).filter(|it| it.via.is_empty())?;
    let side = waits.first()?.message.as_ref()?.side;
    let is_first = |wait: &Blocked| {
        let message = wait.message.as_ref().filter(|it| it.side == side && it.peer.is_some());
        message.is_some() && messages_of(situation, wait.rank) == 1
    };
    let standing = waits
        .iter()
        .map(|wait| {
            let process = situation.model.member(wait.group, wait.rank)?;
            Some((process, wait.call.place.as_ref()?))
        })
        .collect::<Option<Vec<_>>>()?;
    let is_certain = cycle::are_in_their_calls(waits) && waits.iter().all(is_first);
    if !is_certain || !guards::have_one_way(&standing) {
        return None;
    }
    let mut ranks: Vec<u32> = waits.iter().map(|wait| wait.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let (does, not) = match side {
        Side::Send => ("send before they receive", "posted a receive"),
        Side::Receive => ("receive before they send", "sent a message"),
    };
    let every = if ranks.len() == 2 { "both" } else { "all" };
    let because = format!(
        "All of these ranks wait at the same line, in the first message of each: none has {not} yet."
    );
    let clause = format!("{} {every} {does}{}", Ranks(&ranks), words::at(Some(line)));
    let hypothesis = cause::supported(CauseKind::SwappedCalls, Some(because));
    Some(hypothesis.with_mistake(Mistake::new(&[], clause)).with_detail(Detail::Exchange))
}

/// Number of messages that a rank has sent and received in all groups.
fn messages_of(situation: &Situation<'_>, rank: u32) -> u64 {
    situation.model.groups().map(|group| group.traffic.calls_of(rank)).sum()
}

/// The test on the rank around a line because of which some ranks have sent fewer messages to a rank that takes them from
/// any: all of them have been there.
fn test_around_a_send(situation: &Situation<'_>, wait: &Blocked) -> Option<CauseHypothesis> {
    let (fewest, others) = by_messages(situation, wait)?;
    let (few, more) = (*fewest.first()?, *others.first()?);
    let [few, more] = [few, more].map(|it| situation.model.member(wait.group, it));
    let (few, more) = (few?, more?);
    let mut places = more.places.iter().filter(|it| few.places.calls(it) < more.places.calls(it));
    places.find_map(|place| cause::of_test_on_rank(situation, place, &others, &fewest))
}

/// The ranks from which a receive takes a message that have sent the fewest, and the others, if they have sent different
/// numbers.
fn by_messages(situation: &Situation<'_>, wait: &Blocked) -> Option<(Vec<u32>, Vec<u32>)> {
    let traffic = &situation.model.group(wait.group).traffic;
    let candidates = wait.needs.iter().copied().filter(|_| wait.needs_any());
    let sent: Vec<(u32, u64)> = candidates.map(|it| (it, traffic.sent(it, wait.rank))).collect();
    let least = sent.iter().map(|it| it.1).min()?;
    let (fewest, others): (Vec<_>, Vec<_>) = sent.into_iter().partition(|it| it.1 == least);
    let [fewest, others] = [fewest, others].map(|them| them.into_iter().map(|it| it.0).collect());
    let others: Vec<u32> = others;
    (!others.is_empty()).then_some((fewest, others))
}

/// Advice on the order of the calls.
fn advice_on_order(waits: &[Blocked]) -> &'static str {
    let has_collective = waits.iter().any(|wait| wait.message.is_none());
    if has_collective && have_exchanged(waits) {
        "Compare how many messages one side sends with how many the other receives before its collective (micro-batches, \
         chunks), and where that number comes from: earlier messages were exchanged, and then only one side made another one. \
         If the numbers are right, exchange the last message on both sides before the collective, or on both sides after it."
    } else if has_collective {
        "Exchange the message on both sides before the collective, or on both sides after it, and make the same number of \
         collectives on both before the message: a rank that waits in one cannot make the other. If one side has skipped \
         its call, add it."
    } else if waits.iter().all(|wait| is(wait, Side::Receive)) && have_equal_numbers(waits) {
        "Check what decides which of these ranks sends first: all of them receive now, after the same number of messages in \
         each direction. Let one of them send first, or issue all sends and receives and then wait (batch_isend_irecv). If \
         one of them skipped a send before, add it."
    } else if waits.iter().all(|wait| is(wait, Side::Receive)) && waits.iter().any(is_later) {
        "Compare how many messages each of these ranks sends with how many its peer receives, and where that \
         number comes from: a count that each rank computes, or one that it received. If one of these ranks skipped a \
         send, add it."
    } else if have_exchanged(waits) {
        "Compare how many messages each of these ranks sends with how many its peer receives (micro-batches, chunks), and \
         where that number comes from: earlier messages were exchanged, and now one side makes more than the other expects. \
         If the numbers are right, check what decides which of these ranks sends first, or issue all sends and receives \
         first and then wait (batch_isend_irecv)."
    } else {
        "Check what decides which of these ranks sends first and which receives first: swap the order on one of \
         them, or issue all sends and receives first and then wait (batch_isend_irecv)."
    }
}

/// Whether the ranks of every message of a cycle have exchanged others before.
fn have_exchanged(waits: &[Blocked]) -> bool {
    let mut messages = waits.iter().filter(|wait| wait.message.is_some());
    messages.all(|wait| is_later(wait) && !wait.needs_any())
}

/// Whether these messages are later ones with the same number, at one line.
fn have_equal_numbers(waits: &[Blocked]) -> bool {
    let number = |wait: &Blocked| wait.message.as_ref().map(|it| it.nth);
    let first = waits.first().and_then(number);
    first.is_some_and(|it| it > 1)
        && waits.iter().all(|wait| number(wait) == first && !wait.needs_any())
        && cycle::common_line(waits).is_some()
}

/// How many messages the ranks of a cycle have exchanged, if its waits are receives of which one is not the first, or if no
/// message is the first.
fn numbers_of_messages(waits: &[Blocked]) -> Option<String> {
    let is_of_receives = waits.iter().all(|wait| is(wait, Side::Receive) && !wait.needs_any());
    let counts_tell = is_of_receives && waits.iter().any(is_later) || have_exchanged(waits);
    if !counts_tell {
        return None;
    }
    let messages = waits.iter().filter_map(|wait| Some((wait, wait.message.as_ref()?)));
    let clauses = messages.map(|(wait, unmatched)| {
        let count = unmatched.nth.saturating_sub(1);
        let plural = if count == 1 { "" } else { "s" };
        let (peer, rank) = (unmatched.peer?, wait.rank);
        Some(match unmatched.side {
            Side::Receive => format!("rank {peer} has sent {count} message{plural} to rank {rank}"),
            Side::Send => {
                format!("rank {peer} has received {count} message{plural} from rank {rank}")
            }
        })
    });
    let counts = clauses.collect::<Option<Vec<String>>>()?;
    let waiting: Vec<u32> =
        waits.iter().filter(|it| it.message.is_some()).map(|it| it.rank).collect();
    let wait = match &waiting[..] {
        [rank] => format!("rank {rank} waits for one more"),
        _ => "each waits for one more".into(),
    };
    Some(format!("{}: {wait}.", words::begin(words::joined(counts, ", "))))
}

/// A sentence, and a headline, on the ranks from which a receive takes a message, if they have sent different numbers.
fn senders(situation: &Situation<'_>, wait: &Blocked) -> Option<(String, Mistake)> {
    let traffic = &situation.model.group(wait.group).traffic;
    let candidates = wait.needs.iter().filter(|_| wait.needs_any());
    let sent = candidates.map(|&rank| (rank, traffic.sent(rank, wait.rank)));
    let mut classes = by_key(sent, |count| *count);
    // The fewest first: such a rank may have left out a message.
    classes.sort_by_key(|(_, ranks)| ranks.len());
    let (_, fewest) = classes.first().filter(|_| classes.len() > 1)?;
    let times = |(count, ranks): &(u64, Vec<u32>)| {
        format!("{} {count}", Ranks(ranks).with("has sent", "have sent"))
    };
    let phrases = words::joined(classes.iter().take(MAX_SENDERS).map(times), ", ");
    let clause = format!("rank {} receives from any rank: {phrases}", wait.rank);
    let because = format!("Rank {} receives from any of them: {phrases}.", wait.rank);
    Some((because, Mistake::new(fewest, clause)))
}

/// A message of a cycle that would have a partner if it had another peer.
struct Misdirected<'w> {
    wait: &'w Blocked,
    /// The call of a further rank that would be its partner.
    other: UnmatchedMessage,
    /// The two ranks of the message have exchanged none before, and those of the other call have.
    is_first: bool,
}

/// The messages of the cycle that would have a partner with another peer. A message between neighbors does not
/// count: if both pairs of ranks have exchanged messages, the further rank may just wait for this one.
fn partners_of_others<'w>(situation: &Situation<'_>, waits: &'w [Blocked]) -> Vec<Misdirected<'w>> {
    let of = |wait: &'w Blocked| {
        let traffic = &situation.model.group(wait.group).traffic;
        let own = wait.message.as_ref().filter(|unmatched| unmatched.peer.is_some());
        own.into_iter().flat_map(move |own| {
            let is_partner = |other: &UnmatchedMessage| {
                other.is_awaited()
                    && other.side != own.side
                    && other.peer == Some(own.rank)
                    && own.peer != Some(other.rank)
                    && traffic.fits(&own.joined.call, &other.joined.call)
            };
            let are_neighbors = |other: &UnmatchedMessage| own.nth > 1 && other.nth > 1;
            let partners = traffic.open().filter(is_partner).filter(move |it| !are_neighbors(it));
            partners.map(move |other| {
                let is_first = own.nth == 1 && other.nth > 1;
                Misdirected { wait, other, is_first }
            })
        })
    };
    waits.iter().flat_map(of).collect()
}

/// The only one of these messages, or the only first one; `None` if it may be several.
fn misdirected<'a, 'w>(found: &'a [Misdirected<'w>]) -> Option<&'a Misdirected<'w>> {
    let is_first = found.iter().any(|it| it.is_first);
    let mut best = found.iter().filter(|it| it.is_first == is_first);
    let only = best.next()?;
    best.next().is_none().then_some(only)
}

/// Whether the partner of the message that it waits for has been issued.
fn has_partner(situation: &Situation<'_>, wait: &Blocked) -> bool {
    let mut alone = situation.model.group(wait.group).traffic.open();
    wait.message.as_ref().is_some_and(|unmatched| unmatched.peer.is_some())
        && !alone.any(|unmatched| {
            unmatched.rank == wait.rank && unmatched.joined.call.id == wait.call.id
        })
}

/// Whether the two ranks have exchanged messages before in this direction.
fn is_later(wait: &Blocked) -> bool {
    wait.message.as_ref().is_some_and(|unmatched| unmatched.nth > 1)
}

fn is(wait: &Blocked, side: Side) -> bool {
    wait.message.as_ref().is_some_and(|unmatched| unmatched.side == side)
}
