//! What NVML reports of the GPUs of a job's ranks, against a double of it (`doubles/nvml/nvml.c`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_doctor_proto::report::{DeviceActivity, Report, Verdict};

use super::{library, source};
use crate::doubles::Doubles;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::report::{initiating, read_report};

/// GPUs of three ranks, of which one computes and the others wait for it.
const GPUS: &str = "\
0 uuid GPU-a
1 uuid GPU-b
2 uuid GPU-c
1 name NVIDIA H100
0 busy 100
0 memory-busy 0
0 power 127000
0 power-limit 700000
2 busy 100
2 memory-busy 0
2 power 127000
2 power-limit 700000
1 busy 100
1 memory-busy 40
1 power 600000
1 power-limit 700000
1 total 80000
1 free 60000
";

/// The double.
pub(crate) fn nvml() -> Option<&'static Path> {
    static NVML: OnceLock<PathBuf> = OnceLock::new();
    let doubles = Doubles::get()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doubles/nvml/nvml.c");
    let compile = || doubles.compile(&source, "libnvidia-ml.so.1", &["-shared", "-fPIC"]);
    Some(NVML.get_or_init(compile))
}

/// Runs three ranks of a program of `jobs/nccl` on GPUs with these further lines. Each begins once its GPU has reported
/// it, after these commands.
fn job(variant: &str, options: &[&str], lines: &str, commands: &str) -> Option<(Finished, Report)> {
    let (doubles, nvml) = (Doubles::get()?, nvml()?);
    let rank =
        doubles.compile(&source("stream_never_ends.c"), &format!("{variant}-on-gpus"), options);
    let dir = tempfile::tempdir().unwrap();
    let gpus = dir.path().join("gpus");
    fs::write(&gpus, GPUS.to_owned() + lines).unwrap();
    let rank = format!(
        r#"echo "$RANK process $$ 1000" >>"$NVML_DOUBLE"
        until [ -e "$NVML_DOUBLE.$$" ]; do sleep 0.02; done
        {commands}
        exec {}"#,
        rank.display()
    );
    let mut run = program(dir.path());
    run.args(["run", "--nccl", "always", "--report", "report.json"])
        .args(["--on-hang", "kill", "--kill-after", "0.5", "--stall-after", "4", "--"])
        .args(doubles.launch(3, Path::new("/bin/sh")))
        .args(["-c", &rank])
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env("DDP_DOCTOR_NVML_LIBRARY", nvml)
        .env("NVML_DOUBLE", &gpus)
        .env("DDP_DOCTOR_NCCL_COMPLETION", "1")
        // Longer than the finding takes to appear.
        .env("PATIENCE_MS", "120000")
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    Some((finished, read_report(&dir.path().join("report.json"))))
}

#[test]
fn gpus_of_ranks_are_reported_without_a_finding() {
    let Some((finished, report)) = job("healthy", &[], "", "") else { return };
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!((report.verdict, &report.findings[..]), (Verdict::Healthy, &[][..]));
    let devices: Vec<_> = report.ranks.iter().map(|it| it.device.clone().unwrap()).collect();
    let found: Vec<_> = devices.iter().map(|it| (it.index, it.uuid.as_str())).collect();
    assert_eq!(found, [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-c")]);
    assert_eq!((&*devices[1].name, devices[1].last_xid), ("NVIDIA H100", None));
    // The ranks have ended.
    assert!(devices.iter().all(|it| it.activity == DeviceActivity::Unknown), "{devices:?}");
}

#[test]
fn lost_gpu_explains_a_collective_that_never_ends() {
    let fault = r#"[ "$RANK" != 1 ] || printf '1 lost 1\n1 xid 79\n' >>"$NVML_DOUBLE""#;
    let Some((finished, report)) = job("faulty", &["-DFAULTY"], "", fault) else { return };
    assert_eq!(finished.status, Some(75), "{finished}");
    assert_eq!(initiating(&report), ("DD801", &[1][..]), "{finished}");
    let finding = &report.findings[0];
    assert_eq!(finding.ranks.victims, [0, 2], "{finished}");
    assert!(finding.summary.contains("Xid 79: it has fallen off the bus"), "{finding:#?}");
    assert_eq!(report.ranks[1].device.as_ref().unwrap().last_xid, Some(79));
}

#[test]
fn nvlink_that_fails_explains_a_collective_that_never_ends() {
    // Its counters were read while both links were up.
    let fault = r#"[ "$RANK" != 1 ] ||
        printf '1 link1 0\n1 link-data-errors 7\n1 link-flit-errors 5\n1 link-replays 3\n1 link-recoveries 1\n' >>"$NVML_DOUBLE""#;
    let up = "1 link0 1\n1 link1 1\n1 link-data-errors 0\n1 link-flit-errors 0\n1 link-replays 0\n1 link-recoveries 0\n";
    let Some((finished, report)) = job("faulty", &["-DFAULTY"], up, fault) else { return };
    assert_eq!(finished.status, Some(75), "{finished}");
    assert_eq!(initiating(&report), ("DD803", &[1][..]), "{finished}");
    let finding = &report.findings[0];
    assert!(finding.summary.contains("an NVLink of the GPU of rank 1"), "{finding:#?}");
    let counted = "12 damaged and 4 repeated packets";
    assert!(finding.why.iter().any(|it| it.contains(counted)), "{finding:#?}");
    // Links that were down before the job are no fault of it.
    let down = "1 link0 1\n1 link1 0\n1 link-data-errors 7\n";
    let Some((finished, report)) = job("faulty", &["-DFAULTY"], down, "") else { return };
    assert_eq!(initiating(&report), ("DD116", &[1][..]), "{finished}");
    assert!(report.findings.iter().all(|it| it.code != "DD803"), "{finished}");
}

#[test]
fn gpu_that_computes_keeps_the_others_waiting() {
    let Some((finished, report)) = job("faulty", &["-DFAULTY"], "", "") else { return };
    assert_eq!(finished.status, Some(75), "{finished}");
    assert_eq!(initiating(&report), ("DD116", &[1][..]), "{finished}");
}

#[test]
fn check_reports_gpus_that_are_in_use() {
    let Some(nvml) = nvml() else { return };
    let dir = tempfile::tempdir().unwrap();
    let gpus = dir.path().join("gpus");
    let check = |state: &str| {
        fs::write(&gpus, GPUS.to_owned() + state).unwrap();
        let mut check = program(dir.path());
        check.arg("check").env("DDP_DOCTOR_NVML_LIBRARY", nvml).env("NVML_DOUBLE", &gpus);
        let said = run_to_end(check).stdout;
        // Lines may be broken.
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let said = check("1 process 4711 1073741824\n2 remap-pending 1\n");
    assert!(said.contains("GPU 1 (1.0 GiB by pid 4711)"), "{said}");
    assert!(said.contains("could not be replaced: GPU 2"), "{said}");
    let said = check(
        "0 persistence 0\n1 mig 1\n2 set-clock 1200\n2 default-clock 1980\n0 link0 1\n1 link0 0\n1 uncorrected 2\n",
    );
    for line in [
        "Persistence mode is off: GPU 0.",
        "partitioned (MIG): GPU 1.",
        "GPU 2 (1200 of 1980 MHz)",
        "fewer NVLinks up than others: GPU 1 (0 of 1)",
        "since the driver was loaded: GPU 1 (2)",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let healthy =
        "0 persistence 1\n1 mig 0\n2 set-clock 1980\n2 default-clock 1980\n0 link0 1\n1 link0 1\n";
    let said = check(healthy);
    for word in ["Persistence", "MIG", "MHz", "NVLink", "correct"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
    let said = check("");
    assert!(!said.contains("by pid") && !said.contains("could not be"), "{said}");
}
