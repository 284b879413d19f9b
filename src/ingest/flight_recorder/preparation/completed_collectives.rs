//! Collectives that all of their ranks completed alike, long ago. The engine does not need them: of
//! 1 024 ranks with 2 000 calls each, few calls concern the stall.

use crate::flight_recorder::calls::Groups;
use crate::flight_recorder::dump::{Entry, silent_backends};
use crate::flight_recorder::dumped_jobs::DumpedJob;

/// Number of calls of all ranks that are kept if they are shown: the latest ones of each.
const MAX_KEPT: usize = 1 << 16;
/// Number of calls of all ranks that the engine gets in any case: the latest ones of each.
const DIAGNOSED: usize = 1 << 14;
/// Smallest and largest number of calls of each rank.
const MAX_EACH: [usize; 2] = [16, 512];
/// A group whose numbers are spread wider than this, relative to its calls, is not examined.
const SPREAD: u64 = 4;

/// The collectives of one group, by number.
struct GroupCalls {
    first: u64,
    /// Signature of each collective; `None`: its calls differ, or one is not complete.
    calls: Vec<Option<u64>>,
}

/// Signature of a collective without calls.
const NO_CALL: u64 = 0;

/// Removes such collectives from the dumps of a job. If later ones are shown, they are marked. Progress and peers in
/// `groups` remain.
pub(super) fn remove(job: &mut DumpedJob, groups: &Groups, shows_all: bool) {
    let of_each = |all: usize| (all / job.ranks.len().max(1)).clamp(MAX_EACH[0], MAX_EACH[1]);
    let diagnosed = of_each(DIAGNOSED);
    let kept = if shows_all { of_each(MAX_KEPT) } else { diagnosed };
    remove_beyond(job, groups, kept, diagnosed);
}

/// Removes such collectives before the latest `kept` calls of each rank, and marks those before the latest
/// `diagnosed` ones.
fn remove_beyond(job: &mut DumpedJob, groups: &Groups, kept: usize, diagnosed: usize) {
    if job.ranks.values().all(|dump| dump.packed.len() <= diagnosed) {
        return;
    }
    let seen = calls_by_group(job, groups);
    for (&rank, dump) in &mut job.ranks {
        let of_kind = groups.by_kind(rank);
        let [first_kept, first_diagnosed] =
            [kept, diagnosed].map(|count| dump.packed.len().saturating_sub(count));
        let is_completed = |entry: &Entry<'_>| {
            let group = of_kind.get(entry.index as usize).copied().flatten();
            group.is_some_and(|group| {
                let seq = groups.all[group].seq(entry);
                seen[group].as_ref().is_some_and(|it| it.is_completed(seq))
            })
        };
        let entries = dump.entries().enumerate().filter_map(|(at, entry)| {
            let is_late = at >= first_diagnosed;
            let is_settled = !is_late && !entry.is_message && is_completed(&entry);
            (at >= first_kept || !is_settled).then_some(Entry { is_settled, ..entry })
        });
        dump.packed = entries.collect();
    }
}

/// The collectives by group; `None`: it is not examined.
fn calls_by_group(job: &DumpedJob, groups: &Groups) -> Vec<Option<GroupCalls>> {
    // First and last number, and the number of calls.
    let mut ranges: Vec<Option<(u64, u64, u64)>> = vec![None; groups.all.len()];
    for (&rank, dump) in &job.ranks {
        let kinds = dump.kinds.iter().zip(groups.by_kind(rank));
        for (kind, group) in kinds.filter(|(kind, _)| !kind.is_message) {
            let numbers = dump.packed.numbers(kind);
            if let Some(group) = group.filter(|_| numbers.count > 0) {
                let of = &groups.all[group];
                let (first, last) = (of.number(numbers.lowest), of.number(numbers.highest));
                let range = ranges[group].get_or_insert((first, last, 0));
                *range = (range.0.min(first), range.1.max(last), range.2 + numbers.count);
            }
        }
    }
    let spans = ranges.into_iter().zip(&groups.all).map(|(range, group)| {
        let dense = |(first, last, calls): &(u64, u64, u64)| last - first < calls * SPREAD;
        let (first, last, _) = range.filter(dense)?;
        // All ranks with a dump have made the calls up to here.
        let issued = group.progress.values().map(|it| it.issued).min();
        let len = (last.min(issued.unwrap_or(0)) + 1).saturating_sub(first) as usize;
        let calls = vec![Some(NO_CALL); len];
        Some(GroupCalls { first, calls })
    });
    let mut seen: Vec<Option<GroupCalls>> = spans.collect();
    for (&rank, dump) in &job.ranks {
        let entries: Vec<Entry<'_>> = dump.entries().collect();
        let silent = silent_backends(dump, &entries);
        let kinds = dump.kinds.iter();
        let are_ended_by_retiring: Vec<bool> = kinds
            .map(|kind| kind.group.is_on_host || silent.contains(&kind.group.backend))
            .collect();
        let is_ended =
            |entry: &Entry<'_>| entry.retired && are_ended_by_retiring[entry.index as usize];
        let of_kind = groups.by_kind(rank);
        for entry in entries.iter().filter(|entry| !entry.is_message) {
            let Some(group) = of_kind.get(entry.index as usize).copied().flatten() else {
                continue;
            };
            let of = &groups.all[group];
            let seq = of.seq(entry);
            let Some(known) = seen[group].as_mut().and_then(|it| it.at(seq)) else {
                continue;
            };
            let by_status = || of.progress.get(&rank).is_some_and(|it| seq <= it.completed);
            let is_complete = entry.is_complete() || is_ended(entry) || by_status();
            let signature = entry.signature.max(NO_CALL + 1);
            *known = match *known {
                Some(NO_CALL) if is_complete => Some(signature),
                Some(it) if is_complete && it == signature => *known,
                _ => None,
            };
        }
    }
    seen
}

impl GroupCalls {
    fn at(&mut self, seq: u64) -> Option<&mut Option<u64>> {
        self.calls.get_mut(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    fn is_completed(&self, seq: u64) -> bool {
        let at = seq.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let call = at.and_then(|at| self.calls.get(at).copied()).flatten();
        call.is_some_and(|it| it != NO_CALL)
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_diagnosis::Engine;
    use ddp_doctor_proto::report::{Report, Timestamp};
    use serde_json::{Value, json};

    use super::*;
    use crate::Observer;
    use crate::flight_recorder::dump::Room;
    use crate::flight_recorder::dump_files::{Contents, Found, parse};
    use crate::flight_recorder::replay::Replay;
    use crate::flight_recorder::{dumped_jobs, report};

    /// An observer that takes no notice.
    struct Silent;

    impl Observer for Silent {
        fn evaluated(&mut self, _: &Engine, _: Timestamp, _: bool) {}
    }

    fn entry(rank: u32, record: u64, differs: bool) -> Value {
        // Every fourth call is of all ranks, the others of a pair.
        let is_world = record % 4 == 3;
        let group = if is_world { "0".into() } else { (1 + rank / 2).to_string() };
        let seq = if is_world { record / 4 + 1 } else { record - record / 4 + 1 };
        let numel = if differs { 9 } else { 8 };
        json!({
            "record_id": record, "pg_id": 0, "process_group": [group, "pg"],
            "collective_seq_id": seq, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000_u64 + record * 1_000_000 + u64::from(rank),
            "input_sizes": [[numel]], "input_dtypes": ["Float"],
            "output_sizes": [[numel]], "output_dtypes": ["Float"],
            "state": "completed", "retired": true, "timeout_ms": 600_000, "is_p2p": false,
        })
    }

    /// The dumps of eight ranks with up to 400 calls; rank 5 makes no call of all ranks after the
    /// 90th. `differs`: a rank and a record whose size is another one.
    fn job(differs: Option<(u32, u64)>) -> DumpedJob {
        let mut contents = Contents::default();
        for rank in 0..8 {
            let last = if rank == 5 { 362 } else { 364 };
            let records = (0..last).map(|record| {
                let mut entry = entry(rank, record, differs == Some((rank, record)));
                if record == 363 {
                    entry["state"] = "scheduled".into();
                    entry["retired"] = false.into();
                }
                entry
            });
            let entries: Vec<Value> = records.collect();
            let pair = (rank / 2 * 2, rank / 2 * 2 + 1);
            let document = json!({ "version": "2.9", "entries": entries, "pg_config": {
                "0": { "name": "0", "desc": "pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]" },
                (1 + rank / 2).to_string(): {
                    "name": "pair", "desc": "pg", "ranks": format!("[{}, {}]", pair.0, pair.1),
                },
            }});
            let dump =
                parse(document.to_string().into_bytes(), None, &Room::new(1 << 20, u64::MAX))
                    .unwrap();
            let path = format!("trace_rank_{rank}").into();
            contents.dumps.push(Found { path, dump });
        }
        dumped_jobs::assemble(vec![contents], &mut Vec::new()).remove(0)
    }

    /// The report, and the number of calls that the engine gets.
    fn report(differs: Option<(u32, u64)>, kept: usize, diagnosed: usize) -> (Report, usize) {
        let mut job = job(differs);
        let groups = Groups::new(&job);
        remove_beyond(&mut job, &groups, kept, diagnosed);
        let calls = job.ranks.values().map(|dump| dump.packed.len()).sum();
        let replay = Replay::new(&job, groups);
        let engine = replay.run(&mut Silent);
        (report::limited(engine.report(), &replay), calls)
    }

    #[test]
    fn report_is_the_same_without_completed_collectives() {
        let (all, calls) = report(None, usize::MAX, usize::MAX);
        assert_eq!(calls, 7 * 364 + 362);
        let (few, calls) = report(None, 4, 4);
        assert!(calls < 8 * 10, "{calls}");
        let (marked, calls) = report(None, usize::MAX, 4);
        assert_eq!(calls, 7 * 364 + 362);
        assert_eq!(serde_json::to_value(&few).unwrap(), serde_json::to_value(marked).unwrap());
        assert_eq!(all.findings[0].code, "DD101");
        assert_eq!(all.findings[0].ranks.root, [5]);
        assert_eq!(serde_json::to_value(all).unwrap(), serde_json::to_value(few).unwrap());
    }

    #[test]
    fn collectives_whose_calls_differ_are_kept() {
        let differs = Some((3, 103));
        let (all, _) = report(differs, usize::MAX, usize::MAX);
        let (few, calls) = report(differs, 4, 4);
        assert!(calls < 8 * 12, "{calls}");
        assert_eq!(
            serde_json::to_value(&all.findings).unwrap(),
            serde_json::to_value(&few.findings).unwrap()
        );
    }
}
