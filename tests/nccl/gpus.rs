//! What NVML reports of the GPUs of a job's ranks, against a double of it (`doubles/nvml/nvml.c`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_doctor_proto::report::{DeviceActivity, Report, Verdict};

use super::{library, linked};
use crate::doubles::Doubles;
use crate::support::process::{Finished, program, run_to_end};

/// GPUs of three ranks, of which one waits for its peers and one computes.
const GPUS: &str = "\
0 uuid GPU-a
1 uuid GPU-b
2 uuid GPU-c
1 name NVIDIA H100
0 busy 100
0 memory-busy 0
0 power 127000
0 power-limit 700000
1 busy 100
1 memory-busy 40
1 power 600000
1 power-limit 700000
1 total 80000
1 free 60000
";

/// The double.
fn nvml() -> Option<&'static Path> {
    static NVML: OnceLock<PathBuf> = OnceLock::new();
    let doubles = Doubles::get()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doubles/nvml/nvml.c");
    let compile = || doubles.compile(&source, "libnvidia-ml.so.1", &["-shared", "-fPIC"]);
    Some(NVML.get_or_init(compile))
}

/// Runs three ranks of `jobs/nccl/job.c` without a fault, each of which begins once its GPU has reported it, after
/// these commands.
fn job(commands: &str, faults: &str) -> Option<(Finished, Report)> {
    let (doubles, nvml, rank) = (Doubles::get()?, nvml()?, linked()?.first()?);
    let dir = tempfile::tempdir().unwrap();
    let gpus = dir.path().join("gpus");
    fs::write(&gpus, GPUS).unwrap();
    let rank = format!(
        r#"echo "$RANK process $$ 1000" >>"$NVML_DOUBLE"
        until [ -e "$NVML_DOUBLE.$$" ]; do sleep 0.02; done
        {commands}
        exec {} count healthy"#,
        rank.display()
    );
    let mut run = program(dir.path());
    run.args(["run", "--nccl", "always", "--report", "report.json"])
        .args(["--on-hang", "kill", "--kill-after", "0.5", "--stall-after", "2", "--"])
        .args(doubles.launch(3, Path::new("/bin/sh")))
        .args(["-c", &rank])
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env("DDP_DOCTOR_NVML_LIBRARY", nvml)
        .env("NVML_DOUBLE", &gpus)
        .env("NCCL_DOUBLE_FAULTS", faults)
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let report = fs::read(dir.path().join("report.json")).unwrap();
    Some((finished, serde_json::from_slice(&report).unwrap()))
}

#[test]
fn gpus_of_ranks_are_reported_without_a_finding() {
    let Some((finished, report)) = job("", "") else { return };
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!((report.verdict, &report.findings[..]), (Verdict::Healthy, &[][..]));
    let devices: Vec<_> = report.ranks.iter().map(|it| it.device.clone().unwrap()).collect();
    let found: Vec<_> = devices.iter().map(|it| (it.index, it.uuid.as_str())).collect();
    assert_eq!(found, [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-c")]);
    assert_eq!((&*devices[1].name, devices[1].last_xid), ("NVIDIA H100", None));
    // The ranks have ended.
    assert!(devices.iter().all(|it| it.activity == DeviceActivity::Unknown), "{devices:?}");
}
