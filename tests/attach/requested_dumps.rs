//! Dumps of PyTorch's Flight Recorder that `attach` requests from ranks which seem stuck on NCCL.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::{Confidence, Effect, Report};

use super::follow::Following;
use super::live::{Job, plain};
use crate::doubles::Doubles;
use crate::support::process::{program, run_to_end};
use crate::support::pytorch_jobs::venv;

/// Time limit for the ranks to start.
const MAX_START: Duration = Duration::from_secs(90);

/// Starts three such ranks; `age`: seconds since their last call.
fn start(age: &str) -> Option<Job> {
    let (venv, doubles) = (venv()?, Doubles::get()?);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = plain(&root.join("tests/attach/flight_recorder.py"), 3);
    command
        .env("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "recorder_")
        .env("TORCH_FR_DUMP_TEMP_FILE", "dump_")
        .env("DOUBLES", &doubles.folder)
        .env("DUMPS", root.join("tests/fixtures/gpu/flight-recorder"))
        .env("AGE", age);
    Some(Job::spawn(command, venv))
}

/// The report once all ranks are found and dumps were requested.
fn attach(job: &Job, run_dir: &Path) -> Report {
    let started = Instant::now();
    while started.elapsed() < MAX_START {
        if let Some(report) = job.attach(run_dir)
            && report.ranks.len() == 3
            && (0..3).all(|rank| job.directory.path().join(format!("dump_{rank}")).exists())
        {
            return report;
        }
        thread::sleep(Duration::from_secs(1));
    }
    panic!("no dumps were requested");
}

#[test]
fn rank_that_left_out_a_call_is_named_by_the_dumps() {
    let Some(job) = start("60") else { return };
    let run_dir = job.directory.path().join("kept");
    let report = attach(&job, &run_dir);
    let analyzed = {
        let mut command = program(job.directory.path());
        command.args(["analyze", "kept", "--format", "json"]);
        let finished = run_to_end(command);
        serde_json::from_str::<Report>(&finished.stdout).unwrap()
    };
    for report in [report, analyzed] {
        let finding = &report.findings[0];
        assert_eq!((&*finding.code, &finding.ranks.root[..]), ("DD101", &[1][..]));
        assert!(finding.confidence < Confidence::Proved, "{:?}", finding.confidence);
        assert!(finding.summary.contains("all_reduce #26"), "{}", finding.summary);
    }
}

#[test]
fn following_requests_no_dumps_and_says_so() {
    let Some(job) = start("60") else { return };
    attach(&job, &job.directory.path().join("kept"));
    let dump = job.directory.path().join("dump_0");
    let written = || dump.metadata().unwrap().modified().unwrap();
    let before = written();
    let following = Following::start(&job, "followed");
    following.prints("the Flight Recorder is not asked by --follow");
    following.interrupt();
    assert_eq!(written(), before);
}

#[test]
fn ranks_that_issued_calls_just_now_are_not_accused_by_their_dumps() {
    let Some(job) = start("0") else { return };
    let run_dir = job.directory.path().join("kept");
    let report = attach(&job, &run_dir);
    assert!(report.findings.iter().all(|it| it.effect == Effect::None), "{:?}", report.findings);
    assert!(!run_dir.join("flight_recorder_rank_0").exists());
}
