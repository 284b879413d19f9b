//! The cost of an analysis is proportional to the evidence, however many of its ranks differ.

use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io, thread};

use ddp_doctor::postmortem::{self, Analysis};
use ddp_doctor::report::csv;
use ddp_doctor::report::timeline::Track;
use ddp_doctor_proto::report::{Rank, RankCall};
use rustix::time::{ClockId, clock_gettime};

use crate::support::dumps::{Entry, dump};
use crate::support::heap::allocated_by;

/// Bytes allocated in the analysis of a log with these lines of each rank.
fn work(ranks: u32, lines: fn(u32) -> String) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("job.log");
    fs::write(&log, (0..ranks).map(lines).collect::<String>()).unwrap();
    allocated_in_analysis(ranks, log)
}

/// Bytes allocated in the analysis of dumps with these calls of each rank.
fn work_on_dumps(ranks: u32, calls: fn(u32) -> Vec<Entry>) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    for rank in 0..ranks {
        let dump = dump(&[("0", "")], &calls(rank)).to_string();
        fs::write(directory.path().join(format!("trace_rank_{rank}.json")), dump).unwrap();
    }
    allocated_in_analysis(ranks, directory.path().to_owned())
}

fn allocated_in_analysis(ranks: u32, path: PathBuf) -> u64 {
    allocated_by(|| {
        let reports = postmortem::analyze(&[path]).reports;
        assert_eq!(reports[0].ranks.len(), ranks as usize);
        assert!(!reports[0].findings.is_empty());
    })
}

fn assert_proportional(lines: fn(u32) -> String) {
    assert_linear(work(200, lines), work(1600, lines));
}

/// For the work on 200 ranks and that on 1600.
#[track_caller]
fn assert_linear(few: u64, many: u64) {
    assert!(many < 12 * few, "{few} bytes for 200 ranks, {many} for 1600");
}

fn traceback(rank: u32, file: &str, error: &str) -> String {
    let lines =
        ["Traceback (most recent call last):", &format!("  File \"{file}\", line 3, in f"), error];
    lines.map(|line| format!("[rank{rank}]: {line}\n")).concat()
}

fn watchdog(rank: u32, seq: u32, numel: u32) -> String {
    format!(
        "[rank{rank}]:[E1128 05:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective \
         operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn={numel}, NumelOut={numel}, \
         Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )
}

#[test]
fn different_exceptions_of_all_ranks_cost_what_they_are_long() {
    assert_proportional(|rank| {
        traceback(rank, &format!("a{rank}.py"), &format!("ValueError: x{rank}"))
    });
}

/// Each for another rank, whose watchdog gave up a call of a number of its own.
#[test]
fn exceptions_that_other_ranks_wait_for_cost_what_they_are_long() {
    assert_proportional(|rank| {
        if rank % 2 == 1 {
            return traceback(rank, &format!("a{rank}.py"), "ValueError: x");
        }
        let (seq, group) =
            (88 + rank, format!("[PG ID {rank} PG GUID {rank}(default_pg) Rank {rank}]"));
        watchdog(rank, seq, 100)
            + &format!(
                "[rank{rank}]:[E1128 05:00:00.000000000 ProcessGroupNCCL.cpp:2268] {group} failure detected by watchdog \
                 at work sequence id: {seq} PG status: last enqueued work: {}, last completed work: {}\n",
                seq + 2,
                seq - 1
            )
    });
}

#[test]
fn one_exception_of_all_ranks_costs_what_it_is_long() {
    assert_proportional(|rank| traceback(rank, "a.py", &format!("ValueError: port {rank}")));
}

#[test]
fn timeouts_of_different_calls_cost_what_they_are_long() {
    assert_proportional(|rank| watchdog(rank, rank + 1, 100));
}

#[test]
fn timeouts_of_calls_of_different_sizes_cost_what_they_are_long() {
    assert_proportional(|rank| watchdog(rank, 7, 100 + rank));
}

#[test]
fn dumps_of_ranks_in_different_calls_cost_what_they_are_long() {
    let work = |ranks| {
        work_on_dumps(ranks, |rank| {
            vec![Entry::new("nccl:all_reduce", "0", u64::from(rank) + 1).open()]
        })
    };
    assert_linear(work(200), work(1600));
}

#[test]
fn dumps_of_ranks_behind_a_common_call_cost_what_they_are_long() {
    let calls = |rank| {
        let at = u64::from(rank);
        vec![
            Entry::new("nccl:all_reduce", "0", 1),
            Entry::new("nccl:broadcast", "0", 2 * at + 2).open(),
            Entry::new("nccl:barrier", "0", 2 * at + 3).open(),
        ]
    };
    assert_linear(work_on_dumps(200, calls), work_on_dumps(1600, calls));
}

/// Nothing is allocated in searches, so that this is measured in processor time.
#[test]
fn table_costs_what_it_is_long() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("job.log");
    let lines = (0..8).map(|rank| {
        if rank == 0 { traceback(0, "a.py", "ValueError: x") } else { watchdog(rank, 7, 100) }
    });
    fs::write(&log, lines.collect::<String>()).unwrap();
    let analysis = postmortem::analyze(&[log]);
    let few = time_of_table(&analysis, 1000);
    let many = time_of_table(&analysis, 32_000);
    assert!(many < 160 * few, "{few:?} for 1000 ranks, {many:?} for 32000");
}

/// Processor time of the table of a job of eight ranks, as it is with this many.
fn time_of_table(analysis: &Analysis, ranks: u32) -> Duration {
    let (mut report, mut timeline) = (analysis.reports[0].clone(), analysis.timelines[0].clone());
    let finding = &mut report.findings[0];
    let (last, call) = (report.ranks[7].clone(), finding.per_rank.last().unwrap().clone());
    let track = timeline.tracks.last().unwrap().clone();
    for rank in 8..ranks {
        report.ranks.push(Rank { rank, ..last.clone() });
        finding.per_rank.push(RankCall { rank, ..call.clone() });
        finding.ranks.victims.push(rank);
        timeline.tracks.push(Track { rank, ..track.clone() });
    }
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let began = now();
    csv::table(&mut io::sink(), &[(&report, &timeline)]).unwrap();
    now() - began
}

#[test]
fn log_with_many_names_is_read_once() {
    let work = |names: u32| {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("rank0.log");
        let raised = |step| traceback(0, &format!("a{step}.py"), "ValueError: x");
        fs::write(&log, (0..500).map(raised).collect::<String>()).unwrap();
        for name in 1..names {
            fs::hard_link(&log, directory.path().join(format!("rank{name}.log"))).unwrap();
        }
        allocated_by(|| {
            let reports = postmortem::analyze(&[directory.path().to_owned()]).reports;
            assert_eq!(reports[0].ranks.len(), 1);
        })
    };
    let (one, many) = (work(1), work(40));
    assert!(many < 3 * one, "{one} bytes for one name, {many} for 40");
}

#[test]
fn timeouts_in_groups_of_their_own_cost_what_they_are_long() {
    assert_proportional(|rank| {
        let group = format!("[PG ID 1 PG GUID {}(g{rank}) Rank 0]", rank + 9);
        watchdog(rank, 7, 100)
            + &format!(
                "[rank{rank}]:[E1128 05:00:00.000000000 ProcessGroupNCCL.cpp:2268] {group} failure detected by watchdog \
                 at work sequence id: 7 PG status: last enqueued work: 7, last completed work: 6\n"
            )
    });
}

/// Each rank waits for the next one, so that the origin of all waits is at the end. With a small stack, since the chain
/// can be long.
#[test]
fn chain_of_waits_costs_what_it_is_long() {
    let chain = |rank: u32| {
        if rank == 0 {
            return "W0611 12:02:44 operations.cc:511] One or more tensors were submitted to be reduced, gathered or \
                    broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\n\
                    Stalled ops:\n"
                .into();
        }
        let before = rank - 1;
        format!("allreduce.{before} [missing ranks: {rank}] [ready ranks: {before}]\n")
    };
    let measured = thread::Builder::new().stack_size(512 << 10);
    measured.spawn(move || assert_proportional(chain)).unwrap().join().unwrap();
}
