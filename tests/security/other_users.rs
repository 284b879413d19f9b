//! Attacks on a job and its diagnosis by another user of the same machine, or by a hostile file.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_doctor::coordinator::{Access, Listeners, serve};
use ddp_doctor::evidence::journal::Writer as Journal;
use ddp_doctor::host::log::UserLog;
use ddp_doctor_proto::report::{Finding, Report, Verdict};
use ddp_doctor_proto::v1;
use serde_json::Value;
use tempfile::TempDir;
use v1::event::Kind;

use crate::support::compiled_programs::{flood, pytorch, training};
use crate::support::coordinator::Coordinator;
use crate::support::healthy_job::{HealthyJob, assert_same_result};
use crate::support::process::{copy_program, program};
use crate::support::report::{is_healthy, read_report};

/// Time limit for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Another user, with a directory and a copy of the program.
pub(crate) struct OtherUser {
    dir: TempDir,
}

impl OtherUser {
    /// Returns `None`, and prints the reason, if this process cannot become another user.
    pub(crate) fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("ddp-doctor");
        copy_program(&copy);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let other = Self { dir };
        let possible = other.command("ddp-doctor").arg("--version").output();
        if possible.is_ok_and(|output| output.status.success()) {
            return Some(other);
        }
        eprintln!("skipped: this process cannot become another user (it has to be root)");
        None
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("ddp-doctor")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A command run as that user, in its directory; `ddp-doctor` is its copy of the program.
    pub(super) fn command(&self, name: &str) -> Command {
        self.command_as(65534, name)
    }

    /// The same as any user.
    pub(super) fn command_as(&self, user: u32, name: &str) -> Command {
        let clean = program(self.dir.path());
        let mut command = Command::new("setpriv");
        for (variable, _) in clean.get_envs() {
            command.env_remove(variable);
        }
        command
            .args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()])
            .current_dir(self.dir.path());
        match name {
            "ddp-doctor" => command.arg(self.program()),
            name => command.arg(name),
        };
        command
    }
}

/// A running command; killed when the test ends.
struct Running {
    child: Child,
    dir: TempDir,
}

impl Running {
    /// `ddp-doctor` with these arguments.
    fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = program(dir.path());
        command.args(args);
        Self::spawn(dir, &mut command)
    }

    fn spawn(dir: TempDir, command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        Self { child, dir }
    }

    /// Contents of `run.json`, once it exists.
    fn description(&self) -> Value {
        let runs = self.dir.path().join("ddp-doctor-runs");
        let mut found = None;
        eventually("run.json is written", || {
            let dirs = fs::read_dir(&runs).into_iter().flatten().flatten();
            let texts = dirs.filter_map(|dir| fs::read(dir.path().join("run.json")).ok());
            found = texts.filter_map(|text| serde_json::from_slice(&text).ok()).next();
            found.is_some()
        });
        found.unwrap()
    }

    fn address(&self) -> String {
        self.description()["coordinator"].as_str().unwrap().to_owned()
    }

    fn wait(&mut self) -> Option<i32> {
        eventually("it ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// TCP ports on which a process listens.
fn listening_ports(pid: u32) -> Vec<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let own: BTreeSet<String> = links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
        .filter_map(|target| {
            let target = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(target.to_owned())
        })
        .collect();
    let mut ports = Vec::new();
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[3] == "0A" && own.contains(words[9]) {
                ports.push(words[1].to_owned());
            }
        }
    }
    ports
}

#[test]
fn run_and_coordinator_do_not_listen_on_tcp() {
    let run = Running::start(&["run", "--", "sleep", "60"]);
    assert!(run.address().starts_with("unix:/"), "{}", run.address());
    assert_eq!(listening_ports(run.child.id()), [""; 0]);
    let coordinator = Coordinator::start();
    assert_eq!(listening_ports(coordinator.pid()), [""; 0]);
}

#[test]
fn other_user_cannot_see_a_job() {
    let Some(other) = OtherUser::new() else {
        return;
    };
    let mut job = HealthyJob::start(&["--job", "secret-name"]);
    let address = job.variable("DDP_DOCTOR_COORDINATOR");
    let status = || program(other.dir.path()).args(["status", &address]).output().unwrap();
    eventually("its own user sees the job", || text(&status()).contains("secret-name"));
    for command in ["status", "dump"] {
        let refused = other.command("ddp-doctor").args([command, &address]).output().unwrap();
        assert_eq!(refused.status.code(), Some(3), "{command}: {}", text(&refused));
        assert!(!text(&refused).contains("secret-name"), "{}", text(&refused));
    }
    is_healthy(&job.assert_same_result(), 4);
}

#[test]
fn dump_of_an_unreadable_process_fails_with_a_remedy() {
    let Some(other) = OtherUser::new() else {
        return;
    };
    let mut sleeping = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = sleeping.id().to_string();
    for format in ["text", "json"] {
        let mut dump = other.command("ddp-doctor");
        let refused = dump.args(["dump", "--format", format, "--pid", &pid]).output().unwrap();
        assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
        assert!(text(&refused).contains("CAP_SYS_PTRACE"), "{}", text(&refused));
    }
    sleeping.kill().unwrap();
    sleeping.wait().unwrap();
}

/// Connects to a socket and begins HTTP/2. Exit status 0: answered, 1: no connection, 2: closed
/// without an answer.
const CONNECT: &str = r#"
$SIG{PIPE} = 'IGNORE';
my $socket = IO::Socket::UNIX->new(Peer => $ARGV[0]) or exit 1;
print {$socket} "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
$socket->flush;
exit(sysread($socket, my $answer, 1) ? 0 : 2);
"#;

#[test]
fn other_user_gets_no_answer_from_a_socket_that_it_can_reach() {
    let Some(other) = OtherUser::new() else {
        return;
    };
    let path = other.dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let access = Access { user: 0, descriptors: 1024 };
    let listeners = Listeners { local: Some(listener), remote: None };
    let serving =
        serve(listeners, access, Arc::default(), UserLog::discard(), std::future::pending());
    runtime.spawn(serving);
    let connect = |command: &mut Command| {
        let output = command.args(["-MIO::Socket::UNIX", "-e", CONNECT]).arg(&path).output();
        output.unwrap().status.code()
    };
    assert_eq!(connect(&mut Command::new("perl")), Some(0));
    assert_eq!(connect(&mut other.command("perl")), Some(2));
}

#[test]
fn forged_evidence_of_another_user_does_not_end_a_job() {
    let Some(other) = OtherUser::new() else {
        return;
    };
    let coordinator = Coordinator::start();
    let mut healthy = HealthyJob::start(&[
        "--job",
        "healthy",
        "--coordinator",
        coordinator.address(),
        "--on-hang",
        "kill",
        "--kill-after",
        "0.1",
    ]);
    eventually("the job is known", || !coordinator.reports("healthy").is_empty());
    // The other user reports a hang of four ranks as a second node of the same job.
    let forged = other
        .command("ddp-doctor")
        .args(["run", "--job", "healthy", "--on-hang", "kill", "--kill-after", "1"])
        .args(["--coordinator", coordinator.address(), "--"])
        .arg(other.program())
        .args(["demo-rank", "op-mismatch"])
        .output()
        .unwrap();
    assert_eq!(forged.status.code(), Some(75), "{}", text(&forged));
    for report in coordinator.reports("healthy") {
        let is_forged = |finding: &Finding| finding.code == "DD103";
        assert!(!report.findings.iter().any(is_forged), "{report:#?}");
        assert!(report.ranks.is_empty(), "{report:#?}");
    }
    is_healthy(&healthy.assert_same_result(), 4);
}

#[test]
fn half_open_connections_are_closed() {
    let coordinator = Coordinator::start();
    let mut silent = UnixStream::connect(coordinator.socket()).unwrap();
    let mut idle = UnixStream::connect(coordinator.socket()).unwrap();
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut job = HealthyJob::start(&["--coordinator", coordinator.address()]);
    is_healthy(&job.assert_same_result(), 4);
    for connection in [&mut silent, &mut idle] {
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut answer = Vec::new();
        let end = connection.read_to_end(&mut answer);
        let is_over = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        assert!(end.as_ref().map_or_else(is_over, |_| true), "{end:?}");
    }
}

#[test]
fn flood_of_connections_leaves_descriptors_for_jobs_and_reports() {
    let coordinator = Coordinator::start_with_descriptors(48);
    let connect = |_| UnixStream::connect(coordinator.socket());
    let flood: Vec<_> = (0..200).map(connect).collect();
    let dir = tempfile::tempdir().unwrap();
    let output = program(dir.path())
        .args(["run", "--job", "flooded", "--on-hang", "kill", "--kill-after", "0.1"])
        .args(["--coordinator", coordinator.address(), "--", env!("CARGO_BIN_EXE_ddp-doctor")])
        .args(["demo-rank", "op-mismatch"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", text(&output));
    let report = coordinator.until("flooded", |report| !report.findings.is_empty());
    assert_eq!(report.findings[0].code, "DD103");
    let mut job = HealthyJob::start(&["--coordinator", coordinator.address()]);
    is_healthy(&job.assert_same_result(), 4);
    drop(flood);
}

/// Runs a command and truncates its black boxes every 10 ms.
const CUT_BOXES: &str = r#"
cut() {
    while :; do
        for box in "$DDP_DOCTOR_BOX_DIR"/*.box; do
            [ -s "$box" ] && : > "$box"
        done
        sleep 0.01
    done
}
cut & cutter=$!
"$0" "$@"; status=$?
kill $cutter
exit $status
"#;

#[test]
fn truncated_boxes_end_neither_ranks_nor_run() {
    let c = vec![training().to_owned(), "4".to_owned()];
    for command in [c].into_iter().chain(pytorch()) {
        let dir = tempfile::tempdir().unwrap();
        let output = program(dir.path())
            .args(["run", "--report", "r.json", "--", "sh", "-c", CUT_BOXES])
            .args(&command)
            .output()
            .unwrap();
        assert_same_result(&command, output.status.code(), &output.stdout);
        let verdict = read_report(&dir.path().join("r.json")).verdict;
        assert_eq!(verdict, Verdict::Insufficient, "{}", text(&output));
    }
}

#[test]
fn truncation_of_a_box_in_use_is_reported() {
    let mut job = HealthyJob::start_program(&[], &[flood(), "200000"]);
    job.start_ranks();
    for file in fs::read_dir(job.variable("DDP_DOCTOR_BOX_DIR")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|it| it == "box") {
            fs::File::create(path).unwrap();
        }
    }
    job.create("flood1");
    let is_reported = |finding: &Finding| finding.summary.contains("was truncated");
    eventually("it is reported", || {
        job.report().is_some_and(|it| it.findings.iter().any(is_reported))
    });
    let last = job.assert_same_result();
    assert_eq!(last.verdict, Verdict::Insufficient, "{last:#?}");
}

/// A job in Python that writes its PYTHONPATH to the file `path`.
const PYTHON_JOB: [&str; 3] = [
    "python3",
    "-c",
    "import os, zlib; open('path', 'w').write(os.environ.get('PYTHONPATH', '')); \
     print(zlib.crc32(bytes(range(256))))",
];

/// Runs [`PYTHON_JOB`] with a copy of the program in `shared/target/debug`; returns its PYTHONPATH
/// and what is printed.
fn python_path(shared: &Path) -> (String, Output) {
    let folder = shared.join("target/debug");
    fs::create_dir_all(&folder).unwrap();
    let copy = folder.join("ddp-doctor");
    copy_program(&copy);
    let dir = tempfile::tempdir().unwrap();
    let clean = program(dir.path());
    let mut command = Command::new(copy);
    for (variable, _) in clean.get_envs() {
        command.env_remove(variable);
    }
    let output = command
        .current_dir(dir.path())
        .env_remove("PYTHONPATH")
        .args(["run", "--"])
        .args(PYTHON_JOB)
        .output()
        .unwrap();
    (fs::read_to_string(dir.path().join("path")).unwrap(), output)
}

fn plant_package(folder: &Path) {
    let activation = folder.join("ddp_doctor/activate");
    fs::create_dir_all(&activation).unwrap();
    fs::write(activation.join("sitecustomize.py"), "").unwrap();
}

#[test]
fn python_package_that_others_can_write_to_is_not_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    plant_package(&shared.join("agent/python"));
    let (path, output) = python_path(&shared);
    assert!(path.contains("agent/python"), "{output:?}");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let (path, output) = python_path(&shared);
    assert_same_result(&PYTHON_JOB, output.status.code(), &output.stdout);
    assert_eq!(path, "", "{output:?}");
    let said = text(&output);
    assert!(said.contains("shared is writable by other users"), "{said}");
    assert!(said.contains("set DDP_DOCTOR_PYTHON"), "{said}");
}

#[test]
fn python_package_around_a_program_outside_of_it_is_not_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    plant_package(&shared);
    let (path, output) = python_path(&shared);
    assert_eq!(path, "", "{output:?}");
}

/// Writes a journal with these events.
fn journal(dir: &Path, events: Vec<Kind>) -> PathBuf {
    let hello = Kind::Hello(v1::Hello {
        job: "forged".into(),
        host: "a".into(),
        started_unix_ns: 1_000_000_000,
        ..v1::Hello::default()
    });
    let events: Vec<v1::Event> =
        std::iter::once(hello).chain(events).map(|kind| v1::Event { kind: Some(kind) }).collect();
    let path = dir.join("journal.ddpj");
    let mut writer = Journal::create(&path).unwrap();
    for events in events.chunks(1000) {
        let report = v1::Report {
            sent_unix_ns: 2_000_000_000,
            events: events.to_vec(),
            ..v1::Report::default()
        };
        writer.append(&report).unwrap();
    }
    path
}

fn joined(rank: u32, world_size: u32) -> Kind {
    Kind::ProcessJoined(v1::ProcessJoined {
        process: u64::from(rank) + 1,
        pid: 100 + rank,
        rank: Some(rank),
        world_size: Some(world_size),
        layer: "c10d".into(),
        anchor_unix_ns: 1_500_000_000,
        ..v1::ProcessJoined::default()
    })
}

fn analyze(path: &Path) -> (Report, Output) {
    let dir = tempfile::tempdir().unwrap();
    let output =
        program(dir.path()).args(["analyze", "--format", "json"]).arg(path).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|error| panic!("{error}: {}", text(&output))), output)
}

#[test]
fn claimed_world_size_is_no_list_of_ranks() {
    for size in [u32::MAX, 20_000_000] {
        let dir = tempfile::tempdir().unwrap();
        let (report, output) = analyze(&journal(dir.path(), vec![joined(0, size)]));
        assert!(output.stdout.len() < 100_000, "{}", output.stdout.len());
        assert_eq!(report.job.world_size, None);
        let is_claim = |finding: &Finding| finding.summary.contains("claims a world of");
        assert!(report.findings.iter().any(is_claim), "{report:#?}");
        assert!(!report.findings.iter().any(|it| it.code == "DD201"), "{report:#?}");
    }
}

#[test]
fn sixteen_thousand_processes_are_analyzed() {
    const RANKS: u32 = 16_384;
    let dir = tempfile::tempdir().unwrap();
    let events = (0..RANKS).map(|rank| joined(rank, RANKS)).collect();
    let path = journal(dir.path(), events);
    let (report, _) = analyze(&path);
    assert_eq!(report.evidence.ranks_reporting, RANKS);
    assert_eq!(report.evidence.missing_ranks, [0; 0]);
}

#[test]
fn fifo_in_place_of_a_file_blocks_no_command() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("ddp-doctor-runs/a");
    fs::create_dir_all(&run).unwrap();
    for name in ["run.json", "journal.ddpj", "1.2.c10d.box"] {
        let made = Command::new("mkfifo").arg(run.join(name)).status();
        assert!(made.unwrap().success());
    }
    let path = run.to_str().unwrap();
    for args in [
        &["status"][..],
        &["status", path],
        &["dump", path],
        &["watch", "--once", path],
        &["analyze", path],
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = program(dir.path());
        let mut running = Running::spawn(scratch, command.args(args));
        assert!(running.wait().is_some(), "{args:?}");
    }
    is_healthy(&HealthyJob::start(&["--run-dir", path]).assert_same_result(), 4);
}

#[test]
fn run_watches_the_job_although_a_directory_for_boxes_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let boxes = dir.path().join("boxes");
    fs::create_dir(&boxes).unwrap();
    let output = program(dir.path())
        .env("DDP_DOCTOR_BOX_DIR", &boxes)
        .args(["run", "--report", "r.json", "--"])
        .args([training(), "4"])
        .output()
        .unwrap();
    assert_same_result(&[training(), "4"], output.status.code(), &output.stdout);
    let report = read_report(&dir.path().join("r.json"));
    assert_eq!(report.evidence.ranks_reporting, 4, "{}", text(&output));
}
