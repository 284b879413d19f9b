//! Measures what the engine costs by the number of ranks and the length of the job: an event, an
//! evaluation every 50 ms of the job's time, and memory.
//!
//! The events are made in memory. Each step takes 100 ms and has 40 calls: 32 in groups of eight
//! consecutive ranks and 8 in the world group. A rank is at most 200 µs late.
//!
//! ```text
//! cargo bench -p ddp-doctor-diagnosis --bench engine                        # the table in docs/performance.md
//! cargo bench -p ddp-doctor-diagnosis --bench engine -- 1024 800            # ranks, calls per rank
//! ```
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its results and needs no error handling"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_doctor_diagnosis::event::{Call, CallId, Event, GroupInfo, ProcessId, ThreadId};
use ddp_doctor_diagnosis::{Config, Engine};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{DType, Op, ReduceOp};

/// Ranks and calls per rank of the table.
const TABLE: [(u32, u64); 8] = [
    (8, 2_000),
    (8, 64_000),
    (8, 200_000),
    (64, 16_000),
    (256, 800),
    (1_024, 800),
    (1_024, 4_000),
    (4_096, 400),
];
const MICROSECOND: u64 = 1_000;
/// Time between two calls.
const CALL: u64 = 2_500 * MICROSECOND;
const CALLS_PER_STEP: u64 = 40;
/// Interval of evaluations, in calls: 50 ms.
const EVALUATED_EVERY: u64 = 20;
/// Ranks of a small group.
const GROUP: u32 = 8;

fn main() {
    let arguments: Vec<u64> = std::env::args().filter_map(|it| it.parse().ok()).collect();
    println!(
        "| ranks | calls a rank | one event | evaluation, mean | worst | of real time | memory a rank |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    match arguments[..] {
        [ranks, calls] => row(u32::try_from(ranks).unwrap(), calls),
        _ => TABLE.iter().for_each(|&(ranks, calls)| row(ranks, calls)),
    }
}

/// Simulates a job and prints its row.
fn row(ranks: u32, calls: u64) {
    let before = resident();
    let mut job = Job::start(ranks);
    let mut events = 0_u64;
    let mut applied = Duration::ZERO;
    let mut evaluations = Vec::new();
    for call in 1..=calls {
        let batch = job.call(call);
        events += batch.len() as u64;
        let began = Instant::now();
        for (at, event) in batch {
            job.engine.handle(event, at);
        }
        applied += began.elapsed();
        if call % EVALUATED_EVERY == 0 {
            let began = Instant::now();
            job.engine.poll_change();
            evaluations.push(began.elapsed());
        }
    }
    let report = job.engine.report();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let evaluated: Duration = evaluations.iter().sum();
    let simulated = Duration::from_nanos(calls * CALL);
    println!(
        "| {ranks} | {calls} | {:.2} µs | {:.2} ms | {:.1} ms | {:.2} | {:.0} KiB |",
        applied.as_secs_f64() * 1e6 / events as f64,
        evaluated.as_secs_f64() * 1e3 / evaluations.len() as f64,
        evaluations.iter().max().map_or(0.0, Duration::as_secs_f64) * 1e3,
        (applied + evaluated).as_secs_f64() / simulated.as_secs_f64(),
        resident().saturating_sub(before) as f64 / 1024.0 / f64::from(ranks),
    );
}

/// A simulated job.
struct Job {
    engine: Engine,
    processes: Vec<ProcessId>,
    world: Arc<GroupInfo>,
    small: Vec<Arc<GroupInfo>>,
    places: Vec<Arc<Where>>,
    /// Calls of each rank in its small group, and in the world group.
    issued: [u64; 2],
}

impl Job {
    fn start(ranks: u32) -> Self {
        let mut engine = Engine::new(Config::default());
        let world = group("0", "default_pg", (0..ranks).collect());
        let small: Vec<Arc<GroupInfo>> = (0..ranks.div_ceil(GROUP))
            .map(|index| {
                let members = index * GROUP..((index + 1) * GROUP).min(ranks);
                group(&(index + 1).to_string(), "tensor", members.collect())
            })
            .collect();
        let processes: Vec<ProcessId> = (0..ranks)
            .map(|rank| ProcessId::of(rank / GROUP, rank + 1))
            .collect();
        let start = Timestamp(0);
        for (rank, &process) in (0..).zip(&processes) {
            let joined = Event::ProcessJoined {
                process,
                rank: Some(rank),
                world_size: Some(ranks),
                host: format!("node-{}", rank / GROUP).into(),
                pid: 1000 + rank,
                layer: "c10d".into(),
                world: "".into(),
                restarts: 0,
                at: start,
            };
            engine.handle(joined, start);
            for group in [&world, &small[(rank / GROUP) as usize]] {
                let group = Arc::clone(group);
                engine.handle(Event::GroupJoined { process, group }, start);
            }
        }
        let places = (0..CALLS_PER_STEP).map(|line| {
            Arc::new(Where {
                file: "train.py".into(),
                line: line as u32,
                function: "train".into(),
                ..Where::default()
            })
        });
        Self {
            engine,
            processes,
            world,
            small,
            places: places.collect(),
            issued: [0; 2],
        }
    }

    /// The events of one call of every rank, in order of time.
    fn call(&mut self, number: u64) -> Vec<(Timestamp, Event)> {
        let in_step = number % CALLS_PER_STEP;
        let of_world = usize::from(in_step.is_multiple_of(5));
        self.issued[of_world] += 1;
        let begin = number * CALL;
        let mut events = Vec::with_capacity(self.processes.len() * 2 + 1);
        for (rank, &process) in self.processes.iter().enumerate() {
            let group = if of_world == 1 {
                &self.world
            } else {
                &self.small[rank / GROUP as usize]
            };
            let at = Timestamp(begin + lateness(rank as u64, number));
            if in_step == 1 {
                let step = number / CALLS_PER_STEP + 1;
                let began = Event::Step {
                    process,
                    step,
                    forward: None,
                    at,
                };
                events.push((at, began));
            }
            let call = Call {
                group: Some(Arc::clone(group)),
                seq: self.issued[of_world],
                dtype: DType::Float32,
                reduce_op: ReduceOp::Sum,
                numel: Some(1024 + in_step),
                step: number / CALLS_PER_STEP + 1,
                place: Some(Arc::clone(&self.places[in_step as usize])),
                ..Call::new(CallId(number), at, ThreadId(1), Op::AllReduce)
            };
            let call = Arc::new(call);
            events.push((at, Event::Issued { process, call }));
            let at = Timestamp(begin + 300 * MICROSECOND + lateness(rank as u64, number) / 10);
            let returned = Event::Returned {
                process,
                thread: ThreadId(1),
                call: CallId(number),
                followed: false,
                at,
            };
            events.push((at, returned));
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }
}

fn group(name: &str, description: &str, members: Vec<u32>) -> Arc<GroupInfo> {
    Arc::new(GroupInfo::c10d(name, description, "gloo", members))
}

/// Time in ns by which a rank is late for a call: pseudo-random, below 200 µs.
fn lateness(rank: u64, call: u64) -> u64 {
    let mut mixed =
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ call.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 31;
    mixed = mixed.wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 32) % (200 * MICROSECOND)
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
