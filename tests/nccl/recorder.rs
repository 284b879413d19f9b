//! Completion on the device, requested from PyTorch's Flight Recorder while ranks wait under `run`, against what stands in
//! for it (`programs/recorded.py`).

use std::fs;
use std::path::Path;

use ddp_doctor_proto::report::{CallState, Confidence, Report, Verdict};

use super::program_source;
use crate::doubles::Doubles;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::pytorch_jobs::venv;
use crate::support::report::{leading, read_report};

/// What `run` printed and found, and the ranks that were asked.
struct Asked {
    finished: Finished,
    report: Report,
    ranks: Vec<String>,
    /// Names in the run directory.
    kept: Vec<String>,
}

/// Every rank's fifth call does not end.
const ON_ALL: &str = "hang AllReduce 5 on *";

/// Runs three ranks of the program, with what does not end.
fn job(kind: &str, options: &[&str], environment: &[(&str, &str)]) -> Option<Asked> {
    let (doubles, venv) = (Doubles::get()?, venv()?);
    let layers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs/layers");
    let later = doubles.compile(&layers.join("later.c"), "later.so", &["-shared", "-fPIC"]);
    let directory = tempfile::tempdir().unwrap();
    let asked = directory.path().join("asked");
    let mut run = program(directory.path());
    run.args(["run", "--nccl", "never", "--run-dir", "kept", "--stall-after", "8"])
        .args(["--on-hang", "kill", "--kill-after", "1"])
        .args(options)
        .arg("--")
        .arg(venv.join("bin/python"))
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"])
        .arg(program_source("recorded.py"))
        .env("DOUBLES", later.parent()?)
        .env("KIND", kind)
        .env("NCCL_DOUBLE_FAULTS", if kind == "all" { ON_ALL } else { "" })
        .env("ASKED", &asked)
        .envs(environment.iter().copied())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let kept = directory.path().join("kept");
    let report = read_report(&kept.join("report.json"));
    let mut ranks: Vec<String> =
        fs::read_to_string(asked).unwrap_or_default().lines().map(str::to_owned).collect();
    ranks.sort_unstable();
    let names = fs::read_dir(&kept).unwrap().map(|it| it.unwrap().file_name());
    let kept = names.map(|it| it.to_string_lossy().into_owned()).collect();
    Some(Asked { finished, report, ranks, kept })
}

#[test]
fn rank_whose_device_alone_does_not_complete_a_call_is_the_root() {
    let Some(it) = job("alone", &[], &[]) else { return };
    let Asked { finished, report, ranks, kept } = it;
    let finding = leading(&report);
    assert_eq!((&*finding.code, &finding.ranks.root[..]), ("DD116", &[1][..]), "{finished}");
    assert_eq!(finding.confidence, Confidence::Supported, "{finished}");
    assert_eq!((finding.seq, finding.ranks.root_confidence), (Some(5), Confidence::Supported));
    let states: Vec<CallState> = finding.per_rank.iter().map(|it| it.state).collect();
    assert_eq!(states, [CallState::Completed, CallState::Waiting, CallState::Completed]);
    assert_eq!(ranks, ["0", "1", "2"], "each is asked once");
    assert!(!kept.iter().any(|name| name.starts_with("flight_recorder")), "{kept:?}");
}

#[test]
fn call_that_all_devices_are_in_excludes_earlier_work() {
    let Some(it) = job("all", &[], &[("STARTS", "1")]) else { return };
    let finding = leading(&it.report);
    assert_eq!((&*finding.code, &finding.ranks.root[..]), ("DD116", &[][..]), "{}", it.finished);
    assert_eq!(finding.confidence, Confidence::Supported, "{}", it.finished);
    let why = "no earlier kernel on the stream is the cause";
    assert!(finding.why.iter().any(|it| it.contains(why)), "{}", it.finished);
}

#[test]
fn job_that_makes_progress_is_not_asked() {
    let Some(it) = job("healthy", &[], &[]) else { return };
    assert_eq!((it.report.verdict, &it.ranks[..]), (Verdict::Healthy, &[][..]), "{}", it.finished);
    assert!(!it.kept.iter().any(|name| name.starts_with("flight_recorder")), "{:?}", it.kept);
}

#[test]
fn recorders_are_left_alone_without_stacks_and_where_they_are_off() {
    for (options, environment) in [
        (&["--stacks", "never"][..], &[("PATIENCE", "9")][..]),
        (&[], &[("PATIENCE", "9"), ("TORCH_FR_BUFFER_SIZE", "0")]),
    ] {
        let Some(it) = job("all", options, environment) else { return };
        assert_eq!(it.ranks, [""; 0], "{}", it.finished);
    }
}
