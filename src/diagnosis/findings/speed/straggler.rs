//! Ranks that keep the others waiting: DD601 straggler-compute, because their own work takes longer, DD602
//! straggler-input, because their data loaders are slow, and DD603 straggler-host, because their host
//! or interpreter delays them.

use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{CallState, Confidence, RankCall, Where};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::speed::coarse::{about, about_so_long, percent};
use crate::findings::view::{no_call, with_place};
use crate::model::Process;
use crate::situation::Situation;
use crate::speed::lateness::{Host, Straggler, Why};
use crate::words::{self, Ranks, number};

/// The finding about this kind of straggler.
fn code_of(why: &Why) -> &'static Code {
    match why {
        // Their own work takes longer.
        Why::Work { .. } => &catalogue::DD601,
        // Their data loader is slow.
        Why::Input { .. } => &catalogue::DD602,
        // Their host or interpreter delays them.
        Why::Host(_) => &catalogue::DD603,
    }
}

/// DD601 to DD603: ranks that keep the others waiting.
pub(crate) fn draft(situation: &Situation<'_>) -> Option<Draft> {
    let straggler = situation.straggler.as_ref()?;
    let Straggler { ranks, waiting, .. } = straggler;
    let process = ranks.first().and_then(|&rank| situation.model.process_of(rank));
    // Where the late ranks lose time, if known.
    let place = match straggler.why {
        Why::Input { .. } => process.and_then(|process| process.pace.draws_at.as_deref()),
        Why::Work { .. } | Why::Host(_) => None,
    };
    let reason = match &straggler.why {
        Why::Work { ran } => of_work(ranks, *ran),
        Why::Input { own, others } => of_input(ranks, place, *own, *others),
        Why::Host(host) => of_host(ranks, host, process),
    };
    let mut draft =
        Draft::new(code_of(&straggler.why), KeyPlace::Ranks(ranks.clone()), straggler.known_at);
    draft.root = ranks.clone();
    draft.victims = waiting.clone();
    let confidence =
        if straggler.is_guessed { Confidence::Suspected } else { Confidence::Supported };
    (draft.confidence, draft.root_confidence) = (confidence, confidence);
    draft.place = Some((straggler.group, 0));
    draft.op = Some(straggler.call.op);
    draft.blocked_at = Some(straggler.since);
    draft.per_rank = per_rank(situation, straggler, place);
    draft.summary = format!(
        "{} the others waiting{}: they lose about {} of their time, {} at a time, {}",
        Ranks(ranks).with("keeps", "keep"),
        if straggler.in_turn { " in turn" } else { "" },
        percent(straggler.share),
        about(straggler.typical),
        reason.because,
    );
    draft.say(format!(
        "{} repeatedly the last, since {} at least: almost all waiting is for {}.",
        words::begin(Ranks(ranks).with("is", "are")),
        words::clock(straggler.since),
        Ranks(ranks),
    ));
    if straggler.is_guessed {
        draft.say("Waits on a device are not recorded: they are inferred from what ranks do next.");
    }
    if straggler.in_turn {
        draft.say("They are late in turn, each for some rounds: the culprit changes.");
    }
    if let Some(rank) = straggler.before {
        draft.say(format!("Before that it was rank {rank}: the culprit changes."));
    }
    draft.why.extend(reason.measured);
    draft.advise(reason.advice);
    Some(draft)
}

/// The calls at which most time is lost, without fields that differ from call to call.
fn per_rank(
    situation: &Situation<'_>,
    straggler: &Straggler,
    place: Option<&Where>,
) -> Vec<RankCall> {
    let call = |rank, state, waited_ms| RankCall {
        state,
        waited_ms,
        op: straggler.call.op.name().map(str::to_owned),
        place: straggler.call.place.as_deref().cloned(),
        ..no_call(rank)
    };
    let typical = about_so_long(straggler.typical).as_millis() as u64;
    let members = &situation.model.group(straggler.group).info.key.members;
    let waiting = straggler.waiting.iter().filter(|rank| members.contains(rank));
    let waiting = waiting.map(|&rank| call(rank, CallState::Waiting, Some(typical)));
    let late = straggler.ranks.iter();
    let late = late.map(|&rank| with_place(call(rank, CallState::NotIssued, None), place));
    waiting.chain(late).collect()
}

/// What is said about the reason for which ranks are late.
struct Reason {
    /// The end of the summary.
    because: &'static str,
    /// The measurement that shows it, if there is one.
    measured: Option<String>,
    advice: String,
}

fn of_work(ranks: &[u32], ran: Option<(f64, f64)>) -> Reason {
    let measured = ran.map(|(own, others)| {
        format!(
            "{} neither for input nor for a processor: the main thread runs {} of the time there, {} \
             on the others.",
            words::begin(Ranks(ranks).with("waits", "wait")),
            percent(own),
            percent(others),
        )
    });
    Reason {
        because: number(
            ranks,
            "because its own work takes longer",
            "because their own work takes longer",
        ),
        measured,
        advice: format!(
            "Compare what {} between two collectives with another rank: ddp-doctor dump, or a \
             profiler on both. Give all ranks equal work.",
            Ranks(ranks).with("does", "do"),
        ),
    }
}

fn of_input(ranks: &[u32], place: Option<&Where>, own: f64, others: f64) -> Reason {
    Reason {
        because: number(
            ranks,
            "because its data loader is slow",
            "because their data loaders are slow",
        ),
        measured: Some(format!(
            "{} for batches{} about {} of the time, the others {}.",
            words::begin(Ranks(ranks).with("waits", "wait")),
            words::at(place),
            percent(own),
            percent(others),
        )),
        advice: format!(
            "Give the DataLoader of {} more workers (num_workers, prefetch_factor), or check the \
             storage that its data comes from.",
            Ranks(ranks),
        ),
    }
}

fn of_host(ranks: &[u32], host: &Host, process: Option<&Process>) -> Reason {
    let who = Ranks(ranks);
    let were = number(ranks, "was", "were");
    let (because, measured, advice) = match host {
        Host::Stopped(share) => (
            "because it is stopped and continued",
            format!(
                "{} {were} stopped about {} of the time, by signals or by freezing its container.",
                words::begin(who),
                percent(*share),
            ),
            "Find out what stops the process, and let it run.",
        ),
        Host::Throttled(share) => (
            "because its container has used up its quota",
            format!(
                "The quota of its cgroup kept {who} from running about {} of the time.",
                percent(*share)
            ),
            "Raise the container's quota of processor time (cpu.max), or give it less to do.",
        ),
        Host::Queued { own, others, processors, pressure } => (
            "because others use its processors",
            format!(
                "{} {were} ready to run and had no processor for about {} of the time, the others for \
                 {}.{}",
                words::begin(who),
                percent(*own),
                percent(*others),
                processors_and_pressure(processors.as_deref(), *pressure),
            ),
            "Find out what else runs on its processors (top, ps -eLo pid,psr,pcpu,comm), and move one \
             of them.",
        ),
        Host::Stolen(share) => (
            "because the processors of its host are given to others",
            format!(
                "A hypervisor gave the processors of the host of {who} to others about {} of the time.",
                percent(*share)
            ),
            "Its virtual machine shares processors with others (st in top): move it, or give it \
             dedicated processors.",
        ),
        Host::Garbage(share) => (
            "because it collects garbage",
            format!(
                "The interpreter of {who} collects garbage about {} of the time.",
                percent(*share)
            ),
            "Call gc.freeze() once everything is loaded, or collect on all ranks in the same step: \
             gc.disable() and gc.collect().",
        ),
        Host::Paging(rate) => (
            "because its memory is read from a disk",
            format!(
                "About {:.0} pages a second are read from a disk for {who}.",
                (rate / 100.0).round() * 100.0
            ),
            "Its host has too little memory for what runs there: check swap and what uses it.",
        ),
        Host::Memory(share) => (
            "because its host is short of memory",
            format!(
                "Something on the host, or in the container, of {who} waited for memory about {} of \
                 the time.",
                percent(*share)
            ),
            "Its host, or its container, has too little memory for what runs there: check swap, \
             memory.high and what uses it.",
        ),
    };
    let on = process.map(|process| format!(" Host: {}, process {}.", process.host, process.pid));
    let advice = advice.to_owned() + &on.unwrap_or_default();
    Reason { because, measured: Some(measured), advice }
}

/// Sentences on the processors that ranks are confined to, and on the pressure for processors.
fn processors_and_pressure(processors: Option<&str>, pressure: Option<f64>) -> String {
    let processors = processors.map(|it| format!(" Its CPU affinity is {it}."));
    let pressure = pressure.map(|pressure| {
        format!(
            " Its host was short of CPU: something there waited for a processor about {} of the time.",
            percent(pressure)
        )
    });
    processors.unwrap_or_default() + &pressure.unwrap_or_default()
}
