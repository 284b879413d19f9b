//! DD307 device-shared: two ranks use one GPU.

use std::collections::BTreeSet;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect};

use super::{About, Detector, Draft, Key, KeyPlace, order, skew};
use crate::diagnosis::model::{Exception, Process};
use crate::diagnosis::settings::{self, Peers};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{Capital, Ranks, number};

/// Parts of NCCL's error messages about a shared GPU.
const NCCLS_WORDS: [&str; 2] = [
    "Duplicate GPU detected",
    "Multiple Ranks are using the same GPU",
];

/// Maximum number of ranks whose devices are listed.
const LISTED: usize = 8;

static ABOUT: About = About {
    code: &catalogue::DD307,
    order: order::SETTINGS,
};

/// DD307: a GPU that several ranks use.
pub(super) struct DeviceShared;

impl Detector for DeviceShared {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let worlds = settings::worlds_that_share(situation.model);
        let worlds = worlds.iter().filter(|peers| peers.uses_nccl);
        worlds
            .flat_map(|peers| {
                let sharers = peers.sharers().into_iter();
                sharers.filter_map(|(gpu, ranks)| draft(situation, peers, gpu, &ranks))
            })
            .collect()
    }
}

fn draft(situation: &Situation<'_>, peers: &Peers<'_>, gpu: &str, ranks: &[u32]) -> Option<Draft> {
    let sharers: Vec<(u32, &Process)> = ranks
        .iter()
        .filter_map(|rank| Some((*rank, *peers.ranks.get(rank)?)))
        .collect();
    if is_meant(&sharers) {
        return None;
    }
    let [(_, one), (_, other), ..] = sharers[..] else {
        return None;
    };
    let mut said: Vec<_> = sharers.iter().filter_map(|(_, it)| it.gpu_at).collect();
    said.sort_unstable();
    let mut draft = Draft::new(&ABOUT, KeyPlace::Ranks(ranks.to_vec()), *said.get(1)?);
    let misled = misled(&sharers);
    (draft.root, draft.root_confidence) = match &misled[..] {
        [] => (ranks.to_vec(), Confidence::Suspected),
        misled => (misled.to_vec(), Confidence::Supported),
    };
    draft.per_rank = skew::per_rank(situation, peers, ranks);
    draft.summary = format!(
        "{} use one GPU ({gpu}) of {}",
        Ranks(ranks),
        hosts(&sharers)
    );
    draft.why = vec![
        "NCCL needs a GPU for each rank: it refuses to connect ranks that share one, or their kernels \
         block each other."
            .into(),
    ];
    let devices = sharers.iter().filter_map(|(rank, process)| {
        let device = device(process)?;
        Some(format!("Rank {rank}{device}."))
    });
    draft.why.extend(devices.take(LISTED));
    if !misled.is_empty() {
        draft.why.push(format!(
            "{} {} not use the device of the local rank.",
            Capital(Ranks(&misled)),
            number(&misled, "does", "do"),
        ));
    }
    draft.next = vec![
        "Choose the device by the local rank before anything else: \
         torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])), and start no more ranks on a node than \
         it has GPUs."
            .into(),
    ];
    let refused = |process: &Process| process.exceptions.iter().any(is_nccls);
    if peers.ranks.values().any(|process| refused(process)) {
        draft.effect = Effect::Crashes;
        draft.victims = peers.ranks.keys().copied().collect();
        draft.victims.retain(|rank| !draft.root.contains(rank));
    }
    Some(draft.proved_by(skew::proof(&settings::shared(one, other))))
}

/// Whether the ranks share the GPU on purpose, as NCCL's variables allow.
fn is_meant(sharers: &[(u32, &Process)]) -> bool {
    let enabled = |process: &Process| {
        let value = settings::of(process, "NCCL_MULTI_RANK_GPU_ENABLE");
        value.is_some_and(|value| &**value != "0")
    };
    let ids: BTreeSet<_> = sharers
        .iter()
        .filter_map(|(_, process)| settings::of(process, "NCCL_HOSTID"))
        .collect();
    ids.len() == sharers.len() || sharers.iter().all(|(_, process)| enabled(process))
}

/// Ranks that do not use the device of their local rank. Empty unless another sharer uses its own,
/// and all of them have the same visible devices.
fn misled(sharers: &[(u32, &Process)]) -> Vec<u32> {
    let visible = |process| settings::of(process, "CUDA_VISIBLE_DEVICES");
    let first = visible(sharers[0].1);
    if sharers.iter().any(|(_, process)| visible(process) != first) {
        return Vec::new();
    }
    let number = |process: &Process, name: &str| process.settings.get(name)?.parse::<u32>().ok();
    let mut misled = Vec::new();
    for (rank, process) in sharers {
        let device = number(process, settings::GPU_NUMBER);
        match (device, number(process, settings::LOCAL_RANK)) {
            (Some(device), Some(local)) if device == local => {}
            (Some(_), Some(_)) => misled.push(*rank),
            _ => return Vec::new(),
        }
    }
    match misled.len() == sharers.len() {
        true => Vec::new(),
        false => misled,
    }
}

/// " (local rank 1) is on device 0 of CUDA_VISIBLE_DEVICES=0,1"; unknown parts are left out.
fn device(process: &Process) -> Option<String> {
    let text = |name: &str| process.settings.get(name).filter(|it| !it.is_empty());
    let device = text(settings::GPU_NUMBER)?;
    let local = text(settings::LOCAL_RANK).map(|local| format!(" (local rank {local})"));
    let visible = settings::of(process, "CUDA_VISIBLE_DEVICES");
    let visible = visible.map(|visible| format!(" of CUDA_VISIBLE_DEVICES={visible}"));
    Some(format!(
        "{} is on device {device}{}",
        local.unwrap_or_default(),
        visible.unwrap_or_default()
    ))
}

fn hosts(sharers: &[(u32, &Process)]) -> String {
    let hosts: BTreeSet<&str> = sharers.iter().map(|(_, process)| &*process.host).collect();
    let hosts: Vec<&str> = hosts.into_iter().collect();
    hosts.join(", ")
}

fn is_nccls(exception: &Exception) -> bool {
    let mut words = NCCLS_WORDS.iter();
    words.any(|words| exception.text.contains(words))
}

/// Key of the finding that an exception follows from: NCCL raised it because of a shared GPU.
pub(super) fn follows(
    situation: &Situation<'_>,
    process: &Process,
    exception: &Exception,
) -> Option<Key> {
    if !is_nccls(exception) {
        return None;
    }
    let worlds = settings::worlds_that_share(situation.model);
    let peers = worlds.into_iter().find(|peers| {
        let mut ranks = peers.ranks.values();
        ranks.any(|other| other.id == process.id)
    })?;
    // NCCL's message names only two ranks; the key needs all sharers.
    let (_, ranks) = peers.sharers().into_iter().next()?;
    Some(Key {
        code: ABOUT.code.code,
        place: KeyPlace::Ranks(ranks),
    })
}

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use crate::diagnosis::testing::{holds, shows};

    const GPU: &str = "GPU-8a9f2c31-77d0-4b1e-9c55-0d6f3b2a1e44";

    /// A scenario of two ranks on one host, each with its GPU, and with further events in `says`.
    fn on(gpus: [&str; 2], backend: &str, says: &str) -> String {
        let [one, other] = gpus;
        format!(
            r#"
            world = 2
            hosts = {{ node-a = [0, 1] }}
            starting = true
            events = """
            0.5 * begins 2
            {says}
            1.0 * inits 2 node-a:29500 {backend} @train.py:12
            1.1 * inited
            1.5 0 sets gpu={one}
            1.6 1 sets gpu={other}
            """
            "#
        )
    }

    #[test]
    fn example_matches_output() {
        let refused = format!(
            r#"
            world = 2
            hosts = {{ node-a = [0, 1] }}
            starting = true
            events = """
            0.5 * begins 2
            0.5 0 sets init.local_rank=0
            0.5 1 sets init.local_rank=1
            1.0 * inits 2 node-a:29500 nccl @train.py:12
            1.1 * inited
            1.5 * sets gpu.number=0
            1.6 * sets gpu={GPU}
            2.0 * raises uncaught "DistBackendError: NCCL error: invalid usage. Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000" @train.py:16
            2.1 * exits 1
            """
            "#
        );
        shows(&ABOUT, &refused);
    }

    #[test]
    fn shared_gpu_is_proved_once_both_ranks_report_it() {
        let expect = r#"
            verdict = "healthy"
            [[expect]]
            code = "DD307"
            severity = "error"
            effect = "none"
            confidence = "proved"
            certificate = "contradiction"
            root = [0, 1]
            root-confidence = "suspected"
            detected = 1.6
            lines = { 0 = "train.py:12", 1 = "train.py:12" }
            summary-has = "ranks 0 and 1 use one GPU"
        "#;
        holds(&format!("{}{expect}", on([GPU, GPU], "nccl", "")));
        holds(&format!(
            "{}{expect}",
            on([GPU, GPU], "cpu:gloo,cuda:nccl", "")
        ));
    }

    #[test]
    fn rank_on_the_device_of_another_local_rank_is_the_root() {
        let says =
            "0.5 0 sets init.local_rank=0\n0.5 1 sets init.local_rank=1\n0.6 * sets gpu.number=0";
        let expect = r#"
            [[expect]]
            code = "DD307"
            root = [1]
            root-confidence = "supported"
        "#;
        holds(&format!("{}{expect}", on([GPU, GPU], "nccl", says)));
    }

    #[test]
    fn nccl_error_is_a_cascade_of_the_shared_gpu() {
        let crash = r#"
            1.9 0 raises uncaught "DistBackendError: NCCL error. Last error: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000" @train.py:16
            2.0 1 raises uncaught "DistBackendError: NCCL error. Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000" @train.py:16
            2.1 * exits 1
            """
            verdict = "crash"
            [[expect]]
            code = "DD307"
            role = "initiating"
            effect = "crashes"
            [[expect]]
            code = "DD202"
            role = "cascade"
            caused-by = "DD307"
        "#;
        let shared = on([GPU, GPU], "nccl", "");
        let until = shared.rfind(r#"""""#).unwrap();
        holds(&format!("{}{crash}", &shared[..until]));
    }

    #[test]
    fn mig_devices_count_as_separate_gpus() {
        let says = "0.5 * sets env.CUDA_VISIBLE_DEVICES=MIG-1,MIG-2";
        holds(&format!(
            "{}look-on = 20\n",
            on(["MIG-1", "MIG-2"], "nccl", says)
        ));
    }

    #[test]
    fn sharing_enabled_by_nccl_variables_is_ignored() {
        let ids = "0.5 0 sets env.NCCL_HOSTID=fake0\n0.5 1 sets env.NCCL_HOSTID=fake1";
        holds(&format!("{}look-on = 20\n", on([GPU, GPU], "nccl", ids)));
        let enabled = "0.5 * sets env.NCCL_MULTI_RANK_GPU_ENABLE=1";
        holds(&format!(
            "{}look-on = 20\n",
            on([GPU, GPU], "nccl", enabled)
        ));
    }

    #[test]
    fn shared_gpu_on_gloo_is_ignored() {
        holds(&format!("{}look-on = 20\n", on([GPU, GPU], "gloo", "")));
    }

    #[test]
    fn equal_pci_addresses_on_two_hosts_are_two_gpus() {
        let scenario = |hosts: &str| {
            format!(
                r#"
                world = 2
                hosts = {{ {hosts} }}
                starting = true
                events = """
                1.0 * inits 2 node-a:29500 nccl @train.py:12
                1.1 * inited
                1.5 * sets "gpu=pci 0000:1b:00"
                """
                "#
            )
        };
        holds(&format!("{}look-on = 20\n", scenario("a = [0], b = [1]")));
        let expect = "[[expect]]\ncode = \"DD307\"\nconfidence = \"proved\"";
        holds(&format!("{}{expect}", scenario("a = [0, 1]")));
    }
}
