//! Programs that load NCCL by its name and look its functions up there, traced by a library with
//! the same soname, which forwards every call to NCCL.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_doctor_proto::report::{Report, Verdict};

use super::real::{answers, asking, exported, is_refused, libraries, seen_by, version_of, with};
use super::rust::found_by_cudarc;
use super::{library, program_source};
use crate::doubles::Doubles;
use crate::support::artifact;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::pytorch_jobs::venv;
use crate::support::report::{initiating, read_report};

/// The library with NCCL's soname, which `run` finds beside the other one.
pub(crate) fn named() -> PathBuf {
    artifact("libddp_doctor_nccl_soname.so")
}

/// Runs the example `cudarc`, which does not use the agent.
fn by_cudarc(fault: &str) -> Option<(Finished, Report)> {
    let doubles = Doubles::get()?;
    let libraries = found_by_cudarc(doubles);
    let example = artifact("examples/cudarc");
    let dir = tempfile::tempdir().unwrap();
    let mut run = program(dir.path());
    run.args(["run", "--nccl", "soname", "--run-dir", "kept"])
        .args(["--on-hang", "kill", "--kill-after", "0.5", "--"])
        .args(doubles.launch(3, &example))
        .arg(fault)
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env("LD_LIBRARY_PATH", libraries.path())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let report = read_report(&dir.path().join("kept/report.json"));
    assert!(!dir.path().join("kept/nccl").exists());
    Some((finished, report))
}

#[test]
fn calls_through_cudarc_are_recorded() {
    let Some((finished, report)) = by_cudarc("") else {
        return;
    };
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(report.findings, [], "{report:#?}");
    assert_eq!(report.verdict, Verdict::Healthy);
    assert_eq!(report.evidence.layers, ["nccl"]);
    let (finished, report) = by_cudarc("count").unwrap();
    assert_eq!(initiating(&report), ("DD104", &[1][..]), "{finished}");
    assert_eq!(finished.status, Some(75), "{finished}");
}

#[test]
fn every_nccl_function_is_exported() {
    let ours = exported(&named(), "nccl");
    let second = exported(&named(), "pnccl");
    for nccl in libraries() {
        let missing = |prefix, ours: &BTreeSet<String>| -> Vec<String> {
            let theirs = exported(&nccl, prefix);
            theirs.difference(ours).cloned().collect()
        };
        assert_eq!(missing("nccl", &ours), [""; 0], "{}", nccl.display());
        assert_eq!(missing("pnccl", &second), [""; 0], "{}", nccl.display());
    }
}

/// A program that is linked with NCCL finds it by its name, in `LD_LIBRARY_PATH`.
#[test]
fn library_named_like_nccl_changes_no_result() {
    for nccl in libraries() {
        let Some(program) = asking() else { return };
        let without = answers(program, &[], &nccl, None);
        let with = answers(program, &[], &nccl, Some(&named()));
        assert_eq!(with, without, "{}", nccl.display());
    }
}

/// Only the run path of PyTorch's library leads to its NCCL; `ctypes` gets the preloaded library,
/// which has to find it.
#[test]
fn nccl_of_pytorch_is_found_through_its_library() {
    let Some(venv) = venv() else { return };
    let Some(nccl) = libraries().into_iter().next() else {
        return;
    };
    const ASKS: &str = "import ctypes, torch\n\
        nccl, version = ctypes.CDLL('libnccl.so.2'), ctypes.c_int()\n\
        assert nccl.ncclGetVersion(ctypes.byref(version)) == 0\n\
        nccl.ncclGetErrorString.restype = ctypes.c_char_p\n\
        print(version.value, nccl.ncclGetErrorString(4).decode())\n\
        print(*{it.split()[-1] for it in open('/proc/self/maps') if 'libnccl.so' in it})";
    let ask = |preload: Option<&Path>| {
        let mut python = Command::new(venv.join("bin/python"));
        python.args(["-c", ASKS]);
        python.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
        if let Some(library) = preload {
            python.env("LD_PRELOAD", library);
        }
        let ended = run_to_end(python);
        assert_eq!(ended.status, Some(0), "{ended}");
        ended.stdout
    };
    let without = ask(None);
    assert!(without.contains(nccl.to_str().unwrap()), "{without}");
    assert_eq!(ask(Some(&named())), without);
}

/// A program linked with NCCL, whose communicator cannot be created without a GPU.
#[test]
fn linked_program_is_traced() {
    for nccl in libraries() {
        let Some(program) = asking() else { return };
        let version = version_of(&nccl).unwrap();
        let (finished, records) = seen_by("soname", &[program], &nccl);
        if finished.stdout.contains("\na communicator\n") {
            eprintln!("skipped: this machine has a GPU");
            return;
        }
        is_refused(&records, &version);
    }
}

/// Without an NCCL, calls return an error and the program continues.
#[test]
fn missing_nccl_returns_an_error() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let source = program_source("missing_functions.c");
    let options = ["-Wl,--disable-new-dtags", "-Wl,-rpath,/nonexistent", "-ldl"];
    let compiled = doubles.compile(&source, "missing_nccl", &options);
    let nowhere = tempfile::tempdir().unwrap();
    // A copy elsewhere does not find the doubles through its run path.
    let alone = nowhere.path().join("missing_nccl");
    fs::copy(&compiled, &alone).unwrap();
    let mut command = Command::new(&alone);
    with(&mut command, &nowhere.path().join("libnccl.so.2")).env("LD_PRELOAD", named());
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert!(finished.stdout.starts_with("3 3\n"), "{finished}");
}
