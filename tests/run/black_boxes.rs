//! The black boxes of the ranks of `run`: their directories, and records that are lost.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ddp_doctor::host::boxes::boxes_in;
use ddp_doctor_agent::blackbox::Reader;
use ddp_doctor_proto::blackbox::{WORD, header};
use ddp_doctor_proto::report::Verdict;

use crate::support::compiled_programs::{flood, training};
use crate::support::evidence::boxes_of;
use crate::support::healthy_job::{HealthyJob, assert_same_result};
use crate::support::process::{PROGRAM, eventually, in_namespace, program};
use crate::support::report::{initiating, is_healthy, read_report};

#[test]
fn run_follows_boxes_in_two_directories() {
    for (bug, status) in [("early-exit", 75), ("", 0)] {
        let dir = tempfile::tempdir().unwrap();
        // /dev/shm is full after some of the boxes. The ranks also inherit the address of a coordinator.
        let script = format!(
            "mount -t tmpfs -o size=64m,nr_inodes=8 none /dev/shm
            {PROGRAM} coordinator --listen 127.0.0.1:0 >address & coordinator=$!
            until [ -s address ]; do sleep 0.05; done
            DDP_DOCTOR_COORDINATOR=$(cat address) DDP_DOCTOR_PROGRAM={PROGRAM} \
                {PROGRAM} run --run-dir run --on-hang kill --kill-after 1 -- {} 4 {bug}
            status=$?; kill $coordinator; exit $status",
            training()
        );
        let output = in_namespace(dir.path(), &script);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let report = read_report(&dir.path().join("run/report.json"));
        if bug.is_empty() {
            is_healthy(&report, 4);
            assert_same_result(&[training(), "4"], output.status.code(), &output.stdout);
            continue;
        }
        assert_eq!(initiating(&report), ("DD102", &[1][..]));
        let codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes, ["DD102"]);
        assert_eq!(report.ranks.len(), 4);
        let boxes = fs::read_dir(dir.path().join("run/boxes")).unwrap();
        assert_eq!(boxes.count(), 4);
    }
}

#[test]
fn boxes_remain_in_shared_memory_if_the_run_directory_is_full() {
    let dir = tempfile::tempdir().unwrap();
    // Its own /dev/shm, since the next run of this user would move the boxes.
    let script = format!(
        "mount -t tmpfs none /dev/shm
        mkdir full && mount -t tmpfs -o size=2m none full
        {PROGRAM} run --run-dir full/run -- sh -c 'head -c 4m /dev/zero >full/fill; exec {} 4'
        status=$?; find /dev/shm -name '*.box' >left; exit $status",
        training()
    );
    let output = in_namespace(dir.path(), &script);
    assert_same_result(&[training(), "4"], output.status.code(), &output.stdout);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let (_, at) = stderr.split_once("black boxes remain in ").unwrap();
    let (at, _) = at.split_once(": ").unwrap();
    let left = fs::read_to_string(dir.path().join("left")).unwrap();
    assert_eq!(left.lines().count(), 4, "{left}{stderr}");
    assert!(left.lines().all(|it| it.starts_with(at)), "{left}{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.contains("the last report could not be written"), "{stderr}");
}

#[test]
fn ring_of_a_busy_rank_outlasts_a_stop_of_run() {
    let mut job = HealthyJob::start_program(&[], &[flood(), "3000", "7500"]);
    job.start_ranks();
    let boxes = boxes_in(Path::new(&job.variable("DDP_DOCTOR_BOX_DIR"))).unwrap();
    let size = || Reader::open(&boxes[0]).unwrap().used_bytes();
    let first = size();
    job.flood(1);
    eventually("the ring is extended", || size() > first);
    job.signal("-STOP");
    job.flood(2);
    job.signal("-CONT");
    let report = job.assert_same_result();
    assert_eq!(report.evidence.records_lost, 0, "{report:#?}");
    assert_eq!(report.verdict, Verdict::Healthy);
}

#[test]
fn records_lost_while_run_is_stopped_are_reported() {
    let mut job = HealthyJob::start_program(&[], &[flood(), "200000"]);
    job.start_ranks();
    job.signal("-STOP");
    job.flood(1);
    job.signal("-CONT");
    let report = job.assert_same_result();
    assert!(report.evidence.records_lost > 0, "{report:#?}");
    assert_eq!(report.verdict, Verdict::Insufficient);
    let stderr = job.stderr();
    assert!(stderr.contains("note[DD902]") && stderr.contains("insufficient"), "{stderr}");
}

#[test]
fn box_of_a_newer_package_is_reported_and_not_read() {
    let dir = tempfile::tempdir().unwrap();
    // The rank appears to wait in a barrier, which must not be concluded from an unknown layout.
    let path = boxes_of(dir.path(), [3, 3], [false, true]).remove(1);
    let version = (header::VERSION * WORD) as u64;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&9_u64.to_le_bytes(), version).unwrap();
    // A box that cannot be opened is reported after two seconds: it might be under construction.
    let job = r#"name=$$.$(cut -d' ' -f22 "/proc/$$/stat").c10d.box
        umask 077; cp "$1" "$DDP_DOCTOR_BOX_DIR/part" && mv "$DDP_DOCTOR_BOX_DIR/part" "$DDP_DOCTOR_BOX_DIR/$name"
        sleep 4; echo trained; exit 7"#;
    let report = dir.path().join("report.json");
    let output = program(dir.path())
        .args(["run", "--stall-after", "0.5", "--on-hang", "kill", "--report"])
        .arg(&report)
        .args(["--", "sh", "-c", job, "sh"])
        .arg(&path)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert_eq!(output.stdout, b"trained\n");
    assert!(stderr.contains("has layout 9") && stderr.contains("or a later one"), "{stderr}");
    let report = read_report(&report);
    assert_eq!(report.verdict, Verdict::Insufficient);
    assert!(report.findings.iter().all(|it| it.code == "DD901"), "{report:#?}");
}
