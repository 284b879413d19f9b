//! GPU memory held by NCCL is reported as it changes, and a destroyed communicator is never
//! queried: the double aborts a process that does.

use std::collections::BTreeMap;
use std::path::Path;

use ddp_doctor::evidence::journal::Reader as Journal;
use ddp_doctor_proto::v1::event::Kind;

use super::{library, program_source};
use crate::doubles::Doubles;
use crate::support::process::{Finished, program, run_to_end};

/// Runs `comm_memory.c` with two ranks. Returns the samples of each process, in MiB.
fn run(how: &str, environment: &[(&str, &str)]) -> Option<(Finished, Vec<Vec<u64>>)> {
    let doubles = Doubles::get()?;
    let source = program_source("comm_memory.c");
    let rank = doubles.compile(&source, "comm_memory", &[]);
    let scratch = tempfile::tempdir().unwrap();
    let mut run = program(scratch.path());
    run.args(["run", "--nccl", "always", "--run-dir", "kept", "--"])
        .args(doubles.launch(2, &rank))
        .arg(how)
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .envs(environment.iter().copied())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let told = told(&scratch.path().join("kept/journal.ddpj"));
    Some((finished, told))
}

/// Samples of NCCL's memory in a journal, by process, in MiB.
pub(super) fn told(journal: &Path) -> Vec<Vec<u64>> {
    let mut journal = Journal::open(journal).unwrap();
    let mut told: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    while let Some(report) = journal.read().unwrap() {
        for event in report.events {
            let Some(Kind::MemorySample(sample)) = event.kind else {
                continue;
            };
            if let Some(bytes) = sample.gpu_nccl {
                assert!(sample.device.is_some());
                let of_process = told.entry(sample.process).or_default();
                of_process.push(bytes >> 20);
            }
        }
    }
    told.into_values().collect()
}

pub(super) const ON: (&str, &str) = ("DDP_DOCTOR_GPU_MEMORY", "1");

#[test]
fn nccl_memory_is_reported_as_it_changes() {
    let Some((finished, told)) = run("steps", &[ON]) else {
        return;
    };
    assert_eq!(finished.status, Some(0), "{finished}");
    let expected = vec![4, 12, 16, 24, 28, 36, 24, 0];
    assert_eq!(told, [expected.clone(), expected], "{finished}");
}

#[test]
fn nccl_memory_is_not_queried_when_disabled() {
    for environment in [&[][..], &[ON, ("NCCL_DISABLE_MEM_MANAGER", "1")]] {
        let Some((finished, told)) = run("steps", environment) else {
            return;
        };
        assert_eq!(finished.status, Some(0), "{finished}");
        assert_eq!(told, [[0; 0]; 0], "{finished}");
    }
}

#[test]
fn aborted_communicator_is_not_queried() {
    let Some((finished, told)) = run("races", &[ON]) else {
        return;
    };
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(told.len(), 2, "{finished}");
}
