//! Comparison of versions, settings and GPUs that the ranks of a world report.
//!
//! Unknown values never differ. A variable that must agree is known to be unset if a process did
//! not report it: processes report all such variables before they join the world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::report::{Certificate, CertificateKind, Fact, SettingFact, Timestamp};
use ddp_doctor_proto::vocabulary::NCCL_LAYER;

use crate::input::backends::{self, Backend, NCCL};
use crate::input::settings::{GPU, VARIABLE, VERSIONS, meaning, must_agree};
use crate::model::{Model, Process, World};
use crate::proof::{self, Rejection};
use crate::situation::startup::Joiner;

/// Maximum number of variables that a process reports; beyond it, unreported ones are unknown.
const MAX_VARIABLES: usize = 128;

/// The ranks of one world.
pub(crate) struct Peers<'a> {
    /// The processes by rank.
    pub ranks: BTreeMap<u32, &'a Process>,
    /// The backends by which they may communicate.
    backends: Vec<&'static Backend>,
    /// Ranks grouped by equal reports of everything that is compared, with the process that
    /// reported first.
    alike: Vec<(&'a Process, Vec<u32>)>,
}

/// Values that differ between the ranks of a world.
pub(crate) struct Skew<'a> {
    /// Ranks grouped by equal values, largest group first. Ranks with an unknown value are left
    /// out.
    pub sides: Vec<Side<'a>>,
    /// When the first two ranks had reported different values.
    pub at: Timestamp,
    /// The proof of the difference and its relevance, if there is one.
    pub proof: Option<Certificate>,
}

/// Ranks with equal values.
pub(crate) struct Side<'a> {
    /// The ranks, ascending.
    pub ranks: Vec<u32>,
    /// Their values of what differs, by name for users; `None`: not set.
    pub has: Vec<(&'a str, Option<&'a str>)>,
}

/// The worlds with several ranks; none if the reports of all processes are equal.
pub(crate) fn worlds(model: &Model) -> Vec<Peers<'_>> {
    let mut said = model.processes.values().map(|it| it.fingerprint);
    let first = said.next();
    if said.all(|other| Some(other) == first) {
        return Vec::new();
    }
    peers(model)
}

/// The worlds with several ranks; none if no GPU is reported by several processes.
pub(crate) fn worlds_that_share(model: &Model) -> Vec<Peers<'_>> {
    let mut gpus = model.processes.values().filter_map(|process| process.settings.get(GPU));
    let mut known = BTreeSet::new();
    if gpus.all(|gpu| known.insert(gpu)) {
        return Vec::new();
    }
    peers(model)
}

fn peers(model: &Model) -> Vec<Peers<'_>> {
    let mut worlds: BTreeMap<&World, BTreeMap<u32, &Process>> = BTreeMap::new();
    for process in model.processes.values() {
        if let Some(rank) = process.rank {
            worlds.entry(&process.world).or_default().insert(rank, process);
        }
    }
    let several = worlds.into_values().filter(|ranks| ranks.len() > 1);
    several.map(Peers::new).collect()
}

impl<'a> Peers<'a> {
    fn new(ranks: BTreeMap<u32, &'a Process>) -> Self {
        let has_cuda = ranks.values().any(|process| {
            let settings = &process.settings;
            settings.contains_key("torch.cuda") || settings.contains_key(GPU)
        });
        let has_device = |kind: &str| kind != "cuda" || has_cuda;
        let used = |process: &&Process| match &process.init {
            Some(init) => Backend::requested_by(&init.backend, has_device),
            // Without a recorded initialization, the layer shows the backend.
            None if &*process.layer == NCCL_LAYER => vec![&NCCL],
            None => Vec::new(),
        };
        Self { backends: ranks.values().flat_map(used).collect(), alike: alike(&ranks), ranks }
    }

    /// Whether they communicate by NCCL, or RCCL.
    pub(crate) fn use_nccl(&self) -> bool {
        self.backends.iter().any(|it| it.variable_part == NCCL.variable_part)
    }

    /// Versions that differ.
    pub(crate) fn versions(&self) -> Option<Skew<'a>> {
        let uses_nccl = self.use_nccl();
        let heeded = VERSIONS.iter().filter(|(.., nccl)| uses_nccl || !nccl);
        let names: Vec<(&str, &str)> = heeded.map(|&(name, label, _)| (name, label)).collect();
        self.skew(&names, |process, name| {
            process.settings.get(name).map(|version| Some(&**version))
        })
    }

    /// Environment variables that differ but must agree.
    pub(crate) fn variables(&self) -> Option<Skew<'a>> {
        let said: BTreeSet<(&str, &str)> = self
            .alike
            .iter()
            .flat_map(|(process, _)| process.settings.keys())
            .filter_map(|setting| Some((&**setting, setting.strip_prefix(VARIABLE)?)))
            .filter(|(_, name)| must_agree(name) && self.heeds(name))
            .collect();
        self.skew(&said.into_iter().collect::<Vec<_>>(), variable)
    }

    /// GPUs that are used by several ranks, with those ranks.
    pub(crate) fn sharers(&self) -> Vec<(&'a str, Vec<u32>)> {
        let mut sharers: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
        for (&rank, process) in &self.ranks {
            let Some(gpu) = process.settings.get(GPU).filter(|gpu| !gpu.is_empty()) else {
                continue;
            };
            // A PCI address is only unique within a host.
            let host = gpu.starts_with("pci ").then_some(&*process.host);
            let known = sharers.entry((gpu, host.unwrap_or_default())).or_default();
            known.push(rank);
        }
        let several = sharers.into_iter().filter(|(_, ranks)| ranks.len() > 1);
        several.map(|((gpu, _), ranks)| (gpu, ranks)).collect()
    }

    /// Whether a backend in use reads the variable.
    fn heeds(&self, name: &str) -> bool {
        let is_its = |it: &&Backend| it.variable_part.is_some_and(|part| name.contains(part));
        !backends::ALL.iter().any(is_its) || self.backends.iter().any(is_its)
    }

    /// The difference in these settings, given by name and name for users. `of`: the value of a
    /// process; the outer `None`: unknown.
    fn skew(
        &self,
        names: &[(&'a str, &'a str)],
        of: impl Fn(&'a Process, &str) -> Option<Option<&'a str>>,
    ) -> Option<Skew<'a>> {
        // The name of a variable for users is the one by which its values have a meaning.
        let meant = |process, (name, label): (&str, &str)| Some(meaning(label, of(process, name)?));
        let mut processes: Vec<&Process> = self.alike.iter().map(|(process, _)| *process).collect();
        processes.sort_by_key(|process| (said_at(process), process.rank));
        // The first two processes that reported different values.
        let differ = |setting| {
            let mut said = processes.iter().filter_map(|&it| Some((it, meant(it, setting)?)));
            let (one, first) = said.next()?;
            let (other, _) = said.find(|(_, other)| *other != first)?;
            Some([one, other])
        };
        let differences: Vec<((&str, &str), [&Process; 2])> =
            names.iter().filter_map(|&name| Some((name, differ(name)?))).collect();
        let first = differences.iter().min_by_key(|(_, [_, other])| said_at(other));
        let &((name, _), [one, other]) = first?;
        let mut sides: BTreeMap<Vec<Option<String>>, Side<'a>> = BTreeMap::new();
        for (process, ranks) in &self.alike {
            let all = differences.iter().map(|(name, _)| meant(process, *name));
            let Some(all) = all.collect::<Option<Vec<_>>>() else { continue };
            let has = || {
                let has = differences.iter();
                has.map(|&((name, label), _)| (label, of(process, name).flatten())).collect()
            };
            let side = sides.entry(all).or_insert_with(|| Side { ranks: Vec::new(), has: has() });
            side.ranks.extend(ranks);
        }
        let mut sides: Vec<Side<'_>> = sides.into_values().collect();
        for side in &mut sides {
            side.ranks.sort_unstable();
        }
        sides.sort_by_key(|side| (std::cmp::Reverse(side.ranks.len()), side.ranks[0]));
        let said = |process| (process, of(process, name).flatten());
        let proof = contradiction(name, [said(one), said(other)]);
        Some(Skew { sides, at: said_at(other), proof })
    }
}

/// Ranks grouped by equal reports of equal completeness.
fn alike<'a>(ranks: &BTreeMap<u32, &'a Process>) -> Vec<(&'a Process, Vec<u32>)> {
    let mut alike: BTreeMap<(u64, bool), (&Process, Vec<u32>)> = BTreeMap::new();
    for (&rank, &process) in ranks {
        let kind = (process.fingerprint, tells_all(process));
        let (first, ranks) = alike.entry(kind).or_insert((process, Vec::new()));
        if said_at(process) < said_at(first) {
            *first = process;
        }
        ranks.push(rank);
    }
    alike.into_values().collect()
}

/// Whether a process is known to have no variables other than those it reported: it reports all of
/// them before it joins.
fn tells_all(process: &Process) -> bool {
    process.init.is_some() && process.lost == 0 && process.settings.len() < MAX_VARIABLES
}

/// When a process had reported its settings.
fn said_at(process: &Process) -> Timestamp {
    let init = process.init.as_ref().map(|init| init.call.at);
    init.unwrap_or(process.said_at)
}

/// The value of a setting that is a variable in a process; the outer `None`: unknown.
fn variable<'a>(process: &'a Process, setting: &str) -> Option<Option<&'a str>> {
    let said = process.settings.get(setting).map(|value| value.trim()).filter(|it| !it.is_empty());
    (said.is_some() || tells_all(process)).then_some(said)
}

/// The proof that two processes of one world contradict each other by their values of a setting;
/// `None` if nothing shows that they belong to one world.
pub(crate) fn contradiction(
    name: &str,
    said: [(&Process, Option<&str>); 2],
) -> Option<Certificate> {
    let joins = said.map(|(process, _)| Joiner::new(process)?.fact());
    let has = said.map(|(process, value)| {
        Some(Fact::Setting(SettingFact {
            rank: process.rank?,
            host: process.host.to_string(),
            pid: process.pid,
            name: name.to_owned(),
            value: value.map(str::to_owned),
        }))
    });
    let facts = joins.into_iter().chain(has).collect::<Option<Vec<_>>>()?;
    let proof = Certificate { kind: CertificateKind::Contradiction, facts };
    // Evidence of which parts are missing may not show that they meet.
    (proof::check(&proof) != Err(Rejection::NotOneWorld)).then_some(proof)
}

/// The value of a variable that a process reported, unless it is empty.
pub(crate) fn setting<'a>(process: &'a Process, name: &str) -> Option<&'a Arc<str>> {
    let value = process.settings.get(format!("{VARIABLE}{name}").as_str());
    value.filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_host_need_not_agree() {
        for name in [
            "NCCL_SOCKET_IFNAME",
            "NCCL_IB_HCA",
            "NCCL_IB_GID_INDEX",
            "NCCL_HOSTID",
            "NCCL_DEBUG",
            "NCCL_DEBUG_SUBSYS",
            "NCCL_DEBUG_FILE",
            "NCCL_TOPO_FILE",
            "NCCL_RAS_ADDR",
            "NCCL_RAS_ENABLE",
            "NCCL_PROFILER_PLUGIN",
            "NCCL_PROFILE_EVENT_MASK",
            "NCCL_VERSION",
            "NCCL_ASYNC_ERROR_HANDLING",
            "GLOO_SOCKET_IFNAME",
            "CUDA_VISIBLE_DEVICES",
            "OMP_NUM_THREADS",
            "TORCH_NCCL_DESYNC_DEBUG",
        ] {
            assert!(!must_agree(name), "{name}");
        }
        for name in [
            "NCCL_ALGO",
            "NCCL_PROTO",
            "NCCL_P2P_DIRECT_DISABLE",
            "NCCL_IB_DISABLE",
            "NCCL_MAX_CTAS",
            "NCCL_NET_PLUGIN",
            "TORCH_DISTRIBUTED_DEBUG",
            "TORCH_DIST_USE_NCCL2",
        ] {
            assert!(must_agree(name), "{name}");
        }
    }

    #[test]
    fn values_with_the_same_effect_do_not_differ() {
        let same =
            |name, a, b| assert_eq!(meaning(name, a), meaning(name, b), "{name} {a:?} {b:?}");
        same("TORCH_DISTRIBUTED_DEBUG", Some("INFO"), None);
        same("TORCH_DIST_INIT_BARRIER", Some("0"), None);
        same("TORCH_DIST_USE_NCCL2", Some("1"), None);
        same("NCCL_P2P_DISABLE", Some("0"), None);
        same("NCCL_ALGO", Some("Ring"), Some("ring"));
        assert_ne!(meaning("TORCH_DISTRIBUTED_DEBUG", Some("detail")), None);
        assert_ne!(meaning("NCCL_P2P_DISABLE", Some("1")), None);
        assert_ne!(meaning("NCCL_NVLS_ENABLE", Some("0")), None);
    }
}
