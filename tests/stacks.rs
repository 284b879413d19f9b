//! Stacks of real ranks, under `ddp-doctor run`: taken where ranks stand, and nowhere else.
//!
//! They need the Python environment that `pytorch.rs` needs.

use std::path::Path;
use std::process::Command;

use ddp_doctor::evidence::journal::Reader;
use ddp_doctor_proto::v1::{self, event::Kind};

use crate::pytorch::{jobs, venv};
use crate::support::process::{Finished, run_to_end};

/// A job of two ranks under `run`, with its run directory in `scratch`.
fn run(scratch: &Path, job: &str, options: &[&str]) -> Option<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddp-doctor"));
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .current_dir(scratch)
        .args(["run", "--run-dir", "run"])
        .args(options)
        .args(["--nproc-per-node", "2"])
        .arg(jobs().join(job))
        .env("PATH", format!("{}:{path}", venv()?.join("bin").display()))
        .env("OMP_NUM_THREADS", "1");
    Some(command)
}

/// All stacks in the journal, with the rank they are of.
fn journaled(scratch: &Path) -> Vec<(u32, v1::Stacks)> {
    let mut reader = Reader::open(&scratch.join("run/journal.ddpj")).unwrap();
    let mut ranks = std::collections::BTreeMap::new();
    let mut stacks = Vec::new();
    while let Some(report) = reader.read().unwrap() {
        for event in report.events {
            match event.kind.unwrap() {
                Kind::ProcessJoined(joined) => {
                    ranks.extend(joined.rank.map(|rank| (joined.process, rank)));
                }
                Kind::Stacks(taken) => stacks.push((ranks[&taken.process], taken)),
                _ => {}
            }
        }
    }
    stacks
}

fn show(finished: &Finished, stacks: &[(u32, v1::Stacks)]) -> String {
    format!("{finished}\n{stacks:#?}")
}

/// Runs the job in which rank 1 sleeps and rank 0 waits, until it is ended.
fn asleep(options: &[&str]) -> Option<(Finished, Vec<(u32, v1::Stacks)>)> {
    let scratch = tempfile::tempdir().unwrap();
    let kill = [
        "--stall-after",
        "3",
        "--on-hang",
        "kill",
        "--kill-after",
        "1",
    ];
    let options = [&kill, options].concat();
    let finished = run_to_end(run(scratch.path(), "faulty/asleep.py", &options)?);
    assert_eq!(finished.status, Some(75), "{finished}");
    let stacks = journaled(scratch.path());
    Some((finished, stacks))
}

#[test]
fn ranks_that_stand_are_looked_at_twice_before_the_limit() {
    let Some((finished, stacks)) = asleep(&[]) else {
        return;
    };
    let show = || show(&finished, &stacks);
    let line = |thread: &v1::ThreadStack| {
        let frame = thread
            .python
            .iter()
            .find(|it| it.file.ends_with("/asleep.py"));
        frame.map(|frame| (frame.line, frame.function.clone()))
    };
    for (rank, inside, at) in [(0, "all_reduce", 35), (1, "<module>", 34)] {
        let of_rank: Vec<_> = stacks.iter().filter(|(of, _)| *of == rank).collect();
        assert!(of_rank.len() >= 2, "{}", show());
        for (_, taken) in of_rank {
            let main = &taken.threads[0];
            assert_eq!(taken.trouble, "", "{}", show());
            let is_inside = main.python.iter().any(|frame| frame.function == inside);
            assert!(is_inside, "{}", show());
            assert_eq!(line(main), Some((at, "<module>".into())), "{}", show());
            assert_eq!((main.state.as_str(), main.holds_gil), ("S", Some(false)));
            assert!(
                taken.threads.len() > 1 && main.cpu_ns > Some(0),
                "{}",
                show()
            );
        }
    }
}

#[test]
fn stacks_can_be_switched_off() {
    for when in ["never", "ask"] {
        let Some((finished, stacks)) = asleep(&["--stacks", when]) else {
            return;
        };
        assert_eq!(stacks.len(), 0, "{}", show(&finished, &stacks));
    }
}

#[test]
fn a_job_that_waits_for_moments_is_not_looked_at() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(command) = run(scratch.path(), "healthy/killed.py", &[]) else {
        return;
    };
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    // Only starting up takes long on a busy machine: that is looked at before there is a collective.
    let stacks = journaled(scratch.path());
    let starting = |(_, taken): &(u32, v1::Stacks)| {
        let functions = taken.threads[0].python.iter().map(|frame| &frame.function);
        functions.into_iter().any(|it| it == "init_process_group")
    };
    assert!(stacks.iter().all(starting), "{}", show(&finished, &stacks));
}
