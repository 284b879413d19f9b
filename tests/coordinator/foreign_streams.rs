//! Foreign streams at the coordinator, a node of a newer version, and foreign black boxes, beside a healthy job.

use std::fs;
use std::path::{Path, PathBuf};

use ddp_doctor::evidence::journal::Reader as Journal;
use ddp_doctor::transport::connect;
use ddp_doctor_agent::blackbox::{Options, Place, Writer};
use ddp_doctor_proto::report::Finding;
use ddp_doctor_proto::{ProcessState, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use v1::agent_service_client::AgentServiceClient;
use v1::event::Kind;

use crate::support::compiled_programs::flood;
use crate::support::coordinator::Coordinator;
use crate::support::healthy_job::HealthyJob;
use crate::support::process::eventually;
use crate::support::report::is_healthy;

/// A stream to a coordinator, which is open until it is dropped.
struct Stream {
    _reports: mpsc::Sender<v1::Report>,
    requests: Streaming<v1::Request>,
}

/// Sends events to a coordinator like a node.
async fn attach(channel: Channel, events: Vec<Kind>) -> Result<Stream, Status> {
    attach_with(channel, events.into_iter().map(Some)).await
}

/// The same; `None` is an event that this version does not know.
async fn attach_with(
    channel: Channel,
    events: impl IntoIterator<Item = Option<Kind>>,
) -> Result<Stream, Status> {
    let (reports, stream) = mpsc::channel(1);
    let events = events.into_iter();
    let report = v1::Report {
        sent_unix_ns: 1,
        events: events.map(|kind| v1::Event { kind }).collect(),
        ..v1::Report::default()
    };
    reports.send(report).await.unwrap();
    let mut client = AgentServiceClient::new(channel);
    let attached = client.attach(ReceiverStream::new(stream)).await?;
    Ok(Stream { _reports: reports, requests: attached.into_inner() })
}

/// The journal of the only run of a job.
fn journal(job: &HealthyJob) -> PathBuf {
    let runs = fs::read_dir(job.file("ddp-doctor-runs")).unwrap();
    let run = runs.last().unwrap().unwrap();
    run.path().join("journal.ddpj")
}

/// Waits until the announcement of the node and the process of the rank are in the journal; returns
/// them.
fn announced(job: &HealthyJob) -> (v1::Hello, u64) {
    let file = journal(job);
    let mut found = None;
    eventually("the rank is in the journal", || {
        found = journaled(&file);
        found.is_some()
    });
    found.unwrap()
}

fn journaled(journal: &Path) -> Option<(v1::Hello, u64)> {
    let mut journal = Journal::open(journal).unwrap();
    let (mut hello, mut process) = (None, None);
    while let Some(report) = journal.read().unwrap() {
        for event in report.events {
            match event.kind {
                Some(Kind::Hello(it)) => hello = Some(it),
                Some(Kind::ProcessJoined(it)) => process = Some(it.process),
                _ => {}
            }
        }
    }
    Some((hello?, process?))
}

#[test]
fn forged_end_of_a_rank_does_not_disturb_a_job() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let coordinator = Coordinator::start();
    let address = coordinator.address();
    let options = ["--job", "forged", "--coordinator", address];
    let mut job = HealthyJob::start_program(&options, &[flood(), "1000"]);
    job.start_ranks();
    let (hello, process) = announced(&job);
    let ended = Kind::ProcessChanged(v1::ProcessChanged {
        process,
        state: i32::from(ProcessState::Dead.number()),
        unix_ns: hello.started_unix_ns,
        exit_signal: Some(9),
        ..v1::ProcessChanged::default()
    });
    let other = v1::Hello { host: "other".into(), boot_id: "other".into(), ..hello.clone() };
    let attach_as = |hello: v1::Hello| {
        let events = vec![Kind::Hello(hello), ended.clone()];
        runtime.block_on(async {
            attach(connect(&coordinator.parsed_address()).await.unwrap(), events).await
        })
    };
    let mut same_node = attach_as(hello).unwrap();
    let refused = runtime.block_on(same_node.requests.message());
    assert!(!matches!(refused, Ok(Some(_))), "{refused:?}");
    let _other_node = attach_as(other).unwrap();
    coordinator.until("forged", |report| report.job.nodes == 2);
    let report = job.assert_same_result();
    assert!(report.findings.iter().all(|it| it.code != "DD201"), "{report:#?}");
}

#[test]
fn newer_node_is_named_and_disturbs_no_job() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let coordinator = Coordinator::start();
    let address = coordinator.address();
    let options = ["--job", "mixed", "--coordinator", address];
    let mut job = HealthyJob::start_program(&options, &[flood(), "1000"]);
    job.start_ranks();
    let (hello, _) = announced(&job);
    let newer = v1::Hello {
        host: "newer".into(),
        boot_id: "newer".into(),
        tool_version: "99.0.0".into(),
        ..hello
    };
    let events = [Some(Kind::Hello(newer)), None, None];
    let mut stream = runtime.block_on(async {
        let channel = connect(&coordinator.parsed_address()).await.unwrap();
        attach_with(channel, events).await.unwrap()
    });
    // It is told the version of the coordinator.
    let first = runtime.block_on(stream.requests.message()).unwrap();
    let welcome = first.and_then(|it| it.kind);
    assert!(
        matches!(&welcome, Some(v1::request::Kind::Welcome(it)) if !it.coordinator_version.is_empty()),
        "{welcome:?}"
    );
    let line = "host newer runs ddp-doctor 99.0.0";
    let is_named = |finding: &Finding| finding.summary.contains(line);
    coordinator.until("mixed", |report| report.findings.iter().any(is_named));
    let report = job.assert_same_result();
    let named: Vec<&Finding> = report.findings.iter().filter(|it| is_named(it)).collect();
    assert_eq!(named.len(), 1, "{report:#?}");
    assert_eq!(report.findings.len(), 1, "{report:#?}");
    assert!(coordinator.stderr().contains("99.0.0"), "{}", coordinator.stderr());
}

#[test]
fn coordinator_without_room_does_not_disturb_a_job() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let coordinator = Coordinator::start();
    let address = coordinator.address();
    let streams: Vec<Stream> = runtime.block_on(async {
        let mut streams = Vec::new();
        let mut channel = connect(&coordinator.parsed_address()).await.unwrap();
        for number in 0..256 {
            // A connection has at most 16 streams.
            if number % 16 == 0 {
                channel = connect(&coordinator.parsed_address()).await.unwrap();
            }
            let hello = Kind::Hello(v1::Hello {
                job: format!("job-{number}"),
                started_unix_ns: 1,
                ..v1::Hello::default()
            });
            streams.push(attach(channel.clone(), vec![hello]).await.unwrap());
        }
        streams
    });
    let mut job = HealthyJob::start(&["--coordinator", address]);
    eventually("it is refused", || job.stderr().contains("refuses this job"));
    is_healthy(&job.assert_same_result(), 4);
    drop(streams);
}

/// Creates a black box in this directory.
fn black_box(dir: &Path, rank: u32, world_size: u32) -> Writer {
    let options = Options {
        layer: "c".into(),
        job: "job".into(),
        rank: Some(rank),
        world_size: Some(world_size),
        ..Options::default()
    };
    Writer::create(&Place::within(dir), &options).unwrap()
}

#[test]
fn box_of_another_user_beside_those_of_the_ranks_is_not_read() {
    let mut job = HealthyJob::start(&[]);
    let path = job.variable("DDP_DOCTOR_BOX_DIR");
    let boxes = Path::new(&path);
    let dir = tempfile::tempdir().unwrap();
    let other = black_box(dir.path(), 7, 8);
    std::os::unix::fs::symlink(other.path(), boxes.join("1.2.c.box")).unwrap();
    let copy = boxes.join("copy");
    fs::copy(other.path(), &copy).unwrap();
    // Only root can change the owner.
    if std::os::unix::fs::chown(&copy, Some(65534), None).is_ok() {
        fs::rename(&copy, boxes.join("1.3.c.box")).unwrap();
    }
    is_healthy(&job.assert_same_result(), 4);
}

#[test]
fn claimed_world_size_does_not_disturb_a_job() {
    let mut job = HealthyJob::start(&[]);
    let boxes = job.variable("DDP_DOCTOR_BOX_DIR");
    let _claim = black_box(Path::new(&boxes), 0, 20_000_000);
    let is_claim = |finding: &Finding| finding.summary.contains("claims a world of");
    eventually("it is reported", || {
        job.report().is_some_and(|it| it.findings.iter().any(is_claim))
    });
    let report = job.assert_same_result();
    assert!(report.findings.iter().any(is_claim), "{report:#?}");
    assert_eq!(report.ranks.len(), 4, "{report:#?}");
}
