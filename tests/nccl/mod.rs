//! Jobs that call NCCL directly, traced by the library that `run` preloads: programs in C against
//! the doubles in `doubles/`. Further programs are in `programs/`.
//!
//! * `bystanders`: processes that inherit the preloaded library and are not ranks.
//! * `comm_memory`: GPU memory that NCCL holds.
//! * `gpus`: what the driver reports of the GPUs of ranks.
//! * `layers`: PyTorch jobs, captured by the hooks of c10d and by the preloaded library.
//! * `profiler`: the profiler plugin.
//! * `recorder`: completion on the device, from what stands in for PyTorch's Flight Recorder.
//! * `soname`: programs that load NCCL by its name.
//! * `rust`: NCCL calls through the Rust API.
//! * `real`: real NCCL libraries without a GPU.

mod bystanders;
mod comm_memory;
pub(crate) mod gpus;
mod layers;
mod profiler;
mod real;
mod recorder;
mod rust;
mod soname;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ddp_doctor::evidence::journal::Reader as Journal;
use ddp_doctor::host::files;
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::report::{RankCall, Report};
use ddp_doctor_proto::{RecordKind, v1};
use v1::event::Kind;

use crate::doubles::Doubles;
use crate::support::artifact;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::report::{initiating, read_report};

pub(crate) use soname::named;

/// The library that `run` preloads.
pub(crate) fn library() -> PathBuf {
    artifact("libddp_doctor_nccl.so")
}

fn source(name: &str) -> PathBuf {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs/nccl");
    jobs.join(name)
}

/// A program in `tests/nccl/programs`.
fn program_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nccl/programs").join(name)
}

/// The job as a program that is linked with NCCL; `None` without a C compiler.
pub(crate) fn linked() -> Option<&'static [PathBuf]> {
    static LINKED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let doubles = Doubles::get()?;
    Some(LINKED.get_or_init(|| vec![doubles.compile(&source("job.c"), "job", &[])]))
}

/// The job as a library, after the program that loads it.
fn loaded() -> Option<&'static [PathBuf]> {
    static LOADED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let doubles = Doubles::get()?;
    Some(LOADED.get_or_init(|| {
        let host = doubles.compile(&source("host.c"), "host", &["-Wl,--as-needed"]);
        let library = ["-shared", "-fPIC", "-Dmain=job_main"];
        let job = doubles.compile(&source("job.c"), "job.so", &library);
        vec![host, job]
    }))
}

/// The results of a finished job.
struct JobResult {
    finished: Finished,
    report: Report,
    /// Its records, each with the pid of its process.
    records: Vec<(u32, v1::Record)>,
    /// GPU memory that NCCL used in each process, in MiB.
    held: Vec<Vec<u64>>,
}

/// Runs a scenario of `jobs/nccl/job.c` with three ranks.
fn job(
    rank: &[PathBuf],
    scenario: &str,
    kind: &str,
    environment: &[(&str, &str)],
) -> Option<JobResult> {
    let doubles = Doubles::get()?;
    let dir = tempfile::tempdir().unwrap();
    let mut run = program(dir.path());
    run.args(["run", "--nccl", "always", "--run-dir", "kept"])
        .args(["--on-hang", "kill", "--kill-after", "0.5"])
        .args(["--stall-after", "4"])
        .arg("--")
        .args(doubles.launch(3, rank.first()?))
        .args(rank.get(1..)?)
        .args([scenario, kind])
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .envs(environment.iter().copied())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let kept = dir.path().join("kept");
    Some(JobResult {
        finished,
        report: read_report(&kept.join("report.json")),
        records: records(&kept.join("journal.ddpj")),
        held: comm_memory::told(&kept.join("journal.ddpj")),
    })
}

fn records(journal: &Path) -> Vec<(u32, v1::Record)> {
    let mut journal = Journal::open(journal).unwrap();
    let (mut pids, mut records) = (BTreeMap::new(), Vec::new());
    while let Some(report) = journal.read().unwrap() {
        for event in report.events.into_iter().filter_map(|event| event.kind) {
            match event {
                Kind::ProcessJoined(joined) => drop(pids.insert(joined.process, joined.pid)),
                Kind::Record(record) => records.push((pids[&record.process], record)),
                _ => {}
            }
        }
    }
    records
}

impl JobResult {
    /// Sorted sequence numbers of the collectives in all ranks' records of a kind.
    fn seqs(&self, kind: RecordKind) -> Vec<u64> {
        let of_kind = |record: &v1::Record| {
            record.kind == i32::from(kind.number())
                && record.seq > 0
                && record.flags & u32::from(flags::P2P) == 0
        };
        let records = self.records.iter().map(|(_, record)| record);
        let mut seqs: Vec<u64> = records.filter(|it| of_kind(it)).map(|it| it.seq).collect();
        seqs.sort_unstable();
        seqs
    }
}

#[test]
fn nccl_loaded_by_one_library_is_traced() {
    let Some(loaded) = loaded() else { return };
    for (kind, codes) in [("healthy", &[][..]), ("faulty", &["DD104"])] {
        let Some(ran) = job(loaded, "count", kind, &[]) else {
            return;
        };
        let found: Vec<&str> = ran.report.findings.iter().map(|it| &*it.code).collect();
        assert_eq!(found, codes, "{}", ran.finished.stderr);
        assert_eq!(ran.report.evidence.ranks_reporting, 3);
    }
}

#[test]
fn completions_are_recorded_when_enabled() {
    let on = [COMPLETION];
    let run = |scenario, kind, environment: &[_]| job(linked()?, scenario, kind, environment);
    let Some(without) = run("captured", "healthy", &[]) else {
        return;
    };
    assert!(without.seqs(RecordKind::Completed).is_empty());
    // Tracing does not disturb the stream capture, and captured calls never complete.
    let with = run("captured", "healthy", &on).unwrap();
    assert_eq!(with.finished.status, Some(0), "{}", with.finished.stderr);
    let complete = with.seqs(RecordKind::Completed);
    let expected: Vec<u64> = (1..=10).flat_map(|seq| [seq; 3]).collect();
    assert_eq!(complete, expected);
    // Two ranks wait in the eleventh call, which never completes.
    let hangs = run("missing", "faulty", &on).unwrap();
    assert_eq!(initiating(&hangs.report), ("DD101", &[1][..]));
    assert_eq!(hangs.seqs(RecordKind::Completed), expected);
    assert_eq!(hangs.seqs(RecordKind::Issued).last(), Some(&11));
}

/// Records when calls complete.
const COMPLETION: (&str, &str) = ("DDP_DOCTOR_NCCL_COMPLETION", "1");

/// The command that runs three ranks of a program of `jobs/nccl` with its fault.
fn faulty(dir: &Path, name: &str, options: &[&str]) -> Option<Command> {
    faulty_within(&[], dir, name, options)
}

/// The same, started by another command.
fn faulty_within(within: &[&str], dir: &Path, name: &str, options: &[&str]) -> Option<Command> {
    let doubles = Doubles::get()?;
    let source = source(&format!("{name}.c"));
    let rank = doubles.compile(&source, &format!("coded-{name}"), &["-DFAULTY"]);
    let mut run = program(dir);
    run.args(["run", "--nccl", "always", "--run-dir", "kept"])
        .args(["--on-hang", "kill", "--kill-after", "0.5"])
        .args(options)
        .arg("--")
        .args(within)
        .args(doubles.launch(3, &rank))
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env_remove("LD_PRELOAD");
    Some(run)
}

/// Without samples of the device's memory, only the end of the rank is known.
#[test]
fn unseen_memory_exhaustion_is_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let Some(run) = faulty(dir.path(), "out_of_memory", &[]) else {
        return;
    };
    let finished = run_to_end(run);
    let report = read_report(&dir.path().join("kept/report.json"));
    assert_eq!(initiating(&report), ("DD201", &[1][..]), "{finished}");
}

/// Its ranks have other pids there than those by which their memory is read from here.
#[test]
fn lines_of_a_program_in_a_container_are_found() {
    if files::user_id() != 0 {
        eprintln!("skipped: only root makes pid namespaces");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let within = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"];
    let Some(run) = faulty_within(&within, dir.path(), "count_mismatch", &[]) else {
        return;
    };
    let finished = run_to_end(run);
    let report = read_report(&dir.path().join("kept/report.json"));
    assert_eq!(initiating(&report), ("DD104", &[1][..]), "{finished}");
    let ranks = &report.findings[0].per_rank;
    let has_line = |it: &RankCall| {
        it.place.as_ref().is_some_and(|it| it.file.ends_with("count_mismatch.c") && it.line > 0)
    };
    assert!(ranks.len() > 1 && ranks.iter().all(has_line), "{finished}");
}

#[test]
fn ranks_blocked_in_the_driver_are_suspected() {
    /// Much longer than the finding takes to appear.
    const TIMEOUT: Duration = Duration::from_secs(120);
    let dir = tempfile::tempdir().unwrap();
    let Some(mut run) = faulty(dir.path(), "stream_never_ends", &["--stall-after", "4"]) else {
        return;
    };
    let said = dir.path().join("stderr");
    run.stdin(Stdio::null()).stdout(Stdio::null());
    run.stderr(fs::File::create(&said).unwrap());
    let mut running = run.spawn().unwrap();
    let began = Instant::now();
    let is_told = || fs::read_to_string(&said).unwrap().contains("error[DD116]");
    while !is_told() && began.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(100));
    }
    // A suspected finding never ends the job.
    let is_running = running.try_wait().unwrap().is_none();
    let pid = running.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    running.wait().unwrap();
    let said = fs::read_to_string(&said).unwrap();
    assert!(is_running && said.contains("error[DD116]"), "{said}");
    assert!(said.contains("fault: suspected"), "{said}");
}
