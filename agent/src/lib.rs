//! What of ddp-doctor lives in a training process: a black box that says what the process is doing,
//! and the calls that write it.
//!
//! ```
//! use ddp_doctor_agent::{Agent, DType, Op, ReduceOp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let agent = Agent::builder()
//!     .rank(0)
//!     .world_size(2)
//! #   .directory(directory.path())
//!     .start()?;
//! let world = agent.group("world", "all ranks", "nccl", &[0, 1]);
//!
//! agent.step();
//! let call = agent
//!     .call(&world, Op::AllReduce)
//!     .dtype(DType::Float32)
//!     .shape(&[1024, 1024])
//!     .reduce_op(ReduceOp::Sum)
//!     .issue();
//! // ncclAllReduce(…)
//! drop(call);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here blocks, allocates or makes a system call once a place, a group and a thread are
//! known. Where there is no room for a black box, everything does nothing. A forked child is silent
//! until it starts an agent of its own.
//!
//! A process that `ddp-doctor run` did not start is reported by itself where `DDP_DOCTOR_COORDINATOR` names a
//! coordinator: the program `ddp-doctor`, started for it, reads its box from outside. The examples of this
//! package are whole jobs.
//!
//! With the feature `cuda` and `DDP_DOCTOR_GPU_MEMORY=1`, a thread samples the memory of the GPUs that the
//! process uses. It neither loads nor initialises CUDA.
//!
//! With the feature `nccl`, the module `nccl` has what cudarc has of NCCL under the same names, whose calls are
//! recorded at the lines that make them.
//!
//! The [`blackbox`] module has the box itself, and its reader.

mod agent;
pub mod blackbox;
mod call;
mod current;
mod detach;
mod facts;
#[cfg(feature = "cuda")]
mod gpu;
pub mod identity;
#[cfg(feature = "nccl")]
pub mod nccl;
mod reporter;
pub mod shared;
mod sync;
mod sys;
pub mod trust;

pub use agent::{Agent, Builder, Group, PhaseGuard, StartError};
pub use call::{CallBuilder, CallGuard, CallId, WaitGuard};
pub use current::{Opened, close, current, open};
pub use ddp_doctor_proto::blackbox::memory::Sample as MemorySample;
pub use ddp_doctor_proto::{DType, ExceptionKind, NoteKind, Op, ReduceOp, Spending};
pub use facts::{is_disabled, options_from_env, start_ticks_of};
#[cfg(feature = "cuda")]
pub use gpu::{GpuError, gpu_memory};
