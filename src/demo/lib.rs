//! Demonstration jobs with a planted fault.
//!
//! The jobs are real: several processes that wait for each other over sockets, and hang because of
//! what they do. They report through the Rust agent as any program can, and `run` monitors them
//! like any job.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

mod fabric;
mod training;

pub use training::Fault;

/// Number of ranks of a demonstration.
pub const RANKS: u32 = 4;
/// How long the launcher waits for the other ranks after a rank failed.
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);
/// Interval at which the launcher polls its ranks.
const POLL: Duration = Duration::from_millis(20);
/// Identity of a rank, in the variables that `torchrun` sets.
const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
/// Says that the connection to the fabric is standard input.
const FABRIC: &str = "DDP_DOCTOR_DEMO_FABRIC";

/// One demonstration.
#[derive(Clone, Copy, Debug)]
pub struct Demo {
    /// Name on the command line.
    pub name: &'static str,
    /// What happens, in one sentence.
    pub about: &'static str,
    /// Code of the leading finding; `None`: nothing is wrong.
    pub code: Option<&'static str>,
    /// The planted fault.
    pub fault: Option<Fault>,
}

/// All demonstrations.
pub const DEMOS: [Demo; 5] = [
    Demo {
        name: "early-exit",
        about: "rank 1 has fewer batches than the others and ends; they wait for it",
        code: Some("DD102"),
        fault: Some(Fault::EarlyExit),
    },
    Demo {
        name: "group-order",
        about: "two ranks use two process groups in the opposite order, and all ranks wait for each other",
        code: Some("DD111"),
        fault: Some(Fault::GroupOrder),
    },
    Demo {
        name: "healthy",
        about: "nothing is wrong, and nothing is reported",
        code: None,
        fault: None,
    },
    Demo {
        name: "op-mismatch",
        about: "rank 2 calls a barrier where the others reduce their gradients",
        code: Some("DD103"),
        fault: Some(Fault::OpMismatch),
    },
    Demo {
        name: "rank-died",
        about: "rank 3 aborts in the middle of a step",
        code: Some("DD201"),
        fault: Some(Fault::RankDied),
    },
];

/// Looks up a demonstration by name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Demo> {
    DEMOS.iter().find(|demo| demo.name == name)
}

/// Runs as the process that `run` starts: as the launcher, which starts the ranks and waits for
/// them, or as one of the ranks. Returns its exit status.
///
/// # Errors
///
/// Fails if processes or sockets cannot be created.
pub fn rank_or_launcher(demo: &Demo) -> anyhow::Result<u8> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    match (number(RANK), number(WORLD_SIZE), std::env::var_os(FABRIC)) {
        (Some(rank), Some(world_size), Some(_)) => training::train(rank, world_size, demo.fault),
        _ => Ok(launch(demo)?),
    }
}

/// Starts the ranks and waits for all of them. If one fails, the others are killed after a delay.
/// If the launcher is killed, its fabric ends with it, and therefore the ranks, too.
fn launch(demo: &Demo) -> io::Result<u8> {
    let connections = fabric::serve(RANKS)?;
    let program = std::env::current_exe()?;
    let arguments: [OsString; 2] = ["demo-rank".into(), demo.name.into()];
    let mut ranks = Vec::new();
    for (rank, connection) in (0..RANKS).zip(connections) {
        let child = Command::new(&program)
            .args(&arguments)
            .env(RANK, rank.to_string())
            .env(LOCAL_RANK, rank.to_string())
            .env(WORLD_SIZE, RANKS.to_string())
            .env(FABRIC, "stdin")
            .stdin(OwnedFd::from(connection))
            .spawn()?;
        ranks.push(child);
    }
    let mut failed_since = None;
    loop {
        let mut running = 0;
        for rank in &mut ranks {
            match rank.try_wait()? {
                None => running += 1,
                Some(status) if !status.success() => {
                    failed_since.get_or_insert_with(Instant::now);
                }
                Some(_) => {}
            }
        }
        if running == 0 {
            return Ok(u8::from(failed_since.is_some()));
        }
        if failed_since.is_some_and(|since| since.elapsed() > AFTER_A_FAILURE) {
            // Fails if the rank has ended meanwhile.
            ranks.iter_mut().for_each(|rank| drop(rank.kill()));
        }
        std::thread::sleep(POLL);
    }
}
