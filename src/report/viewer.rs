//! State of a job as messages to viewers: complete in the first update, then only changes.

use std::collections::BTreeMap;

use ddp_doctor_diagnosis::event::ThreadStack;
use ddp_doctor_diagnosis::findings;
use ddp_doctor_diagnosis::model::{
    self, Doing, Group, GroupId, JoinedCall, Model, Process, RoomKind, Target, Wait,
};
use ddp_doctor_diagnosis::timing::Timing;
use ddp_doctor_diagnosis::trends::growth::{self, Exhausted, Grower, Growth};
use ddp_doctor_proto::report::{CallState, Finding, Rank, RankCall, Report, Timestamp, Where};
use ddp_doctor_proto::viewer::{self, CallsAt, GroupStatus, GrowthEnd, RankDetail, Update};

/// Maximum number of ranks listed in `waits_for`; the others are counted.
const MAX_NAMED: usize = 64;
/// Maximum number of missing ranks that are checked for being needed by a call.
const MAX_CHECKED: usize = 1024;
/// Maximum number of frames sent per stack, from the innermost.
const MAX_FRAMES: usize = 48;
/// Maximum number of latest sequence numbers sent per group.
const MAX_SEQS: usize = 16;
/// Maximum number of calls sent per group.
const MAX_CALLS: usize = 4096;
/// Maximum number of calls sent for all groups together.
const MAX_ALL_CALLS: usize = 32_768;

/// State shown by viewers in addition to the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    ranks: BTreeMap<u32, RankDetail>,
    groups: BTreeMap<u32, GroupStatus>,
}

impl Detail {
    /// The state at a time.
    #[must_use]
    pub fn new(model: &Model, now: Timestamp) -> Self {
        let mut missing = BTreeMap::new();
        let lateness = recent_lateness(model);
        let growers = growth::growers(model);
        let ranks = model
            .ranks
            .keys()
            .filter_map(|&rank| {
                let process = model.process_of(rank)?;
                let mut detail = rank_detail(model, now, rank, process, &growers, &mut missing);
                detail.late_us = lateness.get(&rank).map(|&(_, late_us)| late_us);
                Some((rank, detail))
            })
            .collect();
        let mut room = MAX_ALL_CALLS;
        let groups =
            model.groups().map(|group| (group.id.0, group_status(group, &mut room))).collect();
        Self { ranks, groups }
    }
}

/// State that was sent to one viewer.
#[derive(Debug, Default)]
pub struct Sent {
    /// `None`: not sent yet.
    findings: Option<Vec<Finding>>,
    ranks: BTreeMap<u32, Rank>,
    detail: Detail,
}

impl Sent {
    /// The changes since the previous update, recorded as sent. Without `detail` the update has no
    /// details.
    pub fn update(
        &mut self,
        report: &Report,
        detail: Option<&Detail>,
        at: Timestamp,
        ended: bool,
    ) -> Update {
        let is_new = |rank: &&Rank| self.ranks.get(&rank.rank) != Some(*rank);
        let mut update = Update {
            at,
            job: report.job.clone(),
            verdict: report.verdict,
            evidence: report.evidence.clone(),
            ranks: report.ranks.iter().filter(is_new).cloned().collect(),
            ended,
            ..Update::default()
        };
        if self.findings.as_ref() != Some(&report.findings) {
            self.findings = Some(report.findings.clone());
            update.findings.clone_from(&self.findings);
        }
        for rank in &update.ranks {
            self.ranks.insert(rank.rank, rank.clone());
        }
        if let Some(detail) = detail {
            update.details = changed(&mut self.detail.ranks, &detail.ranks);
            update.groups = changed(&mut self.detail.groups, &detail.groups);
        }
        update
    }
}

/// Entries of `now` that differ from `sent`, recorded as sent.
fn changed<T: Clone + PartialEq>(sent: &mut BTreeMap<u32, T>, now: &BTreeMap<u32, T>) -> Vec<T> {
    let mut new = Vec::new();
    for (number, it) in now {
        if sent.get(number) != Some(it) {
            sent.insert(*number, it.clone());
            new.push(it.clone());
        }
    }
    new
}

/// Recent delay of each rank after the first rank of the largest of its groups, in microseconds, and
/// the size of that group.
fn recent_lateness(model: &Model) -> BTreeMap<u32, (usize, u64)> {
    let mut lateness = BTreeMap::new();
    for group in model.groups() {
        let size = group.info.key.members.len();
        for (&rank, member) in group.members.iter() {
            let Some(by) = member.late else { continue };
            let known = lateness.entry(rank).or_insert((0, 0));
            if size > known.0 {
                *known = (size, by.as_micros() as u64);
            }
        }
    }
    lateness
}

/// Ranks missing at a sequence number of a group, computed once for all ranks that wait there.
type Missing = BTreeMap<(GroupId, u64), Vec<u32>>;

fn rank_detail(
    model: &Model,
    now: Timestamp,
    rank: u32,
    process: &Process,
    growers: &[Grower<'_>],
    missing: &mut Missing,
) -> RankDetail {
    let mut waits_for = waits_for(model, now, rank, process, missing);
    let waits_for_more = waits_for.len().saturating_sub(MAX_NAMED) as u32;
    waits_for.truncate(MAX_NAMED);
    let stacks = process.stacks.last();
    let main = stacks.and_then(|stacks| stacks.main());
    RankDetail {
        rank,
        gauges: gauges(process, growers, &model.timing),
        waits_for,
        waits_for_more,
        phase: process.phases.last().map_or_else(String::new, |phase| phase.name.to_string()),
        records: process.records,
        records_lost: process.lost,
        stack: main.map(shown_frames).unwrap_or_default(),
        stack_at: stacks.map_or(Timestamp::default(), |stacks| stacks.at),
        has_continued: stacks.is_some_and(|stacks| stacks.at < process.last_at),
        wait_channel: main.and_then(|main| main.wait_channel.as_deref()).unwrap_or_default().into(),
        late_us: None,
    }
}

/// The Python frames of a thread; the native frames of a program without Python.
fn shown_frames(thread: &ThreadStack) -> Vec<Where> {
    let frames = if thread.python.is_empty() { &thread.native } else { &thread.python };
    frames.iter().take(MAX_FRAMES).cloned().collect()
}

fn gauges(process: &Process, growers: &[Grower<'_>], timing: &Timing) -> Vec<viewer::Gauge> {
    let growers: Vec<&Grower<'_>> =
        growers.iter().filter(|it| it.process.id == process.id).collect();
    let own = |device: Option<u32>| {
        let grower = growers.iter().find(|it| it.device == device)?;
        Some((grower.growth, grower.ends_in_sight()))
    };
    let filling: Vec<_> = growth::filling(process, timing).collect();
    let shared = |kind: RoomKind| {
        let filling = filling.iter().find(|it| it.room.kind == kind)?;
        Some((filling.growth, Some(filling.end)))
    };
    measured(process, own, shared)
}

/// The latest measurements of a process, without growth.
#[must_use]
pub fn gauges_of(process: &Process) -> Vec<viewer::Gauge> {
    measured(process, |_| None, |_| None)
}

/// Growth of a value, and its expected end.
type Grows = Option<(Growth, Option<Exhausted>)>;

/// The latest measurements of a process. `own`: growth of its memory on a device or of its resident set;
/// `shared`: growth of memory that it shares.
fn measured(
    process: &Process,
    own: impl Fn(Option<u32>) -> Grows,
    shared: impl Fn(RoomKind) -> Grows,
) -> Vec<viewer::Gauge> {
    let memory = &process.memory;
    let mut gauges = Vec::new();
    let mut push = |name: &str, gauge: Option<model::Gauge>, limit: Option<u64>, grows: Grows| {
        gauges.extend(gauge.map(|gauge| viewer::Gauge {
            name: name.into(),
            unit: "B".into(),
            value: gauge.latest,
            peak: gauge.peak,
            limit,
            growth: grows.map(|(growth, end)| growth_of(gauge.latest, &growth, end)),
        }));
    };
    for (number, device) in &memory.devices {
        let gpu = format!("gpu {number}");
        push(&gpu, device.used, device.total, None);
        let tensors = own(Some(*number));
        push(&format!("{gpu} tensors"), device.allocated, device.total, tensors);
        push(&format!("{gpu} reserved"), device.reserved, device.total, None);
        push(&format!("{gpu} largest free"), device.largest, None, None);
        push(&format!("{gpu} nccl"), device.nccl, device.total, None);
    }
    push("rss", memory.rss, memory.host_total, own(None));
    let host = shared(RoomKind::Host);
    push("host", memory.host_used, memory.host_total, host);
    let group = shared(RoomKind::Cgroup);
    push("control group", memory.cgroup_used, memory.cgroup_limit, group);
    // The use of address space is only of interest if it is limited.
    if memory.virtual_limit.is_some() {
        push("address space", memory.virtual_used, memory.virtual_limit, None);
    }
    let shm = shared(RoomKind::Shm);
    push("/dev/shm", memory.shm_used.filter(|it| it.peak > 0), memory.shm_total, shm);
    gauges.extend(memory.cpu_permille.map(|gauge| viewer::Gauge {
        name: "cpu".into(),
        unit: "‰".into(),
        value: gauge.latest,
        peak: gauge.peak,
        limit: None,
        growth: None,
    }));
    gauges
}

/// Growth of a value, and its value at the expected end.
fn growth_of(value: u64, growth: &Growth, end: Option<Exhausted>) -> viewer::Growth {
    let slope = growth.trend.slope;
    let end = end.map(|end| GrowthEnd {
        value: value + (slope * end.steps) as u64,
        of: end.room.map_or("the device", |room| room.name()).into(),
        steps: end.steps as u64,
        least: end.between.0 as u64,
        most: end.between.1.is_finite().then(|| end.between.1.ceil() as u64),
    });
    viewer::Growth { per_step: slope, from_step: growth.steps.0, to_step: growth.steps.1, end }
}

/// Ranks for which the threads of a process wait, ascending.
fn waits_for(
    model: &Model,
    now: Timestamp,
    rank: u32,
    process: &Process,
    missing: &mut Missing,
) -> Vec<u32> {
    if process.has_ended() {
        return Vec::new();
    }
    let mut ranks = Vec::new();
    for thread in process.threads.values() {
        let target = match &thread.doing {
            Doing::Call(call) => process.target(call.id),
            Doing::Wait(target, ..) => *target,
            // The wait of DDP for its own calls is not recorded.
            Doing::Nothing => thread
                .held_in(now, &model.timing)
                .or(thread.last_call.as_ref().filter(|call| call.hidden))
                .and_then(|call| process.target(call.id)),
        };
        match target {
            Some(Target::Join(id, seq)) => {
                let group = model.group(id);
                let joined = group.join(seq).and_then(|join| join.calls.get(&rank));
                let missing = missing.entry((id, seq)).or_insert_with(|| model.missing(group, seq));
                let sorted = &missing[..missing.len().min(MAX_CHECKED)];
                ranks.extend(joined.map(|it| it.needs(rank, sorted)).unwrap_or_default());
            }
            Some(Target::Message(id, post)) => {
                let unmatched = model.group(id).traffic.unmatched(&post);
                ranks.extend(unmatched.and_then(|unmatched| unmatched.peer));
            }
            None => {}
        }
    }
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

fn group_status(group: &Group, room: &mut usize) -> GroupStatus {
    let ranks = &group.info.key.members;
    let of = |what: fn(&model::Member) -> u64| {
        let known = ranks.iter().map(|rank| group.members.get(rank).map(what));
        known.map(Option::unwrap_or_default).collect()
    };
    GroupStatus {
        number: group.id.0,
        name: group.info.key.name.clone(),
        description: group.info.description.to_string(),
        layer: group.info.key.layer.clone(),
        backend: group.info.backend.to_string(),
        ranks: ranks.clone(),
        issued: of(|member| member.issued),
        completed: of(|member| member.completed),
        unseen: ranks.iter().copied().filter(|rank| !group.members.contains_key(rank)).collect(),
        diverged: group.diverged,
        calls: calls(group, room),
    }
}

/// Calls at the latest sequence numbers, at the first open one and at the first mismatch.
fn calls(group: &Group, room: &mut usize) -> Vec<CallsAt> {
    let known = group.joins.keys().chain(group.entered.keys()).copied();
    let mut seqs: Vec<u64> = known.filter(|&seq| seq > 0).collect();
    seqs.sort_unstable();
    seqs.dedup();
    let latest = seqs.len().saturating_sub(MAX_SEQS);
    let telling = group.first_open().into_iter().chain(group.diverged);
    let mut wanted: Vec<u64> = telling.filter(|seq| seqs.contains(seq)).collect();
    wanted.extend(seqs.iter().skip(latest).rev());
    let mut left = MAX_CALLS.min(*room);
    let mut sent: BTreeMap<u64, CallsAt> = BTreeMap::new();
    for seq in wanted {
        let join = group.open_or_entered(seq);
        let Some(join) = join.filter(|_| !sent.contains_key(&seq) && left > 0) else {
            continue;
        };
        let calls: Vec<RankCall> =
            join.by_rank().take(left).map(|(rank, joined)| call(rank, joined)).collect();
        left -= calls.len();
        *room -= calls.len();
        sent.insert(
            seq,
            CallsAt {
                seq,
                mismatch: join.mismatch.is_some(),
                more: (join.calls.len() - calls.len()) as u32,
                calls,
            },
        );
    }
    sent.into_values().collect()
}

fn call(rank: u32, joined: &JoinedCall) -> RankCall {
    let state = match joined.wait {
        Wait::Over(_) => CallState::Returned,
        Wait::Since(_) => CallState::Waiting,
        Wait::NotSeen if joined.is_awaited() && joined.returned.is_none() => CallState::Waiting,
        Wait::NotSeen => CallState::Issued,
    };
    findings::describe(rank, state, None, &joined.call)
}

#[cfg(test)]
mod tests {
    use ddp_doctor_diagnosis::model::Room;
    use ddp_doctor_diagnosis::trends::trend::Trend;

    use super::*;
    use crate::testing::report;

    #[test]
    fn viewer_gets_everything_once_and_then_changes() {
        let mut report = report();
        let mut sent = Sent::default();
        let first = sent.update(&report, None, Timestamp(1), false);
        assert_eq!(first.findings.as_ref(), Some(&report.findings));
        assert_eq!(first.ranks, report.ranks);
        let second = sent.update(&report, None, Timestamp(2), false);
        assert!(second.findings.is_none() && second.ranks.is_empty());
        report.ranks[1].step += 1;
        report.findings.clear();
        let third = sent.update(&report, None, Timestamp(3), true);
        assert!(third.findings == Some(Vec::new()) && third.ended);
        let ranks: Vec<u32> = third.ranks.iter().map(|it| it.rank).collect();
        assert_eq!(ranks, [1]);
    }

    #[test]
    fn growing_gauge_has_an_expected_end() {
        let trend = Trend { slope: 100.0, low: 90.0, high: 110.0, scatter: 0.0, z: 5.0 };
        let growth =
            Growth { trend, steps: (5, 45), unmeasured: 2, bytes: (1000, 5000), at: Timestamp(1) };
        let room = Room { kind: RoomKind::Cgroup, used: 7000, limit: 9000 };
        let sent = growth_of(5000, &growth, Some(growth.until(room)));
        assert_eq!((sent.from_step, sent.to_step), (5, 45));
        let end = sent.end.unwrap();
        // 20 steps remained two steps ago.
        assert_eq!((end.steps, end.value), (18, 6800));
        assert_eq!((end.least, end.most), (15, Some(22)));
        assert_eq!(end.of, "its control group");
        assert_eq!(growth_of(5000, &growth, None).end, None);
    }

    #[test]
    fn program_without_python_has_its_native_stack() {
        let frame = |function: &str| Where { function: function.into(), ..Where::default() };
        let mut thread = ThreadStack { native: vec![frame("poll")], ..ThreadStack::default() };
        assert_eq!(shown_frames(&thread), thread.native);
        thread.python.push(frame("main"));
        assert_eq!(shown_frames(&thread), thread.python);
    }

    #[test]
    fn unchanged_details_are_not_sent_again() {
        let detail = |records| RankDetail { rank: 3, records, ..Default::default() };
        let of = |records| Detail {
            ranks: [(3, detail(records))].into(),
            groups: [(0, GroupStatus::default())].into(),
        };
        let mut sent = Sent::default();
        let mut counts = |detail: &Detail| {
            let update = sent.update(&report(), Some(detail), Timestamp(1), false);
            (update.details.len(), update.groups.len())
        };
        assert_eq!(counts(&of(1)), (1, 1));
        assert_eq!(counts(&of(1)), (0, 0));
        assert_eq!(counts(&of(2)), (1, 0));
    }
}
