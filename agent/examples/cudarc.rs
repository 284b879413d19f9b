//! Ranks that call NCCL by cudarc, which loads it and looks its functions up by itself, and know nothing of
//! ddp-doctor: `ddp-doctor run --nccl soname` sees them.
//!
//! They are started as those of `nccl.rs` beside this file. With the argument `count`, rank 1 keeps a
//! gradient of its fourth step smaller.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use cudarc::driver::CudaContext;
use cudarc::nccl::{Comm, Id, ReduceOp};

/// Steps of the training.
const STEPS: u32 = 6;
/// Parameters of the model.
const PARAMETERS: usize = 256;
/// How long a rank waits for another one to be there.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match train(&env::args().nth(1).unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a terminal that takes no message.
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
        world
            .all_reduce_in_place(&mut part, &ReduceOp::Avg)
            .map_err(refused)?;
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

/// The id of the world, which rank 0 makes.
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
