//! What a long job leaves behind in the model.

use std::sync::Weak;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Where;

use super::*;
use crate::input::event::{Call, CallId, Event, MemorySample, SchedulingSample, ThreadId};
use crate::testing;

/// Ranks of the simulated job.
const RANKS: u32 = 8;

/// A job whose ranks make the same calls over and over.
struct Job {
    model: Model,
    groups: Vec<Arc<GroupInfo>>,
    /// One line for each kind of call.
    places: Vec<Arc<Where>>,
    /// All calls that were made.
    calls: Vec<Weak<Call>>,
    /// Number of steps made.
    steps: u64,
}

impl Job {
    fn start() -> Self {
        let world: Vec<u32> = (0..RANKS).collect();
        let groups = vec![
            testing::group("0", "gloo", &world),
            testing::group("low", "gloo", &world[..4]),
            testing::group("high", "gloo", &world[4..]),
        ];
        let places = (1..)
            .take(4)
            .map(|line| Arc::new(Where { file: "train.py".into(), line, ..Where::default() }));
        let mut job = Self {
            model: Model::default(),
            groups,
            places: places.collect(),
            calls: Vec::new(),
            steps: 0,
        };
        for rank in 0..RANKS {
            let process = ProcessId(u64::from(rank));
            job.model.apply(Event::ProcessJoined {
                process,
                rank: Some(rank),
                world_size: Some(RANKS),
                host: "node".into(),
                pid: rank,
                layer: "c10d".into(),
                world: "".into(),
                restarts: 0,
                at: Timestamp(0),
            });
            let half = 1 + rank as usize / 4;
            for group in [0, half].map(|group| Arc::clone(&job.groups[group])) {
                job.model.apply(Event::GroupJoined { process, group });
            }
        }
        job
    }

    /// Makes steps of four calls: in the world, in a half of it, a message, and a bucket of DDP.
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.steps += 1;
            for call in 0..4 {
                for rank in 0..RANKS {
                    self.issue(rank, call);
                    self.returned(rank, call);
                }
            }
            (0..RANKS).for_each(|rank| self.measure(rank));
        }
    }

    fn issue(&mut self, rank: u32, nth: u64) {
        let process = ProcessId(u64::from(rank));
        let id = CallId(self.steps * 4 + nth);
        let at = self.at(rank, nth);
        let (group, op) = match nth {
            1 => (1 + rank as usize / 4, Op::AllReduce),
            2 if rank < 4 => (0, Op::Send),
            2 => (0, Op::Recv),
            _ => (0, Op::AllReduce),
        };
        let is_bucket = nth == 3;
        let call = Arc::new(Call {
            group: Some(Arc::clone(&self.groups[group])),
            seq: match nth {
                0 => 2 * self.steps - 1,
                3 => 2 * self.steps,
                _ => self.steps,
            },
            numel: Some(1 << nth),
            peer: (nth == 2).then_some((rank + 4) % RANKS),
            tag: (nth == 2).then_some(0),
            is_async: is_bucket,
            hidden: is_bucket,
            step: self.steps,
            place: Some(Arc::clone(&self.places[nth as usize])),
            ..Call::new(id, at, ThreadId(1), op)
        });
        self.calls.push(Arc::downgrade(&call));
        self.model.apply(Event::Issued { process, call });
    }

    fn returned(&mut self, rank: u32, nth: u64) {
        let at = self.at(rank, nth).plus(Duration::from_micros(50));
        self.model.apply(Event::Returned {
            process: ProcessId(u64::from(rank)),
            thread: ThreadId(1),
            call: CallId(self.steps * 4 + nth),
            followed: false,
            at,
        });
    }

    /// When a rank issues a call of the current step.
    fn at(&self, rank: u32, nth: u64) -> Timestamp {
        Timestamp(self.steps * 100_000_000 + nth * 1_000_000 + u64::from(rank))
    }

    fn measure(&mut self, rank: u32) {
        let process = ProcessId(u64::from(rank));
        let at = Timestamp(self.steps * 1_000_000_000);
        let noise = self.steps % 7;
        self.model.apply(Event::Step {
            process,
            thread: ThreadId(1),
            step: self.steps + 1,
            forward: None,
            at,
        });
        self.model.apply(Event::Scheduled {
            process,
            sample: SchedulingSample {
                ran_permille: Some(noise as u32),
                ..SchedulingSample::default()
            },
            at,
        });
        self.model.apply(Event::Memory {
            process,
            sample: Box::new(MemorySample {
                rss: Some(noise),
                cgroup_limit: Some(100),
                cgroup_held: Some(0),
                ..MemorySample::default()
            }),
            at,
        });
    }

    /// Number of calls that the model keeps.
    fn kept_calls(&self) -> usize {
        let kept = self.calls.iter().filter(|call| call.strong_count() > 0);
        kept.count()
    }
}

#[test]
fn kept_calls_do_not_grow_with_the_job() {
    let mut job = Job::start();
    job.run(100);
    let after_some = job.kept_calls();
    job.run(2_000);
    assert_eq!(job.kept_calls(), after_some);
    // The latest calls of threads and processes, the latest of each group, and one of each kind.
    let most = 4 * RANKS as usize;
    assert!(after_some <= most, "{after_some} calls are kept");
    let entered = job.model.groups().map(|group| group.entered.len());
    assert!(entered.max() <= Some(1));
}

#[test]
fn collective_is_kept_while_a_rank_is_inside_it() {
    let mut job = Job::start();
    job.run(1);
    job.steps += 1;
    for rank in 0..RANKS {
        job.issue(rank, 0);
        if rank != 3 {
            job.returned(rank, 0);
        }
    }
    let seq = 2 * job.steps - 1;
    (0..RANKS).for_each(|rank| job.issue(rank, 3));
    let world = job.model.groups().find(|it| it.members.len() == 8).unwrap();
    assert!(world.entered.contains_key(&seq));
}

#[test]
fn structures_of_large_jobs_are_small() {
    assert!(size_of::<CompletedCall>() <= 104, "{}", size_of::<CompletedCall>());
    assert!(size_of::<JoinedCall>() <= 112, "{}", size_of::<JoinedCall>());
    assert!(size_of::<Member>() <= 80, "{}", size_of::<Member>());
}
