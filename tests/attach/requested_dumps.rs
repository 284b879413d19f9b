//! Dumps of PyTorch's Flight Recorder that `attach` requests from ranks which seem stuck on NCCL.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::{Confidence, Effect, Report};

use super::follow::Following;
use super::live::{Job, plain};
use crate::doubles::Doubles;
use crate::support::hosts::{Hosts, Process};
use crate::support::process::{eventually, program, run_to_end};
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
    following.prints("--follow does not query the Flight Recorder");
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

/// Starts the rank of this host, and attaches to it with a token once the file `attach` exists. Hosts share the file
/// system, and name one directory.
const HOST: &str = r#"
python "$0" & rank=$!
while [ ! -e attach ]; do sleep 0.1; done
DDP_DOCTOR_TOKEN=the-token-of-these-tests "$1" attach --run-dir ../kept
touch attached
while [ ! -e end ]; do sleep 0.1; done
kill -KILL $rank
"#;

/// A rank of each host, and what attaches to it.
fn start_on(hosts: &Hosts, venv: &Path, doubles: &Path) -> [Process; 3] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    [0, 1, 2].map(|host| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = hosts.command(host, "unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", HOST])
            .arg(root.join("tests/attach/flight_recorder.py"))
            .arg(program(&hosts.dir(host)).get_program())
            .env("PATH", format!("{}:{path}", venv.join("bin").display()))
            .envs([("RANK", &*host.to_string()), ("LOCAL_RANK", "0")])
            .envs([("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "1")])
            .envs([("MASTER_ADDR", "host-0"), ("MASTER_PORT", "29500")])
            .env("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "recorder_")
            .env("TORCH_FR_DUMP_TEMP_FILE", "dump_")
            .env("DOUBLES", doubles)
            .env("DUMPS", root.join("tests/fixtures/gpu/flight-recorder"))
            .env("AGE", "60")
            .env("DDP_DOCTOR_TIME_SCALE", "0.1");
        hosts.start(host, "host", command)
    })
}

#[test]
fn hosts_that_share_a_report_use_and_keep_the_dumps_of_each() {
    let (Some(venv), Some(doubles), Some(hosts)) = (venv(), Doubles::get(), Hosts::new(3)) else {
        return;
    };
    let mut processes = start_on(&hosts, venv, &doubles.folder);
    let exists = |host: u32, name: &str| hosts.dir(host).join(name).exists();
    eventually("the ranks are stuck", || {
        (0..3).all(|host| exists(host, &format!("recorder_{host}.pipe")))
    });
    thread::sleep(Duration::from_secs(3));
    (0..3).for_each(|host| fs::write(hosts.dir(host).join("attach"), "").unwrap());
    eventually("all hosts are read", || (0..3).all(|host| exists(host, "attached")));
    (0..3).for_each(|host| fs::write(hosts.dir(host).join("end"), "").unwrap());
    for process in &mut processes {
        process.end();
    }
    let printed: String =
        processes.iter().map(|it| format!("{}{}", it.stdout(), it.stderr())).collect();
    let kept = hosts.dir(0).join("../kept");
    for host in 0..3 {
        let dump = kept.join(format!("host-{host}/flight_recorder_rank_{host}"));
        assert!(dump.exists(), "{}: {printed}", dump.display());
    }
    // None of them alone shows which rank left out a call.
    assert_eq!(printed.matches("error[DD101] missing-rank: ").count(), 3, "{printed}");
    let mut analyze = program(&kept);
    analyze.args(["analyze", "--format", "json", "host-0", "host-1", "host-2"]);
    let finished = run_to_end(analyze);
    let report: Report = serde_json::from_str(&finished.stdout).unwrap();
    let finding = report.findings.first().unwrap_or_else(|| panic!("{finished}{printed}"));
    assert_eq!((&*finding.code, &finding.ranks.root[..]), ("DD101", &[1][..]), "{finished}");
    assert!(finding.confidence < Confidence::Proved, "{finished}");
}
