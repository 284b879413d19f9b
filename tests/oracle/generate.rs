//! Random programs: correct ones, most of them with mistakes put into one or more ranks.

use std::collections::BTreeSet;

use super::program::{Call, End, Op, Program, Random, Step, Thread, Transport};

/// A program and its mistakes.
#[derive(Clone, Debug)]
pub(crate) struct Planted {
    pub(crate) program: Program,
    /// Ranks that a mistake was put into.
    pub(crate) mutated: BTreeSet<u8>,
}

/// Maximum number of calls, since the number of executions grows exponentially with it.
const MAX_CALLS: usize = 60;

pub(crate) fn planted(random: &mut Random) -> Planted {
    let program = correct(random);
    let mut planted = Planted { program, mutated: BTreeSet::new() };
    if random.chance(15) {
        return planted;
    }
    let world = usize::from(planted.program.world);
    let first = random.below(world) as u8;
    let times = random.pick(&[1, 1, 1, 2, 2, 3]);
    for _ in 0..times {
        let rank = if random.chance(75) { first } else { random.below(world) as u8 };
        if random.chance(5) && planted.program.victim.is_none() {
            planted.program.victim = Some(rank);
            planted.mutated.insert(rank);
        } else if mutate(&mut planted.program, rank, random) {
            planted.mutated.insert(rank);
        }
    }
    planted
}

/// A program without an execution that gets stuck: all ranks issue their calls in one global order,
/// and wait only for earlier calls.
fn correct(random: &mut Random) -> Program {
    let transport = if random.chance(65) { Transport::Gloo } else { Transport::Nccl };
    let world = random.pick(&[2, 2, 3, 3, 3, 4, 4, 5]);
    let mut groups: Vec<Vec<u8>> = vec![(0..world).collect()];
    for _ in 0..random.below(4) {
        let mut ranks: Vec<u8> = (0..world).collect();
        random.shuffle(&mut ranks);
        ranks.truncate(2 + random.below(usize::from(world) - 1));
        ranks.sort_unstable();
        groups.push(ranks);
    }
    // A second thread uses its own groups, as in correct programs.
    let second: Vec<bool> =
        groups.iter().enumerate().map(|(i, _)| i > 0 && random.chance(15)).collect();
    let mut threads: Vec<Thread> =
        (0..world).map(|rank| Thread { rank, number: 1, steps: Vec::new() }).collect();
    for rank in 0..world {
        if (0..groups.len()).any(|g| second[g] && groups[g].contains(&rank)) {
            threads.push(Thread { rank, number: 2, steps: Vec::new() });
        }
    }
    let is_async = random.pick(&[0, 30, 70]);
    let messages = random.pick(&[0, 20, 60]);
    let mut left = MAX_CALLS;
    for label in 0..2 + random.below(6) {
        let group = random.below(groups.len());
        if left < groups[group].len() {
            break;
        }
        left -= groups[group].len();
        let mut call = Call {
            label: label as u8,
            group: group as u8,
            op: random.pick(&Op::ALL),
            numel: random.pick(&[4, 8]),
            wide: random.chance(30),
            max: random.chance(30),
            root: random.pick(&groups[group]),
            tag: random.below(2) as u8,
            is_async: false,
        };
        // A message between two members of the group.
        let from = random.pick(&groups[group]);
        let is_message = random.chance(messages) && from != call.root;
        if is_message {
            call.op = Op::Recv;
        }
        for &rank in &groups[group] {
            let own = Call { is_async: random.chance(is_async), ..call };
            let call = match is_message {
                false => own,
                true if rank == from => Call { op: Op::Send, ..own },
                true if rank == own.root => Call { root: from, ..own },
                true => continue,
            };
            let number = 1 + u8::from(second[group]);
            if let Some(thread) = thread_mut(&mut threads, rank, number) {
                thread.steps.push(Step::Call(call));
            }
        }
    }
    for thread in &mut threads {
        put_waits(thread, random);
        swap_neighbors(thread, random);
    }
    for (group, members) in groups.iter().enumerate() {
        if !random.chance(15) {
            continue;
        }
        for &rank in members {
            let number = 1 + u8::from(second[group]);
            if let Some(thread) = thread_mut(&mut threads, rank, number) {
                thread.steps.push(Step::Destroy(group as u8));
            }
        }
    }
    threads.retain(|thread| thread.number == 1 || !thread.steps.is_empty());
    Program { transport, world, groups, threads, victim: None }
}

fn thread_mut(threads: &mut [Thread], rank: u8, number: u8) -> Option<&mut Thread> {
    threads.iter_mut().find(|thread| thread.rank == rank && thread.number == number)
}

/// Adds waits for the asynchronous calls of a thread, anywhere after them; some get none.
fn put_waits(thread: &mut Thread, random: &mut Random) {
    let labels: Vec<u8> =
        calls(&thread.steps).filter(|call| call.is_async).map(|call| call.label).collect();
    for label in labels {
        if random.chance(20) {
            continue;
        }
        let made = thread
            .steps
            .iter()
            .position(|step| matches!(step, Step::Call(call) if call.label == label));
        let Some(made) = made else { continue };
        let at = made + 1 + random.below(thread.steps.len() - made);
        thread.steps.insert(at, Step::Wait(label));
    }
}

/// Swaps neighboring asynchronous calls of different groups, whose order does not matter.
fn swap_neighbors(thread: &mut Thread, random: &mut Random) {
    for i in 1..thread.steps.len() {
        if let (Step::Call(a), Step::Call(b)) = (thread.steps[i - 1], thread.steps[i])
            && a.is_async
            && b.is_async
            && a.group != b.group
            && random.chance(30)
        {
            thread.steps.swap(i - 1, i);
        }
    }
}

pub(crate) fn calls(steps: &[Step]) -> impl Iterator<Item = Call> {
    steps.iter().filter_map(|step| match step {
        Step::Call(call) => Some(*call),
        _ => None,
    })
}

/// Puts a mistake into a rank. Returns whether that was possible.
fn mutate(program: &mut Program, rank: u8, random: &mut Random) -> bool {
    let transport = program.transport;
    let groups = program.groups.clone();
    let own: Vec<usize> = (0..program.threads.len())
        .filter(|&i| program.threads[i].rank == rank && !program.threads[i].steps.is_empty())
        .collect();
    if own.is_empty() {
        return false;
    }
    let thread = &mut program.threads[random.pick(&own)];
    let (number, steps) = (thread.number, &mut thread.steps);
    let at = random.below(steps.len());
    match random.below(10) {
        0 | 1 => {
            // Two calls in the wrong order.
            let Some(other) = (at + 1..steps.len()).find(|&i| matches!(steps[i], Step::Call(_)))
            else {
                return false;
            };
            if !matches!(steps[at], Step::Call(_)) {
                return false;
            }
            steps.swap(at, other);
            put_right(steps);
            true
        }
        2 => {
            let Step::Call(call) = steps[at] else {
                return false;
            };
            steps.retain(|step| match step {
                Step::Call(other) => other.label != call.label,
                Step::Wait(label) => *label != call.label,
                _ => true,
            });
            true
        }
        3..=5 => {
            let Step::Call(call) = &mut steps[at] else {
                return false;
            };
            let before = *call;
            match random.below(6) {
                // A collective of one rank only is one call too many; by the contract the ranks
                // that end without it are to blame, though the mistake is not theirs.
                0 if call.op.is_message() => return false,
                0 => call.op = random.pick(&Op::ALL),
                1 => call.numel = 12 - call.numel,
                2 => call.root = random.pick(&groups[usize::from(call.group)]),
                3 => call.wide = !call.wide,
                4 => call.tag = 1 - call.tag,
                _ => call.max = !call.max,
            }
            let wrong = if call.op.is_message() {
                call.root != rank && before != *call
            } else {
                !before.fits(call, transport) || before.contradicts(call)
            };
            if !wrong {
                *call = before;
            }
            wrong
        }
        6 => {
            // A synchronous call in place of an asynchronous one.
            let Step::Call(call) = &mut steps[at] else {
                return false;
            };
            if !call.is_async {
                return false;
            }
            call.is_async = false;
            let label = call.label;
            steps.retain(|step| !matches!(step, Step::Wait(other) if *other == label));
            true
        }
        7 => {
            let used: Vec<u8> = calls(steps).map(|call| call.group).collect();
            if used.is_empty() {
                return false;
            }
            let group = random.pick(&used);
            steps.insert(at, Step::Destroy(group));
            put_right(steps);
            true
        }
        _ => {
            let picked = random.pick(&[
                End::Exits,
                End::Exits,
                End::Fails,
                End::Killed,
                End::Raises,
                End::Stops,
                End::Sleeps,
            ]);
            // In Python an exception ends the process only if it leaves the main thread.
            let end = if picked == End::Raises && number != 1 { End::Fails } else { picked };
            steps.insert(at, Step::End(end));
            steps.truncate(at + 1);
            true
        }
    }
}

/// Drops waits that now precede their calls, and calls after the destruction of their group.
fn put_right(steps: &mut Vec<Step>) {
    let (mut made, mut left) = (BTreeSet::new(), BTreeSet::new());
    steps.retain(|step| match step {
        Step::Call(call) => !left.contains(&call.group) && made.insert(call.label),
        Step::Wait(label) => made.contains(label),
        Step::Destroy(group) => left.insert(*group),
        Step::End(_) => true,
    });
}
