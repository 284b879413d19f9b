//! A training loop on GPUs that averages its gradients with NCCL, one rank per process. Launchers set
//! `RANK`, `WORLD_SIZE` and `LOCAL_RANK`; the ranks exchange the unique id in the folder `JOB_DIR`.
//!
//! ```console
//! $ cargo build -p ddp-doctor-agent --features nccl --example nccl
//! $ mkdir /tmp/meet
//! $ for rank in 0 1; do
//! >   JOB_DIR=/tmp/meet RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 target/debug/examples/nccl count &
//! > done
//! ```
//!
//! The argument is a fault of rank 1: `count` reduces a smaller gradient, `op` calls another
//! collective, `group` uses another size in a group call, `missing` makes no call.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use ddp_doctor_agent::Agent;
use ddp_doctor_agent::nccl::cudarc::driver::{CudaSlice, CudaStream};
use ddp_doctor_agent::nccl::cudarc::nccl::{Id, ReduceOp};
use ddp_doctor_agent::nccl::{self, Comm};

/// Number of training steps.
const STEPS: u32 = 6;
/// The step with the fault.
const FAULTY_STEP: u32 = 4;
/// Number of model parameters.
const PARAMETERS: usize = 256;
/// Timeout for other ranks and for the stream.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&env::args().nth(1).unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A failed write to standard error is ignored.
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(fault: &str) -> Result<()> {
    let number = |name: &str| -> Result<usize> {
        let value = env::var(name).map_err(|error| format!("{name}: {error}"))?;
        Ok(value.parse()?)
    };
    let (rank, ranks) = (number("RANK")?, number("WORLD_SIZE")?);
    let stream = nccl::context(number("LOCAL_RANK")?)?.new_stream()?;
    let agent =
        Agent::builder().rank(u32::try_from(rank)?).world_size(u32::try_from(ranks)?).start()?;
    let trained = train(&agent, &stream, rank, ranks, fault);
    // Other launchers than `ddp-doctor run` may reap the process before its status is read.
    agent.exit(i32::from(trained.is_err()), "main has returned");
    trained
}

fn train(
    agent: &Agent,
    stream: &Arc<CudaStream>,
    rank: usize,
    ranks: usize,
    fault: &str,
) -> Result<()> {
    let world = Comm::from_rank(stream.clone(), rank, ranks, meet(rank)?)?;
    let is_wrong = |kind: &str, step: u32| kind == fault && step == FAULTY_STEP && rank == 1;

    let mut parameters = stream.clone_htod(&[0.0_f32; PARAMETERS])?;
    world.broadcast_in_place(&mut parameters, 0)?;
    for step in 1..=STEPS {
        agent.step();
        if is_wrong("missing", step) {
            thread::sleep(PATIENCE);
            return Err("nobody is waiting any more".into());
        }
        let mut gradients = stream.clone_htod(&vec![step as f32; PARAMETERS])?;
        if is_wrong("count", step) {
            let mut part = gradients.slice_mut(..PARAMETERS / 2);
            world.all_reduce_in_place(&mut part, &ReduceOp::Avg)?; // HERE count
        } else if is_wrong("op", step) {
            world.broadcast_in_place(&mut gradients, 1)?; // HERE op
        } else {
            world.all_reduce_in_place(&mut gradients, &ReduceOp::Avg)?; // HERE others
        }
        exchange(&world, &mut gradients, if is_wrong("group", step) { 1 } else { 2 })?;
        settle(stream)?;
        let mean = stream.clone_dtoh(&gradients)?;
        if mean.last() != Some(&(step as f32)) {
            return Err(format!("the mean of {step} is {:?}", mean.last()).into());
        }
    }
    Ok(())
}

/// Sends a value to the next rank and averages the gradients, in one group.
fn exchange(world: &Comm, gradients: &mut CudaSlice<f32>, parts: usize) -> Result<()> {
    let (rank, ranks) = (world.rank(), world.world_size());
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let stream = world.stream();
    let sent = stream.clone_htod(&[rank as f32; 8])?;
    let mut received = stream.alloc_zeros::<f32>(8)?;
    let (data, buffer) = (sent.slice(..), received.slice_mut(..));
    let rest = gradients.slice_mut(..parts);
    let mut group = world.group();
    group.send(data, i32::try_from(next)?)?;
    group.recv(buffer, i32::try_from(before)?)?;
    group.all_reduce_in_place(rest, &ReduceOp::Avg)?; // HERE group
    group.end()?;
    Ok(())
}

/// Waits for the stream, with a timeout.
fn settle(stream: &CudaStream) -> Result<()> {
    let begin = Instant::now();
    let event = stream.record_event(None)?;
    while !event.is_complete() {
        if begin.elapsed() > PATIENCE {
            return Err("the stream does not end".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The unique id of the world, created by rank 0.
fn meet(rank: usize) -> Result<Id> {
    let folder = env::var("JOB_DIR").map_err(|error| format!("JOB_DIR: {error}"))?;
    let file = Path::new(&folder).join("world");
    if rank == 0 {
        let id = nccl::unique_id()?;
        let bytes: Vec<u8> = id.internal().iter().flat_map(|it| it.to_ne_bytes()).collect();
        let half = file.with_extension("new");
        fs::write(&half, bytes)?;
        fs::rename(&half, &file)?;
        return Ok(id);
    }
    let begin = Instant::now();
    loop {
        if let Ok(bytes) = fs::read(&file) {
            let mut internal = [0; 128];
            for (to, from) in internal.iter_mut().zip(bytes) {
                *to = std::ffi::c_char::from_ne_bytes([from]);
            }
            return Ok(Id::uninit(internal));
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("{}: nobody has made it", file.display()).into());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
