//! A sample report and its timeline for tests.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Call, CallId, GroupInfo, ThreadId};
use ddp_doctor_proto::report::{
    Blame, CallState, Cause, CauseKind, Confidence, Effect, Evidence, Exit, Finding, Group, Job,
    Rank, RankCall, RankState, Report, Role, SCHEMA, SCHEMA_VERSION, Severity, Timestamp, Tool,
    Verdict, Where,
};
use ddp_doctor_proto::{DType, Op};

use serde_json::Value;

use super::timeline::{Blocked, Curve, Event, Mark, TimedCall, Timeline, Track};

fn entry(rank: u32, state: CallState, waited_ms: Option<u64>) -> RankCall {
    RankCall {
        rank,
        state,
        waited_ms,
        op: Some("all_reduce".into()),
        seq: Some(if state == CallState::NotIssued { 22 } else { 23 }),
        dtype: Some("float32".into()),
        shapes: Some(vec![vec![4680]]),
        numel: Some(4680),
        reduce_op: None,
        root: None,
        peer: None,
        tag: None,
        step: Some(if state == CallState::NotIssued { 7 } else { 8 }),
        place: Some(Where {
            file: "train.py".into(),
            line: 9,
            function: "main".into(),
            ..Where::default()
        }),
    }
}

/// The finding of [`report`].
#[must_use]
pub fn early_exit() -> Finding {
    Finding {
        code: "DD102".into(),
        name: "early-exit".into(),
        severity: Severity::Error,
        effect: Effect::Blocks,
        confidence: Confidence::Proved,
        role: Role::Initiating,
        attempt: 0,
        caused_by: vec![],
        headline: None,
        summary: "rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23".into(),
        cause: Some(Cause { kind: CauseKind::UnevenInputs, confidence: Confidence::Supported }),
        ranks: Blame { root: vec![1], root_confidence: Confidence::Proved, victims: vec![0, 2] },
        group: Some(Group {
            name: "0".into(),
            description: "default_pg".into(),
            layer: "c10d".into(),
            ranks: vec![0, 1, 2],
        }),
        seq: Some(23),
        op: Some("all_reduce".into()),
        per_rank: vec![
            entry(0, CallState::Waiting, Some(1200)),
            entry(1, CallState::NotIssued, None),
            entry(2, CallState::Waiting, Some(1100)),
        ],
        parameters: vec![],
        certificate: None,
        why: vec!["all_reduce #23 needs all three ranks.".into()],
        next: vec!["Give every rank the same number of batches.".into()],
        blocked_at: None,
        detected_at: Timestamp(0),
        held: Vec::new(),
        latency_ms: 180,
    }
}

/// The ranks of [`report`].
#[must_use]
pub fn ranks() -> Vec<Rank> {
    let rank = |rank, state, code| Rank {
        rank,
        host: "node".into(),
        pid: 1,
        attempt: 0,
        state,
        exit: Exit { code, signal: None },
        step: 8,
        place: None,
        waiting_in: None,
        blocked_on: None,
        activity: None,
        device: None,
        ports: Vec::new(),
        memory: None,
    };
    vec![
        rank(0, RankState::Waiting, None),
        rank(1, RankState::Exited, Some(0)),
        rank(2, RankState::Waiting, None),
    ]
}

/// Rank 1 ended early, and the others wait for it.
#[must_use]
pub fn report() -> Report {
    Report {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION.into(),
        tool: Tool::this(),
        job: Job {
            id: "j-1".into(),
            attempt: 0,
            world_size: Some(3),
            nodes: 1,
            backends: vec!["gloo".into()],
            started_at: Some(Timestamp(1_000_000_000)),
            ended_at: Some(Timestamp(10_000_000_000)),
        },
        verdict: Verdict::Hang,
        evidence: Evidence { records: 12, ..Evidence::default() },
        findings: vec![early_exit()],
        ranks: ranks(),
    }
}

/// A group name with markup, as a hostile job may send it.
pub const MARKUP: &str = "</script><img src=x onerror=alert(1)>";

/// Characters that take no room, or change the direction or the lines of a text.
pub const INVISIBLE: [char; 7] =
    ['\u{200b}', '\u{feff}', '\u{2028}', '\u{2029}', '\u{e0041}', '\u{202e}', '\u{2066}'];
/// A name with all of them, and with addresses that viewers show as links.
pub const HIDDEN: &str = "a\u{200b}\u{feff}\u{2028}\u{2029}\u{e0041}\u{202e}\u{2066} [link](3) \
                                 https://evil.example/x www.evil.example mailto:a.evil";

/// [`report`] with [`HIDDEN`] in all texts that may be a rank's, also those which no rank can choose today.
pub fn hostile_report() -> Report {
    /// Fields with words of the report's own, and codes.
    const WORDS: [&str; 14] = [
        "schema",
        "schema_version",
        "code",
        "severity",
        "effect",
        "confidence",
        "role",
        "state",
        "verdict",
        "kind",
        "root_confidence",
        "started_at",
        "ended_at",
        "layer",
    ];
    fn spoil(key: &str, value: &mut Value) {
        match value {
            Value::String(text) if !WORDS.contains(&key) && !key.ends_with("_at") => {
                text.push_str(HIDDEN);
            }
            Value::Array(items) => items.iter_mut().for_each(|it| spoil(key, it)),
            Value::Object(fields) => fields.iter_mut().for_each(|(key, it)| spoil(key, it)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(report()).unwrap();
    spoil("", &mut value);
    serde_json::from_value(value).unwrap()
}

/// Asserts that a text made from [`HIDDEN`] hides nothing and has no link.
#[track_caller]
pub fn assert_inert(text: &str) {
    assert!(!text.contains(INVISIBLE), "{text:?}");
    assert!(text.contains("evil.example/x"), "{text:?}");
    for link in ["://", "www.", "mailto:", "\n[link]"] {
        assert!(!text.contains(link), "{link}: {text:?}");
    }
}

/// The timeline of [`report`]: two calls of each rank, the second open on ranks 0 and 2.
pub fn timeline() -> Timeline {
    let at = |ms: u64| Timestamp(ms * 1_000_000);
    let timed = |id, ms, ended: Option<u64>| TimedCall {
        call: Arc::new(call(id, at(ms))),
        returned: Some(at(ms + 1)),
        wait: Some((at(ms + 1), ended.map(at))),
        inferred: false,
        completed: None,
        is_complete: false,
    };
    let track = |rank| {
        let mut calls = vec![timed(22, 8000, Some(8200 + u64::from(rank)))];
        if rank != 1 {
            calls.push(timed(23, 8800, None));
        }
        let exit = Exit { code: Some(0), signal: None };
        Track {
            rank,
            host: "node".into(),
            pid: 1,
            layer: "c10d".into(),
            began: at(1000),
            ended: (rank == 1).then_some((at(8700), exit)),
            calls,
            marks: vec![Mark { at: at(7900), what: Event::Step(7) }],
            memory: vec![Curve {
                name: "resident set".into(),
                points: vec![(at(2000), 1 << 20), (at(8000), 3 << 20)],
            }],
            ..Track::default()
        }
    };
    let blocked = |rank| Blocked {
        rank,
        call: Arc::new(call(23, at(8800))),
        since: at(8800),
        needs: vec![1],
    };
    Timeline {
        until: at(10_000),
        tracks: vec![track(0), track(1), track(2)],
        waits: vec![blocked(0), blocked(2)],
    }
}

/// An `all_reduce` of the default group of three ranks, as number `id` of its process and its group.
pub fn call(id: u64, at: Timestamp) -> Call {
    let group = GroupInfo::c10d("0", "default_pg", "gloo", vec![0, 1, 2]);
    let place =
        Where { file: "train.py".into(), line: 9, function: "main".into(), ..Where::default() };
    Call {
        group: Some(Arc::new(group)),
        seq: id,
        dtype: DType::Float32,
        numel: Some(4680),
        shape: Some(vec![4680]),
        step: id.saturating_sub(15),
        place: Some(Arc::new(place)),
        ..Call::new(CallId(id), at, ThreadId(1), Op::AllReduce)
    }
}
