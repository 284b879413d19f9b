//! The types of `ddp_doctor.h`.

use ddp_doctor_agent::MemorySample;
use ddp_doctor_proto::blackbox::{Call, flags};

/// Version of the interface.
pub(crate) const ABI_VERSION: u32 = 1;

/// Status of `ddp_doctor_open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    AlreadyOpen = 1,
    Disabled = 2,
    NoRoom = 3,
    BadArgument = 4,
}

/// `ddp_doctor_text`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Text {
    /// Address of the bytes; may be null if `length` is 0.
    pub data: *const u8,
    /// Number of bytes.
    pub length: usize,
}

/// `ddp_doctor_identity`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Identity {
    /// Global rank; -1: unknown.
    pub rank: i32,
    /// Number of ranks; -1: unknown.
    pub world_size: i32,
    /// Rank within the node; -1: unknown.
    pub local_rank: i32,
}

impl Identity {
    /// Rank, number of ranks and rank within the node; `None` where unknown.
    pub(crate) fn known(self) -> (Option<u32>, Option<u32>, Option<u32>) {
        let known = |value: i32| u32::try_from(value).ok();
        (known(self.rank), known(self.world_size), known(self.local_rank))
    }
}

/// `ddp_doctor_creation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "explained field by field in the header")]
pub struct CCreation {
    pub op: u32,
    pub epoch: u32,
    pub name: Text,
    pub description: Text,
    pub backend: Text,
    pub members: *const u32,
    pub member_count: usize,
    pub site: u32,
    pub takes_all: u32,
}

/// `ddp_doctor_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "explained field by field in the header")]
pub struct COptions {
    pub size: usize,
    pub layer: Text,
    pub job: Text,
    pub directory: Text,
    pub identity: Identity,
    pub attempt_plus_1: u32,
}

impl Default for COptions {
    fn default() -> Self {
        const NONE: Text = Text { data: std::ptr::null(), length: 0 };
        Self {
            size: size_of::<Self>(),
            layer: NONE,
            job: NONE,
            directory: NONE,
            identity: Identity { rank: -1, world_size: -1, local_rank: -1 },
            attempt_plus_1: 0,
        }
    }
}

/// `ddp_doctor_memory_sample`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "explained field by field in the header")]
pub struct CMemorySample {
    pub size: usize,
    pub device: u64,
    pub used: u64,
    pub total: u64,
    pub allocated: u64,
    pub reserved: u64,
    pub peak: u64,
    pub split: u64,
    pub retries: u64,
    pub ooms: u64,
    pub largest: u64,
}

impl Default for CMemorySample {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            device: u64::MAX,
            used: u64::MAX,
            total: u64::MAX,
            allocated: u64::MAX,
            reserved: u64::MAX,
            peak: u64::MAX,
            split: u64::MAX,
            retries: u64::MAX,
            ooms: u64::MAX,
            largest: u64::MAX,
        }
    }
}

impl CMemorySample {
    /// Converts to a sample of the black box.
    pub(crate) fn known(&self) -> MemorySample {
        let known = |value: u64| Some(value).filter(|&it| it != u64::MAX);
        MemorySample {
            device: known(self.device).and_then(|it| u32::try_from(it).ok()),
            used: known(self.used),
            total: known(self.total),
            allocated: known(self.allocated),
            reserved: known(self.reserved),
            peak: known(self.peak),
            split: known(self.split),
            retries: known(self.retries),
            ooms: known(self.ooms),
            largest: known(self.largest),
            // NCCL's own memory is queried by the preloaded NCCL library.
            nccl: None,
        }
    }
}

/// `ddp_doctor_parameter_list`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "explained field by field in the header")]
pub struct CParameters {
    pub size: usize,
    pub fact: u32,
    pub group: u32,
    pub model: u32,
    pub first: u32,
    pub total: u64,
    pub lines: Text,
    pub site: u32,
    pub dtype: u32,
    pub values: [u32; 8],
    pub value_count: u32,
}

impl Default for CParameters {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            fact: 0,
            group: 0,
            model: 0,
            first: 0,
            total: 0,
            lines: Text { data: std::ptr::null(), length: 0 },
            site: 0,
            dtype: 0,
            values: [0; 8],
            value_count: 0,
        }
    }
}

/// Flags that the caller may set.
const FLAGS: u16 = flags::ASYNC
    | flags::HIDDEN
    | flags::NUMEL
    | flags::SHAPE
    | flags::ROOT
    | flags::TAG
    | flags::BORROWED_SITE;

/// A call of a C program on this group and at this site, with the flags that it may set.
#[inline]
pub(crate) fn passed(call: &Call, group: u32, site: u32) -> Call {
    Call { flags: call.flags & FLAGS, group, site, ..*call }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn struct_layouts_match_the_header() {
        // `tests/program.c` asserts the same values for the header.
        assert_eq!(size_of::<Call>(), 80);
        assert_eq!(
            [
                offset_of!(Call, op),
                offset_of!(Call, dtype),
                offset_of!(Call, reduce_op),
                offset_of!(Call, ndim),
                offset_of!(Call, flags),
                offset_of!(Call, group),
                offset_of!(Call, site),
                offset_of!(Call, tensors),
                offset_of!(Call, root_or_peer),
                offset_of!(Call, tag),
                offset_of!(Call, numel),
                offset_of!(Call, dims),
            ],
            [0, 1, 2, 3, 4, 8, 12, 16, 20, 24, 32, 40]
        );
        assert_eq!((size_of::<Text>(), size_of::<Identity>()), (16, 12));
        assert_eq!(
            (size_of::<CCreation>(), offset_of!(CCreation, members), offset_of!(CCreation, site)),
            (80, 56, 72)
        );
        assert_eq!((size_of::<COptions>(), size_of::<CMemorySample>()), (72, 88));
        assert_eq!(offset_of!(COptions, attempt_plus_1), 68);
        assert_eq!((size_of::<CParameters>(), offset_of!(CParameters, lines)), (96, 32));
        assert_eq!(offset_of!(CParameters, values), 56);
    }
}
