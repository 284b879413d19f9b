//! Simulated jobs: the events of all ranks, deterministic by seed.
//!
//! Each step of a rank has 24 tensor-parallel all-reduces in groups of eight consecutive ranks, four
//! all-to-alls of experts in groups of eight ranks of different nodes, two messages to the next
//! pipeline stage and two from the previous one, and eight buckets of DDP in the world group, for
//! which the rank waits at the end of the step. Ranks are up to 200 µs late.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{
    Call, CallId, Event, GroupInfo, MemorySample, ProcessId, SchedulingSample, ThreadId,
};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{DType, Op, ReduceOp, Spending};

const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Ranks of a node, of a tensor-parallel group and of an expert-parallel group.
const NODE: u32 = 8;
/// Calls of a step: all-reduces, all-to-alls, messages and buckets.
const REDUCES: u64 = 24;
const EXPERTS: u64 = 4;
const MESSAGES: u64 = 4;
const BUCKETS: u64 = 8;
const CALLS: u64 = REDUCES + EXPERTS + MESSAGES + BUCKETS;
/// Groups of a rank: world, tensor parallel, expert parallel.
const WORLD: usize = 0;
const TENSOR: usize = 1;
const EXPERT: usize = 2;

/// A mistake or a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Missing,
    Size,
    Straggler,
    Slow,
}

impl Fault {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "missing" => Self::Missing,
            "size" => Self::Size,
            "straggler" => Self::Straggler,
            "slow" => Self::Slow,
            _ => return None,
        })
    }
}

/// What a job is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) ranks: u32,
    /// Duration of a step in ns.
    pub(crate) step: u64,
    pub(crate) seed: u64,
    pub(crate) fault: Option<Fault>,
}

/// A simulated job.
pub(crate) struct Job {
    layout: Layout,
    ranks: Vec<Rank>,
    /// Step in which the fault begins.
    fault_step: u64,
}

/// A rank and its progress.
struct Rank {
    rank: u32,
    groups: [Arc<GroupInfo>; 3],
    places: Arc<[Arc<Where>]>,
    /// Number of calls made, over all steps.
    calls: u64,
    /// Calls in each group, and messages in each direction.
    issued: [u64; 3],
    messages: [u64; 2],
    /// A call that has not returned, and when it does.
    open: Option<(CallId, u64)>,
    sampled: u64,
    is_blocked: bool,
}

impl Job {
    pub(crate) fn start(layout: Layout, seconds: u64) -> Self {
        Self::part(layout, seconds, 0..layout.ranks)
    }

    /// The part of a job that has some of its ranks: their events are those of the whole job.
    pub(crate) fn part(layout: Layout, seconds: u64, part: Range<u32>) -> Self {
        let ranks = layout.ranks;
        let group =
            |name: String, members: Vec<u32>| Arc::new(GroupInfo::c10d(&name, "", "gloo", members));
        let world = group("0".into(), (0..ranks).collect());
        let nodes = ranks.div_ceil(NODE);
        let tensor: Vec<_> = (0..nodes)
            .map(|node| {
                let members = node * NODE..((node + 1) * NODE).min(ranks);
                group(format!("tensor{node}"), members.collect())
            })
            .collect();
        // Ranks with the same number on eight consecutive nodes.
        let expert = |block: u32, local: u32| {
            let nodes = block * NODE..((block + 1) * NODE).min(nodes);
            let members = nodes.map(|node| node * NODE + local).filter(|it| *it < ranks);
            group(format!("expert{block}.{local}"), members.collect())
        };
        let experts: Vec<_> = (0..nodes.div_ceil(NODE))
            .flat_map(|block| (0..NODE).map(move |local| (block, local)))
            .map(|(block, local)| expert(block, local))
            .collect();
        let part = part.start..part.end.min(ranks);
        let all = part.map(|rank| {
            let node = rank / NODE;
            // Every process has its own copies, as those that a coordinator decodes.
            let places = (0..CALLS).map(|line| {
                Arc::new(Where {
                    file: "/home/user/project/train.py".into(),
                    line: line as u32 + 1,
                    function: "train".into(),
                    ..Where::default()
                })
            });
            Rank {
                rank,
                groups: [
                    Arc::clone(&world),
                    Arc::clone(&tensor[node as usize]),
                    Arc::clone(&experts[(node / NODE * NODE + rank % NODE) as usize]),
                ],
                places: places.collect(),
                calls: 0,
                issued: [0; 3],
                messages: [0; 2],
                open: None,
                sampled: 0,
                is_blocked: false,
            }
        });
        Self { layout, ranks: all.collect(), fault_step: seconds * SECOND / 2 / layout.step }
    }

    /// When the fault begins.
    pub(crate) const fn fault_at(&self) -> Timestamp {
        Timestamp(self.fault_step * self.layout.step)
    }

    /// Whether there is a fault by this time.
    pub(crate) fn has_fault(&self, now: Timestamp) -> bool {
        self.layout.fault.is_some() && now >= self.fault_at()
    }

    /// The events by which the ranks join the job and their groups.
    pub(crate) fn joined(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for it in &self.ranks {
            let process = it.process();
            events.push(Event::ProcessJoined {
                process,
                rank: Some(it.rank),
                world_size: Some(self.layout.ranks),
                host: format!("node-{}", it.rank / NODE).into(),
                pid: 1000 + it.rank,
                layer: "c10d".into(),
                world: "".into(),
                restarts: 0,
                at: Timestamp(0),
            });
            let groups = it.groups.iter().map(Arc::clone);
            events.extend(groups.map(|group| Event::GroupJoined { process, group }));
        }
        events
    }

    /// The events of all ranks since the last call, one rank after the other.
    pub(crate) fn until(&mut self, now: Timestamp) -> Vec<Event> {
        let mut events = Vec::new();
        for rank in &mut self.ranks {
            rank.until(&self.layout, self.fault_step, now.0, &mut events);
        }
        events
    }
}

impl Rank {
    fn process(&self) -> ProcessId {
        ProcessId::new(self.rank / NODE, self.rank + 1)
    }

    fn until(&mut self, layout: &Layout, fault_step: u64, now: u64, events: &mut Vec<Event>) {
        let process = self.process();
        if now / SECOND > self.sampled {
            self.sampled = now / SECOND;
            let at = Timestamp(self.sampled * SECOND);
            let noise = mixed(layout.seed, u64::from(self.rank), self.sampled);
            events.push(scheduled(process, noise, at));
            events.push(measured(process, noise, at));
        }
        while self.returned(now, events) && !self.is_blocked {
            let (step, in_step) = (self.calls / CALLS, self.calls % CALLS);
            let fault = layout.fault.filter(|_| step >= fault_step);
            let is_faulty = self.rank == layout.ranks / 2 + 1;
            let lost = layout.step * 2 / 5;
            // A straggler, or slow calls, delay the rest of the step.
            let delayed = in_step > 0 || fault == Some(Fault::Straggler) && is_faulty;
            let delay = match fault {
                Some(Fault::Straggler | Fault::Slow) if delayed => lost,
                _ => 0,
            };
            let late = mixed(layout.seed, u64::from(self.rank), self.calls) % (200 * MICROSECOND);
            let begin = step * layout.step + in_step * layout.step / 2 / CALLS;
            let at = begin + delay + late;
            if at > now || fault == Some(Fault::Missing) && is_faulty {
                return;
            }
            self.calls += 1;
            if in_step == 0 {
                events.push(Event::Step {
                    process,
                    thread: ThreadId(1),
                    step: step + 1,
                    forward: None,
                    at: Timestamp(at),
                });
            }
            let mut call = self.call(layout, step, in_step, at);
            if fault == Some(Fault::Size) && is_faulty && in_step == 0 {
                call.numel = Some(7);
            }
            let (id, is_async) = (call.id, call.is_async);
            let call = Arc::new(call);
            events.push(Event::Issued { process, call });
            let slow = match fault {
                Some(Fault::Straggler | Fault::Slow) if in_step == 0 => lost,
                _ => 0,
            };
            let returns = begin + slow + 300 * MICROSECOND + late / 10;
            self.is_blocked = matches!(fault, Some(Fault::Missing | Fault::Size));
            if is_async {
                events.push(returned(process, ThreadId(2), id, at + 20 * MICROSECOND));
                if in_step + 1 == CALLS {
                    events.push(Event::Spent {
                        process,
                        thread: ThreadId(2),
                        on: Spending::Buckets,
                        took: Duration::from_nanos(400 * MICROSECOND),
                        place: None,
                        at: Timestamp(at + 500 * MICROSECOND),
                    });
                }
            } else if !self.is_blocked {
                self.open = Some((id, returns));
            }
        }
    }

    /// Returns from the open call if it is time; whether there is no open call any more.
    fn returned(&mut self, now: u64, events: &mut Vec<Event>) -> bool {
        match self.open {
            Some((_, at)) if at > now => false,
            Some((call, at)) => {
                self.open = None;
                events.push(returned(self.process(), ThreadId(1), call, at));
                true
            }
            None => true,
        }
    }

    fn call(&mut self, layout: &Layout, step: u64, in_step: u64, at: u64) -> Call {
        let is_bucket = in_step >= CALLS - BUCKETS;
        let is_message = !is_bucket && in_step >= REDUCES + EXPERTS && layout.ranks >= 2;
        let (group, op) = match in_step {
            0 => (WORLD, Op::AllReduce),
            _ if is_bucket => (WORLD, Op::AllReduce),
            _ if in_step < REDUCES => (TENSOR, Op::AllReduce),
            _ => (EXPERT, Op::AllToAll),
        };
        let mut call = Call {
            dtype: DType::Float32,
            numel: Some(4_096 * (in_step + 1)),
            step: step + 1,
            is_async: is_bucket,
            hidden: is_bucket,
            place: Some(Arc::clone(&self.places[in_step as usize])),
            ..Call::new(CallId(self.calls), Timestamp(at), ThreadId(1), op)
        };
        if is_message {
            // Even messages go up by half of the ranks, odd ones down.
            let half = layout.ranks / 2;
            let is_low = self.rank < half;
            let sends = is_low == in_step.is_multiple_of(2);
            let number = &mut self.messages[usize::from(sends)];
            *number += 1;
            return Call {
                op: if sends { Op::Send } else { Op::Recv },
                group: Some(Arc::clone(&self.groups[WORLD])),
                seq: *number,
                peer: Some(if is_low { self.rank + half } else { self.rank - half }),
                tag: Some(0),
                ..call
            };
        }
        self.issued[group] += 1;
        if op == Op::AllReduce {
            call.reduce_op = ReduceOp::Sum;
        }
        if is_bucket {
            call.thread = ThreadId(2);
        }
        Call { group: Some(Arc::clone(&self.groups[group])), seq: self.issued[group], ..call }
    }
}

const fn returned(process: ProcessId, thread: ThreadId, call: CallId, at: u64) -> Event {
    Event::Returned { process, thread, call, followed: false, at: Timestamp(at) }
}

/// A sample of a rank that is never kept from running.
fn scheduled(process: ProcessId, noise: u64, at: Timestamp) -> Event {
    let sample = SchedulingSample {
        ran_permille: Some(900 + (noise % 64) as u32),
        queued_permille: Some(0),
        throttled_permille: Some(0),
        major_faults: Some(0),
        processors: "0-127".into(),
        threads_queued_permille: Some(0),
        stolen_permille: Some(0),
        cpu_pressure: Some(0),
        memory_pressure: Some(0),
    };
    Event::Scheduled { process, sample, at }
}

/// A sample of the memory of a rank, which varies and does not grow.
fn measured(process: ProcessId, noise: u64, at: Timestamp) -> Event {
    const GIB: u64 = 1 << 30;
    let noise = noise % (1 << 20);
    let sample = MemorySample {
        rss: Some(4 * GIB + noise),
        rss_shared: Some(GIB + noise),
        host_available: Some(900 * GIB - noise),
        host_total: Some(1_024 * GIB),
        cpu_permille: Some(1_000),
        cgroup_used: Some(40 * GIB + noise),
        cgroup_limit: Some(1_000 * GIB),
        cgroup_held: Some(0),
        cgroup_slowed: Some(0),
        shm_used: Some(GIB + noise),
        shm_total: Some(64 * GIB),
        device: Some(0),
        gpu_used: Some(70 * GIB),
        gpu_total: Some(80 * GIB),
        gpu_allocated: Some(60 * GIB + noise),
        gpu_reserved: Some(68 * GIB),
        gpu_retries: Some(0),
        ..MemorySample::default()
    };
    Event::Memory { process, sample: Box::new(sample), at }
}

/// A pseudo-random number.
const fn mixed(seed: u64, rank: u64, call: u64) -> u64 {
    let mut mixed = (rank + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ call.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 31;
    mixed = mixed.wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed >> 32
}
