//! The Rust API as a training program uses it. A single test, since a process has one box.

use std::time::Duration;

use ddp_doctor_agent::blackbox::{Item, Place, Reader};
use ddp_doctor_agent::{
    Agent, CallId, DType, ExceptionKind, NoteKind, Op, ReduceOp, current, open, options_from_env,
};
use ddp_doctor_proto::RecordKind as Kind;
use ddp_doctor_proto::blackbox::flags;

#[test]
fn program_writes_the_expected_records() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::builder()
        .layer("wrapper")
        .job("j1")
        .rank(2)
        .world_size(4)
        .local_rank(2)
        .attempt(1)
        .directory(directory.path())
        .start()
        .unwrap();
    // A second agent of the program shares the box and does not close it when it is dropped.
    let again = Agent::builder().directory(directory.path()).start().unwrap();
    assert!(again.is_open());
    drop(again);
    assert!(agent.is_open());

    let world = agent.group("world", "all", "nccl", &[0, 1, 2, 3]);
    assert_eq!(agent.step(), 1);
    let mut line = 0;
    for _ in 0..2 {
        let (call, at) = (agent.call(&world, Op::AllReduce), line!());
        line = at;
        let call = call
            .dtype(DType::Float16)
            .shape(&[8, 2])
            .reduce_op(ReduceOp::Max)
            .asynchronous()
            .issue();
        let id = call.id();
        assert_ne!(id, CallId::UNKNOWN);
        drop(call);
        drop(agent.wait(id));
        agent.completed(id);
    }
    let all = agent.call(&world, Op::AllToAll).shape(&[1 << 33]).issue();
    all.splits(&[1, 2], &[3]);
    drop(agent.wait(&all));
    drop(all);
    drop(agent.call(&world, Op::Send).peer(1).tag(7).tensors(3).numel(5).issue());
    {
        let _phase = agent.phase("checkpoint");
        let _inner = agent.phase("save");
        agent.note(NoteKind::NoHooks, "inner");
    }
    agent.exception(ExceptionKind::LeftCollective, "Timeout: 3");
    agent.input_ended();
    agent.set_rank(3, 5);
    agent.group_timeout(&world, Duration::from_secs(600));
    agent.group_destroyed(world);
    agent.exit(0, "done");

    let path = current().unwrap().path().to_owned();
    drop(agent);
    assert!(current().is_none());
    let mut reader = Reader::open(&path).unwrap();
    let (mut records, mut sites) = (Vec::new(), Vec::new());
    reader.finish(&mut |item| match item {
        Item::Record(record) => records.push(record),
        Item::Site { id, file, line, .. } => sites.push((id, file, line)),
        _ => {}
    });
    let identity = reader.identity();
    assert_eq!(
        (identity.rank, identity.world_size, identity.local_rank),
        (Some(3), Some(5), Some(2))
    );
    assert_eq!(
        (identity.layer.as_str(), identity.job.as_str(), identity.attempt),
        ("wrapper", "j1", 1)
    );
    assert!(identity.closed);

    let first = &records[1].record;
    assert_eq!((first.kind, first.seq, first.step), (Kind::Issued, 1, 1));
    assert_eq!(first.flags, flags::ASYNC | flags::NUMEL | flags::SHAPE);
    assert_eq!((first.numel, first.shape()), (16, Some(&[8, 2][..])));
    let (_, file, at) = sites.iter().find(|(id, ..)| *id == first.site).unwrap();
    assert_eq!((file.as_str(), *at), (file!(), line));
    let second = &records[6].record;
    assert_eq!((second.kind, second.seq, second.site), (Kind::Issued, 2, first.site));

    let of = |kind| records.iter().filter(move |it| it.record.kind == kind);
    let all = of(Kind::Issued).nth(2).unwrap();
    // Too large for a dimension, but not for the number of elements.
    assert_eq!((all.record.numel, all.record.shape()), (1 << 33, None));
    let splits: Vec<_> = of(Kind::Splits).map(|it| (it.record.flags, it.splits.clone())).collect();
    assert_eq!(splits, [(0, vec![1, 2]), (flags::OUTPUT, vec![3])]);
    let send = of(Kind::Issued).nth(3).unwrap().record;
    assert_eq!((send.flags, send.tag), (flags::P2P | flags::ROOT | flags::TAG | flags::NUMEL, 7));
    assert_eq!((send.root_or_peer, send.tensors, send.seq), (1, 3, 1));
    assert_eq!(of(Kind::Note).next().unwrap().phase, "save");
    let ended: Vec<_> = of(Kind::PhaseEnd).map(|it| it.text.as_str()).collect();
    assert_eq!(ended, ["save", "checkpoint"]);
    assert_eq!(of(Kind::Exit).next().unwrap().phase, "");

    // The same box is reopened: one process, one file.
    let place = Place::within(directory.path());
    open(&place, &options_from_env("wrapper")).unwrap();
    assert_eq!(current().unwrap().path(), path);
    assert!(!reader.identity().closed);
    assert_eq!(directory.path().read_dir().unwrap().count(), 1);
}
