//! Group membership, and the attributes of processes and worlds.

use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::Exit;

use super::*;
use crate::input::event::{CallId, Event, MemorySample, OomKills, ThreadId};
use crate::testing;

#[test]
fn rank_known_late_is_a_member_of_its_groups() {
    let mut model = Model::default();
    let process = ProcessId(1);
    let joined = |rank| Event::ProcessJoined {
        process,
        rank,
        world_size: Some(2),
        host: "node".into(),
        pid: 7,
        layer: "c10d".into(),
        world: "".into(),
        restarts: 0,
        at: Timestamp(0),
    };
    model.apply(joined(None));
    let group = testing::group("0", "gloo", &[0, 1]);
    model.apply(Event::GroupJoined { process, group });
    assert_eq!(model.groups().count(), 0);
    model.apply(joined(Some(1)));
    let members: Vec<u32> = model.groups().flat_map(|g| g.members.keys().copied()).collect();
    assert_eq!(members, [1]);
    assert_eq!(model.process_of(1).map(|process| process.pid), Some(7));
}

fn join(model: &mut Model, id: u64, rank: u32, at: u64) {
    join_world(model, id, rank, at, "");
}

fn join_world(model: &mut Model, id: u64, rank: u32, at: u64, world: &str) {
    model.apply(Event::ProcessJoined {
        process: ProcessId(id),
        rank: Some(rank),
        world_size: Some(2),
        host: "node".into(),
        pid: id as u32,
        layer: "c10d".into(),
        world: world.into(),
        restarts: 0,
        at: Timestamp(at),
    });
}

#[test]
fn thread_that_makes_the_calls_trains_unless_the_main_thread_makes_some() {
    let mut model = Model::default();
    join(&mut model, 1, 0, 100);
    let process = ProcessId(1);
    let mut issues = |thread: u32, tid: u32| {
        let thread = ThreadId(thread);
        model.apply(Event::ThreadDefined { process, thread, tid });
        let mut call = testing::call(ddp_doctor_proto::Op::Barrier);
        (call.thread, call.id) = (thread, CallId(u64::from(tid)));
        model.apply(Event::Issued { process, call: Arc::new(call) });
        model.process_of(0).and_then(Process::training_tid)
    };
    assert_eq!(issues(1, 40), Some(40));
    assert_eq!(issues(2, 1), None, "the main thread has the id of the process");
}

#[test]
fn thread_whose_framework_makes_the_calls_trains_if_the_main_thread_only_joined() {
    use ddp_doctor_proto::Op::{self, AllReduce, Broadcast, DestroyProcessGroup, InitProcessGroup};
    let mut model = Model::default();
    join(&mut model, 1, 0, 100);
    let process = ProcessId(1);
    let mut issues = |tid: u32, op: Op, hidden: bool| {
        let thread = ThreadId(tid);
        model.apply(Event::ThreadDefined { process, thread, tid });
        let mut call = testing::call(op);
        (call.thread, call.id, call.hidden) = (thread, CallId(u64::from(tid)), hidden);
        model.apply(Event::Issued { process, call: Arc::new(call) });
        model.process_of(0).and_then(Process::training_tid)
    };
    assert_eq!(issues(1, InitProcessGroup, false), None);
    assert_eq!(issues(40, AllReduce, true), Some(40));
    assert_eq!(issues(41, Broadcast, true), Some(41), "the other one is of autograd");
    assert_eq!(issues(1, DestroyProcessGroup, false), Some(41));
    assert_eq!(issues(1, Broadcast, true), None, "DDP was created on the main thread");
}

#[test]
fn complementary_ranks_at_one_port_are_one_world() {
    let world_of = |model: &Model, rank| {
        model.process_of(rank).map(|process| process.world.name.to_string()).unwrap_or_default()
    };
    let mut model = Model::default();
    join_world(&mut model, 1, 0, 100, "29500/");
    join_world(&mut model, 2, 1, 110, "29500/singleton-2");
    assert_eq!(world_of(&model, 1), "29500/");
    // Another port, and a rank that is taken, are other worlds.
    let mut model = Model::default();
    join_world(&mut model, 1, 0, 100, "29500/a");
    join_world(&mut model, 2, 1, 110, "29501/b");
    join_world(&mut model, 3, 0, 120, "29500/c");
    assert_eq!((world_of(&model, 1), world_of(&model, 0)), ("29501/b".into(), "29500/c".into()));
}

#[test]
fn memory_and_settings_belong_to_the_process() {
    let mut model = Model::default();
    join(&mut model, 1, 0, 100);
    let setting = |value: &str| Event::Setting {
        process: ProcessId(1),
        name: "nccl".into(),
        value: value.into(),
        at: Timestamp(101),
    };
    model.apply(setting("1"));
    model.apply(setting("2"));
    for (at, rss) in [(200, 50), (300, 40)] {
        model.apply(Event::Memory {
            process: ProcessId(1),
            sample: Box::new(MemorySample { rss: Some(rss), ..MemorySample::default() }),
            at: Timestamp(at),
        });
    }
    let process = &model.processes[&ProcessId(1)];
    assert_eq!(process.settings["nccl"].as_ref(), "2");
    let rss = process.memory.rss.unwrap();
    assert_eq!((rss.latest, rss.peak), (40, 50));
    // A measurement is not a sign of progress.
    assert_eq!(process.last_at, Timestamp(101));
}

fn generation(model: &Model, id: u64) -> u32 {
    model.processes[&ProcessId(id)].world.generation
}

#[test]
fn simultaneous_launches_have_separate_worlds() {
    let mut model = Model::default();
    // Rank 1 of one launch is late, and so is rank 0 of the other.
    join_world(&mut model, 1, 0, 100, "29500/a");
    join_world(&mut model, 2, 1, 101, "29501/b");
    join_world(&mut model, 3, 0, 102, "29501/b");
    join_world(&mut model, 4, 1, 103, "29500/a");
    let world = |id| &model.processes[&ProcessId(id)].world;
    assert_eq!(world(1), world(4));
    assert_eq!(world(2), world(3));
    assert_ne!(world(1), world(2));
}

#[test]
fn restarted_ranks_share_a_world_even_if_one_joins_late() {
    let mut model = Model::default();
    join(&mut model, 1, 0, 100);
    model.apply(Event::ProcessChanged {
        process: ProcessId(1),
        state: ProcessState::Dead,
        exit: Exit { code: None, signal: Some(libc_signal::TERM) },
        oom_kills: OomKills::default(),
        at: Timestamp(200),
    });
    join(&mut model, 2, 1, 300);
    join(&mut model, 3, 0, 301);
    assert_eq!((generation(&model, 2), generation(&model, 3)), (1, 1));
}

#[test]
fn generation_follows_the_latest_process_of_the_same_rank_and_world() {
    let mut model = Model::default();
    join_world(&mut model, 1, 0, 1, "w");
    join_world(&mut model, 2, 1, 2, "w");
    assert_eq!((generation(&model, 1), generation(&model, 2)), (0, 0));
    join_world(&mut model, 3, 0, 2, "w");
    join_world(&mut model, 4, 0, 3, "v");
    join_world(&mut model, 5, 0, 4, "w");
    assert_eq!([3, 4, 5].map(|id| generation(&model, id)), [1, 0, 2]);
    // A process that takes another rank gives up the first one.
    join_world(&mut model, 5, 1, 5, "w");
    join_world(&mut model, 6, 0, 6, "w");
    assert_eq!([5, 6].map(|id| generation(&model, id)), [1, 2]);
}

#[test]
fn rank_reported_late_belongs_to_the_world_it_joined() {
    let mut model = Model::default();
    join(&mut model, 1, 0, 100);
    model.apply(Event::ProcessChanged {
        process: ProcessId(1),
        state: ProcessState::Dead,
        exit: Exit { code: Some(1), signal: None },
        oom_kills: OomKills::default(),
        at: Timestamp(200),
    });
    join(&mut model, 2, 1, 101);
    assert_eq!(generation(&model, 2), 0);
}
