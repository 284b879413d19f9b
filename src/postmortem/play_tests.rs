use ddp_doctor_diagnosis::event::{Call, CallId, ProcessId, ThreadId};
use ddp_doctor_proto::Op;

use super::*;

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
    let first = stage.spent_in_gaps;
    stage.spent_in_gaps = MAX_GAPS;
    stage.go_to(hour(3));
    let later = stage.spent_in_gaps - MAX_GAPS;
    assert!(later > 0 && first > 10 * later, "{first} {later}");
}

/// Counts evaluations.
struct Counter(u32);

impl Observer for Counter {
    fn evaluated(&mut self, _: &Engine, _: Timestamp, _: bool) {
        self.0 += 1;
    }
}

#[test]
fn evaluations_of_many_reports_become_rare() {
    let mut counter = Counter(0);
    let mut stage = Stage::new(Config::default(), Timestamp(1), &mut counter);
    let mut at = Timestamp(1);
    for spent in [0, 3 * STEP] {
        stage.spent = spent;
        for _ in 0..64 {
            at = at.plus(LOOK_EVERY);
            stage.go_to(at);
        }
    }
    assert_eq!(counter.0, 64 + 8);
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
