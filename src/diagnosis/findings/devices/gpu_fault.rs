//! DD801 gpu-fault: a GPU reported a fault.

use std::collections::BTreeSet;
use std::time::Duration;

use ddp_doctor_proto::catalogue::{DD101, DD116, DD201, DD202, DD204, DD205, DD601, DD604, DD801};
use ddp_doctor_proto::report::{Confidence, Effect, Severity, Timestamp};

use super::{began, blocked_before, gpu_of, state};
use crate::findings::draft::{Draft, KeyPlace};
use crate::input::event::GpuFaultKind;
use crate::input::xids::{self, Meaning, Reason};
use crate::model::{Gpu, Model, Process, libc_signal};
use crate::situation::Situation;
use crate::words::{self, Ranks};

/// Maximum time by which a fault may be reported after what it led to: a driver reports it within 20 ms, unless the host
/// is busy.
const REPORT_DELAY: Duration = Duration::from_secs(1);
/// Maximum time between a fault that does not last and what it led to. A process may notice it only at its next call of
/// CUDA.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of faults that are listed.
const LISTED: usize = 4;

/// A fault of the GPU of some ranks.
struct Fault<'a> {
    gpu: &'a Gpu,
    at: Timestamp,
    kind: GpuFaultKind,
    meaning: Meaning,
    /// Processes that used the GPU.
    processes: Vec<(u32, &'a Process)>,
}

/// DD801: GPUs of ranks that reported faults.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let gpus = situation.model.gpus.iter();
    gpus.filter_map(|gpu| Some(draft(situation.model, &first(situation.model, gpu)?))).collect()
}

/// The first fault of a GPU that is not the consequence of another one or only a note, if there is one, while ranks
/// used it.
fn first<'a>(model: &'a Model, gpu: &'a Gpu) -> Option<Fault<'a>> {
    let faults = gpu.faults.iter().filter_map(|&(at, kind)| {
        let meaning = xids::of_fault(kind);
        let processes = users(model, gpu, at);
        let is_reported = meaning.reason != Reason::Consequence && !processes.is_empty();
        is_reported.then_some(Fault { gpu, at, kind, meaning, processes })
    });
    faults.min_by_key(|it| (it.meaning.reason == Reason::Note, it.at))
}

/// The processes that used a GPU at a time, or else those that began to use it afterwards, with their ranks.
fn users<'a>(model: &'a Model, gpu: &Gpu, at: Timestamp) -> Vec<(u32, &'a Process)> {
    if gpu.faults.is_empty() {
        return Vec::new();
    }
    let uses = |it: &&Process| {
        model.gpus.used_by(it).is_some_and(|used| used.identity == gpu.identity)
            && it.end.is_none_or(|end| at <= end.at.plus(REPORT_DELAY))
    };
    let all: Vec<&Process> = model.processes.values().filter(uses).collect();
    let alive: Vec<&Process> = all.iter().copied().filter(|it| it.joined_at <= at).collect();
    let candidates = if alive.is_empty() { all } else { alive };
    let mut used: Vec<(u32, &Process)> =
        candidates.into_iter().filter_map(|it| Some((it.rank?, it))).collect();
    used.sort_by_key(|(rank, process)| (*rank, process.joined_at));
    used.dedup_by_key(|(rank, _)| *rank);
    used
}

fn draft(model: &Model, fault: &Fault<'_>) -> Draft {
    let ranks: Vec<u32> = fault.processes.iter().map(|(rank, _)| *rank).collect();
    let mut draft = Draft::new(&DD801, KeyPlace::Ranks(ranks.clone()), fault.at);
    draft.of_process = fault.processes.first().map(|(_, process)| process.id);
    draft.summary =
        format!("{} {}", gpu_of(&ranks, fault.gpu), reported(fault.kind, &fault.meaning));
    draft.blame(ranks, Confidence::Supported);
    draft.effect = Effect::None;
    if fault.meaning.reason == Reason::Note {
        draft.severity = Severity::Warning;
    }
    let reason = match fault.meaning.reason {
        Reason::Code => "The usual cause is a kernel of the program.",
        Reason::Hardware => "The usual cause is the hardware.",
        Reason::Driver => "The usual cause is the driver, or the firmware of the GPU.",
        Reason::Note => "The GPU keeps working.",
        Reason::Unknown | Reason::Consequence => "Its usual cause is unknown.",
    };
    draft.say(reason);
    let later = fault.gpu.faults.iter().filter(|(at, kind)| (*at, *kind) > (fault.at, fault.kind));
    for (at, kind) in later.take(LISTED) {
        let meaning = xids::of_fault(*kind);
        let after = words::short_time(at.since(fault.at));
        draft.say(format!("{after} later, it {}.", reported(*kind, &meaning)));
    }
    draft.why.extend(state(fault.gpu));
    if uses_others(model, fault) {
        draft.say("Other processes used the GPU as well: the error may be theirs.");
        draft.root_confidence = Confidence::Suspected;
    }
    draft.advise(fault.meaning.next);
    draft
}

/// Whether the GPU has processes that are not ranks of the job. Their numbers are those of the host, which ranks in a
/// container do not know.
fn uses_others(model: &Model, fault: &Fault<'_>) -> bool {
    let Some((_, sample)) = &fault.gpu.sample else { return false };
    let of_job: BTreeSet<u32> = model
        .processes
        .values()
        .filter(|it| it.host == fault.gpu.identity.host)
        .map(|it| it.pid)
        .collect();
    let [is_known, is_other] =
        [true, false].map(|of| sample.processes.iter().any(|(pid, _)| of_job.contains(pid) == of));
    is_known && is_other
}

/// "reported Xid 79: it has fallen off the bus".
fn reported(kind: GpuFaultKind, meaning: &Meaning) -> String {
    match kind {
        GpuFaultKind::Xid(xid) => format!("reported Xid {xid}: {}", meaning.what),
        GpuFaultKind::UncorrectedErrors(1) => {
            "reported a memory error that it could not correct".to_owned()
        }
        GpuFaultKind::UncorrectedErrors(errors) => {
            format!("reported {errors} memory errors that it could not correct")
        }
        GpuFaultKind::Lost => "failed: its driver can no longer reach it".to_owned(),
        GpuFaultKind::Unknown => "reported an error without a number".to_owned(),
    }
}

/// Sets what follows from the faults of GPUs, and what they follow from.
pub(crate) fn lead(situation: &Situation<'_>, found: &mut [Draft]) {
    let mut faults: Vec<usize> = (0..found.len()).filter(|&at| found[at].code == &DD801).collect();
    faults.sort_by_key(|&at| found[at].evidence_at);
    for at in faults {
        let fault = situation.model.gpus.iter().filter_map(|gpu| first(situation.model, gpu));
        let is_it = |it: &Fault<'_>| {
            it.at == found[at].evidence_at
                && it.processes.iter().map(|it| it.0).eq(found[at].root.iter().copied())
        };
        let Some(fault) = { fault }.find(is_it) else { continue };
        let key = found[at].key.clone();
        let mut first_effect: Option<Draft> = None;
        for draft in found.iter_mut().filter(|it| it.follows.is_none()) {
            if may_follow(draft, &fault) {
                draft.follows = Some(key.clone());
                if first_effect.as_ref().is_none_or(|it| began(draft) < began(it)) {
                    first_effect = Some(draft.clone());
                }
            }
        }
        match first_effect {
            Some(effect) => attach(&mut found[at], effect, &fault),
            None => found[at].follows = blocked_before(found, at),
        }
    }
}

/// Takes the ranks and calls of what followed from a fault.
fn attach(draft: &mut Draft, effect: Draft, fault: &Fault<'_>) {
    let began = began(&effect);
    let victims = [&effect.root[..], &effect.victims].concat();
    // A job is ended only if the GPU is lost, or for what would end it without the fault.
    if !matches!(fault.kind, GpuFaultKind::Lost | GpuFaultKind::Xid(79)) {
        draft.confidence = draft.confidence.min(effect.confidence);
    }
    let before = if fault.at <= began {
        format!("{} before", words::short_time(began.since(fault.at)))
    } else {
        format!("{} after", words::short_time(fault.at.since(began)))
    };
    let what = match (effect.code.code, effect.effect) {
        ("DD202", _) => format!("{} raised an exception", Ranks(&effect.root)),
        ("DD201", _) => format!("{} ended", Ranks(&effect.root)),
        (_, Effect::Slows) => "the job became slow".to_owned(),
        _ => "the first rank began to wait".to_owned(),
    };
    draft.why.insert(0, format!("The fault was reported {before} {what}."));
    draft.take_calls(effect);
    draft.add_victims(victims);
}

/// Whether a finding follows from a fault: it is about a rank of the GPU, and began after the fault. A collective that
/// all ranks have entered also ends by a fault during it.
fn may_follow(draft: &Draft, fault: &Fault<'_>) -> bool {
    if matches!(fault.meaning.reason, Reason::Note | Reason::Consequence) {
        return false;
    }
    let of_gpu = |rank: &u32| fault.processes.iter().any(|(it, _)| it == rank);
    let began = began(draft);
    let is_recent = fault.meaning.is_lasting || began <= fault.at.plus(NOTICED_WITHIN);
    if !is_recent {
        return false;
    }
    let code = draft.code;
    if code == &DD116 {
        return draft.victims.iter().chain(&draft.root).any(of_gpu);
    }
    let is_after = fault.at <= began.plus(REPORT_DELAY);
    if code == &DD604 {
        return is_after && draft.victims.iter().any(of_gpu);
    }
    let is_of_gpu = !draft.root.is_empty() && draft.root.iter().all(of_gpu);
    if !is_after || !is_of_gpu {
        return false;
    }
    let is_asked = draft.fact.is_some_and(|fact| {
        use libc_signal::{HUP, INT, KILL, TERM};
        matches!(fact.signal, Some(HUP | INT | KILL | TERM))
    });
    let is_of_device = || {
        let event = draft.event.as_deref().unwrap_or_default().to_lowercase();
        ["cuda", "cublas", "cudnn", "nccl", "gpu"].iter().any(|word| event.contains(word))
    };
    [&DD101, &DD204, &DD205, &DD601].contains(&code)
        || code == &DD201 && !is_asked
        || code == &DD202 && is_of_device()
}
