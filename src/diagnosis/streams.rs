//! Calls that wait for each other on streams of devices.
//!
//! An operation on a stream begins when all earlier ones on it are complete, and a symmetric
//! collective completes once it has begun at every member. So if two ranks enqueue calls of two
//! communicators in opposite orders, each stream is in a call that the other has not reached,
//! although every rank has issued every call and no thread has to wait.
//!
//! Calls that were not recorded allow no conclusion, since they may be on any stream. Nor do rooted
//! collectives and messages, which may complete early, nor the order of calls that were launched
//! together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::vocabulary::Direction;

use super::event::Call;
use super::model::{GroupId, Model, Target};
use super::waits::Blocked;

/// Maximum number of processes; with more, there are too many calls for every evaluation.
const MOST_PROCESSES: usize = 4096;

/// Calls that were launched together on a stream.
struct Batch {
    rank: u32,
    calls: Vec<(Arc<Call>, Place)>,
    /// Number of calls that are not complete.
    pending: usize,
    has_begun: bool,
    /// The next batch on the stream.
    next: Option<usize>,
}

/// The place of a call: group and sequence number.
type Place = (GroupId, u64);

/// Cycles in which streams wait for each other; each wait needs the rank of the next.
#[must_use]
pub fn cycles(model: &Model) -> Vec<Vec<Blocked>> {
    let (mut batches, first) = batches(model);
    if batches.len() < 2 {
        return Vec::new();
    }
    let mut joins: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    for (at, batch) in batches.iter().enumerate() {
        for (_, place) in &batch.calls {
            joins.entry(*place).or_default().push(at);
        }
    }
    let mut not_begun: BTreeMap<Place, usize> =
        joins.iter().map(|(&place, at)| (place, at.len())).collect();
    let mut ready: VecDeque<usize> = first.into();
    while let Some(at) = ready.pop_front() {
        batches[at].has_begun = true;
        let mut complete: Vec<usize> = Vec::new();
        let calls: Vec<(Direction, Place)> = batches[at]
            .calls
            .iter()
            .map(|(call, place)| (call.op.direction(), *place))
            .collect();
        if calls.is_empty() {
            complete.push(at);
        }
        for (direction, place) in calls {
            let Some(left) = not_begun.get_mut(&place) else {
                continue;
            };
            *left -= 1;
            if direction != Direction::Symmetric {
                complete.push(at);
            } else if *left == 0 {
                complete.extend(&joins[&place]);
            }
        }
        for done in complete {
            let batch = &mut batches[done];
            batch.pending = batch.pending.saturating_sub(1);
            if batch.pending == 0 {
                ready.extend(batch.next.take());
            }
        }
    }
    closed(&batches, &joins)
}

/// The batches of all processes, and the first one of each stream.
fn batches(model: &Model) -> (Vec<Batch>, Vec<usize>) {
    let (mut batches, mut first): (Vec<Batch>, Vec<usize>) = (Vec::new(), Vec::new());
    let heard = model.processes.values().filter(|it| !it.queued.is_empty());
    if heard.clone().count() > MOST_PROCESSES {
        return (batches, first);
    }
    for process in heard {
        let Some(rank) = process.rank.filter(|_| process.lost == 0) else {
            continue;
        };
        let mut last: BTreeMap<u64, (usize, u32)> = BTreeMap::new();
        for call in &process.queued {
            let (Some(on), Some(Target::Join(group, seq))) =
                (call.on_stream, process.target(call.id))
            else {
                continue;
            };
            let one = (Arc::clone(call), (group, seq));
            match last.get(&on.stream) {
                Some(&(at, launch)) if launch != 0 && launch == on.launch => {
                    batches[at].calls.push(one);
                    batches[at].pending += 1;
                }
                before => {
                    let at = batches.len();
                    match before {
                        Some(&(before, _)) => batches[before].next = Some(at),
                        None => first.push(at),
                    }
                    batches.push(Batch {
                        rank,
                        calls: vec![one],
                        pending: 1,
                        has_begun: false,
                        next: None,
                    });
                    last.insert(on.stream, (at, on.launch));
                }
            }
        }
    }
    (batches, first)
}

/// Follows the needs of each blocked stream until a stream recurs.
fn closed(batches: &[Batch], joins: &BTreeMap<Place, Vec<usize>>) -> Vec<Vec<Blocked>> {
    // For each batch that has not begun: the incomplete batch that its stream is in.
    let mut in_front: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, batch) in batches.iter().enumerate() {
        if batch.has_begun && batch.pending > 0 {
            let mut next = batch.next;
            while let Some(behind) = next {
                in_front.insert(behind, at);
                next = batches[behind].next;
            }
        }
    }
    let needed = |at: usize| {
        let mut calls = batches[at].calls.iter();
        calls.find_map(|(call, place)| {
            let mut others = joins.get(place)?.iter();
            let other = others.find_map(|other| in_front.get(other))?;
            (call.op.direction() == Direction::Symmetric).then_some((call, *place, *other))
        })
    };
    let mut found: Vec<Vec<Blocked>> = Vec::new();
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    let starts: BTreeSet<usize> = in_front.values().copied().collect();
    for start in starts {
        let mut path: Vec<usize> = Vec::new();
        let mut at = start;
        while seen.insert(at) {
            path.push(at);
            match needed(at) {
                Some((.., next)) => at = next,
                None => break,
            }
        }
        let Some(from) = path.iter().position(|&it| it == at) else {
            continue;
        };
        let cycle = path[from..].iter().filter_map(|&at| {
            let (call, (group, seq), next) = needed(at)?;
            Some(Blocked {
                rank: batches[at].rank,
                thread: call.thread,
                group,
                seq,
                call: Arc::clone(call),
                since: call.at,
                until: None,
                needs: vec![batches[next].rank],
                message: None,
                certain: false,
                only_thread: false,
                recorded: true,
                came_back: false,
            })
        });
        let cycle: Vec<Blocked> = cycle.collect();
        let ranks: BTreeSet<u32> = cycle.iter().map(|it| it.rank).collect();
        let groups: BTreeSet<GroupId> = cycle.iter().map(|it| it.group).collect();
        if ranks.len() == cycle.len() && ranks.len() > 1 && groups.len() > 1 {
            found.push(cycle);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::holds;

    /// A job in which ranks 0 and 1 have a communicator of their own, besides that of all ranks.
    fn job(world: u32, events: &str, expect: &str) {
        // Events are written by rank and played by time.
        let mut events: Vec<&str> = events.trim().lines().map(str::trim).collect();
        events.sort_by(|a, b| a.split(' ').next().cmp(&b.split(' ').next()));
        let events = events.join("\n");
        holds(&format!(
            r#"
            world = {world}
            layer = "nccl"
            backend = "nccl"
            stall-after = 30
            look-on = 100
            events = """
            0.5 0,1 group model 0,1
            {events}
            """
            {expect}
            "#
        ));
    }

    const FOUND: &str = r#"
        [[expect]]
        code = "DD111"
        confidence = "supported"
        root = [0, 1]
        "#;

    #[test]
    fn opposite_orders_on_one_stream_are_a_cycle() {
        job(
            2,
            "
            1.0 0 all_reduce f32[8] sum
            1.1 0 all_reduce/model f32[4] sum
            1.0 1 all_reduce/model f32[4] sum
            1.1 1 all_reduce f32[8] sum
            ",
            &format!("{FOUND}detected = 1.1"),
        );
    }

    #[test]
    fn equal_orders_are_no_cycle() {
        job(
            2,
            "1.0 * all_reduce f32[8] sum\n1.1 * all_reduce/model f32[4] sum",
            "",
        );
    }

    #[test]
    fn separate_streams_do_not_wait() {
        job(
            2,
            "
            1.0 0 all_reduce f32[8] sum
            1.1 0 all_reduce/model f32[4] sum stream=2
            1.0 1 all_reduce/model f32[4] sum
            1.1 1 all_reduce f32[8] sum
            ",
            "",
        );
    }

    #[test]
    fn calls_launched_together_have_no_order() {
        job(
            2,
            "
            1.0 0 all_reduce f32[8] sum launch=1
            1.0 0 all_reduce/model f32[4] sum launch=1
            1.0 1 all_reduce/model f32[4] sum
            1.1 1 all_reduce f32[8] sum
            ",
            "",
        );
    }

    #[test]
    fn calls_launched_together_complete_together() {
        // The second launch of rank 0 waits for both calls of the first.
        job(
            2,
            "
            1.0 0 all_reduce f32[8] sum launch=1
            1.0 0 all_reduce f32[9] sum launch=1
            1.1 0 all_reduce/model f32[4] sum
            1.0 1 all_reduce f32[8] sum
            1.1 1 all_reduce/model f32[4] sum
            1.2 1 all_reduce f32[9] sum
            ",
            FOUND,
        );
    }

    #[test]
    fn calls_that_may_complete_early_are_no_cycle() {
        job(
            2,
            "
            1.0 0 broadcast f32[8] root=0
            1.1 0 all_reduce/model f32[4] sum
            1.0 1 all_reduce/model f32[4] sum
            1.1 1 broadcast f32[8] root=0
            ",
            "",
        );
    }

    #[test]
    fn cycle_may_include_three_ranks() {
        job(
            3,
            "
            0.6 1,2 group next 1,2
            0.6 0,2 group last 0,2
            1.0 0 all_reduce/model f32[4] sum
            1.1 0 all_reduce/last f32[4] sum
            1.0 1 all_reduce/next f32[4] sum
            1.1 1 all_reduce/model f32[4] sum
            1.0 2 all_reduce/last f32[4] sum
            1.1 2 all_reduce/next f32[4] sum
            ",
            r#"
            [[expect]]
            code = "DD111"
            root = [0, 1, 2]
            "#,
        );
    }

    #[test]
    fn complete_calls_block_nothing() {
        job(
            2,
            "
            1.0 0 all_reduce f32[8] sum followed as first
            1.1 0 all_reduce/model f32[4] sum followed as second
            1.2 0 completes second
            1.0 1 all_reduce/model f32[4] sum followed
            1.1 1 all_reduce f32[8] sum followed as last
            1.2 1 completes last
            ",
            "",
        );
    }

    #[test]
    fn lost_records_allow_no_cycle() {
        // Records of rank 1 were lost, which may include the other call.
        job(
            2,
            "
            0.9 1 lost 3
            1.0 0 all_reduce f32[8] sum
            1.1 0 all_reduce/model f32[4] sum
            1.0 1 all_reduce/model f32[4] sum
            1.1 1 all_reduce f32[8] sum
            ",
            r#"
            [[expect]]
            code = "DD902"
            "#,
        );
    }
}
