//! `pip install agent/python` in a fresh environment, with nothing else of ddp-doctor installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ddp_doctor::node::sample::environment::has_nvidia_driver;
use ddp_doctor_proto::report::Verdict;
use tempfile::TempDir;

use crate::doubles::Doubles;
use crate::nccl;
use crate::support::artifact;
use crate::support::compiled_programs::library;
use crate::support::coordinator::Coordinator;
use crate::support::process::{program, run_to_end};
use crate::support::pytorch_jobs::{launch, variant, venv};
use crate::support::report::{initiating, read_report};

/// A fresh Python environment with the package installed.
struct Installed {
    folder: TempDir,
}

impl Installed {
    /// Installs the files that cargo built for these tests. PyTorch is imported from the
    /// environment `pytorch`.
    fn new(pytorch: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fresh = folder.path().join("fresh");
        let run = |command: &mut Command| {
            for (name, _) in std::env::vars_os() {
                let name = name.to_string_lossy().into_owned();
                if name.starts_with("DDP_DOCTOR") || name.starts_with("PYTHON") {
                    command.env_remove(name);
                }
            }
            let done = command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.status.success(), "{command:?}\n{said}");
            String::from_utf8_lossy(&done.stdout).trim().to_owned()
        };
        let python = pytorch.join("bin/python");
        let venv = ["-m", "venv", "--without-pip"];
        run(Command::new(&python).args(venv).arg(&fresh));
        let where_from = "from importlib.util import find_spec; print(find_spec('torch').submodule_search_locations[0] + '/..')";
        let lender = run(Command::new(&python).args(["-c", where_from]));
        let where_to = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let borrower = run(Command::new(fresh.join("bin/python")).args(["-c", where_to]));
        fs::write(Path::new(&borrower).join("lent.pth"), lender + "\n").unwrap();

        let built = folder.path().join("built");
        fs::create_dir(&built).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_ddp-doctor"));
        let extension = artifact("libddp_doctor_python.so");
        let libraries = [library(), extension, nccl::library(), nccl::named()];
        for file in libraries.into_iter().chain([program.into()]) {
            let link = built.join(file.file_name().unwrap());
            std::os::unix::fs::symlink(file, link).unwrap();
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("agent/python");
        run(Command::new(&python)
            .args(["-m", "pip", "--python"])
            .arg(fresh.join("bin/python"))
            // Nothing is downloaded: the build tools are installed.
            .args(["install", "--no-index", "--no-deps", "--no-build-isolation"])
            .arg(source)
            .env("DDP_DOCTOR_BUILT", &built));
        Self { folder }
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.folder.path().join("fresh/bin").join(name)
    }

    /// A program of this environment, without ddp-doctor's variables or PYTHONPATH.
    fn command(&self, name: &str) -> Command {
        let clean = program(self.folder.path());
        let mut command = Command::new(self.bin(name));
        for (name, _) in clean.get_envs() {
            command.env_remove(name);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.bin("");
        command
            .current_dir(self.folder.path())
            .env_remove("PYTHONPATH")
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("OMP_NUM_THREADS", "1");
        command
    }
}

fn torchrun(program: &str) -> Vec<String> {
    let words =
        "-m torch.distributed.run --standalone --nproc-per-node 2".split(' ').map(str::to_owned);
    words.chain([variant(program).display().to_string()]).collect()
}

/// The words after `python` that start two ranks without torchrun.
fn forked(program: &str) -> Vec<String> {
    let command = launch(2, &variant(program));
    let words = command.iter().skip(1);
    words.map(|word| word.display().to_string()).collect()
}

#[test]
fn program_in_a_fresh_environment_is_captured() {
    let Some(pytorch) = venv() else { return };
    let installed = Installed::new(pytorch);

    // The package is importable, inactive without a coordinator, and silent.
    let said = "import sys; print('ddp_doctor' in sys.modules); import ddp_doctor; print(ddp_doctor.__file__)";
    let done = installed.command("python").args(["-c", said]).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.starts_with("False\n"), "{text}");
    assert!(text.contains("/fresh/lib/"), "{text}");
    assert!(done.stderr.is_empty(), "{done:?}");

    // Without `run`, with a coordinator: a healthy job and its faulty twin.
    let coordinator = Coordinator::start();
    let start = |job: &str, words: Vec<String>| {
        let mut command = installed.command("python");
        command
            .args(words)
            .env("DDP_DOCTOR_JOB", job)
            .env("DDP_DOCTOR_COORDINATOR", coordinator.address())
            .env("DDP_DOCTOR_BOX_DIR", installed.folder.path().join(job));
        command
    };
    let healthy = run_to_end(start("healthy", torchrun("healthy/root_mismatch.py")));
    assert_eq!(healthy.status, Some(0), "{healthy}");
    assert!(!healthy.stderr.contains("ddp-doctor"), "{healthy}");
    let report = coordinator.until("healthy", |report| report.job.ended_at.is_some());
    assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
    assert_eq!(report.ranks.len(), 2, "{report:#?}");
    assert!(report.findings.is_empty(), "{report:#?}");

    let mut command = start("faulty", forked("faulty/root_mismatch.py"));
    let mut faulty = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let report = coordinator.until("faulty", |report| !report.findings.is_empty());
    assert_eq!(initiating(&report), ("DD107", &[0, 1][..]));
    let pid = faulty.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    faulty.wait().unwrap();
    let report = coordinator.until("faulty", |report| report.job.ended_at.is_some());
    assert_eq!(initiating(&report), ("DD107", &[0, 1][..]));

    // Under `run`, started by its script and as a module.
    let run = "run --quiet --report report.json --on-hang kill --kill-after 1 -- python";
    for front in [vec!["ddp-doctor"], vec!["python", "-m", "ddp_doctor"]] {
        let mut command = installed.command(front[0]);
        command.args(&front[1..]).args(run.split(' ')).args(forked("faulty/root_mismatch.py"));
        let finished = run_to_end(command);
        assert_eq!(finished.status, Some(75), "{finished}");
        let report = read_report(&installed.folder.path().join("report.json"));
        assert_eq!(initiating(&report), ("DD107", &[0, 1][..]));
    }

    nccl_calls_are_traced(&installed);
}

/// Checks that the libraries in the package trace programs that call NCCL.
fn nccl_calls_are_traced(installed: &Installed) {
    let (Some(doubles), Some(job)) = (Doubles::get(), nccl::linked()) else {
        return;
    };
    let run = |words: &str| {
        let mut command = installed.command("ddp-doctor");
        command.arg("run").args(words.split(' ')).arg("--");
        command.env_remove("LD_PRELOAD");
        command
    };
    let mut faulty =
        run("--quiet --nccl always --report report.json --on-hang kill --kill-after 0.5");
    faulty.args(doubles.launch(3, &job[0])).args(["op", "faulty"]);
    let finished = run_to_end(faulty);
    let report = read_report(&installed.folder.path().join("report.json"));
    assert_eq!(initiating(&report), ("DD103", &[1][..]), "{finished}");
    assert_eq!(report.evidence.layers, ["nccl"]);

    let mut named = run("--nccl soname");
    named.args(["sh", "-c", "echo $LD_PRELOAD"]);
    let finished = run_to_end(named);
    let said = finished.stdout.trim();
    let is_loaded = said.ends_with("/ddp_doctor/libddp_doctor_nccl_soname.so");
    assert!(is_loaded, "{finished}");

    // `auto` loads the library where the node has a driver; otherwise it is silent.
    let mut auto = run("--nccl auto");
    auto.args(["sh", "-c", "echo $LD_PRELOAD"]);
    let finished = run_to_end(auto);
    let said = finished.stdout.trim();
    let is_loaded = said.ends_with("/ddp_doctor/libddp_doctor_nccl.so");
    assert_eq!(is_loaded, has_nvidia_driver(), "{finished}");
    assert!(is_loaded || said.is_empty(), "{finished}");
    assert!(!finished.stderr.contains("NCCL calls"), "{finished}");
}

#[test]
fn missing_build_requirement_is_named() {
    let Some(pytorch) = venv() else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("agent/python");
    let nothing = tempfile::tempdir().unwrap();
    let wheel = |changes: &[(&str, &str)]| {
        let mut pip = Command::new(pytorch.join("bin/python"));
        pip.args(["-m", "pip", "wheel", "--no-index", "--no-deps"])
            .args(["--no-build-isolation", "--wheel-dir"])
            .arg(nothing.path().join("wheels"))
            .arg(&source)
            .env_remove("CARGO")
            .envs(changes.iter().copied());
        let finished = run_to_end(pip);
        assert_eq!(finished.status, Some(1), "{finished}");
        finished.stdout + &finished.stderr
    };
    let said = wheel(&[("PATH", "/no/such/folder"), ("DDP_DOCTOR_BUILT", "")]);
    assert!(said.contains("there is no cargo on PATH"), "{said}");
    let said = wheel(&[("DDP_DOCTOR_BUILT", nothing.path().to_str().unwrap())]);
    assert!(said.contains("has no libddp_doctor.so"), "{said}");
}
