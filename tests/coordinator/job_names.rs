//! Jobs of one name at a coordinator, and a coordinator of another version.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;

use ddp_doctor_proto::report::{Report, Verdict};
use ddp_doctor_proto::v1;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use v1::agent_service_server::{AgentService, AgentServiceServer};
use v1::event::Kind;
use v1::request;

use crate::support::compiled_programs::sum;
use crate::support::coordinator::Coordinator;
use crate::support::healthy_job::HealthyJob;
use crate::support::process::{eventually, free_port, program};
use crate::support::report::is_healthy;

const LINE: &str = "another job named same runs at the coordinator";

/// Two nodes of one rank each, under `run`, that report to a coordinator under the name `same`.
pub(super) struct Nodes {
    dirs: [TempDir; 2],
    runs: [Child; 2],
}

impl Nodes {
    pub(super) fn start(coordinator: &Coordinator, arguments: &[&str]) -> Self {
        let port = free_port().to_string();
        let dirs = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let start = |rank: usize, dir: &Path| {
            let mut run = program(dir);
            run.env("RANK", rank.to_string())
                .envs([("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")])
                .env("MASTER_PORT", &port)
                .args(["run", "--job", "same", "--report", "r.json"])
                .args(["--coordinator", coordinator.address()])
                .args(["--on-hang", "kill", "--kill-after", "1", "--", sum()])
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(dir.join("stderr")).unwrap());
            run.spawn().unwrap()
        };
        let runs = [0, 1].map(|rank| start(rank, dirs[rank].path()));
        Self { dirs, runs }
    }

    fn stderr(&self) -> String {
        let read = |dir: &TempDir| fs::read_to_string(dir.path().join("stderr")).unwrap();
        self.dirs.iter().map(read).collect()
    }

    pub(super) fn end(&mut self) -> [Option<i32>; 2] {
        self.runs.each_mut().map(|run| {
            eventually("the node ends", || run.try_wait().unwrap().is_some());
            run.wait().unwrap().code()
        })
    }

    fn reports(&self) -> [Report; 2] {
        self.dirs.each_ref().map(|dir| {
            let text = fs::read(dir.path().join("r.json")).unwrap();
            serde_json::from_slice(&text).unwrap()
        })
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the nodes' output:\n{}", self.stderr());
        }
        for run in &mut self.runs {
            run.kill().ok();
            run.wait().ok();
        }
    }
}

#[test]
fn jobs_of_one_name_are_diagnosed_separately() {
    let coordinator = Coordinator::start();
    let mut healthy = Nodes::start(&coordinator, &["1500"]);
    eventually("the first job has both ranks", || {
        let reports = coordinator.reports("same");
        reports.iter().any(|report| report.ranks.len() == 2)
    });
    let mut hanging = Nodes::start(&coordinator, &["100", "20"]);
    let statuses = hanging.end();
    assert!(statuses.contains(&Some(75)), "{statuses:?}");
    assert!(hanging.stderr().contains(LINE), "{}", hanging.stderr());
    let found = hanging.reports();
    assert!(found.iter().all(|it| it.findings[0].code == "DD103"), "{found:#?}");

    assert_eq!(healthy.end(), [Some(0), Some(0)], "{}", healthy.stderr());
    assert!(!healthy.stderr().contains(LINE), "{}", healthy.stderr());
    for report in healthy.reports() {
        is_healthy(&report, 2);
    }
    let verdicts: Vec<Verdict> = coordinator.reports("same").iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Healthy, Verdict::Hang]);
}

/// A coordinator of a later version, which sends requests that this version does not know, and
/// accepts the end of every job.
struct Later;

#[tonic::async_trait]
impl AgentService for Later {
    type AttachStream = ReceiverStream<Result<v1::Request, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::Report>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (requests, receiver) = tokio::sync::mpsc::channel(8);
        let mut reports = request.into_inner();
        tokio::spawn(async move {
            let welcome =
                v1::Welcome { coordinator_version: "99.0.0".into(), ..v1::Welcome::default() };
            let send = |kind| requests.send(Ok(v1::Request { kind }));
            send(Some(request::Kind::Welcome(welcome))).await.ok();
            send(None).await.ok();
            while let Ok(Some(report)) = reports.message().await {
                let is_end = |it: &v1::Event| matches!(it.kind, Some(Kind::JobEnded(_)));
                if report.events.iter().any(is_end) {
                    let finished = request::Kind::Finished(v1::Finished {});
                    send(Some(finished)).await.ok();
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[test]
fn coordinator_of_another_version_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(dir.path(), private).unwrap();
    let path = dir.path().join("socket");
    let runtime = Runtime::new().unwrap();
    let (listening, is_listening) = channel();
    let socket = path.clone();
    runtime.spawn(async move {
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        listening.send(()).unwrap();
        tonic::transport::Server::builder()
            .add_service(AgentServiceServer::new(Later))
            .serve_with_incoming(listener)
            .await
            .unwrap();
    });
    is_listening.recv().unwrap();
    let address = format!("unix:{}", path.display());
    let mut job = HealthyJob::start(&["--coordinator", &address, "--time-scale", "0.2"]);
    let line = format!("the coordinator at {address} is ddp-doctor 99.0.0, and this node has ");
    eventually("the version is named", || job.stderr().contains(&line));
    job.assert_same_result_without_report();
    assert_eq!(job.stderr().matches(&line).count(), 1, "{}", job.stderr());
}
