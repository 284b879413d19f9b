//! The profiler plugin, driven by a host that calls it as NCCL does: every version of the
//! interface, faults, and a second profiler chained behind the plugin.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_doctor_proto::blackbox::transfer;
use ddp_doctor_proto::report::{Confidence, Report, Verdict};
use ddp_doctor_proto::{Op, RecordKind, v1};

use super::{library, program_source, records};
use crate::doubles::Doubles;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::report::{initiating, read_report};

const VERSIONS: [u32; 4] = [4, 5, 6, 7];

fn source(name: &str) -> PathBuf {
    let doubles = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doubles/profiler");
    doubles.join(name)
}

fn host() -> Option<&'static Path> {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    let doubles = Doubles::get()?;
    Some(HOST.get_or_init(|| {
        doubles.compile(&source("host.c"), "profiled", &["-ldl", "-Wl,--as-needed"])
    }))
}

/// A profiler that prints the events it receives.
fn recorder() -> Option<&'static Path> {
    static RECORDER: OnceLock<PathBuf> = OnceLock::new();
    let doubles = Doubles::get()?;
    let options = ["-shared", "-fPIC", "-Wno-pedantic", "-Wl,--as-needed"];
    Some(RECORDER.get_or_init(|| doubles.compile(&source("recorder.c"), "recorder.so", &options)))
}

struct Told {
    finished: Finished,
    report: Report,
    records: Vec<v1::Record>,
}

/// Runs ranks that report these calls (`doubles/profiler/host.c`) in a version of the interface.
fn told(ranks: u32, version: u32, words: &str, environment: &[(&str, &str)]) -> Option<Told> {
    let doubles = Doubles::get()?;
    let dir = tempfile::tempdir().unwrap();
    let host = host()?.display();
    // As NCCL 2.27.3 does, which accepts no path.
    let tell =
        format!("exec {host} {version} \"libnccl-profiler-$NCCL_PROFILER_PLUGIN.so\" {words}");
    let mut run = program(dir.path());
    run.args(["run", "--nccl", "profiler", "--run-dir", "kept"])
        .args(["--on-hang", "kill", "--kill-after", "0.5"])
        .args(["--stall-after", "4", "--"])
        .args(doubles.launch(ranks, Path::new("/bin/sh")))
        .args(["-c", &tell])
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env_remove("NCCL_PROFILER_PLUGIN")
        .envs(environment.iter().copied())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let kept = dir.path().join("kept");
    let records = records(&kept.join("journal.ddpj"));
    Some(Told {
        finished,
        report: read_report(&kept.join("report.json")),
        records: records.into_iter().map(|(_, record)| record).collect(),
    })
}

impl Told {
    fn of_kind(&self, kind: RecordKind) -> impl Iterator<Item = &v1::Record> {
        let number = i32::from(kind.number());
        self.records.iter().filter(move |record| record.kind == number)
    }

    /// Number of recorded calls of an operation.
    fn calls(&self, op: Op) -> usize {
        let number = i32::from(op.number());
        let of_op = self.of_kind(RecordKind::Issued).filter(|it| it.op == number);
        of_op.count()
    }

    #[track_caller]
    fn is_silent(&self) {
        assert_eq!(self.finished.status, Some(0), "{}", self.finished);
        assert_eq!(self.report.findings, [], "{:#?}", self.report);
        assert_eq!(self.report.verdict, Verdict::Healthy);
        assert_eq!(self.report.evidence.layers, ["nccl"]);
        let issued = self.of_kind(RecordKind::Issued).count();
        assert_eq!(issued, self.of_kind(RecordKind::Returned).count());
    }
}

const HEALTHY: &str = "all_reduce broadcast [ reduce_scatter all_gather ] comm:second reduce \
    [ @0:send:1 @1:recv:0 ] foreign all_reduce";

#[test]
fn every_version_records_calls_without_findings() {
    for version in VERSIONS {
        let Some(told) = told(2, version, HEALTHY, &[]) else {
            return;
        };
        told.is_silent();
        for (op, calls) in [
            (Op::AllReduce, 4),
            (Op::Broadcast, 2),
            (Op::ReduceScatter, 2),
            (Op::AllGather, 2),
            (Op::Reduce, 2),
            (Op::Send, 1),
            (Op::Recv, 1),
        ] {
            assert_eq!(told.calls(op), calls, "version {version}: {op:?}");
        }
        assert_eq!(told.of_kind(RecordKind::Completed).count(), 0);
        let said = &told.finished.stdout;
        assert_eq!(said.matches("ddp-doctor, version").count(), 2, "{said}");
        // Its own threads, and late threads of NCCL, may still run its code.
        assert_eq!(said.matches("mapped after it was closed").count(), 2, "{said}");
    }
}

#[test]
fn every_version_proves_an_op_mismatch() {
    for version in VERSIONS {
        let words = "all_reduce all_reduce hang @0:all_reduce @1:broadcast @2:all_reduce";
        let Some(told) = told(3, version, words, &[]) else {
            return;
        };
        let Told { finished, report, .. } = told;
        assert_eq!(initiating(&report), ("DD103", &[1][..]), "{finished}");
        assert_eq!(report.findings[0].confidence, Confidence::Proved, "{version}");
        assert_eq!(finished.status, Some(75), "{finished}");
    }
}

#[test]
fn missing_rank_is_reported() {
    let words = "all_reduce all_reduce @0:hang @2:hang @0:all_reduce @2:all_reduce @1:sleep:60000";
    let Some(told) = told(3, 6, words, &[]) else {
        return;
    };
    assert_eq!(initiating(&told.report), ("DD101", &[1][..]), "{}", told.finished);
}

#[test]
fn kernel_ends_are_recorded_when_requested() {
    let kernels = [("DDP_DOCTOR_NCCL_PROFILER", "kernels")];
    let words = "all_reduce [ all_reduce all_gather ] [ @0:send:1 @1:recv:0 ] all_reduce";
    for version in VERSIONS {
        let Some(told) = told(2, version, words, &kernels) else {
            return;
        };
        told.is_silent();
        let ended = |op: Op| {
            let number = i32::from(op.number());
            told.of_kind(RecordKind::Completed).filter(move |it| it.op == number).count()
        };
        assert_eq!((ended(Op::AllReduce), ended(Op::AllGather)), (6, 2), "{version}");
        // Version 4 does not give the number of channels of a message.
        let messages = usize::from(version > 4);
        assert_eq!((ended(Op::Send), ended(Op::Recv)), (messages, messages), "{version}");
    }
}

const KERNELS: (&str, &str) = ("DDP_DOCTOR_NCCL_PROFILER", "kernels");

#[test]
fn stalled_transfer_is_reported() {
    for version in VERSIONS {
        let words = "all_reduce all_reduce stand all_reduce";
        let Some(told) = told(3, version, words, &[KERNELS]) else {
            return;
        };
        let report = &told.report;
        let leading = &report.findings[0];
        assert_eq!(leading.code, "DD116", "{version}: {report:#?}");
        assert_eq!(leading.confidence, Confidence::Supported, "{report:#?}");
        assert_eq!((leading.seq, &leading.ranks.victims[..]), (Some(3), &[0, 1, 2][..]));
        // Each rank sends to the next one and receives from the previous one; the second step never
        // ends.
        for (rank, next) in [(0, 1), (1, 2), (2, 0)] {
            let of = told.of_kind(RecordKind::Transfer);
            let of_send = of.filter(|it| it.op == i32::from(Op::Send.number()));
            let to_next = of_send.filter(|it| it.root == Some(next)).count();
            assert_eq!(to_next, 1, "{version}: rank {rank} to {next}");
        }
        let sends = "Rank 0's send to rank 1 on channel 0 had not moved for ";
        let stands =
            "after 1 of 2 steps: the next one is posted, but not acknowledged by the network.";
        let tells = |it: &String| it.starts_with(sends) && it.ends_with(stands);
        assert!(leading.why.iter().any(tells), "{:#?}", leading.why);
        assert_eq!(told.finished.status, Some(75), "{}", told.finished);
    }
}

#[test]
fn slow_transfer_is_no_finding() {
    for environment in [&[KERNELS][..], &[]] {
        let words = "all_reduce slow:3500 all_reduce sleep:1000 all_reduce";
        let Some(told) = told(2, 6, words, environment) else {
            return;
        };
        told.is_silent();
        let codes: Vec<i32> = told.of_kind(RecordKind::Transfer).map(|it| it.code).collect();
        // Both ranks record the stall and the resumption.
        let on = !environment.is_empty();
        let moves = codes.iter().filter(|code| **code == transfer::MOVES).count();
        assert_eq!((codes.len(), moves), if on { (4, 2) } else { (0, 0) }, "{codes:?}");
    }
}

#[test]
fn chained_profiler_receives_every_event() {
    let Some(recorder) = recorder() else { return };
    let next = recorder.to_str().unwrap();
    let words = "all_reduce [ send:0 recv:0 ] foreign";
    for version in VERSIONS {
        // The mask requests every event.
        let environment = [("NCCL_PROFILER_PLUGIN", next), ("RECORDER_MASK", "65535")];
        let Some(told) = told(1, version, words, &environment) else {
            return;
        };
        told.is_silent();
        assert_eq!((told.calls(Op::AllReduce), told.calls(Op::Send)), (1, 1), "{version}");
        let said = written(&told.finished.stderr);
        // The same events as without ddp-doctor.
        let dir = tempfile::tempdir().unwrap();
        let mut alone = std::process::Command::new(host().unwrap());
        alone
            .current_dir(dir.path())
            .arg(version.to_string())
            .arg(recorder)
            .args(words.split(' '))
            .env("RECORDER_MASK", "65535")
            .env("RANK", "0")
            .env("WORLD_SIZE", "1");
        let alone = run_to_end(alone);
        assert_eq!(said, written(&alone.stderr), "version {version}");
        assert!(said.len() > 10, "{said:?}");
    }
}

/// The lines that the recorder wrote.
fn written(stderr: &str) -> Vec<String> {
    let is_its = |line: &&str| {
        let first = line.split(' ').next().unwrap_or_default();
        first.parse::<u64>().is_ok() || first == "init" || first == "finalize"
    };
    stderr.lines().filter(is_its).map(str::to_owned).collect()
}

#[test]
fn chained_profiler_receives_only_requested_events() {
    let Some(recorder) = recorder() else { return };
    let next = recorder.to_str().unwrap();
    let environment = [("NCCL_PROFILER_PLUGIN", next), ("RECORDER_MASK", "2")];
    let Some(told) = told(1, 4, "all_reduce [ send:0 recv:0 ]", &environment) else {
        return;
    };
    let said = written(&told.finished.stderr);
    assert!(said.iter().any(|it| it.contains("Coll AllReduce")), "{said:?}");
    assert!(said.iter().all(|it| !it.contains("P2p")), "{said:?}");
}

#[test]
fn communicator_seen_by_hooks_is_not_profiled() {
    let Some(doubles) = Doubles::get() else {
        return;
    };
    let here = program_source("hooks_and_profiler.c");
    let both = doubles.compile(&here, "hooks_and_profiler", &[]);
    let dir = tempfile::tempdir().unwrap();
    let mut run = program(dir.path());
    run.args(["run", "--nccl", "always", "--"])
        .arg(both)
        .arg(library())
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    assert_eq!(finished.stdout, "asks for 0\n", "{finished}");
}
