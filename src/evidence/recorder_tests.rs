use ddp_doctor_proto::report::{Confidence, Timestamp};
use serde_json::{Value, json};
use v1::event::Kind;

use super::*;
use crate::diagnosis::{Config, Engine, Event};
use crate::evidence::decode::Decoder;

/// What PyTorch 2.10 and 2.15 said after the same calls on Gloo.
const BODIES: [&[u8]; 2] = [
    include_bytes!("../../tests/recorder/gloo-2.10.json"),
    include_bytes!("../../tests/recorder/gloo-2.15.json"),
];

fn entry(id: u64, seq: u64, name: &str) -> Value {
    json!({
        "record_id": id, "pg_id": 0, "process_group": ["0", "default_pg"],
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "is_p2p": false,
        "profiling_name": name, "time_created_ns": 1_000_000_000 + id,
        "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0,
        "input_sizes": [[3, 4]], "output_sizes": [[3, 4]],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": "scheduled", "retired": false, "timeout_ms": 1000,
        "thread_id": "77", "thread_name": "python",
    })
}

fn body(entries: &[Value]) -> Vec<u8> {
    json!({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries})
        .to_string()
        .into_bytes()
}

#[test]
fn what_pytorch_says_is_read() {
    for body in BODIES {
        let recorded = decode(body, 5).unwrap();
        assert_eq!(recorded.left_out, 0);
        let said: Vec<_> = recorded
            .calls
            .iter()
            .map(|call| {
                let op = Op::from_number(u8::try_from(call.op).unwrap());
                (call.group.as_str(), call.seq, op, call.numel)
            })
            .collect();
        assert_eq!(
            said,
            [
                ("0", 1, Op::AllReduce, Some(12)),
                ("0", 2, Op::Broadcast, Some(12)),
                ("0", 3, Op::Barrier, None),
                ("1", 1, Op::AllReduce, Some(12)),
                ("0", 4, Op::AllGather, Some(12)),
                ("0", 5, Op::AllGather, Some(12)),
                ("0", 6, Op::Reduce, Some(12)),
                ("0", 7, Op::Gather, Some(12)),
                ("0", 8, Op::Scatter, Some(12)),
                // Gloo makes a reduce_scatter out of it.
                ("0", 9, Op::AllReduce, Some(12)),
                ("0", 10, Op::AllToAll, Some(12)),
            ]
        );
        let first = &recorded.calls[0];
        assert_eq!(
            (first.recorder.as_str(), &first.dims[..]),
            ("gloo", &[3, 4][..])
        );
        assert_eq!(first.dtype, i32::from(DType::Float32.number()));
        assert_eq!(recorded.calls[3].dtype, i32::from(DType::Int64.number()));
        assert_eq!(first.over_unix_ns, Some(5));
    }
}

#[test]
fn an_empty_recorder_is_one() {
    let said = br#"{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{},"pg_status":{},"version":"2.10"}"#;
    assert_eq!(decode(said, 1).unwrap(), Recorded::default());
}

#[test]
fn what_is_cut_off_or_garbage_is_no_answer() {
    for body in BODIES {
        for end in (0..body.len()).step_by(97) {
            assert!(matches!(
                decode(&body[..end], 1),
                Err(RecorderError::Format(_))
            ));
        }
    }
    for garbage in [
        "",
        "null",
        "[]",
        "{}",
        "{\"version\":2}",
        "\u{0}\u{1}",
        "<html>",
    ] {
        assert!(decode(garbage.as_bytes(), 1).is_err(), "{garbage}");
    }
    let deep = "[".repeat(100_000);
    assert!(decode(deep.as_bytes(), 1).is_err());
    let deep = format!("{{\"version\":\"2.10\",\"entries\":[{deep}]}}");
    assert!(decode(deep.as_bytes(), 1).is_err());
    let error = decode(&vec![b' '; MAX_BODY + 1], 1).unwrap_err();
    assert!(error.to_string().contains("33554433 bytes"), "{error}");
    let other = br#"{"version":"3.0","entries":[]}"#;
    let error = decode(other, 1).unwrap_err();
    assert!(error.to_string().contains("3.0"), "{error}");
}

#[test]
fn one_strange_entry_costs_no_other() {
    let mut entries = vec![entry(0, 1, "gloo:all_reduce")];
    let change = |key: &str, value: Value| {
        let mut entry = entry(1, 2, "gloo:all_reduce");
        entry[key] = value;
        entry
    };
    entries.extend([
        json!(7),
        json!({}),
        change("record_id", json!(-1)),
        change("collective_seq_id", json!(0)),
        change("time_created_ns", json!(1.5)),
        change("process_group", json!(["0"])),
        change("profiling_name", json!("nothing in particular")),
        change("profiling_name", json!(":")),
        change("input_sizes", json!([["wide"]])),
        change("is_p2p", json!(true)),
    ]);
    let strange = entries.len() - 1;
    entries.push(entry(9, 2, "nccl:coalesced"));
    let recorded = decode(&body(&entries), 1).unwrap();
    assert_eq!((recorded.calls.len(), recorded.left_out), (2, strange));
    assert_eq!(recorded.calls[1].op, i32::from(Op::Other.number()));
}

#[test]
fn sizes_that_cannot_be_are_unknown() {
    let mut huge = entry(0, 1, "gloo:all_reduce");
    huge["input_sizes"] = json!([[u64::MAX, u64::MAX]]);
    let mut wide = entry(1, 2, "gloo:all_reduce");
    wide["input_sizes"] = json!([vec![1; 1000]]);
    let recorded = decode(&body(&[huge, wide]), 1).unwrap();
    for call in &recorded.calls {
        assert_eq!((call.numel, call.dims.len()), (None, 0));
    }
}

#[test]
fn the_parts_of_a_coalesced_call_are_one() {
    let entries = [
        entry(0, 1, "nccl:all_reduce"),
        entry(1, 1, "nccl:all_reduce"),
        entry(2, 2, "nccl:all_reduce"),
    ];
    let recorded = decode(&body(&entries), 1).unwrap();
    let seqs: Vec<u64> = recorded.calls.iter().map(|call| call.seq).collect();
    assert_eq!(seqs, [1, 2]);
}

/// Two ranks whose recorders say this: what the engine makes of it.
struct Job {
    decoder: Decoder,
    engine: Engine,
    now: Timestamp,
}

impl Job {
    fn new() -> Self {
        let mut job = Self {
            decoder: Decoder::new(0),
            engine: Engine::new(Config::default()),
            now: Timestamp(2_000_000_000),
        };
        let mut kinds = vec![Kind::Hello(v1::Hello {
            job: "job".into(),
            started_unix_ns: 1_000_000_000,
            ..Default::default()
        })];
        for process in 1..=2 {
            kinds.push(Kind::ProcessJoined(v1::ProcessJoined {
                process,
                pid: process as u32,
                rank: Some(process as u32 - 1),
                world_size: Some(2),
                layer: "flight-recorder".into(),
                anchor_unix_ns: 1_000_000_000,
                ..Default::default()
            }));
            kinds.push(Kind::GroupDefined(v1::GroupDefined {
                process,
                id: 1,
                name: "0".into(),
                description: "default_pg".into(),
                backend: "gloo".into(),
                members: vec![0, 1],
                ..Default::default()
            }));
        }
        job.tell(kinds);
        job
    }

    fn tell(&mut self, kinds: Vec<Kind>) -> Vec<Event> {
        let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) });
        let report = v1::Report {
            sent_unix_ns: self.now.0,
            events: events.collect(),
            pong: None,
        };
        let mut out = Vec::new();
        self.decoder.decode(report, &mut out);
        for event in &out {
            self.engine.handle(event.clone(), self.now);
        }
        self.engine.handle_timeout(self.now);
        self.engine.poll_change();
        out
    }

    fn says(&mut self, process: u64, entries: &[Value]) -> Vec<Event> {
        let recorded = decode(&body(entries), self.now.0).unwrap();
        let calls = recorded.calls.into_iter().map(|mut call| {
            call.process = process;
            Kind::RecorderCall(call)
        });
        self.tell(calls.collect())
    }

    fn codes(&self) -> Vec<(String, Confidence)> {
        let findings = self.engine.report().findings.into_iter();
        findings
            .map(|it| (it.code.to_string(), it.confidence))
            .collect()
    }
}

#[test]
fn other_sizes_and_types_at_one_place_are_told() {
    for (key, value, code) in [
        ("input_sizes", json!([[3, 5]]), "DD104"),
        ("input_dtypes", json!(["Double"]), "DD105"),
        ("profiling_name", json!("gloo:broadcast"), "DD103"),
    ] {
        let mut job = Job::new();
        let well = entry(0, 1, "gloo:all_reduce");
        job.says(1, &[well.clone(), entry(1, 2, "gloo:all_reduce")]);
        let mut other = entry(1, 2, "gloo:all_reduce");
        other[key] = value;
        job.says(2, &[well, other]);
        assert_eq!(job.codes(), [(code.to_owned(), Confidence::Proved)]);
    }
}

#[test]
fn calls_that_agree_are_nothing_to_tell() {
    let mut job = Job::new();
    for process in [1, 2] {
        job.says(
            process,
            &[entry(0, 1, "gloo:all_reduce"), entry(1, 2, "gloo:barrier")],
        );
    }
    job.now = job.now.plus(std::time::Duration::from_secs(600));
    job.tell(Vec::new());
    assert_eq!(job.codes(), []);
}

#[test]
fn a_call_that_a_peer_does_not_make_is_a_wait_once_it_has_lasted() {
    let mut job = Job::new();
    for process in [1, 2] {
        job.says(process, &[entry(0, 1, "gloo:all_reduce")]);
    }
    job.says(
        1,
        &[
            entry(0, 1, "gloo:all_reduce"),
            entry(1, 2, "gloo:all_reduce"),
        ],
    );
    assert_eq!(job.codes(), []);
    job.now = job.now.plus(std::time::Duration::from_secs(120));
    job.tell(Vec::new());
    assert_eq!(job.codes(), [("DD101".to_owned(), Confidence::Supported)]);
}

#[test]
fn what_is_told_again_is_told_once_and_ends_once() {
    let mut job = Job::new();
    let mut call = entry(5, 6, "gloo:all_reduce");
    let begun = job.says(1, &[call.clone()]);
    assert!(matches!(begun[..], [Event::Issued { .. }]), "{begun:?}");
    assert!(job.says(1, &[call.clone()]).is_empty());
    call["retired"] = json!(true);
    let over = job.says(1, &[call.clone()]);
    assert!(matches!(over[..], [Event::Completed { .. }]), "{over:?}");
    assert!(job.says(1, &[call.clone()]).is_empty());
    // Of a group that nobody knows, and of a process that is none.
    call["record_id"] = json!(6);
    call["pg_id"] = json!(9);
    call["process_group"] = json!(["nobody's", ""]);
    let before = job.decoder.rejected();
    job.says(1, &[call.clone()]);
    job.says(3, &[call]);
    assert_eq!(job.decoder.rejected(), before + 2);
}

#[test]
fn a_peer_that_was_asked_earlier_is_not_missing() {
    let mut job = Job::new();
    let mut call = entry(0, 1, "gloo:all_reduce");
    call["retired"] = json!(true);
    // Rank 0's call is over; what rank 1 did is not known yet.
    job.says(1, &[call]);
    for _ in 0..100 {
        job.now = job.now.plus(std::time::Duration::from_secs(1));
        job.tell(Vec::new());
        assert_eq!(job.codes(), []);
    }
}
