//! Proof of the proofs: random programs, executed at random, and an oracle that knows what is true of
//! each of their states.
//!
//! ```text
//! program ──► execution ──► state ──► oracle: which waits are hopeless, which calls never match
//!   │ with a mistake │                                      │
//!   └ in one rank    └──► records, in random orders ──► engine: findings
//! ```
//!
//! Demanded of the engine, for every execution, cut off anywhere:
//!
//! * what it proves is so, whatever the program does next, also where it has heard only a part;
//! * whatever stands still for ever is proved to, at one look;
//! * a job that may yet end well hears nothing;
//! * the rank it blames with confidence is the one that the mistake was put into;
//! * the order in which ranks are heard changes nothing.
//!
//! `make oracle` runs a million programs; the tests run some of them. A program that shows a fault is
//! made as small as it can be and printed as a scenario.

mod check;
mod course;
mod generate;
mod machine;
mod program;
mod shrink;
mod truth;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use check::{Outcome, Violation, check};
use generate::{Planted, planted};
use program::Random;

/// Programs that every run of the tests tries.
const SAMPLE: u64 = 500;

/// What was tried.
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

/// One program and one execution of it.
fn case(seed: u64) -> Result<Outcome, Violation> {
    let (planted, schedule) = of(seed);
    check(&planted, schedule)
}

fn of(seed: u64) -> (Planted, u64) {
    let mut random = Random::new(seed);
    (planted(&mut random), random.next())
}

/// A fault in the words of its smallest scenario.
fn words(seed: u64, found: Violation) -> String {
    let (planted, schedule) = of(seed);
    let (smallest, found) = shrink::shrink(&planted, schedule, found);
    format!(
        "program {seed}, {}: {}\nmistakes in {:?}\n\n{}",
        found.kind, found.words, smallest.mutated, found.scenario
    )
}

#[test]
fn a_sample_of_programs_is_diagnosed_as_it_is() {
    let mut statistics = Statistics::default();
    for seed in 0..SAMPLE {
        match case(seed) {
            Ok(outcome) => statistics.add(&outcome),
            Err(found) => panic!("{}", words(seed, found)),
        }
    }
    println!("{statistics:?}");
    // A generator whose programs are all healthy, or all broken at once, shows nothing.
    let often = |count: u64| count >= SAMPLE / 20;
    assert!(often(statistics.healthy) && often(statistics.quiet) && often(statistics.stuck));
    for code in [
        "DD102", "DD103", "DD104", "DD105", "DD111", "DD201", "DD202", "DD203",
    ] {
        assert!(
            statistics.codes.contains_key(code),
            "no {code}: {statistics:?}"
        );
    }
}

/// `make oracle`: as many programs as `ORACLE_PROGRAMS` says, from the one that `ORACLE_FROM` names.
#[test]
#[ignore = "takes minutes: make oracle"]
fn a_million_programs_are_diagnosed_as_they_are() {
    let number =
        |name: &str, default: u64| std::env::var(name).map_or(default, |it| it.parse().unwrap());
    let (from, programs) = (
        number("ORACLE_FROM", 0),
        number("ORACLE_PROGRAMS", 1_000_000),
    );
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
