//! Checks the engine against random programs, executed at random, and an oracle that knows the
//! truth about each of their states.
//!
//! ```text
//! program ──► execution ──► state ──► oracle: which waits are hopeless, which calls never match
//!   │ with a mistake │                                      │
//!   └ in one rank    └──► records, in random orders ──► engine: findings
//! ```
//!
//! Requirements on the engine, for every execution, stopped at any point:
//!
//! * A proved finding is true whatever the program does next, even with partial evidence.
//! * Every rank that is blocked for ever is part of a proved finding, without waiting for a time
//!   limit.
//! * A job that may still end well has no finding.
//! * A rank that is blamed with confidence is one that a mistake was put into.
//! * The diagnosis does not depend on the order in which the evidence of ranks arrives.
//!
//! `make oracle` runs a million programs; the tests run a sample. A program that violates a
//! requirement is minimized and printed as a scenario.

mod check;
mod execution;
mod generate;
mod machine;
pub(crate) mod program;
mod shrink;
mod truth;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use check::{Outcome, Violation, check};
use generate::{Planted, planted};
use machine::Machine;
use program::Random;

use crate::support::scenario::Scenario;

/// Number of programs in the sample.
const SAMPLE: u64 = 500;

/// Counts of the programs tried, and of their properties.
#[derive(Debug, Default)]
struct Statistics {
    programs: u64,
    healthy: u64,
    quiet: u64,
    stuck: u64,
    proved: u64,
    states: u64,
    events: u64,
    codes: BTreeMap<String, u64>,
}

impl Statistics {
    fn add(&mut self, outcome: &Outcome) {
        self.programs += 1;
        self.healthy += u64::from(outcome.healthy);
        self.quiet += u64::from(outcome.quiet);
        self.stuck += u64::from(outcome.stuck > 0);
        self.proved += u64::from(outcome.proved > 0);
        self.states += outcome.states as u64;
        self.events += outcome.events as u64;
        for code in &outcome.codes {
            *self.codes.entry(code.clone()).or_default() += 1;
        }
    }

    fn merge(&mut self, other: Self) {
        self.programs += other.programs;
        self.healthy += other.healthy;
        self.quiet += other.quiet;
        self.stuck += other.stuck;
        self.proved += other.proved;
        self.states += other.states;
        self.events += other.events;
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
    }
}

/// Checks one program in one execution, both derived from the seed.
fn case(seed: u64) -> Result<Outcome, Violation> {
    let (planted, schedule) = program_of(seed);
    check(&planted, schedule)
}

fn program_of(seed: u64) -> (Planted, u64) {
    let mut random = Random::new(seed);
    (planted(&mut random), random.next())
}

/// Minimizes a violation and describes it with its scenario.
fn words(seed: u64, found: Violation) -> String {
    let (planted, schedule) = program_of(seed);
    let (smallest, found) = shrink::shrink(&planted, schedule, found);
    format!(
        "program {seed}, {}: {}\nmistakes in {:?}\n\n{}",
        found.kind, found.words, smallest.mutated, found.scenario
    )
}

#[test]
fn sampled_programs_are_diagnosed_correctly() {
    let mut statistics = Statistics::default();
    for seed in 0..SAMPLE {
        match case(seed) {
            Ok(outcome) => statistics.add(&outcome),
            Err(found) => panic!("{}", words(seed, found)),
        }
    }
    println!("{statistics:?}");
    // A generator whose programs are all healthy, or all broken from the start, would test nothing.
    let often = |count: u64| count >= SAMPLE / 20;
    assert!(often(statistics.healthy) && often(statistics.quiet) && often(statistics.stuck));
    for code in ["DD102", "DD103", "DD104", "DD105", "DD111", "DD201", "DD202", "DD203"] {
        assert!(statistics.codes.contains_key(code), "no {code}: {statistics:?}");
    }
}

/// `make oracle-digests`: writes the executions of `ORACLE_PROGRAMS` programs from seed `ORACLE_FROM` on as
/// journals to the folder `ORACLE_JOURNALS`. `coordinator::session::tests` diagnoses them from digests.
#[test]
#[ignore = "writes a folder: make oracle-digests"]
fn executions_are_written_as_journals() {
    let folder = PathBuf::from(std::env::var("ORACLE_JOURNALS").unwrap());
    let (from, programs) = (number("ORACLE_FROM", 0), number("ORACLE_PROGRAMS", 2_000));
    for seed in from..from + programs {
        let (planted, schedule) = program_of(seed);
        let Some(machine) = Machine::new(&planted.program) else {
            continue;
        };
        let execution = execution::run(&machine, &mut Random::new(schedule));
        let scenario = Scenario::parse(&execution.scenario).unwrap();
        let own = folder.join(seed.to_string());
        fs::create_dir_all(&own).unwrap();
        scenario.journals(&own, 1).unwrap();
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |it| it.parse().unwrap())
}

/// `make oracle`: checks `ORACLE_PROGRAMS` programs from seed `ORACLE_FROM` on, and stops after
/// `ORACLE_FAULTS` violations.
#[test]
#[ignore = "takes minutes: make oracle"]
fn million_programs_are_diagnosed_correctly() {
    let (from, programs) = (number("ORACLE_FROM", 0), number("ORACLE_PROGRAMS", 1_000_000));
    let faults = number("ORACLE_FAULTS", 1);
    let (next, found) = (AtomicU64::new(from), AtomicU64::new(0));
    let began = Instant::now();
    let work = || {
        let mut statistics = Statistics::default();
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        while found.load(Ordering::Relaxed) < faults {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + programs {
                break;
            }
            if (seed + 1 - from).is_multiple_of(20_000) {
                eprintln!("{} programs, {:?}", seed + 1 - from, began.elapsed());
            }
            match case(seed) {
                Ok(outcome) => statistics.add(&outcome),
                Err(violation) => {
                    let count = kinds.entry(violation.kind.clone()).or_default();
                    *count += 1;
                    if *count == 1 {
                        eprintln!("{}\n", words(seed, violation));
                    }
                    found.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        (statistics, kinds)
    };
    let mut statistics = Statistics::default();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let (own, faults) = thread.join().unwrap();
            statistics.merge(own);
            for (kind, count) in faults {
                *kinds.entry(kind).or_default() += count;
            }
        }
    });
    println!("{statistics:#?}\n{:?}", began.elapsed());
    assert!(kinds.is_empty(), "{kinds:#?}");
}
