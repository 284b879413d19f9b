//! A training loop on GPUs that averages its gradients by NCCL: a rank a process, as launchers start them
//! (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`), which meet in the folder that `JOB_DIR` names.
//!
//! ```console
//! $ cargo build -p ddp-doctor-agent --features nccl --example nccl
//! $ mkdir /tmp/meet
//! $ for rank in 0 1; do
//! >   JOB_DIR=/tmp/meet RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 target/debug/examples/nccl count &
//! > done
//! ```
//!
//! Its argument is a fault of rank 1: `count` a gradient that it keeps smaller, `op` another collective,
//! `group` a call of a group that has another size, `missing` none.

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

/// Steps of the training.
const STEPS: u32 = 6;
/// The step in which things go wrong.
const FAULTY_STEP: u32 = 4;
/// Parameters of the model.
const PARAMETERS: usize = 256;
/// How long a rank waits for another one to be there.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&env::args().nth(1).unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a terminal that takes no message.
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
    let agent = Agent::builder()
        .rank(u32::try_from(rank)?)
        .world_size(u32::try_from(ranks)?)
        .start()?;
    let trained = train(&agent, &stream, rank, ranks, fault);
    // Whoever starts ranks by something else than `ddp-doctor run` takes their status before that sees it.
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
        exchange(
            &world,
            &mut gradients,
            if is_wrong("group", step) { 1 } else { 2 },
        )?;
        settle(stream)?;
        let mean = stream.clone_dtoh(&gradients)?;
        if mean.last() != Some(&(step as f32)) {
            return Err(format!("the mean of {step} is {:?}", mean.last()).into());
        }
    }
    Ok(())
}

/// Every rank hands something to the next one, and all of them sum the rest, in one go.
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

/// Waits for the stream, but not for ever.
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

/// The id of the world, which rank 0 makes.
fn meet(rank: usize) -> Result<Id> {
    let folder = env::var("JOB_DIR").map_err(|error| format!("JOB_DIR: {error}"))?;
    let file = Path::new(&folder).join("world");
    if rank == 0 {
        let id = nccl::unique_id()?;
        let bytes: Vec<u8> = id
            .internal()
            .iter()
            .flat_map(|it| it.to_ne_bytes())
            .collect();
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
