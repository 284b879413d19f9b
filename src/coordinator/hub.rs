//! All jobs of a coordinator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt};

use super::session::{Input, Published, Session};
use super::updates::Updates;

/// Jobs at one time, and jobs remembered after their end.
const MAX_JOBS: usize = 256;
/// Reports on their way to a session. A full queue holds the nodes' streams back.
const INPUTS: usize = 64;
/// Requests on their way to a node.
const REQUESTS: usize = 16;
/// Viewers at one time.
const MAX_VIEWERS: usize = 64;
/// Longest job id.
const MAX_JOB_ID: usize = 128;

/// Why a node or a viewer was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The first event of a stream says whose it is.
    #[error("the first event of the stream is no Hello")]
    NoHello,
    /// The name of the job is empty or too long.
    #[error("not a job id")]
    BadJobId,
    /// There is no such job.
    #[error("no such job")]
    NoSuchJob,
    /// The coordinator has as many jobs as it can have.
    #[error("too many jobs")]
    TooManyJobs,
    /// The coordinator has as many viewers as it can have.
    #[error("too many viewers")]
    TooManyViewers,
}

/// All jobs of a coordinator.
#[derive(Debug, Default)]
pub struct Hub {
    jobs: Mutex<Jobs>,
    viewers: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Jobs {
    by_id: BTreeMap<String, Job>,
    started: u64,
    attached: u64,
}

#[derive(Debug)]
struct Job {
    /// Grows with every job: the newest has the greatest.
    started: u64,
    inputs: mpsc::Sender<Input>,
    published: watch::Receiver<Arc<Published>>,
    /// Viewers that want to see ranks move, not only findings.
    live_viewers: Arc<AtomicUsize>,
}

impl Hub {
    /// A hub without jobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a node's stream of reports, and returns what is asked of the node. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the stream does not begin with a Hello, or there is no room for another job.
    pub async fn attach<S>(
        &self,
        mut reports: S,
    ) -> Result<mpsc::Receiver<v1::Request>, AttachError>
    where
        S: Stream<Item = v1::Report> + Send + Unpin + 'static,
    {
        let first = loop {
            let report = reports.next().await.ok_or(AttachError::NoHello)?;
            if !report.events.is_empty() {
                break report;
            }
        };
        let Some(Kind::Hello(hello)) = first.events.first().and_then(|event| event.kind.clone())
        else {
            return Err(AttachError::NoHello);
        };
        if hello.job.is_empty() || hello.job.len() > MAX_JOB_ID {
            return Err(AttachError::BadJobId);
        }
        let (inputs, attachment) = self.session(&hello)?;
        let (requests, receiver) = mpsc::channel(REQUESTS);
        tokio::spawn(async move {
            let hello = Input::Attached {
                attachment,
                hello,
                requests,
            };
            if inputs.send(hello).await.is_err() {
                return;
            }
            let mut next = Some(first);
            while let Some(report) = next {
                let report = Input::Report {
                    attachment,
                    report,
                    at: Timestamp::now(),
                };
                if inputs.send(report).await.is_err() {
                    return;
                }
                next = reports.next().await;
            }
            // A session that has ended wants no goodbye.
            drop(inputs.send(Input::Detached { attachment }).await);
        });
        Ok(receiver)
    }

    /// Follows a job; an empty id means the newest one. `live`: ranks are refreshed every second,
    /// not only when findings change.
    ///
    /// # Errors
    ///
    /// When there is no such job, or there are too many viewers.
    pub fn watch(&self, job: &str, live: bool) -> Result<Updates, AttachError> {
        let jobs = self.jobs();
        let job = if job.is_empty() {
            jobs.by_id.values().max_by_key(|job| job.started)
        } else {
            jobs.by_id.get(job)
        };
        let job = job.ok_or(AttachError::NoSuchJob)?;
        if self.viewers.load(Ordering::Relaxed) >= MAX_VIEWERS {
            return Err(AttachError::TooManyViewers);
        }
        let mut counters = vec![self.viewers.clone()];
        if live {
            counters.push(job.live_viewers.clone());
        }
        Ok(Updates::new(job.published.clone(), counters))
    }

    /// The session of the job, made if need be, and a number for the new stream.
    fn session(&self, hello: &v1::Hello) -> Result<(mpsc::Sender<Input>, u64), AttachError> {
        let mut jobs = self.jobs();
        jobs.attached += 1;
        let attachment = jobs.attached;
        if let Some(job) = jobs.by_id.get(&hello.job)
            && !job.inputs.is_closed()
        {
            return Ok((job.inputs.clone(), attachment));
        }
        jobs.make_room()?;
        jobs.started += 1;
        let (inputs, receiver) = mpsc::channel(INPUTS);
        let (publisher, published) = watch::channel(Arc::new(Published::default()));
        let live_viewers = Arc::new(AtomicUsize::new(0));
        tokio::spawn(Session::new(hello, publisher, live_viewers.clone()).run(receiver));
        let job = Job {
            started: jobs.started,
            inputs: inputs.clone(),
            published,
            live_viewers,
        };
        jobs.by_id.insert(hello.job.clone(), job);
        Ok((inputs, attachment))
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs {
    /// Forgets the oldest job that has ended, where there are too many.
    fn make_room(&mut self) -> Result<(), AttachError> {
        if self.by_id.len() < MAX_JOBS {
            return Ok(());
        }
        let ended = self.by_id.iter().filter(|(_, job)| job.inputs.is_closed());
        let oldest = ended
            .min_by_key(|(_, job)| job.started)
            .map(|(id, _)| id.clone());
        self.by_id.remove(&oldest.ok_or(AttachError::TooManyJobs)?);
        Ok(())
    }
}
