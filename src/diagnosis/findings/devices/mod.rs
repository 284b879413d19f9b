//! GPUs and the links between ranks: their faults, and what they do while ranks wait.

pub(crate) mod gpu_fault;
pub(crate) mod gpu_slowed;
pub(crate) mod link_fault;
pub(crate) mod links;
pub(crate) mod states;

use ddp_doctor_proto::report::{Effect, Timestamp};

use crate::findings::draft::{Draft, Key};
use crate::model::Gpu;
use crate::words::Ranks;

/// "the GPU of rank 1 (NVIDIA H100, GPU 1 of host node)".
fn gpu_of(ranks: &[u32], gpu: &Gpu) -> String {
    let gpu = &gpu.identity;
    let name = Some(&*gpu.name)
        .filter(|it| !it.is_empty())
        .map(|name| format!("{name}, "))
        .unwrap_or_default();
    let host = match &*gpu.host {
        "" => String::new(),
        host => format!(" of host {host}"),
    };
    format!("the GPU of {} ({name}GPU {}{host})", Ranks(ranks), gpu.index)
}

/// A sentence about the latest sample.
fn state(gpu: &Gpu) -> Option<String> {
    let (_, sample) = gpu.sample.as_ref()?;
    let watts = sample.power.map(|it| match sample.power_limit {
        Some(limit) => format!("{} of {} W", it / 1000, limit / 1000),
        None => format!("{} W", it / 1000),
    });
    let parts: Vec<String> = [
        sample.busy.map(|it| format!("busy {it} % of the time")),
        sample.clock.zip(sample.max_clock).map(|(it, most)| format!("{it} of {most} MHz")),
        sample.celsius.map(|it| format!("{it} °C")),
        watts,
        sample.uncorrected_errors.filter(|&it| it > 0).map(|it| format!("{it} memory errors")),
        sample.needs_reset.then(|| "memory to be replaced at the next reset".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!parts.is_empty()).then(|| format!("When it was last measured: {}.", parts.join(", ")))
}

/// When a finding began to affect the job.
fn began(draft: &Draft) -> Timestamp {
    let at = draft.fact.map_or(draft.evidence_at, |fact| fact.at);
    draft.blocked_at.filter(|_| draft.fact.is_none()).map_or(at, |blocked| blocked.min(at))
}

/// The finding that a fault follows from: it had already blocked or ended a rank of the GPU or link.
fn blocked_before(found: &[Draft], at: usize) -> Option<Key> {
    let fault = &found[at];
    let mut causes: Vec<&Draft> = found
        .iter()
        .filter(|it| it.code != fault.code && it.effect != Effect::None && it.follows.is_none())
        .filter(|it| began(it) <= fault.evidence_at)
        .filter(|it| it.root.iter().chain(&it.victims).any(|rank| fault.root.contains(rank)))
        .collect();
    causes.sort_by_key(|it| (began(it), it.key.clone()));
    causes.first().map(|it| it.key.clone())
}
