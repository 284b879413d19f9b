//! `attach` on live jobs of PyTorch over the double of NCCL, with a double of its RAS.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::{Confidence, DeviceActivity, Effect, Report};
use tempfile::TempDir;

use super::live::{Job, plain};
use crate::doubles::Doubles;
use crate::nccl::gpus::nvml;
use crate::support::process::{free_port, program, run_to_end};
use crate::support::pytorch_jobs::venv;
use crate::support::report::read_report;

/// Time limit for ranks to begin, and then to have been stuck for long enough.
const MAX_WAIT: Duration = Duration::from_secs(180);
/// Factor of all durations: captures must be more than a second apart, which is the shortest limit of a stall.
const TIME_SCALE: &str = "0.7";

/// A job of three ranks with this fault, and the folder of their NCCL. `has_ras`: whether it can be asked.
fn start(fault: &str, has_ras: bool) -> Option<(Job, TempDir)> {
    let (doubles, venv) = (Doubles::get()?, venv()?);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("tests/jobs/layers/later.c");
    doubles.compile(&source, "later.so", &["-shared", "-fPIC"]);
    let mut command = plain(&root.join("tests/attach/over_nccl.py"), 3);
    let address = format!("127.0.0.1:{}", free_port());
    command.env("FAULT", fault).env("NCCL_RAS_ADDR", &address);
    if !has_ras {
        command.env("NO_RAS", "1");
    }
    // The version of NCCL is that of the package with the library. PyTorch loads the first one on the path.
    let packages = tempfile::tempdir().unwrap();
    let libraries = packages.path().join("nvidia/nccl/lib");
    fs::create_dir_all(&libraries).unwrap();
    fs::create_dir(packages.path().join("nvidia_nccl_cu12-2.28.9.dist-info")).unwrap();
    for name in ["libcuda.so.1", "libnccl.so.2", "later.so"] {
        fs::copy(doubles.folder.join(name), libraries.join(name)).unwrap();
    }
    command.env("DOUBLES", &libraries).env("PYTHONPATH", packages.path());
    let job = Job::spawn(command, venv);
    let is_ready = |rank: u32| job.directory.path().join(format!("ready-{rank}")).exists();
    let started = Instant::now();
    while !(0..3).all(is_ready) {
        assert!(started.elapsed() < MAX_WAIT, "the ranks do not begin: {}", job.output());
        thread::sleep(Duration::from_millis(100));
    }
    Some((job, packages))
}

/// The report of `attach`, and what it prints.
fn attach(job: &Job) -> (Report, String) {
    attach_with(job, &[])
}

/// The same with these variables.
fn attach_with(job: &Job, variables: &[(&str, &Path)]) -> (Report, String) {
    let file = job.directory.path().join("report.json");
    let mut command = program(job.directory.path());
    command.args(["attach", "--report"]).arg(&file).args(job.ranks());
    command.env("DDP_DOCTOR_TIME_SCALE", TIME_SCALE).envs(variables.iter().copied());
    let finished = run_to_end(command);
    (read_report(&file), format!("{}{}", finished.stdout, finished.stderr))
}

/// Attaches until the sleeping rank is found.
#[track_caller]
fn assert_sleeper_is_found(job: &Job) -> String {
    let started = Instant::now();
    loop {
        let (report, text) = attach(job);
        if let Some(finding) = report.findings.first() {
            assert_eq!((&*finding.code, &finding.ranks.root[..]), ("DD204", &[1][..]), "{text}");
            assert_eq!(finding.ranks.victims, [0, 2], "{text}");
            assert_eq!(finding.confidence, Confidence::Supported, "{text}");
            let root = finding.per_rank.iter().find(|it| it.rank == 1);
            let place = root.and_then(|it| it.place.as_ref());
            assert!(place.is_some_and(|it| it.function == "oversleep"), "{text}");
            return text;
        }
        assert!(started.elapsed() < MAX_WAIT, "nothing was found: {text}");
        thread::sleep(Duration::from_secs(2));
    }
}

#[test]
fn sleeping_rank_is_named_with_the_call_that_its_peers_launched() {
    let Some((job, _packages)) = start("asleep", true) else { return };
    let text = assert_sleeper_is_found(&job);
    assert!(text.contains("all_reduce"), "{text}");
    assert!(!text.contains("NCCL's counts of calls are not used"), "{text}");
}

#[test]
fn sleeping_rank_is_named_if_nccl_does_not_answer() {
    let Some((job, _packages)) = start("asleep", false) else { return };
    let text = assert_sleeper_is_found(&job);
    assert!(text.contains("NCCL's counts of calls are not used"), "{text}");
}

#[test]
fn ranks_in_different_collectives_are_not_accused_and_their_counts_are_stated() {
    let Some((job, _packages)) = start("other_collective", true) else { return };
    let (report, text) = attach(&job);
    assert!(report.findings.iter().all(|it| it.effect == Effect::None), "{text}");
    assert!(text.contains("it has launched 1 more all_reduce call than"), "{text}");
    assert!(text.contains("it has launched 1 more broadcast call than"), "{text}");
}

#[test]
fn slow_rank_is_not_accused() {
    let Some((job, _packages)) = start("slow", true) else { return };
    for _ in 0..3 {
        let (report, text) = attach(&job);
        assert!(report.findings.iter().all(|it| it.effect == Effect::None), "{text}");
    }
}

#[test]
fn state_of_the_gpus_is_reported_by_rank() {
    let Some((job, _packages)) = start("slow", true) else { return };
    let Some(nvml) = nvml() else { return };
    let gpus = job.directory.path().join("gpus");
    let of_rank = |(index, pid): (usize, &String)| {
        let (uuid, process) = (format!("GPU-of-{pid}"), format!("{pid} 1000"));
        [("uuid", &*uuid), ("process", &process), ("busy", "100"), ("memory-busy", "40")]
            .into_iter()
            .chain([("power", "600000"), ("power-limit", "700000")])
            .map(|(name, value)| format!("{index} {name} {value}\n"))
            .collect::<String>()
    };
    let lines: Vec<String> = job.ranks().iter().enumerate().map(of_rank).collect();
    fs::write(&gpus, lines.concat()).unwrap();
    let (report, text) =
        attach_with(&job, &[("DDP_DOCTOR_NVML_LIBRARY", nvml), ("NVML_DOUBLE", &gpus)]);
    assert_eq!(report.ranks.len(), 3, "{text}");
    for rank in &report.ranks {
        let device = rank.device.as_ref().unwrap_or_else(|| panic!("{rank:?}: {text}"));
        assert_eq!(device.uuid, format!("GPU-of-{}", rank.pid), "{text}");
        assert_eq!(device.activity, DeviceActivity::Computing, "{text}");
    }
}
