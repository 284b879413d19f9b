//! Programs that load NCCL by its name and look its functions up there: seen by the library that has that
//! name, too, which hands on whatever NCCL has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_doctor_proto::report::{Report, Verdict};

use super::library;
use super::real::{answers, asking, exported, is_refused, libraries, seen_by, version_of, with};
use super::rust::found_by_cudarc;
use crate::doubles::Doubles;
use crate::support::artifact;
use crate::support::jobs::venv;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::report::initiating;

/// The library under NCCL's name. It is looked for beside the other one.
pub(crate) fn named() -> PathBuf {
    artifact("libddp_doctor_nccl_soname.so")
}

/// The example, which knows nothing of us.
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
    let report = fs::read(dir.path().join("kept/report.json")).unwrap();
    assert!(!dir.path().join("kept/boxes/nccl").exists());
    Some((finished, serde_json::from_slice(&report).unwrap()))
}

#[test]
fn a_program_in_rust_that_loads_nccl_by_cudarc() {
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
fn whatever_nccl_has_is_there() {
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

/// As a program that is linked with NCCL gets it: by the name, and from `LD_LIBRARY_PATH`.
#[test]
fn whoever_has_its_name_changes_no_answer() {
    for nccl in libraries() {
        let Some(program) = asking() else { return };
        let without = answers(program, &[], &nccl, None);
        let with = answers(program, &[], &nccl, Some(&named()));
        assert_eq!(with, without, "{}", nccl.display());
    }
}

/// PyTorch's library says where its NCCL is, and nobody else does; what Python asks for by name is ours.
#[test]
fn the_one_of_pytorchs_package_is_found_by_what_its_library_says() {
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
        python
            .env_remove("LD_PRELOAD")
            .env_remove("LD_LIBRARY_PATH");
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

/// A communicator that cannot be made without a GPU, asked for by a program that is linked with NCCL.
#[test]
fn who_is_linked_is_seen_as_well() {
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

/// Nothing of NCCL is there: that is said, and nothing ends.
#[test]
fn without_any_nccl_there_is_an_error() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nccl/lacking.c");
    let options = ["-Wl,--disable-new-dtags", "-Wl,-rpath,/nonexistent", "-ldl"];
    let compiled = doubles.compile(&source, "lacking-nccl", &options);
    let nowhere = tempfile::tempdir().unwrap();
    // Without the folder of the doubles, which its own search path names.
    let alone = nowhere.path().join("lacking");
    fs::copy(&compiled, &alone).unwrap();
    let mut command = Command::new(&alone);
    with(&mut command, &nowhere.path().join("libnccl.so.2")).env("LD_PRELOAD", named());
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert!(finished.stdout.starts_with("3 3\n"), "{finished}");
}
