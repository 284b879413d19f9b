//! `--on-hang kill` where the run directory cannot be written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::process::{PROGRAM, in_namespace};
use crate::support::report::{initiating, read_report};

/// Runs a script in which `$run` is a hanging job under `run --on-hang kill`, with a home of its own.
fn script(dir: &Path, text: &str) -> Output {
    let text = format!(
        "mkdir home temporary; export HOME=$PWD/home TMPDIR=$PWD/temporary
        options='--on-hang kill --kill-after 0'
        job='{PROGRAM} demo-rank early-exit'
        run=\"{PROGRAM} run $options\"
        {text}"
    );
    in_namespace(dir, &text)
}

/// Run directories in the home of a script.
fn run_dirs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("home/ddp-doctor-runs")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Panics unless the job was killed and its evidence is in the home.
#[track_caller]
fn is_killed_and_kept_at_home(dir: &Path, output: &Output) {
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let runs = run_dirs(dir);
    let [run] = &runs[..] else { panic!("{runs:?}: {}", stderr(output)) };
    let report = read_report(&run.join("report.json"));
    assert_eq!(initiating(&report), ("DD102", &[1][..]));
    assert_eq!(fs::read_dir(run.join("boxes")).unwrap().count(), 4, "{}", stderr(output));
    assert!(stderr(output).contains(run.to_str().unwrap()), "{}", stderr(output));
}

#[test]
fn hang_in_a_read_only_directory_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let output = script(dir.path(), "mkdir ro; mount -t tmpfs -o ro none ro; cd ro; $run -- $job");
    is_killed_and_kept_at_home(dir.path(), &output);
}

#[test]
fn hang_beside_a_directory_that_cannot_be_entered_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    // Without capabilities, no user enters a directory of mode 0: as if another user had made it private.
    let output = script(
        dir.path(),
        "mkdir shared; cd shared; mkdir -m 0 ddp-doctor-runs
        exec setpriv --inh-caps=-all --bounding-set=-all $run -- $job",
    );
    is_killed_and_kept_at_home(dir.path(), &output);
}

#[test]
fn hang_on_a_full_disk_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let full = "mkdir full; mount -t tmpfs -o size=64k none full; cd full";
    let output = script(dir.path(), &format!("{full}; $run -- $job"));
    is_killed_and_kept_at_home(dir.path(), &output);
}

#[test]
fn hang_on_a_disk_that_fills_during_the_run_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let output = script(
        dir.path(),
        "mkdir full; mount -t tmpfs -o size=4m none full; cd full
        $run -- sh -c \"head -c 8m /dev/zero >fill; exec $job\"",
    );
    is_killed_and_kept_at_home(dir.path(), &output);
}

#[test]
fn proved_hang_without_any_room_is_killed_and_printed() {
    let dir = tempfile::tempdir().unwrap();
    let output = script(
        dir.path(),
        "rmdir home temporary; : >home; : >temporary
        mkdir ro; mount -t tmpfs -o ro none ro; cd ro; $run -qq -- $job",
    );
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(stderr(&output).contains("DD102"), "{}", stderr(&output));
    assert!(run_dirs(dir.path()).is_empty());
}
