//! What the calls that NCCL counts, and threads that wait for a device, say about the positions of ranks.
//!
//! On NCCL a call returns at once, and the program waits at the first line that needs a result, where its thread
//! polls: two captures that show the same line, and the CPU time between them, do not distinguish a hang from a
//! loop with such a line in every step. Counts differ for a moment in healthy jobs, too. Therefore neither leads to a
//! finding unless one rank is asleep outside of calls, for as long as a wait must last to be reported.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::{Op, v1};

use super::messages::WORLD;
use super::position::{Position, StackCall};
use super::ras::{Answer, Communicator, Member};

/// A rank of the job.
#[derive(Debug)]
pub struct Placed {
    /// Global rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// Time for which its main thread has been asleep; `None`: it runs, or the time is unknown.
    pub asleep: Option<Duration>,
    /// Its calls return before they are complete.
    pub is_on_device: bool,
    /// Its position.
    pub position: Position,
}

/// A communicator whose ranks are all known, and what each of them has launched beyond what all have launched.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted {
    group: v1::CallGroup,
    /// Numbers of additional launches by operation, by global rank.
    beyond: BTreeMap<u32, Vec<(Op, u64)>>,
}

/// The communicators of an answer whose ranks all belong to the job.
#[must_use]
pub fn counted(answer: &Answer, ranks: &[Placed]) -> Vec<Counted> {
    let mut found: Vec<Counted> =
        answer.communicators.iter().filter_map(|it| Counted::new(it, ranks)).collect();
    // Calls of the smaller group are usually later: the group of all ranks leads.
    found.sort_by_key(|it| std::cmp::Reverse(it.beyond.len()));
    found
}

impl Counted {
    fn new(communicator: &Communicator, ranks: &[Placed]) -> Option<Self> {
        let rank_of = |member: &Member| ranks.iter().find(|it| it.pid == member.pid);
        let mut members: Vec<(u32, u32, &Member)> = communicator
            .ranks
            .iter()
            .map(|it| Some((it.rank, rank_of(it)?.rank, it)))
            .collect::<Option<_>>()?;
        members.sort_by_key(|(local, ..)| *local);
        members.dedup_by_key(|(_, global, _)| *global);
        if members.len() < 2 || members.len() != communicator.size as usize {
            return None;
        }
        let least = |op: Op| {
            let of =
                |it: &Member| it.counts.iter().find(|(counted, _)| *counted == op).map(|it| it.1);
            members.iter().filter_map(|(.., it)| of(it)).min().unwrap_or(0)
        };
        let beyond = members.iter().map(|(_, rank, it)| {
            let more = it.counts.iter().map(|&(op, count)| (op, count - least(op).min(count)));
            (*rank, more.filter(|(_, more)| *more > 0).collect())
        });
        let is_whole = members.len() == ranks.len();
        let name = if is_whole { WORLD.to_owned() } else { communicator.hash.clone() };
        let group = v1::CallGroup {
            name,
            members: members.iter().map(|(_, rank, _)| *rank).collect(),
            partner: None,
        };
        Some(Self { group, beyond: beyond.collect() })
    }

    fn has_launched_more(&self, rank: u32) -> bool {
        self.beyond.get(&rank).is_some_and(|it| !it.is_empty())
    }

    /// What a rank has launched beyond all others: "1 more all_reduce call than rank 2".
    fn text(&self, rank: u32) -> Option<String> {
        let more = self.beyond.get(&rank).filter(|it| !it.is_empty())?;
        let count = |(op, count): &(Op, u64)| {
            let plural = if *count == 1 { "" } else { "s" };
            format!("{count} more {op} call{plural}")
        };
        let counts: Vec<String> = more.iter().map(count).collect();
        let behind: Vec<u32> =
            self.beyond.iter().filter(|(_, more)| more.is_empty()).map(|(rank, _)| *rank).collect();
        let than = if behind.is_empty() {
            "than others".to_owned()
        } else {
            format!("than {}", ddp_doctor_diagnosis::words::Ranks(&behind))
        };
        Some(format!("{} {than}", counts.join(" and ")))
    }
}

/// What the counts say of a rank.
#[must_use]
pub fn text(counted: &[Counted], rank: u32) -> Option<String> {
    counted.iter().find_map(|it| it.text(rank))
}

/// Decides in which calls ranks are that wait for their device. `limit`: the duration of a wait that is reported.
pub fn settle(ranks: &mut [Placed], counted: &[Counted], limit: Duration) {
    let is_asleep = |it: &Placed| it.asleep.is_some_and(|asleep| asleep >= limit);
    let sleepers: Vec<u32> = ranks
        .iter()
        .filter(|it| it.position == Position::Outside && is_asleep(it))
        .map(|it| it.rank)
        .collect();
    let is_behind = |communicator: &Counted| {
        let of_it = |rank: &&u32| communicator.beyond.contains_key(rank);
        let mut absent = sleepers.iter().filter(of_it).peekable();
        absent.peek().is_some() && absent.all(|&rank| !communicator.has_launched_more(rank))
    };
    let waits_at = waiting_line(ranks, &sleepers);
    for it in ranks.iter_mut().filter(|it| it.is_on_device) {
        let (call, is_inside) = match &it.position {
            Position::Device(call) => (call, false),
            Position::Inside(call) if call.asleep.is_none() => (call, true),
            _ => continue,
        };
        let launched = counted.iter().find(|communicator| {
            is_behind(communicator) && communicator.has_launched_more(it.rank)
        });
        let call = call.clone();
        it.position = match launched {
            // Its frames name the call.
            _ if is_inside && call.op.is_collective() && !sleepers.is_empty() => {
                Position::Inside(call)
            }
            Some(communicator) => {
                let ops = &communicator.beyond[&it.rank];
                let op = match &ops[..] {
                    [(op, _)] => *op,
                    // Which came first is unknown.
                    _ => Op::Unspecified,
                };
                let group = Some(communicator.group.clone());
                Position::Inside(StackCall { op, group, ..call })
            }
            None if !sleepers.is_empty() && counted.is_empty() && waits_at => {
                Position::Inside(call)
            }
            None => Position::Device(call),
        };
    }
}

/// Whether all ranks but the sleeping ones wait for their devices at one line.
fn waiting_line(ranks: &[Placed], sleepers: &[u32]) -> bool {
    let mut lines =
        ranks.iter().filter(|it| !sleepers.contains(&it.rank)).map(|it| match &it.position {
            Position::Device(call) => call.place.as_ref(),
            _ => None,
        });
    let Some(Some(first)) = lines.next() else { return false };
    lines.all(|line| line == Some(first))
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::Where;

    use super::*;

    const MAX_TIME: Duration = Duration::from_secs(20);

    fn call(op: Op, line: u32) -> StackCall {
        StackCall {
            op,
            place: Some(Where { file: "train.py".into(), line, ..Where::default() }),
            hidden: true,
            tid: 1,
            asleep: None,
            group: None,
        }
    }

    fn placed(rank: u32, position: Position, asleep: Option<u64>) -> Placed {
        let asleep = asleep.map(Duration::from_secs);
        Placed { rank, pid: 70 + rank, asleep, is_on_device: true, position }
    }

    fn waits(rank: u32, line: u32) -> Placed {
        placed(rank, Position::Device(call(Op::Unspecified, line)), None)
    }

    /// One communicator of ranks with these numbers of all_reduce and broadcast.
    fn answer(counts: &[(u64, u64)]) -> Answer {
        let ranks = (0..).zip(counts).map(|(rank, &(reduced, sent))| Member {
            rank,
            pid: 70 + rank,
            counts: vec![(Op::Broadcast, sent), (Op::AllReduce, reduced)],
        });
        let size = counts.len() as u32;
        Answer {
            communicators: vec![Communicator { hash: "0x7".into(), size, ranks: ranks.collect() }],
        }
    }

    fn settled(mut ranks: Vec<Placed>, answer: Option<&Answer>) -> Vec<Placed> {
        let counted = answer.map(|it| counted(it, &ranks)).unwrap_or_default();
        settle(&mut ranks, &counted, MAX_TIME);
        ranks
    }

    fn op(placed: &Placed) -> Option<Op> {
        match &placed.position {
            Position::Inside(call) => Some(call.op),
            _ => None,
        }
    }

    #[test]
    fn call_that_a_sleeping_rank_did_not_launch_is_under_way() {
        let ranks = || vec![waits(0, 9), placed(1, Position::Outside, Some(60)), waits(2, 30)];
        let found = settled(ranks(), Some(&answer(&[(21, 2), (20, 2), (21, 2)])));
        assert_eq!(
            [op(&found[0]), op(&found[1]), op(&found[2])],
            [Some(Op::AllReduce), None, Some(Op::AllReduce)]
        );
        let Position::Inside(call) = &found[0].position else { panic!() };
        assert_eq!(call.group.as_ref().unwrap().members, [0, 1, 2]);
        // Two operations: it is unknown which came first.
        let found = settled(ranks(), Some(&answer(&[(21, 3), (20, 2), (21, 2)])));
        assert_eq!(op(&found[0]), Some(Op::Unspecified));
        // A rank that slept for a moment only.
        let brief = vec![waits(0, 9), placed(1, Position::Outside, Some(3)), waits(2, 30)];
        let found = settled(brief, Some(&answer(&[(21, 2), (20, 2), (21, 2)])));
        assert_eq!([op(&found[0]), op(&found[2])], [None, None]);
    }

    #[test]
    fn ranks_that_only_wait_for_devices_are_in_no_known_call() {
        let ranks = || vec![waits(0, 9), waits(1, 12)];
        for counts in [[(21, 2), (20, 2)], [(21, 2), (20, 3)], [(21, 2), (21, 2)]] {
            let found = settled(ranks(), Some(&answer(&counts)));
            assert_eq!([op(&found[0]), op(&found[1])], [None, None], "{counts:?}");
        }
        // Neither are those that poll inside a call while no rank is known to be stuck.
        let polls = |rank| placed(rank, Position::Inside(call(Op::Barrier, 9)), None);
        let found = settled(vec![polls(0), waits(1, 12)], None);
        assert_eq!(op(&found[0]), None);
    }

    #[test]
    fn without_counts_all_others_have_to_wait_at_one_line() {
        let sleeper = || placed(1, Position::Outside, Some(60));
        let found = settled(vec![waits(0, 9), sleeper(), waits(2, 9)], None);
        assert_eq!([op(&found[0]), op(&found[2])], [Some(Op::Unspecified), Some(Op::Unspecified)]);
        let found = settled(vec![waits(0, 9), sleeper(), waits(2, 10)], None);
        assert_eq!([op(&found[0]), op(&found[2])], [None, None]);
        // Counts that are equal contradict it.
        let equal = answer(&[(20, 2), (20, 2), (20, 2)]);
        let found = settled(vec![waits(0, 9), sleeper(), waits(2, 9)], Some(&equal));
        assert_eq!([op(&found[0]), op(&found[2])], [None, None]);
    }

    #[test]
    fn counts_are_stated_beside_ranks() {
        let ranks = [waits(0, 9), waits(1, 12)];
        let counted = counted(&answer(&[(21, 2), (20, 2)]), &ranks);
        assert_eq!(text(&counted, 0).as_deref(), Some("1 more all_reduce call than rank 1"));
        assert_eq!(text(&counted, 1), None);
    }

    #[test]
    fn answer_of_another_job_is_ignored() {
        let ranks = [waits(5, 9), waits(6, 12)];
        assert_eq!(counted(&answer(&[(21, 2), (20, 2)]), &ranks), []);
    }
}
