//! Compares the diagnosis of every program in `tests/jobs` with its truth: replayed from its
//! recording, and live.
//!
//! * `replay::FAMILY::PROGRAM::VARIANT` diagnoses the recording again. All of them run by default.
//! * `live::FAMILY::PROGRAM::VARIANT` runs the program. Those marked `quick = true` run by
//!   default; the others are ignored tests, which `make test-all` includes.
//!
//! With `DDP_DOCTOR_RECORD=stale` the tests are `record::…` instead: each runs a case without a
//! valid recording and stores its journal if the outcome agrees with the truth.
//! `DDP_DOCTOR_RECORD=all` records every case again. `DDP_DOCTOR_TEST_TORCH` is the version of
//! PyTorch that the live jobs must have, which `live::version_of_pytorch` tests. `DDP_DOCTOR_CAUSES=1` prints the causes,
//! `DDP_DOCTOR_SCORES=1` a table of what is right over Gloo and over NCCL.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot continue has failed and may print why"
)]

mod analysis;
mod causes;
mod check;
#[path = "../doubles/harness.rs"]
mod doubles;
mod known_wrong;
mod live;
mod program;
#[path = "../doubles/programs.rs"]
mod programs;
mod recording;
mod recording_checks;
mod reread;
mod schedule;
mod scores;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "shared with the other integration tests")]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use live::Unable;
use program::{Case, Variant, cases};

fn main() -> ExitCode {
    let is_set = |name| std::env::var_os(name).is_some();
    let tested = || cases().into_iter().filter(recording::is_tested).collect::<Vec<_>>();
    let recorded = || tested().into_iter().map(recording::as_recorded).collect::<Vec<_>>();
    if is_set("DDP_DOCTOR_CAUSES") {
        causes::print(&recorded());
        return ExitCode::SUCCESS;
    }
    if is_set("DDP_DOCTOR_SCORES") {
        scores::print(&recorded());
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(schedule::threads()));
    let trials = match std::env::var("DDP_DOCTOR_RECORD") {
        Ok(which) => recordings(tested(), which == "all"),
        Err(_) => tests(tested(), recorded()),
    };
    silence_panics();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if is_set("DDP_DOCTOR_RECORD") {
        recording::keep_layout(&tested());
    }
    conclusion.exit_code()
}

/// The default hook would print between other lines; a failure shows its message anyway.
fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// The tests: live runs, in which programs that are meant to take long start first, and replays of the same cases
/// as they were recorded.
fn tests(cases: Vec<Case>, recorded: Vec<Case>) -> Vec<Trial> {
    let orphans = recording::orphans(&cases);
    let all_belong = Trial::test("recordings_belong_to_programs", move || {
        if orphans.is_empty() { Ok(()) } else { Err(format!("{orphans:#?}").into()) }
    });
    let mut trials = vec![all_belong];
    if let Ok(version) = std::env::var("DDP_DOCTOR_TEST_TORCH") {
        trials.push(Trial::test("live::version_of_pytorch", move || {
            let used = live::versions();
            let is_used = used.split("PyTorch ").nth(1).is_some_and(|it| {
                // `2.4.1+cu121`: the build follows the version.
                it.split('+').next() == Some(version.as_str())
            });
            if is_used {
                Ok(())
            } else {
                Err(format!("{used} instead of PyTorch {version}").into())
            }
        }));
    }
    let mut cases: Vec<Arc<Case>> = cases.into_iter().map(Arc::new).collect();
    cases.sort_by_key(|case| (case.truth.alone, std::cmp::Reverse(case.truth.seconds)));
    trials.push(known_wrong::trial(&cases));
    trials.extend(recording_checks::trials(&cases));
    for case in &cases {
        let name = format!("live::{case}");
        let (quick, case) = (case.is_quick(), Arc::clone(case));
        let test = Trial::ignorable_test(name, move || test_live(&case));
        trials.push(test.with_ignored_flag(!quick));
    }
    for case in recorded {
        let name = format!("replay::{case}");
        trials.push(Trial::test(name, move || {
            let _turn = schedule::replay();
            let result = guarded(|| check::check(&case, &recording::replay(&case)));
            known_wrong::judge(&case, result)
        }));
    }
    trials
}

fn recordings(cases: Vec<Case>, all: bool) -> Vec<Trial> {
    let mut wanted: Vec<Case> =
        cases.into_iter().filter(|case| all || recording::staleness(case).is_some()).collect();
    wanted.sort_by_key(|case| (case.truth.alone, std::cmp::Reverse(case.truth.seconds)));
    let trials = wanted.into_iter().map(|case| {
        Trial::ignorable_test(format!("record::{case}"), move || {
            run_live(&case, |run| {
                let (dir, status) = (run.dir(), run.outcome.status);
                let hidden = live::hidden(run);
                recording::keep(&case, &dir, status, live::versions(), &hidden);
                check::check(&case, &recording::replay(&case));
            })
        })
    });
    trials.collect()
}

fn test_live(case: &Case) -> Result<Completion, Failed> {
    run_live(case, |run| {
        if case.variant == Variant::Faulty {
            live::is_shown_first(case, run);
            live::print_latency(case, run);
        }
    })
}

/// Runs a case, compares the outcome with its truth, and passes the run to `then`.
fn run_live(case: &Case, then: impl FnOnce(&live::Run)) -> Result<Completion, Failed> {
    let _turn = schedule::live(case.truth.alone);
    let mut unable = None;
    guarded(|| match live::run(case) {
        Ok(run) => {
            check::check(case, &run.outcome);
            then(&run);
        }
        Err(Unable(why)) => unable = Some(why),
    })?;
    Ok(unable.map_or(Completion::Completed, Completion::ignored_with))
}

/// Runs a test and returns a panic as a failure.
fn guarded(test: impl FnOnce()) -> Result<(), Failed> {
    catch_unwind(AssertUnwindSafe(test)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        text.unwrap_or_else(|| "it panicked".into()).into()
    })
}
