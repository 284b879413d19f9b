use ddp_doctor_proto::Op;

use super::*;
use crate::diagnosis::event::{Call, CallId, ProcessId, ThreadId};

#[test]
fn long_gaps_are_evaluated_a_limited_number_of_times() {
    let mut unobserved = Unobserved;
    let mut stage = Stage::new(Config::default(), Timestamp::default(), &mut unobserved);
    let hour = |number: u64| Timestamp(number * 3_600_000_000_000);
    stage.go_to(hour(1));
    let process = ProcessId(1);
    stage.events.push(Event::ProcessJoined {
        process,
        rank: Some(0),
        world_size: Some(2),
        host: "h".into(),
        pid: 1,
        layer: "c10d".into(),
        world: "".into(),
        restarts: 0,
        at: hour(1),
    });
    let call = Call::new(CallId(1), hour(1), ThreadId(1), Op::InitProcessGroup);
    stage.events.push(Event::Issued { process, call: Arc::new(call) });
    stage.feed();
    stage.go_to(hour(2));
    let first = stage.looks;
    stage.looks = MAX_LOOKS;
    stage.go_to(hour(3));
    let later = stage.looks - MAX_LOOKS;
    assert!(later > 0 && first > 10 * later, "{first} {later}");
}

#[test]
fn nodes_of_a_job_share_one_limit_of_memory() {
    let tables = Arc::new(Memory::new(64 << 10));
    let mut rejected = Vec::new();
    for number in 0..2 {
        let node = Node {
            hello: v1::Hello::default(),
            journal: None,
            boxes: Vec::new(),
            no_boxes: Vec::new(),
            gaps: Vec::new(),
        };
        let mut part = Part::new(number, node, &tables, &mut Vec::new());
        let joined = v1::ProcessJoined { process: 1, ..v1::ProcessJoined::default() };
        let group = v1::GroupDefined {
            process: 1,
            id: 1,
            members: (0..4000).collect(),
            ..v1::GroupDefined::default()
        };
        let kinds = [Kind::ProcessJoined(joined), Kind::GroupDefined(group)];
        let events = kinds.map(|kind| v1::Event { kind: Some(kind) }).into();
        part.decoder.decode(v1::Report { events, ..v1::Report::default() }, &mut Vec::new());
        rejected.push((part.decoder.rejected(), part));
    }
    assert_eq!((rejected[0].0, rejected[1].0), (0, 1));
}
