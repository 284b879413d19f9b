//! `analyze` on generated dumps, for rare situations.

use std::fs;
use std::io::Write;

use ddp_doctor::postmortem::{self, Analysis};
use ddp_doctor_proto::report::{Report, Verdict};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::analyze_contents;
use crate::support::dumps::{Entry, analyze, analyze_ranks, dump, findings, report};
use crate::support::process::program;

const WORLD: &[(&str, &str)] = &[("0", "[0,1,2]")];

fn all_reduce(seq: u64) -> Entry {
    Entry::new("nccl:all_reduce", "0", seq)
}

#[track_caller]
fn found(dumps: &[Value]) -> Vec<(String, String, Vec<u32>)> {
    findings(report(&analyze(dumps)))
}

fn expect(code: &str, confidence: &str, root: &[u32]) -> Vec<(String, String, Vec<u32>)> {
    vec![(code.into(), confidence.into(), root.to_vec())]
}

#[test]
fn numbers_in_names_may_count_from_one() {
    let ahead = dump(WORLD, &[all_reduce(1), all_reduce(2).open()]);
    let behind = dump(WORLD, &[all_reduce(1)]);
    let dumps = [(1, ahead.clone()), (2, behind), (3, ahead)];
    let analysis = analyze_ranks(&dumps);
    assert_eq!(findings(report(&analysis)), expect("DD101", "suspected", &[1]));
    let remarks: Vec<&str> = analysis.remarks.iter().map(|it| &*it.text).collect();
    assert!(remarks.iter().any(|it| it.contains("count from 1")), "{remarks:?}");
    // Rank 0 left no dump, and the last number is a rank.
    let analysis = analyze_ranks(&dumps[..2]);
    let ranks = report(&analysis).ranks.iter().map(|it| it.rank);
    assert_eq!(ranks.collect::<Vec<_>>(), [1, 2]);
    assert!(analysis.remarks.is_empty(), "{:?}", analysis.remarks);
}

#[test]
fn rank_without_further_calls_is_missing() {
    let ahead = [all_reduce(1), all_reduce(2).open(), all_reduce(3).open()];
    let behind = [all_reduce(1)];
    let dumps = [dump(WORLD, &ahead), dump(WORLD, &behind), dump(WORLD, &ahead)];
    // Ranks of a healthy job may be as far apart.
    assert_eq!(found(&dumps), expect("DD101", "suspected", &[1]));
    // The watchdog has retired the call.
    let retired = all_reduce(2).open().with("retired", true);
    let gave_up = [all_reduce(1), retired];
    let dumps = [dump(WORLD, &gave_up), dump(WORLD, &behind), dump(WORLD, &ahead[..2])];
    assert_eq!(found(&dumps), expect("DD101", "supported", &[1]));
}

#[test]
fn nodes_hosts_and_processes_of_dumps_are_null() {
    let ahead = [all_reduce(1), all_reduce(2).open()];
    let analysis =
        analyze(&[dump(WORLD, &ahead), dump(WORLD, &[all_reduce(1)]), dump(WORLD, &ahead)]);
    let written = json!(report(&analysis));
    let rank = &written["ranks"][0];
    for unknown in [&written["job"]["nodes"], &rank["host"], &rank["pid"]] {
        assert_eq!(*unknown, Value::Null, "{written}");
    }
    let read: Report = serde_json::from_value(written).unwrap();
    assert_eq!(read, *report(&analysis));
}

#[test]
fn timeline_of_dumps_has_no_times_that_they_lack() {
    let at = |seq: u64| 1_700_000_000_000_000_000 + seq * 1_000_000;
    let timed = all_reduce(1).with("time_discovered_completed_ns", at(1) + 70_000);
    let ahead = [timed, all_reduce(2), all_reduce(3).open(), all_reduce(4).open()];
    let behind = [all_reduce(1), all_reduce(2)];
    let dumps = [dump(WORLD, &ahead), dump(WORLD, &behind), dump(WORLD, &ahead)];
    let analysis = analyze(&dumps);
    let calls = &analysis.timelines[0].tracks[0].calls;
    assert!(calls.iter().all(|it| it.returned.is_none() && it.wait.is_none()));
    let ends: Vec<(u64, bool, Option<u64>)> = calls
        .iter()
        .map(|it| (it.call.at.0, it.is_complete, it.completed.map(|at| at.0)))
        .collect();
    let expected = [
        (at(1), true, Some(at(1) + 70_000)),
        (at(2), true, None),
        (at(3), false, None),
        (at(4), false, None),
    ];
    assert_eq!(ends, expected);
}

#[test]
fn rank_missing_in_a_broadcast_is_found_without_its_root() {
    let broadcast = |seq| Entry::new("nccl:broadcast", "0", seq).open();
    let timed_out = broadcast(2).with("retired", true);
    let ahead = [all_reduce(1), timed_out, broadcast(3)];
    let dumps = [dump(WORLD, &ahead), dump(WORLD, &ahead), dump(WORLD, &ahead[..1])];
    assert_eq!(found(&dumps), expect("DD101", "supported", &[2]));
}

#[test]
fn device_without_completions_is_stuck_inside() {
    let done = [all_reduce(1), all_reduce(2), all_reduce(3).open()];
    let stuck = [all_reduce(1), all_reduce(2).open(), all_reduce(3).open()];
    let dumps = [dump(WORLD, &done), dump(WORLD, &done), dump(WORLD, &stuck)];
    let found = found(&dumps);
    assert_eq!((found[0].0.as_str(), &found[0].2[..]), ("DD116", &[2][..]), "{found:?}");
}

#[test]
fn mismatched_calls_are_proved() {
    let broadcast = Entry::new("nccl:broadcast", "0", 2).open();
    let odd = [all_reduce(1), broadcast];
    let even = [all_reduce(1), all_reduce(2).open()];
    let dumps = [dump(WORLD, &even), dump(WORLD, &odd), dump(WORLD, &even)];
    assert_eq!(found(&dumps), expect("DD103", "proved", &[1]));
}

/// Eight rounds of three calls of different sizes, then calls of these sizes that are open.
fn rounds(last: &[u64]) -> Value {
    let sized = |seq: u64, size: u64| {
        let line = json!([{ "name": "step", "filename": "/job/train.py", "line": 40 + size }]);
        all_reduce(seq).sizes(json!([[size]]), json!([[size]])).with("frames", line)
    };
    let done = (0..24).map(|it| sized(it + 1, it % 3 + 1));
    let open = (25..).zip(last).map(|(seq, &size)| sized(seq, size).open());
    dump(WORLD, &done.chain(open).collect::<Vec<_>>())
}

#[test]
fn skipped_call_of_a_round_is_no_change_of_order() {
    let one_more = rounds(&[1, 2, 3, 1]);
    let dumps = [one_more.clone(), rounds(&[2, 3, 1]), one_more];
    assert_eq!(found(&dumps), expect("DD104", "proved", &[1]));
    let all = rounds(&[1, 2, 3]);
    let dumps = [all.clone(), all.clone(), rounds(&[3, 1, 2, 3])];
    assert_eq!(found(&dumps), expect("DD104", "proved", &[2]));
    // As many calls as the others have made.
    let dumps = [all.clone(), rounds(&[2, 3, 1]), all];
    assert_eq!(found(&dumps), expect("DD109", "proved", &[1]));
}

#[test]
fn mismatch_behind_a_message_is_found() {
    let groups = [("0", "[0,1,2]"), ("1", "[0,1]")];
    let sized = |size: u64| {
        let call = all_reduce(2).sizes(json!([[size]]), json!([[size]]));
        call.open()
    };
    let message = |name: &str| Entry::message(name, "1", 1).open();
    // The message of rank 1 is queued behind the collective, and that of rank 0 the other way round.
    let dumps = [
        dump(&groups, &[all_reduce(1), message("nccl:recv 0<-1"), sized(1)]),
        dump(&groups, &[all_reduce(1), sized(3), message("nccl:send 1->0")]),
        dump(WORLD, &[all_reduce(1), sized(3)]),
    ];
    assert_eq!(found(&dumps), expect("DD104", "proved", &[0]));
}

#[test]
fn wholes_of_gathered_and_scattered_pieces_are_compared() {
    let gather = |piece: u64, whole: u64| {
        let call = Entry::new("nccl:_all_gather_base", "0", 1).open();
        dump(WORLD, &[call.sizes(json!([[piece]]), json!([[whole]]))])
    };
    let dumps = [gather(8, 24), gather(8, 24), gather(4, 12)];
    assert_eq!(found(&dumps), expect("DD104", "proved", &[2]));
    let scatter = |piece: u64, whole: u64| {
        let call = Entry::new("nccl:_reduce_scatter_base", "0", 1).open();
        dump(WORLD, &[call.sizes(json!([[whole]]), json!([[piece]]))])
    };
    let dumps = [scatter(8, 24), scatter(4, 12), scatter(8, 24)];
    assert_eq!(found(&dumps), expect("DD104", "proved", &[1]));
    // Pieces of different sizes of one whole.
    let uneven = |piece: u64| {
        let call = Entry::new("nccl:all_gather", "0", 1);
        dump(WORLD, &[call.sizes(json!([[piece]]), json!([[1], [2], [3]]))])
    };
    assert_eq!(found(&[uneven(1), uneven(2), uneven(3)]), []);
}

#[test]
fn length_of_earlier_waits_does_not_hide_a_hang() {
    let at = |seq: u64, seconds: u64| {
        let line = json!([{ "name": "step", "filename": "/job/train.py", "line": 41 }]);
        all_reduce(seq)
            .with("time_created_ns", 1_700_000_000_000_000_000 + seconds * 1_000_000_000)
            .with("frames", line)
    };
    let rank = |first: u64, last: Option<Entry>| {
        let calls = [at(1, first), at(2, 251)].into_iter().chain(last);
        dump(WORLD, &calls.collect::<Vec<_>>())
    };
    // Rank 1 compiles for 250 s before its first call. The timeout is 600 s.
    let open = || Some(at(3, 252).open());
    let dumps = [rank(0, open()), rank(250, None), rank(0, open())];
    assert_eq!(found(&dumps)[0].0, "DD101");
    assert_eq!(found(&dumps)[0].2, [1]);
}

#[test]
fn cycle_of_waits_is_not_proved_by_dumps() {
    let groups = &[("0", "[0, 1]"), ("1", "[0, 1]")];
    let one = |group, record: u64| {
        let entry = Entry::new("gloo:all_reduce", group, 1).open();
        entry.with("time_created_ns", 1_700_000_000_000_000_000_u64 + record)
    };
    let dumps = [dump(groups, &[one("0", 1)]), dump(groups, &[one("1", 1)])];
    assert_eq!(found(&dumps), expect("DD111", "suspected", &[0, 1]));
}

#[test]
fn rank_with_counted_calls_only_is_not_a_culprit() {
    // Only calls that are not complete are in these dumps. Rank 1 completed everything.
    let mut waits = dump(WORLD, &[all_reduce(7).open().with("record_id", 40)]);
    waits["entries"][0]["record_id"] = json!(40);
    waits["pg_status"] =
        json!({"0": {"last_enqueued_collective": "7", "last_completed_collective": "6"}});
    let mut done = dump(WORLD, &[]);
    done["pg_status"] =
        json!({"4": {"last_enqueued_collective": 7, "last_completed_collective": 7}});
    let dumps = [waits.clone(), done, waits];
    let found = found(&dumps);
    assert!(found.iter().all(|(.., root)| !root.contains(&1)), "{found:?}");
}

#[test]
fn unmatched_receive_names_the_sender() {
    let pair = &[("0", "[0, 1]")];
    let send = |nth| Entry::message("nccl:send 0->1", "0", nth);
    let receive = |nth| Entry::message("nccl:recv 1<-0", "0", nth);
    let sender = dump(pair, &[send(1), send(2)]);
    let receiver = dump(pair, &[receive(1), receive(2), receive(3).open()]);
    let found = found(&[sender, receiver]);
    assert_eq!((found[0].0.as_str(), &found[0].2[..]), ("DD113", &[0][..]), "{found:?}");
}

#[test]
fn messages_of_rings_with_different_starts_are_not_compared() {
    // The rings begin with different messages, and each rank has two peers.
    let send = |to: u32, nth| Entry::message(&format!("nccl:send 0->{to}"), "0", nth);
    let receive = |own: u32, nth| Entry::message(&format!("nccl:recv {own}<-0"), "0", nth);
    let later = |mut dump: Value| {
        for (at, entry) in dump["entries"].as_array_mut().unwrap().iter_mut().enumerate() {
            entry["record_id"] = json!(100 + at);
        }
        dump
    };
    let dumps = [
        later(dump(WORLD, &[send(1, 51), send(2, 52)])),
        later(dump(WORLD, &[receive(1, 26), receive(1, 27)])),
        later(dump(WORLD, &[receive(2, 26), receive(2, 27), receive(2, 28)])),
    ];
    assert_eq!(report(&analyze(&dumps)).verdict, Verdict::Healthy);
}

#[test]
fn coalesced_messages_are_complete_with_their_group() {
    let pair = &[("0", "[0, 1]")];
    let inside = |name: &str| Entry::message(name, "0", 1).open();
    let end = |entry: Entry| entry.sizes(json!([]), json!([]));
    let done = end(Entry::new("nccl:coalesced", "0", 1).with("p2p_seq_id", 1));
    let both = [
        [inside("nccl:send 0->1"), inside("nccl:recv 0<-1"), done.clone()],
        [inside("nccl:recv 1<-0"), inside("nccl:send 1->0"), done],
    ];
    let dumps = [dump(pair, &both[0]), dump(pair, &both[1])];
    assert_eq!(report(&analyze(&dumps)).verdict, Verdict::Healthy);
}

#[test]
fn versions_and_unknown_operations_are_remarks() {
    let unknown = Entry::new("nccl:new_window", "0", 2);
    let mut dumps = [
        dump(WORLD, &[all_reduce(1), unknown]),
        dump(WORLD, &[all_reduce(1)]),
        dump(WORLD, &[all_reduce(1)]),
    ];
    dumps[1]["version"] = json!("2.1");
    dumps[2]["version"] = json!("3.0");
    let analysis = analyze(&dumps);
    assert_eq!(report(&analysis).verdict, Verdict::Healthy, "{:?}", report(&analysis));
    let has = |text: &str| analysis.remarks.iter().any(|it| it.text.contains(text));
    assert!(has("operations that this version does not know"));
    assert!(has("format version \"3.0\" is unknown"));
    assert_eq!(analysis.remarks.len(), 2);
}

#[test]
fn empty_dump_counts_as_missing() {
    let empty = json!({"version": "2.10", "pg_config": {}, "pg_status": {}, "nccl_comm_state": {}});
    let rank = [all_reduce(1), all_reduce(2).open(), all_reduce(3).open()];
    let analysis = analyze(&[dump(WORLD, &rank), empty, dump(WORLD, &rank)]);
    let report = report(&analysis);
    assert_eq!(report.verdict, Verdict::Insufficient);
    assert!(report.findings[0].summary.contains("another recorder of the process"));
}

#[test]
fn clocks_of_hosts_are_not_compared() {
    let late = |by: u64| -> Vec<Entry> {
        let calls = (1..400).map(|seq| {
            let at = 1_700_000_000_000_000_000 + seq * 50_000_000 + by;
            all_reduce(seq).with("time_created_ns", at)
        });
        calls.collect()
    };
    let dumps = [dump(WORLD, &late(0)), dump(WORLD, &late(3_000_000_000)), dump(WORLD, &late(0))];
    assert_eq!(found(&dumps), []);
}

#[test]
fn two_jobs_give_two_reports() {
    let dir = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (job, began) in [("first", 1_700_000_000), ("second", 1_700_000_060)] {
        let at = began * 1_000_000_000_u64;
        let calls = [all_reduce(1), all_reduce(2).open()].map(|it| it.with("time_created_ns", at));
        fs::create_dir(dir.path().join(job)).unwrap();
        for rank in 0..3 {
            let path = dir.path().join(job).join(format!("trace_rank_{rank}"));
            fs::write(&path, dump(WORLD, &calls).to_string()).unwrap();
            paths.push(path);
        }
    }
    let analysis = postmortem::analyze(&paths);
    let jobs: Vec<&str> = analysis.reports.iter().map(|it| it.job.id.as_str()).collect();
    assert_eq!(jobs, ["first", "second"]);
}

#[test]
fn claimed_ranks_are_not_reported_one_by_one() {
    let claims = dump(&[("0", "[0, 131071]")], &[all_reduce(1).open()]);
    let analysis = analyze(&[claims]);
    let report = report(&analysis);
    assert_eq!(report.verdict, Verdict::Insufficient);
    assert!(report.findings.len() < 5, "{}", report.findings.len());
}

#[test]
fn dumps_are_told_from_text_by_their_contents() {
    let rank = [all_reduce(1), all_reduce(2).open(), all_reduce(3).open()];
    let dumps = [dump(WORLD, &rank), dump(WORLD, &rank[..1]), dump(WORLD, &rank)];
    let codes = |analysis: &Analysis| {
        let report = report(analysis);
        assert_eq!(analysis.remarks, []);
        (report.verdict, report.findings[0].ranks.root.clone())
    };
    let expected = codes(&analyze(&dumps));
    // With line breaks, as `json.dump(indent=2)` writes them.
    let pretty: Vec<(String, Vec<u8>)> = (0..3)
        .map(|rank| {
            let text = serde_json::to_vec_pretty(&dumps[rank]).unwrap();
            (format!("trace_rank_{rank}.json"), text)
        })
        .collect();
    assert_eq!(codes(&analyze_contents(&pretty)), expected);
    let mut archive = Vec::new();
    for (name, text) in &pretty {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", text.len()).as_bytes());
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        archive.extend(header);
        archive.extend(text);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.extend([0; 1024]);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&archive).unwrap();
    let packed = [("dumps.tar.gz".to_owned(), encoder.finish().unwrap())];
    assert_eq!(codes(&analyze_contents(&packed)), expected);
    assert_eq!(codes(&analyze_contents(&[("dumps.tar".into(), archive)])), expected);
}

#[test]
fn file_that_is_no_dump_is_named_with_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.pt"), b"\x80\x02ccollections\nOrderedDict\n)R.").unwrap();
    fs::write(dir.path().join("loss.csv"), "epoch,loss\n").unwrap();
    for (name, text) in [
        ("model.pt", "opcode 0x63 is not executed"),
        ("loss.csv", "Flight Recorder dumps (pickle or JSON)"),
    ] {
        let output = program(dir.path()).args(["analyze", name]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains(name) && stderr.contains(text), "{stderr}");
    }
}
