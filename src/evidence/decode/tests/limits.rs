//! What a decoder rejects, bounds and shares.

use super::*;

#[test]
fn invalid_messages_are_counted_and_ignored() {
    let mut decoder = known();
    let far = |process| v1::Record { process, ..record(0, RecordKind::Issued, 1) };
    let events = decode(
        &mut decoder,
        vec![
            Kind::Record(far(0)),
            Kind::Record(far(77)),
            Kind::Record(far(u64::MAX)),
            Kind::Record(v1::Record { group: 99, ..record(0, RecordKind::Issued, 1) }),
            Kind::Record(v1::Record { kind: -5, ..record(1, RecordKind::Issued, 1) }),
            Kind::Record(record(u64::MAX, RecordKind::Issued, 1)),
            Kind::GroupDefined(v1::GroupDefined { process: 1, id: 4, ..Default::default() }),
            Kind::ProcessChanged(v1::ProcessChanged {
                process: 1,
                state: 4000,
                ..Default::default()
            }),
            Kind::Note(v1::Note { process: 5, ..Default::default() }),
        ],
    );
    assert!(matches!(events.as_slice(), [Event::Note { .. }]), "{events:?}");
    assert_eq!(decoder.rejected(), 9);
    let mut out = Vec::new();
    decoder.decode(
        v1::Report { events: vec![v1::Event { kind: None }], ..v1::Report::default() },
        &mut out,
    );
    assert_eq!(decoder.rejected(), 10);
    let again = decode(&mut decoder, vec![Kind::Record(far(77))]);
    assert!(again.is_empty(), "said once: {again:?}");
}

#[test]
fn roots_outside_the_group_are_unknown_and_times_saturate() {
    let mut decoder = known();
    for (ticket, (root, mono_ns)) in [(-1, 0), (2, u64::MAX), (i32::MAX, 1)].into_iter().enumerate()
    {
        let mut issued = record(ticket as u64, RecordKind::Issued, 1);
        issued.root = Some(root);
        issued.mono_ns = mono_ns;
        let events = decode(&mut decoder, vec![Kind::Record(issued)]);
        let [Event::Issued { call, .. }] = events.as_slice() else { panic!("{events:?}") };
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
fn impossible_claim_is_noted_once_and_ignored() {
    let claim = |process: u64, rank: u32, size: u32| {
        let Kind::ProcessJoined(joined) = joined() else { unreachable!("it is one") };
        Kind::ProcessJoined(v1::ProcessJoined {
            process,
            rank: Some(rank),
            world_size: Some(size),
            ..joined
        })
    };
    let decoded = |claims: Vec<Kind>| {
        let mut events = Vec::new();
        Decoder::new(0).decode(report(claims), &mut events);
        let mut ranks = Vec::new();
        let mut notes = Vec::new();
        for event in events {
            match event {
                Event::ProcessJoined { rank, world_size, .. } => ranks.push((rank, world_size)),
                Event::Note { text, .. } => notes.push(text.what.to_string()),
                _ => {}
            }
        }
        (ranks, notes)
    };
    let size = 1 << 17;
    let (ranks, notes) =
        decoded(vec![claim(1, 0, u32::MAX), claim(2, 1, 20_000_000), claim(3, 2, size)]);
    let sizes: Vec<Option<u32>> = ranks.into_iter().map(|(_, size)| size).collect();
    assert_eq!(sizes, [None, None, Some(size)]);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("claims a world of 4294967295 ranks"));

    let (ranks, notes) =
        decoded(vec![claim(1, u32::MAX, 2), claim(2, size, 2), claim(3, size - 1, 2)]);
    let ranks: Vec<Option<u32>> = ranks.into_iter().map(|(rank, _)| rank).collect();
    assert_eq!(ranks, [None, None, Some(size - 1)]);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("claims to be rank 4294967295"));
}

#[test]
fn decoders_of_one_job_share_their_memory() {
    let memory = Arc::new(Memory::new(60 << 10));
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

/// Twelve bytes stand for 131 072 members.
#[test]
fn groups_are_charged_for_what_their_members_take() {
    let limit = 16 << 20;
    let mut decoder = Decoder::within(0, Arc::new(Memory::new(limit)));
    let members = [0, 1, 1 << 17].map(u32::to_le_bytes).concat();
    let group = |id: u32| {
        Kind::GroupDefined(v1::GroupDefined {
            process: 1,
            id,
            name: id.to_string(),
            runs: members.clone(),
            ..Default::default()
        })
    };
    let mut events = Vec::new();
    decoder.decode(report(vec![joined()]), &mut events);
    decoder.decode(report((1..=100).map(group).collect()), &mut events);
    let groups = events.iter().filter(|it| matches!(it, Event::GroupJoined { .. })).count();
    // The decoder and the engine each have a list of the members.
    assert!(groups > 0 && groups * 2 * 4 * (1 << 17) <= limit, "{groups}");
    assert_eq!(decoder.rejected(), 100 - groups as u64);
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
        let call = v1::Record { process, site: 1, ..record(0, RecordKind::Issued, 1) };
        let site = v1::SiteDefined { process, ..site(1, 9, 0) };
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
