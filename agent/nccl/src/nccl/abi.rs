//! Types and constants of `nccl.h` from 2.16 to 2.32; later versions added some and changed none.
//!
//! Enumerations are plain integers, since a newer NCCL may pass values without a name here.
#![expect(unsafe_code, reason = "reads the configuration that a program passes")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use ddp_doctor_proto::{DType, ReduceOp};

/// `ncclResult_t`.
pub(crate) type Status = c_int;
/// `ncclComm_t`.
pub(crate) type Comm = *mut c_void;
/// `cudaStream_t`.
pub(crate) type Stream = *mut c_void;
/// `ncclConfig_t*`, `ncclCollConfig_t*`: forwarded to NCCL unread, except [`Config`].
pub(crate) type AnyConfig = *mut c_void;

/// `ncclSuccess`.
pub(crate) const SUCCESS: Status = 0;
/// `ncclInternalError`.
pub(crate) const INTERNAL_ERROR: Status = 3;
/// `ncclInProgress`: a non-blocking communicator continues in the background.
pub(crate) const IN_PROGRESS: Status = 7;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOR: c_int = -1;

/// `ncclUniqueId`, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId {
    pub(crate) bytes: [u8; 128],
}

/// Whether NCCL accepted a call.
pub(crate) const fn is_taken(status: Status) -> bool {
    matches!(status, SUCCESS | IN_PROGRESS)
}

/// Name of a status.
pub(crate) const fn status_name(status: Status) -> &'static str {
    match status {
        0 => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "an error without a name",
    }
}

/// `ncclDataType_t`.
pub(crate) const fn dtype(number: c_int) -> DType {
    match number {
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
        10 => DType::Float8E4M3,
        11 => DType::Float8E5M2,
        _ => DType::Other,
    }
}

/// `ncclRedOp_t`. Values from 5 on are operators created by the program, all of them a sum after a
/// multiplication; their numbers mean nothing on other ranks.
pub(crate) const fn reduce_op(number: c_int) -> ReduceOp {
    match number {
        0 => ReduceOp::Sum,
        1 => ReduceOp::Product,
        2 => ReduceOp::Max,
        3 => ReduceOp::Min,
        4 => ReduceOp::Avg,
        5.. => ReduceOp::PremulSum,
        _ => ReduceOp::Other,
    }
}

/// The first fields of `ncclConfig_t`, which only grows at its end.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
}

const CONFIG_MAGIC: c_uint = 0xcafe_beef;

/// Fields of a program's configuration that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configured {
    /// The communicator is non-blocking: calls return before they are complete.
    pub(crate) non_blocking: bool,
    /// Name of the communicator given by the program; empty: none.
    pub(crate) name: &'static [u8],
}

impl Configured {
    /// The defaults without a configuration.
    pub(crate) const NOTHING: Self = Self { non_blocking: false, name: b"" };

    /// Reads a program's `ncclConfig_t`, which may be null and of any version.
    ///
    /// # Safety
    ///
    /// The pointer is null or valid for NCCL. The name must not be used after the program's call.
    pub(crate) unsafe fn read(config: AnyConfig) -> Self {
        let config = config.cast::<Config>().cast_const();
        if config.is_null() {
            return Self::NOTHING;
        }
        let has = |field: usize, length: usize, size: usize| field + length <= size;
        // SAFETY: the caller vouches for the pointer, and every version begins with size and magic.
        let (size, magic) = unsafe { ((*config).size, (*config).magic) };
        if magic != CONFIG_MAGIC {
            return Self::NOTHING;
        }
        let mut found = Self::NOTHING;
        if has(std::mem::offset_of!(Config, blocking), 4, size) {
            // SAFETY: the configuration is long enough to contain the field.
            found.non_blocking = unsafe { (*config).blocking } == 0;
        }
        if has(std::mem::offset_of!(Config, comm_name), 8, size) {
            // SAFETY: as above.
            let name = unsafe { (*config).comm_name };
            if !name.is_null() {
                // SAFETY: NCCL requires a NUL-terminated text.
                found.name = unsafe { CStr::from_ptr(name) }.to_bytes();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_the_config_size_are_not_read() {
        let name = c"tensor parallel";
        let mut config = Config {
            size: size_of::<Config>(),
            magic: CONFIG_MAGIC,
            version: 22_703,
            blocking: 0,
            cga_cluster_size: 4,
            min_ctas: 1,
            max_ctas: 2,
            net_name: std::ptr::null(),
            split_share: 0,
            traffic_class: 0,
            comm_name: name.as_ptr(),
        };
        let read = |config: &mut Config| {
            // SAFETY: the pointer is to a live configuration.
            unsafe { Configured::read(std::ptr::from_mut(config).cast()) }
        };
        let all = Configured { non_blocking: true, name: name.to_bytes() };
        assert_eq!(read(&mut config), all);
        // NCCL 2.26 has no `comm_name`, 2.14 nothing after `blocking`.
        config.size = std::mem::offset_of!(Config, comm_name);
        assert_eq!(read(&mut config).name, b"");
        assert!(read(&mut config).non_blocking);
        // INT_MIN stands for an undefined field.
        config.blocking = c_int::MIN;
        assert!(!read(&mut config).non_blocking);
        config.magic = 0;
        assert_eq!(read(&mut config), Configured::NOTHING);
    }

    #[test]
    fn user_defined_operators_are_premul_sum() {
        assert_eq!(reduce_op(4), ReduceOp::Avg);
        assert_eq!(reduce_op(5), ReduceOp::PremulSum);
        assert_eq!(reduce_op(0x7fff_fffe), ReduceOp::PremulSum);
        assert_eq!(reduce_op(-1), ReduceOp::Other);
        assert_eq!(dtype(12), DType::Other);
    }
}
