//! Jobs on two hosts under a real Slurm and a real Ray, by the scripts of the documentation, and the Kubernetes
//! manifests. Each is skipped where its tool is not installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_doctor_proto::report::{Report, Verdict};

use crate::support::compiled_programs::library;
use crate::support::hosts::{Hosts, Process};
use crate::support::process::{PROGRAM, eventually};
use crate::support::pytorch_jobs::{jobs, variant, venv};
use crate::support::report::{assert_hang, read_report, reports_in};

const TOKEN: &str = "the-token-of-these-tests";

fn operations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations")
}

/// Whether programs are installed; prints that the test is skipped if not.
fn has(programs: &[&str], package: &str) -> bool {
    let missing = |name: &&&str| Command::new(name).arg("--version").output().is_err();
    match programs.iter().find(missing) {
        Some(name) => {
            println!("skipped: {name} is not installed (Debian: {package})");
            false
        }
        None => true,
    }
}

fn assert_and_print_hang(report: &Report) {
    assert_hang(report);
    let finding = &report.findings[0];
    println!("[{}] {} ms: {}", finding.code, finding.latency_ms, finding.summary);
}

/// `PATH` with the program under test and the programs of a Python environment.
fn path(venv: &Path) -> String {
    let inherited = std::env::var("PATH").unwrap_or_default();
    let program = Path::new(PROGRAM).parent().unwrap();
    let bin = venv.join("bin");
    format!("{}:{}:{inherited}", program.display(), bin.display())
}

/// Copies a script of the documentation for Slurm, with this program, and a folder for what users would find in their home.
fn install(name: &str, dir: &Path, program: &str) -> PathBuf {
    let text = fs::read_to_string(operations().join("slurm").join(name))
        .unwrap()
        .replace("/usr/local/bin/ddp-doctor", program);
    let home = dir.join("home");
    let script = dir.join(name);
    fs::write(&script, text.replace("$HOME", home.to_str().unwrap())).unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    script
}

/// A Slurm cluster of two hosts without cgroups, with the prologs of the documentation.
struct Slurm {
    hosts: Hosts,
    dir: PathBuf,
    _daemons: Vec<Process>,
}

impl Slurm {
    /// `None`: it is not installed, or hosts are not permitted here.
    fn start() -> Option<Self> {
        if !has(&["slurmctld", "slurmd", "sbatch", "munged"], "slurmctld slurmd slurm-client munge")
        {
            return None;
        }
        let hosts = Hosts::new(2)?;
        let dir = hosts.dir(0);
        let key = dir.join("munge.key");
        fs::write(&key, [7; 1024]).unwrap();
        fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        fs::create_dir_all(dir.join("state")).unwrap();
        let config =
            include_str!("../support/programs/slurm.conf").replace("@DIR@", dir.to_str().unwrap());
        fs::write(dir.join("slurm.conf"), config).unwrap();
        for name in ["prolog.sh", "task-prolog.sh"] {
            install(name, &dir, PROGRAM);
        }
        // Needed by slurmd although no plugin uses cgroups.
        fs::write(dir.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();

        let file = |option: &str, name: &str| format!("--{option}={}", dir.join(name).display());
        let mut munged = hosts.command(0, "munged");
        munged.args(["--foreground", "--force"]).args([
            file("socket", "munge.socket"),
            file("key-file", "munge.key"),
            file("log-file", "munge.log"),
            file("pid-file", "munge.pid"),
            file("seed-file", "munge.seed"),
        ]);
        let mut daemons = vec![hosts.start(0, "munged", munged)];
        eventually("munge is ready", || dir.join("munge.socket").exists());
        let daemon = |host: u32, words: &[&str]| {
            let mut command = hosts.command(host, words[0]);
            command.args(&words[1..]).env("SLURM_CONF", dir.join("slurm.conf"));
            hosts.start(host, words[0], command)
        };
        daemons.push(daemon(0, &["slurmctld", "-D"]));
        daemons.push(daemon(0, &["slurmd", "-D", "-N", "host-0"]));
        daemons.push(daemon(1, &["slurmd", "-D", "-N", "host-1"]));
        let slurm = Self { hosts, dir, _daemons: daemons };
        eventually("both nodes are idle", || {
            let mut sinfo = slurm.command("sinfo");
            let output = sinfo.args(["--noheader", "--format=%D %t"]).output().unwrap();
            output.stdout == b"2 idle\n"
        });
        Some(slurm)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.hosts.command(0, program);
        command.env("SLURM_CONF", self.dir.join("slurm.conf"));
        command
    }

    /// Submits a script of the documentation, waits for its end, and returns the reports of both nodes.
    fn submit(&self, venv: &Path, script: &str, words: &[&str]) -> [Report; 2] {
        let mut sbatch = self.command("sbatch");
        sbatch
            .env("PATH", path(venv))
            .env("OMP_NUM_THREADS", "1")
            .env("DDP_DOCTOR_TOKEN", TOKEN)
            .envs([("DDP_DOCTOR_ON_HANG", "kill"), ("DDP_DOCTOR_KILL_AFTER", "1")])
            .args(["--wait", "--output=job.out"])
            .arg(operations().join("slurm").join(script))
            .args(words);
        let mut job = self.hosts.start(0, "sbatch", sbatch);
        job.end();
        let output = fs::read_to_string(self.dir.join("job.out")).unwrap_or_default();
        let mut runs: Vec<PathBuf> = fs::read_dir(self.dir.join("ddp-doctor-runs"))
            .unwrap_or_else(|error| panic!("{error}: {}\n{output}", job.stderr()))
            .map(|it| it.unwrap().path())
            .collect();
        runs.sort();
        let reports: Vec<Report> =
            runs.iter().map(|it| read_report(&it.join("report.json"))).collect();
        reports.try_into().unwrap_or_else(|_| panic!("{output}"))
    }
}

#[test]
#[ignore = "live: part of make test-all"]
fn hang_of_torchrun_under_slurm_is_diagnosed() {
    let Some(venv) = venv() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let program = jobs().join("../../agent/python/examples/uneven_batches.py");
    let words = [program.to_str().unwrap()];
    let reports = slurm.submit(venv, "torchrun.sbatch", &words);
    reports.iter().for_each(assert_and_print_hang);
}

#[test]
fn hang_of_tasks_of_slurm_is_diagnosed() {
    let Some(venv) = venv() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let program = jobs().join("../../agent/python/examples/uneven_batches.py");
    let words = ["python", program.to_str().unwrap()];
    let reports = slurm.submit(venv, "tasks.sbatch", &words);
    reports.iter().for_each(assert_and_print_hang);
}

#[test]
#[ignore = "live: part of make test-all"]
fn healthy_torchrun_under_slurm_is_silent() {
    let Some(venv) = venv() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let program = variant("healthy/op_mismatch.py");
    let words = [program.to_str().unwrap()];
    for report in slurm.submit(venv, "torchrun.sbatch", &words) {
        assert_eq!((report.verdict, report.job.nodes), (Verdict::Healthy, 2), "{report:#?}");
        assert!(report.findings.is_empty(), "{report:#?}");
    }
}

#[test]
fn unchanged_job_of_slurm_reports_to_the_coordinator_of_its_user() {
    let Some(venv) = venv() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let config = slurm.dir.join("home/.config/ddp-doctor");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("coordinator"), "10.77.0.1:7077\n").unwrap();
    fs::write(config.join("token"), TOKEN).unwrap();
    fs::set_permissions(config.join("token"), PermissionsExt::from_mode(0o600)).unwrap();
    let mut coordinator = slurm.hosts.command(0, PROGRAM);
    coordinator.env("DDP_DOCTOR_TOKEN", TOKEN);
    coordinator.args(["coordinator", "--listen", "0.0.0.0:7077", "--report-dir", "reports"]);
    let _coordinator = slurm.hosts.start(0, "coordinator", coordinator);

    let mut srun = slurm.command("srun");
    let activate = operations().join("../../agent/python/ddp_doctor/activate");
    srun.env("PATH", path(venv))
        .env("OMP_NUM_THREADS", "1")
        .env("PYTHONPATH", activate.canonicalize().unwrap())
        .env("DDP_DOCTOR_LIBRARY", library())
        .env("DDP_DOCTOR_PROGRAM", PROGRAM)
        .args(["--nodes=2", "--ntasks-per-node=1", "bash", "-c"])
        .arg(
            "exec torchrun --nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 1 \
             --master-addr host-0 --master-port 29500 \"$0\"",
        )
        .arg(jobs().join("../../agent/python/examples/uneven_batches.py"));
    let srun = slurm.hosts.start(0, "srun", srun);
    let mut report = None;
    eventually("the coordinator reports the hang", || {
        let reports = reports_in(&slurm.dir.join("reports"));
        report = reports.into_iter().find(|it| it.verdict == Verdict::Hang);
        report.is_some()
    });
    let report = report.unwrap();
    assert_and_print_hang(&report);
    assert!(report.job.id.starts_with("slurm-"), "{}", report.job.id);
    drop(srun);
}

#[test]
fn only_a_critical_line_drains_a_node_of_slurm() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    for (status, is_accepted) in [(0, true), (1, false), (3, true), (4, true)] {
        fs::write(&program, format!("#!/bin/sh\nexit {status}\n")).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let script = install("prolog.sh", dir.path(), program.to_str().unwrap());
        let ended = Command::new(script).status().unwrap();
        assert_eq!(ended.success(), is_accepted, "{status}");
    }
}

#[test]
fn systemd_unit_is_valid() {
    if !has(&["systemd-analyze"], "systemd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let unit = operations().join("systemd/ddp-doctor-coordinator@.service");
    let text = fs::read_to_string(unit).unwrap().replace("/usr/local/bin/ddp-doctor", PROGRAM);
    let command = text.lines().find_map(|it| it.strip_prefix("ExecStart=")).unwrap();
    let help = Command::new("sh").args(["-c", &format!("{command} --help")]).output().unwrap();
    assert!(help.status.success(), "{help:?}");
    let unit = dir.path().join("ddp-doctor-coordinator@root.service");
    fs::write(&unit, text).unwrap();
    let verified =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).output().unwrap();
    assert!(verified.status.success() && verified.stderr.is_empty(), "{verified:?}");
}

/// Variable with the path of a Python environment that has Ray and PyTorch.
const RAY: &str = "DDP_DOCTOR_TEST_RAY";

/// Runs the script of the documentation on a Ray cluster of two hosts until its report is as expected.
fn ray(options: &[&str], is_expected: impl Fn(&Report) -> bool) -> Option<Report> {
    let Some(venv) = std::env::var_os(RAY).map(PathBuf::from) else {
        println!("skipped: {RAY} does not name a Python environment with Ray and PyTorch");
        return None;
    };
    let hosts = Hosts::new(2)?;
    let activate = operations().join("../../agent/python/ddp_doctor/activate");
    let command = |host: u32, program: &str| {
        let mut command = hosts.command(host, program);
        command
            .env("PATH", path(&venv))
            .env("PYTHONPATH", activate.canonicalize().unwrap())
            .env("DDP_DOCTOR_LIBRARY", library())
            .env("OMP_NUM_THREADS", "1")
            .env("RAY_USAGE_STATS_ENABLED", "0");
        command
    };
    let mut coordinator = command(0, "ddp-doctor");
    coordinator.env("DDP_DOCTOR_TOKEN", TOKEN).args([
        "coordinator",
        "--listen",
        "0.0.0.0:7077",
        "--report-dir",
        "reports",
    ]);
    let _coordinator = hosts.start(0, "coordinator", coordinator);
    let mut daemons = Vec::new();
    for (host, address) in [(0, "10.77.0.1"), (1, "10.77.0.2")] {
        let mut ray = command(host, "ray");
        ray.args(["start", "--block", "--num-cpus", "1", "--node-ip-address", address]);
        if host == 0 {
            let temporary = format!("--temp-dir={}", hosts.dir(0).join("ray").display());
            ray.args(["--head", "--port", "6379", "--include-dashboard=false", &temporary]);
        } else {
            ray.args(["--address", "10.77.0.1:6379"]);
        }
        let daemon = hosts.start(host, "ray", ray);
        eventually("Ray runs", || daemon.stdout().contains("Ray runtime started"));
        daemons.push(daemon);
    }
    let mut script = command(0, "python");
    script
        .env("DDP_DOCTOR_TOKEN", TOKEN)
        .env("RAY_ADDRESS", "10.77.0.1:6379")
        .arg(operations().join("ray/train.py"))
        .arg("host-0:7077")
        .args(options);
    let script = hosts.start(0, "script", script);
    let reports = hosts.dir(0).join("reports");
    let mut report = None;
    eventually("the report is as expected", || {
        report = reports_in(&reports).into_iter().find(&is_expected);
        report.is_some()
    });
    drop(script);
    report
}

#[test]
fn hang_of_workers_of_ray_is_diagnosed() {
    let report = ray(&["--hang"], |it| it.verdict == Verdict::Hang);
    report.iter().for_each(assert_and_print_hang);
}

#[test]
fn healthy_workers_of_ray_are_silent() {
    let report = ray(&[], |it| it.job.ended_at.is_some());
    if let Some(report) = report {
        assert_eq!((report.verdict, report.job.nodes), (Verdict::Healthy, 2), "{report:#?}");
        assert!(report.findings.is_empty(), "{report:#?}");
    }
}

#[test]
fn kubernetes_manifests_are_consistent() {
    let Some(venv) = venv() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os(RAY).map_or_else(|| venv.to_owned(), PathBuf::from);
    let output = Command::new(python.join("bin/python"))
        .arg(root.join("tests/support/programs/manifests.py"))
        .arg(PROGRAM)
        .arg(operations().join("kubernetes"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", text(&output.stdout));
    assert!(output.status.success(), "{}", text(&output.stderr));
}
