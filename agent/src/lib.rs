//! The part of ddp-doctor inside a training process: a black box that records what the process is
//! doing, and the calls that write it.
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
//! Once a source line, a group and a thread are known, recording does not block, allocate or make a
//! system call. If no black box could be created, recording does nothing. A forked child records
//! nothing until it starts an agent of its own.
//!
//! If `ddp-doctor run` did not start the process and `DDP_DOCTOR_COORDINATOR` names a coordinator,
//! the program `ddp-doctor` is started to read the box from outside and to report to the
//! coordinator. The examples of this package are complete jobs.
//!
//! With the feature `cuda` and `DDP_DOCTOR_GPU_MEMORY=1`, a thread samples the memory of the GPUs
//! that the process uses. It neither loads nor initializes CUDA.
//!
//! With the feature `nccl`, the module `nccl` wraps cudarc's NCCL types under the same names and
//! records their calls with the source line of the caller.
//!
//! The [`blackbox`] module contains the box and its reader.

mod admission;
mod agent;
pub mod blackbox;
mod call;
mod current;
mod detach;
mod facts;
pub mod files;
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
pub use facts::{host_ticks, is_disabled, options_from_env, start_ticks_of};
#[cfg(feature = "cuda")]
pub use gpu::{GpuError, gpu_memory};
