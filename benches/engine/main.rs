//! Measures what the engine costs by the number of ranks and the length of the job: an event, an
//! evaluation every 50 ms of the job's time, memory, and how soon a planted fault is reported. Times are
//! those of the processor, which depend little on other programs.
//!
//! ```text
//! cargo bench -p ddp-doctor-diagnosis --bench engine                     # the table in docs/performance.md
//! cargo bench -p ddp-doctor-diagnosis --bench engine -- --ranks 1024 --seconds 60 --step 1000
//! cargo bench -p ddp-doctor-diagnosis --bench engine -- --ranks 64 --fault straggler
//! ```
//!
//! Options: `--ranks`, `--seconds` of the job's time, `--step` in milliseconds, `--seed`, and
//! `--fault`: `missing` (a rank makes no further calls), `size` (a rank reduces another number of
//! elements), `straggler` (a rank computes longer) or `slow` (all collectives of a group take
//! longer). A fault begins at half of the time.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its results and needs no error handling"
)]

mod heap;
mod job;

use std::time::Duration;

use ddp_doctor_diagnosis::{Config, Engine};
use ddp_doctor_proto::report::Timestamp;

use job::{Fault, Job, Layout, MILLISECOND};

/// Ranks, seconds of the job and milliseconds of a step, by row of the table.
const TABLE: [(u32, u64, u64); 7] = [
    (8, 60, 100),
    (64, 20, 100),
    (64, 3_600, 4_000),
    (256, 4, 100),
    (1_024, 2, 100),
    (4_096, 1, 100),
    (16_384, 1, 200),
];
/// Interval of evaluations, and of the reports of nodes.
const TICK: u64 = 50 * MILLISECOND;
/// At each second evaluation, about half of the ranks have begun the first call of a step.
const AHEAD: u64 = MILLISECOND / 10;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|it| it == name)?;
        arguments.get(at + 1).cloned()
    };
    let number = |name: &str| value(name).map(|it| it.parse::<u64>().unwrap());
    let layout = |ranks: u32, step: u64| Layout {
        ranks,
        step: step * MILLISECOND,
        seed: number("--seed").unwrap_or(1),
        fault: value("--fault").map(|it| Fault::named(&it).unwrap()),
    };
    println!(
        "| ranks | job | events | one event | evaluation, mean | worst | of real time | heap a rank | resident a rank |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    match number("--ranks") {
        Some(ranks) => {
            let layout = layout(u32::try_from(ranks).unwrap(), number("--step").unwrap_or(100));
            run(layout, number("--seconds").unwrap_or(10));
        }
        None => TABLE.iter().for_each(|&(ranks, seconds, step)| run(layout(ranks, step), seconds)),
    }
}

/// Simulates a job and prints its row.
fn run(layout: Layout, seconds: u64) {
    let mut job = Job::start(layout, seconds);
    let before = (heap::allocated(), resident());
    let mut engine = Engine::new(Config::default());
    for event in job.joined() {
        engine.handle(event, Timestamp(0));
    }
    let (mut events, mut applied) = (0_u64, Duration::ZERO);
    let mut evaluations = Vec::new();
    let mut reported = None;
    for tick in 1..=seconds * 1_000 * MILLISECOND / TICK {
        let now = Timestamp(tick * TICK + AHEAD);
        // Nodes report one process after the other. Reports are made before the time is taken.
        let reports = job.until(now);
        events += reports.len() as u64;
        let began = used();
        for event in reports {
            engine.handle(event, now);
        }
        applied += used().saturating_sub(began);
        engine.handle_timeout(now);
        let began = used();
        engine.poll_change();
        evaluations.push(used().saturating_sub(began));
        if reported.is_none() && job.has_fault(now) && !engine.report().findings.is_empty() {
            reported = Some((now, engine.report()));
        }
    }
    let report = engine.report();
    match reported {
        Some((at, report)) => {
            let codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
            let after = at.since(job.fault_at()).as_secs_f64();
            println!("{} after {after:.2} s: {}", codes.join(", "), report.findings[0].summary);
        }
        None => assert!(report.findings.is_empty(), "{:#?}", report.findings),
    }
    let evaluated: Duration = evaluations.iter().sum();
    let a_rank = |bytes: u64| bytes as f64 / 1024.0 / f64::from(layout.ranks);
    let worst = evaluations.iter().max().copied().unwrap_or_default();
    println!(
        "| {} | {seconds} s | {events} | {:.2} µs | {:.2} ms | {:.1} ms | {:.3} | {:.1} KiB | {:.1} KiB |",
        layout.ranks,
        applied.as_secs_f64() * 1e6 / events as f64,
        evaluated.as_secs_f64() * 1e3 / evaluations.len() as f64,
        worst.as_secs_f64() * 1e3,
        (applied + evaluated).as_secs_f64() / seconds as f64,
        a_rank(heap::allocated().saturating_sub(before.0)),
        a_rank(resident().saturating_sub(before.1)),
    );
}

/// Processor time of this process.
fn used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap()
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
