use ddp_doctor_proto::report::GroupRef;

use super::*;
use crate::diagnosis::event::{OnStream, Seat};
use crate::diagnosis::testing;

const MS: u64 = 1_000_000;

/// The group 0 of two ranks, and others like it.
fn group(name: &str) -> Option<Arc<GroupInfo>> {
    (name != "nobody's").then(|| testing::group(name, "nccl", &[0, 1]))
}

fn entry(id: u64, (group, number): (&str, u64), seq: u64, numel: u64) -> v1::RecorderCall {
    v1::RecorderCall {
        recorder: "nccl".into(),
        id,
        group: group.into(),
        group_number: number,
        seq,
        op: i32::from(Op::AllReduce.number()),
        dtype: i32::from(DType::Float32.number()),
        numel: Some(numel),
        dims: vec![2, numel as u32 / 2],
        ..v1::RecorderCall::default()
    }
}

/// What NCCL is asked for on a communicator of so many ranks.
fn asked(at_ms: u64, numel: u64, size: u32) -> Call {
    let mut call = testing::call(Op::AllReduce)
        .numel(numel)
        .dtype(DType::Float32)
        .build();
    call.at = Timestamp(at_ms * MS);
    call.on_stream = Some(OnStream {
        stream: 1,
        launch: 0,
    });
    call.group = Some(Arc::new(GroupInfo {
        key: GroupRef {
            layer: "nccl".into(),
            epoch: 0,
            name: "9f".into(),
            ordinal: 0,
            members: Vec::new(),
        },
        description: "".into(),
        backend: "nccl".into(),
        seat: Some(Seat { rank: 0, size }),
    }));
    call
}

/// Tells entries, each of its time in milliseconds.
fn told(entries: &[(u64, v1::RecorderCall)]) -> Entries {
    let mut told = Entries::default();
    for (at_ms, entry) in entries {
        let taken = told.take(entry.clone(), Timestamp(at_ms * MS), group);
        assert_eq!(taken, Some(()), "{entry:?}");
    }
    told
}

fn named(entries: &mut Entries, communicator: u32, call: &Call) -> Option<(String, u64, Vec<u32>)> {
    let (above, dims) = entries.of(communicator, call)?;
    Some((above.group.key.name.clone(), above.seq, dims))
}

const DEFAULT: (&str, u64) = ("0", 0);
const OTHER: (&str, u64) = ("1", 1);

#[test]
fn calls_are_those_that_were_written_down_right_before_them() {
    let mut entries = told(&[
        (100, entry(0, DEFAULT, 1, 8)),
        (200, entry(1, DEFAULT, 2, 8)),
        // Told of again: it is over.
        (200, entry(1, DEFAULT, 2, 8)),
    ]);
    assert_eq!(
        named(&mut entries, 7, &asked(200, 8, 2)),
        Some(("0".into(), 2, vec![2, 4]))
    );
    // That one is taken.
    assert_eq!(named(&mut entries, 7, &asked(201, 8, 2)), None);
    // Known whose it is, it may be long in coming.
    entries
        .take(entry(2, DEFAULT, 3, 6), Timestamp(300 * MS), group)
        .unwrap();
    assert_eq!(
        named(&mut entries, 7, &asked(9000, 6, 2)),
        Some(("0".into(), 3, vec![2, 3]))
    );
}

#[test]
fn who_may_be_either_is_neither() {
    let mut entries = told(&[(100, entry(0, DEFAULT, 1, 8)), (101, entry(1, OTHER, 1, 8))]);
    assert_eq!(named(&mut entries, 7, &asked(102, 8, 2)), None);
    // Their next ones differ.
    for (at, next) in [(200, entry(2, DEFAULT, 2, 8)), (201, entry(3, OTHER, 2, 6))] {
        entries.take(next, Timestamp(at * MS), group).unwrap();
    }
    assert_eq!(
        named(&mut entries, 7, &asked(202, 6, 2)),
        Some(("1".into(), 2, vec![2, 3]))
    );
    assert_eq!(
        named(&mut entries, 8, &asked(203, 8, 2)),
        Some(("0".into(), 2, vec![2, 4]))
    );
}

#[test]
fn what_does_not_fit_has_no_other_name() {
    let one = [(100, entry(0, DEFAULT, 1, 8))];
    for (why, call) in [
        ("another size", asked(100, 6, 2)),
        ("a communicator of more ranks", asked(100, 8, 3)),
        ("long after it", asked(1000, 8, 2)),
        ("before it", asked(90, 8, 2)),
        ("another type", {
            let mut call = asked(100, 8, 2);
            call.dtype = DType::Float64;
            call
        }),
        ("another operation", {
            let mut call = asked(100, 8, 2);
            call.op = Op::Broadcast;
            call
        }),
        ("one of several that are made together", {
            let mut call = asked(100, 8, 2);
            call.on_stream = Some(OnStream {
                stream: 1,
                launch: 3,
            });
            call
        }),
    ] {
        assert_eq!(named(&mut told(&one), 7, &call), None, "{why}");
    }
    // And as it is, it does.
    assert!(named(&mut told(&one), 7, &asked(100, 8, 2)).is_some());
}

#[test]
fn a_barrier_is_the_sum_of_one_element() {
    let barrier = v1::RecorderCall {
        op: i32::from(Op::Barrier.number()),
        dtype: 0,
        numel: None,
        dims: Vec::new(),
        ..entry(0, DEFAULT, 1, 8)
    };
    let mut entries = told(&[(100, barrier)]);
    assert_eq!(
        named(&mut entries, 7, &asked(100, 1, 2)),
        Some(("0".into(), 1, vec![]))
    );
}

#[test]
fn what_makes_no_sense_is_said_to_be_none() {
    let mut entries = Entries::default();
    for strange in [
        entry(0, ("nobody's", 4), 1, 8),
        entry(0, DEFAULT, 0, 8),
        entry(u64::MAX, DEFAULT, 1, 8),
    ] {
        assert_eq!(entries.take(strange, Timestamp(0), group), None);
    }
}

#[test]
fn no_more_than_the_latest_are_kept() {
    let many = 3 * KEPT as u64;
    let all: Vec<_> = (0..many)
        .map(|n| (n, entry(n, DEFAULT, n + 1, 8)))
        .collect();
    let mut entries = told(&all);
    assert!(entries.groups.values().all(|it| it.entries.len() == KEPT));
    let (_, seq, _) = named(&mut entries, 7, &asked(many, 8, 2)).unwrap();
    assert_eq!(seq, many);
}
