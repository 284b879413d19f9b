//! Records calls of NCCL made through cudarc, with the source line of the caller. [`Comm`] and
//! [`Group`] have the functions of [`cudarc::nccl::Comm`] and [`cudarc::nccl::Group`], under the
//! same names.
//!
//! ```no_run
//! use ddp_doctor_agent::{Agent, nccl};
//! use nccl::cudarc::nccl::ReduceOp;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (rank, ranks) = (0, 1);
//! let agent = Agent::builder().rank(0).world_size(1).start()?;
//! let stream = nccl::context(0)?.default_stream();
//! // Created by one rank, which sends `id.internal()` to the others.
//! let id = nccl::unique_id()?;
//! let world = nccl::Comm::from_rank(stream.clone(), rank, ranks, id)?;
//!
//! agent.step();
//! let mut gradients = stream.clone_htod(&[1.0_f32; 16])?;
//! world.all_reduce_in_place(&mut gradients, &ReduceOp::Sum)?;
//! # Ok(())
//! # }
//! ```
//!
//! CUDA and NCCL are loaded when they are first used. Without them all functions return an
//! [`NcclError`]. A program that calls cudarc directly should check [`is_available`] first, since
//! cudarc panics.
#![expect(unsafe_code, reason = "asks cudarc which libraries there are")]

mod comm;
mod group;

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

pub use cudarc;
use cudarc::driver::{CudaContext, DriverError, sys as driver};
use cudarc::nccl::{Id, NcclType, ReduceOp as Reduction, result, sys};
use ddp_doctor_proto::blackbox::Call;
use ddp_doctor_proto::{DType, ExceptionKind, Op, ReduceOp};

pub use self::comm::Comm;
pub use self::group::Group;
use crate::blackbox::Writer;

/// Why a call of NCCL was not made or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NcclError {
    /// The library does not exist or the loader does not find it.
    NotFound(&'static str),
    /// The CUDA driver returned this error.
    Driver(DriverError),
    /// This NCCL function returned an error: function, error number and error name.
    Nccl(&'static str, u32, String),
    /// This NCCL function returned an error that cudarc does not expose.
    Refused(&'static str),
    /// The rank is outside the communicator.
    NoSuchRank,
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(library) => write!(f, "the loader does not find {library}"),
            Self::Driver(error) => write!(f, "the CUDA driver answered with {error:?}"),
            Self::Nccl(function, _, name) => write!(f, "NCCL: {name} from {function}"),
            Self::Refused(function) => write!(f, "NCCL: an error from {function}"),
            Self::NoSuchRank => f.write_str("a communicator has no such rank"),
        }
    }
}

impl std::error::Error for NcclError {}

impl NcclError {
    fn from_result(function: &'static str, error: &result::NcclError) -> Self {
        Self::Nccl(function, error.0 as u32, format!("{:?}", error.0))
    }
}

/// Whether the CUDA driver and NCCL can be loaded.
pub fn is_available() -> Result<(), NcclError> {
    static FOUND: OnceLock<Result<(), NcclError>> = OnceLock::new();
    let look = || {
        // SAFETY: loads the library if it exists, as its first call would.
        if !unsafe { driver::is_culib_present() } {
            return Err(NcclError::NotFound("the CUDA driver, libcuda.so"));
        }
        // SAFETY: as above.
        if !unsafe { sys::is_culib_present() } {
            return Err(NcclError::NotFound("NCCL as libnccl.so (a link to libnccl.so.2 will do)"));
        }
        Ok(())
    };
    FOUND.get_or_init(look).clone()
}

/// The context of a device, required for all work on it.
pub fn context(ordinal: usize) -> Result<Arc<CudaContext>, NcclError> {
    is_available()?;
    CudaContext::new(ordinal).map_err(NcclError::Driver)
}

/// A unique id for a communicator that is about to be created.
pub fn unique_id() -> Result<Id, NcclError> {
    is_available()?;
    Id::new().map_err(|error| NcclError::from_result("ncclGetUniqueId", &error))
}

/// A call of NCCL that is about to be made.
#[derive(Clone, Copy)]
struct NcclCall {
    function: &'static str,
    call: Call,
    /// Where the program makes it.
    place: &'static Location<'static>,
}

impl NcclCall {
    #[track_caller]
    fn new<T: NcclType>(function: &'static str, op: Op, count: usize) -> Self {
        Self {
            function,
            call: Call::nccl(op, dtype(T::as_nccl_type()), count),
            place: Location::caller(),
        }
    }

    fn reducing(mut self, by: &Reduction) -> Self {
        let reduce_op = match by {
            Reduction::Sum => ReduceOp::Sum,
            Reduction::Prod => ReduceOp::Product,
            Reduction::Max => ReduceOp::Max,
            Reduction::Min => ReduceOp::Min,
            Reduction::Avg => ReduceOp::Avg,
        };
        self.call.reduce_op = reduce_op.number();
        self
    }

    fn with(mut self, partner: i32) -> Self {
        self.call = self.call.with_partner(partner);
        self
    }

    fn in_place(mut self) -> Self {
        self.call = self.call.in_place(true);
        self
    }
}

/// Records the error if NCCL rejected a call.
fn record_rejection<T>(
    writer: &'static Writer,
    made: &Result<T, NcclError>,
    place: &'static Location<'static>,
) {
    if let Err(error) = made {
        let (text, site) = (error.to_string(), writer.rust_site(place));
        writer.exception(ExceptionKind::LeftCollective, text.as_bytes(), site);
    }
}

/// Matches numbers because not every version of the bindings has all names.
fn dtype(of: sys::ncclDataType_t) -> DType {
    match of as u32 {
        0 => DType::Int8,
        1 => DType::UInt8,
        2 => DType::Int32,
        3 => DType::UInt32,
        4 => DType::Int64,
        5 => DType::UInt64,
        6 => DType::Float16,
        7 => DType::Float32,
        8 => DType::Float64,
        9 => DType::BFloat16,
        _ => DType::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on machines without CUDA; elsewhere it checks nothing.
    #[test]
    fn missing_libraries_are_errors_not_panics() {
        let Err(error) = is_available() else { return };
        assert!(matches!(error, NcclError::NotFound(_)), "{error}");
        assert_eq!(context(0).err().as_ref(), Some(&error));
        assert_eq!(unique_id().err().as_ref(), Some(&error));
        assert!(error.to_string().contains("does not find"), "{error}");
    }

    #[test]
    fn nccl_errors_name_error_and_function() {
        let refused = result::NcclError(sys::ncclResult_t::ncclInvalidArgument);
        let error = NcclError::from_result("ncclAllReduce", &refused);
        assert_eq!(error.to_string(), "NCCL: ncclInvalidArgument from ncclAllReduce");
    }
}
