//! The process groups of a job, and how far each rank got in them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{GroupInfo, UNKNOWN_PROGRESS};

use crate::flight_recorder::dump::{Dump, Entry, Kind, NamedGroup, Numbers, Status};
use crate::flight_recorder::dumped_jobs::DumpedJob;

/// Index of a group in [`Groups::all`].
pub(in super::super) type GroupAt = usize;

/// Maximum number of members of all groups of a job.
const MAX_MEMBERS: usize = 1 << 24;

/// The groups of a job.
#[derive(Debug, Default)]
pub(in super::super) struct Groups {
    pub(in super::super) all: Vec<DumpedGroup>,
    /// Groups by rank and name; `None`: there was no room for it.
    of: BTreeMap<u32, HashMap<Arc<str>, Option<GroupAt>>>,
    /// Groups by rank and index of the kind of a call.
    by_kind: BTreeMap<u32, Vec<Option<GroupAt>>>,
    /// Members of all groups.
    members: usize,
    /// Groups that each rank with a dump is a member of.
    by_rank: BTreeMap<u32, Vec<GroupAt>>,
    by_identity: BTreeMap<(Arc<str>, Arc<[u32]>), GroupAt>,
    /// Number of ranks of the job.
    pub(in super::super) world_size: u32,
}

/// What the dumps of a job show of the members of groups.
struct Described {
    /// Lists of members by name of the group.
    lists: HashMap<Arc<str>, BTreeSet<Arc<[u32]>>>,
    /// Ranks that made calls in a group, by its name.
    users: HashMap<Arc<str>, Arc<[u32]>>,
    /// All ranks of the job.
    world: Arc<[u32]>,
}

/// A group of a job.
#[derive(Debug)]
pub(in super::super) struct DumpedGroup {
    pub(in super::super) info: Arc<GroupInfo>,
    /// Ranks with messages in the group, with their peers.
    pub(in super::super) peers: BTreeMap<u32, BTreeSet<Option<u32>>>,
    /// Progress of the ranks with a dump.
    pub(in super::super) progress: BTreeMap<u32, Progress>,
    /// Latest collective that all ranks with a dump may have issued.
    issued_by_all: u64,
    /// Its collectives are numbered from 0.
    from_zero: bool,
}

/// Progress of a rank in a group, in numbers of collectives that begin with 1.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Progress {
    /// Latest collective that it issued.
    pub(in super::super) issued: u64,
    /// Latest collective that its device is known to have completed.
    pub(in super::super) completed: u64,
    /// It has issued at most this many.
    pub(in super::super) is_limit: bool,
}

impl Groups {
    pub(in super::super) fn new(job: &DumpedJob) -> Self {
        let mut groups = Self { world_size: job.world_size(), ..Self::default() };
        let backends = backends(job);
        for (&rank, dump) in &job.ranks {
            for (name, config) in &dump.groups {
                if config.members.contains(&rank) {
                    groups.add(rank, name, &config.description, &config.members, &backends);
                }
            }
        }
        let described = Described::new(job, groups.world_size);
        for (&rank, dump) in &job.ranks {
            for group in named(dump) {
                let own = groups.of.get(&rank);
                if own.is_some_and(|own| own.contains_key(&group.name)) {
                    continue;
                }
                let members = described.members(job, rank, group);
                groups.add(rank, &group.name, &group.description, &members, &backends);
            }
            let own = groups.of.get(&rank);
            let kinds = dump.kinds.iter();
            let by_kind = kinds.map(|kind| *own?.get(&kind.group.name)?);
            groups.by_kind.insert(rank, by_kind.collect());
        }
        for (at, group) in groups.all.iter().enumerate() {
            for &rank in &group.info.key.members {
                if job.ranks.contains_key(&rank) {
                    groups.by_rank.entry(rank).or_default().push(at);
                }
            }
        }
        groups.find_peers(job);
        groups.find_progress(job);
        groups
    }

    /// The group of a kind of calls of a rank.
    pub(in super::super) fn of_kind(&self, rank: u32, kind: &Kind) -> Option<GroupAt> {
        *self.by_kind(rank).get(kind.index as usize)?
    }

    /// The groups of a rank's calls by the index of their kind.
    pub(in super::super) fn by_kind(&self, rank: u32) -> &[Option<GroupAt>] {
        self.by_kind.get(&rank).map_or(&[], Vec::as_slice)
    }

    /// Number of groups whose calls are left out because all groups have too many members.
    pub(in super::super) fn left_out(&self) -> usize {
        let groups = self.of.values().flatten();
        let names = groups.filter_map(|(name, at)| at.is_none().then_some(name));
        names.collect::<BTreeSet<_>>().len()
    }

    /// The groups that a rank with a dump is a member of.
    pub(in super::super) fn of_rank(&self, rank: u32) -> &[GroupAt] {
        self.by_rank.get(&rank).map_or(&[], Vec::as_slice)
    }

    fn add(
        &mut self,
        rank: u32,
        name: &Arc<str>,
        description: &Arc<str>,
        members: &Arc<[u32]>,
        backends: &BTreeMap<Arc<str>, Arc<str>>,
    ) {
        let identity = (Arc::clone(name), Arc::clone(members));
        let known = self.by_identity.get(&identity).copied();
        let has_room = self.members + members.len() <= MAX_MEMBERS;
        let at = known.or_else(|| {
            if !has_room {
                return None;
            }
            let backend = backends.get(name).cloned().unwrap_or_default();
            let info = GroupInfo::c10d(name, Arc::clone(description), backend, members.to_vec());
            self.all.push(DumpedGroup {
                info: Arc::new(info),
                peers: BTreeMap::new(),
                progress: BTreeMap::new(),
                issued_by_all: u64::MAX,
                from_zero: false,
            });
            let at = self.all.len() - 1;
            self.members += members.len();
            self.by_identity.insert(identity, at);
            Some(at)
        });
        let of = self.of.entry(rank).or_default();
        of.insert(Arc::clone(name), at);
    }

    fn find_peers(&mut self, job: &DumpedJob) {
        for (&rank, dump) in &job.ranks {
            for kind in dump.kinds.iter().filter(|kind| kind.is_message) {
                let Some(at) = self.of_kind(rank, kind) else {
                    continue;
                };
                let peer = self.all[at].peer(kind);
                self.all[at].peers.entry(rank).or_default().insert(peer);
            }
        }
    }

    fn find_progress(&mut self, job: &DumpedJob) {
        for (&rank, dump) in &job.ranks {
            for (kind, _) in collectives(dump).filter(|(_, it)| it.lowest == 0) {
                if let Some(at) = self.of_kind(rank, kind) {
                    self.all[at].from_zero = true;
                }
            }
        }
        for (&rank, dump) in &job.ranks {
            let mut ids: BTreeMap<GroupAt, i64> = BTreeMap::new();
            for (kind, numbers) in collectives(dump) {
                let Some(at) = self.of_kind(rank, kind) else {
                    continue;
                };
                ids.insert(at, kind.pg);
                let seq = self.all[at].number(numbers.highest);
                let progress = self.all[at].progress.entry(rank).or_default();
                progress.issued = progress.issued.max(seq);
            }
            let mut known: Vec<i64> = dump.kinds.iter().map(|kind| kind.pg).collect();
            known.sort_unstable();
            known.dedup();
            let others: Vec<Status> = dump
                .status
                .iter()
                .filter(|(id, _)| known.binary_search(id).is_err())
                .map(|(_, status)| *status)
                .collect();
            let groups = self.of_rank(rank).to_vec();
            let is_only = groups.len() == ids.len() + 1;
            for at in groups {
                let group = &mut self.all[at];
                // With messages in the group, its status counts whichever came last.
                let status = match (ids.get(&at), &others[..]) {
                    (Some(id), _) if group.peers.is_empty() => dump.status.get(id).copied(),
                    (None, [other]) if is_only && group.peers.is_empty() => Some(*other),
                    _ => None,
                };
                let shift = u64::from(group.from_zero);
                let progress = group.progress.entry(rank).or_default();
                if status.is_none() && !ids.contains_key(&at) && !dump.is_whole {
                    // The dump does not show which status is that of the group.
                    let furthest = others.iter().map(|it| it.enqueued.unwrap_or(0)).max();
                    progress.issued = furthest.map_or(UNKNOWN_PROGRESS, |it| it + shift);
                    progress.is_limit = true;
                    continue;
                }
                let status = status.unwrap_or_default();
                let enqueued = status.enqueued.map_or(0, |seq| seq + shift);
                progress.issued = progress.issued.max(enqueued);
                progress.completed = status.completed.map_or(0, |seq| seq + shift);
            }
        }
        for group in &mut self.all {
            let issued = group.progress.values().map(|it| it.issued).min();
            group.issued_by_all = issued.unwrap_or(u64::MAX);
        }
    }
}

impl Progress {
    /// Whether the rank has not made a collective.
    pub(in super::super) const fn lacks(&self, seq: u64) -> bool {
        self.issued < seq
    }

    /// Latest collective that it is known to have issued.
    pub(in super::super) const fn known(&self) -> u64 {
        if self.is_limit { 0 } else { self.issued }
    }
}

impl Described {
    fn new(job: &DumpedJob, world_size: u32) -> Self {
        let mut lists: HashMap<Arc<str>, BTreeSet<Arc<[u32]>>> = HashMap::new();
        let mut users: HashMap<Arc<str>, BTreeSet<u32>> = HashMap::new();
        for (&rank, dump) in &job.ranks {
            for (name, config) in &dump.groups {
                let lists = lists.entry(Arc::clone(name)).or_default();
                lists.insert(Arc::clone(&config.members));
            }
            for group in named(dump) {
                users.entry(Arc::clone(&group.name)).or_default().insert(rank);
            }
        }
        let users = users.into_iter();
        Self {
            lists,
            users: users.map(|(name, ranks)| (name, ranks.into_iter().collect())).collect(),
            world: (0..world_size).collect(),
        }
    }

    /// Members of a group that the rank's own dump does not describe: those in the dump of another
    /// member, or the ranks that have entries of the group. Gloo describes only the group that was
    /// created last, without its name.
    fn members(&self, job: &DumpedJob, rank: u32, group: &NamedGroup) -> Arc<[u32]> {
        let mut lists = self.lists.get(&group.name).into_iter().flatten();
        if let Some(members) = lists.find(|members| members.contains(&rank)) {
            return Arc::clone(members);
        }
        if &*group.description == "default_pg" {
            return Arc::clone(&self.world);
        }
        let users = self.users.get(&group.name).cloned().unwrap_or_default();
        let unnamed = job.ranks.get(&rank).and_then(|dump| dump.groups.get(""));
        let fits = |members: &&Arc<[u32]>| {
            let members: HashSet<u32> = members.iter().copied().collect();
            users.iter().all(|user| members.contains(user))
        };
        let unnamed = unnamed.map(|config| &config.members);
        unnamed.filter(fits).cloned().unwrap_or(users)
    }
}

impl DumpedGroup {
    /// Number of a collective, beginning with 1.
    pub(in super::super) fn seq(&self, entry: &Entry<'_>) -> u64 {
        self.number(entry.seq)
    }

    /// Number of the collective that has this one in entries, beginning with 1.
    pub(in super::super) fn number(&self, seq: u64) -> u64 {
        seq + u64::from(self.from_zero)
    }

    /// Whether no rank with a dump lacks a collective.
    pub(in super::super) const fn is_made_by_all(&self, seq: u64) -> bool {
        self.issued_by_all >= seq
    }

    /// Global rank of the peer of a message; `None`: any, or unknown.
    pub(in super::super) fn peer(&self, kind: &Kind) -> Option<u32> {
        let (_, peer) = kind.ends?;
        self.info.key.members.get(peer? as usize).copied()
    }

    /// Whether a rank and its peer exchange messages with each other only, so that the numbers of
    /// their messages agree.
    pub(super) fn is_pair(&self, rank: u32, peer: u32) -> bool {
        let only = |rank: u32, peer: u32| {
            let peers = self.peers.get(&rank);
            peers.is_none_or(|peers| peers.iter().all(|it| *it == Some(peer)))
        };
        only(rank, peer) && only(peer, rank)
    }
}

/// The kinds of collectives in a dump, with their sequence numbers.
fn collectives(dump: &Dump) -> impl Iterator<Item = (&Kind, Numbers)> {
    let kinds = dump.kinds.iter().filter(|kind| !kind.is_message);
    let numbered = kinds.map(|kind| (kind, dump.packed.numbers(kind)));
    numbered.filter(|(_, numbers)| numbers.count > 0)
}

/// The groups that calls of a dump name, in the order of their first calls.
fn named(dump: &Dump) -> Vec<&Arc<NamedGroup>> {
    let mut seen = HashSet::new();
    let groups = dump.kinds.iter().map(|kind| &kind.group);
    // Equal groups of a dump are one.
    groups.filter(|group| seen.insert(Arc::as_ptr(group))).collect()
}

/// Backend of each group, by the first call in it.
fn backends(job: &DumpedJob) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut backends: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
    for group in job.ranks.values().flat_map(named) {
        let NamedGroup { name, backend, .. } = &**group;
        if !backends.contains_key(name) {
            backends.insert(Arc::clone(name), Arc::clone(backend));
        }
    }
    backends
}
