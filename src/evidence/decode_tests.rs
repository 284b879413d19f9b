use std::time::Duration;

use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{Op, RecordKind, ReduceOp};

use crate::diagnosis::event::CallId;

use super::*;

fn report(kinds: Vec<Kind>) -> v1::Report {
    let events = kinds
        .into_iter()
        .map(|kind| v1::Event { kind: Some(kind) })
        .collect();
    v1::Report {
        sent_unix_ns: 1,
        events,
        pong: None,
    }
}

fn joined() -> Kind {
    Kind::ProcessJoined(v1::ProcessJoined {
        process: 1,
        pid: 42,
        start_ticks: 7,
        rank: Some(3),
        world_size: Some(4),
        layer: "c10d".into(),
        world: String::new(),
        anchor_mono_ns: 1_000,
        anchor_unix_ns: 5_000_000,
        ..Default::default()
    })
}

fn group() -> Kind {
    Kind::GroupDefined(v1::GroupDefined {
        process: 1,
        id: 1,
        name: "0".into(),
        members: vec![3, 1],
        ..Default::default()
    })
}

fn record(ticket: u64, kind: RecordKind, call: u64) -> v1::Record {
    v1::Record {
        process: 1,
        ticket,
        mono_ns: 1_500,
        kind: i32::from(kind.number()),
        group: 1,
        seq: 1,
        call,
        op: i32::from(Op::Broadcast.number()),
        root: Some(1),
        ..Default::default()
    }
}

fn decode(decoder: &mut Decoder, kinds: Vec<Kind>) -> Vec<Event> {
    let mut out = Vec::new();
    decoder.decode(report(kinds), &mut out);
    out
}

fn known() -> Decoder {
    let mut decoder = Decoder::new(2);
    decode(&mut decoder, vec![joined(), group()]);
    decoder
}

#[test]
fn call_is_resolved() {
    let mut decoder = known();
    let site = v1::SiteDefined {
        process: 1,
        id: 9,
        file: "t.py".into(),
        line: 4,
        function: "f".into(),
        ..Default::default()
    };
    let mut issued = record(0, RecordKind::Issued, 1);
    issued.site = 9;
    issued.flags = u32::from(flags::ASYNC);
    let events = decode(
        &mut decoder,
        vec![Kind::SiteDefined(site), Kind::Record(issued)],
    );
    let [Event::Issued { process, call }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(*process, ProcessId(2 << 32 | 1));
    assert_eq!(
        (call.root, call.peer),
        (Some(1), None),
        "group rank 1 is global rank 1"
    );
    assert_eq!(call.at, Timestamp(5_000_500));
    assert_eq!(call.place.as_ref().unwrap().line, 4);
    assert!(call.is_async && !call.hidden);
    assert_eq!(call.group.as_ref().unwrap().key.layer, "c10d");
}

#[test]
fn communicator_in_a_c10d_box_has_layer_nccl() {
    let mut decoder = known();
    let communicator = v1::GroupDefined {
        process: 1,
        id: 2,
        name: "a1b2".into(),
        seat: Some(v1::Seat { rank: 0, size: 2 }),
        ..Default::default()
    };
    let mut own = record(0, RecordKind::Issued, 1);
    own.group = 2;
    let framework = record(1, RecordKind::Issued, 2);
    let kinds = vec![
        Kind::GroupDefined(communicator),
        Kind::Record(own),
        Kind::Record(framework),
    ];
    let events = decode(&mut decoder, kinds);
    let layers = events.iter().filter_map(|event| match event {
        Event::Issued { call, .. } => Some(call.group.as_ref().unwrap().key.layer.clone()),
        _ => None,
    });
    let layers: Vec<_> = layers.collect();
    assert_eq!(layers.len(), 2, "{events:?}");
    assert!(&*layers[0] == "nccl" && &*layers[1] == "c10d", "{layers:?}");
}

#[test]
fn nccl_call_of_a_c10d_call_uses_ranks_of_its_group() {
    let mut decoder = known();
    let mut lower_call = record(1, RecordKind::LowerCall, 1);
    lower_call.reduce_op = i32::from(ReduceOp::Max.number());
    lower_call.on_stream = Some(v1::OnStream {
        stream: 6,
        launch: 2,
    });
    let mut captured = lower_call.clone();
    (captured.ticket, captured.root) = (2, Some(0));
    captured.flags = u32::from(flags::CAPTURED);
    let issued = record(0, RecordKind::Issued, 1);
    let kinds = [issued, lower_call, captured].map(Kind::Record);
    let events = decode(&mut decoder, kinds.into());
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::LowerCall {
                call, lower_call, ..
            } => Some((call, lower_call)),
            _ => None,
        })
        .collect();
    let [(call, first), (_, second)] = told[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*call, CallId(1));
    assert_eq!((first.op, first.reduce_op), (Op::Broadcast, ReduceOp::Max));
    assert_eq!((first.root, second.root), (Some(1), Some(3)));
    assert_eq!(first.on_stream.map(|on| on.stream), Some(6));
    assert_eq!(
        second.on_stream, None,
        "completion events are not available"
    );
}

fn site(id: u32, line: u32, caller: u32) -> v1::SiteDefined {
    v1::SiteDefined {
        process: 1,
        id,
        file: "t.py".into(),
        line,
        function: "f".into(),
        caller,
        ..Default::default()
    }
}

/// A line of an installed package.
fn library_site(id: u32, line: u32, caller: u32) -> v1::SiteDefined {
    v1::SiteDefined {
        library: true,
        file: "/v/site-packages/t.py".into(),
        ..site(id, line, caller)
    }
}

/// The place of a call at the site `id`, after these definitions.
fn place_of(sites: Vec<v1::SiteDefined>, id: u32) -> Where {
    let mut kinds: Vec<Kind> = sites.into_iter().map(Kind::SiteDefined).collect();
    kinds.push(Kind::Record(v1::Record {
        site: id,
        ..record(0, RecordKind::InputEnded, 0)
    }));
    let events = decode(&mut known(), kinds);
    let place = events.iter().find_map(|event| match event {
        Event::InputEnded { place, .. } => place.as_deref(),
        _ => None,
    });
    place.unwrap().clone()
}

#[test]
fn library_sites_lead_to_the_users_line() {
    let lines = |place: &Where| -> Vec<u32> { place.via.iter().map(|it| it.line).collect() };
    let sites = vec![
        site(1, 9, 0),
        library_site(2, 20, 1),
        library_site(3, 30, 2),
    ];
    let place = place_of(sites, 3);
    assert_eq!(
        (&*place.file, place.line, place.library),
        ("t.py", 9, false)
    );
    assert_eq!(lines(&place), [20, 30]);

    let alone = place_of(vec![library_site(1, 20, 0), library_site(2, 30, 1)], 2);
    assert_eq!((alone.line, alone.library), (20, true));
    assert_eq!(lines(&alone), [30]);
}

#[test]
fn chain_of_library_sites_is_bounded() {
    let mut sites = vec![site(1, 9, 0)];
    sites.extend((2..2000).map(|id| library_site(id, id, id - 1)));
    let place = place_of(sites, 1999);
    assert_eq!((place.line, place.via.len()), (9, 16));
}

#[test]
fn library_site_is_reached_from_the_users_line() {
    let mut decoder = known();
    let sites = [site(1, 9, 0), library_site(2, 20, 1)];
    decode(&mut decoder, sites.map(Kind::SiteDefined).to_vec());
    let events = decode(
        &mut decoder,
        vec![Kind::SiteDefined(library_site(3, 30, 2))],
    );
    let [
        Event::Site {
            caller: Some(caller),
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!((caller.line, caller.via.len()), (9, 0));
}

#[test]
fn site_has_its_caller_and_later_its_guards() {
    let mut decoder = known();
    let mut read = site(2, 4, 1);
    read.guards = vec![v1::Guard {
        line: 3,
        test: "rank == 0".into(),
        subject: 1,
        form: 1,
    }];
    let told = |site: &v1::SiteDefined| Kind::SiteDefined(site.clone());
    let stream = vec![
        told(&site(1, 9, 7)),
        told(&site(2, 4, 1)),
        told(&read),
        told(&read),
    ];
    let events = decode(&mut decoder, stream);
    let [
        Event::Site { place, caller, .. },
        Event::Site {
            place: again,
            caller: None,
            guards,
            ..
        },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((place.line, again.line), (4, 4));
    assert_eq!(caller.as_ref().map(|caller| caller.line), Some(9));
    assert_eq!(guards.len(), 1);
    assert_eq!((guards[0].line, &*guards[0].test), (3, "rank == 0"));
    assert_eq!(decoder.rejected(), 0);
}

#[test]
fn callers_never_form_a_cycle() {
    let mut decoder = known();
    let mut forward = record(0, RecordKind::Step, 0);
    forward.site = 2;
    forward.flags = u32::from(flags::FORWARD | flags::REPEATED);
    forward.numel = Some(7);
    let events = decode(
        &mut decoder,
        vec![
            Kind::SiteDefined(site(1, 9, 2)),
            Kind::SiteDefined(site(2, 4, 1)),
            Kind::SiteDefined(site(3, 5, 3)),
            Kind::Record(forward),
        ],
    );
    let Some(Event::Step {
        forward: Some(forward),
        ..
    }) = events.last()
    else {
        panic!("{events:?}")
    };
    assert_eq!(forward.path.as_deref(), Some("t.py:4;t.py:9;"));
    assert_eq!(forward.batches, Some(7));
    assert!(forward.repeated && !forward.unsynchronised);
}

#[test]
fn step_marked_by_the_program_is_no_forward() {
    let mut decoder = known();
    let mark = record(0, RecordKind::Step, 0);
    let events = decode(&mut decoder, vec![Kind::Record(mark)]);
    assert!(matches!(
        events.as_slice(),
        [Event::Step { forward: None, .. }]
    ));
}

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
    let outside = v1::MemorySample {
        process: 1,
        unix_ns: 9_000_000,
        rss: Some(5),
        ..Default::default()
    };
    let all = vec![
        Kind::Record(record(0, RecordKind::Issued, 1)),
        Kind::MemorySample(inside),
        Kind::MemorySample(outside),
        Kind::Record(record(2, RecordKind::Returned, 1)),
    ];
    let events = decode(&mut decoder, all.clone());
    let [
        Event::Issued { .. },
        Event::Memory {
            sample: gpu, at, ..
        },
        Event::Memory {
            sample: host,
            at: later,
            ..
        },
        Event::Returned { .. },
    ] = events.as_slice()
    else {
        panic!("nothing is lost: {events:#?}")
    };
    assert_eq!(
        (gpu.device, gpu.gpu_used, gpu.rss),
        (Some(0), Some(7), None)
    );
    assert_eq!((*at, *later), (Timestamp(5_001_000), Timestamp(9_000_000)));
    assert_eq!((host.rss, host.device), (Some(5), None));
    // Only a sample without a ticket is repeated.
    let again = decode(&mut decoder, all);
    assert!(
        matches!(again.as_slice(), [Event::Memory { sample, .. }] if sample.rss == Some(5)),
        "{again:#?}"
    );
    let foreign = v1::MemorySample {
        process: 99,
        ..Default::default()
    };
    let events = decode(&mut decoder, vec![Kind::MemorySample(foreign)]);
    assert!(
        matches!(events.as_slice(), [Event::Note { .. }]),
        "{events:?}"
    );
}

#[test]
fn settings_are_split_into_name_and_value() {
    let mut decoder = known();
    let setting = |ticket, text: &str| {
        let mut record = record(ticket, RecordKind::Setting, 0);
        record.text = text.into();
        Kind::Record(record)
    };
    let events = decode(
        &mut decoder,
        vec![setting(0, "nccl=2.27=3"), setting(1, "x")],
    );
    let [Event::Setting { name, value, .. }, Event::Note { .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((name.as_ref(), value.as_ref()), ("nccl", "2.27=3"));
}

#[test]
fn repeated_stream_yields_no_event_twice() {
    let mut decoder = known();
    let first = decode(
        &mut decoder,
        vec![Kind::Record(record(0, RecordKind::Issued, 1))],
    );
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
    assert!(
        matches!(again.as_slice(), [Event::Returned { .. }]),
        "{again:?}"
    );
    assert_eq!(decoder.rejected(), 0);
}

#[test]
fn unannounced_gap_counts_as_lost_records() {
    let mut decoder = known();
    let events = decode(
        &mut decoder,
        vec![Kind::Record(record(5, RecordKind::WaitEnd, 0))],
    );
    assert!(
        matches!(events[0], Event::RecordsLost { count: 5, .. }),
        "{events:?}"
    );
    let lost = v1::RecordsLost {
        process: 1,
        count: 3,
    };
    let events = decode(
        &mut decoder,
        vec![
            Kind::RecordsLost(lost),
            Kind::Record(record(9, RecordKind::WaitEnd, 0)),
        ],
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
    let [Event::Issued { call, .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
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
    let late = v1::Record {
        seq: 0,
        splits: vec![1, 2],
        ..record(1, RecordKind::Splits, 8)
    };
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
        vec![
            dead.clone(),
            dead,
            Kind::Record(record(0, RecordKind::WaitEnd, 0)),
        ],
    );
    let [Event::ProcessChanged { exit, .. }, Event::Note { .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(exit.signal, Some(9));
    assert_eq!(decoder.rejected(), 2);
}

#[test]
fn invalid_messages_are_counted_and_ignored() {
    let mut decoder = known();
    let far = |process| v1::Record {
        process,
        ..record(0, RecordKind::Issued, 1)
    };
    let events = decode(
        &mut decoder,
        vec![
            Kind::Record(far(0)),
            Kind::Record(far(77)),
            Kind::Record(far(u64::MAX)),
            Kind::Record(v1::Record {
                group: 99,
                ..record(0, RecordKind::Issued, 1)
            }),
            Kind::Record(v1::Record {
                kind: -5,
                ..record(1, RecordKind::Issued, 1)
            }),
            Kind::Record(record(u64::MAX, RecordKind::Issued, 1)),
            Kind::GroupDefined(v1::GroupDefined {
                process: 1,
                id: 4,
                ..Default::default()
            }),
            Kind::ProcessChanged(v1::ProcessChanged {
                process: 1,
                state: 4000,
                ..Default::default()
            }),
            Kind::Note(v1::Note {
                process: 5,
                ..Default::default()
            }),
        ],
    );
    assert!(
        matches!(events.as_slice(), [Event::Note { .. }]),
        "{events:?}"
    );
    assert_eq!(decoder.rejected(), 9);
    let mut out = Vec::new();
    decoder.decode(
        v1::Report {
            events: vec![v1::Event { kind: None }],
            ..v1::Report::default()
        },
        &mut out,
    );
    assert_eq!(decoder.rejected(), 10);
    let again = decode(&mut decoder, vec![Kind::Record(far(77))]);
    assert!(again.is_empty(), "said once: {again:?}");
}

#[test]
fn roots_outside_the_group_are_unknown_and_times_saturate() {
    let mut decoder = known();
    for (ticket, (root, mono_ns)) in [(-1, 0), (2, u64::MAX), (i32::MAX, 1)]
        .into_iter()
        .enumerate()
    {
        let mut issued = record(ticket as u64, RecordKind::Issued, 1);
        issued.root = Some(root);
        issued.mono_ns = mono_ns;
        let events = decode(&mut decoder, vec![Kind::Record(issued)]);
        let [Event::Issued { call, .. }] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(call.root, None);
        assert!(call.at >= Timestamp(5_000_000 - 1_000), "{:?}", call.at);
    }
}

#[test]
fn tables_are_bounded() {
    let mut decoder = known();
    let endless = "x".repeat(1 << 20);
    let started = Instant::now();
    let mut kept = 0;
    for id in 1..100_000 {
        let site = v1::SiteDefined {
            process: 1,
            id,
            file: if id < 50 { endless.clone() } else { "f".into() },
            line: 1,
            function: String::new(),
            ..Default::default()
        };
        let before = decoder.rejected();
        decode(&mut decoder, vec![Kind::SiteDefined(site)]);
        kept += u32::from(decoder.rejected() == before);
    }
    assert_eq!(kept, 65_536);
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn impossible_world_size_is_noted_once_and_ignored() {
    let claim = |process: u64, size: u32| {
        let Kind::ProcessJoined(joined) = joined() else {
            unreachable!("it is one")
        };
        Kind::ProcessJoined(v1::ProcessJoined {
            process,
            rank: Some(process as u32),
            world_size: Some(size),
            ..joined
        })
    };
    let mut decoder = Decoder::new(0);
    let mut events = Vec::new();
    let claims = vec![claim(1, u32::MAX), claim(2, 20_000_000), claim(3, 1 << 17)];
    decoder.decode(report(claims), &mut events);
    let sizes: Vec<Option<u32>> = events
        .iter()
        .filter_map(|event| match event {
            Event::ProcessJoined { world_size, .. } => Some(*world_size),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [None, None, Some(1 << 17)]);
    let notes: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Event::Note { text, .. } => Some(&**text),
            _ => None,
        })
        .collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("claims a world of 4294967295 ranks"),
        "{notes:?}"
    );
}

#[test]
fn decoders_of_one_job_share_their_memory() {
    let memory = Arc::new(Memory::new(100 << 10));
    let site = |id: u32| {
        Kind::SiteDefined(v1::SiteDefined {
            process: 1,
            id,
            file: "x".repeat(4000),
            line: id,
            ..Default::default()
        })
    };
    let rejected = |decoder: &mut Decoder| {
        let mut events = Vec::new();
        decoder.decode(report(vec![joined()]), &mut events);
        decoder.decode(report((1..=10).map(site).collect()), &mut events);
        decoder.rejected()
    };
    let mut first = Decoder::within(0, Arc::clone(&memory));
    assert_eq!(rejected(&mut first), 0);
    assert!(rejected(&mut Decoder::within(1, Arc::clone(&memory))) > 4);
    drop(first);
    assert_eq!(rejected(&mut Decoder::within(2, memory)), 0);
}

#[test]
fn processes_of_a_node_share_groups_and_places() {
    let mut decoder = known();
    let of_process = |process: u64| {
        let joined = v1::ProcessJoined {
            process,
            pid: process as u32,
            rank: Some(1),
            layer: "c10d".into(),
            ..Default::default()
        };
        let group = v1::GroupDefined {
            process,
            id: 1,
            name: "0".into(),
            members: vec![3, 1],
            ..Default::default()
        };
        let call = v1::Record {
            process,
            site: 1,
            ..record(0, RecordKind::Issued, 1)
        };
        let site = v1::SiteDefined {
            process,
            ..site(1, 9, 0)
        };
        vec![
            Kind::ProcessJoined(joined),
            Kind::GroupDefined(group),
            Kind::SiteDefined(site),
            Kind::Record(call),
        ]
    };
    let mut call = |process| {
        let events = decode(&mut decoder, of_process(process));
        let calls = events.into_iter().filter_map(|event| match event {
            Event::Issued { call, .. } => call.group.clone().zip(call.place.clone()),
            _ => None,
        });
        calls.last().unwrap()
    };
    let ((group, place), (same_group, same_place)) = (call(2), call(3));
    assert!(Arc::ptr_eq(&group, &same_group));
    assert!(Arc::ptr_eq(&place, &same_place));
}
