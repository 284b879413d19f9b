//! Programs in C that tests compile and link with the agent's library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::artifact;
use super::pytorch_jobs::{launch, venv};

/// Source of the example in C.
pub(crate) const TRAINING: &str = "agent/capi/examples/training.c";

/// The library of the C API.
pub(crate) fn library() -> PathBuf {
    artifact("libddp_doctor.so")
}

/// A program in C, linked with the library.
pub(crate) struct Compiled {
    _scratch: TempDir,
    program: PathBuf,
}

impl Compiled {
    /// Path of the program.
    pub(crate) fn path(&self) -> &str {
        self.program.to_str().unwrap()
    }
}

/// Compiles a source of the repository.
pub(crate) fn compile(source: &str) -> Compiled {
    compile_with(source, &[])
}

fn compile_with(source: &str, flags: &[&str]) -> Compiled {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("program");
    let library = library();
    let folder = library.parent().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .arg(&program)
        .args(flags)
        .arg(root.join(source))
        .arg("-I")
        .arg(root.join("agent/capi/include"))
        .arg("-L")
        .arg(folder)
        .arg("-lddp_doctor")
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .status()
        .unwrap();
    assert!(compiled.success());
    Compiled { _scratch: scratch, program }
}

/// The example in C. Its ranks print checksums of their weights.
pub(crate) fn training() -> &'static str {
    static TRAINING_PROGRAM: OnceLock<Compiled> = OnceLock::new();
    TRAINING_PROGRAM.get_or_init(|| compile(TRAINING)).path()
}

/// A rank that makes the numbers of calls given by its arguments, each once the file `flood1` or `flood2` exists, and
/// exits once `stop` exists.
pub(crate) fn flood() -> &'static str {
    static FLOOD: OnceLock<Compiled> = OnceLock::new();
    FLOOD.get_or_init(|| compile("tests/support/programs/flood.c")).path()
}

/// Two ranks that make the number of calls given by the first argument. Then rank 1 exits and rank 0 waits for it; with
/// another argument, both exit.
pub(crate) fn rotate() -> &'static str {
    static ROTATE: OnceLock<Compiled> = OnceLock::new();
    ROTATE.get_or_init(|| compile_with("tests/support/programs/rotate.c", &["-pthread"])).path()
}

/// A rank of a job on several hosts, which sums a number over TCP.
pub(crate) fn sum() -> &'static str {
    static SUM: OnceLock<Compiled> = OnceLock::new();
    SUM.get_or_init(|| compile("tests/support/programs/sum.c")).path()
}

/// A program that executes a command without pidfds. Its first argument is the error number of the system calls.
pub(crate) fn without_pidfds() -> &'static str {
    static WITHOUT_PIDFDS: OnceLock<Compiled> = OnceLock::new();
    WITHOUT_PIDFDS.get_or_init(|| compile("tests/support/programs/without_pidfds.c")).path()
}

/// A library that sets the clock of the processes that preload it ahead, by `CLOCK_AHEAD` seconds.
pub(crate) fn clock() -> &'static str {
    static CLOCK: OnceLock<Compiled> = OnceLock::new();
    CLOCK
        .get_or_init(|| compile_with("tests/support/programs/clock.c", &["-shared", "-fPIC"]))
        .path()
}

/// Two ranks that train with PyTorch and DDP, and print checksums of their parameters; `None`
/// without PyTorch.
pub(crate) fn pytorch() -> Option<Vec<String>> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/programs/train.py");
    let mut command = launch(2, &program);
    command[0] = venv()?.join("bin/python");
    let text = |word: PathBuf| word.into_os_string().into_string().unwrap();
    // One thread for each rank makes the order of its sums the same in every run.
    let command = command.into_iter().map(text);
    Some(["env", "OMP_NUM_THREADS=1"].map(str::to_owned).into_iter().chain(command).collect())
}
