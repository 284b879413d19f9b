//! DD802 gpu-slowed: a GPU runs below its peers.

use std::collections::BTreeMap;

use ddp_doctor_proto::GpuSlowdown;
use ddp_doctor_proto::catalogue::DD802;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use super::{gpu_of, state};
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

/// DD802: GPUs that are slower than others of the same model in the job.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let used = used(situation);
    let found = used.iter().filter_map(|it| {
        let is_peer = |other: &&Used<'_>| {
            other.gpu.identity.name == it.gpu.identity.name
                && (&other.gpu.identity.host, other.gpu.identity.index)
                    != (&it.gpu.identity.host, it.gpu.identity.index)
        };
        let peers: Vec<&Used<'_>> = used.iter().filter(is_peer).collect();
        let is_known = !it.gpu.identity.name.is_empty() && !peers.is_empty();
        is_known.then(|| slowed(situation, it, &peers)).flatten()
    });
    found.collect()
}

/// The GPUs that ranks use.
fn used<'a>(situation: &Situation<'a>) -> Vec<Used<'a>> {
    let model = situation.model;
    let mut used: BTreeMap<_, Used<'_>> = BTreeMap::new();
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

fn slowed(situation: &Situation<'_>, it: &Used<'_>, peers: &[&Used<'_>]) -> Option<Draft> {
    let throttled = || throttled(situation, it, peers);
    let (since, what, next, confidence) =
        throttled().or_else(|| limited(it, peers)).or_else(|| narrow(it, peers))?;
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
fn throttled(situation: &Situation<'_>, it: &Used<'_>, peers: &[&Used<'_>]) -> Option<Slower> {
    let since = it.gpu.slowed_since?;
    let lasts = situation.now.since(since) >= situation.model.timing.gpu_slowdown;
    if !lasts || peers.iter().all(|peer| peer.gpu.slowed_since.is_some()) {
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
fn limited(it: &Used<'_>, peers: &[&Used<'_>]) -> Option<Slower> {
    let own = it.sample.power_limit?;
    let most = peers.iter().filter_map(|peer| peer.sample.power_limit).max()?;
    (own < most - most / LOWER_DIVISOR).then(|| {
        let what = format!("may use {} W, another one {} W", own / 1000, most / 1000);
        let next = "Set the same power limit on all GPUs: nvidia-smi --power-limit.";
        (it.at, what, next, Confidence::Suspected)
    })
}

/// Its PCIe link is narrower, although it could be wider.
fn narrow(it: &Used<'_>, peers: &[&Used<'_>]) -> Option<Slower> {
    let own = it.sample.pcie_width.filter(|it| WIDTHS.contains(it))?;
    let possible = it.sample.max_pcie_width.filter(|it| WIDTHS.contains(it))?;
    let others = peers.iter().filter_map(|peer| peer.sample.pcie_width);
    let most = others.filter(|it| WIDTHS.contains(it)).max()?;
    (own < possible && own < most).then(|| {
        let what = format!("uses {own} PCIe lanes, another one {most}");
        let next = "Check the slot and the riser of the GPU (lspci -vv, LnkSta).";
        (it.at, what, next, Confidence::Suspected)
    })
}
