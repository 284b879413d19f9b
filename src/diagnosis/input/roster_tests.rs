use ddp_doctor_proto::report::Exit;
use ddp_doctor_proto::{Op, ProcessState};

use super::*;
use crate::input::event::{OomKills, ThreadId};
use crate::testing::call;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn joined(process: u64, rank: u32, world: u32) -> Event {
    Event::ProcessJoined {
        process: ProcessId(process),
        rank: Some(rank),
        world_size: Some(world),
        host: "node".into(),
        pid: process as u32,
        layer: "nccl".into(),
        world: "".into(),
        restarts: 0,
        at: NOW,
    }
}

fn group(name: &str, rank: u32, size: u32) -> Arc<GroupInfo> {
    Arc::new(GroupInfo {
        key: GroupRef {
            layer: "nccl".into(),
            epoch: 0,
            name: name.into(),
            ordinal: 0,
            members: Vec::new(),
        },
        description: "".into(),
        backend: "nccl".into(),
        seat: Some(Seat { rank, size }),
        ..GroupInfo::default()
    })
}

fn member(process: u64, group: &Arc<GroupInfo>) -> Event {
    Event::GroupJoined { process: ProcessId(process), group: Arc::clone(group) }
}

fn issued(process: u64, op: Op, group: &Arc<GroupInfo>, partner: Option<u32>) -> Event {
    Event::Issued {
        process: ProcessId(process),
        call: Arc::new(Call {
            group: Some(Arc::clone(group)),
            root: partner.filter(|_| op.is_rooted()),
            peer: partner.filter(|_| op.is_point_to_point()),
            ..call(op)
        }),
    }
}

fn ended(process: u64) -> Event {
    Event::ProcessChanged {
        process: ProcessId(process),
        state: ProcessState::Dead,
        exit: Exit::default(),
        oom_kills: OomKills::default(),
        at: NOW,
    }
}

/// A roster with processes that are these ranks of a world.
fn of_world(ranks: &[u32]) -> Roster {
    let mut roster = Roster::default();
    for (process, &rank) in ranks.iter().enumerate() {
        let world = ranks.len() as u32;
        assert_eq!(take(&mut roster, joined(process as u64, rank, world)), 1);
    }
    roster
}

/// The number of events passed on.
fn take(roster: &mut Roster, event: Event) -> usize {
    taken(roster, event).len()
}

fn taken(roster: &mut Roster, event: Event) -> Vec<Event> {
    let mut out = Vec::new();
    roster.take(event, NOW, &mut out);
    out
}

fn released(roster: &mut Roster) -> Vec<Event> {
    let mut out = Vec::new();
    roster.release(NOW.plus(PATIENCE), &mut out);
    out
}

fn members(event: &Event) -> &[u32] {
    match event {
        Event::GroupJoined { group, .. } => &group.key.members,
        Event::Issued { call, .. } => call.group.as_ref().map_or(&[], |it| &it.key.members),
        _ => &[],
    }
}

#[test]
fn members_are_known_once_every_seat_is_taken() {
    let mut roster = of_world(&[0, 1, 2]);
    // Rank 2 is rank 0 of the communicator, and rank 0 is rank 1 of it.
    let (first, second) = (group("0xa", 0, 2), group("0xa", 1, 2));
    assert_eq!(take(&mut roster, member(2, &first)), 0);
    assert_eq!(take(&mut roster, issued(2, Op::Broadcast, &first, Some(1))), 0);
    // Other events of that process wait behind it, but not those of other processes.
    assert_eq!(
        take(
            &mut roster,
            Event::Step {
                process: ProcessId(2),
                thread: ThreadId(1),
                step: 1,
                forward: None,
                at: NOW
            }
        ),
        0
    );
    assert_eq!(
        take(
            &mut roster,
            Event::Step {
                process: ProcessId(1),
                thread: ThreadId(1),
                step: 1,
                forward: None,
                at: NOW
            }
        ),
        1
    );

    let out = taken(&mut roster, member(0, &second));
    assert_eq!(out.len(), 4);
    assert!(out.iter().take(3).all(|it| members(it) == [2, 0] || matches!(it, Event::Step { .. })));
    let root = out.iter().find_map(|it| match it {
        Event::Issued { call, .. } => call.root,
        _ => None,
    });
    assert_eq!(root, Some(0), "rank 1 of the communicator");
    let out = taken(&mut roster, issued(0, Op::Send, &second, Some(0)));
    assert!(matches!(&out[..], [Event::Issued { call, .. }] if call.peer == Some(2)));
    assert_eq!(roster.next_release(), None);
}

#[test]
fn split_uses_the_seats_of_its_communicator() {
    let mut roster = of_world(&[1, 0]);
    for (process, seat) in [(0, 0), (1, 1)] {
        take(&mut roster, member(process, &group("0xa", seat, 2)));
    }
    let out = taken(&mut roster, issued(0, Op::SplitGroup, &group("0xa/split1", 0, 2), None));
    assert!(matches!(&out[..], [one] if members(one) == [1, 0]));
    // The new communicator has its own seats.
    assert_eq!(take(&mut roster, member(0, &group("0xb", 1, 2))), 0);
    let out = taken(&mut roster, member(1, &group("0xb", 0, 2)));
    assert!(out.len() == 2 && out.iter().all(|it| members(it) == [0, 1]));
}

#[test]
fn communicator_of_all_ranks_is_assumed_in_order_after_a_while() {
    let mut roster = of_world(&[0, 1, 2]);
    let made = |rank| issued(u64::from(rank), Op::NewGroup, &group("0xa", rank, 3), None);
    for rank in [0, 2] {
        assert_eq!(take(&mut roster, made(rank)), 0);
    }
    let due = roster.next_release();
    assert_eq!(due, Some(NOW.plus(PATIENCE)));
    let out = released(&mut roster);
    assert!(out.len() == 2 && out.iter().all(|it| members(it) == [0, 1, 2]));
    assert_eq!(roster.next_release(), None);
    // A member that reports later confirms the assumption.
    let out = taken(&mut roster, made(1));
    assert!(matches!(&out[..], [one] if members(one) == [0, 1, 2]));
    assert!(roster.take_mistaken().is_empty());
}

#[test]
fn wrong_assumption_is_revoked() {
    let mut roster = of_world(&[0, 1, 2]);
    let (first, last) = (group("0xa", 0, 3), group("0xa", 2, 3));
    take(&mut roster, member(1, &group("0xa", 1, 3)));
    assert_eq!(released(&mut roster).len(), 1);
    // Ranks 0 and 2 are in each other's seat.
    take(&mut roster, member(2, &first));
    let mistaken = roster.take_mistaken();
    assert!(matches!(&mistaken[..], [one] if one.key.members == [0, 1, 2]));
    let out = taken(&mut roster, member(0, &last));
    assert!(out.iter().any(|it| members(it) == [2, 1, 0]), "{out:?}");
}

#[test]
fn nothing_is_assumed_about_some_of_the_ranks() {
    let mut roster = of_world(&[0, 1, 2]);
    let seat = group("0xa", 0, 2);
    take(&mut roster, issued(0, Op::NewGroup, &seat, None));
    take(&mut roster, member(0, &seat));
    take(&mut roster, issued(0, Op::AllReduce, &seat, None));
    let out = released(&mut roster);
    let calls = out.iter().filter(
        |it| matches!(it, Event::Issued { call, .. } if call.group.is_none() && call.seq == 0),
    );
    assert_eq!((calls.count(), out.len()), (2, 2));
    // The other member reports late: from now on the members are known.
    let other = group("0xa", 1, 2);
    let out = taken(&mut roster, member(1, &other));
    assert!(out.len() == 2 && out.iter().all(|it| members(it) == [0, 1]), "{out:?}");
    let out = taken(&mut roster, issued(0, Op::AllReduce, &seat, None));
    assert_eq!(members(&out[0]), [0, 1]);
}

#[test]
fn end_of_a_process_is_not_held_back() {
    let mut roster = of_world(&[0, 1]);
    take(&mut roster, issued(0, Op::NewGroup, &group("0xa", 0, 2), None));
    let out = taken(&mut roster, ended(0));
    assert!(matches!(&out[..], [Event::Issued { .. }, Event::ProcessChanged { .. }]));
    // The end of the job does not wait either.
    take(&mut roster, issued(1, Op::NewGroup, &group("0xb", 1, 2), None));
    let out = taken(&mut roster, Event::JobEnded { status: 0, reason: None, at: NOW });
    assert_eq!(out.len(), 2);
}

#[test]
fn rank_in_two_seats_is_no_communicator() {
    let mut roster = of_world(&[0, 1]);
    take(&mut roster, member(0, &group("0xa", 0, 2)));
    assert_eq!(take(&mut roster, member(0, &group("0xa", 1, 2))), 0);
    assert!(released(&mut roster).is_empty());
}

#[test]
fn part_of_an_unknown_communicator_is_given_up() {
    let mut roster = Roster::default();
    let Event::ProcessJoined { process, host, pid, layer, world, at, .. } = joined(0, 0, 1) else {
        unreachable!()
    };
    let without_rank = Event::ProcessJoined {
        process,
        rank: None,
        world_size: None,
        host,
        pid,
        layer,
        world,
        restarts: 0,
        at,
    };
    assert_eq!(take(&mut roster, without_rank), 1);
    let part = group("whole/part", 0, 3);
    assert_eq!(take(&mut roster, member(0, &part)), 0);
    assert_eq!(take(&mut roster, issued(0, Op::AllReduce, &part, None)), 0);
    // The call, of no group, and the end.
    assert_eq!(take(&mut roster, ended(0)), 2);
}
