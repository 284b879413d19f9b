//! Real NCCL libraries without a GPU: their exports, their results, and what is recorded of them.
//! One comes with PyTorch; `make nccl` names others in `DDP_DOCTOR_TEST_NCCL`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ddp_doctor::node::sample::environment::has_nvidia_driver;
use ddp_doctor_proto::{Op, RecordKind, v1};

use super::{library, program_source, records};
use crate::doubles::Doubles;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::pytorch_jobs::venv;

/// Libraries to test with; empty if there is none.
pub(super) fn libraries() -> Vec<PathBuf> {
    let paths = std::env::var_os("DDP_DOCTOR_TEST_NCCL");
    let named = paths.iter().flat_map(std::env::split_paths);
    let of_pytorch = venv().into_iter().flat_map(|venv| {
        let versions = fs::read_dir(venv.join("lib")).unwrap();
        versions.map(|it| it.unwrap().path().join("site-packages/nvidia/nccl/lib/libnccl.so.2"))
    });
    let found: Vec<PathBuf> = of_pytorch.chain(named).filter(|it| it.is_file()).collect();
    if found.is_empty() {
        eprintln!("skipped: there is no libnccl.so.2; `scripts/nccl 2.27.7` fetches one");
    }
    found
}

/// Numbers of a version such as "2.27.5", or of a prefix such as "2.27".
type Version = Vec<u32>;

fn version(text: &str) -> Version {
    text.split('.').map(|it| it.parse().unwrap()).collect()
}

/// By function: the version of NCCL that introduced it, and whether it is hooked.
fn table() -> BTreeMap<&'static str, (Version, bool)> {
    const REASONS: [&str; 8] =
        ["query", "polled", "identity", "operator", "parameter", "process", "kernel", "internal"];
    let text = include_str!("../../agent/nccl/functions.txt");
    let lines = text.lines().filter(|it| !it.is_empty() && !it.starts_with('#'));
    let entries = lines.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, since, what] = words[..] else {
            panic!("{line:?}: expected a name, a version, and hooked or a reason");
        };
        assert!(what == "hooked" || REASONS.contains(&what), "{line:?}");
        (name, (version(since), what == "hooked"))
    });
    let names: Vec<_> = entries.collect();
    assert!(names.is_sorted(), "by name");
    names.into_iter().collect()
}

/// The functions `nccl…` that a library exports, without profiler plugins.
fn exports(library: &Path) -> BTreeSet<String> {
    let names = exported(library, "nccl").into_iter();
    names.filter(|name| !name.starts_with("ncclProfiler_v")).collect()
}

/// Exported symbols of a library that start with a prefix.
pub(super) fn exported(library: &Path, prefix: &str) -> BTreeSet<String> {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    assert!(listed.status.success(), "{}", library.display());
    let text = String::from_utf8(listed.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').nth(2));
    let begins_so = |name: &&str| name.starts_with(prefix);
    names.filter(begins_so).map(str::to_owned).collect()
}

/// `tests/nccl/programs/call_results.c`, linked with the `libnccl.so.2` that the loader finds.
pub(super) fn asking() -> Option<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let doubles = Doubles::get()?;
    let program = PROGRAM.get_or_init(|| {
        doubles.compile(&program_source("call_results.c"), "call_results", &LINKED)
    });
    Some(program)
}

/// Options that leave out the driver's double and let `LD_LIBRARY_PATH` select the NCCL.
const LINKED: [&str; 2] = ["-Wl,--as-needed", "-Wl,--enable-new-dtags"];

/// Selects an NCCL for a command and removes settings of the machine that could change its results.
pub(super) fn with<'c>(command: &'c mut Command, nccl: &Path) -> &'c mut Command {
    command
        .env("LD_LIBRARY_PATH", nccl.parent().unwrap())
        .env("NCCL_SOCKET_IFNAME", "lo")
        .env_remove("NCCL_DEBUG")
        .env_remove("LD_PRELOAD")
}

/// Standard output of a program, with or without a preloaded library.
pub(super) fn answers(
    program: &Path,
    arguments: &[&Path],
    nccl: &Path,
    preloaded: Option<&Path>,
) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    with(&mut command, nccl);
    if let Some(library) = preloaded {
        command.env("LD_PRELOAD", library);
    }
    let ended = run_to_end(command);
    assert_eq!(ended.status, Some(0), "{}: {ended}", nccl.display());
    ended.stdout
}

pub(super) fn version_of(nccl: &Path) -> Option<Version> {
    let said = answers(asking()?, &[Path::new("none")], nccl, None);
    let line = said.lines().find_map(|line| line.strip_prefix("version "));
    let code: u32 = line.unwrap().parse().unwrap();
    Some(vec![code / 10_000, code / 100 % 100, code % 100])
}

fn written(version: &[u32]) -> String {
    let numbers: Vec<String> = version.iter().map(u32::to_string).collect();
    numbers.join(".")
}

#[test]
fn every_nccl_function_is_hooked_or_exempted() {
    let table = table();
    let hooked: BTreeSet<String> = table
        .iter()
        .filter(|(_, (_, hooked))| *hooked)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(exports(&library()), hooked);
    for nccl in libraries() {
        let Some(version) = version_of(&nccl) else {
            return;
        };
        let expected: BTreeSet<String> = table
            .iter()
            .filter(|(_, (since, _))| *since <= version)
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let found = exports(&nccl);
        let unknown: Vec<_> = found.difference(&expected).collect();
        let missing: Vec<_> = expected.difference(&found).collect();
        let version = written(&version);
        assert!(
            unknown.is_empty(),
            "{version} exports functions that are not in the table: {unknown:?}"
        );
        assert!(missing.is_empty(), "{version} lacks functions that are in the table: {missing:?}");
        println!("NCCL {version}: {} functions", found.len());
    }
}

/// Runs a program under `run --nccl always`; returns its result and its records.
fn seen(command: &[&Path], nccl: &Path) -> (Finished, Vec<v1::Record>) {
    seen_by("always", command, nccl)
}

/// Like [`seen`], with a value for `run --nccl`.
pub(super) fn seen_by(how: &str, command: &[&Path], nccl: &Path) -> (Finished, Vec<v1::Record>) {
    let dir = tempfile::tempdir().unwrap();
    let mut run = program(dir.path());
    run.args(["run", "--nccl", how, "--run-dir", "kept", "--report", "report.json", "--"])
        .args(command)
        .env("DDP_DOCTOR_NCCL_LIBRARY", library());
    with(&mut run, nccl);
    let finished = run_to_end(run);
    assert_eq!(finished.status, Some(0), "{finished}");
    let records = records(&dir.path().join("kept/journal.ddpj"));
    (finished, records.into_iter().map(|(_, record)| record).collect())
}

fn texts(records: &[v1::Record], kind: RecordKind) -> Vec<&str> {
    let of_kind = |record: &&v1::Record| record.kind == i32::from(kind.number());
    records.iter().filter(of_kind).map(|record| &*record.text).collect()
}

/// Checks the records of a communicator whose creation failed without a GPU.
#[track_caller]
pub(super) fn is_refused(records: &[v1::Record], version: &[u32]) {
    let is_creation = |record: &&v1::Record| {
        record.kind == i32::from(RecordKind::Issued.number())
            && record.op == i32::from(Op::NewGroup.number())
    };
    let creations: Vec<_> = records.iter().filter(is_creation).collect();
    assert!(!creations.is_empty() && creations.iter().all(|it| it.text.starts_with("0x")));
    let exceptions = texts(records, RecordKind::Exception);
    let told =
        |text: &&&str| text.starts_with("NCCL: ncclUnhandledCudaError from ncclCommInitRank");
    assert!(exceptions.iter().any(|it| told(&it)), "{exceptions:?}");
    let settings = texts(records, RecordKind::Setting);
    assert!(settings.contains(&&*format!("nccl={}", written(version))), "{settings:?}");
    // The unique id contains the address of its root, which `NCCL_SOCKET_IFNAME` selects.
    assert!(settings.contains(&"init.address=127.0.0.1"), "{settings:?}");
    // Every call has returned.
    let of_kind = |kind: RecordKind| {
        let it = records.iter().filter(move |it| it.kind == i32::from(kind.number()));
        it.count()
    };
    assert_eq!(of_kind(RecordKind::Issued), of_kind(RecordKind::Returned), "{records:#?}");
}

#[test]
fn preloading_changes_no_result() {
    for nccl in libraries() {
        let Some(program) = asking() else { return };
        let without = answers(program, &[], &nccl, None);
        assert!(without.contains("comm argument is NULL"), "{without}");
        assert_eq!(answers(program, &[], &nccl, Some(&library())), without, "{}", nccl.display());
    }
}

#[test]
fn failed_communicator_creation_is_recorded() {
    for nccl in libraries() {
        let Some(program) = asking() else { return };
        let version = version_of(&nccl).unwrap();
        let (finished, records) = seen(&[program], &nccl);
        if finished.stdout.contains("\na communicator\n") {
            eprintln!("skipped: this machine has a GPU");
            return;
        }
        is_refused(&records, &version);
    }
}

/// PyTorch loads NCCL in this way: as a dependency of a library that was itself loaded with
/// `dlopen`.
#[test]
fn nccl_loaded_by_one_library_is_found() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let source = super::source("host.c");
    let host = doubles.compile(&source, "host-of-real", &["-Wl,--as-needed"]);
    let shared = ["-shared", "-fPIC", "-Dmain=job_main", LINKED[0], LINKED[1]];
    let asking = doubles.compile(&program_source("call_results.c"), "call_results.so", &shared);
    for nccl in libraries() {
        let version = version_of(&nccl).unwrap();
        let without = answers(&host, &[&asking], &nccl, None);
        assert_eq!(answers(&host, &[&asking], &nccl, Some(&library())), without);
        let (finished, records) = seen(&[&host, &asking], &nccl);
        if finished.stdout.contains("\na communicator\n") {
            eprintln!("skipped: this machine has a GPU");
            return;
        }
        is_refused(&records, &version);
    }
}

/// Of PyTorch's calls, only those that create a communicator reach NCCL without a GPU.
#[test]
fn nccl_calls_of_pytorch_are_recorded() {
    let Some(venv) = venv() else { return };
    let Some(nccl) = libraries().into_iter().next() else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let helper = scratch.path().join("helper.so");
    let compiler = Command::new("g++")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&helper)
        .arg(program_source("pytorch.cpp"))
        .output();
    let Ok(compiled) = compiler else {
        eprintln!("skipped: there is no g++");
        return;
    };
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    let python = venv.join("bin/python");
    let (finished, records) = seen(&[&python, &program_source("pytorch.py"), &helper], &nccl);
    if finished.stdout.contains("\na communicator\n") {
        eprintln!("skipped: this machine has a GPU");
        return;
    }
    let Some(version) = version_of(&nccl) else {
        return;
    };
    is_refused(&records, &version);
    assert!(finished.stdout.contains(&format!("version {version:?}")), "{finished}");
}

#[test]
fn several_nccl_libraries_are_distinguished() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let program = doubles.compile(&program_source("second_library.c"), "second_library", &[]);
    let folder = doubles.launch(1, Path::new(""))[0].parent().unwrap().to_owned();
    for nccl in libraries() {
        let version = version_of(&nccl).unwrap();
        // The program is linked with the double, and loads the other NCCL by its path.
        let (_, records) = seen(&[&program, &nccl], &folder.join("libnccl.so.2"));
        let settings = texts(&records, RecordKind::Setting);
        assert!(settings.contains(&"nccl=2.29.7"), "{settings:?}");
        let both: Vec<&str> = settings
            .iter()
            .find_map(|it| it.strip_prefix("nccl libraries="))
            .unwrap()
            .split(", ")
            .collect();
        assert_eq!(both.len(), 2, "{settings:?}");
        assert!(both[0].starts_with("2.29.7 /"), "{both:?}");
        assert_eq!(both[1], format!("{} {}", written(&version), nccl.display()));
    }
}

/// A program can be newer than its NCCL.
#[test]
fn missing_nccl_function_returns_an_error() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let options = ["-Wl,--as-needed", "-ldl"];
    let program =
        doubles.compile(&program_source("missing_functions.c"), "missing_functions", &options);
    let folder = doubles.launch(1, Path::new(""))[0].parent().unwrap().to_owned();
    let (finished, _) = seen(&[&program], &folder.join("libnccl.so.2"));
    assert_eq!(finished.stdout, "3 3\n0\n", "{finished}");
}

/// `make gpu` on a machine without a GPU.
#[test]
fn gpu_tests_are_skipped_without_a_gpu() {
    let Some(venv) = venv() else { return };
    if has_nvidia_driver() {
        return;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/run.py");
    let mut command = Command::new(venv.join("bin/python"));
    command.arg(tests);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(finished.stdout, "skipped: this machine has no NVIDIA GPU\n");
}
