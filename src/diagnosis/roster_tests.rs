use ddp_doctor_proto::report::Exit;
use ddp_doctor_proto::{Op, ProcessState};

use super::*;
use crate::diagnosis::event::OomKills;
use crate::diagnosis::testing::call;

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
    })
}

fn member(process: u64, group: &Arc<GroupInfo>) -> Event {
    Event::GroupJoined {
        process: ProcessId(process),
        group: Arc::clone(group),
    }
}

fn issued(process: u64, op: Op, group: &Arc<GroupInfo>, partner: Option<u32>) -> Event {
    Event::Issued {
        process: ProcessId(process),
        call: Arc::new(Call {
            group: Some(Arc::clone(group)),
            root: partner.filter(|_| op.is_rooted()),
            peer: partner.filter(|_| op.is_point_to_point()),
            ..call(op).build()
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

/// Tells a roster of processes that are these ranks of a world.
fn of_world(ranks: &[u32]) -> Roster {
    let mut roster = Roster::default();
    for (process, &rank) in ranks.iter().enumerate() {
        let world = ranks.len() as u32;
        assert_eq!(take(&mut roster, joined(process as u64, rank, world)), 1);
    }
    roster
}

/// How many events come out.
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
fn the_members_are_known_once_every_seat_is_taken() {
    let mut roster = of_world(&[0, 1, 2]);
    // Rank 2 is rank 0 of the communicator, and rank 0 is rank 1 of it.
    let (first, second) = (group("0xa", 0, 2), group("0xa", 1, 2));
    assert_eq!(take(&mut roster, member(2, &first)), 0);
    assert_eq!(
        take(&mut roster, issued(2, Op::Broadcast, &first, Some(1))),
        0
    );
    // Whatever else that process says waits behind it, and nobody else does.
    assert_eq!(
        take(
            &mut roster,
            Event::Step {
                process: ProcessId(2),
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
                step: 1,
                forward: None,
                at: NOW
            }
        ),
        1
    );

    let out = taken(&mut roster, member(0, &second));
    assert_eq!(out.len(), 4);
    assert!(
        out.iter()
            .take(3)
            .all(|it| members(it) == [2, 0] || matches!(it, Event::Step { .. }))
    );
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
fn who_divides_a_communicator_sits_as_in_it() {
    let mut roster = of_world(&[1, 0]);
    for (process, seat) in [(0, 0), (1, 1)] {
        take(&mut roster, member(process, &group("0xa", seat, 2)));
    }
    let out = taken(
        &mut roster,
        issued(0, Op::SplitGroup, &group("0xa/split1", 0, 2), None),
    );
    assert!(matches!(&out[..], [one] if members(one) == [1, 0]));
    // What comes of it has seats of its own.
    assert_eq!(take(&mut roster, member(0, &group("0xb", 1, 2))), 0);
    let out = taken(&mut roster, member(1, &group("0xb", 0, 2)));
    assert!(out.len() == 2 && out.iter().all(|it| members(it) == [0, 1]));
}

#[test]
fn a_communicator_of_all_ranks_is_taken_to_seat_them_in_order_after_a_while() {
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
    // Who comes later sits as it was assumed.
    let out = taken(&mut roster, made(1));
    assert!(matches!(&out[..], [one] if members(one) == [0, 1, 2]));
    assert!(roster.take_mistaken().is_empty());
}

#[test]
fn an_assumption_that_was_wrong_is_taken_back() {
    let mut roster = of_world(&[0, 1, 2]);
    let (first, last) = (group("0xa", 0, 3), group("0xa", 2, 3));
    take(&mut roster, member(1, &group("0xa", 1, 3)));
    assert_eq!(released(&mut roster).len(), 1);
    // Ranks 0 and 2 have changed places.
    take(&mut roster, member(2, &first));
    let mistaken = roster.take_mistaken();
    assert!(matches!(&mistaken[..], [one] if one.key.members == [0, 1, 2]));
    let out = taken(&mut roster, member(0, &last));
    assert!(out.iter().any(|it| members(it) == [2, 1, 0]), "{out:?}");
}

#[test]
fn of_a_part_of_the_ranks_nothing_is_assumed() {
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
    // The other one comes late: from now on it is known.
    let other = group("0xa", 1, 2);
    let out = taken(&mut roster, member(1, &other));
    assert!(
        out.len() == 2 && out.iter().all(|it| members(it) == [0, 1]),
        "{out:?}"
    );
    let out = taken(&mut roster, issued(0, Op::AllReduce, &seat, None));
    assert_eq!(members(&out[0]), [0, 1]);
}

#[test]
fn the_end_of_a_process_waits_for_nobody() {
    let mut roster = of_world(&[0, 1]);
    take(
        &mut roster,
        issued(0, Op::NewGroup, &group("0xa", 0, 2), None),
    );
    let out = taken(&mut roster, ended(0));
    assert!(matches!(
        &out[..],
        [Event::Issued { .. }, Event::ProcessChanged { .. }]
    ));
    // Nor does the end of the job.
    take(
        &mut roster,
        issued(1, Op::NewGroup, &group("0xb", 1, 2), None),
    );
    let out = taken(&mut roster, Event::JobEnded { status: 0, at: NOW });
    assert_eq!(out.len(), 2);
}

#[test]
fn one_rank_in_two_seats_is_no_communicator() {
    let mut roster = of_world(&[0, 1]);
    take(&mut roster, member(0, &group("0xa", 0, 2)));
    assert_eq!(take(&mut roster, member(0, &group("0xa", 1, 2))), 0);
    assert!(released(&mut roster).is_empty());
}
