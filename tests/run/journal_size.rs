//! Journals that reach their limit, and disks and files that cannot grow.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use ddp_doctor::postmortem::{self, Progress};
use ddp_doctor::report::json::Assembler;
use ddp_doctor_proto::report::{Confidence, Job, Report};

use crate::support::compiled_programs::rotate;
use crate::support::healthy_job::assert_same_result;
use crate::support::process::{PROGRAM, in_namespace, program};
use crate::support::report::{initiating, leading, read_report};

/// Calls of each rank: some 3 MB in a journal.
const CALLS: &str = "20000";

/// The segments of the journal of a run directory, in order.
fn segments(run: &Path) -> Vec<PathBuf> {
    let mut later: Vec<PathBuf> = fs::read_dir(run.join("journal"))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect();
    later.sort();
    later.insert(0, run.join("journal.ddpj"));
    later
}

fn size(paths: &[PathBuf]) -> u64 {
    paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

/// The report of `analyze`.
fn analyzed(path: &Path) -> Report {
    let output =
        program(Path::new("/")).args(["analyze", "--format", "json"]).arg(path).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Codes of the findings.
fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|it| it.code.as_str()).collect()
}

/// Panics unless the report has the proved hang, and says what the journal lacks.
#[track_caller]
fn is_honest(report: &Report) {
    let hang: Vec<_> = report.findings.iter().filter(|it| it.code == "DD102").collect();
    let [hang] = hang[..] else { panic!("{report:#?}") };
    assert_eq!((&hang.ranks.root[..], hang.confidence), (&[1][..], Confidence::Proved));
    let finding = report.findings.iter().find(|it| it.code == "DD901");
    let note = &finding.unwrap_or_else(|| panic!("{report:#?}")).summary;
    assert!(note.contains("were dropped to keep it within its limit"), "{note}");
    assert_eq!(report.findings.len(), 2, "{:?}", codes(report));
}

#[test]
fn journal_is_bounded_and_keeps_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = program(dir.path())
        .args(["run", "--run-dir", "run", "--journal-size", "1M", "--on-hang", "kill"])
        .args(["--kill-after", "0", "--", rotate(), CALLS])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let live = read_report(&run.join("report.json"));
    assert_eq!(initiating(&live), ("DD102", &[1][..]));
    let paths = segments(&run);
    assert!((4..=8).contains(&paths.len()), "{paths:?}");
    assert!(size(&paths) <= 1 << 20, "{}", size(&paths));
    let latest = paths.last().unwrap();
    let number: u32 = latest.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    assert!(number > 20, "{latest:?}");

    let whole = analyzed(&run);
    is_honest(&whole);
    let hang = whole.findings.iter().find(|it| it.code == "DD102").unwrap();
    assert_eq!(hang.summary, leading(&live).summary);
    // Without black boxes, and from the last segment alone.
    fs::rename(run.join("boxes"), dir.path().join("boxes")).unwrap();
    is_honest(&analyzed(&run));
    is_honest(&analyzed(latest));
    let exported =
        program(dir.path()).args(["export", "--format", "perfetto", "run"]).output().unwrap();
    assert!(exported.status.success(), "{exported:?}");
}

#[test]
fn dropped_events_are_no_finding_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = program(dir.path())
        .args(["run", "--run-dir", "run", "--", rotate(), CALLS, "ends"])
        .env("DDP_DOCTOR_JOURNAL_SIZE", "512K")
        .output()
        .unwrap();
    let job = [rotate(), CALLS, "ends"];
    assert_same_result(&job, output.status.code(), &output.stdout);
    assert!(segments(&run).len() > 2);
    assert!(size(&segments(&run)) <= 512 << 10);
    let mut remarks = Vec::new();
    let recorded = postmortem::record(&[run], &mut remarks, &Progress::default()).unwrap();
    assert_eq!(remarks, []);
    let mut shown = Assembler::new(Job::default());
    for update in recorded.updates {
        let at = update.at;
        shown.apply(update);
        assert!(
            shown.findings().iter().all(|it| it.code == "DD901"),
            "{at}: {:#?}",
            shown.findings()
        );
    }
    assert_eq!(codes(&shown.report()), ["DD901"]);
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn journal_leaves_room_on_a_small_disk() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mkdir small; mount -t tmpfs -o size=2m none small
        {PROGRAM} run --run-dir small/run -- {} {CALLS} ends; status=$?
        stat -c %s small/run/journal.ddpj >size; exit $status",
        rotate()
    );
    let output = in_namespace(dir.path(), &script);
    let job = [rotate(), CALLS, "ends"];
    assert_same_result(&job, output.status.code(), &output.stdout);
    assert_eq!(stderr(&output).matches("the journal ends here").count(), 1, "{output:?}");
    let size: u64 = fs::read_to_string(dir.path().join("size")).unwrap().trim().parse().unwrap();
    assert!((1 << 19..(2 << 20) * 19 / 20).contains(&size), "{size}");
}

#[test]
fn limit_of_file_sizes_ends_the_journal_and_not_the_job() {
    let dir = tempfile::tempdir().unwrap();
    // The ranks get the limit back: it would also apply to their own files.
    let script = "ulimit -S -f 2048; \"$0\" run --run-dir run -- \
                  sh -c 'ulimit -S -f unlimited; exec \"$0\" \"$@\"' \"$@\"";
    let output = std::process::Command::new("bash")
        .args(["-c", script, PROGRAM, rotate(), CALLS, "ends"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let job = [rotate(), CALLS, "ends"];
    assert_same_result(&job, output.status.code(), &output.stdout);
    assert_eq!(stderr(&output).matches("the journal ends here").count(), 1, "{output:?}");
    let run = dir.path().join("run");
    assert!(size(&segments(&run)) <= 2 << 20);
    assert_eq!(codes(&read_report(&run.join("report.json"))), Vec::<&str>::new());
}

#[test]
fn job_has_its_own_action_for_exceeded_file_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let output = program(dir.path())
        .args(["run", "--", "sh", "-c", "grep SigIgn /proc/self/status"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ignored = u64::from_str_radix(text.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(ignored & (1 << 24), 0, "{text}");
}
