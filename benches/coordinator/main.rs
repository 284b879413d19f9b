//! Measures what a coordinator costs by the number of ranks: the reports of simulated nodes with eight
//! ranks each arrive over its socket in real time, and after 9/10 of the time one rank reduces another
//! number of elements.
//!
//! ```text
//! taskset -c 0 cargo bench --bench coordinator    # the table in docs/performance.md
//! cargo bench --bench coordinator -- --ranks 128 --step 1000 --seconds 20
//! ```
//!
//! Every 32 nodes are a process, since a coordinator accepts no more connections of one process. The
//! coordinator runs on processor 1, so that it has all of it. Options: `--ranks`, `--step` in
//! milliseconds, `--seconds` of the job, `--seed`.
#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its results and needs no error handling"
)]

#[expect(dead_code, reason = "the benchmark of the engine uses all of it")]
#[path = "../engine/job.rs"]
mod job;

mod encode;
#[path = "../../tests/support/simulated_node.rs"]
mod simulated_node;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use ddp_doctor::diagnosis::event::{Event, ProcessId};
use ddp_doctor::evidence::digest::{INTERVAL, Summary, is_covered, is_notable};
use ddp_doctor::transport::{Address, Credentials, connect};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::agent_service_client::AgentServiceClient;
use v1::event::Kind;
use v1::request;

use encode::Encoder;
use job::{Fault, Job, Layout, MILLISECOND};
use simulated_node::Node;

/// Ranks, milliseconds of a step and seconds of the job, by row of the table.
const TABLE: [(u32, u64, u64); 3] = [(8, 100, 10), (64, 100, 10), (256, 500, 10)];
/// Interval of the reports of a node.
const TICK: u64 = 50 * MILLISECOND;
/// Interval of reports of a node that has nothing to report.
const HEARTBEAT: u64 = 1_000 * MILLISECOND;
/// Reports that wait for the coordinator before a node gives it up.
const QUEUE: usize = 1_024;
/// Maximum number of events in a report: about as many as a node sends at once.
const BATCH: usize = 128;
/// Records of a process that its node keeps.
const MAX_KEPT: usize = 512;
const NODE: u32 = 8;
/// Nodes of one process.
const NODES_OF_A_PART: u32 = 32;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|it| it == name)?;
        arguments.get(at + 1).map(|it| it.parse::<u64>().unwrap())
    };
    let part_of = || number("--began").zip(number("--first"));
    if let Some((began, first)) = part_of() {
        let at = arguments.iter().position(|it| it == "--address").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let layout = layout(
            number("--ranks").unwrap() as u32,
            number("--step").unwrap(),
            number("--seed").unwrap(),
        );
        let sent = runtime.block_on(part(
            layout,
            number("--seconds").unwrap(),
            first as u32,
            &arguments[at + 1],
            Timestamp(began),
        ));
        println!("{}", serde_json::to_string(&sent).unwrap());
        return;
    }
    println!(
        "| ranks | step | records a second | messages a second | of a core | memory | upstream a rank | later | longest queue | delay of this program | finding after |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let rows = match number("--ranks") {
        Some(ranks) => vec![(
            u32::try_from(ranks).unwrap(),
            number("--step").unwrap_or(1_000),
            number("--seconds").unwrap_or(20),
        )],
        None => TABLE.to_vec(),
    };
    for (ranks, step, seconds) in rows {
        let seed = number("--seed").unwrap_or(1);
        run(layout(ranks, step, seed), seconds);
    }
}

/// A job with steps of `step` milliseconds.
const fn layout(ranks: u32, step: u64, seed: u64) -> Layout {
    Layout { ranks, step: step * MILLISECOND, seed, fault: Some(Fault::Size) }
}

/// A coordinator, which is killed when this is dropped.
struct Coordinator {
    child: Child,
    address: String,
    /// When the lines of its standard error were printed.
    lines: std_mpsc::Receiver<(Timestamp, String)>,
    _dir: tempfile::TempDir,
}

impl Coordinator {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("taskset")
            .args(["-c", "1", env!("CARGO_BIN_EXE_ddp-doctor")])
            .args(["coordinator", "--listen", "127.0.0.1:0"])
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let (send, lines) = std_mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                send.send((Timestamp::now(), line)).ok();
            }
        });
        Self { child, address: address.trim().to_owned(), lines, _dir: dir }
    }

    /// Processor time that it has used.
    fn used(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
        // utime and stime, in hundredths of a second.
        Duration::from_millis(10 * (ticks(11) + ticks(12)))
    }

    /// The most memory that it has used, in MiB.
    fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|it| it.starts_with("VmHWM:")).unwrap();
        let kib = line.split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() / 1024
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A simulated node, attached to the coordinator.
struct Attached {
    encoder: Encoder,
    node: Node,
    reports: Sender<v1::Report>,
    /// Requests of the coordinator that are not answered.
    requests: Receiver<request::Kind>,
    /// Ticks since the latest report.
    silent: u64,
}

impl Attached {
    /// Attaches to the coordinator.
    async fn start(number: u32, address: &Address, began: Timestamp) -> Self {
        let (reports, queue) = mpsc::channel(QUEUE);
        let hello = Kind::Hello(v1::Hello {
            job: "simulated".into(),
            started_unix_ns: began.0,
            host: format!("node-{number}"),
            boot_id: format!("boot of node-{number}"),
            ..v1::Hello::default()
        });
        let mut node = Node::new(MAX_KEPT as u64 / 2, MAX_KEPT);
        node.observe(vec![hello]);
        let (asked, requests) = mpsc::channel(QUEUE);
        let mut it = Self { encoder: Encoder::default(), node, reports, requests, silent: 0 };
        it.send();
        let mut client = AgentServiceClient::new(connect(address).await.unwrap());
        let attached = client.attach(ReceiverStream::new(queue)).await;
        let reports = it.reports.clone();
        tokio::spawn(receive(attached.unwrap().into_inner(), reports, asked));
        it
    }

    /// Takes note of the messages since the last call, and obeys the coordinator.
    fn observe(&mut self, kinds: Vec<Kind>, now: Timestamp, began: u64) {
        self.node.observe(kinds);
        while let Ok(request) = self.requests.try_recv() {
            self.node.answer(request);
        }
        self.node.digest(now, now.0.saturating_sub(began));
    }

    /// Sends the messages since the last call; returns their number, their size in bytes, and the length of
    /// the queue.
    fn send(&mut self) -> (usize, usize, usize) {
        let kinds = self.node.take().into_iter();
        let events: Vec<_> = kinds.map(|kind| v1::Event { kind: Some(kind) }).collect();
        let number = events.len();
        self.silent += 1;
        if number == 0 && self.silent < HEARTBEAT / TICK {
            return (0, 0, QUEUE - self.reports.capacity());
        }
        self.silent = 0;
        let mut size = 0;
        let mut batches: Vec<&[v1::Event]> = events.chunks(BATCH).collect();
        if batches.is_empty() {
            batches.push(&[]);
        }
        for events in batches {
            let report = v1::Report {
                sent_unix_ns: Timestamp::now().0,
                events: events.to_vec(),
                ..v1::Report::default()
            };
            size += report.encoded_len();
            assert!(self.reports.try_send(report).is_ok(), "the queue is full");
        }
        (number, size, QUEUE - self.reports.capacity())
    }
}

/// Answers the pings of the coordinator, and passes its other requests on.
async fn receive(
    mut requests: Streaming<v1::Request>,
    answers: Sender<v1::Report>,
    asked: Sender<request::Kind>,
) {
    while let Ok(Some(request)) = requests.message().await {
        let Some(kind) = request.kind else { continue };
        if let request::Kind::Ping(ping) = kind {
            let now = Timestamp::now().0;
            let pong = v1::Report {
                sent_unix_ns: now,
                events: Vec::new(),
                pong: Some(v1::Pong { ping_unix_ns: ping.unix_ns, received_unix_ns: now }),
                ..v1::Report::default()
            };
            answers.try_send(pong).ok();
        } else if asked.send(kind).await.is_err() {
            return;
        }
    }
}

/// The process of an event of a simulated job.
fn process(event: &Event) -> ProcessId {
    match event {
        Event::ProcessJoined { process, .. }
        | Event::GroupJoined { process, .. }
        | Event::Step { process, .. }
        | Event::Issued { process, .. }
        | Event::Returned { process, .. }
        | Event::Spent { process, .. }
        | Event::Scheduled { process, .. }
        | Event::Memory { process, .. } => *process,
        other => panic!("{other:?} is not an event of a simulated job"),
    }
}

/// Simulates a job and prints its row.
fn run(layout: Layout, seconds: u64) {
    let coordinator = Coordinator::start();
    let nodes = layout.ranks.div_ceil(NODE);
    // All nodes are attached before the first call.
    let attach = MILLISECOND * (2_000 + 20 * u64::from(nodes));
    let began = Timestamp(Timestamp::now().0 + attach);
    let parts: Vec<Child> = (0..nodes)
        .step_by(NODES_OF_A_PART as usize)
        .map(|first| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--bench", "--address", &coordinator.address])
                .args(["--began", &began.0.to_string()])
                .args(["--first", &first.to_string()])
                .args(["--ranks", &layout.ranks.to_string()])
                .args(["--step", &(layout.step / MILLISECOND).to_string()])
                .args(["--seconds", &seconds.to_string()])
                .args(["--seed", &layout.seed.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_nanos(began.0 - Timestamp::now().0));
    let used = coordinator.used();
    let parts = parts.into_iter().map(|part| {
        let output = part.wait_with_output().unwrap();
        serde_json::from_slice::<Sent>(&output.stdout).unwrap()
    });
    let sent = parts.fold(Sent::default(), Sent::with);
    let used = coordinator.used().saturating_sub(used);
    let job = Job::part(layout, job_seconds(seconds), 0..0);
    let fault = Timestamp(began.0 + job.fault_at().0);
    let lines: Vec<(Timestamp, String)> = coordinator.lines.try_iter().collect();
    let early: Vec<&str> =
        lines.iter().filter(|(at, _)| *at < fault).map(|(_, line)| line.as_str()).collect();
    let is_alarm = early.iter().any(|line| line.contains("[DD"));
    assert!(!is_alarm, "a healthy job has findings:\n{}", early.join("\n"));
    let found = lines
        .iter()
        .find_map(|(at, line)| {
            let (_, code) = line.split_once("[DD")?;
            let (code, _) = code.split_once(']')?;
            Some(format!("{:.2} s: DD{code}", at.since(fault).as_secs_f64()))
        })
        .unwrap_or_else(|| "none".to_owned());
    let seconds = seconds as f64;
    println!(
        "| {} | {} ms | {:.0} | {:.0} | {:.2} | {} MiB | {:.0} B/s | {:.0} B/s | {} | {} ms | {found} |",
        layout.ranks,
        layout.step / MILLISECOND,
        sent.records as f64 / seconds,
        sent.messages as f64 / seconds,
        used.as_secs_f64() / seconds,
        coordinator.peak(),
        sent.bytes as f64 / seconds / f64::from(layout.ranks),
        sent.later_bytes as f64 / seconds / 0.4 / f64::from(layout.ranks),
        sent.longest_queue,
        sent.delay_ms,
    );
}

/// A job has its fault at half of its seconds.
const fn job_seconds(seconds: u64) -> u64 {
    seconds * 9 / 5
}

/// What nodes sent.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Sent {
    /// Messages of the ranks, whether or not digests replaced them.
    records: usize,
    /// Messages to the coordinator, and their size.
    messages: usize,
    bytes: usize,
    /// Bytes from half to nine tenths of the time, when the job has been healthy for long.
    later_bytes: usize,
    longest_queue: usize,
    /// Longest delay of this program.
    delay_ms: u64,
}

impl Sent {
    fn with(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            later_bytes: self.later_bytes + other.later_bytes,
            longest_queue: self.longest_queue.max(other.longest_queue),
            delay_ms: self.delay_ms.max(other.delay_ms),
        }
    }
}

/// Simulates nodes from number `first` on, which run while the others do.
async fn part(layout: Layout, seconds: u64, first: u32, address: &str, began: Timestamp) -> Sent {
    let address = Address::parse(address, &Credentials::default()).unwrap();
    let last = (first + NODES_OF_A_PART).min(layout.ranks.div_ceil(NODE));
    let mut job = Job::part(layout, job_seconds(seconds), first * NODE..last * NODE);
    let mut nodes = Vec::new();
    for number in first..last {
        nodes.push(Attached::start(number, &address, began).await);
    }
    let mut sum = Sent::default();
    let mut events = job.joined();
    let until = |at: u64| {
        let now = Timestamp::now().0;
        Duration::from_nanos(at.saturating_sub(now))
    };
    let ticks = seconds * 1_000 * MILLISECOND / TICK;
    for tick in 0..=ticks {
        let mut kinds: Vec<Vec<Kind>> = vec![Vec::new(); nodes.len()];
        for event in events {
            let node = (process(&event).node() - first) as usize;
            kinds[node].extend(nodes[node].encoder.encode(&event, began.0));
        }
        let mut queue = 0;
        for (node, kinds) in nodes.iter_mut().zip(kinds) {
            // Until the first tick the nodes attach.
            let number = if tick > 0 { kinds.len() } else { 0 };
            node.observe(kinds, Timestamp(began.0 + tick * TICK), began.0);
            let (messages, bytes, waiting) = node.send();
            if tick > 0 {
                sum.records += number;
                sum.messages += messages;
                sum.bytes += bytes;
            }
            if (ticks / 2..ticks * 9 / 10).contains(&tick) {
                sum.later_bytes += bytes;
            }
            queue = queue.max(waiting);
            tokio::task::yield_now().await;
        }
        if tick == 0 {
            while Timestamp::now() < began {
                sleep(until(began.0).min(Duration::from_nanos(HEARTBEAT))).await;
                for node in &mut nodes {
                    node.silent = HEARTBEAT / TICK;
                    node.send();
                }
            }
        } else {
            sum.longest_queue = sum.longest_queue.max(queue);
        }
        let due = began.0 + (tick + 1) * TICK;
        let late = Timestamp::now().0.saturating_sub(due) / MILLISECOND;
        sum.delay_ms = sum.delay_ms.max(late);
        sleep(until(due)).await;
        events = job.until(Timestamp((tick + 1) * TICK));
    }
    sum
}
