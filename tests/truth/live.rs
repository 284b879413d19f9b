//! Live runs: a program under `ddp-doctor run`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use tempfile::TempDir;

use crate::analysis::is_as_live;
use crate::check::Outcome;
use crate::doubles::Doubles;
use crate::program::{Backend, Case, Launcher, Variant};
use crate::programs;
use crate::support::artifact;
use crate::support::process::{program, run_to_end, run_to_end_within, without_own_variables};
use crate::support::pytorch_jobs::{jobs, launch, variant, variants, venv};
use crate::support::report::report_in;

/// A finished live run and its directory.
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) scratch: TempDir,
}

/// The family of the programs that run engines.
const ENGINES: &str = "engines";
/// Time limit for an engine, which may import for minutes.
const MAX_ENGINE: Duration = Duration::from_secs(600);

/// Reason why a case cannot run on this machine.
pub(crate) struct Unable(pub(crate) String);

impl Run {
    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.path().join("run")
    }
}

/// Runs a case under `ddp-doctor run`, and checks that `analyze` reproduces the report.
pub(crate) fn run(case: &Case) -> Result<Run, Unable> {
    let truth = &case.truth;
    let scratch = scratch(case);
    let mut command = prepared(case)?;
    command.current_dir(scratch.path());
    command.env("DDP_DOCTOR_TEST_STAMP", scratch.path().join("stamp"));
    let digests = std::env::var_os("DDP_DOCTOR_TEST_DIGESTS").is_some();
    if digests {
        command.env("DDP_DOCTOR_DIGEST_ABOVE", "0");
    }
    let finished = match case.program.family.as_str() {
        ENGINES => run_to_end_within(command, MAX_ENGINE),
        _ => run_to_end(command),
    };
    fs::write(scratch.path().join("output"), finished.to_string()).unwrap();
    if let Some(skipped) = finished.stdout.split("SKIPPED: ").nth(1) {
        let why = skipped.lines().next().unwrap_or_default();
        return Err(Unable(why.into()));
    }
    let report = report_in(&scratch.path().join("report.json"))
        .unwrap_or_else(|| panic!("{case}: no report\n{finished}"));
    // The journal has the records that digests replaced.
    if !digests {
        is_as_live(&scratch.path().join("run"));
    }
    if case.is_silent() && !truth.may_suspect {
        let stderr = finished.stderr.lines();
        let is_ours =
            |line: &&str| line.contains("ddp-doctor: ") || line.contains("ddp-doctor explain");
        let ours: Vec<&str> = stderr.filter(is_ours).collect();
        assert_eq!(ours.len(), 2, "{case}: {ours:#?}\n{finished}");
    }
    if case.program.family == ENGINES && case.variant == Variant::Healthy {
        has_same_results(case, &finished.stdout)?;
    }
    let text = finished.stderr;
    let outcome = Outcome { report, status: finished.status, text, added_lines: 0 };
    Ok(Run { outcome, scratch })
}

/// The command that runs a case under `ddp-doctor run`.
fn prepared(case: &Case) -> Result<Command, Unable> {
    let truth = &case.truth;
    let mut command = command(case)?;
    without_own_variables(&mut command);
    command.args(["run", "--run-dir", "run", "--report", "report.json"]);
    // A job that ends by itself gets the time to do so.
    let default = if truth.hang { "1" } else { "60" };
    let kill_after = truth.kill_after.as_deref().unwrap_or(default);
    command.args(["--on-hang", "kill", "--kill-after", kill_after]);
    if case.program.is_python() {
        python(case, &mut command)?;
    } else {
        compiled(case, &mut command)?;
    }
    command.envs(&truth.environment);
    command.env("OMP_NUM_THREADS", "1");
    Ok(command)
}

/// Fails unless a healthy engine prints the same results without `ddp-doctor`.
fn has_same_results(case: &Case, with: &str) -> Result<(), Unable> {
    let watched = prepared(case)?;
    let arguments: Vec<&OsStr> = watched.get_args().collect();
    let position = |text: &str| arguments.iter().position(|it| *it == text);
    let launch: Vec<&OsStr> = match position("--") {
        Some(separator) => arguments[separator + 1..].to_vec(),
        None => {
            let options = &arguments[position("--nproc-per-node").unwrap()..];
            [OsStr::new("torchrun")].into_iter().chain(options.iter().copied()).collect()
        }
    };
    let scratch = tempfile::tempdir().unwrap();
    let mut alone = Command::new("env");
    alone.args(launch).current_dir(scratch.path());
    for (name, value) in watched.get_envs() {
        match value {
            Some(value) => alone.env(name, value),
            None => alone.env_remove(name),
        };
    }
    let finished = run_to_end_within(alone, MAX_ENGINE);
    let results = |output: &str| {
        let lines =
            output.lines().filter_map(|line| Some(line.split_once("RESULT ")?.1.to_owned()));
        lines.collect::<BTreeSet<String>>()
    };
    assert!(!results(with).is_empty(), "{case}: no result\n{with}");
    assert_eq!(results(with), results(&finished.stdout), "{case}\n{finished}");
    Ok(())
}

/// The directory of a run, which is kept if `DDP_DOCTOR_TEST_KEEP` names a folder for it.
fn scratch(case: &Case) -> TempDir {
    let Some(folder) = std::env::var_os("DDP_DOCTOR_TEST_KEEP") else {
        return tempfile::tempdir().unwrap();
    };
    let mut builder = tempfile::Builder::new();
    builder.disable_cleanup(true);
    let name = case.to_string().replace("::", ".");
    builder.prefix(&name).tempdir_in(folder).unwrap()
}

/// A command for `ddp-doctor`, with a private `/dev/shm` if the case needs one.
fn command(case: &Case) -> Result<Command, Unable> {
    let program = env!("CARGO_BIN_EXE_ddp-doctor");
    let Some(size) = &case.truth.shared_memory else {
        return Ok(Command::new(program));
    };
    let with_mount = |program: &str| {
        let mount = format!("mount -t tmpfs -o size={size} tmpfs /dev/shm && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &mount, program]);
        command
    };
    let can_mount = with_mount("true").output().is_ok_and(|it| it.status.success());
    if can_mount {
        Ok(with_mount(program))
    } else {
        Err(Unable("no file system can be mounted here".into()))
    }
}

fn python(case: &Case, command: &mut Command) -> Result<(), Unable> {
    let venv = venv().ok_or_else(|| Unable("there is no environment with PyTorch".into()))?;
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", venv.join("bin").display()));
    let truth = &case.truth;
    command.args(&truth.run_options);
    if case.backend == Backend::Nccl {
        if !Path::new("/dev/nvidiactl").exists() {
            return Err(Unable("there is no GPU".into()));
        }
        command.env("LAUNCH_BACKEND", "nccl");
    }
    if case.program.family == "layers" {
        preload(case, command);
        command.env("DOUBLES", layers()?);
    }
    let program = match &case.scenario {
        // A program with scenarios contains both variants and selects one by an argument.
        Some(_) => case.program.path.clone(),
        None => variant(&format!("{}/{}.py", case.variant.name(), case.program.name)),
    };
    match truth.launcher {
        Launcher::Fork => command.arg("--").args(launch(truth.nproc, &program)),
        Launcher::Python => command.args(["--", "python"]).arg(program),
        Launcher::Torchrun | Launcher::Doubles => {
            let ranks = truth.nproc.to_string();
            command.args(["--nproc-per-node", &ranks]).arg(program)
        }
    };
    if let Some(scenario) = &case.scenario {
        command.args([scenario.as_str(), case.variant.name()]);
    }
    Ok(())
}

/// A program in C or Rust over the doubles of NCCL and the CUDA driver.
fn compiled(case: &Case, command: &mut Command) -> Result<(), Unable> {
    let doubles = doubles()?;
    let source = &case.program.path;
    // A program with scenarios contains both variants and selects one by an argument.
    let is_faulty = case.variant == Variant::Faulty && case.scenario.is_none();
    let (name, options) = programs::variant(source, is_faulty);
    let rank = doubles.compile(source, &format!("truth-{name}"), options);
    let truth = &case.truth;
    preload(case, command);
    command.args(&truth.run_options).arg("--");
    command.args(doubles.launch(truth.nproc, &rank));
    if let Some(scenario) = &case.scenario {
        command.args([scenario.as_str(), case.variant.name()]);
    }
    Ok(())
}

fn doubles() -> Result<&'static Doubles, Unable> {
    Doubles::get().ok_or_else(|| Unable("there is no C compiler".into()))
}

/// Has the preloaded library record NCCL calls.
fn preload(case: &Case, command: &mut Command) {
    command.args(["--nccl", case.truth.nccl.as_deref().unwrap_or("always")]);
    command.env("DDP_DOCTOR_NCCL_LIBRARY", artifact("libddp_doctor_nccl.so"));
    command.env_remove("LD_PRELOAD");
}

/// Directory of the doubles, after compiling the library that programs of `jobs/layers` load.
fn layers() -> Result<&'static Path, Unable> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let doubles = doubles()?;
    let folder = FOLDER.get_or_init(|| {
        let source = jobs().join("layers/later.c");
        let library = doubles.compile(&source, "later.so", &["-shared", "-fPIC"]);
        library.parent().unwrap().to_owned()
    });
    Ok(folder)
}

/// Fails unless the first screen of the dashboard shows the leading finding on a small terminal.
pub(crate) fn is_shown_first(case: &Case, run: &Run) {
    let mut watch = program(run.scratch.path());
    watch.args(["watch", "--once", "run"]);
    watch.env("COLUMNS", "80").env("LINES", "24");
    let shown = run_to_end(watch);
    let finding = &run.outcome.report.findings[0];
    let words =
        |text: &str| text.to_lowercase().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let summary: Vec<String> = words(&finding.summary).into_iter().take(8).collect();
    assert!(
        words(&shown.stdout).join(" ").contains(&summary.join(" "))
            && shown.stdout.contains(&finding.code.to_string())
            && shown.stdout.lines().count() <= 24,
        "{case}: the first screen does not show {summary:?}\n{shown}"
    );
}

/// Prints the time from the program's stamp of its decisive call to the detection of the fault.
pub(crate) fn print_latency(case: &Case, run: &Run) {
    if case.truth.decisive.is_none() {
        return;
    }
    let stamps = (0..case.truth.nproc).filter_map(|rank| {
        let text = fs::read_to_string(run.scratch.path().join(format!("stamp.{rank}"))).ok()?;
        text.trim().parse().ok().map(Timestamp)
    });
    let decisive = stamps.max().unwrap_or_else(|| panic!("{case} left no stamp"));
    let finding = &run.outcome.report.findings[0];
    println!(
        "latency {case}: {} {} ms after the decisive call ({} ms by its own account)",
        finding.code,
        finding.detected_at.since(decisive).as_millis(),
        finding.latency_ms
    );
}

/// Versions of the software that live runs use, for a recording.
pub(crate) fn versions() -> &'static str {
    static VERSIONS: OnceLock<String> = OnceLock::new();
    VERSIONS.get_or_init(|| {
        let ours = format!("ddp-doctor {}", env!("CARGO_PKG_VERSION"));
        let Some(venv) = venv() else { return ours };
        let script = "import platform, torch; print('Python', platform.python_version(), 'PyTorch', torch.__version__)";
        let output = Command::new(venv.join("bin/python")).args(["-c", script]).output();
        let python = String::from_utf8(output.unwrap().stdout).unwrap();
        format!("{ours} {}", python.trim())
    })
}

/// Texts specific to this machine, each with its replacement in a recording.
pub(crate) fn hidden(run: &Run) -> Vec<(String, &'static str)> {
    let shown = |path: &Path| path.display().to_string();
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut hidden = vec![
        (shown(&run.scratch.path().canonicalize().unwrap()), "/scratch"),
        (shown(run.scratch.path()), "/scratch"),
        (shown(&variants()), "/jobs"),
        (shown(&tmp.join("doubles")), "/doubles"),
        (shown(&jobs()), "/jobs"),
        (env!("CARGO_MANIFEST_DIR").into(), "/ddp-doctor"),
    ];
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    hidden.push((boot.trim().into(), "00000000-0000-0000-0000-000000000000"));
    if let Some(venv) = venv() {
        hidden.push((shown(venv), "/venv"));
        // Mapped files have the path that a link to another environment leads to.
        if let Ok(base) = venv.join("pytorch").canonicalize() {
            hidden.push((shown(&base), "/venv/pytorch"));
        }
        let script = "import sys, socket; print(sys.base_prefix, socket.gethostname())";
        let output = Command::new(venv.join("bin/python")).args(["-c", script]).output();
        let said = String::from_utf8(output.unwrap().stdout).unwrap();
        let (prefix, host) = said.trim().split_once(' ').unwrap();
        hidden.push((prefix.into(), "/python"));
        hidden.push((host.into(), "node0"));
    }
    hidden
}
