//! The session of one job: the task that owns its engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ddp_doctor_diagnosis::event::ProcessId;
use ddp_doctor_diagnosis::{Engine, Event};
use ddp_doctor_evidence::decode::{self, Decoder, MAX_HOLD, Memory};
use ddp_doctor_evidence::settings;
use ddp_doctor_host::sys;
use ddp_doctor_proto::dump::Dump;
use ddp_doctor_proto::report::{Report, Timestamp};
use ddp_doctor_proto::v1;
use ddp_doctor_report::viewer::Detail;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;
use v1::request::Kind;

mod history;

use history::History;
pub(super) use history::Moment;

use super::clock::Clock;
use super::dump::DumpRequest;
use super::flow::Flow;
use crate::summary::Summary;

/// Maximum number of reports processed before the engine draws conclusions: bounds their delay.
const REPORTS_AT_ONCE: usize = 64;
/// Interval of updates of ranks for live viewers.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks, one per [`CHECK_INTERVAL`], without a report after which a node is silent. A live
/// node reports every second.
const SILENT_AFTER: u32 = 10;
/// Number of time exchanges at the start, one per check.
const FIRST_PINGS: usize = 4;
/// Number of checks between later time exchanges.
const PING_EVERY: u32 = 30;
/// A job whose nodes all disconnected without an end is abandoned after this time.
const ABANDON_AFTER: Duration = Duration::from_secs(120);
/// Time after a look of the engine until the next, as a multiple of its duration: looks take at most a
/// quarter of a processor. They last milliseconds in jobs of hundreds of ranks.
const PAUSE: u32 = 3;
/// Maximum number of nodes per job.
pub(super) const MAX_NODES: usize = 8192;
/// Time limit of a dump: more than a node grants one rank.
const MAX_DUMP: Duration = Duration::from_secs(6);

/// An input of a session.
#[derive(Debug)]
pub(super) enum Input {
    /// A node attached.
    Attached {
        attachment: u64,
        hello: v1::Hello,
        welcome: v1::Welcome,
        requests: mpsc::Sender<v1::Request>,
    },
    /// A node reported.
    Report {
        attachment: u64,
        report: v1::Report,
        /// Time of arrival.
        at: Timestamp,
        /// Its room in the queues, until it is processed.
        _room: [OwnedSemaphorePermit; 2],
    },
    /// A node's stream ended.
    Detached { attachment: u64 },
    /// A viewer requests the current stacks of all ranks.
    Dump { answer: oneshot::Sender<Dump> },
    /// The current numbers are requested.
    Summarize { answer: oneshot::Sender<Summary> },
    /// A viewer requests that the current state be published.
    Refresh { done: oneshot::Sender<()> },
    /// A viewer requests the earlier states of the ranks.
    Past { answer: oneshot::Sender<Vec<Arc<Moment>>> },
}

/// Latest published state of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    /// `None` before the first report.
    pub(super) report: Option<Report>,
    /// State shown in addition to the report; present only if there are live viewers.
    pub(super) detail: Option<Arc<Detail>>,
    /// Time of the report.
    pub(super) at: Timestamp,
    /// Whether this is the last state.
    pub(super) ended: bool,
    /// The states before the last one; empty until then.
    pub(super) past: Vec<Arc<Moment>>,
}

/// The session of one job.
#[derive(Debug)]
pub(super) struct Session {
    engine: Engine,
    flow: Flow,
    nodes: Vec<Node>,
    by_key: BTreeMap<NodeKey, usize>,
    by_attachment: BTreeMap<u64, usize>,
    publisher: watch::Sender<Arc<Published>>,
    live_viewers: Arc<AtomicUsize>,
    dumps: Vec<DumpRequest>,
    history: History,
    /// Viewers to notify once the current state is published.
    refreshed: Vec<oneshot::Sender<()>>,
    /// Memory of the tables of its nodes.
    tables: Arc<Memory>,
    /// Events between decoder and engine; empty between batches.
    events: Vec<Event>,
    /// Processor time of this process at the latest check of the nodes.
    used: Duration,
    /// When the engine may look again; `None`: now.
    next_look: Option<Instant>,
    /// The clocks of the system, except in tests.
    now: fn() -> Timestamp,
    monotonic: fn() -> Instant,
}

/// Identifies a node that attaches again: host, boot id and start of the job.
type NodeKey = (String, String, u64);

#[derive(Debug)]
struct Node {
    decoder: Decoder,
    clock: Clock,
    /// Number of checks since its latest report.
    silent_checks: u32,
    /// Number of checks in total.
    checks: u32,
    /// Time of its latest report.
    received: Timestamp,
    /// The stream by which it is attached.
    attached: Option<(u64, mpsc::Sender<v1::Request>)>,
    ended: bool,
    /// Whether it ended and has not received `Finished` yet.
    awaits_finished: bool,
}

impl Session {
    pub(super) fn new(
        hello: &v1::Hello,
        publisher: watch::Sender<Arc<Published>>,
        live_viewers: Arc<AtomicUsize>,
        tables: Arc<Memory>,
    ) -> Self {
        Self {
            engine: Engine::new(settings::config(hello)),
            flow: Flow::new(hello.digest_above),
            nodes: Vec::new(),
            by_key: BTreeMap::new(),
            by_attachment: BTreeMap::new(),
            publisher,
            live_viewers,
            dumps: Vec::new(),
            history: History::default(),
            refreshed: Vec::new(),
            tables,
            events: Vec::new(),
            used: sys::processor_time(),
            next_look: None,
            now: Timestamp::now,
            monotonic: Instant::now,
        }
    }

    /// Runs until every node has ended, or the job is abandoned.
    pub(super) async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let mut refresh = tokio::time::interval(CHECK_INTERVAL);
        refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut alone_since = None;
        while !self.has_ended() {
            if self.by_attachment.is_empty() {
                let since = *alone_since.get_or_insert_with(Instant::now);
                if since.elapsed() > ABANDON_AFTER {
                    break;
                }
            } else {
                alone_since = None;
            }
            let timeout = self.timeout();
            let mut requested = false;
            tokio::select! {
                input = inputs.recv() => {
                    let Some(input) = input else { break };
                    self.handle(input);
                    for _ in 1..REPORTS_AT_ONCE {
                        let Ok(input) = inputs.try_recv() else { break };
                        self.handle(input);
                    }
                }
                () = tokio::time::sleep_until(timeout) => self.advance_time(),
                _ = refresh.tick() => {
                    self.check_nodes();
                    self.history.sample(&self.engine, (self.now)());
                    requested = self.live_viewers.load(Ordering::Relaxed) > 0;
                }
            }
            // There is nothing to refresh before the first report.
            let is_published = self.publisher.borrow().report.is_some();
            self.conclude(requested || is_published && !self.refreshed.is_empty());
        }
        self.publish(true);
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Attached { attachment, hello, welcome, requests } => {
                let key = (hello.host, hello.boot_id, hello.started_unix_ns);
                let known = self.by_key.get(&key).copied();
                // An open stream keeps its node: another stream may continue it only after it
                // closed.
                let is_taken = known.is_some_and(|index| self.nodes[index].is_attached());
                if is_taken || known.is_none() && self.nodes.len() >= MAX_NODES {
                    return;
                }
                let index = known.unwrap_or_else(|| {
                    let tables = Arc::clone(&self.tables);
                    self.nodes.push(Node::new(self.nodes.len() as u32, tables));
                    self.by_key.insert(key, self.nodes.len() - 1);
                    self.nodes.len() - 1
                });
                if let Some((old, _)) = self.nodes[index].attached.take() {
                    self.by_attachment.remove(&old);
                }
                send_request(&requests, Kind::Welcome(welcome));
                self.nodes[index].ask_time(&requests);
                self.nodes[index].attached = Some((attachment, requests));
                self.by_attachment.insert(attachment, index);
                self.flow.attached(index as u32);
            }
            Input::Report { attachment, report, at, _room } => {
                let Some(&index) = self.by_attachment.get(&attachment) else {
                    return;
                };
                self.received(index, &report, at);
                let node = &mut self.nodes[index];
                self.flow.report(index as u32, &report.events, &node.decoder, at);
                node.decoder.decode(report, &mut self.events);
                self.process_events(index);
            }
            Input::Detached { attachment } => {
                if let Some(index) = self.by_attachment.remove(&attachment) {
                    self.nodes[index].attached = None;
                    self.flow.detached(index as u32);
                }
            }
            Input::Dump { answer } => self.begin_dump(answer),
            Input::Summarize { answer } => {
                // Fails if the requester is gone.
                drop(answer.send(Summary::new(&self.engine.report())));
            }
            Input::Refresh { done } => {
                // Durations depend on the time of the evaluation.
                self.engine.handle_timeout((self.now)());
                self.refreshed.push(done);
            }
            Input::Past { answer } => {
                // Fails if the viewer is gone.
                answer.send(self.history.samples()).ok();
            }
        }
    }

    /// Processes the arrival of a report: the node is alive, and its clock may be measured better.
    fn received(&mut self, index: usize, report: &v1::Report, at: Timestamp) {
        let node = &mut self.nodes[index];
        node.received = at;
        if std::mem::take(&mut node.silent_checks) >= SILENT_AFTER {
            self.events.push(Event::Silent { node: index as u32, since: None, at });
        }
        let more = node.clock.receive(report, at);
        node.decoder.set_clock_offset(node.clock.correction());
        if let (true, Some(clock)) = (more, node.clock.estimate()) {
            self.events.push(Event::Clock {
                host: node.decoder.host().clone(),
                ahead_ns: clock.ahead,
                uncertainty_ns: clock.uncertainty,
                at,
            });
        }
    }

    /// Requests the nodes' times, and detects silent nodes. Silence is measured in checks, not in
    /// seconds: while this process is stopped, no node becomes silent.
    fn check_nodes(&mut self) {
        let used = sys::processor_time();
        self.flow.used(used.saturating_sub(self.used));
        self.used = used;
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if node.ended {
                continue;
            }
            node.silent_checks = node.silent_checks.saturating_add(1);
            node.checks = node.checks.wrapping_add(1);
            if node.silent_checks == SILENT_AFTER {
                let (since, at) = (node.received, (self.now)());
                self.flow.disturb();
                self.events.push(Event::Silent { node: index as u32, since: Some(since), at });
                self.process_events(index);
            }
            let node = &mut self.nodes[index];
            let is_due = if node.clock.has_pending_ping() {
                node.checks.is_multiple_of(PING_EVERY)
            } else {
                node.clock.exchanges() < FIRST_PINGS || node.checks.is_multiple_of(PING_EVERY)
            };
            let attached = node.attached.as_ref().filter(|_| is_due);
            if let Some(requests) = attached.map(|(_, requests)| requests.clone()) {
                node.ask_time(&requests);
            }
        }
    }

    /// Passes the decoded events of a node to the engine.
    fn process_events(&mut self, index: usize) {
        let now = (self.now)();
        for event in self.events.drain(..) {
            if matches!(event, Event::JobEnded { .. }) {
                self.nodes[index].ended = true;
                self.nodes[index].awaits_finished = true;
                self.flow.detached(index as u32);
            }
            for dump in &mut self.dumps {
                dump.observe(&event);
            }
            self.engine.handle(event, now);
        }
    }

    fn advance_time(&mut self) {
        for index in 0..self.nodes.len() {
            let decoder = &mut self.nodes[index].decoder;
            decoder.release_overdue(Instant::now().into_std(), &mut self.events);
            self.process_events(index);
        }
        let now = (self.now)();
        let is_due = self.engine.poll_timeout().is_some_and(|at| at <= now);
        if is_due && self.flow.timeout().is_none() {
            self.engine.handle_timeout(now);
        }
    }

    /// When [`Session::advance_time`] is due.
    fn timeout(&self) -> Instant {
        let now = (self.now)();
        // The limit also bounds the arithmetic.
        let mut after = Duration::from_secs(30);
        if let Some(due) = self.flow.timeout() {
            after = after.min(due);
        } else if let Some(at) = self.engine.poll_timeout() {
            after = after.min(at.since(now).max(Duration::from_millis(1)));
        }
        let pause = |until: Instant| until.saturating_duration_since((self.monotonic)());
        if let Some(pause) = self.next_look.map(pause).filter(|it| !it.is_zero()) {
            after = after.min(pause);
        }
        if self.nodes.iter().any(|node| node.decoder.holds()) {
            after = after.min(MAX_HOLD / 3);
        }
        let dumps = self.dumps.iter().map(|dump| dump.until);
        dumps
            .min()
            .map_or_else(|| Instant::now() + after, |until| until.min(Instant::now() + after))
    }

    /// Publishes the conclusions from the events so far, if they are new or requested.
    fn conclude(&mut self, requested: bool) {
        let changed = self.look();
        // The end of a node is final once everything that happened before is examined.
        let is_current = self.flow.timeout().is_none();
        let ended = is_current && self.nodes.iter().any(|node| node.awaits_finished);
        if changed || requested || ended {
            self.publish(false);
        }
        self.end_dumps();
        let ended = self.nodes.iter_mut().filter(|node| node.awaits_finished);
        for node in ended.filter(|_| is_current) {
            node.awaits_finished = false;
            if let Some((_, requests)) = &node.attached {
                send_request(requests, Kind::Finished(v1::Finished {}));
            }
        }
    }

    /// Lets the engine look at the evidence, if it is complete. Returns whether its conclusions have changed.
    fn look(&mut self) -> bool {
        let mut changed = false;
        loop {
            let verdict = self.engine.verdict_of_findings();
            if let Some(kind) = self.flow.poll((self.now)(), verdict) {
                let attached = self.nodes.iter().filter(|node| !node.ended);
                for (_, requests) in attached.filter_map(|node| node.attached.as_ref()) {
                    send_request(requests, kind.clone());
                }
            }
            let is_last = self.nodes.iter().any(|node| node.awaits_finished);
            let began = (self.monotonic)();
            if self.next_look.is_some_and(|at| began < at) && !is_last || !self.flow.take_look() {
                return changed;
            }
            if self.flow.timeout().is_some() {
                // Nothing may have come since the latest look: then it is the time that matters.
                self.engine.handle_timeout((self.now)());
            }
            changed |= self.engine.poll_change();
            self.request_evidence();
            if self.flow.timeout().is_none() {
                let ended = (self.monotonic)();
                self.next_look = Some(ended + (ended - began) * PAUSE);
                return changed;
            }
        }
    }

    /// Requests the stacks and dumps that the engine needs from the nodes.
    fn request_evidence(&mut self) {
        let mut by_node: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for process in self.engine.poll_capture() {
            let (node, process) = decode::node_and_process(process);
            by_node.entry(node).or_default().push(process);
        }
        for (node, processes) in by_node {
            self.capture(node, processes, false);
        }
        let mut by_node: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for process in self.engine.poll_dumps() {
            let (node, process) = decode::node_and_process(process);
            by_node.entry(node).or_default().push(process);
        }
        for (node, processes) in by_node {
            let node = self.nodes.get(node as usize);
            if let Some((_, requests)) = node.and_then(|node| node.attached.as_ref()) {
                send_request(requests, Kind::ReadDeviceCalls(v1::ReadDeviceCalls { processes }));
            }
        }
    }

    /// Requests stacks from a node. Returns whether the request was sent.
    fn capture(&self, node: u32, processes: Vec<u64>, on_request: bool) -> bool {
        let node = self.nodes.get(node as usize);
        let attached = node.and_then(|node| node.attached.as_ref());
        attached.is_some_and(|(_, requests)| {
            let capture = v1::CaptureStacks { processes, on_request };
            send_request(requests, Kind::CaptureStacks(capture))
        })
    }

    fn begin_dump(&mut self, answer: oneshot::Sender<Dump>) {
        let model = self.engine.model();
        let newest = model.ranks.keys().filter_map(|&rank| model.process_of(rank));
        let living: BTreeSet<ProcessId> =
            newest.filter(|process| !process.has_ended()).map(|process| process.id).collect();
        let mut by_node: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for &process in &living {
            let (node, process) = decode::node_and_process(process);
            by_node.entry(node).or_default().push(process);
        }
        let mut pending = living;
        for (node, processes) in by_node {
            if !self.capture(node, processes, true) {
                pending.retain(|&id| decode::node_and_process(id).0 != node);
            }
        }
        self.dumps.push(DumpRequest {
            requested: pending.clone(),
            pending,
            until: Instant::now() + MAX_DUMP,
            answer,
        });
    }

    /// Answers dump requests that are complete or have timed out.
    fn end_dumps(&mut self) {
        let now = Instant::now();
        let is_over = |dump: &mut DumpRequest| dump.pending.is_empty() || dump.until <= now;
        let over: Vec<DumpRequest> = self.dumps.extract_if(.., is_over).collect();
        for dump in over {
            let contents = dump.contents(&self.engine);
            // Fails if the requester is gone.
            drop(dump.answer.send(contents));
        }
    }

    fn publish(&mut self, ended: bool) {
        let at = (self.now)();
        let report = Some(self.engine.report());
        let watched = self.live_viewers.load(Ordering::Relaxed) > 0;
        let detail = watched.then(|| Arc::new(Detail::new(self.engine.model(), at)));
        let past = if ended { self.history.samples() } else { Vec::new() };
        self.publisher.send_replace(Arc::new(Published { report, detail, at, ended, past }));
        for done in self.refreshed.drain(..) {
            // Fails if the viewer is gone.
            done.send(()).ok();
        }
    }

    fn has_ended(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.iter().all(|node| node.ended)
    }
}

impl Node {
    fn new(number: u32, tables: Arc<Memory>) -> Self {
        Self {
            decoder: Decoder::within(number, tables),
            clock: Clock::default(),
            silent_checks: 0,
            checks: 0,
            received: Timestamp::now(),
            attached: None,
            ended: false,
            awaits_finished: false,
        }
    }
}

impl Node {
    /// Whether its stream is open.
    fn is_attached(&self) -> bool {
        let stream = self.attached.as_ref();
        stream.is_some_and(|(_, requests)| !requests.is_closed())
    }

    /// Requests the node's time, unless its request queue is at least half full.
    fn ask_time(&mut self, requests: &mpsc::Sender<v1::Request>) {
        if requests.capacity() * 2 > requests.max_capacity() {
            send_request(requests, Kind::Ping(self.clock.ping(Timestamp::now())));
        }
    }
}

/// Sends a request to a node without waiting. Returns whether there was room.
fn send_request(requests: &mpsc::Sender<v1::Request>, kind: Kind) -> bool {
    requests.try_send(v1::Request { kind: Some(kind) }).is_ok()
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
