//! Ranks that call NCCL through cudarc, which looks up its functions at run time, and do not use
//! ddp-doctor: `ddp-doctor run --nccl soname` records them.
//!
//! They are started like those of `nccl.rs` in this folder. With the argument `count`, the gradient
//! of rank 1 is smaller in the fourth step.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use cudarc::driver::CudaContext;
use cudarc::nccl::{Comm, Id, ReduceOp};

/// Number of training steps.
const STEPS: u32 = 6;
/// Number of model parameters.
const PARAMETERS: usize = 256;
/// Timeout for other ranks and for the stream.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match train(&env::args().nth(1).unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A failed write to standard error is ignored.
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn train(fault: &str) -> Result<()> {
    let number = |name: &str| -> Result<usize> {
        let value = env::var(name).map_err(|error| format!("{name}: {error}"))?;
        Ok(value.parse()?)
    };
    let (rank, ranks) = (number("RANK")?, number("WORLD_SIZE")?);
    let stream = CudaContext::new(number("LOCAL_RANK")?)?.new_stream()?;
    let refused = |error| format!("NCCL: {error:?}");
    let world = Comm::from_rank(stream.clone(), rank, ranks, meet(rank)?).map_err(refused)?;
    for step in 1..=STEPS {
        let mut gradients = stream.clone_htod(&vec![step as f32; PARAMETERS])?;
        let is_wrong = fault == "count" && rank == 1 && step == 4;
        let count = if is_wrong { PARAMETERS / 2 } else { PARAMETERS };
        let mut part = gradients.slice_mut(..count);
        world.all_reduce_in_place(&mut part, &ReduceOp::Avg).map_err(refused)?;
        let event = stream.record_event(None)?;
        let begin = Instant::now();
        while !event.is_complete() {
            if begin.elapsed() > PATIENCE {
                return Err("the stream does not end".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// The unique id of the world, created by rank 0.
fn meet(rank: usize) -> Result<Id> {
    let folder = env::var("JOB_DIR").map_err(|error| format!("JOB_DIR: {error}"))?;
    let file = Path::new(&folder).join("world");
    if rank == 0 {
        let id = Id::new().map_err(|error| format!("NCCL: {error:?}"))?;
        let bytes = id.internal().iter().flat_map(|it| it.to_ne_bytes());
        let half = file.with_extension("new");
        fs::write(&half, bytes.collect::<Vec<u8>>())?;
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
