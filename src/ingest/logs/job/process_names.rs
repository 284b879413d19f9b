//! Names of processes in logs, and the rank of each: which rank a fact is about.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ddp_doctor_diagnosis::model::MAX_WORLD;

use crate::logs::facts::{Facts, Gpu, Statement, Subject, is_name};
use crate::logs::lines::{Name, Worker};

/// A name of a process, and its rank; `None`: several ranks have it.
type Known<K> = BTreeMap<K, Option<u32>>;

/// The ranks of the names that logs use for processes.
#[derive(Debug, Default)]
pub(in super::super) struct ProcessNames {
    pids: Pids,
    locals: Known<u32>,
    tasks: Known<u32>,
    workers: Known<(u32, Option<IpAddr>)>,
    /// GPUs by their addresses, with the host and the rank of each.
    gpus: BTreeMap<u64, Vec<(Option<String>, u32)>>,
    /// Ranks that lists of the text place on hosts.
    placed: BTreeMap<String, BTreeSet<u32>>,
    /// Workers by the names that engines give to them.
    engines: Known<Name>,
    /// What engines call the processes of ranks.
    named: BTreeMap<u32, Worker>,
    /// Number of ranks of the world, if the text states it.
    pub(in super::super) world: Option<u32>,
    /// Host and process id by rank.
    pub(in super::super) processes: BTreeMap<u32, (Option<Arc<str>>, Option<u32>)>,
}

impl ProcessNames {
    pub(super) fn new(all: &[&Facts]) -> Self {
        let mut names = Self::default();
        let pairs: BTreeSet<_> = all.iter().flat_map(|facts| &facts.pairs).collect();
        for label in pairs {
            let Some(rank) = label.rank else { continue };
            if let Some(local) = label.local {
                learn(&mut names.locals, local, rank);
            }
            if let Some(task) = label.task {
                learn(&mut names.tasks, task, rank);
            }
            if let Some(worker) = label.worker.and_then(key) {
                learn(&mut names.workers, worker, rank);
                names.pids.learn(worker.0, None, rank);
                let known = names.processes.entry(rank).or_default();
                let host = worker.1.map(|it| it.to_string().into());
                known.0 = known.0.take().or(host);
            }
            names.learn_name(label.worker, rank);
        }
        names.learn_places(all);
        for (host, ranks) in all.iter().flat_map(|facts| &facts.placed) {
            names.placed.entry(short(host)).or_default().extend(ranks.clone());
        }
        let sizes = all.iter().flat_map(|facts| &facts.worlds).copied().chain(stated_by_tasks(all));
        names.world = sizes.filter(|&it| it <= MAX_WORLD).max();
        // Explicit names first: a rank in a communicator is a global one only if that spans the
        // world.
        for fact in all.iter().flat_map(|facts| &facts.facts) {
            let rank = names.explicit(&fact.who, &fact.what);
            let (Some(rank), who) = (rank, &fact.who) else {
                continue;
            };
            if let Some(pid) = who.pid {
                names.pids.learn(pid, who.host.as_deref(), rank);
            }
            if let Some(worker) = who.label.worker.and_then(key) {
                learn(&mut names.workers, worker, rank);
            }
            names.learn_name(who.label.worker, rank);
            if let (Some(task), Statement::Named { of: Some(_) }) = (who.label.task, &fact.what) {
                learn(&mut names.tasks, task, rank);
            }
            if let Some(local) = who.label.local.filter(|_| who.group.is_world()) {
                learn(&mut names.locals, local, rank);
            }
            let known = names.processes.entry(rank).or_default();
            known.0 = known.0.take().or_else(|| who.host.clone());
            known.1 = known.1.or(who.pid);
        }
        names.expect_tasks_to_be_ranks(all);
        names.expect_locals_to_be_ranks(all);
        for rank in all.iter().flat_map(|facts| &facts.ranks) {
            names.processes.entry(*rank).or_default();
        }
        let highest = names.processes.keys().next_back().copied();
        names.world = names.world.filter(|&size| highest.is_none_or(|rank| rank < size));
        names.expect_one_node(all);
        names.learn_locals(all);
        names.learn_gpus(all);
        for fact in all.iter().flat_map(|facts| &facts.facts) {
            if let Some(rank) = names.rank(&fact.who, Some(&fact.what)) {
                names.learn_name(fact.who.label.worker, rank);
                fact.who.host.iter().for_each(|host| names.learn_host(host, rank));
            }
        }
        for (host, ranks) in all.iter().flat_map(|facts| &facts.placed) {
            let host: Arc<str> = host.as_str().into();
            let known: Vec<u32> = names.processes.keys().copied().collect();
            for rank in known.into_iter().filter(|it| ranks.contains(it)) {
                names.learn_host(&host, rank);
            }
        }
        names
    }

    /// Takes what an engine calls the process of a rank.
    fn learn_name(&mut self, worker: Option<Worker>, rank: u32) {
        if let Some(worker) = worker.filter(|it| !it.is_unnamed()) {
            self.named.entry(rank).or_insert(worker);
        }
    }

    /// Takes the host of a rank.
    fn learn_host(&mut self, host: &Arc<str>, rank: u32) {
        let known = self.processes.entry(rank).or_default();
        known.0.get_or_insert_with(|| Arc::clone(host));
    }

    /// What the text calls the process of a rank, if an engine named it.
    pub(in super::super) fn worker_of(&self, rank: u32) -> Option<Arc<str>> {
        let worker = self.named.get(&rank)?;
        let pid = worker.pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        Some(format!("{}{pid}", worker.name).into())
    }

    /// Where an engine counts places in tensor parallelism across all data-parallel ranks, as SGLang does with
    /// data-parallel attention, the place is the rank: each occurs once.
    fn learn_places(&mut self, all: &[&Facts]) {
        let known: BTreeSet<Name> = all.iter().flat_map(|it| &it.workers).copied().collect();
        let places: Vec<(Name, (u32, u32))> =
            known.iter().filter_map(|name| Some((*name, name.place()?))).collect();
        let replicas: BTreeSet<u32> = places.iter().map(|(_, (replica, _))| *replica).collect();
        let ranks: BTreeSet<u32> = places.iter().map(|(_, (_, place))| *place).collect();
        if replicas.len() > 1 && ranks.len() == places.len() {
            for (name, (_, rank)) in places {
                learn(&mut self.engines, name, rank);
                self.learn_name(Some(Worker { name, pid: None, host: None }), rank);
                self.processes.entry(rank).or_default();
            }
        }
    }

    /// Where the world has as many ranks as one node, local ranks are ranks. Sizes of communicators may be
    /// those of smaller groups.
    fn expect_one_node(&mut self, all: &[&Facts]) {
        let facts = all.iter().flat_map(|facts| &facts.facts);
        let locals: BTreeSet<u32> = facts.clone().filter_map(|it| it.who.label.local).collect();
        let mut of_communicators =
            facts.filter(|it| it.who.pid.is_some()).filter_map(|it| match it.what {
                Statement::Named { of } => of,
                _ => None,
            });
        let last = locals.last().copied();
        let has_all = |facts: &&Facts| {
            let own: BTreeSet<u32> = facts
                .facts
                .iter()
                .filter_map(|it| match it.what {
                    Statement::Named { of: Some(size) } if Some(size) == self.world => it.who.rank,
                    _ => None,
                })
                .collect();
            self.world == u32::try_from(own.len()).ok()
        };
        // All of them write to the output of one launcher, or the last one of the node is known.
        let is_one =
            (self.world == last.map(|it| it + 1) || all.iter().any(has_all)) && last < self.world;
        if is_one && !of_communicators.any(|it| Some(it) == self.world) {
            for local in locals {
                self.locals.entry(local).or_insert(Some(local));
            }
        }
    }

    /// ProcessNames processes that launchers started for local ranks.
    fn learn_locals(&mut self, all: &[&Facts]) {
        for fact in all.iter().flat_map(|facts| &facts.facts) {
            let local = fact.who.label.local.filter(|_| is_name(&fact.what));
            let rank = local.and_then(|it| *self.locals.get(&it)?);
            if let (Some(rank), Some(pid)) = (rank, fact.who.pid) {
                self.pids.learn(pid, fact.who.host.as_deref(), rank);
            }
        }
    }

    /// Takes the GPUs of processes whose rank is known.
    fn learn_gpus(&mut self, all: &[&Facts]) {
        for ((bus, host), &pid) in all.iter().flat_map(|facts| &facts.gpus) {
            let host = host.as_deref();
            if let Some(rank) = self.pids.rank(pid, host) {
                self.gpus.entry(*bus).or_default().push((host.map(short), rank));
            }
        }
    }

    /// The rank that uses a GPU. Hosts have GPUs at equal addresses: it is one on this host, or on that which the
    /// name of the file states, or all ranks are on one host.
    fn rank_of_gpu(&self, gpu: &Gpu, host: Option<&str>) -> Option<u32> {
        let users = self.gpus.get(&gpu.bus)?;
        let is_named = |it: &Option<String>| {
            let known = it.as_deref().unwrap_or_default();
            host.map_or_else(|| has_word(&gpu.file, known), |host| short(host) == known)
        };
        let mut named = users.iter().filter(|(host, _)| is_named(host)).map(|it| it.1);
        let by_name = named.next().filter(|_| named.next().is_none());
        let all = self.gpus.values().flatten();
        let ranks: BTreeSet<u32> = all.clone().map(|it| it.1).collect();
        let is_one_host = all.clone().all(|it| it.0 == users[0].0);
        let has_all = self.world.is_some_and(|size| size as usize == ranks.len());
        let only = users.first().filter(|_| host.is_none() && users.len() == 1);
        by_name.or_else(|| only.filter(|_| is_one_host && has_all).map(|it| it.1))
    }

    /// The only host of a rank that the name of a file has.
    pub(super) fn host_in(&self, file: &str) -> Option<String> {
        let hosts = self.processes.values().filter_map(|it| it.0.as_deref());
        let mut named: Vec<String> = hosts.map(short).filter(|it| has_word(file, it)).collect();
        named.sort_unstable();
        named.dedup();
        named.pop_if(|_| true).filter(|_| named.is_empty())
    }

    /// Whether a rank is known to run on a host, or its launcher labels its lines by that name.
    pub(super) fn is_on(&self, rank: u32, host: &str) -> bool {
        let label = self.named.get(&rank).map(|it| it.name.to_string());
        self.on_host(host).contains(&rank) || label.is_some_and(|it| short(&it) == short(host))
    }

    /// Whether a host is that of all ranks: it is the only one that the text states, or the text states none; `None`: the
    /// text does not name this one.
    pub(super) fn has_one_host(&self, host: Option<&str>) -> bool {
        let placed = self.placed.keys().cloned();
        let known = self.processes.values().filter_map(|it| it.0.as_deref()).map(short);
        let hosts: BTreeSet<String> = known.chain(placed).collect();
        match host {
            Some(_) => hosts.is_empty(),
            None => hosts.len() <= 1,
        }
    }

    /// Ranks that use a GPU at this address, on any host.
    pub(super) fn users_of(&self, gpu: &Gpu) -> Vec<u32> {
        self.gpus.get(&gpu.bus).into_iter().flatten().map(|it| it.1).collect()
    }

    /// Ranks known to run on a host, or that the text places there.
    pub(super) fn on_host(&self, host: &str) -> BTreeSet<u32> {
        let processes = self.processes.iter();
        let those = processes.filter(|(_, (it, _))| it.as_deref().map(short) == Some(short(host)));
        let placed = self.placed.get(&short(host)).into_iter().flatten();
        those.map(|(&rank, _)| rank).chain(placed.copied()).collect()
    }

    /// The same of local ranks, if the text names no rank of another node.
    fn expect_locals_to_be_ranks(&mut self, all: &[&Facts]) {
        let facts = all.iter().flat_map(|facts| &facts.facts);
        let locals: BTreeSet<u32> = facts.filter_map(|it| it.who.label.local).collect();
        let of_labels = all.iter().flat_map(|facts| &facts.ranks).max();
        let highest = self.processes.keys().next_back().max(of_labels);
        let last = locals.last().max(self.locals.keys().next_back());
        if agree(&self.locals) && highest <= last {
            for local in locals {
                self.locals.entry(local).or_insert(Some(local));
            }
        }
    }

    /// Where every task that is known is the rank of its number, others are as well. So are all if the text names as many
    /// as there are ranks: both are numbered from the first node on. The same if several have the number of their local
    /// rank: those of a second node would not.
    fn expect_tasks_to_be_ranks(&mut self, all: &[&Facts]) {
        let facts = all.iter().flat_map(|facts| &facts.facts);
        let pairs: BTreeSet<(u32, u32)> = facts
            .clone()
            .filter_map(|fact| Some((fact.who.label.task?, fact.who.label.local?)))
            .collect();
        let are_locals = pairs.len() > 1 && pairs.iter().all(|(task, local)| task == local);
        let tasks: BTreeSet<u32> = facts
            .filter_map(|fact| fact.who.label.task)
            .chain(all.iter().flat_map(|it| &it.tasks).copied())
            .collect();
        let is_world = self.world.is_some_and(|size| tasks.iter().copied().eq(0..size));
        let is_likely = is_world || are_locals;
        if !(agree(&self.tasks) || is_likely && self.tasks.is_empty()) {
            return;
        }
        for task in tasks {
            self.tasks.entry(task).or_insert(Some(task));
            self.processes.entry(task).or_default();
        }
    }

    /// The rank that the text itself states.
    fn explicit(&self, who: &Subject, what: &Statement) -> Option<u32> {
        let is_world = !who.group.is_named() || who.group.is_world();
        let is_global = match what {
            Statement::Named { of: Some(size) } => Some(*size) == self.world,
            _ => is_world,
        };
        who.label.rank.or(who.rank.filter(|_| is_global))
    }

    /// Whether this may be the process of the rank: nodes have the same local ranks.
    fn may_be(&self, rank: u32, pid: Option<u32>) -> bool {
        let known = self.processes.get(&rank).and_then(|it| it.1);
        known.is_none() || pid.is_none() || known == pid
    }

    /// The rank that a fact is about; `None`: the text does not say.
    pub(super) fn rank(&self, who: &Subject, what: Option<&Statement>) -> Option<u32> {
        let explicit = match what {
            Some(what) => self.explicit(who, what),
            None => who.label.rank,
        };
        let of = |known: &Known<u32>, name: Option<u32>| *known.get(&name?)?;
        explicit
            .or_else(|| self.pids.rank(who.pid?, who.host.as_deref()))
            .or_else(|| *self.workers.get(&who.label.worker.and_then(key)?)?)
            .or_else(|| *self.engines.get(&who.label.worker?.name)?)
            .or_else(|| {
                of(&self.locals, who.label.local).filter(|&rank| self.may_be(rank, who.pid))
            })
            .or_else(|| of(&self.tasks, who.label.task))
            .or_else(|| self.rank_of_gpu(who.gpu.as_ref()?, who.host.as_deref()))
    }
}

/// Whether numbers are known, and each of them is its rank.
fn agree(known: &Known<u32>) -> bool {
    let mut all = known.iter();
    !known.is_empty() && all.all(|(number, rank)| *rank == Some(*number))
}

/// What identifies a worker.
fn key(worker: Worker) -> Option<(u32, Option<IpAddr>)> {
    Some((worker.pid?, worker.host))
}

/// The world size that all tasks state which state their rank, if no two of them state one rank: those
/// of a smaller group would.
fn stated_by_tasks(all: &[&Facts]) -> Option<u32> {
    let facts = all.iter().flat_map(|facts| &facts.facts);
    let stated: BTreeSet<(u32, u32, u32)> = facts
        .filter_map(|fact| match (fact.who.label.task, fact.who.rank, &fact.what) {
            (Some(task), Some(rank), Statement::Named { of: Some(size) }) => {
                Some((*size, rank, task))
            }
            _ => None,
        })
        .collect();
    let &(size, ..) = stated.first()?;
    let ranks: BTreeSet<u32> = stated.iter().map(|it| it.1).collect();
    let is_world = stated.iter().all(|it| it.0 == size && it.2 < size);
    (is_world && ranks.len() == stated.len()).then_some(size)
}

/// Ranks by process id and host; `None`: the host is unknown. Processes of two hosts may have one id.
#[derive(Debug, Default)]
struct Pids(BTreeMap<u32, Known<Option<String>>>);

impl Pids {
    fn learn(&mut self, pid: u32, host: Option<&str>, rank: u32) {
        let hosts = self.0.entry(pid).or_default();
        learn(hosts, host.map(short), rank);
    }

    /// The only rank whose process this may be.
    fn rank(&self, pid: u32, host: Option<&str>) -> Option<u32> {
        let host = host.map(short);
        let fits = |known: &Option<String>| host.is_none() || known.is_none() || *known == host;
        let mut ranks = self.0.get(&pid)?.iter().filter(|(known, _)| fits(known));
        let (_, first) = ranks.next()?;
        ranks.all(|(_, other)| other == first).then_some(*first)?
    }
}

/// The name of a host without its domain, which only some lines state.
fn short(host: &str) -> String {
    let is_address = host.parse::<IpAddr>().is_ok();
    let name = host.split('.').next().filter(|_| !is_address);
    name.unwrap_or(host).to_owned()
}

/// Whether a name contains this word, not as a part of another one.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |it: char| it.is_alphanumeric();
    let mut found = text.match_indices(word).filter(|_| !word.is_empty());
    found.any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

fn learn<K: Ord>(known: &mut Known<K>, name: K, rank: u32) {
    let entry = known.entry(name).or_insert(Some(rank));
    *entry = entry.filter(|&other| other == rank);
}
