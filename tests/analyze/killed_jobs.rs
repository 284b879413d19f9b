//! `analyze` on the journals and black boxes of jobs that were killed or are running.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor::evidence::journal::{Reader, Writer};
use ddp_doctor::host::boxes::{BoxDir, boxes_in};
use ddp_doctor::host::private::SHARED_MEMORY;
use ddp_doctor_agent::blackbox::Reader as BoxReader;
use ddp_doctor_proto::blackbox::{WORD, header};
use ddp_doctor_proto::report::{RankState, Report};
use ddp_doctor_proto::v1::event::Kind;
use tempfile::TempDir;

use crate::support::evidence::{analyze, boxes_of, replace_boot_id, report, stderr, stdout};
use crate::support::process::program;
use crate::support::report::{report_in, with_effect};

// --- Jobs killed together with `run` -------------------------------------------------------------

/// A demonstration under `run`, in its own process group; killed when the test ends.
struct Watched {
    run: Child,
    dir: TempDir,
}

impl Watched {
    /// Starts a demonstration and waits until the report has a finding.
    fn hanging(demo: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = program(dir.path())
            .args(["run", "--run-dir", "run", "--"])
            .args([env!("CARGO_BIN_EXE_ddp-doctor"), "demo-rank", demo])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let watched = Self { run, dir };
        let started = Instant::now();
        loop {
            let report = report_in(&watched.run_dir().join("report.json"));
            if report.is_some_and(|report| !report.findings.is_empty()) {
                return watched;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "nothing was found");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("run")
    }

    /// Directory of the ranks' black boxes.
    fn boxes(&self) -> PathBuf {
        BoxDir::awaited(Path::new(SHARED_MEMORY), &self.run_dir())
            .into_iter()
            .next()
            .unwrap_or_else(|| self.run_dir().join("boxes"))
    }

    fn kill(&self, whom: &str) {
        let status = Command::new("kill").args(["-KILL", "--", whom]).status();
        assert!(status.unwrap().success());
    }

    /// Kills `run`, launcher and ranks: `run` first, which could otherwise see the end of a rank.
    fn kill_all(&mut self) {
        let run = self.run.id();
        self.kill(&run.to_string());
        self.kill(&format!("-{run}"));
        self.run.wait().unwrap();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let group = format!("-{}", self.run.id());
        drop(Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status());
        drop(self.run.wait());
        // Boxes would otherwise stay in shared memory until the next run.
        for dir in BoxDir::awaited(Path::new(SHARED_MEMORY), &self.run_dir()) {
            drop(fs::remove_dir_all(dir));
        }
    }
}

/// Names and contents of the boxes of a killed run. A run of another test may be moving them to the
/// run directory.
fn boxes_left(dir: &Path) -> Vec<(OsString, Vec<u8>)> {
    let files = boxes_in(dir).unwrap_or_default().into_iter();
    files.filter_map(|file| Some((file.file_name()?.to_owned(), fs::read(&file).ok()?))).collect()
}

/// Copies evidence so that it appears to come from another boot: processes cannot be checked.
fn from_another_boot(journal: Option<&Path>, boxes: &Path, to: &Path) {
    fs::create_dir_all(to.join("boxes")).unwrap();
    for (name, content) in boxes_left(boxes) {
        let copy = to.join("boxes").join(name);
        fs::write(&copy, content).unwrap();
        replace_boot_id(&copy);
    }
    let Some(journal) = journal else { return };
    let mut reader = Reader::open(journal).unwrap();
    let mut writer = Writer::create(&to.join("journal.ddpj")).unwrap();
    while let Some(mut report) = reader.read().unwrap() {
        for event in &mut report.events {
            if let Some(Kind::Hello(hello)) = &mut event.kind {
                hello.boot_id = "07070707-0707-0707-0707-070707070707".into();
            }
        }
        writer.append(&report).unwrap();
    }
}

#[test]
fn job_killed_together_with_run_is_diagnosed() {
    let mut job = Watched::hanging("early-exit");
    let boxes = job.boxes();
    job.kill_all();
    let expected = [("DD102", &[1][..])];

    let whole = analyze(&job.run_dir(), &[".", "--format", "json"]);
    assert_eq!(with_effect(&report(&whole)), expected, "{}", stdout(&whole));
    assert_eq!(report(&whole).findings[0].confidence.as_str(), "proved");
    assert_eq!(whole.status.code(), Some(1));
    assert_eq!(stderr(&whole), "");

    // As while another run moves the boxes from shared memory.
    for (name, content) in boxes_left(&boxes) {
        let copied = job.run_dir().join("boxes").join(name);
        fs::write(&copied, &content).unwrap();
        let partial = format!("{}.part", copied.display());
        fs::write(partial, &content[..content.len() / 2]).unwrap();
    }
    let moving = analyze(&job.run_dir(), &[".", "--format", "json"]);
    assert_eq!(stderr(&moving), "");
    let moving = report(&moving);
    assert_eq!(with_effect(&moving), expected);
    assert_eq!(moving.evidence, report(&whole).evidence);

    // On another machine the state of the processes cannot be checked.
    let scratch = tempfile::tempdir().unwrap();
    let copy = scratch.path().join("copy");
    let journal = job.run_dir().join("journal.ddpj");
    // Boxes of ranks that exited earlier, or that were moved, are already in the run directory.
    let kept = job.run_dir().join("boxes");
    from_another_boot(Some(&journal), &boxes, &copy);
    from_another_boot(None, &kept, &copy);
    let both = report(&analyze(scratch.path(), &["copy", "--format", "json"]));
    assert_eq!(with_effect(&both), expected, "{both:#?}");
    let sure = |report: &Report| report.findings[0].confidence.as_str();
    assert_eq!(sure(&both), "proved", "run saw rank 1 exit: {both:#?}");
    let states: Vec<_> = both.ranks.iter().map(|rank| rank.state).collect();
    use RankState::{Exited, Unknown};
    assert_eq!(states, [Unknown, Exited, Unknown, Unknown]);
    let unseen = both.findings.iter().find(|it| it.code == "DD901").unwrap();
    assert_eq!(unseen.ranks.root, [0, 2, 3], "{unseen:#?}");
    assert_eq!(unseen.severity.as_str(), "note");

    // Each record counts once, whichever files are given.
    fs::rename(copy.join("journal.ddpj"), scratch.path().join("some.file")).unwrap();
    let alone = report(&analyze(scratch.path(), &["copy", "--format", "json"]));
    assert_eq!(with_effect(&alone), expected, "{alone:#?}");
    assert_eq!(sure(&alone), "supported", "no exit recorded: {alone:#?}");
    assert_eq!(alone.evidence.records, both.evidence.records);
    let arguments = ["copy/boxes", "some.file", "copy", "--format", "json"];
    let mixed = report(&analyze(scratch.path(), &arguments));
    assert_eq!(mixed.evidence, both.evidence);
    assert_eq!(with_effect(&mixed), expected);
    assert_eq!(both.evidence.records_lost, 0);
}

#[test]
fn running_job_is_analyzed_without_interference() {
    let mut job = Watched::hanging("op-mismatch");
    let path = fs::read_dir(job.boxes())
        .unwrap()
        .map(|it| it.unwrap().path())
        .into_iter()
        .find(|it| it.extension().is_some_and(|it| it == "box"));
    let one = BoxReader::open(&path.unwrap()).unwrap();
    let reader = one.claimed_by();
    assert_eq!(reader.map(|(pid, _)| pid), Some(job.run.id()));

    let live = analyze(&job.run_dir(), &[".", "--format", "json"]);
    assert_eq!(with_effect(&report(&live)), [("DD103", &[2][..])]);
    assert!(stderr(&live).contains("the job is still running"), "{}", stderr(&live));
    assert!(report(&live).ranks.iter().all(|it| it.state != RankState::Unknown));
    assert_eq!(one.claimed_by(), reader);

    // Only `run` is killed: the ranks stay alive and keep waiting.
    job.kill(&job.run.id().to_string());
    job.run.wait().unwrap();
    let started = Instant::now();
    loop {
        let orphans = report(&analyze(&job.run_dir(), &[".", "--format", "json"]));
        let codes: Vec<_> = orphans.findings.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes, ["DD103"], "all ranks are alive: {orphans:#?}");
        assert_eq!(orphans.findings[0].ranks.root, [2]);
        let waits = orphans.ranks.iter().filter(|it| it.state == RankState::Waiting);
        if waits.count() == 4 {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{orphans:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

// --- Black boxes alone ---------------------------------------------------------------------------

#[test]
fn killed_healthy_job_has_no_root_cause() {
    for (calls, inside) in
        [([5, 4], [true, false]), ([5, 5], [true, true]), ([5, 5], [false, false])]
    {
        let dir = tempfile::tempdir().unwrap();
        for path in boxes_of(dir.path(), calls, inside) {
            replace_boot_id(&path);
        }
        let output = analyze(dir.path(), &[".", "--format", "json"]);
        let found = report(&output);
        assert_eq!(with_effect(&found), [], "{found:#?}");
        assert_eq!(found.verdict.as_str(), "insufficient");
        assert_eq!(output.status.code(), Some(4));
        let codes: Vec<_> = found.findings.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes, ["DD901"]);
        let lines: Vec<_> = found.findings[0].per_rank.iter().filter_map(|it| it.seq).collect();
        assert_eq!(lines, calls, "the last call of each rank is shown");
        let text = stdout(&analyze(dir.path(), &["."]));
        assert!(text.starts_with("insufficient: job job, 2 ranks on 1 node"), "{text}");
        assert!(text.contains("it is unknown how ranks 0 and 1 ended"), "{text}");
    }
}

#[test]
fn box_of_a_live_process_is_current() {
    let dir = tempfile::tempdir().unwrap();
    // Both boxes belong to this process.
    boxes_of(dir.path(), [3, 2], [true, false]);
    let output = analyze(dir.path(), &[".", "--format", "json"]);
    let found = report(&output);
    assert_eq!(found.findings, [], "the wait is still short");
    assert_eq!((found.verdict.as_str(), output.status.code()), ("healthy", Some(0)));
    assert!(found.ranks.iter().all(|it| it.pid == std::process::id()));
    assert!(found.ranks.iter().all(|it| it.state != RankState::Unknown));
}

#[test]
fn reused_pid_is_a_different_process() {
    let dir = tempfile::tempdir().unwrap();
    for path in boxes_of(dir.path(), [3, 2], [true, false]) {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let other = 1_u64.to_le_bytes();
        file.write_all_at(&other, (header::START_TICKS * WORD) as u64).unwrap();
    }
    let found = report(&analyze(dir.path(), &[".", "--format", "json"]));
    assert!(found.ranks.iter().all(|it| it.state == RankState::Unknown), "{found:#?}");
}
