//! Tests the host that drives profiler plugins with a plugin that prints what it receives: layouts,
//! order of events, threads, and the differences between versions.

use std::path::Path;
use std::process::Command;

use crate::harness::Doubles;

/// Mask of all events.
const ALL: u32 = 0xffff;

/// Output of the recorder and of the host.
fn drive(newest: u32, mask: u32, words: &[&str]) -> Option<(String, String)> {
    let doubles = Doubles::get()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler/recorder.c");
    let name = "libnccl-profiler-recorder.so";
    let options = ["-shared", "-fPIC", "-Wno-pedantic"];
    let plugin = doubles.compile(&source, name, &options);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler/host.c");
    let host = doubles.compile(&source, "profiler_host", &["-ldl"]);
    let ended = Command::new(host)
        .arg(newest.to_string())
        .arg(plugin)
        .args(words)
        .env("RANK", "1")
        .env("WORLD_SIZE", "2")
        .env("RECORDER_MASK", mask.to_string())
        .output()
        .unwrap();
    let written = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{:?}\n{written}", ended.status);
    Some((written, String::from_utf8(ended.stdout).unwrap()))
}

#[track_caller]
fn are_written(written: &str, expected: &[&str]) {
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines, expected, "{written}");
}

#[test]
fn version_4_has_work_and_no_calls() {
    let Some((written, said)) = drive(4, 2 | 4, &["broadcast", "[", "send:0", "recv:0", "]"])
    else {
        return;
    };
    let expected = [
        "init world 1/2",
        "1 in 0: Group",
        "2 in 1: Coll Broadcast #0 count 256 root 0 ncclInt8 2/16 RING LL",
        "2 ends",
        "1 ends",
        "3 in 0: Group",
        "4 in 3: P2p Send count 64 ncclFloat32 peer 0",
        "5 in 3: P2p Recv count 64 ncclFloat32 peer 0",
        "4 ends",
        "5 ends",
        "3 ends",
        "finalize",
    ];
    are_written(&written, &expected);
    let counted = "rank 1: recorder, version 4, mask 6: 5 events, 5 taken, 5 stopped, 0 states\n";
    assert!(said.starts_with(counted), "{said}");
    // The recorder is not linked with `-z nodelete`.
    assert!(said.ends_with("gone after it was closed\n"), "{said}");
}

#[test]
fn version_5_has_the_calls_too() {
    let Some((written, _)) = drive(5, 512 | 2 | 2048, &["all_reduce", "all_reduce"]) else {
        return;
    };
    let expected = [
        "init world 1/2",
        "1 in 0: GroupApi captured 0 depth 1",
        "1 state 23",
        "2 in 1: CollApi AllReduce count 64 ncclFloat32 root 0 captured 0",
        "2 ends",
        "1 state 24",
        "3 in 1: Group",
        "4 in 2: Coll AllReduce #0 count 64 root 0 ncclFloat32 2/16 RING LL group 3",
        "5 in 1: KernelLaunch",
        "5 ends",
        "4 ends",
        "3 ends",
        "1 ends",
    ];
    are_written(&written.lines().take(13).collect::<Vec<_>>().join("\n"), &expected);
    assert!(written.contains("9 in 7: Coll AllReduce #1 "), "{written}");
}

#[test]
fn version_6_has_copy_engines() {
    let words = ["ce_all_gather", "comm:second", "all_gather"];
    let Some((written, _)) = drive(6, 4096 | 512, &words) else {
        return;
    };
    for line in [
        "3 in 2: CeColl AllGather #0 count 64 ncclFloat32 UC batches 1",
        "3 state 25",
        "3 state 26",
        "init second 1/2",
        "5 in 4: CollApi AllGather count 64 ncclFloat32 root 0 captured 0",
    ] {
        assert!(written.lines().any(|it| it == line), "{line}\n{written}");
    }
    assert_eq!(written.matches("finalize\n").count(), 2, "{written}");
}

#[test]
fn version_7_has_every_event() {
    let Some((written, said)) = drive(7, ALL, &["reduce_scatter", "foreign"]) else {
        return;
    };
    for line in [
        "4 in 2: Coll ReduceScatter #0 count 64 root 0 ncclFloat32 2/16 RING LL group 3 ring_ll symmetric 0 tag 0",
        "6 in 0: ProxyCtrl (another thread)",
        "6 state 17 with arguments",
        "7 in 4: ProxyOp channel 0 peer 0 steps 2 chunk 131072 send 1 (another thread)",
        "7 state 19",
        "8 in 7: ProxyStep 0 (another thread)",
        "8 state 9 with arguments",
        "9 in 8: NetPlugin 20001 (another thread)",
        "12 in 4: KernelCh 0 timer 1 (another thread)",
        "13 in 12: KernelPhase 0 ring (another thread)",
        "13 state 31 with arguments",
        "12 state 22 with arguments",
        "14 in 4: KernelCh 1 timer 1 (another thread)",
        "16 in 233492480: ProxyOp channel 0 peer 0 steps 1 chunk 131072 send 1",
    ] {
        assert!(written.lines().any(|it| it == line), "{line}\n{written}");
    }
    assert!(said.contains("16 events, 16 taken, 16 stopped"), "{said}");
}

#[test]
fn plugin_with_an_empty_mask_receives_no_events() {
    let Some((written, said)) = drive(7, 0, &["all_reduce", "send:0"]) else {
        return;
    };
    are_written(&written, &["init world 1/2", "finalize"]);
    assert!(said.contains(": 0 events"), "{said}");
}
