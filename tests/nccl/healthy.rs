//! Programs of `jobs/nccl` with which nothing is wrong: nothing is said of them. Those that are the twins of
//! a fault which is told are tested with it.

use std::fs;

use ddp_doctor_proto::report::Report;

use super::{COMPLETION, library, source};
use crate::doubles::Doubles;
use crate::pytorch::{silent, truth};
use crate::run::program;
use crate::support::process::run_to_end;

#[track_caller]
fn is_silent(name: &str, environment: &[(&str, &str)]) {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let source = source(name);
    let truth = truth(&fs::read_to_string(&source).unwrap(), " * ");
    let called = name.split('.').next().unwrap();
    let compiled = doubles.compile(&source, &format!("silent-{called}"), &[]);
    let scratch = tempfile::tempdir().unwrap();
    let mut run = program(scratch.path());
    run.args(["run", "--nccl", "always", "--report", "report.json"])
        .args(&truth.run_options)
        .arg("--")
        .args(doubles.launch(truth.nproc, &compiled))
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .envs(environment.iter().copied())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let report = fs::read(scratch.path().join("report.json")).unwrap();
    let report: Report = serde_json::from_slice(&report).unwrap();
    silent(name, &finished, &report);
    assert_eq!(report.evidence.layers, ["nccl"]);
}

#[test]
fn orders_and_groups_that_only_look_wrong() {
    is_silent("nothing_is_wrong.c", &[]);
    is_silent("nothing_is_wrong.c", &[COMPLETION]);
}

#[test]
fn memory_that_is_given_back() {
    is_silent("out_of_memory.c", &[]);
}

#[test]
fn a_pipeline_in_rust() {
    is_silent("pipeline.rs", &[]);
}
