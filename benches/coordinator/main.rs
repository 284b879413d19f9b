//! Measures what a coordinator costs by the number of ranks: the reports of simulated nodes with eight
//! ranks each arrive over its socket in real time, and after 9/10 of the time one rank reduces another
//! number of elements.
//!
//! ```text
//! taskset -c 0 cargo bench --bench coordinator    # the table in docs/performance.md
//! cargo bench --bench coordinator -- --ranks 128 --step 1000 --seconds 20
//! ```
//!
//! All nodes are in this process. With 64 of them a connection was reset, with 32 none.
//! The coordinator runs on processor 1, so that it has all of it. Options: `--ranks`, `--step` in
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

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use ddp_doctor::diagnosis::event::{Event, ProcessId};
use ddp_doctor::transport::{Address, Credentials, connect};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use prost::Message;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::agent_service_client::AgentServiceClient;
use v1::event::Kind;
use v1::request;

use encode::Encoder;
use job::{Fault, Job, Layout, MILLISECOND};

/// Ranks, milliseconds of a step and seconds of the job, by row of the table.
const TABLE: [(u32, u64, u64); 3] = [(8, 100, 10), (64, 100, 10), (256, 500, 10)];
/// Interval of the reports of a node.
const TICK: u64 = 50 * MILLISECOND;
/// Reports that wait for the coordinator before a node gives it up.
const QUEUE: usize = 1_024;
const NODE: u32 = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|it| it == name)?;
        arguments.get(at + 1).map(|it| it.parse::<u64>().unwrap())
    };
    println!(
        "| ranks | step | messages a second | of a core | memory | upstream a rank | longest queue | delay of this program | finding after |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let rows = match number("--ranks") {
        Some(ranks) => vec![(
            u32::try_from(ranks).unwrap(),
            number("--step").unwrap_or(1_000),
            number("--seconds").unwrap_or(20),
        )],
        None => TABLE.to_vec(),
    };
    for (ranks, step, seconds) in rows {
        let layout = Layout {
            ranks,
            step: step * MILLISECOND,
            seed: number("--seed").unwrap_or(1),
            fault: Some(Fault::Size),
        };
        run(layout, seconds).await;
    }
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
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        let (send, lines) = std_mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                send.send((Timestamp::now(), line)).ok();
            }
        });
        Self {
            child,
            address: address.trim().to_owned(),
            lines,
            _dir: dir,
        }
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

/// A simulated node.
struct Node {
    encoder: Encoder,
    reports: Sender<v1::Report>,
    /// Messages that are not sent yet.
    events: Vec<v1::Event>,
}

impl Node {
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
        let mut node = Self {
            encoder: Encoder::default(),
            reports,
            events: vec![v1::Event { kind: Some(hello) }],
        };
        node.send();
        let mut client = AgentServiceClient::new(connect(address).await.unwrap());
        let attached = client.attach(ReceiverStream::new(queue)).await;
        tokio::spawn(answer(attached.unwrap().into_inner(), node.reports.clone()));
        node
    }

    /// Sends the messages since the last call; returns their number, their size in bytes, and the length of
    /// the queue.
    fn send(&mut self) -> (usize, usize, usize) {
        let events = std::mem::take(&mut self.events);
        let number = events.len();
        let report = v1::Report {
            sent_unix_ns: Timestamp::now().0,
            events,
            pong: None,
        };
        let size = report.encoded_len();
        assert!(self.reports.try_send(report).is_ok(), "the queue is full");
        (number, size, QUEUE - self.reports.capacity())
    }
}

/// Answers the pings of the coordinator.
async fn answer(mut requests: Streaming<v1::Request>, answers: Sender<v1::Report>) {
    while let Ok(Some(request)) = requests.message().await {
        if let Some(request::Kind::Ping(ping)) = request.kind {
            let now = Timestamp::now().0;
            let pong = v1::Report {
                sent_unix_ns: now,
                events: Vec::new(),
                pong: Some(v1::Pong {
                    ping_unix_ns: ping.unix_ns,
                    received_unix_ns: now,
                }),
            };
            answers.try_send(pong).ok();
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
        other => panic!("{other:?} is no event of a simulated job"),
    }
}

/// Simulates a job and prints its row.
async fn run(layout: Layout, seconds: u64) {
    let coordinator = Coordinator::start();
    let address = Address::parse(&coordinator.address, &Credentials::default()).unwrap();
    // A job has its fault at half of its seconds.
    let mut job = Job::start(layout, seconds * 9 / 5);
    let nodes = layout.ranks.div_ceil(NODE);
    // All nodes are attached before the first call.
    let began = Timestamp::now().0 + 1_000 * MILLISECOND + u64::from(nodes) * 20 * MILLISECOND;
    let start = Instant::now() + Duration::from_nanos(began - Timestamp::now().0);
    let mut attached = Vec::new();
    for number in 0..nodes {
        attached.push(Node::start(number, &address, Timestamp(began)).await);
    }
    let mut nodes = attached;
    let mut used = Duration::ZERO;
    let (mut sent, mut bytes, mut longest) = (0, 0, 0);
    let mut delay = Duration::ZERO;
    let mut events = job.joined();
    for tick in 0..=seconds * 1_000 * MILLISECOND / TICK {
        for event in events {
            let node = &mut nodes[process(&event).node() as usize];
            let kinds = node.encoder.encode(&event, began);
            let kinds = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) });
            node.events.extend(kinds);
        }
        let mut queue = 0;
        for node in &mut nodes {
            let (number, size, waiting) = node.send();
            // Until then the nodes attach.
            if tick > 0 {
                sent += number;
                bytes += size;
            }
            queue = queue.max(waiting);
            tokio::task::yield_now().await;
        }
        let due = start + Duration::from_nanos((tick + 1) * TICK);
        if tick == 0 {
            sleep_until(start).await;
            used = coordinator.used();
        } else {
            longest = longest.max(queue);
            delay = delay.max(due.elapsed());
        }
        sleep_until(due).await;
        events = job.until(Timestamp((tick + 1) * TICK));
    }
    let used = coordinator.used().saturating_sub(used);
    let fault = Timestamp(began + job.fault_at().0);
    let lines: Vec<(Timestamp, String)> = coordinator.lines.try_iter().collect();
    let found = lines.iter().find_map(|(at, line)| {
        let (_, code) = line.split_once("[DD")?;
        let (code, _) = code.split_once(']')?;
        Some(format!("{:.2} s: DD{code}", at.since(fault).as_secs_f64()))
    });
    let found = found.unwrap_or_else(|| "none".to_owned());
    println!(
        "| {} | {} ms | {:.0} | {:.2} | {} MiB | {:.0} B/s | {longest} | {} ms | {found} |",
        layout.ranks,
        layout.step / MILLISECOND,
        sent as f64 / seconds as f64,
        used.as_secs_f64() / seconds as f64,
        coordinator.peak(),
        bytes as f64 / seconds as f64 / f64::from(layout.ranks),
        delay.as_millis(),
    );
}
