//! Recorded memory curves of real processes, replayed through the engine.
//!
//! The scenarios in `tests/recorded` contain the steps and the memory samples from the journals of
//! `ddp-doctor run` on the programs in `tests/jobs/memory/curves.py`. Their heads state the truth of
//! each program. `ends-in-step` is the step in which the memory ran out: the scenario fails if a
//! forecast was wrong. Recording them again takes ten minutes:
//!
//! ```console
//! $ cargo test --test tests -- --ignored record_curves --nocapture    # CURVES=leak,cache for some
//! ```

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ddp_doctor::diagnosis::Event;
use ddp_doctor::diagnosis::event::MemorySample;
use ddp_doctor::evidence::decode::Decoder;
use ddp_doctor::evidence::journal;
use ddp_doctor_proto::report::Timestamp;

use crate::support::process::run_to_end;
use crate::support::pytorch_jobs::{jobs, venv};
use crate::support::scenario::Scenario;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

#[test]
fn recorded_memory_curves_are_forecast_correctly() {
    let mut failures = Vec::new();
    for path in recordings() {
        let text = fs::read_to_string(&path).unwrap();
        if let Err(failure) = Scenario::parse(&text).and_then(|scenario| scenario.check()) {
            failures.push(format!("{}: {failure}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn recordings() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 8, "{paths:?}");
    paths
}

#[test]
#[ignore = "records for ten minutes"]
fn record_curves() {
    let venv = venv().expect("PyTorch");
    let only = std::env::var("CURVES").ok();
    for path in recordings() {
        let kind = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let is_wanted = |only: &String| only.split(',').any(|it| it == kind);
        if only.as_ref().is_some_and(|it| !is_wanted(it)) {
            continue;
        }
        let (events, last) = record(venv, &kind);
        let text = fs::read_to_string(&path).unwrap();
        let (head, rest) = text.split_once("events = \"\"\"\n").unwrap();
        let (_, tail) = rest.split_once("\"\"\"").unwrap();
        let text = format!("{head}events = \"\"\"\n{events}\"\"\"{tail}");
        fs::write(&path, text).unwrap();
        println!("{kind}: step {last} was its last, {} bytes", events.len());
    }
}

/// Runs a program under `ddp-doctor run`; returns the lines of its scenario and its last step.
fn record(venv: &Path, kind: &str) -> (String, u64) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddp-doctor"));
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .current_dir(scratch.path())
        .args(["run", "--run-dir", "run", "--nproc-per-node", "1"])
        .arg(jobs().join("memory/curves.py"))
        .env("DDP_DOCTOR_TEST_CURVE", kind)
        .env("PATH", format!("{}:{path}", venv.join("bin").display()))
        .env("OMP_NUM_THREADS", "1");
    let finished = run_to_end(command);
    let run = scratch.path().join("run");
    let mut journals = fs::read_dir(&run)
        .unwrap()
        .map(|it| it.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "ddpj"));
    let journal = journals.next().unwrap_or_else(|| panic!("{finished}"));
    let mut reader = journal::Reader::open(&journal).unwrap();
    let mut decoder = Decoder::new(0);
    let mut events = Vec::new();
    while let Some(report) = reader.read().unwrap() {
        decoder.decode(report, &mut events);
    }
    decoder.release(&mut events);
    let mut lines: Vec<(Timestamp, String)> = Vec::new();
    let mut last = 0;
    for event in events {
        match event {
            Event::Step { step, at, .. } => {
                last = step;
                lines.push((at, format!("step {step}")));
            }
            Event::Memory { sample, at, .. } => lines.push((at, words(&sample))),
            _ => {}
        }
    }
    assert!(last > 20, "{finished}");
    // Later samples show the memory that the process frees as it exits.
    let stepped = lines.iter().filter(|(_, line)| line.starts_with("step"));
    let end = stepped.map(|(at, _)| at.plus(Duration::from_millis(600))).max();
    lines.retain(|(at, _)| Some(*at) <= end);
    lines.sort_by_key(|(at, _)| *at);
    let start = lines[0].0;
    let mut text = String::new();
    for (at, line) in lines {
        let at = at.since(start).as_secs_f64() + 1.0;
        writeln!(text, "{at:.3} 0 {line}").unwrap();
    }
    (text, last)
}

/// A sample in the notation of scenarios.
fn words(sample: &MemorySample) -> String {
    let kib = |bytes: u64| format!("{}K", bytes >> 10);
    let of = |name: &str, used: Option<u64>, all: Option<u64>| {
        used.zip(all)
            .map_or_else(String::new, |(used, all)| format!(" {name}={}/{}", kib(used), kib(all)))
    };
    let available = sample.host_available;
    let host = sample.host_total.zip(available).map(|(all, available)| all - available);
    format!(
        "memory rss={}{}{}{}{}",
        kib(sample.rss.unwrap()),
        of("host", host, sample.host_total),
        of("cgroup", sample.cgroup_used, sample.cgroup_limit),
        of("shm", sample.shm_used, sample.shm_total),
        of("virtual", sample.virtual_used, sample.virtual_limit),
    )
}
