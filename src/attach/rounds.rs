//! Reads the ranks of a job, once or again and again.
//!
//! A round compares two captures of the same ranks. The last capture of a round is the first one of the next.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_diagnosis::event::Stacks;
use ddp_doctor_diagnosis::input::backends::Backend;
use ddp_doctor_evidence::stacks::decode;
use ddp_doctor_host::gpu::Gpus;
use ddp_doctor_host::{proc, sys};
use ddp_doctor_node::stack_reader::native::FunctionCache;
use ddp_doctor_proto::v1;

use super::find::{self, RankProcess, RankedJob};
use super::messages::{self, Evidence};
use super::position::{self, Position};
use super::rank_facts::{self, Facts};
use super::ras::{self, Answer};
use super::sample::{self, StackRound};
use super::{Attached, Options};

/// Time between captures: some more than the engine needs between two that it compares.
const APART: Duration = Duration::from_millis(1600);
/// Minimum duration of a wait that is a finding, if the kernel states how long threads have been asleep. Healthy
/// jobs wait for slow storage or an evaluation on one rank.
const MIN_WAIT: Duration = Duration::from_secs(20);
/// Time limit for the driver of GPUs, which may never answer after a fault.
const MAX_GPUS: Duration = Duration::from_secs(2);
/// What the user should know about a job whose ranks nothing numbers.
const BY_ORDER: &str = "the ranks of this job could not be identified: they are numbered in the order in which their \
                        processes started";

/// The rounds of a job.
#[derive(Debug)]
pub struct Rounds {
    job: RankedJob,
    options: Options,
    cache: Arc<FunctionCache>,
    /// The latest capture of the ranks.
    latest: Option<(StackRound, Instant)>,
    /// Ranks that have ended, and were not started again.
    ended: Vec<RankProcess>,
    /// Whether NCCL was asked: once at most.
    is_asked: bool,
}

impl Rounds {
    /// Rounds that begin with these ranks.
    #[must_use]
    pub fn new(job: RankedJob, options: Options) -> Self {
        Self {
            job,
            options,
            cache: Arc::default(),
            latest: None,
            ended: Vec::new(),
            is_asked: false,
        }
    }

    /// Reads the ranks; `None`: all of them have ended.
    pub fn read(&mut self) -> Option<Attached> {
        if self.latest.is_some() {
            self.renew();
        }
        if self.job.ranks.is_empty() {
            return None;
        }
        let scale = self.options.time_scale;
        let (first, at) = match self.latest.take() {
            Some(latest) => latest,
            None => (self.look(), Instant::now()),
        };
        let facts = rank_facts::read(&self.job.ranks);
        let (answer, mut notes) = self.ask(&first, &facts);
        if std::mem::take(&mut self.job.by_order) {
            notes.push(BY_ORDER.into());
        }
        let has_gone =
            || !self.ended.is_empty() || self.job.is_local() && !self.job.elsewhere().is_empty();
        notes.extend(rank_facts::note_on_kills(&facts).filter(|_| has_gone()));
        let gpus = gpus();
        thread::sleep(scale.scale(APART).saturating_sub(at.elapsed()));
        let last = self.look();
        let looks = [first, last];
        let read = self.attached(&looks, answer.as_ref(), &gpus, facts, notes);
        let [_, last] = looks;
        self.latest = Some((last, Instant::now()));
        Some(read)
    }

    fn look(&self) -> StackRound {
        sample::capture_round(&self.job.ranks, &self.cache)
    }

    /// What NCCL counts, if this may be asked. The second result is what the user should know about it.
    fn ask(&mut self, look: &StackRound, facts: &[Facts]) -> (Option<Answer>, Vec<String>) {
        let stacks: Vec<Stacks> = look.iter().map(decode).collect();
        let uses_nccl = |it: &Stacks| messages::backend_of(it).is_some_and(Backend::is_on_device);
        if std::mem::replace(&mut self.is_asked, true) || !stacks.iter().any(uses_nccl) {
            return (None, Vec::new());
        }
        let refused =
            |why: &str| (None, vec![format!("NCCL's counts of calls are not used: {why}")]);
        if stacks.iter().any(position::is_initializing) {
            return refused("a query while communicators are created can crash NCCL");
        }
        let versions = facts.iter().map(|it| it.versions.nccl);
        if let Some(why) = versions.filter_map(|it| ras::may_be_asked(it).err()).next() {
            return refused(&why);
        }
        let first = &self.job.ranks[0];
        match ras::ask(first.pid, &first.environment) {
            Ok(answer) => (Some(answer), Vec::new()),
            Err(error) => refused(&format!("its RAS subsystem does not answer ({error})")),
        }
    }

    fn attached(
        &self,
        looks: &[StackRound],
        answer: Option<&Answer>,
        gpus: &[v1::GpuSample],
        facts: Vec<Facts>,
        notes: Vec<String>,
    ) -> Attached {
        let scale = self.options.time_scale;
        let mut evidence = Evidence {
            job: &self.job,
            ended: &self.ended,
            answer,
            gpus,
            facts: &facts,
            min_wait: scale.scale(MIN_WAIT),
            looks,
            stall_after_s: 0,
            time_scale: scale,
        };
        let whereabouts = evidence.whereabouts();
        let waits: Vec<Option<Duration>> = whereabouts
            .iter()
            .filter_map(|it| match &it.position {
                Position::Inside(call) => Some(call.asleep),
                _ => None,
            })
            .collect();
        let is_unmeasured = !waits.is_empty() && waits.iter().all(Option::is_none);
        // Threads that poll have no measured wait: two captures that show the same are then enough.
        let limit = if is_unmeasured { Duration::ZERO } else { scale.scale(MIN_WAIT) };
        evidence.stall_after_s = (limit.as_secs_f64().ceil() as u32).max(1);
        let reports = evidence.reports();
        let ended = self.ended.iter().map(|it| it.rank).collect();
        let job = self.job.clone();
        Attached { job, whereabouts, facts, ended, notes, reports, dumps: Vec::new() }
    }

    /// Finds ranks that have ended, and those that a launcher started again.
    fn renew(&mut self) {
        let (living, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.job.ranks)
            .into_iter()
            .partition(|it| proc::is_alive(it.pid, it.start_ticks));
        self.job.ranks = living;
        if gone.is_empty() && self.job.elsewhere().is_empty() {
            return;
        }
        let has_changed = !gone.is_empty();
        self.ended.extend(gone);
        // A rank that was started again has the place of the one that ended.
        let again = find::jobs_of(self.job.user).into_iter().find(|job| job.id == self.job.id);
        let known: Vec<u32> = self.job.ranks.iter().map(|it| it.pid).collect();
        let new: Vec<RankProcess> = again
            .map(|job| job.ranks)
            .unwrap_or_default()
            .into_iter()
            .filter(|it| !known.contains(&it.pid))
            .collect();
        if new.is_empty() && !has_changed {
            return;
        }
        self.ended.retain(|it| new.iter().all(|other| other.rank != it.rank));
        self.job.ranks.extend(new);
        self.job.ranks.sort_by_key(|it| it.rank);
        // Captures of other ranks cannot be compared.
        self.latest = None;
    }
}

/// The state of the GPUs of this host; empty: there are none, or their driver does not answer in time.
fn gpus() -> Vec<v1::GpuSample> {
    let read = || {
        let gpus = Gpus::find().into_iter().flat_map(|it| it.read());
        gpus.map(|(sample, _)| sample).collect()
    };
    sys::within(MAX_GPUS, read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::environment::Environment;

    fn rank(child: &Child, rank: u32) -> RankProcess {
        let environment: Environment = [("MASTER_PORT", "1")].into_iter().collect();
        RankProcess {
            pid: child.id(),
            start_ticks: proc::Stat::read(child.id()).unwrap().start_ticks,
            parent: std::process::id(),
            rank,
            world_size: Some(2),
            environment,
            ..RankProcess::default()
        }
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn ranks_that_end_between_rounds_are_known_until_none_is_left() {
        let [first, second] = [0, 1].map(|_| Command::new("sleep").arg("60").spawn().unwrap());
        let job = RankedJob {
            id: "test-of-rounds".into(),
            user: sys::user_id(),
            ranks: vec![rank(&first, 0), rank(&second, 1)],
            by_order: false,
        };
        let scale = ddp_doctor_diagnosis::timing::TimeScale::new(0.01).unwrap();
        let mut rounds = Rounds::new(job, Options { time_scale: scale });
        let ranks = |attached: &Attached| {
            (attached.whereabouts.iter().map(|it| it.rank).collect(), attached.ended.clone())
        };
        let read = |rounds: &mut Rounds| rounds.read().as_ref().map(ranks);
        assert_eq!(read(&mut rounds), Some((vec![0, 1], vec![])));
        end(second);
        assert_eq!(read(&mut rounds), Some((vec![0], vec![1])));
        end(first);
        assert_eq!(read(&mut rounds), None);
    }
}
