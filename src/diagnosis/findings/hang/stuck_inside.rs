//! DD116 stuck-inside: a collective that all members have entered does not complete.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Confidence, RankCall};
use ddp_doctor_proto::vocabulary::Direction;

use crate::findings::devices::links;
use crate::findings::devices::states::States;
use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::mismatch::divergence::OTHER_LINES;
use crate::findings::stalls::dumped;
use crate::findings::view::rank_calls;
use crate::input::backends::{Backend, Completion};
use crate::input::event::{Call, WaitsFor};
use crate::input::provenance::DumpedCollective;
use crate::model::{Ending, Join, JoinedCall, Process};
use crate::situation::{
    DeviceCycle, DumpedProgress, Inside, OriginKind, Situation, Stall, StallOrigin,
};
use crate::source::cause;
use crate::words::{self, Ranks, number};

/// DD116: collectives that do not complete although all members have entered.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let overdue = |inside: &&Inside| {
        let members = situation.model.group(inside.group).members.keys();
        inside.overdue_at <= situation.known_of(inside.group, members.copied())
    };
    // A device that waits in a cycle has not begun the collective.
    let in_cycle: Vec<u32> = situation.device_cycle.iter().flat_map(DeviceCycle::ranks).collect();
    let is_begun = |inside: &&Inside| !inside.waiting.iter().any(|rank| in_cycle.contains(rank));
    let inside = situation.inside.iter().filter(overdue).filter(is_begun);
    inside.filter_map(|inside| draft(situation, inside)).collect()
}

fn draft(situation: &Situation<'_>, inside: &Inside) -> Option<Draft> {
    let group = situation.model.group(inside.group);
    let members = group
        .members
        .keys()
        .map(|&rank| situation.model.member(inside.group, rank))
        .collect::<Option<Vec<&Process>>>()?;
    if !members.iter().all(|process| moves(situation, inside, process)) {
        return None;
    }
    let join = group.met_at(inside.seq)?;
    let call = &join.calls.get(inside.waiting.first()?)?.call;

    let mut draft =
        Draft::new(&catalogue::DD116, KeyPlace::Join(inside.group, inside.seq), inside.overdue_at);
    draft.place = Some((inside.group, inside.seq));
    draft.op = Some(call.op);
    draft.per_rank = rank_calls(situation, inside.group, inside.seq);
    for call in draft.per_rank.iter_mut().filter(|it| inside.waiting.contains(&it.rank)) {
        call.state = CallState::Waiting;
        // The host has returned from the call, and its device has not.
        if inside.dumped.is_some() {
            call.waited_ms = Some(situation.until.since(inside.since).as_millis() as u64);
        }
    }
    let complete = inside.dumped.iter().flat_map(|it| &it.complete);
    for rank in complete {
        let row = draft.per_rank.iter_mut().find(|it| it.rank == *rank);
        row.into_iter().for_each(|it| it.state = CallState::Completed);
    }
    draft.blocked_at = Some(inside.since);
    let progress = Progress::new(situation, inside, join, &draft.per_rank);
    // If it needs all ranks, those on which it is not complete although it is on others are the root cause; if it has a
    // root, ranks may be done before. If it is complete on none, no rank is.
    let needs_all = call.op.direction() == Direction::Symmetric && !progress.back.is_empty();
    if needs_all || progress.back.len() > inside.waiting.len() {
        draft.root.clone_from(&inside.waiting);
    }
    if needs_all {
        draft.root_confidence = Confidence::Supported;
    }
    // Others wait in stalls that originate from it.
    let stalls = situation
        .stalls_from(&StallOrigin::without_ranks(OriginKind::Inside(inside.group, inside.seq)));
    draft.set_victims(inside.waiting.iter().copied().chain(Stall::victims(&stalls)));
    let has_lost = members.iter().any(|process| process.lost > 0);
    let unnamed = unnamed(join);
    if !progress.excludes_work || !progress.busy.is_empty() || has_lost || !unnamed.is_empty() {
        draft.confidence = Confidence::Suspected;
        draft.root_confidence = Confidence::Suspected;
    }
    draft.cause = Some(cause::most_likely(situation, &[], &draft.victims, inside.since));

    draft.summary =
        summary(inside, call, &words::of_group(&group.info), members.len(), &progress.back);
    draft.why = why(situation, inside, join, &progress);
    if let Some(first) = draft.why.first_mut().filter(|_| !unnamed.is_empty()) {
        let ranks = Ranks(&unnamed);
        *first = format!(
            "No rank is missing. The stacks do not name the operation of {ranks}, so it is unknown whether the calls \
             agree."
        );
        draft.advise(
            "Compare the lines of the ranks: if these calls do not belong together, a rank skipped a call or made \
             an extra one.",
        );
    }
    advise(&mut draft, &members, &group.info.backend);
    if let Some(shown) = &inside.dumped
        && !shown.started.is_empty()
        && 2 * shown.not_started.len() <= members.len()
    {
        dumped::name_devices(&mut draft, &shown.not_started);
    }
    if Backend::named_in(&group.info.backend).any(Backend::is_on_device) {
        let states = States::of_members(situation, inside.group, inside.since);
        if let Some(awaited) = states.awaited().filter(|_| draft.root.is_empty()) {
            draft.blame_instead(awaited);
        }
        draft.why.extend(states.why());
        draft.next.extend(states.advice());
    }
    draft.why.extend(links::exclusion(situation, inside.group, inside.since));
    if progress.lacks_events {
        draft.advise("Set DDP_DOCTOR_NCCL_COMPLETION=1 to record which calls complete.");
    }
    if inside.dumped.as_ref().is_some_and(|it| !it.incomplete.is_empty()) && !progress.excludes_work
    {
        draft.advise("Set TORCH_NCCL_ENABLE_TIMING=1 to record when devices begin calls.");
    }
    if let Some(dumps) = situation.config.provenance.dumps() {
        let known = dumps.collective(&group.info.key, inside.seq);
        // Sizes come before everything below the calls.
        if known.is_some_and(|it| it.totals.is_some()) {
            return None;
        }
        say_what_dumps_show(&mut draft, call, known);
    }
    Some(draft)
}

/// Adds to a draft why the collective does not complete, as far as dumps show it.
fn say_what_dumps_show(draft: &mut Draft, call: &Call, known: Option<&DumpedCollective>) {
    if let Some(known) = known.filter(|it| !it.at_unfamiliar_line.is_empty()) {
        let odd = &known.at_unfamiliar_line;
        draft.why = vec![
            "All members have made the call. Dumps contain neither its root nor its reduce operator."
                .into(),
            format!(
                "{} it at a different line from the others, and these lines were not paired in any earlier call of the \
                 group: a call may have been skipped or repeated.",
                words::begin(Ranks(odd).with("makes", "make")),
            ),
        ];
        draft.next = vec![OTHER_LINES.into()];
        draft.root_confidence = Confidence::Suspected;
        draft.blame_instead(odd.clone());
        return;
    }
    if call.op.is_rooted() {
        draft.say(
            "Dumps do not contain the root of a call: ranks that pass different ones wait as well.",
        );
    }
    if let Some(known) = known {
        dumped::name_devices(draft, &known.not_started);
    }
}

/// Ranks whose operation is unknown while that of another rank is known: their calls may not agree.
fn unnamed(join: &Join) -> Vec<u32> {
    let is_unnamed = |it: &JoinedCall| it.call.op == Op::Unspecified;
    let unnamed: Vec<u32> =
        join.by_rank().filter(|(_, it)| is_unnamed(it)).map(|(rank, _)| rank).collect();
    if join.by_rank().all(|(_, it)| is_unnamed(it)) { Vec::new() } else { unnamed }
}

/// Whether the process can still complete the call, or ended only after a wait had timed out. Ranks
/// that have ended or are stopped are the cause; ranks that stopped reporting may be.
fn moves(situation: &Situation<'_>, inside: &Inside, process: &Process) -> bool {
    let ended = process.uncaught().map(|exception| exception.at).or(process.end.map(|end| end.at));
    let later = inside.timed_out.zip(ended).is_some_and(|(out, end)| out <= end);
    (situation.model.ending_of(process) == Ending::None || later)
        && !process.is_stopped()
        && situation.model.silent_since(process).is_none()
}

/// State of the members' calls.
struct Progress {
    /// Ranks that do not wait and whose call is over.
    back: Vec<u32>,
    /// Waiting ranks whose stalled transfers all wait for their own device.
    busy: Vec<u32>,
    /// A long computation is excluded: no device is involved, or completion events are available.
    excludes_work: bool,
    /// Every rank is back or waits, but completion events are not available.
    lacks_events: bool,
}

impl Progress {
    fn new(situation: &Situation<'_>, inside: &Inside, join: &Join, per_rank: &[RankCall]) -> Self {
        // A call on a stream returns at once on every rank.
        let is_back = |state: CallState| match state {
            CallState::Completed => true,
            CallState::Returned => !inside.on_device,
            _ => false,
        };
        let has_averaged = |rank: u32| {
            let call = join.calls.get(&rank);
            call.is_some_and(|it| it.averaged.is_some())
        };
        let back: Vec<u32> = per_rank
            .iter()
            .filter(|it| is_back(it.state) || has_averaged(it.rank))
            .map(|it| it.rank)
            .filter(|rank| !inside.waiting.contains(rank))
            .collect();
        let members = situation.model.group(inside.group).members.len();
        let is_everybody = inside.waiting.len() + back.len() == members;
        let has_events = |rank: &u32| {
            let call = join.calls.get(rank).map(|it| it.call.id);
            let process = situation.model.member(inside.group, *rank);
            call.zip(process).is_some_and(|(call, it)| {
                it.followed.contains(&call) || it.standing_of(call).next().is_some()
            })
        };
        let needs_all = join.calls.values().all(JoinedCall::needs_all);
        let excludes_work = match &inside.dumped {
            Some(dumped) => dumped.have_begun(&inside.waiting, needs_all),
            None => {
                !inside.on_device
                    || inside.is_destroyed
                    || is_everybody && inside.waiting.iter().all(has_events)
            }
        };
        Self {
            back,
            busy: busy(situation, inside, join),
            excludes_work,
            lacks_events: !excludes_work && is_everybody && inside.dumped.is_none(),
        }
    }
}

/// Ranks whose stalled transfers all wait for their own device.
fn busy(situation: &Situation<'_>, inside: &Inside, join: &Join) -> Vec<u32> {
    let is_busy = |rank: &u32| {
        let process = situation.model.member(inside.group, *rank)?;
        let call = join.calls.get(rank)?.call.id;
        let mut standing = process.standing_of(call).peekable();
        standing.peek()?;
        standing.all(|(_, it, _)| it.waits_for == WaitsFor::Device).then_some(*rank)
    };
    inside.waiting.iter().filter_map(is_busy).collect()
}

fn summary(inside: &Inside, call: &Call, of_group: &str, members: usize, back: &[u32]) -> String {
    let name = words::call(call);
    let waiting = &inside.waiting;
    let (all, none) =
        if members == 2 { ("both".into(), "neither") } else { (format!("all {members}"), "none") };
    match (inside.on_device, back) {
        (false, []) => {
            format!("{all} ranks have entered {name}{of_group}, and {none} has returned from it")
        }
        (false, back) => format!(
            "{all} ranks have entered {name}{of_group}; {} returned from it, {} not",
            Ranks(back).with("has", "have"),
            Ranks(waiting).with("has", "have"),
        ),
        (true, []) if waiting.len() < members => format!(
            "{all} ranks have enqueued {name}{of_group} on their streams, and it does not complete on {}",
            Ranks(waiting),
        ),
        (true, []) => format!(
            "{all} ranks have enqueued {name}{of_group} on their streams, and it has completed on {none}"
        ),
        (true, back) => format!(
            "{all} ranks have enqueued {name}{of_group} on their streams; it is complete on {}, \
             and not on {}",
            Ranks(back),
            Ranks(waiting),
        ),
    }
}

fn why(
    situation: &Situation<'_>,
    inside: &Inside,
    join: &Join,
    progress: &Progress,
) -> Vec<String> {
    let Progress { back, busy, .. } = progress;
    let fault = if inside.on_device && inside.dumped.is_none() {
        "in the network, a device, or a kernel before the call on its stream"
    } else {
        "in the network, a device or its driver"
    };
    let mut why =
        vec![format!("No rank is missing and the calls agree: the fault is below them, {fault}.")];
    let in_backward = |it: &u32| join.calls.get(it).is_some_and(|joined| joined.in_backward);
    let averaging: Vec<u32> = inside.waiting.iter().copied().filter(in_backward).collect();
    if !averaging.is_empty() {
        why.push(format!(
            "{} in the backward pass: DDP waits for this call, the last one that averages gradients there.",
            words::begin(Ranks(&averaging).with("is", "are")),
        ));
    }
    let needs_all = join.calls.values().all(JoinedCall::needs_all);
    let dumped = inside.dumped.iter();
    why.extend(dumped.flat_map(|it| shown_by_dumps(it, progress, needs_all)));
    why.extend(standing(situation, inside, join));
    if !busy.is_empty() {
        why.push(format!(
            "All stalled transfers of {} are waiting for {} local GPU, which may still be executing \
             earlier work on the stream of the call.",
            Ranks(busy),
            number(busy, "its", "their"),
        ));
    }
    if progress.lacks_events {
        why.push(
            "Completion events are not available. Since this call, the last one of each rank, all \
             ranks have been inside the driver, waiting for their devices."
                .into(),
        );
    }
    if !back.is_empty() {
        why.push(format!(
            "{} got what {} needed; check the connection between {} and the others.",
            words::begin(Ranks(back)),
            number(back, "it", "they"),
            Ranks(&inside.waiting),
        ));
    }
    if inside.is_destroyed {
        why.push(format!(
            "It is the last call of every rank before destroy_process_group, which waits for it and has not \
             returned on any rank since {}.",
            words::clock(inside.since)
        ));
    }
    if inside.timed_out.is_some() {
        why.push("A wait for it has timed out: it exceeded the timeout of the group.".into());
    }
    why
}

/// Sentences on what dumps show of the collective, and on what that excludes.
fn shown_by_dumps(dumped: &DumpedProgress, progress: &Progress, needs_all: bool) -> Vec<String> {
    let at = words::clock(dumped.at);
    let ranks = |ranks: &[u32]| words::begin(Ranks(ranks));
    let mut why = Vec::new();
    if needs_all && !dumped.complete.is_empty() {
        why.push(format!(
            "PyTorch's Flight Recorder (queried at {at}) shows the call as complete on {}, which received data from every \
             rank: all devices have started it, so no earlier kernel is the cause.",
            Ranks(&dumped.complete),
        ));
    }
    if !dumped.started.is_empty() {
        why.push(format!(
            "{}: PyTorch's Flight Recorder (queried at {at}) shows the kernel of the call as started but not finished. It \
             waits for its peers, and no earlier kernel on the stream is the cause.",
            ranks(&dumped.started),
        ));
    }
    if !dumped.not_started.is_empty() {
        why.push(format!(
            "{}: PyTorch's Flight Recorder (queried at {at}) shows the call as enqueued but not started, and all earlier \
             collectives as complete. An earlier kernel on the stream has not finished.",
            ranks(&dumped.not_started),
        ));
    }
    if !dumped.incomplete.is_empty() && !progress.excludes_work {
        why.push(format!(
            "{}: PyTorch's Flight Recorder (queried at {at}) shows the call as incomplete, and all earlier collectives as \
             complete. It does not record whether the kernel of the call has started, so an earlier kernel on the \
             stream may be the cause.",
            ranks(&dumped.incomplete),
        ));
    }
    why
}

/// Sentences on the stalled transfers of the collective.
fn standing(situation: &Situation<'_>, inside: &Inside, join: &Join) -> Vec<String> {
    /// Maximum number of transfers that are listed.
    const MAX_SHOWN: usize = 4;
    let group = situation.model.group(inside.group);
    let mut standing: Vec<_> = join
        .calls
        .iter()
        .filter_map(|(&rank, joined)| {
            let process = situation.model.member(inside.group, rank)?;
            let of_call = process.standing_of(joined.call.id);
            Some(of_call.map(move |(transfer, it, at)| (rank, transfer, it, at)))
        })
        .flatten()
        .collect();
    standing.sort_by_key(|&(rank, transfer, it, _)| (it.waits_for, rank, transfer));
    let more = standing.len().saturating_sub(MAX_SHOWN);
    let mut lines: Vec<String> = standing
        .iter()
        .take(MAX_SHOWN)
        .map(|&(rank, transfer, it, at)| {
            let peer = group
                .info
                .key
                .members
                .get(transfer.peer as usize)
                .map_or_else(|| "?".to_owned(), u32::to_string);
            let way = if transfer.is_send { "send to" } else { "receive from" };
            format!(
                "Rank {rank}'s {way} rank {peer} on channel {} had not moved for {} when this was \
                 reported, after {} of {} steps: {}.",
                transfer.channel,
                words::seconds(inside.overdue_at.since(at)),
                it.done,
                it.steps,
                waited_for(it.waits_for, transfer.is_send),
            )
        })
        .collect();
    if more > 0 {
        lines.push(format!("{more} more had not moved either."));
    }
    lines
}

const fn waited_for(what: WaitsFor, is_send: bool) -> &'static str {
    match (what, is_send) {
        (WaitsFor::Network, true) => "the next one is posted, but not acknowledged by the network",
        (WaitsFor::Network, false) => "no data arrives from the network",
        (WaitsFor::Peer, _) => "the peer is not ready for it",
        (WaitsFor::Device, true) => "the local GPU has not produced the data yet",
        (WaitsFor::Device, false) => "the local GPU has not taken the data that arrived",
        (WaitsFor::Unknown, _) => "the reason is unknown",
    }
}

fn advise(draft: &mut Draft, members: &[&Process], backend: &str) {
    let mut hosts: Vec<&str> = members.iter().map(|process| &*process.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    // A collective that is stuck although all entered is rather one on devices.
    let mut backends: Vec<&Backend> = Backend::named_in(backend).collect();
    backends.sort_by_key(|it| it.completion == Completion::AtWait);
    let variables = backends.iter().map(|it| it.network_variables()).find(|it| !it.is_empty());
    let interface = variables.map(|it| format!(" ({it})")).unwrap_or_default();
    // Evidence that other programs recorded may contain neither process ids nor hosts, and of processes
    // of a log there are no more connections.
    let present = members.iter().find(|process| !process.is_from_text());
    let pid = present.map(|process| process.pid).filter(|&pid| pid > 0);
    let connections = pid.map(|pid| {
        format!(
            "Check the connections of the ranks: ss -tinp | grep -A1 pid={pid} shows what was sent \
             and is not acknowledged. ",
        )
    }).unwrap_or_default();
    let hosts = match hosts.join(", ") {
        names if names.is_empty() => String::new(),
        names => format!(" ({names})"),
    };
    draft.advise(format!(
        "{connections}Check that the interface that is used{interface} reaches every host{hosts}.",
    ));
    if let Some(advice) = backends.iter().find_map(|it| it.fault_advice) {
        draft.advise(advice);
    }
}
