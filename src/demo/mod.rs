//! Jobs with a planted fault, to see what a diagnosis looks like.
//!
//! They are real jobs: several processes that wait for each other over sockets, and hang because of
//! what they do. They report through the Rust agent as any program could, and are watched by `run`
//! like any job.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

mod fabric;
mod training;

pub use training::Fault;

/// Ranks of a demonstration.
pub const RANKS: u32 = 4;
/// How long the launcher lets the others wait for a rank that failed.
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);
/// How often the launcher looks after its ranks.
const POLL: Duration = Duration::from_millis(20);
/// How a rank is told who it is: the variables that `torchrun` sets.
const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
/// Address of the fabric.
const FABRIC: &str = "DDP_DOCTOR_DEMO_FABRIC";

/// One demonstration.
#[derive(Clone, Copy, Debug)]
pub struct Demo {
    /// Its name.
    pub name: &'static str,
    /// What happens, in a sentence.
    pub about: &'static str,
    /// Code of the finding that leads its diagnosis; `None`: nothing is wrong.
    pub code: Option<&'static str>,
    /// What goes wrong.
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
        about: "two ranks use two process groups in the other order, and all wait in a circle",
        code: Some("DD111"),
        fault: Some(Fault::GroupOrder),
    },
    Demo {
        name: "healthy",
        about: "nothing is wrong, and nothing is said",
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

/// The demonstration with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Demo> {
    DEMOS.iter().find(|demo| demo.name == name)
}

/// The process that `run` starts: starts the ranks and waits for them, or is one of them. Returns
/// its exit status.
///
/// # Errors
///
/// When processes or sockets cannot be made.
pub fn rank_or_launcher(demo: &Demo) -> anyhow::Result<u8> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    match (number(RANK), number(WORLD_SIZE), std::env::var(FABRIC)) {
        (Some(rank), Some(world_size), Ok(fabric)) => {
            training::train(rank, world_size, &fabric, demo.fault)
        }
        _ => Ok(launch(demo)?),
    }
}

/// Starts the ranks and waits for all of them; one that fails takes the others with it after a
/// while. If the launcher is ended itself, the fabric ends with it, and so do the ranks.
fn launch(demo: &Demo) -> io::Result<u8> {
    let fabric = fabric::serve(RANKS)?;
    let program = std::env::current_exe()?;
    let arguments: [OsString; 2] = ["demo-rank".into(), demo.name.into()];
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        let child = Command::new(&program)
            .args(&arguments)
            .env(RANK, rank.to_string())
            .env(LOCAL_RANK, rank.to_string())
            .env(WORLD_SIZE, RANKS.to_string())
            .env(FABRIC, fabric.to_string())
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
            // One that has ended meanwhile needs no end.
            ranks.iter_mut().for_each(|rank| drop(rank.kill()));
        }
        std::thread::sleep(POLL);
    }
}
