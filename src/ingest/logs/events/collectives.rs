//! Collectives that ranks wait for, as far as they decide something.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Call, CallId, Event, GroupInfo, OnStream, ThreadId};
use ddp_doctor_diagnosis::input::align::compare;
use ddp_doctor_diagnosis::input::backends::NCCL;
use ddp_doctor_diagnosis::input::transport;
use ddp_doctor_diagnosis::words::Ranks;
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::vocabulary::Direction;

use super::{places, unnamed_group, were};
use crate::logs::facts::GroupName;
use crate::logs::job::{LoggedJob, Rank, Topic, Waiting, before, in_collective};
use crate::{dtypes, process};

/// Time between two dumps of stacks after which the calls in them count as waits.
const LASTING: Duration = Duration::from_secs(60);

/// Maximum number of groups of all ranks, since members are listed for each: attempts of a job, at most.
const MAX_WORLDS: usize = 16;

/// Adds the calls of all ranks.
pub(super) fn add_calls(job: &mut LoggedJob) {
    let groups = members(job);
    if groups.is_empty() {
        stacks(job);
    }
    for (index, (name, members)) in (1..).zip(&groups) {
        members.add(job, name, index);
    }
}

/// What the text states about each group in which ranks wait.
fn members(job: &LoggedJob) -> BTreeMap<GroupName, Members> {
    let mut groups: BTreeMap<GroupName, Members> = BTreeMap::new();
    for (&number, rank) in &job.ranks {
        for (name, waiting) in &rank.waits {
            let members = groups.entry(name.clone()).or_default();
            members.waiting.insert(number, waiting.clone());
        }
    }
    for (&number, rank) in &job.ranks {
        for (name, progress) in &rank.progress {
            if let Some(members) = groups.get_mut(name) {
                members.progress.insert(number, *progress);
            }
        }
    }
    let is_gone = |rank: &Rank| rank.ended.is_some() || rank.raised.iter().any(|it| it.uncaught);
    let gone: BTreeSet<u32> =
        job.ranks.iter().filter(|(_, rank)| is_gone(rank)).map(|(&number, _)| number).collect();
    let worlds = groups.iter_mut().filter(|(name, _)| name.is_world());
    for (_, members) in worlds.take(MAX_WORLDS) {
        members.gone =
            gone.iter().filter(|it| !members.waiting.contains_key(it)).copied().collect();
        members.is_complete = job.names.world.is_some();
    }
    groups
}

/// What the text states about the ranks of a group.
#[derive(Default)]
struct Members {
    waiting: BTreeMap<u32, Waiting>,
    /// Numbers of the last collectives that ranks enqueued and completed.
    progress: BTreeMap<u32, (u64, u64)>,
    /// Ranks of the world that had ended or raised before the collective was given up.
    gone: BTreeSet<u32>,
    /// All members are known.
    is_complete: bool,
}

impl Members {
    /// The last collective that a rank is known to have issued.
    fn issued(&self, rank: u32) -> Option<u64> {
        let enqueued = self.progress.get(&rank).map(|it| it.0);
        let waits = self.waiting.get(&rank).map(|it| it.seq);
        enqueued.max(waits)
    }

    /// Whether all of this can be true of one group: a collective that completed on one rank was
    /// issued by all.
    fn is_consistent(&self) -> bool {
        let completed = self.progress.values().map(|it| it.1);
        let passed = self.waiting.values().map(|it| it.seq.saturating_sub(1));
        let completed = completed.chain(passed).max().unwrap_or(0);
        let ranks = self.waiting.keys().chain(self.progress.keys());
        let mut issued = ranks.filter_map(|&rank| self.issued(rank));
        issued.all(|it| it >= completed) && self.waiting.values().all(|it| it.seq > completed)
    }

    /// Whether some ranks wait in the call after that of the others, which ranks may leave before all have
    /// entered it.
    fn may_be_left(&self) -> bool {
        let last = self.waiting.values().map(|it| it.seq).max();
        let mut behind = self.waiting.values().filter(|it| Some(it.seq) < last);
        let can_leave = |it: &Waiting| it.op.is_rooted() && Some(it.seq + 1) == last;
        behind.clone().next().is_some() && behind.all(can_leave)
    }

    /// Whether the calls that are known show more than that ranks wait.
    fn is_decisive(&self) -> bool {
        let Some(first) = self.waiting.values().next() else {
            return false;
        };
        let is_gone = |&rank: &u32| self.issued(rank).is_none_or(|it| it < first.seq);
        self.waiting.values().any(|it| differ(first, it))
            || !self.behind(first.seq).is_empty()
            || self.gone.iter().any(is_gone)
    }

    /// Ranks that had not issued this call.
    fn behind(&self, seq: u64) -> Vec<u32> {
        let is_behind = |rank: &&u32| self.issued(**rank).is_some_and(|it| it < seq);
        self.progress.keys().filter(is_behind).copied().collect()
    }

    fn add(&self, job: &mut LoggedJob, name: &GroupName, index: u32) {
        let known: BTreeSet<u32> =
            self.waiting.keys().chain(self.progress.keys()).chain(&self.gone).copied().collect();
        let is_known = self.is_consistent() && (self.is_complete || self.is_decisive());
        let info = is_known.then(|| self.info(job, name, &known));
        let begins = self.waiting.values().map(|it| it.since).min().unwrap_or_default();
        if let Some(info) = &info {
            for &rank in &known {
                let (process, group) = (process(rank), Arc::clone(info));
                let joined = Event::GroupJoined { process, group };
                job.events.push((begins, joined));
            }
            self.add_progress(job, info, index);
            let first = self.waiting.values().map(|it| it.seq).max().unwrap_or_default();
            job.absent.extend(self.behind(first));
        }
        for (&rank, waiting) in &self.waiting {
            issue(job, rank, index, info.as_ref(), waiting);
        }
        self.explain(job, name, is_known, &known);
    }

    /// Adds how far ranks had come. One that did not time out is in its first collective that is not
    /// complete, or has returned from its last one.
    fn add_progress(&self, job: &mut LoggedJob, info: &Arc<GroupInfo>, index: u32) {
        let last = self.waiting.values().map(|it| it.since).max().unwrap_or_default();
        for (&rank, &(enqueued, completed)) in &self.progress {
            let process = process(rank);
            let frontier = Event::Frontier {
                process,
                group: Arc::clone(info),
                issued: enqueued,
                p2p_issued: 0,
            };
            // After all calls, since it completes those that are not known.
            job.events.push((job.ends, frontier));
            if self.waiting.contains_key(&rank) || enqueued == 0 {
                continue;
            }
            let waiting = Waiting {
                seq: enqueued.min(completed.saturating_add(1)),
                ..Waiting::unnumbered(Op::Unspecified, last)
            };
            issue(job, rank, index, Some(info), &waiting);
            // Calls on NCCL return at once.
            let returned = Event::Returned {
                process,
                thread: ThreadId(index),
                call: CallId(u64::from(index)),
                followed: false,
                at: last,
            };
            job.events.push((last, returned));
        }
    }

    fn info(&self, job: &LoggedJob, name: &GroupName, known: &BTreeSet<u32>) -> Arc<GroupInfo> {
        let world = job.names.world.filter(|_| self.is_complete);
        let members = match world {
            Some(size) => (0..size).collect(),
            None => known.iter().copied().collect(),
        };
        let mut info = GroupInfo::c10d(&name.name, &*name.description, NCCL.name(), members);
        info.unstated.members =
            job.names.world.is_none_or(|size| u64::from(size) != info.key.members.len() as u64);
        named(info, name)
    }

    /// Adds a note on why the calls decide nothing.
    fn explain(
        &self,
        job: &mut LoggedJob,
        name: &GroupName,
        is_known: bool,
        known: &BTreeSet<u32>,
    ) {
        let ranks: Vec<u32> = self.waiting.keys().copied().collect();
        let Some(first) = self.waiting.values().next() else {
            return;
        };
        let op = match first.op {
            Op::Unspecified => "call".to_owned(),
            op => op.to_string(),
        };
        let what = format!("{op} #{}", first.seq);
        let group = match (name.description.as_str(), name.name.as_str()) {
            ("", "") => "a group that the text does not name".to_owned(),
            ("", name) => format!("group {name}"),
            (description, _) => format!("group {description}"),
        };
        let size = self.waiting.values().find_map(|it| it.group_size);
        let group = size.map_or_else(|| group.clone(), |size| format!("{group} of {size} ranks"));
        let is_first = |rank: &u32| self.progress.get(rank).is_some_and(|it| it.1 == 0);
        let never = match &ranks[..] {
            ranks if !ranks.iter().all(is_first) => "",
            [_] => "; it has completed none in this group",
            _ => {
                "; none of them has completed one in this group: the transport may never have worked"
            }
        };
        let waited = first.at.since(first.since).as_secs();
        let silent =
            || -> Vec<u32> { job.ranks.keys().filter(|it| !known.contains(it)).copied().collect() };
        let agree = if ranks.len() > 1 { " and agree on it" } else { "" };
        if self.may_be_left() {
            job.note(Topic::Waits, format!(
                "{} waiting in {group} at neighboring calls: they may belong to one group, since a rank may complete \
                 the first before the others",
                were(&ranks)
            ));
        } else if !self.is_consistent() {
            job.note(
                Topic::Waits,
                format!(
                    "{} waiting in {group} at calls whose numbers cannot belong to one group",
                    were(&ranks)
                ),
            );
        } else if !is_known {
            let silent = silent();
            let rest = if silent.is_empty() || !name.is_world() {
                "which other ranks belong to the group is unknown".into()
            } else {
                format!("the text does not say how far {} had come", Ranks(&silent))
            };
            job.note(
                Topic::Waits,
                format!(
                    "{} waiting {waited} s for {what} in {group}{agree}{never}; {rest}",
                    were(&ranks)
                ),
            );
        } else if let behind @ [_, ..] = &self.behind(first.seq)[..]
            && !(first.op.is_rooted() || first.op.direction() == Direction::Symmetric)
        {
            job.note(Topic::Waits, format!(
                "{} waiting {waited} s for {what}, which {} had not reached: whether it needs all ranks is \
                 unknown",
                were(&ranks),
                Ranks(behind)
            ));
        } else if name.is_world() && job.ranks.len() > known.len() && !self.is_decisive() {
            let silent = silent();
            job.note(
                Topic::Waits,
                format!(
                    "{} waiting {waited} s for {what}{never}; the text does not say how far {} had come",
                    were(&ranks),
                    Ranks(&silent)
                ),
            );
        }
    }
}

/// The group with this name, or without one.
pub(super) fn named(mut info: GroupInfo, name: &GroupName) -> Arc<GroupInfo> {
    info.key.name.clone_from(&name.name);
    info.unstated.name = name.name.is_empty();
    Arc::new(info)
}

/// Whether two calls cannot be of one collective.
fn differ(one: &Waiting, other: &Waiting) -> bool {
    let is_known = one.op != Op::Unspecified && other.op != Op::Unspecified;
    let same_size = matches!(one.op, Op::AllReduce | Op::Reduce | Op::Broadcast);
    let sizes = one.numel.zip(other.numel);
    is_known && one.op != other.op || same_size && sizes.is_some_and(|(one, other)| one != other)
}

/// Adds the call that a rank waited in.
fn issue(
    job: &mut LoggedJob,
    rank: u32,
    thread: u32,
    group: Option<&Arc<GroupInfo>>,
    waiting: &Waiting,
) -> Arc<Call> {
    let known = job.ranks.get(&rank);
    let place = known.and_then(|it| in_collective(it.stacks.last()?)).and_then(|it| it.1);
    let given_up = || known.filter(|it| it.waits.len() == 1)?.called_at.clone();
    let compared = || {
        let mut raised = known?.raised.iter();
        raised.find(|it| transport::is_of_comparison(&it.text))?.place.clone()
    };
    let place = place.or_else(given_up).or_else(compared);
    let timed_out = Call {
        group: group.cloned(),
        seq: waiting.seq,
        dtype: dtypes::named(&waiting.dtype),
        numel: waiting.numel,
        whole: waiting.whole,
        shape: waiting.shape.clone(),
        tensors: if waiting.op.is_coalesced() { 2 } else { 1 },
        place: place.map(Arc::new),
        // What watchdogs give up was enqueued on the device: whichever member lacks a rooted call may be its root.
        on_stream: waiting
            .op
            .is_rooted()
            .then_some(OnStream { stream: u64::from(thread), launch: 0 }),
        ..Call::new(CallId(u64::from(thread)), waiting.since, ThreadId(thread), waiting.op)
    };
    let call = Arc::new(timed_out);
    let issued = Event::Issued { process: process(rank), call: Arc::clone(&call) };
    job.events.push((waiting.since, issued));
    call
}

/// Adds the calls that PyTorch compared: those of one collective. Returns whether a difference is known
/// that matters.
pub(super) fn add_compared_calls(job: &mut LoggedJob) -> bool {
    let runs: BTreeMap<u32, Waiting> =
        job.ranks.iter().filter_map(|(&number, rank)| Some((number, rank.runs.clone()?))).collect();
    let ranks: Vec<u32> = runs.keys().copied().collect();
    if ranks.len() < 2 {
        return false;
    }
    let is_numbered = runs.values().all(|it| it.seq > 0);
    let info = Arc::new(unnamed_group("", ranks, is_numbered));
    let mut calls = Vec::new();
    for (&rank, waiting) in &runs {
        join(job, rank, &info, waiting.since);
        // All of them made their call before the comparison failed.
        let first = runs.values().map(|it| it.since).min().unwrap_or_default();
        let waiting = Waiting {
            since: before(first, Duration::from_millis(1)),
            seq: waiting.seq.max(1),
            // The shapes of all pieces must be equal.
            whole: waiting.numel,
            ..waiting.clone()
        };
        calls.push(issue(job, rank, 1, Some(&info), &waiting));
    }
    calls.iter().any(|it| compare(&calls[0], it).is_some())
}

fn join(job: &mut LoggedJob, rank: u32, group: &Arc<GroupInfo>, at: Timestamp) {
    let joined = Event::GroupJoined { process: process(rank), group: Arc::clone(group) };
    job.events.push((before(at, Duration::from_millis(2)), joined));
}

/// Adds the collective that ranks are in according to their stacks, if it is one at one line, and
/// other ranks are elsewhere.
fn stacks(job: &mut LoggedJob) {
    let mut inside: BTreeMap<u32, (Op, Option<Where>, Timestamp)> = BTreeMap::new();
    let mut outside: Vec<u32> = Vec::new();
    let mut lasts = true;
    for (&number, rank) in &job.ranks {
        let (Some(first), Some(last)) = (rank.stacks.first(), rank.stacks.last()) else {
            continue;
        };
        let (before, now) = (in_collective(first), in_collective(last));
        lasts &= before == now && last.at.since(first.at) >= LASTING;
        match now {
            Some((Some(op), line)) => {
                inside.insert(number, (op, line, first.at));
            }
            // It waits in PyTorch, and may do so for other ranks.
            Some((None, _)) => lasts = false,
            None => outside.push(number),
        }
    }
    let alike: BTreeSet<_> = inside
        .values()
        .map(|(op, line, _)| (*op, line.clone()))
        .map(|(op, line)| (op.to_string(), line))
        .collect();
    if !lasts || alike.len() != 1 || outside.is_empty() {
        places::describe(job);
        return;
    }
    let ranks: Vec<u32> = inside.keys().chain(&outside).copied().collect();
    let begins = inside.values().map(|it| it.2).min().unwrap_or_default();
    let info = Arc::new(unnamed_group("", ranks.clone(), false));
    for rank in ranks {
        join(job, rank, &info, begins);
    }
    for (rank, (op, _, at)) in inside {
        let waiting = Waiting { seq: 1, ..Waiting::unnumbered(op, at) };
        issue(job, rank, 1, Some(&info), &waiting);
    }
}

/// Adds the calls in which ranks ended, according to their stacks.
pub(super) fn add_last_calls(job: &mut LoggedJob) {
    let ended = job.ranks.iter().filter_map(|(&number, rank)| {
        let (at, _) = rank.ended.filter(|_| rank.waits.is_empty())?;
        let op = in_collective(rank.stacks.last()?)?.0?;
        let since = before(at, Duration::from_nanos(1));
        Some((number, Waiting::unnumbered(op, since)))
    });
    for (rank, waiting) in ended.collect::<Vec<_>>() {
        issue(job, rank, 1, None, &waiting);
    }
}
