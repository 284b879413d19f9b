//! Jobs that call NCCL themselves, seen through the library that `run` has loaded before it: programs in
//! C against the doubles of `doubles/`.

mod bystanders;
mod healthy;
mod held;
mod layers;
mod profiler;
mod real;
mod rust;
mod soname;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ddp_doctor::evidence::journal::Reader as Journal;
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::report::{Confidence, Report, Verdict};
use ddp_doctor_proto::{RecordKind, v1};
use v1::event::Kind;

use crate::doubles::Doubles;
use crate::linking::build;
use crate::programs::variant;
use crate::run::program;
use crate::support::coordinator::initiating;
use crate::support::process::{Finished, run_to_end};

pub(crate) use soname::named;

/// The library that is preloaded.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build(&["--package", "ddp-doctor-nccl"], "libddp_doctor_nccl.so"))
}

fn source(name: &str) -> PathBuf {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs/nccl");
    jobs.join(name)
}

/// The job as a program that is linked with NCCL; `None`: there is no C compiler.
pub(crate) fn linked() -> Option<&'static [PathBuf]> {
    static LINKED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let doubles = Doubles::get()?;
    Some(LINKED.get_or_init(|| vec![doubles.compile(&source("job.c"), "job", &[])]))
}

/// The job as a library that a program loads.
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

/// What a job left behind.
struct Ran {
    finished: Finished,
    report: Report,
    /// Its records, by the pid of their process.
    records: Vec<(u32, v1::Record)>,
    /// What NCCL held of each one's GPU, in MiB.
    held: Vec<Vec<u64>>,
}

/// Runs a scenario of `jobs/nccl/job.c` with three ranks.
fn job(rank: &[PathBuf], scenario: &str, kind: &str, environment: &[(&str, &str)]) -> Option<Ran> {
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
    let report = fs::read(kept.join("report.json")).unwrap();
    Some(Ran {
        finished,
        report: serde_json::from_slice(&report).unwrap(),
        records: records(&kept.join("journal.ddpj")),
        held: held::told(&kept.join("journal.ddpj")),
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

impl Ran {
    /// The sequence numbers that records of a kind have of collectives, of all ranks.
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

#[track_caller]
fn is_silent(scenario: &str) -> Option<Ran> {
    let ran = job(linked()?, scenario, "healthy", &[])?;
    assert_eq!(ran.finished.status, Some(0), "{}", ran.finished.stderr);
    let report = &ran.report;
    assert_eq!(report.findings, [], "{report:#?}");
    assert_eq!(report.verdict, Verdict::Healthy);
    assert_eq!(report.evidence.layers, ["nccl"]);
    assert_eq!(report.evidence.ranks_reporting, 3);
    Some(ran)
}

/// The faulty one is called that, by the rank that did it; its twin is silent.
#[track_caller]
fn is_found(scenario: &str, code: &str, confidence: Confidence) -> Option<Report> {
    is_silent(scenario)?;
    let Ran {
        finished, report, ..
    } = job(linked()?, scenario, "faulty", &[])?;
    assert_eq!(initiating(&report), (code, &[1][..]), "{}", finished.stderr);
    let finding = &report.findings[0];
    assert_eq!(finding.confidence, confidence, "{report:#?}");
    assert_eq!(
        finding.certificate.is_some(),
        confidence == Confidence::Proved
    );
    let layer = finding.group.as_ref().map(|group| group.layer.as_str());
    assert_eq!(layer, Some("nccl"));
    Some(report)
}

/// Line of `job.c` that has this text, counted from 1.
fn line_of(text: &str) -> u32 {
    let job = fs::read_to_string(source("job.c")).unwrap();
    job.lines().position(|it| it.contains(text)).unwrap() as u32 + 1
}

#[test]
fn another_collective() {
    let Some(report) = is_found("op", "DD103", Confidence::Proved) else {
        return;
    };
    // The calls stand in different functions, of which one may have been put into the other.
    let common = line_of("NCCL(ncclAllReduce(in, out, count");
    let odd = line_of("NCCL(ncclReduceScatter(in, out, 64");
    let places: Vec<_> = report.findings[0]
        .per_rank
        .iter()
        .map(|call| {
            call.place
                .as_ref()
                .map(|it| (&*it.file, it.line, &*it.function))
        })
        .collect();
    let job = source("job.c");
    let at = |line, function| Some((job.to_str().unwrap(), line, function));
    assert_eq!(
        places,
        [at(common, "sum"), at(odd, "op"), at(common, "sum")]
    );
}

#[test]
fn another_size() {
    is_found("count", "DD104", Confidence::Proved);
}

#[test]
fn another_size_of_pieces() {
    is_found("piece", "DD104", Confidence::Proved);
}

#[test]
fn another_type() {
    is_found("dtype", "DD105", Confidence::Proved);
}

#[test]
fn another_reduction() {
    is_found("reduction", "DD106", Confidence::Proved);
}

#[test]
fn another_root() {
    is_found("root", "DD107", Confidence::Proved);
}

#[test]
fn a_rank_that_does_not_come() {
    is_found("missing", "DD101", Confidence::Supported);
}

#[test]
fn a_rank_that_does_not_come_to_a_communicator_whose_ranks_are_others() {
    let report = is_found("missing_of_two", "DD101", Confidence::Supported);
    let Some(report) = report else { return };
    let group = report.findings[0].group.as_ref().unwrap();
    // By the key that they gave: rank 1 first.
    assert_eq!(group.ranks, [1, 0]);
}

#[test]
fn a_rank_that_ends() {
    is_found("leaves", "DD102", Confidence::Proved);
}

#[test]
fn a_rank_that_is_killed() {
    is_found("killed", "DD201", Confidence::Proved);
}

#[test]
fn a_rank_that_does_not_come_to_divide_a_communicator() {
    is_found("split", "DD114", Confidence::Supported);
}

#[test]
fn a_message_that_is_not_received() {
    is_silent("message");
    let Some(ran) = linked().and_then(|it| job(it, "message", "faulty", &[])) else {
        return;
    };
    // Told while it lasts: how the job is then ended is another matter.
    let told = "error[DD113] p2p-unmatched: rank 0 waits in send #1 to rank 1";
    assert!(
        ran.finished.stderr.contains(told),
        "{}",
        ran.finished.stderr
    );
}

#[test]
fn another_size_within_a_group_whose_order_differs() {
    is_found("group", "DD104", Confidence::Proved);
}

#[test]
fn a_simulated_group_counts_for_nothing() {
    is_found("simulated", "DD103", Confidence::Proved);
}

#[test]
fn a_communicator_at_the_address_of_another() {
    is_found("again", "DD104", Confidence::Proved);
}

#[test]
fn nccl_is_found_where_it_was_loaded_for_one_library_only() {
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
fn what_is_captured_is_compared_and_not_waited_for() {
    is_found("captured", "DD105", Confidence::Proved);
    let Some(ran) = linked().and_then(|it| job(it, "captured", "healthy", &[])) else {
        return;
    };
    let captured = u32::from(flags::CAPTURED | flags::ASYNC);
    let issued = ran.records.iter().map(|(_, record)| record);
    let issued = issued.filter(|it| it.flags & captured == captured);
    assert!(issued.clone().count() == 3 && issued.clone().all(|it| it.seq == 11));
}

#[test]
fn that_streams_have_come_to_a_call_is_told_where_that_is_switched_on() {
    let on = [COMPLETION];
    let run = |scenario, kind, environment: &[_]| job(linked()?, scenario, kind, environment);
    let Some(without) = run("captured", "healthy", &[]) else {
        return;
    };
    assert!(without.seqs(RecordKind::Completed).is_empty());
    // The capture is not disturbed, and what is captured is never complete.
    let with = run("captured", "healthy", &on).unwrap();
    assert_eq!(with.finished.status, Some(0), "{}", with.finished.stderr);
    let complete = with.seqs(RecordKind::Completed);
    let expected: Vec<u64> = (1..=10).flat_map(|seq| [seq; 3]).collect();
    assert_eq!(complete, expected);
    // Two ranks wait at the eleventh, and it never completes.
    let hangs = run("missing", "faulty", &on).unwrap();
    assert_eq!(initiating(&hangs.report), ("DD101", &[1][..]));
    assert_eq!(hangs.seqs(RecordKind::Completed), expected);
    assert_eq!(hangs.seqs(RecordKind::Issued).last(), Some(&11));
}

/// The line of the truth at the head of a program: `name = value`.
fn truth<'s>(source: &'s str, name: &str) -> Option<&'s str> {
    let head = source.split("///").nth(1)?;
    let mut lines = head.lines().map(|it| it.trim_start_matches(" * "));
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
}

/// Tells when calls are complete.
const COMPLETION: (&str, &str) = ("DDP_DOCTOR_NCCL_COMPLETION", "1");

/// How a program of `jobs/nccl` that has its truth at its head is run, with its fault or as its healthy
/// twin, in that folder.
fn by_its_truth(dir: &Path, name: &str, is_faulty: bool) -> Option<Command> {
    let doubles = Doubles::get()?;
    let path = source(&format!("{name}.c"));
    let source = fs::read_to_string(&path).unwrap();
    let (called, options) = variant(&path, is_faulty);
    let rank = doubles.compile(&path, &format!("told-{called}"), options);
    // Of what is only suspected the ranks give up themselves.
    let patience = match truth(&source, "root_confidence") {
        Some("\"suspected\"") => "8000",
        _ => "20000",
    };
    let mut run = program(dir);
    let more = truth(&source, "run_options").unwrap_or("[]");
    let more: Vec<String> = serde_json::from_str(more).unwrap();
    let how = truth(&source, "nccl").map_or("always", |it| it.trim_matches('"'));
    run.args(["run", "--nccl", how, "--run-dir", "kept"])
        .args(["--on-hang", "kill", "--kill-after", "0.5"])
        .args(more)
        .arg("--")
        .args(doubles.launch(truth(&source, "nproc")?.parse().unwrap(), &rank))
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env("PATIENCE_MS", patience)
        .env_remove("LD_PRELOAD");
    Some(run)
}

/// Runs it, and gives what was said and reported.
fn told(name: &str, is_faulty: bool, environment: &[(&str, &str)]) -> Option<(Finished, Report)> {
    let dir = tempfile::tempdir().unwrap();
    let mut run = by_its_truth(dir.path(), name, is_faulty)?;
    run.envs(environment.iter().copied());
    let finished = run_to_end(run);
    let report = fs::read(dir.path().join("kept/report.json")).unwrap();
    Some((finished, serde_json::from_slice(&report).unwrap()))
}

/// Its truth is told, and nothing of its twin.
#[track_caller]
fn is_told(name: &str, environment: &[(&str, &str)]) {
    let Some((finished, report)) = told(name, false, environment) else {
        return;
    };
    assert_eq!(finished.status, Some(0), "{}", finished.stderr);
    assert_eq!(report.findings, [], "{report:#?}");
    let Some((finished, report)) = told(name, true, environment) else {
        return;
    };
    let source = fs::read_to_string(source(&format!("{name}.c"))).unwrap();
    let word = |name: &str| Some(truth(&source, name)?.trim_matches('"').to_owned());
    let root: Vec<u32> = serde_json::from_str(truth(&source, "root").unwrap()).unwrap();
    let (code, found) = initiating(&report);
    let codes = [word("code"), word("or_code")];
    let said = &finished.stderr;
    assert!(codes.contains(&Some(code.to_owned())), "{code}\n{said}");
    assert_eq!(found, root, "{said}");
}

/// Each of them by a thread of its own: most of the time they wait.
#[track_caller]
fn are_told(names: &[&str], environment: &[(&str, &str)]) {
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let some: Vec<_> = names
            .iter()
            .map(|&name| (name, scope.spawn(move || is_told(name, environment))))
            .collect();
        let ended = some.into_iter().map(|(name, it)| (name, it.join()));
        ended
            .filter_map(|(name, it)| it.is_err().then_some(name))
            .collect()
    });
    assert_eq!(failed, [""; 0]);
}

#[test]
fn programs_with_a_fault_are_told_of_by_their_truth() {
    let told = [
        "all_ranks_in_a_process",
        "count_mismatch",
        "dtype_mismatch",
        "early_exit",
        "grown_dtype_mismatch",
        "group_on_one_side",
        "init_without_a_rank",
        "missing_caller",
        "not_blocking_reduce_op_mismatch",
        "op_mismatch",
        "opposite_order",
        "own_reduction",
        "rank_killed",
        "reduce_op_mismatch",
        "root_mismatch",
        "scalable_op_mismatch",
        "several_ranks_in_a_process",
        "shrunk_root_mismatch",
        "split_count_mismatch",
        "split_without_a_rank",
        "unmatched_first_send",
        "unmatched_send",
    ];
    are_told(&told, &[]);
}

/// NCCL's calls alone show that the rank ended, its device's memory shows why.
#[test]
fn memory_that_runs_out_is_told_of_where_it_is_asked_for() {
    are_told(&["out_of_memory"], &[("DDP_DOCTOR_GPU_MEMORY", "1")]);
    let Some((finished, report)) = told("out_of_memory", true, &[]) else {
        return;
    };
    assert_eq!(initiating(&report), ("DD201", &[1][..]), "{finished}");
    let on = [("DDP_DOCTOR_GPU_MEMORY", "1")];
    let (finished, report) = told("out_of_memory", true, &on).unwrap();
    let mut why = report.findings[0].why.iter();
    let held = "NCCL itself held 12.0 MiB of it.";
    assert!(why.any(|it| it == held), "{finished}");
}

#[test]
fn streams_that_do_not_go_on_are_told_of_where_completion_is() {
    let told = ["network_swallows_everything", "stream_never_ends"];
    are_told(&told, &[COMPLETION]);
}

#[test]
fn that_all_ranks_stand_in_the_driver_is_suspected_without() {
    /// Much longer than it takes.
    const PATIENCE: Duration = Duration::from_secs(120);
    let dir = tempfile::tempdir().unwrap();
    let Some(mut run) = by_its_truth(dir.path(), "stream_never_ends", true) else {
        return;
    };
    let said = dir.path().join("said");
    run.stdin(Stdio::null()).stdout(Stdio::null());
    run.stderr(fs::File::create(&said).unwrap());
    let mut running = run.spawn().unwrap();
    let began = Instant::now();
    let is_told = || fs::read_to_string(&said).unwrap().contains("error[DD116]");
    while !is_told() && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
    }
    // Nothing is ended that is only suspected.
    let is_running = running.try_wait().unwrap().is_none();
    let pid = running.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    running.wait().unwrap();
    let said = fs::read_to_string(&said).unwrap();
    assert!(is_running && said.contains("error[DD116]"), "{said}");
    assert!(said.contains("· suspected"), "{said}");
}
