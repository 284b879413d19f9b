//! The doubles in programs: their data is correct, and they block where NCCL does.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot continue has failed and may print why"
)]

#[path = "../../harness.rs"]
mod harness;
#[path = "../../programs.rs"]
mod programs;

mod jobs;
mod profiler;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::Doubles;

/// Runs ranks of a program that contains its own checks.
#[track_caller]
fn passes(name: &str, ranks: u32, environment: &[(&str, &str)]) {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let program = doubles.compile(&source, name, &[]);
    let words = doubles.launch(ranks, &program);
    let mut run = Command::new("timeout");
    run.arg("30").args(&words).envs(environment.iter().copied());
    let ended = run.env_remove("LD_PRELOAD").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{said}");
}

#[test]
fn collectives_compute_correct_data() {
    passes("data", 3, &[]);
}

#[test]
fn groups_are_launched_at_their_end() {
    passes("groups", 3, &[]);
}

#[test]
fn work_follows_the_order_of_streams() {
    passes("streams", 2, &[]);
}

#[test]
fn communicators_are_created_and_destroyed() {
    passes("communicators", 4, &[]);
}

#[test]
fn one_process_can_hold_all_ranks() {
    passes("one_process", 1, &[("CUDA_DOUBLE_MEMORY", "67108864")]);
}

#[test]
fn scripted_faults_take_effect() {
    passes("faults", 2, &[]);
}

/// Path of a library beside the launcher.
fn library(doubles: &Doubles, name: &str) -> PathBuf {
    let started = doubles.launch(1, Path::new(""));
    started[0].with_file_name(name)
}

fn listed(tool: &str, arguments: &[&str], library: &Path) -> String {
    let listed = Command::new(tool).args(arguments).arg(library).output().unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

#[test]
fn every_function_is_exported_under_both_names() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let library = library(doubles, "libnccl.so.2");
    let symbols = listed("nm", &["-D", "--defined-only"], &library);
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|it| it.split(' ').nth(2)).collect();
    let functions: Vec<_> = exported.iter().filter_map(|it| it.strip_prefix("nccl")).collect();
    // Those of NCCL 2.27, three collectives, two functions for growing, and the memory statistics.
    assert_eq!(functions.len(), 37 + 3 + 2 + 1, "{functions:?}");
    for function in &functions {
        assert!(exported.contains(format!("pnccl{function}").as_str()), "{function}");
    }
    assert_eq!(exported.len(), 2 * functions.len(), "{exported:?}");
    // Calls by public names go through relocations, so that a preloaded library can interpose them.
    let relocations = listed("readelf", &["--wide", "--relocs"], &library);
    for function in ["ncclBroadcast", "ncclGetUniqueId"] {
        let is_open = |line: &str| line.split_whitespace().any(|word| word == function);
        assert!(relocations.lines().any(is_open), "{function}\n{relocations}");
    }
}

#[test]
fn libraries_have_the_sonames_of_the_real_ones() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    for name in ["libnccl.so.2", "libcuda.so.1"] {
        let dynamic = listed("readelf", &["-d"], &library(doubles, name));
        let says = |line: &str| line.contains("SONAME") && line.contains(&format!("[{name}]"));
        assert!(dynamic.lines().any(says), "{dynamic}");
    }
}
