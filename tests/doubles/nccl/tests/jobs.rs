//! The programs in `tests/jobs/nccl` without `ddp-doctor`: a faulty variant hangs if it is meant to
//! and ends otherwise; a healthy variant succeeds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::Doubles;
use crate::programs::variant;

/// Time for which a program that is meant to hang is observed.
const LONG: Duration = Duration::from_millis(800);
/// Time limit for a program that is meant to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running job, killed with all its ranks on drop.
struct Job {
    launcher: Child,
    said: PathBuf,
    _scratch: tempfile::TempDir,
}

impl Job {
    fn start(doubles: &Doubles, ranks: u32, program: &Path) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let said = scratch.path().join("said");
        let words = doubles.launch(ranks, program);
        let launcher = Command::new(&words[0])
            .args(&words[1..])
            .env("TMPDIR", scratch.path())
            .env("PATIENCE_MS", "3000")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        Self { launcher, said, _scratch: scratch }
    }

    /// Exit status, if it ends within this time, and its standard error.
    fn end_within(mut self, time: Duration) -> (Option<Option<i32>>, String) {
        let started = Instant::now();
        let mut status = None;
        while status.is_none() && started.elapsed() < time {
            status = self.launcher.try_wait().unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        let said = fs::read_to_string(&self.said).unwrap();
        (status.map(|it| it.code()), said)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Fails if it has ended. The ranks end with the launcher.
        self.launcher.kill().ok();
        self.launcher.wait().ok();
    }
}

fn says(source: &str, line: &str) -> bool {
    source.lines().any(|it| it.trim_start_matches(" * ") == line)
}

fn is_as_it_says(doubles: &Doubles, path: &Path) {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let source = fs::read_to_string(path).unwrap();
    let ranks = (1..=8)
        .find(|it| says(&source, &format!("nproc = {it}")))
        .unwrap_or_else(|| panic!("{name} does not say how many ranks it has"));

    let (called, options) = variant(path, false);
    let program = doubles.compile(path, &called, options);
    let (status, said) = Job::start(doubles, ranks, &program).end_within(PATIENCE);
    assert_eq!(status, Some(Some(0)), "{name} without its fault: {said}");

    if !says(&source, "[faulty]") {
        return;
    }
    let (called, options) = variant(path, true);
    let program = doubles.compile(path, &called, options);
    let job = Job::start(doubles, ranks, &program);
    if says(&source, "hang = true") {
        let (status, said) = job.end_within(LONG);
        assert_eq!(status, None, "{name}: {said}");
    } else {
        let (status, said) = job.end_within(PATIENCE);
        assert!(status.is_some(), "{name}: {said}");
    }
}

#[test]
#[ignore = "of the programs, not of ddp-doctor: part of make test-all"]
fn faulty_programs_hang_and_their_twins_do_not() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../jobs/nccl");
    let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    // `job.c` needs the name of a scenario; programs without a truth are tested elsewhere.
    let has_truth = |path: &PathBuf| {
        let needs_a_scenario = path.ends_with("job.c");
        !needs_a_scenario && says(&fs::read_to_string(path).unwrap(), "/// truth")
    };
    let programs: Vec<PathBuf> = entries.filter(|it| it.is_file() && has_truth(it)).collect();
    assert!(programs.len() > 15, "{programs:?}");
    // In parallel, since most of the time is spent waiting.
    for some in programs.chunks(12) {
        thread::scope(|scope| {
            for program in some {
                scope.spawn(|| is_as_it_says(doubles, program));
            }
        });
    }
}
