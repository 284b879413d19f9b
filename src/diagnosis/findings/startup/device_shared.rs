//! DD307 device-shared: two ranks use one GPU.

use std::collections::BTreeSet;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::startup::settings::{self, Peers};
use crate::findings::startup::skew;
use crate::input::settings::{GPU, GPU_NUMBER, LOCAL_RANK};
use crate::model::Process;
use crate::situation::Situation;
use crate::words::{Ranks, begin};

/// Maximum number of ranks whose devices are listed.
const LISTED: usize = 8;

/// DD307: a GPU that several ranks use.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let sharing = settings::worlds_that_share(situation.model);
    let worlds = sharing.iter().filter(|peers| peers.use_nccl());
    worlds
        .flat_map(|peers| {
            let sharers = peers.sharers().into_iter();
            sharers.filter_map(|(gpu, ranks)| draft(situation, peers, gpu, &ranks))
        })
        .collect()
}

fn draft(situation: &Situation<'_>, peers: &Peers<'_>, gpu: &str, ranks: &[u32]) -> Option<Draft> {
    let sharers: Vec<(u32, &Process)> =
        ranks.iter().filter_map(|rank| Some((*rank, *peers.ranks.get(rank)?))).collect();
    if is_meant(&sharers) {
        return None;
    }
    let [(_, one), (_, other), ..] = sharers[..] else { return None };
    let mut said: Vec<_> = sharers.iter().filter_map(|(_, it)| it.gpu_at).collect();
    said.sort_unstable();
    let mut draft = Draft::new(&catalogue::DD307, KeyPlace::Ranks(ranks.to_vec()), *said.get(1)?);
    let misled = misled(&sharers);
    (draft.root, draft.root_confidence) = match &misled[..] {
        [] => (ranks.to_vec(), Confidence::Suspected),
        misled => (misled.to_vec(), Confidence::Supported),
    };
    draft.per_rank = skew::per_rank(situation.now, peers, ranks);
    draft.summary = format!("{} use one GPU ({gpu}){}", Ranks(ranks), hosts(&sharers));
    draft.say(
        "NCCL needs one GPU per rank: it refuses to connect ranks that share a GPU, or their kernels \
         block each other.",
    );
    let devices = sharers.iter().filter_map(|(rank, process)| {
        let device = device(process)?;
        Some(format!("Rank {rank}{device}."))
    });
    draft.why.extend(devices.take(LISTED));
    if !misled.is_empty() {
        draft.say(format!(
            "{} not use the device of the local rank.",
            begin(Ranks(&misled).with("does", "do")),
        ));
    }
    draft.advise(
        "Select the device by local rank before anything else: \
         torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])), and start no more ranks on a node than \
         it has GPUs.",
    );
    let proof = settings::contradiction(GPU, [(one, Some(gpu)), (other, Some(gpu))]);
    Some(draft.proved_by(proof))
}

/// Whether the ranks share the GPU on purpose, as NCCL's variables allow.
fn is_meant(sharers: &[(u32, &Process)]) -> bool {
    let enabled = |process: &Process| {
        let value = settings::setting(process, "NCCL_MULTI_RANK_GPU_ENABLE");
        value.is_some_and(|value| &**value != "0")
    };
    let ids: BTreeSet<_> = sharers
        .iter()
        .filter_map(|(_, process)| settings::setting(process, "NCCL_HOSTID"))
        .collect();
    ids.len() == sharers.len() || sharers.iter().all(|(_, process)| enabled(process))
}

/// Ranks that do not use the device of their local rank. Empty unless another sharer uses its own,
/// and all of them have the same visible devices.
fn misled(sharers: &[(u32, &Process)]) -> Vec<u32> {
    let visible = |process| settings::setting(process, "CUDA_VISIBLE_DEVICES");
    let first = visible(sharers[0].1);
    if sharers.iter().any(|(_, process)| visible(process) != first) {
        return Vec::new();
    }
    let number = |process: &Process, name: &str| process.settings.get(name)?.parse::<u32>().ok();
    let mut misled = Vec::new();
    for (rank, process) in sharers {
        let device = number(process, GPU_NUMBER);
        match (device, number(process, LOCAL_RANK)) {
            (Some(device), Some(local)) if device == local => {}
            (Some(_), Some(_)) => misled.push(*rank),
            _ => return Vec::new(),
        }
    }
    if misled.len() == sharers.len() { Vec::new() } else { misled }
}

/// " (local rank 1) is on device 0 of CUDA_VISIBLE_DEVICES=0,1"; unknown parts are left out.
fn device(process: &Process) -> Option<String> {
    let text = |name: &str| process.settings.get(name).filter(|it| !it.is_empty());
    let device = text(GPU_NUMBER)?;
    let local = text(LOCAL_RANK).map(|local| format!(" (local rank {local})"));
    let visible = settings::setting(process, "CUDA_VISIBLE_DEVICES")
        .map(|visible| format!(" of CUDA_VISIBLE_DEVICES={visible}"));
    Some(format!(
        "{} is on device {device}{}",
        local.unwrap_or_default(),
        visible.unwrap_or_default()
    ))
}

fn hosts(sharers: &[(u32, &Process)]) -> String {
    let distinct: BTreeSet<&str> = sharers.iter().map(|(_, process)| &*process.host).collect();
    let hosts: Vec<&str> = distinct.into_iter().filter(|it| !it.is_empty()).collect();
    if hosts.is_empty() {
        return String::new();
    }
    format!(" of {}", hosts.join(", "))
}
