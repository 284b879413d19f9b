//! The order of events, and records that are missing or repeated.

use super::*;

#[test]
fn memory_samples_are_ordered_among_records() {
    let mut decoder = known();
    let inside = v1::MemorySample {
        process: 1,
        ticket: Some(1),
        mono_ns: 2_000,
        device: Some(0),
        gpu_used: Some(7),
        ..Default::default()
    };
    let outside =
        v1::MemorySample { process: 1, unix_ns: 9_000_000, rss: Some(5), ..Default::default() };
    let all = vec![
        Kind::Record(record(0, RecordKind::Issued, 1)),
        Kind::MemorySample(inside),
        Kind::MemorySample(outside),
        Kind::Record(record(2, RecordKind::Returned, 1)),
    ];
    let events = decode(&mut decoder, all.clone());
    let [
        Event::Issued { .. },
        Event::Memory { sample: gpu, at, .. },
        Event::Memory { sample: host, at: later, .. },
        Event::Returned { .. },
    ] = events.as_slice()
    else {
        panic!("nothing is lost: {events:#?}")
    };
    assert_eq!((gpu.device, gpu.gpu_used, gpu.rss), (Some(0), Some(7), None));
    assert_eq!((*at, *later), (Timestamp(5_001_000), Timestamp(9_000_000)));
    assert_eq!((host.rss, host.device), (Some(5), None));
    // Only a sample without a ticket is repeated.
    let again = decode(&mut decoder, all);
    assert!(
        matches!(again.as_slice(), [Event::Memory { sample, .. }] if sample.rss == Some(5)),
        "{again:#?}"
    );
    let foreign = v1::MemorySample { process: 99, ..Default::default() };
    let events = decode(&mut decoder, vec![Kind::MemorySample(foreign)]);
    assert!(matches!(events.as_slice(), [Event::Note { .. }]), "{events:?}");
}

#[test]
fn repeated_stream_yields_no_event_twice() {
    let mut decoder = known();
    let first = decode(&mut decoder, vec![Kind::Record(record(0, RecordKind::Issued, 1))]);
    assert_eq!(first.len(), 1);
    let again = decode(
        &mut decoder,
        vec![
            joined(),
            group(),
            Kind::Record(record(0, RecordKind::Issued, 1)),
            Kind::Record(record(1, RecordKind::Returned, 1)),
        ],
    );
    assert!(matches!(again.as_slice(), [Event::Returned { .. }]), "{again:?}");
    assert_eq!(decoder.rejected(), 0);
}

#[test]
fn unannounced_gap_counts_as_lost_records() {
    let mut decoder = known();
    let events = decode(&mut decoder, vec![Kind::Record(record(5, RecordKind::WaitEnd, 0))]);
    assert!(matches!(events[0], Event::RecordsLost { count: 5, .. }), "{events:?}");
    let lost = v1::RecordsLost { process: 1, count: 3 };
    let events = decode(
        &mut decoder,
        vec![Kind::RecordsLost(lost), Kind::Record(record(9, RecordKind::WaitEnd, 0))],
    );
    let counts: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::RecordsLost { count, .. } => Some(*count),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [3]);
}

#[test]
fn splits_are_attached_to_their_call() {
    let mut decoder = known();
    let mut issued = record(0, RecordKind::Issued, 8);
    issued.op = i32::from(Op::AllToAll.number());
    let piece = |ticket, at, output, splits: &[u32]| v1::Record {
        seq: at,
        flags: if output { u32::from(flags::OUTPUT) } else { 0 },
        splits: splits.to_vec(),
        ..record(ticket, RecordKind::Splits, 8)
    };
    let events = decode(&mut decoder, vec![Kind::Record(issued)]);
    assert!(events.is_empty() && decoder.holds());
    let events = decode(
        &mut decoder,
        vec![
            Kind::Record(piece(1, 0, false, &[1, 2])),
            Kind::Record(piece(2, 2, false, &[3])),
            Kind::Record(piece(3, 0, true, &[4])),
            Kind::Record(record(4, RecordKind::Returned, 8)),
        ],
    );
    let [Event::Issued { call, .. }, Event::Returned { .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(call.splits, [vec![1, 2, 3], vec![4]]);
}

#[test]
fn call_is_released_with_its_last_splits() {
    let mut decoder = known();
    let mut issued = record(0, RecordKind::Issued, 8);
    issued.op = i32::from(Op::AllToAll.number());
    let piece = |ticket, output| v1::Record {
        flags: if output { u32::from(flags::OUTPUT) } else { 0 },
        seq: 0,
        splits: vec![6],
        ..record(ticket, RecordKind::Splits, 8)
    };
    let kinds = [Kind::Record(issued), Kind::Record(piece(1, false))];
    assert!(decode(&mut decoder, kinds.into()).is_empty());
    let events = decode(&mut decoder, vec![Kind::Record(piece(2, true))]);
    let [Event::Issued { call, .. }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(call.splits, [[6], [6]]);
    assert!(decode(&mut decoder, Vec::new()).is_empty());
}

#[test]
fn splits_that_come_too_late_are_no_invalid_events() {
    let mut decoder = known();
    let mut issued = record(0, RecordKind::Issued, 8);
    issued.op = i32::from(Op::AllToAll.number());
    decode(&mut decoder, vec![Kind::Record(issued)]);
    let mut out = Vec::new();
    let now = Instant::now();
    decoder.release_overdue(now, &mut out);
    assert!(out.is_empty() && decoder.holds());
    decoder.release_overdue(now + 2 * MAX_HOLD, &mut out);
    assert!(matches!(out.as_slice(), [Event::Issued { .. }]) && !decoder.holds());
    let late = v1::Record { seq: 0, splits: vec![1, 2], ..record(1, RecordKind::Splits, 8) };
    assert!(decode(&mut decoder, vec![Kind::Record(late)]).is_empty());
    assert_eq!(decoder.rejected(), 0);
}

#[test]
fn held_call_is_released_at_the_end() {
    let mut decoder = known();
    let mut issued = record(0, RecordKind::Issued, 8);
    issued.op = i32::from(Op::AllToAll.number());
    decode(&mut decoder, vec![Kind::Record(issued)]);
    let mut out = Vec::new();
    decoder.release(&mut out);
    assert!(matches!(out.as_slice(), [Event::Issued { .. }]) && !decoder.holds());
}

#[test]
fn end_is_the_last_event_of_a_process() {
    let mut decoder = known();
    let dead = Kind::ProcessChanged(v1::ProcessChanged {
        process: 1,
        state: i32::from(ProcessState::Dead.number()),
        unix_ns: 3,
        exit_code: None,
        exit_signal: Some(9),
        ..v1::ProcessChanged::default()
    });
    let events = decode(
        &mut decoder,
        vec![dead.clone(), dead, Kind::Record(record(0, RecordKind::WaitEnd, 0))],
    );
    let [Event::ProcessChanged { exit, .. }, Event::Note { .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(exit.signal, Some(9));
    assert_eq!(decoder.rejected(), 2);
}

#[test]
fn gap_lasts_from_the_record_before_to_the_one_after() {
    let mut decoder = known();
    let at = |ticket, mono_ns| {
        Kind::Record(v1::Record { mono_ns, ..record(ticket, RecordKind::WaitEnd, 0) })
    };
    let lost = v1::RecordsLost { process: 1, count: 3 };
    let left_out = v1::RecordsLeftOut {
        process: 1,
        before: 50,
        threads_inside: Vec::new(),
        threads: Vec::new(),
    };
    let events = decode(
        &mut decoder,
        vec![
            at(0, 1_100),
            at(1, 1_200),
            Kind::RecordsLost(lost),
            at(5, 1_300),
            at(6, 1_400),
            Kind::RecordsLeftOut(left_out),
            at(52, 1_500),
            at(53, 1_600),
        ],
    );
    let gaps = events.iter().filter_map(|event| match event {
        // The monotonic clock is 4 999 000 ns behind.
        Event::Gap { from, to, .. } => Some((from.0 - 4_999_000, to.0 - 4_999_000)),
        _ => None,
    });
    assert_eq!(gaps.collect::<Vec<_>>(), [(1_200, 1_300), (1_400, 1_500)]);
}
