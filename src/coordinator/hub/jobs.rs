//! The jobs of a coordinator and their nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{VERSION, v1};
use prost::Message;
use tokio::sync::{Semaphore, mpsc, watch};

use super::super::meeting::Meeting;
use super::{AttachError, INPUT_KIB, Input, MAX_JOBS, MAX_NODES, Published, RETENTION_AFTER_END};

#[derive(Debug)]
pub(super) struct Jobs {
    /// Jobs by the number of their session, in the order in which they began.
    pub(super) by_number: BTreeMap<u64, HostedJob>,
    /// Number before that of the first session. It differs between coordinators, so that a node does
    /// not mistake a session of an earlier coordinator for its own.
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) attached: u64,
}

#[derive(Debug)]
pub(super) struct HostedJob {
    pub(super) id: String,
    /// Whether its ranks are read from outside, by nodes that did not start them.
    pub(super) is_attached: bool,
    /// The nodes' name of this launch; empty: unknown.
    pub(super) launch: String,
    pub(super) nodes: Vec<Node>,
    /// Input queue of the session; `None`: no further node can join.
    pub(super) inputs: Option<Inputs>,
    pub(super) published: watch::Receiver<Arc<Published>>,
    /// Number of viewers that need every change of ranks, not only findings.
    pub(super) live_viewers: Arc<AtomicUsize>,
    /// When the end of the job was first noticed.
    pub(super) ended: Option<Instant>,
}

/// The input queue of a session, bounded in number and in memory.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    pub(super) queue: mpsc::Sender<Input>,
    /// Room in this queue, in KiB.
    pub(super) room: Arc<Semaphore>,
    /// Room in the queues of all jobs, in KiB.
    pub(super) all_room: Arc<Semaphore>,
}

impl Inputs {
    /// Queues a report once there is room; `None`: the session is over.
    pub(super) async fn report(&self, attachment: u64, report: v1::Report) -> Option<()> {
        let bytes = report.encoded_len() + report.events.len() * size_of::<v1::Event>();
        let kib = (bytes >> 10).clamp(1, INPUT_KIB.0) as u32;
        // In this order, so that a job that waits for its own room holds none of the others'.
        let own = Arc::clone(&self.room).acquire_many_owned(kib).await.ok()?;
        let of_all = Arc::clone(&self.all_room).acquire_many_owned(kib).await.ok()?;
        let report =
            Input::Report { attachment, report, at: Timestamp::now(), _room: [own, of_all] };
        self.queue.send(report).await.ok()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

/// A node as identified by its Hello.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) boot_id: String,
    pub(super) started_unix_ns: u64,
    pub(super) meeting: Meeting,
    /// Number of its open streams.
    pub(super) attached: usize,
    /// Whether it reported the end of the job.
    pub(super) ended: bool,
}

impl HostedJob {
    /// Whether the node can be part of this launch.
    pub(super) fn accepts(&self, hello: &v1::Hello) -> bool {
        self.id == hello.job
            && (self.launch.is_empty() || hello.launch.is_empty() || self.launch == hello.launch)
            && !self.is_restart(hello)
            && !self.contradicts(&Meeting::from_hello(hello))
    }

    pub(super) fn contradicts(&self, meeting: &Meeting) -> bool {
        self.nodes.iter().any(|node| node.meeting.contradicts(meeting))
    }

    /// How well the node fits to this launch, the best first: it was attached before, it meets the
    /// others at the same place, or nothing is known.
    pub(super) fn fit(&self, hello: &v1::Hello) -> u8 {
        let meeting = Meeting::from_hello(hello);
        if self.nodes.iter().any(|node| node.is(hello)) {
            0
        } else if self.nodes.iter().any(|node| node.meeting.is_at(&meeting)) {
            1
        } else {
            2
        }
    }

    /// Whether the node starts the job again: its earlier stream was lost without an end of the
    /// job. The earlier launch was killed, and its records must not mix with those of the new one.
    pub(super) fn is_restart(&self, hello: &v1::Hello) -> bool {
        let mut same_host = self
            .nodes
            .iter()
            .filter(|node| node.host == hello.host && node.boot_id == hello.boot_id);
        let is_lost = |node: &Node| {
            node.started_unix_ns < hello.started_unix_ns && node.attached == 0 && !node.ended
        };
        self.nodes.iter().all(|node| !node.is(hello)) && same_host.any(is_lost)
    }

    pub(super) fn attach(&mut self, hello: &v1::Hello) {
        if self.launch.is_empty() {
            self.launch.clone_from(&hello.launch);
        }
        if let Some(node) = self.node(hello) {
            node.attached += 1;
        } else if self.nodes.len() < MAX_NODES {
            self.nodes.push(Node {
                host: hello.host.clone(),
                boot_id: hello.boot_id.clone(),
                started_unix_ns: hello.started_unix_ns,
                meeting: Meeting::from_hello(hello),
                attached: 1,
                ended: false,
            });
        }
    }

    pub(super) fn node(&mut self, hello: &v1::Hello) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.is(hello))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.inputs.as_ref().is_none_or(Inputs::is_closed)
    }
}

impl Node {
    pub(super) fn is(&self, hello: &v1::Hello) -> bool {
        self.host == hello.host
            && self.boot_id == hello.boot_id
            && self.started_unix_ns == hello.started_unix_ns
    }
}

impl Jobs {
    /// The newest job with this id; the newest of all if the id is empty.
    pub(super) fn named(&self, id: &str) -> Option<&HostedJob> {
        let mut newest = self.by_number.values().rev();
        newest.find(|job| id.is_empty() || job.id == id)
    }

    /// Number and input queue of the launch that the node fits best to, and of those the newest.
    pub(super) fn join(&mut self, hello: &v1::Hello) -> Option<(u64, Inputs)> {
        let all = self.by_number.iter_mut().rev();
        let mut named: Vec<(u64, &mut HostedJob)> = all
            .filter(|(_, job)| {
                !job.has_ended() && job.id == hello.job && job.is_attached == hello.attached
            })
            .map(|(&number, job)| (number, job))
            .collect();
        named.sort_by_key(|(_, job)| job.fit(hello));
        for (number, job) in named {
            if job.is_restart(hello) {
                // The launch ends when its remaining streams end.
                job.inputs = None;
            } else if job.accepts(hello) {
                job.attach(hello);
                return Some((number, job.inputs.clone()?));
            }
        }
        None
    }

    pub(super) fn welcome(&self, number: u64) -> v1::Welcome {
        let id = self.by_number.get(&number).map(|job| &job.id);
        let running = self.by_number.values().filter(|job| !job.has_ended());
        let named = running.filter(|job| Some(&job.id) == id).count();
        v1::Welcome {
            coordinator_version: VERSION.into(),
            session: number,
            namesakes: named.saturating_sub(1) as u32,
        }
    }

    /// Removes jobs that ended long ago.
    pub(super) fn remove_expired(&mut self) {
        self.by_number.retain(|_, job| {
            if !job.has_ended() {
                return true;
            }
            job.ended.get_or_insert_with(Instant::now).elapsed() < RETENTION_AFTER_END
        });
    }

    /// Removes the oldest ended job if the limit is reached.
    pub(super) fn evict_ended(&mut self) -> Result<(), AttachError> {
        self.remove_expired();
        if self.by_number.len() < MAX_JOBS {
            return Ok(());
        }
        let mut jobs = self.by_number.iter();
        let oldest = *jobs.find(|(_, job)| job.has_ended()).ok_or(AttachError::TooManyJobs)?.0;
        self.by_number.remove(&oldest);
        Ok(())
    }
}
