//! What `attach` kept of one live run of each program, analyzed again.

use std::fs;
use std::process::Command;

use ddp_doctor_proto::report::Report;

use super::programs::{self, Program};
use crate::support::process::{program, run_to_end};

/// The report of `analyze` on a recording.
fn analyzed(program_under_test: &Program) -> Report {
    let directory = tempfile::tempdir().unwrap();
    fs::copy(program_under_test.recording(), directory.path().join("journal.ddpj")).unwrap();
    let mut analyze: Command = program(directory.path());
    analyze.args(["analyze", "--format", "json", "."]);
    let finished = run_to_end(analyze);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"))
}

#[test]
fn every_recording_leads_to_the_truth() {
    let mut wrong = Vec::new();
    for program in programs::all() {
        let faults = program.faults(&analyzed(&program));
        if !faults.is_empty() {
            wrong.push(format!("{}: {}", program.name, faults.join("; ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn truth_is_not_met_by_the_evidence_of_another_job() {
    let asleep = programs::named("asleep");
    for other in ["other_collective", "crossed_groups", "slow_compute"] {
        assert!(!asleep.faults(&analyzed(&programs::named(other))).is_empty(), "{other}");
    }
    let healthy = programs::named("slow_compute");
    assert!(!healthy.faults(&analyzed(&asleep)).is_empty());
}
