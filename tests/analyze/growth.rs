//! The cost of an analysis is proportional to the evidence, however many of its ranks differ.

use std::{fs, thread};

use ddp_doctor::postmortem;

use crate::support::heap::allocated_by;

/// Bytes allocated in the analysis of a log with these lines of each rank.
fn work(ranks: u32, lines: fn(u32) -> String) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("job.log");
    fs::write(&log, (0..ranks).map(lines).collect::<String>()).unwrap();
    allocated_by(|| {
        let reports = postmortem::analyze(&[log]).reports;
        assert_eq!(reports[0].ranks.len(), ranks as usize);
        assert!(!reports[0].findings.is_empty());
    })
}

fn assert_proportional(lines: fn(u32) -> String) {
    let (few, many) = (work(200, lines), work(1600, lines));
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
