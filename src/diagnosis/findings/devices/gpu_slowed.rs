//! DD802 gpu-slowed: a GPU runs below its peers.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_proto::GpuSlowdown;
use ddp_doctor_proto::catalogue::DD802;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use super::{gpu_of, state};
use crate::delays::lateness::Why;
use crate::findings::draft::{Draft, KeyPlace};
use crate::input::event::GpuSample;
use crate::model::Gpu;
use crate::situation::Situation;

/// Numbers of lanes that a PCIe link can have. Virtual machines report others.
const WIDTHS: [u32; 5] = [1, 2, 4, 8, 16];
/// A power limit counts as lower from this difference on, as a divisor of the peers' limit.
const LOWER_DIVISOR: u32 = 10;

/// A GPU with a sample, and the ranks that use it.
struct Used<'a> {
    gpu: &'a Gpu,
    at: Timestamp,
    sample: &'a GpuSample,
    ranks: Vec<u32>,
}

/// What the GPUs of one model have in common.
#[derive(Default)]
struct OfModel {
    gpus: usize,
    /// Number of those that their driver slows.
    slowed: usize,
    /// The highest power limit, in milliwatts.
    power_limit: Option<u32>,
    /// The highest clock in use, in MHz.
    clock: Option<u32>,
    /// The most PCIe lanes in use.
    pcie_width: Option<u32>,
}

/// DD802: GPUs that are slower than others of the same model in the job.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let used = used(situation);
    let mut models: BTreeMap<&str, OfModel> = BTreeMap::new();
    for it in used.iter().filter(|it| !it.gpu.identity.name.is_empty()) {
        let of_model = models.entry(&it.gpu.identity.name).or_default();
        of_model.gpus += 1;
        of_model.slowed += usize::from(it.gpu.slowed_since.is_some());
        of_model.power_limit = of_model.power_limit.max(it.sample.power_limit);
        of_model.clock = of_model.clock.max(it.sample.clock);
        of_model.pcie_width = of_model.pcie_width.max(width(it.sample.pcie_width));
    }
    let found = used.iter().filter_map(|it| {
        let of_model = models.get(&*it.gpu.identity.name).filter(|it| it.gpus > 1)?;
        slowed(situation, it, of_model)
    });
    found.collect()
}

/// The GPU of all of these ranks, if it was slower than its peers at a time.
pub(crate) fn of_ranks(
    situation: &Situation<'_>,
    ranks: &[u32],
    at: Timestamp,
) -> Option<KeyPlace> {
    let used = used(situation);
    let is_theirs = |it: &&Used<'_>| ranks.iter().all(|rank| it.ranks.contains(rank));
    let it = used.iter().find(is_theirs)?;
    let is_before = it.gpu.slowed_since.is_none_or(|since| since <= at);
    is_before.then(|| KeyPlace::Ranks(it.ranks.clone()))
}

/// The GPUs that ranks use.
fn used<'a>(situation: &Situation<'a>) -> Vec<Used<'a>> {
    let model = situation.model;
    let mut used: BTreeMap<_, Used<'_>> = BTreeMap::new();
    if model.gpus.iter().next().is_none() {
        return Vec::new();
    }
    for &rank in model.ranks.keys() {
        let process = model.process_of(rank).filter(|it| !it.has_ended());
        let Some(gpu) = process.and_then(|process| model.gpus.used_by(process)) else { continue };
        let Some((at, sample)) = &gpu.sample else { continue };
        let key = (&gpu.identity.host, &gpu.identity.uuid);
        let entry = used.entry(key);
        let it = entry.or_insert(Used { gpu, at: *at, sample, ranks: Vec::new() });
        it.ranks.push(rank);
    }
    used.into_values().collect()
}

fn slowed(situation: &Situation<'_>, it: &Used<'_>, of_model: &OfModel) -> Option<Draft> {
    let throttled = || throttled(situation, it, of_model);
    let slower = throttled().or_else(|| limited(it, of_model)).or_else(|| narrow(it, of_model));
    let (since, what, next, confidence) = slower.or_else(|| behind(situation, it, of_model))?;
    let place = KeyPlace::Ranks(it.ranks.clone());
    let mut draft = Draft::new(&DD802, place, since);
    draft.summary = format!("{} {what}", gpu_of(&it.ranks, it.gpu));
    draft.confidence = confidence;
    draft.blame(it.ranks.clone(), confidence);
    draft.blocked_at = Some(since);
    draft.why.extend(state(it.gpu));
    draft.advise(next);
    Some(draft)
}

/// Since when a GPU is slower, how, what to do, and how certain that is.
type Slower = (Timestamp, String, &'static str, Confidence);

/// The driver reports for some time that it slows the GPU, and not all of its peers.
fn throttled(situation: &Situation<'_>, it: &Used<'_>, of_model: &OfModel) -> Option<Slower> {
    let since = it.gpu.slowed_since?;
    let lasts = situation.now.since(since) >= situation.model.timing.gpu_slowdown;
    if !lasts || of_model.slowed == of_model.gpus {
        return None;
    }
    let (why, next) = match it.sample.slowdown {
        GpuSlowdown::Heat => (
            "is slowed because of its temperature",
            "Check the cooling of the host and its other GPUs: nvidia-smi -q -d TEMPERATURE,PERFORMANCE.",
        ),
        GpuSlowdown::PowerBrake => (
            "is slowed by the power supply of its host",
            "Check the power supply of the host: nvidia-smi -q -d POWER,PERFORMANCE.",
        ),
        _ => (
            "is slowed by its hardware",
            "Check its temperature and power: nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE.",
        ),
    };
    Some((since, format!("{why}, others are not"), next, Confidence::Supported))
}

/// Its power limit is lower.
fn limited(it: &Used<'_>, of_model: &OfModel) -> Option<Slower> {
    let (own, most) = it.sample.power_limit.zip(of_model.power_limit)?;
    (own < most - most / LOWER_DIVISOR).then(|| {
        let what = format!("may use {} W, another one {} W", own / 1000, most / 1000);
        let next = "Set the same power limit on all GPUs: nvidia-smi --power-limit.";
        (it.at, what, next, Confidence::Suspected)
    })
}

/// Its PCIe link is narrower, although it could be wider.
fn narrow(it: &Used<'_>, of_model: &OfModel) -> Option<Slower> {
    let (own, most) = width(it.sample.pcie_width).zip(of_model.pcie_width)?;
    let possible = width(it.sample.max_pcie_width)?;
    (own < possible && own < most).then(|| {
        let what = format!("uses {own} PCIe lanes, another one {most}");
        let next = "Check the slot and the riser of the GPU (lspci -vv, LnkSta).";
        (it.at, what, next, Confidence::Suspected)
    })
}

/// Its ranks keep the others waiting because of their own work, and its clock is lower or it has other processes. Both
/// mean nothing by themselves: the clock depends on what a GPU computes, and another process may be idle.
fn behind(situation: &Situation<'_>, it: &Used<'_>, of_model: &OfModel) -> Option<Slower> {
    let late = situation.losses.straggler.as_ref()?;
    let is_late = matches!(late.why, Why::Work { .. })
        && late.ranks.iter().all(|rank| it.ranks.contains(rank));
    if !is_late || it.gpu.slowed_since.is_some() {
        return None;
    }
    let clocks = it
        .sample
        .clock
        .zip(of_model.clock)
        // A GPU that computes reaches the limit of its power, and one that waits does not.
        .filter(|_| it.sample.slowdown != GpuSlowdown::PowerLimit);
    if let Some((own, most)) = clocks.filter(|(own, most)| *own < most - most / LOWER_DIVISOR) {
        let what = format!("runs at {own} MHz, another one at {most} MHz");
        let next = "Check whether its clocks are locked: nvidia-smi -q -d CLOCK, nvidia-smi --reset-gpu-clocks.";
        return Some((late.since, what, next, Confidence::Suspected));
    }
    let host = &it.gpu.identity.host;
    let of_job: BTreeSet<u32> =
        situation.model.processes.values().filter(|it| it.host == *host).map(|it| it.pid).collect();
    let pids = it.sample.processes.iter().map(|(pid, _)| *pid);
    // In a container, processes have other numbers.
    let (known, others): (Vec<u32>, Vec<u32>) = pids.partition(|pid| of_job.contains(pid));
    let other = others.first().filter(|_| !known.is_empty())?;
    let what = format!("is used by another process as well (pid {other})");
    let next =
        "Find out what the other process does (nvidia-smi, ps), and keep the GPU for the job.";
    Some((late.since, what, next, Confidence::Suspected))
}

/// A number of lanes that a PCIe link can have.
fn width(lanes: Option<u32>) -> Option<u32> {
    lanes.filter(|it| WIDTHS.contains(it))
}
