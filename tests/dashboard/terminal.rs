//! The dashboard on a terminal, beside real jobs, and the output of `watch --once` and `status`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::{Report, Verdict};
use tempfile::TempDir;

use crate::support::coordinator::Coordinator;
use crate::support::dumps::{Entry, dump};
use crate::support::process::{eventually, program};
use crate::support::pytorch_jobs::{launch, variant, venv};
use crate::support::terminal::Terminal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ddp-doctor");
/// Time limit for an expected event.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A PyTorch job under `run`; ended when the test ends.
struct Job {
    run: Child,
    scratch: TempDir,
}

impl Job {
    fn start(venv: &Path, name: &str, ranks: u32, options: &[&str]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mut run = program(scratch.path());
        let path = std::env::var("PATH").unwrap_or_default();
        run.env("PATH", format!("{}:{path}", venv.join("bin").display()))
            .env("OMP_NUM_THREADS", "1")
            .args(["run", "--run-dir", "run"])
            .args(options)
            .arg("--")
            .args(launch(ranks, &variant(name)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(scratch.path().join("stderr")).unwrap());
        let job = Self { run: run.spawn().unwrap(), scratch };
        // Until `run.json` exists there is nothing to watch.
        let described = job.scratch.path().join("run/run.json");
        eventually("a run directory", || described.exists());
        job
    }

    fn run_dir(&self) -> String {
        self.scratch.path().join("run").display().to_string()
    }

    /// Sends SIGTERM to `run` and waits until it exits.
    fn end(&mut self) {
        let pid = self.run.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        let started = Instant::now();
        while self.run.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < TIMEOUT, "no exit");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.run.try_wait().unwrap().is_none() {
            self.end();
        }
    }
}

/// Waits until the dashboard has left the terminal: earlier input is lost.
#[track_caller]
fn is_left(terminal: &Terminal) {
    eventually("the main screen", || terminal.format("#{alternate_on}") == "0");
}

/// Checks that the terminal is back in the shell's settings.
#[track_caller]
fn is_restored(terminal: &Terminal) {
    is_left(terminal);
    // The quotes in `'e'nd` keep the echo of the typed line from matching.
    let settings = r"stty -a | grep -ow -e -icanon -e icanon -e -echo -e echo | tr '\n' ' '";
    terminal.line(&format!("{settings}; echo 'e'nd"));
    let screen = terminal.until("the settings", |screen| screen.contains(" end"));
    assert!(screen.contains("icanon echo end"), "{screen}");
    let flags = terminal.format("#{alternate_on} #{cursor_flag}");
    assert_eq!(flags, "0 1", "the main screen, with a cursor");
}

#[test]
fn dashboard_follows_a_hanging_job() {
    let Some(venv) = venv() else { return };
    let Some(terminal) = Terminal::start(100, 30) else {
        return;
    };
    let mut coordinator = Coordinator::start();
    let address = coordinator.address().to_owned();
    let options = ["--coordinator", &address];
    let mut job = Job::start(venv, "faulty/op_mismatch_of_four.py", 4, &options);

    terminal.line(&format!("{PROGRAM} watch {address}"));
    // Finding, culprit and reason are shown before any key is pressed.
    let names_it = |screen: &str| {
        let words = ["HANG", "DD103", "▸ rank", "why ", "live"];
        words.iter().all(|word| screen.contains(word))
    };
    terminal.until("the finding", names_it);
    for (key, words) in [
        ("2", "4 of 4 ranks"),
        ("3", "these calls cannot match"),
        ("4", "proof"),
        ("5", "these wait"),
        ("6", "now"),
        ("7", "a step began"),
        ("8", "d captures again"),
        ("?", "Ctrl-Z"),
    ] {
        terminal.key(key);
        terminal.until(words, |screen| {
            if key == "4" {
                // The page may have grown since the last look.
                terminal.key("End");
            }
            screen.contains(words)
        });
    }
    terminal.key("1");
    terminal.resize(80, 24);
    let fits = |screen: &str| {
        let bottom = screen.trim_end().lines().last().unwrap_or_default();
        screen.lines().count() == 24 && bottom.contains("8 stacks") && names_it(screen)
    };
    let screen = terminal.until("a smaller screen", fits);
    assert!(screen.lines().all(|line| line.chars().count() <= 80));

    coordinator.kill();
    let screen = terminal.until("disconnected", |screen| screen.contains("disconnected since"));
    assert!(screen.contains("DD103"), "the last state stays visible:\n{screen}");
    let coordinator = Coordinator::start_at(&address);
    terminal.until("seeing again", |screen| names_it(screen) && !screen.contains("blind"));

    terminal.key("C-z");
    terminal.until("stopped", |screen| screen.contains("Stopped"));
    is_restored(&terminal);
    terminal.line("fg");
    terminal.until("back", names_it);
    terminal.key("q");
    terminal.until("the shell", |screen| screen.contains("Stopped"));
    is_restored(&terminal);

    // The terminal is also restored when SIGTERM ends the dashboard.
    terminal.line(&format!("clear; {PROGRAM} watch {address}"));
    terminal.until("the finding", names_it);
    let shell = terminal.format("#{pane_pid}");
    let children = Command::new("ps").args(["--ppid", &shell, "-o", "pid="]).output();
    let watch = String::from_utf8(children.unwrap().stdout).unwrap();
    let killed = Command::new("kill").args(["-TERM", watch.trim()]).status();
    assert!(killed.unwrap().success(), "{watch}");
    terminal.until("the shell", |screen| screen.contains("bash-") && !names_it(screen));
    is_restored(&terminal);
    drop(coordinator);
    job.end();
}

#[test]
fn dashboard_replays_an_ended_run() {
    let Some(venv) = venv() else { return };
    let Some(terminal) = Terminal::start(100, 30) else {
        return;
    };
    let mut job = Job::start(venv, "faulty/op_mismatch.py", 2, &[]);
    terminal.line(&format!("{PROGRAM} watch {}", job.run_dir()));
    terminal.until("the finding", |screen| screen.contains("DD103"));
    job.end();
    // The dashboard switches to the recording without a key.
    terminal.until("the end", |screen| screen.contains("recorded") || screen.contains("ended"));
    terminal.key("q");
    is_left(&terminal);
    terminal.line(&format!("clear; {PROGRAM} watch {}", job.run_dir()));
    terminal.until("a recording", |screen| screen.contains("recorded"));
    terminal.key("N");
    terminal.until("the finding", |screen| screen.contains("DD103"));
    for _ in 0..50 {
        terminal.key(",");
    }
    terminal.until("before it", |screen| !screen.contains("DD103"));
    terminal.key("n");
    terminal.until("the finding", |screen| screen.contains("DD103"));
    terminal.key("q");
    is_restored(&terminal);
}

#[test]
fn panic_restores_the_terminal() {
    let example = Path::new(PROGRAM).with_file_name("examples").join("panics");
    if !example.exists() {
        eprintln!("skipped: {} is not built", example.display());
        return;
    }
    let Some(terminal) = Terminal::start(80, 24) else {
        return;
    };
    terminal.line(&format!("RUST_BACKTRACE=0 {}", example.display()));
    terminal.until("the panic and a prompt", |screen| {
        screen.contains("as planned") && screen.matches("bash-").count() == 2
    });
    is_restored(&terminal);
}

#[test]
fn watch_once_and_status_agree() {
    let Some(venv) = venv() else { return };
    let mut job = Job::start(venv, "faulty/op_mismatch.py", 2, &[]);
    let say = |arguments: &[&str]| {
        let mut command = program(job.scratch.path());
        let output = command.args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let run_dir = job.run_dir();
    let started = Instant::now();
    let status = loop {
        let (code, text) = say(&["status", &run_dir, "--fail-on", "error"]);
        if code == Some(1) {
            break text;
        }
        assert!(started.elapsed() < TIMEOUT, "{code:?} {text}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(status.starts_with("job ") && status.contains(" hang: "), "{status}");
    assert!(status.contains("\nfinding DD103 error proved: "), "{status}");
    assert_eq!(status.matches("\nrank ").count(), 2, "{status}");
    let (code, json) = say(&["status", &run_dir, "--format", "json"]);
    let report: Report = serde_json::from_str(&json).unwrap();
    assert_eq!((code, report.verdict), (Some(0), Verdict::Hang));
    let (code, once) = say(&["watch", "--once", &run_dir]);
    assert_eq!(code, Some(0));
    let summary: String = once.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected: Vec<&str> = report.findings[0].summary.split_whitespace().collect();
    assert!(summary.contains(&expected.join(" ")), "{once}");
    assert!(!once.contains('\u{1b}'), "no colors");
    let (code, _) = say(&["watch", &run_dir]);
    assert_eq!(code, Some(3), "no terminal, no dashboard");
    job.end();
    let ended = program(job.scratch.path()).args(["status", &run_dir]).output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert!(text.contains("finding DD103") && text.contains("ended after"), "{text}");
}

#[test]
fn watch_shows_several_files_and_ends_without_evidence() {
    let Some(terminal) = Terminal::start(100, 30) else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/logs");
    let text = std::fs::read_to_string(fixture.join("rank_that_never_enqueued.log")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (first, last) = lines.split_at(lines.len() / 2);
    for (name, lines) in [("a.log", first), ("b.log", last)] {
        std::fs::write(scratch.path().join(name), lines.join("\n")).unwrap();
    }
    let dir = scratch.path().display();
    terminal.line(&format!("{PROGRAM} watch {dir}/*.log"));
    terminal.until("the finding", |screen| screen.contains("DD101") && screen.contains("recorded"));
    terminal.key("q");
    is_left(&terminal);
    std::fs::write(scratch.path().join("notes.txt"), "all is well\n").unwrap();
    // The quotes in `'i's` keep the echo of the typed line from matching.
    terminal.line(&format!("clear; {PROGRAM} watch {dir}/notes.txt; echo it 'i's $?"));
    let screen = terminal.until("the exit status", |screen| screen.contains("it is "));
    assert!(screen.contains("no evidence of a job in"), "{screen}");
    assert!(screen.contains("it is 3"), "{screen}");
}

/// Writes dumps of three ranks whose calls are `later` seconds later than others, of which rank 1 is behind.
fn write_dumps(dir: &Path, later: u64) {
    std::fs::create_dir(dir).unwrap();
    for rank in 0..3 {
        let last = if rank == 1 { 1 } else { 2 };
        let entries = (1..=last).map(|seq| {
            let at = 1_700_000_000_000_000_000_u64 + (later + seq) * 1_000_000_000;
            let entry = Entry::new("nccl:all_reduce", "0", seq).with("time_created_ns", at);
            if seq == 2 { entry.open() } else { entry }
        });
        let dump = dump(&[("0", "[0, 1, 2]")], &entries.collect::<Vec<_>>());
        std::fs::write(dir.join(format!("trace_rank_{rank}")), dump.to_string()).unwrap();
    }
}

#[test]
fn watch_of_several_jobs_shows_the_newest_and_counts_the_others() {
    let scratch = tempfile::tempdir().unwrap();
    write_dumps(&scratch.path().join("newer"), 50_000);
    write_dumps(&scratch.path().join("older"), 0);
    let mut command = program(scratch.path());
    let output = command.args(["watch", "--once", "newer", "older"]).output().unwrap();
    let (screen, remarks) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(screen.contains("newer") && !screen.contains("older"), "{screen}");
    assert!(!screen.contains("0 ms"), "the end of the job is unknown: {screen}");
    assert!(remarks.contains("1 more job is not shown"), "{remarks}");
    let mut command = program(scratch.path());
    let output = command.args(["watch", "--once", "older"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn watch_of_files_prints_remarks() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("dumps");
    write_dumps(&folder, 0);
    let once = |options: &[&str]| {
        let mut command = program(scratch.path());
        let arguments = ["watch", "--once", "dumps"];
        let output = command.args(arguments).args(options).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    std::fs::write(folder.join("trace_rank_0"), "").unwrap();
    let (status, remarks) = once(&[]);
    assert_eq!(status, Some(0));
    assert!(remarks.contains("trace_rank_0: it is empty"), "{remarks}");
    assert_eq!(once(&["-qq"]), (Some(0), String::new()));
    std::fs::remove_file(folder.join("trace_rank_0")).unwrap();
    for (from, to) in [("trace_rank_1", "a"), ("trace_rank_2", "b")] {
        std::fs::rename(folder.join(from), folder.join(to)).unwrap();
    }
    let (status, remarks) = once(&[]);
    assert_eq!(status, Some(3));
    assert!(remarks.contains("end the name with the rank"), "{remarks}");
}
