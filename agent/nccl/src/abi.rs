//! NCCL's types and numbers, as `nccl.h` has had them from 2.16 to 2.32: none changed, some came.
//!
//! What NCCL calls an enumeration is a plain number here, for a later NCCL may pass numbers that this
//! one has no name for.
#![expect(unsafe_code, reason = "reads the configuration that a program passes")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use ddp_doctor_proto::{DType, ReduceOp};

/// `ncclResult_t`.
pub(crate) type Status = c_int;
/// `ncclComm_t`.
pub(crate) type Comm = *mut c_void;
/// `cudaStream_t`.
pub(crate) type Stream = *mut c_void;
/// `ncclConfig_t*`, `ncclCollConfig_t*`: what is in them is for NCCL, but for [`Config`].
pub(crate) type AnyConfig = *mut c_void;

/// `ncclSuccess`.
pub(crate) const SUCCESS: Status = 0;
/// `ncclInternalError`.
pub(crate) const INTERNAL_ERROR: Status = 3;
/// `ncclInProgress`: a communicator that does not block goes on with it by itself.
pub(crate) const IN_PROGRESS: Status = 7;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOR: c_int = -1;

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId {
    pub(crate) bytes: [u8; 128],
}

/// Whether a call was taken.
pub(crate) const fn is_taken(status: Status) -> bool {
    matches!(status, SUCCESS | IN_PROGRESS)
}

/// The name of a status.
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

/// `ncclRedOp_t`. From 5 on these are operators of the program's own, all of them a sum after a
/// multiplication; their numbers mean nothing on another rank.
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

/// The head of `ncclConfig_t`, which only ever grows at its end.
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

/// What of a program's configuration matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configured {
    /// Calls come back before they are done.
    pub(crate) non_blocking: bool,
    /// What the program calls the communicator; empty: nothing.
    pub(crate) name: &'static [u8],
}

impl Configured {
    /// What holds without a configuration.
    pub(crate) const NOTHING: Self = Self {
        non_blocking: false,
        name: b"",
    };

    /// Reads a program's `ncclConfig_t`, which may be null and of any version.
    ///
    /// # Safety
    ///
    /// It is null, or one as NCCL takes it. The name must not be used after the program's call.
    pub(crate) unsafe fn read(config: AnyConfig) -> Self {
        let config = config.cast::<Config>().cast_const();
        if config.is_null() {
            return Self::NOTHING;
        }
        let has = |field: usize, length: usize, size: usize| field + length <= size;
        // SAFETY: the caller vouches for it, and every version begins with size and magic.
        let (size, magic) = unsafe { ((*config).size, (*config).magic) };
        if magic != CONFIG_MAGIC {
            return Self::NOTHING;
        }
        let mut found = Self::NOTHING;
        if has(std::mem::offset_of!(Config, blocking), 4, size) {
            // SAFETY: the configuration is long enough to have it.
            found.non_blocking = unsafe { (*config).blocking } == 0;
        }
        if has(std::mem::offset_of!(Config, comm_name), 8, size) {
            // SAFETY: as above.
            let name = unsafe { (*config).comm_name };
            if !name.is_null() {
                // SAFETY: NCCL takes it for a text that ends in a zero.
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
    fn a_configuration_is_read_as_far_as_its_version_goes() {
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
            // SAFETY: it is one.
            unsafe { Configured::read(std::ptr::from_mut(config).cast()) }
        };
        let all = Configured {
            non_blocking: true,
            name: name.to_bytes(),
        };
        assert_eq!(read(&mut config), all);
        // NCCL 2.26 has no name there, 2.14 nothing behind `blocking`.
        config.size = std::mem::offset_of!(Config, comm_name);
        assert_eq!(read(&mut config).name, b"");
        assert!(read(&mut config).non_blocking);
        // INT_MIN: not said.
        config.blocking = c_int::MIN;
        assert!(!read(&mut config).non_blocking);
        config.magic = 0;
        assert_eq!(read(&mut config), Configured::NOTHING);
    }

    #[test]
    fn operators_of_ones_own_are_one_operator() {
        assert_eq!(reduce_op(4), ReduceOp::Avg);
        assert_eq!(reduce_op(5), ReduceOp::PremulSum);
        assert_eq!(reduce_op(0x7fff_fffe), ReduceOp::PremulSum);
        assert_eq!(reduce_op(-1), ReduceOp::Other);
        assert_eq!(dtype(12), DType::Other);
    }
}
