//! DD501 out-of-memory: an allocation failed on a rank, or the rank ended when its GPU was full.

use std::fmt;
use std::time::Duration;

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect};

use crate::findings::draft::{Draft, Key, KeyPlace, Precedence, ReportPolicy};
use crate::findings::memory::{FRAGMENTATION_REMEDY, growers};
use crate::findings::process_end::death;
use crate::findings::process_end::exception::{self, Ended};
use crate::input::allocation::{self, Failed};
use crate::model::{Device, Ending, Exception, Gauge, Process, libc_signal};
use crate::situation::Situation;
use crate::source::cause::Mistake;
use crate::words::{self, Ranks};

/// Divisor of a device's memory: with less of it free, the device counts as nearly full.
const LITTLE: u64 = 8;
/// Maximum time from an allocation to the end of a process, or to a sample, that it explains.
const LATELY: Duration = Duration::from_secs(10);
/// What to do if a rank needs more memory than there is.
const NEED_LESS: &str =
    "Use less memory: a smaller batch, a limit on the sequence length, activation checkpointing.";
/// What to do if an inference engine does, by the folder of its package.
const ENGINES_NEED_LESS: [(&str, &str); 2] = [
    (
        "/vllm/",
        "Reduce the memory use of the engine: lower --max-num-batched-tokens, --max-num-seqs, --max-model-len or \
         --gpu-memory-utilization, or divide the model among more GPUs.",
    ),
    (
        "/sglang/",
        "Reduce the memory use of the engine: lower --chunked-prefill-size, --max-running-requests, --context-length or \
         --mem-fraction-static, or divide the model among more GPUs.",
    ),
];
/// How NCCL states that an allocation of its own failed, and what to do.
const OF_NCCL: &str = "Cuda failure";
const FREE_DEVICE: &str = "Free memory of the device for the buffers of NCCL: end other processes that use it (nvidia-smi lists them), or \
                           make the program reserve less (--mem-fraction-static, --gpu-memory-utilization).";
/// Minimum size of a request that no smaller batch mends, in bytes: no device and no host has as much.
const MIN_ABSURD: u64 = 1 << 50;

/// DD501: failed allocations that ended a rank or made it leave the path of the others.
pub(crate) fn ended(situation: &Situation<'_>) -> Vec<Draft> {
    let of_allocation = |it: Ended<'_>| {
        let failed = allocation::failed(&it.exception.text)?;
        let draft = exception::draft(&catalogue::DD501, situation, &it);
        Some(of_ended(draft, it.process, it.exception, failed))
    };
    exception::ended(situation).into_iter().filter_map(of_allocation).collect()
}

/// DD501: a rank that ended when its device was full, without a recorded exception.
pub(crate) fn filled(situation: &Situation<'_>, process: &Process) -> Option<Draft> {
    let Ending::Died(exit) = situation.model.ending_of(process) else { return None };
    let by_itself = match exit.signal {
        Some(signal) => signal == libc_signal::ABRT,
        None => exit.code.is_some(),
    };
    let end = process.end.filter(|_| by_itself)?.at;
    // The device that it filled shortly before it ended with a status or an abort: the only evidence
    // about programs whose exceptions are not recorded.
    let mut devices = process.memory.devices.values();
    let (device, total, free, rise) = devices.find_map(|device| {
        let total = device.total?;
        let free = total.saturating_sub(device.used?.latest);
        let (rise, at) = device.last_rise()?;
        let is_full = free < rise && free < total / LITTLE;
        let is_recent = at <= end && end.since(at) <= LATELY;
        (is_full && is_recent).then_some((device, total, free, rise))
    })?;
    let died = death::draft(situation, process)?;
    let rank = process.rank?;
    let mut draft =
        Draft::new(&catalogue::DD501, KeyPlace::Process(rank, process.pid), died.evidence_at);
    draft.summary = format!("{}, when its GPU had no memory left", died.summary);
    draft.say(format!(
        "Of {}, {} were free, which is less than the last increase of {}.",
        words::bytes(total),
        words::bytes(free),
        words::bytes(rise)
    ));
    if let Some(nccl) = device.nccl {
        draft.say(format!("NCCL itself held {} of it.", words::bytes(nccl.latest)));
    }
    draft.say(died.why.join(" "));
    draft.advise(NEED_LESS);
    draft.advise(format!("Find the allocation that failed in the output of rank {rank}."));
    draft.blame([rank], Confidence::Supported);
    draft.fact = died.fact;
    draft.take_calls(died);
    Some(draft)
}

/// A failed allocation whose exception ended the rank, or was in flight at its next call.
fn of_ended(mut draft: Draft, process: &Process, exception: &Exception, failed: Failed) -> Draft {
    let waits = words::wait_for_it(&draft.victims);
    let ran_out = ran_out(exception, failed);
    let clause = format!("{} {ran_out}", Ranks(&draft.root));
    draft.summary = format!("{clause}{waits}");
    draft.mistake = draft.mistake.map(|_| Mistake::new(&draft.root, clause));
    draft.event = Some(ran_out);
    let free = Free::new(process, exception, failed);
    draft.why.splice(0..0, held(process, failed, free.as_ref()));
    // Replaces the advice to fix the exception.
    let lay_out = free.filter(Free::would_do).map(|_| lay_out());
    let next = lay_out.into_iter().chain([need_less(exception, failed)]);
    draft.next.splice(0..1, next);
    draft
}

/// DD501: a failed allocation whose exception was caught. [`lead`] keeps it if another finding
/// follows.
pub(crate) fn caught(_: &Situation<'_>, process: &Process) -> Option<Draft> {
    let rank = process.rank?;
    let (exception, failed) = last_caught(process)?;
    let mut draft = exception::raised(&catalogue::DD501, process, rank, exception, false);
    draft.summary = format!("rank {rank} {}", ran_out(exception, failed));
    let free = Free::new(process, exception, failed);
    draft.why = held(process, failed, free.as_ref());
    draft.advise(
        "Skip the step on all ranks: all_reduce a flag before any rank makes the next call, including backward. Or let the \
         exception end the rank.",
    );
    draft.advise(need_less(exception, failed));
    draft.next.extend(free.filter(Free::would_do).map(|_| lay_out()));
    Some(draft)
}

/// What to do about a request.
fn need_less(exception: &Exception, failed: Failed) -> String {
    if failed.asked.is_some_and(|asked| asked >= MIN_ABSURD) {
        let at = words::at(exception.place.as_deref());
        return format!(
            "Check how the size of the request is computed{at}: no machine has that much memory."
        );
    }
    if exception.text.contains(OF_NCCL) {
        return FREE_DEVICE.into();
    }
    let file = exception.place.as_ref().map_or("", |it| &it.file);
    let engine = ENGINES_NEED_LESS.iter().find(|(folder, _)| file.contains(folder));
    engine.map_or(NEED_LESS, |(_, advice)| advice).into()
}

/// The last failed allocation of a process that was caught.
fn last_caught(process: &Process) -> Option<(&Exception, Failed)> {
    let mut caught = process
        .exceptions
        .iter()
        .rev()
        .filter(|exception| exception.kind != ExceptionKind::Uncaught);
    let found = caught.find_map(|it| Some((it, allocation::failed(&it.text)?)))?;
    let ended = process.uncaught();
    // A failed allocation that ended the process is a finding of its own.
    let is_told = ended.is_some_and(|it| allocation::failed(&it.text).is_some());
    (!is_told).then_some(found)
}

/// Makes caught allocation failures the cause of the findings that follow from them, and drops
/// failures without consequences.
pub(crate) fn lead(situation: &Situation<'_>, found: &mut Vec<Draft>) {
    for at in 0..found.len() {
        if found[at].policy != ReportPolicy::OnlyAsCause {
            continue;
        }
        let followers: Vec<usize> = (0..found.len())
            .filter(|&other| follows(situation, &found[at], &found[other]))
            .collect();
        let key = found[at].key.clone();
        for &follower in &followers {
            found[follower].follows = Some(key.clone());
        }
        let first = followers.into_iter().min_by_key(|&it| {
            let draft = &found[it];
            (draft.blocked_at.unwrap_or(draft.evidence_at), draft.precedence)
        });
        if let Some(first) = first {
            let first = found[first].clone();
            found[at].policy = ReportPolicy::Always;
            found[at].effect = effect_of_followers(found, &key);
            adopt(&mut found[at], first);
        }
    }
    found.retain(|it| it.policy != ReportPolicy::OnlyAsCause);
}

/// The gravest effect of the findings that follow from this one, directly or not: the rank itself
/// goes on.
fn effect_of_followers(found: &[Draft], key: &Key) -> Effect {
    let mut keys = vec![key];
    let mut effect = Effect::None;
    let mut next = 0;
    while let Some(&key) = keys.get(next) {
        next += 1;
        for draft in found {
            if draft.follows.as_ref() == Some(key) && !keys.contains(&&draft.key) {
                effect = effect.max(draft.effect);
                keys.push(&draft.key);
            }
        }
    }
    effect
}

/// Whether a finding is about what the rank did next after its allocation failed: it ended or is
/// missing without another call, or its first call after the failure is the one that disagrees.
fn follows(situation: &Situation<'_>, caught: &Draft, other: &Draft) -> bool {
    let Some(fact) = caught.fact else { return false };
    let is_led = other.precedence > Precedence::Memory && other.precedence < Precedence::Hint;
    let is_finding = is_led && other.effect != Effect::None && other.follows.is_none();
    let rank = fact.rank;
    if !is_finding || !other.root.contains(&rank) {
        return false;
    }
    let process = match other.place {
        Some((group, _)) => situation.model.member(group, rank),
        None => situation.model.process_of(rank),
    };
    let Some(process) = process else { return false };
    if caught.key.place != KeyPlace::Process(rank, process.pid) {
        return false;
    }
    let Some((exception, _)) = last_caught(process) else { return false };
    let Some((group, seq)) = other.place else { return made_no_call_since(process, exception) };
    let slip = situation.model.group(group).history.slip().filter(|slip| slip.seq == seq);
    let slipped = slip.and_then(|slip| slip.calls.iter().find(|(it, _)| *it == rank));
    let join = situation.join(group, seq);
    let joined = join.and_then(|join| Some(&join.calls.get(&rank)?.call));
    let Some(next) = slipped.map(|(_, call)| call).or(joined) else {
        return made_no_call_since(process, exception);
    };
    let peers = || {
        let calls = join.into_iter().flat_map(|join| join.calls.iter());
        calls.filter(|(it, _)| **it != rank).map(|(_, joined)| joined.call.step)
    };
    // A failed forward counts as a step: with as many steps as its peers, the rank has made the
    // calls of one step less.
    let has_made_one_less = exception.kind == ExceptionKind::LeftForward
        && process.turns.are_forwards()
        && next.id.0 > exception.after_calls
        && peers().all(|step| step == next.step)
        && peers().next().is_some();
    next.id.0 == exception.after_calls + 1 || has_made_one_less
}

/// Whether the process has made no call since the exception.
fn made_no_call_since(process: &Process, exception: &Exception) -> bool {
    let last = process.last_call.as_ref();
    last.is_none_or(|call| call.id.0 <= exception.after_calls)
}

/// Takes victims, place and calls from the finding that follows from this one.
fn adopt(caught: &mut Draft, follower: Draft) {
    let own = std::mem::take(&mut caught.per_rank);
    let failed_at = own.first().and_then(|call| call.place.clone());
    caught.evidence_at = caught.evidence_at.max(follower.evidence_at);
    caught.why.push(format!(
        "The program caught it and continued, out of step with its peers: {}.",
        follower.summary
    ));
    caught.take_calls(follower);
    let root = caught.root.clone();
    caught.show_at(|rank| failed_at.as_ref().filter(|_| root.contains(&rank)));
    if caught.per_rank.is_empty() {
        caught.per_rank = own;
    }
    caught.summary.push_str(", caught the error and continued");
    if !caught.victims.is_empty() {
        caught.summary += &format!(", out of step with {}", Ranks(&caught.victims));
    }
}

/// "ran out of GPU memory at train.py:17, asking for 20.0 GiB"
fn ran_out(exception: &Exception, failed: Failed) -> String {
    let of = if failed.on_device { "GPU memory" } else { "memory" };
    let asked = failed.asked.map(|bytes| format!(", asking for {}", words::bytes(bytes)));
    format!("ran out of {of}{}{}", words::at(exception.place.as_deref()), asked.unwrap_or_default())
}

/// Reserved memory of the allocator that was not in use when an allocation failed, in bytes.
struct Free {
    /// The largest free block.
    largest: u64,
    asked: Option<u64>,
    all: Option<u64>,
}

impl Free {
    /// From the sample that the rank recorded right after the exception.
    fn new(process: &Process, exception: &Exception, failed: Failed) -> Option<Self> {
        let devices = process.memory.devices.values();
        let (device, largest) = devices
            .filter_map(|device| Some((device, device.largest?)))
            .find(|(_, it)| it.at >= exception.at && it.at.since(exception.at) <= LATELY)?;
        failed.on_device.then_some(Self {
            largest: largest.latest,
            asked: failed.asked,
            all: failed.unallocated.or_else(|| beyond(device)),
        })
    }

    /// Whether it would have been enough without fragmentation.
    fn would_do(&self) -> bool {
        let asked = self.asked.filter(|&asked| asked > self.largest);
        asked.zip(self.all).is_some_and(|(asked, all)| all >= asked)
    }
}

impl fmt::Display for Free {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = words::bytes(self.largest);
        write!(f, "The largest free block had {largest}")?;
        if let Some(asked) = self.asked {
            write!(f, "; {} were requested", words::bytes(asked))?;
        }
        f.write_str(if self.would_do() {
            ": without fragmentation it would have been enough."
        } else {
            "."
        })
    }
}

/// Memory that the allocator holds beyond tensors, in bytes.
fn beyond(device: &Device) -> Option<u64> {
    let (reserved, allocated) = (device.reserved?.latest, device.allocated?.latest);
    Some(reserved.saturating_sub(allocated))
}

fn lay_out() -> String {
    format!("The memory of its GPU is fragmented. {FRAGMENTATION_REMEDY}")
}

/// Sentences on the memory in use, from the exception or from the last sample.
fn held(process: &Process, failed: Failed, free: Option<&Free>) -> Vec<String> {
    let memory = &process.memory;
    let mut why = Vec::new();
    if failed.on_device {
        let device = memory.devices.values().next();
        let latest = |gauge: Option<Gauge>| gauge.map(|it| it.latest);
        let total = failed.total.or_else(|| device?.total);
        let tensors = failed.allocated.or_else(|| latest(device?.allocated));
        let beyond = failed.unallocated.or_else(|| beyond(device?));
        let mut parts = Vec::new();
        parts.extend(tensors.map(|it| format!("tensors held {}", words::bytes(it))));
        parts.extend(
            beyond.map(|it| format!("PyTorch's allocator {} beyond that", words::bytes(it))),
        );
        let nccl = device.and_then(|it| latest(it.nccl));
        parts.extend(nccl.map(|it| format!("NCCL {}", words::bytes(it))));
        parts.extend(failed.free.map(|it| format!("{} were free", words::bytes(it))));
        if let Some(total) = total.filter(|_| !parts.is_empty()) {
            why.push(format!("Of {}, {}.", words::bytes(total), listed(&parts)));
        }
        why.extend(free.map(ToString::to_string));
        return why;
    }
    if let Some(rss) = memory.rss {
        let (rss, left) = (words::bytes(rss.latest), growers::left(memory).unwrap_or_default());
        why.push(format!("It held {rss} when that was last measured{left}."));
    }
    why
}

/// "a, b, and c".
fn listed(parts: &[String]) -> String {
    match parts {
        [first @ .., last] if !first.is_empty() => format!("{}, and {last}", first.join(", ")),
        _ => parts.concat(),
    }
}
