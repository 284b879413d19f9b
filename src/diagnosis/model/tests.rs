//! Who is a member of what, and what is a process's own.

use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::Exit;

use super::*;
use crate::diagnosis::event::{Event, MemorySample, OomKills};
use crate::diagnosis::testing;

#[test]
fn a_rank_that_is_known_late_is_a_member_of_its_groups_all_the_same() {
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
        at: Timestamp(0),
    };
    model.apply(joined(None));
    let group = testing::group("0", "gloo", &[0, 1]);
    model.apply(Event::GroupJoined { process, group });
    assert_eq!(model.groups().count(), 0);
    model.apply(joined(Some(1)));
    let members: Vec<u32> = model
        .groups()
        .flat_map(|g| g.members.keys().copied())
        .collect();
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
        at: Timestamp(at),
    });
}

#[test]
fn memory_and_settings_are_the_processs() {
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
            sample: Box::new(MemorySample {
                rss: Some(rss),
                ..MemorySample::default()
            }),
            at: Timestamp(at),
        });
    }
    let process = &model.processes[&ProcessId(1)];
    assert_eq!(process.settings["nccl"].as_ref(), "2");
    let rss = process.memory.rss.unwrap();
    assert_eq!((rss.latest, rss.peak), (40, 50));
    // That somebody measured it says nothing about what it does.
    assert_eq!(process.last_at, Timestamp(101));
}

fn generation(model: &Model, id: u64) -> u32 {
    model.processes[&ProcessId(id)].world.generation
}

#[test]
fn launches_at_the_same_time_have_worlds_of_their_own() {
    let mut model = Model::default();
    // One launch's rank 1 is late, and so is the other's rank 0.
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
fn ranks_that_are_started_again_meet_also_where_one_had_not_joined_before() {
    let mut model = Model::default();
    join(&mut model, 1, 0, 100);
    model.apply(Event::ProcessChanged {
        process: ProcessId(1),
        state: ProcessState::Dead,
        exit: Exit {
            code: None,
            signal: Some(libc_signal::TERM),
        },
        oom_kills: OomKills::default(),
        at: Timestamp(200),
    });
    join(&mut model, 2, 1, 300);
    join(&mut model, 3, 0, 301);
    assert_eq!((generation(&model, 2), generation(&model, 3)), (1, 1));
}

#[test]
fn a_rank_that_was_told_of_late_is_of_the_world_that_it_joined() {
    let mut model = Model::default();
    join(&mut model, 1, 0, 100);
    model.apply(Event::ProcessChanged {
        process: ProcessId(1),
        state: ProcessState::Dead,
        exit: Exit {
            code: Some(1),
            signal: None,
        },
        oom_kills: OomKills::default(),
        at: Timestamp(200),
    });
    join(&mut model, 2, 1, 101);
    assert_eq!(generation(&model, 2), 0);
}
