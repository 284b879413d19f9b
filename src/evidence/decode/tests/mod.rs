use std::time::Duration;

use ddp_doctor_diagnosis::event::CallId;
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{Op, RecordKind, ReduceOp};

use super::*;

mod limits;
mod order;
mod sites;

fn report(kinds: Vec<Kind>) -> v1::Report {
    let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) }).collect();
    v1::Report { sent_unix_ns: 1, events, ..v1::Report::default() }
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
    let events = decode(&mut decoder, vec![Kind::SiteDefined(site), Kind::Record(issued)]);
    let [Event::Issued { process, call }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(*process, ProcessId(2 << 32 | 1));
    assert_eq!((call.root, call.peer), (Some(1), None), "group rank 1 is global rank 1");
    assert_eq!(call.at, Timestamp(5_000_500));
    assert_eq!(call.place.as_ref().unwrap().line, 4);
    assert!(call.is_async && !call.hidden);
    assert_eq!(call.group.as_ref().unwrap().key.layer, "c10d");
}

#[test]
fn call_with_a_number_that_no_job_reaches_is_left_out() {
    let mut decoder = known();
    for (ticket, seq, expected) in [(0, 1 << 53, 1), (1, (1 << 53) + 1, 0), (2, u64::MAX, 0)] {
        let issued = v1::Record { seq, ..record(ticket, RecordKind::Issued, ticket) };
        let events = decode(&mut decoder, vec![Kind::Record(issued)]);
        let calls = events.iter().filter(|it| matches!(it, Event::Issued { .. }));
        assert_eq!(calls.count(), expected, "{seq}: {events:?}");
    }
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
    let kinds = vec![Kind::GroupDefined(communicator), Kind::Record(own), Kind::Record(framework)];
    let events = decode(&mut decoder, kinds);
    let layers: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Issued { call, .. } => Some(call.group.as_ref().unwrap().key.layer.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(layers.len(), 2, "{events:?}");
    assert!(&*layers[0] == "nccl" && &*layers[1] == "c10d", "{layers:?}");
}

#[test]
fn nccl_call_of_a_c10d_call_uses_ranks_of_its_group() {
    let mut decoder = known();
    let mut lower_call = record(1, RecordKind::LowerCall, 1);
    lower_call.reduce_op = i32::from(ReduceOp::Max.number());
    lower_call.on_stream = Some(v1::OnStream { stream: 6, launch: 2 });
    let mut captured = lower_call.clone();
    (captured.ticket, captured.root) = (2, Some(0));
    captured.flags = u32::from(flags::CAPTURED);
    let issued = record(0, RecordKind::Issued, 1);
    let kinds = [issued, lower_call, captured].map(Kind::Record);
    let events = decode(&mut decoder, kinds.into());
    let issued: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::LowerCall { call, lower_call, .. } => Some((call, lower_call)),
            _ => None,
        })
        .collect();
    let [(call, first), (_, second)] = issued[..] else { panic!("{events:?}") };
    assert_eq!(*call, CallId(1));
    assert_eq!((first.op, first.reduce_op), (Op::Broadcast, ReduceOp::Max));
    assert_eq!((first.root, second.root), (Some(1), Some(3)));
    assert_eq!(first.on_stream.map(|on| on.stream), Some(6));
    assert_eq!(second.on_stream, None, "completion events are not available");
}

#[test]
fn step_marked_by_the_program_is_no_forward() {
    let mut decoder = known();
    let mark = record(0, RecordKind::Step, 0);
    let events = decode(&mut decoder, vec![Kind::Record(mark)]);
    assert!(matches!(events.as_slice(), [Event::Step { forward: None, .. }]));
}

#[test]
fn credentials_in_the_text_of_an_exception_are_left_out() {
    let mut decoder = known();
    let raised = |ticket, kind| {
        let text = "HTTPError: 401 for url: https://bob:PASS@hub.example/a?token=TOKEN".into();
        Kind::Record(v1::Record { text, ..record(ticket, kind, 0) })
    };
    let events =
        decode(&mut decoder, vec![raised(0, RecordKind::Exception), raised(1, RecordKind::Exit)]);
    let [Event::Exception { text, .. }, Event::ExitAnnounced { how, .. }] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    for text in [text, how] {
        assert_eq!(&**text, "HTTPError: 401 for url: https://…@hub.example/a?token=…");
    }
}

#[test]
fn settings_are_split_into_name_and_value() {
    let mut decoder = known();
    let setting = |ticket, text: &str| {
        let mut record = record(ticket, RecordKind::Setting, 0);
        record.text = text.into();
        Kind::Record(record)
    };
    let events = decode(&mut decoder, vec![setting(0, "nccl=2.27=3"), setting(1, "x")]);
    let [Event::Setting { name, value, .. }, Event::Note { .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((name.as_ref(), value.as_ref()), ("nccl", "2.27=3"));
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
