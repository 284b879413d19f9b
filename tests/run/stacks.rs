//! Stacks of real ranks under `ddp-doctor run`: captured only where ranks are blocked.
//!
//! The tests need a Python environment with PyTorch ([`venv`]).

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor::evidence::journal::Reader;
use ddp_doctor_proto::dump::Dump;
use ddp_doctor_proto::report::RankState;
use ddp_doctor_proto::v1::{self, event::Kind};

use crate::support::process::{Finished, copy_program, eventually, run_to_end, state_of};
use crate::support::pytorch_jobs::{launch, variant, venv};

/// The command that runs a job under `run`, with the run directory `scratch/run`.
fn run(scratch: &Path, job: &str, ranks: u32, options: &[&str]) -> Option<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddp-doctor"));
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .current_dir(scratch)
        .args(["run", "--run-dir", "run"])
        .args(options)
        .arg("--")
        .args(launch(ranks, &variant(job)))
        .env("PATH", format!("{}:{path}", venv()?.join("bin").display()))
        .env("OMP_NUM_THREADS", "1");
    Some(command)
}

/// All stacks in the journal, each with its rank.
fn journaled(scratch: &Path) -> Vec<(u32, v1::Stacks)> {
    let mut reader = Reader::open(&scratch.join("run/journal.ddpj")).unwrap();
    let mut ranks = std::collections::BTreeMap::new();
    let mut stacks = Vec::new();
    while let Some(report) = reader.read().unwrap() {
        for event in report.events {
            match event.kind.unwrap() {
                Kind::ProcessJoined(joined) => {
                    ranks.extend(joined.rank.map(|rank| (joined.process, rank)));
                }
                Kind::Stacks(taken) => stacks.push((ranks[&taken.process], taken)),
                _ => {}
            }
        }
    }
    stacks
}

fn show(finished: &Finished, stacks: &[(u32, v1::Stacks)]) -> String {
    format!("{finished}\n{stacks:#?}")
}

/// Runs the job in which rank 1 sleeps and rank 0 waits, until `run` kills it.
fn asleep(options: &[&str]) -> Option<(Finished, Vec<(u32, v1::Stacks)>)> {
    let scratch = tempfile::tempdir().unwrap();
    let kill = ["--stall-after", "3", "--on-hang", "kill", "--kill-after", "10"];
    let options = [&kill, options].concat();
    let finished = run_to_end(run(scratch.path(), "faulty/asleep.py", 2, &options)?);
    assert_eq!(finished.status, Some(75), "{finished}");
    let stacks = journaled(scratch.path());
    Some((finished, stacks))
}

#[test]
fn blocked_ranks_are_sampled_twice_before_the_limit() {
    let Some((finished, stacks)) = asleep(&[]) else {
        return;
    };
    let show = || show(&finished, &stacks);
    let line = |thread: &v1::ThreadStack| {
        let frame = thread.python.iter().find(|it| it.file.ends_with("/asleep.py"));
        frame.map(|frame| (frame.line, frame.function.clone()))
    };
    let program = std::fs::read_to_string(variant("faulty/asleep.py")).unwrap();
    let line_of = |text: &str| {
        let line = program.lines().position(|line| line.contains(text));
        line.unwrap() as u32 + 1
    };
    for (rank, inside, at) in [
        (0, "all_reduce", line_of("dist.all_reduce(")),
        (1, "<module>", line_of("time.sleep(3600)")),
    ] {
        let of_rank: Vec<_> = stacks.iter().filter(|(of, _)| *of == rank).collect();
        assert!(of_rank.len() >= 2, "{}", show());
        for (_, taken) in of_rank {
            let main = &taken.threads[0];
            assert_eq!(taken.trouble, "", "{}", show());
            let is_inside = main.python.iter().any(|frame| frame.function == inside);
            assert!(is_inside, "{}", show());
            assert_eq!(line(main), Some((at, "<module>".into())), "{}", show());
            assert_eq!((main.state.as_str(), main.holds_gil), ("S", Some(false)));
            assert!(taken.threads.len() > 1 && main.cpu_ns > Some(0), "{}", show());
        }
    }
}

#[test]
fn stack_capture_can_be_disabled() {
    let start = |when| std::thread::spawn(move || asleep(&["--stacks", when]));
    for job in ["never", "ask"].map(start) {
        let Some((finished, stacks)) = job.join().unwrap() else {
            return;
        };
        assert_eq!(stacks.len(), 0, "{}", show(&finished, &stacks));
    }
}

#[test]
fn short_waits_are_not_sampled() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(command) = run(scratch.path(), "healthy/killed.py", 2, &[]) else {
        return;
    };
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    // On a busy machine startup is slow enough to be sampled, before the first collective.
    let stacks = journaled(scratch.path());
    let starting = |(_, taken): &(u32, v1::Stacks)| {
        let functions = taken.threads[0].python.iter().map(|frame| &frame.function);
        functions.into_iter().any(|it| it == "init_process_group")
    };
    assert!(stacks.iter().all(starting), "{}", show(&finished, &stacks));
}

/// A running program, killed with its process group on drop.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.process_group(0).spawn().unwrap())
    }

    /// Sends SIGTERM and waits for the exit.
    fn interrupt(&mut self) {
        let pid = self.0.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let kill = Command::new("kill").args(["-KILL", "--", &group]).output();
        kill.unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts the job in which rank 1 sleeps and the others wait; returns once it hangs.
fn hang(scratch: &Path, ranks: u32, options: &[&str]) -> Option<Running> {
    let mut command = run(scratch, "faulty/asleep.py", ranks, options)?;
    command.env("DDP_DOCTOR_TEST_STAMP", scratch.join("stamp"));
    let running = Running::start(command);
    let started = Instant::now();
    while !scratch.join("stamp.1").exists() {
        assert!(started.elapsed() < Duration::from_secs(120), "rank 1 did not reach its sleep");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Gives the other ranks time to enter their call, and the engine time to detect the wait.
    std::thread::sleep(Duration::from_secs(2));
    Some(running)
}

fn dump(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddp-doctor"));
    command.arg("dump").args(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn dump_of_a_hang_shows_the_unusual_rank_first() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(mut running) = hang(scratch.path(), 3, &[]) else {
        return;
    };
    let run_dir = scratch.path().join("run");
    let target = run_dir.to_str().unwrap();
    let json = dump(&[target, "--format", "json"]);
    assert_eq!(json.status.code(), Some(0), "{}", out(&json));
    let seen: Dump = serde_json::from_slice(&json.stdout).unwrap();
    let groups: Vec<_> = seen.groups.iter().map(|group| group.processes.clone()).collect();
    assert_eq!(groups, [vec![1], vec![0, 2]], "{}", out(&json));
    for (rank, process) in seen.processes.iter().enumerate() {
        assert_eq!((process.rank, &process.trouble), (Some(rank as u32), &None));
        let waits = process.waiting_in.as_ref().map(|it| (it.op.as_str(), it.seq));
        let expected = (rank != 1).then_some(("all_reduce", Some(5)));
        assert_eq!(waits, expected, "{}", out(&json));
        assert!(process.state != RankState::Dead && process.threads.len() > 1);
    }
    let text = dump(&[target]);
    let said = out(&text);
    let place = |words: &str| said.find(words).unwrap_or_else(|| panic!("no {words:?} in {said}"));
    assert!(place("\nrank 1\n") < place("\nranks 0 and 2\n"), "{said}");
    assert!(place("time.sleep(3600)") < place("dist.all_reduce(tensor)"), "{said}");
    place("rank 2   in all_reduce #5 of the default group for ");
    let all = dump(&[target, "--all-threads", "--format", "markdown"]);
    assert!(out(&all).contains("## ranks 0–2: "), "{}", out(&all));
    // The coordinator's address works as a target, too.
    let written = std::fs::read_to_string(run_dir.join("run.json")).unwrap();
    let description: serde_json::Value = serde_json::from_str(&written).unwrap();
    let again = dump(&[description["coordinator"].as_str().unwrap()]);
    assert!(out(&again).contains("\nranks 0 and 2\n"), "{}", out(&again));
    // So does the pid of a rank.
    let rank = dump(&["--pid", &seen.processes[1].pid.to_string()]);
    assert!(out(&rank).contains("time.sleep(3600)"), "{}", out(&rank));

    running.interrupt();
    let late = dump(&[target]);
    assert_eq!(late.status.code(), Some(3), "{}", out(&late));
    assert!(out(&late).contains("has ended; ddp-doctor analyze"), "{}", out(&late));
}

#[test]
fn dump_reports_that_stacks_are_disabled() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(running) = hang(scratch.path(), 2, &["--stacks", "never"]) else {
        return;
    };
    let seen = dump(&[scratch.path().join("run").to_str().unwrap()]);
    assert_eq!(seen.status.code(), Some(4), "{}", out(&seen));
    let expected = "ranks 0 and 1: stack capture is disabled (--stacks never)";
    assert!(out(&seen).contains(expected), "{}", out(&seen));
    drop(running);
}

#[test]
fn dump_explains_why_a_process_cannot_be_read() {
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let running = Running::start(sleep);
    let pid = running.0.id().to_string();
    // The kernel does not state the registers of a thread that runs, as while libraries are loaded.
    eventually("it sleeps", || state_of(running.0.id()) == 'S');
    let seen = dump(&["--pid", &pid]);
    assert_eq!(seen.status.code(), Some(0), "{}", out(&seen));
    assert!(out(&seen).contains("it does not run Python"), "{}", out(&seen));
    let gone = dump(&["--pid", "4194305"]);
    assert_eq!(gone.status.code(), Some(3), "{}", out(&gone));
    assert!(out(&gone).contains("process 4194305 does not exist"), "{}", out(&gone));

    // The user nobody needs a copy of the program in a directory that it can enter.
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("ddp-doctor");
    copy_program(&program);
    let open = Command::new("chmod").arg("755").arg(scratch.path()).arg(&program).status();
    open.unwrap();
    let mut as_nobody = Command::new("setpriv");
    as_nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let possible = as_nobody.arg(&program).arg("--version").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: setpriv cannot make us another user here");
        return;
    }
    let mut as_nobody = Command::new("setpriv");
    as_nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let seen = as_nobody.arg(&program).args(["dump", "--pid", &pid]).output().unwrap();
    assert_eq!(seen.status.code(), Some(3), "{}", out(&seen));
    let said = out(&seen);
    assert!(said.contains("its memory may not be read: it belongs to user 0"), "{said}");
    assert!(said.contains("CAP_SYS_PTRACE"), "{said}");
}
