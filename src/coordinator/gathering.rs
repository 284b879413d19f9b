//! The session of a job that was not prepared: its nodes read the ranks from outside, in rounds.
//!
//! A round states what the ranks of a node do at that time, and replaces the earlier one of these ranks. It begins
//! with a Hello and ends with a report without events. A fresh engine examines the latest rounds of all nodes
//! together: calls between two rounds were not seen, so that rounds cannot continue each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::Engine;
use ddp_doctor_postmortem as postmortem;
use ddp_doctor_proto::report::{Report, Timestamp};
use ddp_doctor_proto::v1;
use ddp_doctor_report::viewer::Detail;
use prost::Message;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use v1::event::Kind;

use super::dump::DumpRequest;
use super::session::{Input, MAX_NODES, Published};
use crate::summary::Summary;

/// A job whose nodes all disconnected without an end is abandoned after this time.
const ABANDON_AFTER: Duration = Duration::from_secs(10);
/// Memory of the rounds of all nodes, in bytes, as encoded. A round that exceeds it is left out.
const MAX_ROUNDS: usize = 256 << 20;

/// The session of one job.
#[derive(Debug)]
pub(super) struct Gathering {
    nodes: Vec<Node>,
    by_attachment: BTreeMap<u64, usize>,
    publisher: watch::Sender<Arc<Published>>,
    engine: Option<Engine>,
    /// Its report, with what dumps add.
    report: Option<Report>,
}

/// A process of a rank: boot id of its host, pid, start time and rank. In containers on one host, two ranks can have
/// the same pid and start within one tick.
type ProcessKey = (String, u32, u64, Option<u32>);

#[derive(Debug)]
struct Node {
    requests: mpsc::Sender<v1::Request>,
    /// Its latest round.
    round: Vec<v1::Report>,
    /// The dumps of Flight Recorders that belong to it.
    dumps: Vec<v1::FlightRecorderDump>,
    /// The round that it is sending, and its dumps.
    next: Vec<v1::Report>,
    next_dumps: Vec<v1::FlightRecorderDump>,
    /// Size of all of them, as encoded.
    bytes: usize,
    is_attached: bool,
    ended: bool,
}

impl Node {
    const fn new(requests: mpsc::Sender<v1::Request>) -> Self {
        Self {
            requests,
            round: Vec::new(),
            dumps: Vec::new(),
            next: Vec::new(),
            next_dumps: Vec::new(),
            bytes: 0,
            is_attached: true,
            ended: false,
        }
    }

    /// Bytes of its latest round.
    fn bytes_of_round(&self) -> usize {
        let of_dumps: usize = self.dumps.iter().map(Message::encoded_len).sum();
        self.round.iter().map(Message::encoded_len).sum::<usize>() + of_dumps
    }

    /// Adds a part of the round that it is sending.
    fn take(&mut self, mut report: v1::Report) {
        report.events.retain_mut(|event| {
            match event.kind.take_if(|it| matches!(it, Kind::FlightRecorderDump(_))) {
                Some(Kind::FlightRecorderDump(dump)) => {
                    self.next_dumps.push(dump);
                    false
                }
                _ => true,
            }
        });
        if !report.events.is_empty() {
            self.next.push(report);
        }
    }
}

impl Gathering {
    pub(super) const fn new(publisher: watch::Sender<Arc<Published>>) -> Self {
        Self {
            nodes: Vec::new(),
            by_attachment: BTreeMap::new(),
            publisher,
            engine: None,
            report: None,
        }
    }

    /// Runs until every node has ended, or the job is abandoned.
    pub(super) async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let mut alone_since: Option<Instant> = None;
        while !self.has_ended() {
            let is_alone = !self.nodes.iter().any(|it| it.is_attached);
            alone_since = is_alone.then(|| alone_since.unwrap_or_else(Instant::now));
            let abandoned = async {
                match alone_since {
                    Some(since) => tokio::time::sleep_until(since + ABANDON_AFTER).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.handle(input),
                    None => break,
                },
                () = abandoned => break,
            }
        }
        self.publish(true);
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Attached { attachment, welcome, requests, .. } => {
                if self.nodes.len() >= MAX_NODES {
                    return;
                }
                send(&requests, v1::request::Kind::Welcome(welcome));
                self.by_attachment.insert(attachment, self.nodes.len());
                self.nodes.push(Node::new(requests));
            }
            Input::Report { attachment, report, .. } => {
                if let Some(&index) = self.by_attachment.get(&attachment) {
                    self.receive(index, report);
                }
            }
            Input::Detached { attachment } => {
                if let Some(index) = self.by_attachment.remove(&attachment) {
                    self.nodes[index].is_attached = false;
                }
            }
            Input::Dump { answer } => self.dump(answer),
            Input::Summarize { answer } => {
                if let Some(report) = &self.report {
                    // Fails if the requester is gone.
                    drop(answer.send(Summary::new(report)));
                }
            }
            Input::Refresh { done } => {
                // The latest round is the current state. Fails if the viewer is gone.
                done.send(()).ok();
            }
            // Only the latest round is kept.
            Input::Past { .. } => {}
        }
    }

    fn receive(&mut self, index: usize, report: v1::Report) {
        let others: usize =
            (0..).zip(&self.nodes).filter(|it| it.0 != index).map(|it| it.1.bytes).sum();
        let node = &mut self.nodes[index];
        let has = |wanted: fn(&Kind) -> bool| {
            report.events.iter().filter_map(|it| it.kind.as_ref()).any(wanted)
        };
        if has(|kind| matches!(kind, Kind::JobEnded(_))) {
            node.ended = true;
            send(&node.requests, v1::request::Kind::Finished(v1::Finished {}));
            return;
        }
        if has(|kind| matches!(kind, Kind::Hello(_))) {
            node.next.clear();
            node.next_dumps.clear();
            node.bytes = node.bytes_of_round();
        }
        if !report.events.is_empty() {
            if others + node.bytes + report.encoded_len() <= MAX_ROUNDS {
                node.bytes += report.encoded_len();
                node.take(report);
            }
            return;
        }
        if node.next.is_empty() {
            return;
        }
        node.round = std::mem::take(&mut node.next);
        node.dumps = std::mem::take(&mut node.next_dumps);
        node.bytes = node.bytes_of_round();
        self.replace_by(index);
        let rounds: Vec<&[v1::Report]> =
            self.nodes.iter().map(|it| &it.round[..]).filter(|it| !it.is_empty()).collect();
        let engine = postmortem::engine_of_rounds(&rounds);
        let mut report = engine.report();
        postmortem::add_contents(&mut report, self.dumps());
        (self.engine, self.report) = (Some(engine), Some(report));
        self.publish(false);
    }

    /// The dumps of all nodes: rank, contents, and when they were read.
    fn dumps(&self) -> Vec<(u32, Vec<u8>, Timestamp)> {
        let nodes = self.nodes.iter().filter(|it| !it.round.is_empty());
        let parts = nodes.flat_map(|it| &it.dumps);
        let mut dumps: Vec<(u32, Vec<u8>, Timestamp)> = Vec::new();
        for part in parts {
            match dumps.last_mut() {
                Some((rank, contents, at)) if (*rank, at.0) == (part.rank, part.unix_ns) => {
                    contents.extend(&part.contents);
                }
                _ => dumps.push((part.rank, part.contents.clone(), Timestamp(part.unix_ns))),
            }
        }
        dumps
    }

    /// Drops the rounds of other nodes that contain a process of this node's round: several tasks of a launcher on one
    /// host read the same ranks.
    fn replace_by(&mut self, index: usize) {
        let own = processes(&self.nodes[index].round);
        for (other, node) in self.nodes.iter_mut().enumerate() {
            if other != index && !own.is_disjoint(&processes(&node.round)) {
                node.round.clear();
                node.dumps.clear();
                node.bytes = 0;
            }
        }
    }

    fn dump(&self, answer: oneshot::Sender<ddp_doctor_proto::dump::Dump>) {
        let Some(engine) = &self.engine else { return };
        let model = engine.model();
        let processes = model.ranks.keys().filter_map(|&rank| model.process_of(rank));
        let dump = DumpRequest {
            requested: processes.map(|it| it.id).collect(),
            pending: BTreeSet::new(),
            until: Instant::now(),
            answer,
        };
        let contents = dump.contents(engine);
        // Fails if the requester is gone.
        drop(dump.answer.send(contents));
    }

    fn publish(&self, ended: bool) {
        let at = Timestamp::now();
        let report = self.report.clone();
        let detail = self.engine.as_ref().map(|it| Arc::new(Detail::new(it.model(), at)));
        self.publisher.send_replace(Arc::new(Published {
            report,
            detail,
            at,
            ended,
            past: Vec::new(),
        }));
    }

    fn has_ended(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.iter().all(|it| it.ended)
    }
}

/// The processes in a round.
fn processes(round: &[v1::Report]) -> BTreeSet<ProcessKey> {
    let mut boot = String::new();
    let mut found = BTreeSet::new();
    for event in round.iter().flat_map(|it| &it.events) {
        match &event.kind {
            Some(Kind::Hello(hello)) => boot.clone_from(&hello.boot_id),
            Some(Kind::ProcessJoined(it)) if it.pid != 0 => {
                found.insert((boot.clone(), it.pid, it.start_ticks, it.rank));
            }
            Some(Kind::RankStarted(it)) => {
                found.insert((boot.clone(), it.pid, it.start_ticks, Some(it.rank)));
            }
            _ => {}
        }
    }
    found
}

/// Sends a request to a node without waiting.
fn send(requests: &mpsc::Sender<v1::Request>, kind: v1::request::Kind) {
    requests.try_send(v1::Request { kind: Some(kind) }).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(rank: u32, pid: u32) -> Vec<v1::Report> {
        let hello = v1::Hello { boot_id: "boot".into(), ..v1::Hello::default() };
        let joined =
            v1::ProcessJoined { pid, start_ticks: 7, rank: Some(rank), ..Default::default() };
        let events = [Kind::Hello(hello), Kind::ProcessJoined(joined)]
            .map(|kind| v1::Event { kind: Some(kind) })
            .into();
        vec![v1::Report { events, ..v1::Report::default() }]
    }

    /// The nodes that have a round after these were received, one from each node.
    fn kept(rounds: impl IntoIterator<Item = Vec<v1::Report>>) -> Vec<usize> {
        let (publisher, _viewers) = watch::channel(Arc::default());
        let mut gathering = Gathering::new(publisher);
        for (index, round) in rounds.into_iter().enumerate() {
            let (requests, _node) = mpsc::channel(1);
            gathering.nodes.push(Node::new(requests));
            for report in round.into_iter().chain([v1::Report::default()]) {
                gathering.receive(index, report);
            }
        }
        (0..gathering.nodes.len()).filter(|&it| !gathering.nodes[it].round.is_empty()).collect()
    }

    #[test]
    fn task_that_reads_the_same_rank_replaces_the_round_of_another() {
        assert_eq!(kept([round(0, 5), round(0, 5)]), [1]);
        assert_eq!(kept([round(0, 5), round(0, 6)]), [0, 1]);
    }

    #[test]
    fn dumps_are_joined_from_their_parts_and_replaced_with_their_round() {
        let part = |rank, contents: &[u8]| {
            let dump = v1::FlightRecorderDump { rank, unix_ns: 9, contents: contents.into() };
            let events = vec![v1::Event { kind: Some(Kind::FlightRecorderDump(dump)) }];
            v1::Report { events, ..v1::Report::default() }
        };
        let (publisher, _viewers) = watch::channel(Arc::default());
        let mut gathering = Gathering::new(publisher);
        let (requests, _node) = mpsc::channel(1);
        gathering.nodes.push(Node::new(requests));
        let parts = [part(0, b"ab"), part(0, b"cd"), part(1, b"e")];
        let end = || [v1::Report::default()];
        for report in round(0, 5).into_iter().chain(parts).chain(end()) {
            gathering.receive(0, report);
        }
        let dumps = [(0, b"abcd".to_vec(), Timestamp(9)), (1, b"e".to_vec(), Timestamp(9))];
        assert_eq!(gathering.dumps(), dumps);
        assert_eq!(gathering.nodes[0].round.len(), 1);
        for report in round(0, 5).into_iter().chain(end()) {
            gathering.receive(0, report);
        }
        assert_eq!(gathering.dumps(), []);
    }

    #[test]
    fn ranks_in_containers_may_have_one_pid_and_start_in_one_tick() {
        assert_eq!(kept([round(0, 5), round(1, 5)]), [0, 1]);
    }
}
