//! The links of ranks: network ports of their hosts, and NVLinks of their GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::PortKind;
use ddp_doctor_proto::report::Timestamp;

use crate::model::{Down, GroupId, Model, Port, Rise};
use crate::situation::Situation;
use crate::words::{self, Ranks};

/// Minimum number of damaged packets that are an error.
const MIN_ERRORS: u64 = 10;
/// Minimum number of repeated packets that are an error. A connection waits for seconds before each.
const MIN_RETRIES: u64 = 4;
/// Minimum factor by which the rate exceeds that of the time before.
const MIN_FACTOR: f64 = 10.0;

/// A fault of a link.
pub(super) struct Fault<'a> {
    pub(super) port: &'a Port,
    /// Ranks that use it.
    pub(super) ranks: Vec<u32>,
    /// When it was measured without the fault.
    pub(super) after: Timestamp,
    /// When the fault was seen.
    pub(super) at: Timestamp,
    pub(super) kind: FaultKind,
}

/// What is wrong with a link.
pub(super) enum FaultKind {
    /// It went down.
    Down(Down),
    /// Errors rise while ranks wait, compared with the time before.
    Errors { rise: Rise, lasted: Duration, before: Rise, earlier: Duration },
}

/// The faults of all links that ranks use.
pub(super) fn faults<'a>(situation: &Situation<'a>) -> Vec<Fault<'a>> {
    let model = situation.model;
    let waits = has_waits(situation);
    if !model.ports.iter().any(|port| waits || port.down().is_some()) {
        return Vec::new();
    }
    let by_host = by_host(model);
    let periods = periods(situation);
    let mut found = Vec::new();
    for port in model.ports.iter().filter(|it| it.is_used()) {
        let fault = |ranks: Vec<u32>| match port.down() {
            Some(down) => {
                let kind = FaultKind::Down(down);
                Some(Fault { port, ranks, after: down.after, at: down.at, kind })
            }
            None => periods.iter().find_map(|(since, of)| {
                ranks.iter().any(|it| of.contains(it)).then_some(())?;
                let [(rise, lasted), (before, earlier)] = port.rise(*since)?;
                let kind = FaultKind::Errors { rise, lasted, before, earlier };
                is_much(rise, lasted, before, earlier).then(|| Fault {
                    port,
                    ranks: ranks.clone(),
                    after: *since,
                    at: port.measured().unwrap_or(*since),
                    kind,
                })
            }),
        };
        if periods.is_empty() && port.down().is_none() {
            continue;
        }
        let ranks = users(model, port, &by_host);
        found.extend(fault(ranks.clone()).filter(|_| !ranks.is_empty()));
    }
    found
}

/// Ranks by their hosts.
fn by_host(model: &Model) -> BTreeMap<Arc<str>, BTreeSet<u32>> {
    let mut by_host: BTreeMap<Arc<str>, BTreeSet<u32>> = BTreeMap::new();
    for process in model.processes.values().filter(|it| !it.host.is_empty()) {
        if let Some(rank) = process.rank {
            by_host.entry(Arc::clone(&process.host)).or_default().insert(rank);
        }
    }
    by_host
}

/// Ranks that use a link. Ranks of one host do not use its network.
fn users(model: &Model, port: &Port, by_host: &BTreeMap<Arc<str>, BTreeSet<u32>>) -> Vec<u32> {
    let identity = &port.identity;
    let Some(uuid) = &identity.gpu else {
        let ranks = by_host.get(&identity.host).filter(|_| by_host.len() > 1);
        return ranks.into_iter().flatten().copied().collect();
    };
    let uses = |process: &&crate::model::Process| {
        let gpu = model.gpus.used_by(process);
        gpu.is_some_and(|it| it.identity.uuid == *uuid && it.identity.host == identity.host)
    };
    let ranks = model.processes.values().filter(uses).filter_map(|it| it.rank);
    ranks.collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Whether there are periods in which ranks wait or are slow.
fn has_waits(situation: &Situation<'_>) -> bool {
    let losses = &situation.losses;
    !situation.inside.is_empty()
        || losses.communication.slow.is_some()
        || losses.straggler.is_some()
}

/// Since when ranks wait inside of collectives or are slow, and which.
fn periods(situation: &Situation<'_>) -> Vec<(Timestamp, BTreeSet<u32>)> {
    let members = |group: GroupId| -> BTreeSet<u32> {
        situation.model.group(group).members.keys().copied().collect()
    };
    let inside = situation
        .inside
        .iter()
        .filter(|it| it.overdue_at <= situation.now)
        .map(|it| (it.since, members(it.group)));
    let losses = &situation.losses;
    let slow =
        losses.communication.slow.iter().map(|it| (it.since, it.ranks.iter().copied().collect()));
    let late = losses.straggler.iter().map(|it| (it.since, it.ranks.iter().copied().collect()));
    inside.chain(slow).chain(late).collect()
}

/// Whether counters rose by far more than before.
fn is_much(rise: Rise, lasted: Duration, before: Rise, earlier: Duration) -> bool {
    let rate = |count: u64, time: Duration| count as f64 / time.as_secs_f64().max(0.001);
    let rises = |now: u64, past: u64, least: u64| {
        now >= least && rate(now, lasted) >= MIN_FACTOR * rate(past, earlier)
    };
    !earlier.is_zero()
        && (rises(rise.errors, before.errors, MIN_ERRORS)
            || rises(rise.retries, before.retries, MIN_RETRIES))
}

/// "the InfiniBand port mlx5_0/1 of host b, where rank 1 runs,".
pub(super) fn name(port: &Port, ranks: &[u32]) -> String {
    let identity = &port.identity;
    match identity.kind {
        PortKind::Nvlink => format!(
            "an NVLink of the GPU of {} (GPU {} of host {})",
            Ranks(ranks),
            identity.name,
            identity.host
        ),
        kind => format!(
            "the {kind} port {} of host {}, where {},",
            identity.name,
            identity.host,
            Ranks(ranks).with("runs", "run")
        ),
    }
}

impl Fault<'_> {
    /// Whether it is a fault of NVLinks.
    pub(super) fn is_of_gpu(&self) -> bool {
        self.port.identity.gpu.is_some()
    }

    /// The predicate: "went down".
    pub(super) fn what(&self) -> String {
        match &self.kind {
            FaultKind::Down(Down { is_up: false, times: 0 | 1, .. }) => "went down".to_owned(),
            FaultKind::Down(Down { is_up: false, times, .. }) => {
                format!("went down {times} times, and is down")
            }
            FaultKind::Down(Down { times: 0 | 1, .. }) => "went down and came up again".to_owned(),
            FaultKind::Down(Down { times, .. }) => {
                format!("went down {times} times, and is up again")
            }
            FaultKind::Errors { .. } => "has errors that rise while ranks wait".to_owned(),
        }
    }

    /// Sentences with the numbers.
    pub(super) fn measured(&self) -> Vec<String> {
        let counted = |rise: &Rise, time: Duration| {
            let time = words::seconds(time);
            format!("{} damaged and {} repeated packets in {time}", rise.errors, rise.retries)
        };
        match &self.kind {
            FaultKind::Down(_) => {
                let rise = self
                    .port
                    .rise(self.after)
                    .map(|it| it[0])
                    .filter(|(rise, _)| *rise != Rise::default())
                    .map(|(rise, time)| format!("Since then: {}.", counted(&rise, time)));
                rise.into_iter().collect()
            }
            FaultKind::Errors { rise, lasted, before, earlier } => vec![format!(
                "While ranks wait: {}. Before: {}.",
                counted(rise, *lasted),
                counted(before, *earlier)
            )],
        }
    }

    /// What to do.
    pub(super) fn advice(&self) -> String {
        let name = &self.port.identity.name;
        let device = name.split('/').next().unwrap_or(name);
        match self.port.identity.kind {
            PortKind::Nvlink => "Drain the host and check the links: nvidia-smi nvlink --status, nvidia-smi nvlink -e, \
                                 dmesg | grep -i xid."
                .to_owned(),
            PortKind::Ethernet => format!(
                "Check the cable, its transceivers and the port of the switch: ethtool {name}, ethtool -S {name}, dmesg | grep {name}."
            ),
            _ => format!(
                "Check the cable, its transceivers and the port of the switch: ibstat {device}, mlxlink -d {device}, dmesg | grep {device}."
            ),
        }
    }
}

/// What the network ports of the hosts of a group show since a time, if they show that they are not the fault.
pub(crate) fn exclusion(
    situation: &Situation<'_>,
    group: GroupId,
    since: Timestamp,
) -> Option<String> {
    let model = situation.model;
    let members = &model.group(group).members;
    let of_group = by_host(model)
        .into_iter()
        .filter(|(_, ranks)| ranks.iter().any(|rank| members.contains_key(rank)));
    let hosts: BTreeSet<Arc<str>> = of_group.map(|(host, _)| host).collect();
    if hosts.len() < 2 {
        return None;
    }
    let mut shown = BTreeSet::new();
    for port in model.ports.iter().filter(|it| it.is_used() && it.identity.gpu.is_none()) {
        if !hosts.contains(&port.identity.host) {
            continue;
        }
        let [(rise, _), _] = port.rise(since)?;
        if port.down().is_some() || rise != Rise::default() {
            return None;
        }
        shown.insert(Arc::clone(&port.identity.host));
    }
    (shown == hosts).then(|| {
        format!(
            "No network port of the {} hosts went down, and their counters of errors did not rise while ranks waited.",
            hosts.len()
        )
    })
}
