//! Slip detection on generated jobs: healthy jobs have none, a job that skips a step has one.

use ddp_doctor_proto::{ExceptionKind, Op};

use super::*;
use crate::input::event::Forward;
use crate::input::event::{CallId, Event, ProcessId, ThreadId};
use crate::model::Model;
use crate::testing;

/// Deterministic pseudo-random numbers (Knuth's MMIX generator).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Ranks that issue calls in one group.
struct Job {
    model: Model,
    group: Arc<crate::input::event::GroupInfo>,
    steps: Vec<u64>,
    seqs: Vec<u64>,
    batches: Vec<Option<u64>>,
    clock: u64,
}

impl Job {
    fn new(ranks: u32, counts_batches: bool) -> Self {
        let members: Vec<u32> = (0..ranks).collect();
        let mut job = Self {
            model: Model::default(),
            group: testing::group("0", "gloo", &members),
            steps: vec![0; ranks as usize],
            seqs: vec![0; ranks as usize],
            batches: vec![counts_batches.then_some(0); ranks as usize],
            clock: 0,
        };
        for rank in members {
            job.model.apply(Event::ProcessJoined {
                process: ProcessId(u64::from(rank)),
                rank: Some(rank),
                world_size: Some(ranks),
                host: "node".into(),
                pid: rank,
                layer: "c10d".into(),
                world: "".into(),
                restarts: 0,
                at: Timestamp(0),
            });
            let group = Arc::clone(&job.group);
            let process = ProcessId(u64::from(rank));
            job.model.apply(Event::GroupJoined { process, group });
        }
        job
    }

    fn ranks(&self) -> std::ops::Range<usize> {
        0..self.steps.len()
    }

    fn draw(&mut self, rank: usize) {
        if let Some(batches) = &mut self.batches[rank] {
            *batches += 1;
        }
    }

    fn forward(&mut self, rank: usize, path: &str, change: impl FnOnce(&mut Forward)) {
        self.steps[rank] += 1;
        self.clock += 1;
        let mut forward =
            Forward { path: Some(path.into()), batches: self.batches[rank], ..Forward::default() };
        change(&mut forward);
        self.model.apply(Event::Step {
            process: ProcessId(rank as u64),
            thread: ThreadId(1),
            step: self.steps[rank],
            forward: Some(forward),
            at: Timestamp(self.clock),
        });
    }

    fn raise(&mut self, rank: usize) {
        self.clock += 1;
        self.model.apply(Event::Exception {
            process: ProcessId(rank as u64),
            kind: ExceptionKind::LeftForward,
            text: "RuntimeError: no".into(),
            place: None,
            at: Timestamp(self.clock),
        });
    }

    fn call(&mut self, rank: usize, line: u64) {
        self.clock += 1;
        self.seqs[rank] += 1;
        let mut call = Call { numel: Some(64), ..testing::call(Op::AllReduce) };
        call.id = CallId(self.seqs[rank]);
        call.seq = self.seqs[rank];
        call.at = Timestamp(self.clock);
        call.thread = ThreadId(1);
        call.group = Some(Arc::clone(&self.group));
        call.step = self.steps[rank];
        call.place = Some(Arc::new(Where {
            file: "train.py".into(),
            line: line as u32,
            function: "f".into(),
            ..Where::default()
        }));
        self.model.apply(Event::Issued { process: ProcessId(rank as u64), call: Arc::new(call) });
    }

    fn slip(&self) -> Option<&Slip> {
        self.model.groups().next()?.history.slip()
    }
}

/// One step of a healthy job, in which ranks may behave differently.
fn healthy_step(job: &mut Job, chance: &mut Chance, step: u64, lines: u64, odd: u64) {
    for rank in job.ranks() {
        job.draw(rank);
        let own = rank as u64;
        // On some ranks only.
        if chance.one_in(6) {
            match (odd + own + step) % 6 {
                0 => job.forward(rank, "train", |it| it.unsynchronized = true),
                1 => job.forward(rank, "picture", |_| {}),
                2 => {
                    job.forward(rank, "train", |_| {});
                    job.forward(rank, "train", |it| it.repeated = true);
                    continue;
                }
                3 if job.batches[rank].is_some() => job.forward(rank, "train", |_| {}),
                4 => {
                    job.forward(rank, "train", |_| {});
                    job.raise(rank);
                }
                5 if job.batches[rank].is_some() => job.draw(rank),
                _ => {}
            }
        }
        job.forward(rank, "train", |_| {});
    }
    for line in 0..lines {
        for rank in job.ranks() {
            // A rank without data makes the same call from another line.
            let dummy = odd.is_multiple_of(3) && chance.one_in(5);
            job.call(rank, 10 + line + if dummy { 100 } else { 0 });
        }
    }
    if step.is_multiple_of(7) {
        for rank in job.ranks() {
            job.call(rank, if odd.is_multiple_of(2) { 200 } else { 200 + rank as u64 });
        }
    }
}

#[test]
fn healthy_jobs_never_slip() {
    for seed in 0..400 {
        let mut chance = Chance(seed);
        let ranks = 2 + chance.below(3) as u32;
        let mut job = Job::new(ranks, seed.is_multiple_of(2));
        let (lines, odd) = (1 + chance.below(3), chance.below(12));
        for step in 0..60 {
            healthy_step(&mut job, &mut chance, step, lines, odd);
            if seed.is_multiple_of(5) && step % 20 == 19 {
                // The last rank has no more batches and joins the calls of the others.
                for line in 0..lines {
                    for rank in job.ranks() {
                        if line == 0 && rank as u32 + 1 < ranks {
                            job.draw(rank);
                            job.forward(rank, "train", |_| {});
                        }
                        job.call(rank, 10 + line);
                    }
                }
            }
        }
        assert!(job.slip().is_none(), "seed {seed}: {:?}", job.slip());
    }
}

#[test]
fn skipped_step_is_found_with_its_rank_and_call() {
    for seed in 0..400 {
        let mut chance = Chance(seed);
        let ranks = 2 + chance.below(3) as u32;
        let mut job = Job::new(ranks, seed.is_multiple_of(2));
        let lines = 1 + chance.below(3);
        let at = 5 + chance.below(20);
        let culprit = chance.below(u64::from(ranks)) as usize;
        for step in 0..at + 6 {
            for rank in job.ranks() {
                if step == at && rank == culprit {
                    job.draw(rank);
                    job.forward(rank, "train", |_| {});
                }
                job.draw(rank);
                job.forward(rank, "train", |_| {});
            }
            for line in 0..lines {
                job.ranks().for_each(|rank| job.call(rank, 10 + line));
            }
        }
        let slip = job.slip().unwrap_or_else(|| panic!("seed {seed}: no slip"));
        let skipped: Vec<u32> = slip.skipped.keys().copied().collect();
        assert_eq!(skipped, [culprit as u32], "seed {seed}");
        assert_eq!(slip.seq, at * lines + 1, "seed {seed}");
    }
}
