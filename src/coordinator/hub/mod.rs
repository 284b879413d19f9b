//! The jobs of a coordinator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ddp_doctor_evidence::decode::{JOB_TABLES, Memory};
use ddp_doctor_proto::dump::Dump;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_stream::{Stream, StreamExt};

mod jobs;

use self::jobs::{HostedJob, Inputs, Jobs, Node};
use super::gathering::Gathering;
use super::session::{Input, MAX_NODES, Published, Session};
use super::updates::Updates;
use crate::summary::Summary;
use crate::summary::{JobState, State};

/// Maximum number of jobs, including ended ones that are kept.
const MAX_JOBS: usize = 256;
/// How long an ended job is kept.
const RETENTION_AFTER_END: Duration = Duration::from_secs(3600);
/// Capacity of a session's input queue. A full queue slows the nodes' streams down.
const INPUTS: usize = 64;
/// Memory of the reports that wait in the input queue of one job, and in those of all jobs, in KiB. A
/// stream whose report finds no room waits.
const INPUT_KIB: (usize, usize) = (32 << 10, 256 << 10);
/// Memory of the tables of all jobs, in bytes.
const ALL_TABLES: usize = 4 << 30;
/// Capacity of a node's request queue.
const REQUESTS: usize = 16;
/// Maximum number of concurrent viewers.
const MAX_VIEWERS: usize = 64;
/// Maximum number of concurrent dump requests.
const MAX_DUMPS: usize = 8;
/// Time limit for the first report on a new stream.
const FIRST_REPORT: Duration = Duration::from_secs(10);
/// Time limit for the numbers of all sessions.
const MAX_SUMMARY: Duration = Duration::from_secs(1);
/// Maximum length of a job id, in bytes.
const MAX_JOB_ID: usize = 128;

/// Why a node or a viewer was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The first event of the stream is not a Hello.
    #[error("the first event of the stream is not a Hello")]
    NoHello,
    /// The job id is empty or too long.
    #[error("not a job id")]
    BadJobId,
    /// There is no such job.
    #[error("no such job")]
    NoSuchJob,
    /// The limit of jobs is reached.
    #[error("too many jobs")]
    TooManyJobs,
    /// The limit of viewers or of dump requests is reached.
    #[error("too many viewers")]
    TooManyViewers,
    /// The job has ended: no node is attached any more.
    #[error("the job has ended")]
    Ended,
}

/// The jobs of a coordinator.
///
/// A job is one launch: launches of the same name that can be distinguished have a session each,
/// and the name refers to the newest one.
#[derive(Debug)]
pub struct Hub {
    jobs: Mutex<Jobs>,
    /// Room in the input queues of all jobs, in KiB.
    queued: Arc<Semaphore>,
    /// Memory of the tables of all jobs.
    tables: Arc<Memory>,
    viewers: Arc<AtomicUsize>,
    dumps: Arc<AtomicUsize>,
    /// Receives every job that begins.
    new_jobs: Option<mpsc::Sender<Begun>>,
}

/// A job that began.
#[derive(Debug)]
pub struct Begun {
    /// Job id, which earlier jobs may have had, too.
    pub id: String,
    /// Time its first node started it.
    pub started: Timestamp,
    /// Updates of its diagnosis.
    pub updates: Updates,
}

/// What a viewer subscribes to.
#[derive(Clone, Copy, Debug)]
struct Contents {
    /// Changes of ranks every second, in addition to findings.
    live: bool,
    /// The states of the ranks since the start of the job.
    past: bool,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            jobs: Mutex::new(Jobs {
                by_number: BTreeMap::new(),
                first: Timestamp::now().0,
                count: 0,
                attached: 0,
            }),
            queued: Arc::new(Semaphore::new(INPUT_KIB.1)),
            tables: Arc::new(Memory::new(ALL_TABLES)),
            viewers: Arc::default(),
            dumps: Arc::default(),
            new_jobs: None,
        }
    }
}

impl Hub {
    /// A hub without jobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A hub that sends every job that begins to a channel. A job is left out if the channel is
    /// full.
    #[must_use]
    pub fn announcing(new_jobs: mpsc::Sender<Begun>) -> Self {
        Self { new_jobs: Some(new_jobs), ..Self::default() }
    }

    /// Attaches a node's stream of reports, and returns the requests to the node. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// Fails if the stream does not begin with a valid Hello, or if there is no room for another
    /// job.
    pub async fn attach<S>(
        self: &Arc<Self>,
        mut reports: S,
    ) -> Result<mpsc::Receiver<v1::Request>, AttachError>
    where
        S: Stream<Item = v1::Report> + Send + Unpin + 'static,
    {
        let next_filled = async {
            loop {
                let report = reports.next().await?;
                if !report.events.is_empty() {
                    return Some(report);
                }
            }
        };
        let first = tokio::time::timeout(FIRST_REPORT, next_filled)
            .await
            .ok()
            .flatten()
            .ok_or(AttachError::NoHello)?;
        let Some(Kind::Hello(hello)) = first.events.first().and_then(|event| event.kind.clone())
        else {
            return Err(AttachError::NoHello);
        };
        if hello.job.is_empty() || hello.job.len() > MAX_JOB_ID {
            return Err(AttachError::BadJobId);
        }
        let (inputs, attachment, welcome) = self.session(&hello)?;
        let (requests, receiver) = mpsc::channel(REQUESTS);
        let attached =
            Attached { hub: Arc::clone(self), hello: hello.clone(), inputs: inputs.clone() };
        tokio::spawn(async move {
            // Dropped at every exit, which marks the node as detached.
            let attached = attached;
            let hello = Input::Attached { attachment, hello, welcome, requests };
            if inputs.queue.send(hello).await.is_err() {
                return;
            }
            let mut next = Some(first);
            while let Some(report) = next {
                attached.note_end(&report);
                if inputs.report(attachment, report).await.is_none() {
                    return;
                }
                next = reports.next().await;
            }
            // Fails if the session has ended, which is harmless.
            drop(inputs.queue.send(Input::Detached { attachment }).await);
        });
        Ok(receiver)
    }

    /// Subscribes to a job; an empty id selects the newest one. With `live`, ranks are updated
    /// every second, not only when findings change.
    ///
    /// # Errors
    ///
    /// Fails if there is no such job, or there are too many viewers.
    pub fn watch(&self, job: &str, live: bool) -> Result<Updates, AttachError> {
        self.subscribe(Contents { live, past: false }, |jobs| jobs.named(job))
    }

    /// Subscribes to a job as [`Hub::watch`] does with `live`, and to its earlier states.
    ///
    /// # Errors
    ///
    /// Fails if there is no such job, or there are too many viewers.
    pub fn watch_with_past(&self, job: &str) -> Result<Updates, AttachError> {
        self.subscribe(Contents { live: true, past: true }, |jobs| jobs.named(job))
    }

    /// Subscribes to the launch with this number, as in its Welcome. See [`Hub::watch`].
    ///
    /// # Errors
    ///
    /// Fails if there is no such launch, or there are too many viewers.
    pub fn watch_session(&self, number: u64, live: bool) -> Result<Updates, AttachError> {
        self.subscribe(Contents { live, past: false }, |jobs| jobs.by_number.get(&number))
    }

    fn subscribe(
        &self,
        contents: Contents,
        select: impl FnOnce(&Jobs) -> Option<&HostedJob>,
    ) -> Result<Updates, AttachError> {
        let mut jobs = self.jobs();
        jobs.remove_expired();
        let job = select(&jobs).ok_or(AttachError::NoSuchJob)?;
        if self.viewers.load(Ordering::Relaxed) >= MAX_VIEWERS {
            return Err(AttachError::TooManyViewers);
        }
        let mut counters = vec![self.viewers.clone()];
        if contents.live {
            counters.push(job.live_viewers.clone());
        }
        let mut updates = Updates::new(job.published.clone(), counters);
        if let Some(inputs) = job.inputs.as_ref().filter(|_| !job.has_ended()) {
            let (done, refreshed) = oneshot::channel();
            // A full queue drops `done`, so that nothing is waited for.
            drop(inputs.queue.try_send(Input::Refresh { done }));
            updates.begin_after(refreshed);
            if contents.past {
                let (answer, past) = oneshot::channel();
                drop(inputs.queue.try_send(Input::Past { answer }));
                updates.begin_with_past(past);
            }
        } else if contents.past {
            updates.begin_with_recorded_past();
        }
        Ok(updates)
    }

    /// Takes the current stacks of all ranks of a running job; an empty id selects the newest one.
    ///
    /// # Errors
    ///
    /// Fails if there is no such job, it has ended, or there are too many dump requests.
    pub async fn dump(&self, job: &str) -> Result<Dump, AttachError> {
        let (inputs, _counted) = {
            let jobs = self.jobs();
            let job = jobs.named(job).ok_or(AttachError::NoSuchJob)?;
            let counted =
                Counted::new(&self.dumps, MAX_DUMPS).ok_or(AttachError::TooManyViewers)?;
            let inputs = job.inputs.clone().ok_or(AttachError::Ended)?;
            (inputs, counted)
        };
        let (answer, answered) = oneshot::channel();
        let asked = inputs.queue.send(Input::Dump { answer }).await;
        asked.map_err(|_gone| AttachError::Ended)?;
        answered.await.map_err(|_gone| AttachError::Ended)
    }

    /// The current state of all jobs, newest first. Waits up to a second for sessions that are busy, and
    /// uses their last published state after that.
    pub async fn state(&self) -> State {
        let mut waiting = Vec::new();
        let jobs_started = {
            let mut jobs = self.jobs();
            jobs.remove_expired();
            for job in jobs.by_number.values().rev() {
                let (answer, answered) = oneshot::channel();
                let is_running = !job.has_ended();
                let inputs = job.inputs.as_ref().filter(|_| is_running);
                // A full queue drops `answer`, so that nothing is waited for.
                if let Some(inputs) = inputs {
                    drop(inputs.queue.try_send(Input::Summarize { answer }));
                }
                let nodes = job.nodes.iter().filter(|node| node.attached > 0).count();
                let state = JobState {
                    id: job.id.clone(),
                    summary: None,
                    nodes: nodes as u64,
                    is_running,
                    is_current: !is_running,
                };
                waiting.push((state, job.published.clone(), answered));
            }
            jobs.count
        };
        let until = tokio::time::Instant::now() + MAX_SUMMARY;
        let mut jobs = Vec::with_capacity(waiting.len());
        for (mut state, published, answered) in waiting {
            let answer = tokio::time::timeout_at(until, answered).await;
            state.summary = match answer {
                Ok(Ok(summary)) => {
                    state.is_current = true;
                    Some(summary)
                }
                _ => published.borrow().report.as_ref().map(Summary::new),
            };
            jobs.push(state);
        }
        State { jobs, jobs_started }
    }

    /// Returns the session of the job, created if necessary, a number for the new stream, and the
    /// answer to the node.
    fn session(&self, hello: &v1::Hello) -> Result<(Inputs, u64, v1::Welcome), AttachError> {
        let mut jobs = self.jobs();
        jobs.attached += 1;
        let attachment = jobs.attached;
        if let Some((number, inputs)) = jobs.join(hello) {
            return Ok((inputs, attachment, jobs.welcome(number)));
        }
        jobs.evict_ended()?;
        jobs.count += 1;
        let (queue, receiver) = mpsc::channel(INPUTS);
        let inputs = Inputs {
            queue,
            room: Arc::new(Semaphore::new(INPUT_KIB.0)),
            all_room: Arc::clone(&self.queued),
        };
        let tables = Arc::new(Memory::part(JOB_TABLES, Arc::clone(&self.tables)));
        let (publisher, published) = watch::channel(Arc::new(Published::default()));
        let live_viewers = Arc::new(AtomicUsize::new(0));
        if hello.attached {
            tokio::spawn(Gathering::new(publisher).run(receiver));
        } else {
            let session = Session::new(hello, publisher, live_viewers.clone(), tables);
            tokio::spawn(session.run(receiver));
        }
        if let Some(new_jobs) = &self.new_jobs {
            let begin = Begun {
                id: hello.job.clone(),
                started: Timestamp(hello.started_unix_ns),
                updates: Updates::new(published.clone(), Vec::new()),
            };
            drop(new_jobs.try_send(begin));
        }
        let mut job = HostedJob {
            id: hello.job.clone(),
            is_attached: hello.attached,
            launch: String::new(),
            nodes: Vec::new(),
            inputs: Some(inputs.clone()),
            published,
            live_viewers,
            ended: None,
        };
        job.attach(hello);
        let number = jobs.first + jobs.count;
        jobs.by_number.insert(number, job);
        Ok((inputs, attachment, jobs.welcome(number)))
    }

    /// Number of open streams of the job.
    #[cfg(test)]
    pub(super) fn attached(&self, job: &str) -> usize {
        let locked = self.jobs();
        let jobs = locked.by_number.values().filter(|it| it.id == job);
        jobs.flat_map(|it| &it.nodes).map(|it| it.attached).sum()
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open stream of a node.
struct Attached {
    hub: Arc<Hub>,
    hello: v1::Hello,
    inputs: Inputs,
}

impl Attached {
    fn note_end(&self, report: &v1::Report) {
        let is_end = |event: &v1::Event| matches!(event.kind, Some(Kind::JobEnded(_)));
        if report.events.iter().any(is_end) {
            self.with_node(|node| node.ended = true);
        }
    }

    fn with_node(&self, work: impl FnOnce(&mut Node)) {
        let mut jobs = self.hub.jobs();
        let same = |job: &&mut HostedJob| {
            let inputs = job.inputs.as_ref();
            inputs.is_some_and(|it| it.queue.same_channel(&self.inputs.queue))
        };
        let job = jobs.by_number.values_mut().find(same);
        if let Some(node) = job.and_then(|job| job.node(&self.hello)) {
            work(node);
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.with_node(|node| node.attached = node.attached.saturating_sub(1));
    }
}

/// A slot of a bounded counter, released on drop.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(counter: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |count| (count < most).then_some(count + 1);
        let counted = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.is_ok().then(|| Self(Arc::clone(counter)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
