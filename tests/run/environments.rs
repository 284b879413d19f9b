//! Healthy jobs in unusual surroundings: their result is that without ddp-doctor, and nothing is found.

use std::fs;
use std::path::Path;
use std::process::Output;

use ddp_doctor_proto::report::{Report, Verdict};

use crate::support::compiled_programs::{clock, flood, rotate, training};
use crate::support::healthy_job::{HealthyJob, assert_same_result};
use crate::support::process::{PROGRAM, eventually, in_namespace, program, state_of};
use crate::support::report::{is_healthy, read_report};

/// Runs a script in a mount namespace and directory of its own; `$run` is `ddp-doctor run` up to the
/// command of the job.
fn script(dir: &Path, text: &str) -> Output {
    let report = dir.join("report.json").display().to_string();
    let script = format!("run='{PROGRAM} run --report {report} --'\n{text}");
    in_namespace(dir, &script)
}

/// Runs a script in which `$run "$@"` runs a healthy job of four ranks under `run`. Panics unless its
/// result is that without ddp-doctor; returns standard error and the report.
#[track_caller]
fn assert_same_result_of(text: &str) -> (String, Report) {
    let dir = tempfile::tempdir().unwrap();
    let output = script(dir.path(), &format!("set -- {} 4\n{text}", training()));
    assert_same_result(&[training(), "4"], output.status.code(), &output.stdout);
    let report = read_report(&dir.path().join("report.json"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{text}");
    (text, report)
}

#[track_caller]
fn assert_same_result_and_silence(text: &str) {
    let (stderr, report) = assert_same_result_of(text);
    is_healthy(&report, 4);
    let own = stderr.lines().filter(|line| line.contains("ddp-doctor"));
    assert_eq!(own.count(), 2, "{stderr}");
}

#[test]
fn directory_with_an_odd_name() {
    assert_same_result_and_silence(
        r#"odd="a 'b\" \$c %s ü
        new line"; mkdir "$odd"; cd "$odd"; $run "$@""#,
    );
}

#[test]
fn read_only_directory() {
    let (stderr, report) = assert_same_result_of(
        r#"export HOME=$PWD; mkdir ro; mount -t tmpfs -o ro none ro; cd ro; $run "$@""#,
    );
    is_healthy(&report, 4);
    assert_eq!(stderr.matches("cannot create a run directory").count(), 1);
}

#[test]
fn few_descriptors() {
    for limit in [18, 24, 28, 40] {
        let (stderr, report) = assert_same_result_of(&format!(r#"ulimit -n {limit}; $run "$@""#));
        if report.verdict == Verdict::Healthy {
            is_healthy(&report, 4);
        } else {
            // Ranks could not be followed, which says nothing about them.
            assert_eq!(report.verdict, Verdict::Insufficient, "{report:#?}");
            let codes = report.findings.iter().map(|it| it.code.as_str());
            assert!(codes.clone().all(|code| code == "DD901"), "{report:#?}");
            assert!(codes.count() > 0 || stderr.contains("no diagnosis"), "{stderr}");
        }
    }
}

#[test]
fn low_limit_of_descriptors_that_may_be_raised() {
    let (_, report) = assert_same_result_of(
        r#"ulimit -S -n 24; $run sh -c 'ulimit -n >limit; exec "$0" "$@"' "$@"; status=$?
        [ "$(cat limit)" = 24 ] || exit 99; exit $status"#,
    );
    is_healthy(&report, 4);
}

#[test]
fn full_shared_memory() {
    assert_same_result_and_silence(
        r#"mount -t tmpfs -o size=8k none /dev/shm; head -c 8192 /dev/zero >/dev/shm/full; $run "$@""#,
    );
}

#[test]
fn read_only_shared_memory() {
    assert_same_result_and_silence(r#"mount -t tmpfs -o ro none /dev/shm; $run "$@""#);
}

#[test]
fn occupied_name_in_shared_memory() {
    assert_same_result_and_silence(
        r#"mount -t tmpfs none /dev/shm; touch /dev/shm/ddp-doctor-$(id -u); $run "$@""#,
    );
}

#[test]
fn process_namespace() {
    assert_same_result_and_silence(r#"$run unshare --pid --fork --mount-proc "$@""#);
}

#[test]
fn clock_that_is_set_during_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let twice = r#""$0" 4; : >set; "$0" 4"#;
    let command = ["sh", "-c", twice, training()];
    let output = program(dir.path())
        .args(["run", "--report", "report.json", "--"])
        .args(command)
        .env("LD_PRELOAD", clock())
        .env("CLOCK_AHEAD", "180")
        .env("CLOCK_SINCE", dir.path().join("set"))
        .output()
        .unwrap();
    assert_same_result(&command, output.status.code(), &output.stdout);
    let report = read_report(&dir.path().join("report.json"));
    is_healthy(&report, 4);
}

#[test]
fn jobs_of_one_name() {
    let start = || HealthyJob::start_program(&["--job", "same"], &[flood(), "2000"]);
    let mut jobs = [start(), start()];
    jobs.iter().for_each(HealthyJob::start_ranks);
    for job in &mut jobs {
        is_healthy(&job.assert_same_result(), 1);
    }
}

#[test]
fn sixty_four_ranks() {
    let mut job = HealthyJob::start_program(&[], &[training(), "64"]);
    is_healthy(&job.assert_same_result(), 64);
}

#[test]
fn run_that_is_stopped_from_the_terminal_and_continued() {
    let mut job = HealthyJob::start_program(&[], &[flood(), "2000"]);
    job.start_ranks();
    job.signal("-TSTP");
    eventually("it is stopped", || state_of(job.pid()) == 'T');
    job.signal("-CONT");
    is_healthy(&job.assert_same_result(), 1);
}

#[test]
fn job_in_a_time_namespace_is_diagnosed() {
    let training = training();
    for (bug, verdict) in [("", Verdict::Healthy), ("early-exit", Verdict::Hang)] {
        let dir = tempfile::tempdir().unwrap();
        let mut run = program(dir.path());
        run.args(["run", "--report", "r.json", "--on-hang", "kill", "--kill-after", "1"]);
        run.args(["--", "unshare", "--map-current-user", "--keep-caps", "--time"]);
        run.args(["--boottime", "100000", "--monotonic", "100000", training, "4", bug]);
        let output = run.output().unwrap();
        let report = read_report(&dir.path().join("r.json"));
        assert_eq!(report.verdict, verdict, "{output:?}");
        assert_eq!(report.ranks.len(), 4);
        if verdict == Verdict::Healthy {
            assert_same_result(&[training, "4"], output.status.code(), &output.stdout);
        }
    }
}

#[test]
fn directory_on_a_stuck_mount_blocks_no_command() {
    if fs::File::open("/dev/fuse").is_err() {
        eprintln!("skipped: /dev/fuse cannot be opened");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // A mount whose server never answers, and on it the directory of a dead run.
    let server = "
import ctypes, os, sys, time
device = os.open('/dev/fuse', os.O_RDWR)
options = 'fd=%d,rootmode=40000,user_id=%d,group_id=%d' % (device, os.getuid(), os.getgid())
mounted = ctypes.CDLL(None).mount(b'stuck', b'stuck', b'fuse', 0, options.encode())
open('mounted', 'w').write(str(mounted))
time.sleep(600)
";
    fs::write(dir.path().join("server.py"), server).unwrap();
    let job = format!("{} 4; exit 7", training());
    let script = format!(
        "mount -t tmpfs none /dev/shm && mkdir stuck
        python3 server.py & server=$!
        until [ -s mounted ]; do sleep 0.05; done
        [ $(cat mounted) = 0 ] || exit 99
        mkdir -m 700 /dev/shm/ddp-doctor-$(id -u) /dev/shm/ddp-doctor-$(id -u)/dead
        printf '4194304 1 gone\\n%s/stuck/run\\n' $PWD >/dev/shm/ddp-doctor-$(id -u)/dead/owner
        timeout -k 1 20 {PROGRAM} run -- sh -c '{job}' >printed; ran=$?
        timeout -k 1 20 {PROGRAM} status; asked=$?
        kill $server; echo $ran $asked"
    );
    let output = in_namespace(dir.path(), &script);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.trim_end().ends_with("7 0"), "{output:?}");
    let printed = fs::read(dir.path().join("printed")).unwrap();
    assert_same_result(&["sh", "-c", &job], Some(7), printed);
}

/// A file that would get too long raises SIGXFSZ, which ends a process. The limits, in units of 512 bytes, are less than a
/// black box needs, about as much, and enough for its beginning only.
#[test]
fn ranks_with_a_small_limit_of_file_sizes() {
    for limit in ["1", "100", "1000", "2000", "4000", "20000"] {
        let job = format!(r#"$run sh -c 'ulimit -f {limit}; exec "$@"' sh "$@""#);
        let (_, report) = assert_same_result_of(&job);
        assert_ne!(report.verdict, Verdict::Hang, "{limit}");
    }
    // A ring that gets longer.
    let dir = tempfile::tempdir().unwrap();
    let job = [rotate(), "40000", "ends"];
    let limited = ["sh", "-c", "ulimit -f 6000; exec \"$@\"", "sh"];
    let output = program(dir.path()).args(["run", "--"]).args(limited).args(job).output().unwrap();
    assert_same_result(&job, output.status.code(), &output.stdout);
}
