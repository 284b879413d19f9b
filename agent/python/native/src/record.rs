//! The description of a call that `libddp_doctor.so` records.

use std::array;
use std::cell::Cell;
use std::mem::offset_of;

use ddp_doctor_proto::blackbox::{MAX_DIMS, flags};

/// `ddp_doctor_call` of `ddp_doctor.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Call {
    pub(crate) op: u8,
    pub(crate) dtype: u8,
    pub(crate) reduce_op: u8,
    pub(crate) ndim: u8,
    pub(crate) flags: u16,
    pub(crate) reserved: u16,
    pub(crate) group: u32,
    pub(crate) site: u32,
    pub(crate) tensors: u32,
    pub(crate) root: i32,
    pub(crate) tag: i32,
    pub(crate) reserved2: u32,
    pub(crate) numel: u64,
    pub(crate) dims: [u32; MAX_DIMS],
}

const _: () = assert!(size_of::<Call>() == 80 && offset_of!(Call, numel) == 32);

impl Call {
    /// Records the sizes of the first tensor, as far as a record has room for them.
    pub(crate) fn set_shape(&mut self, sizes: impl Iterator<Item = Option<i64>>) -> Option<()> {
        let mut count = 0;
        let mut fits = true;
        self.numel = 1;
        for (at, size) in sizes.enumerate() {
            count = at + 1;
            let size = size?;
            self.numel = self.numel.wrapping_mul(size.cast_unsigned());
            match (self.dims.get_mut(at), u32::try_from(size)) {
                (Some(dim), Ok(size)) => *dim = size,
                _ => fits = false,
            }
        }
        self.flags |= flags::NUMEL;
        if fits {
            self.flags |= flags::SHAPE;
            self.ndim = count as u8;
        } else {
            self.dims = [0; MAX_DIMS];
        }
        Some(())
    }

    fn hash(&self) -> u64 {
        let head = u64::from_le_bytes([
            self.op,
            self.dtype,
            self.reduce_op,
            self.ndim,
            self.flags.to_le_bytes()[0],
            self.flags.to_le_bytes()[1],
            self.tensors.to_le_bytes()[0],
            self.tensors.to_le_bytes()[1],
        ]);
        let place =
            u64::from(self.root.cast_unsigned()) << 32 | u64::from(self.tag.cast_unsigned());
        let mix = |hash: u64, word: u64| {
            (hash ^ word)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        };
        let shape = self.dims.iter().take(self.ndim.into());
        let hash = mix(mix(mix(1, head), place), self.numel);
        shape.fold(hash, |hash, &dim| mix(hash, dim.into())) | 1
    }
}

/// Number of cached signatures, a power of two.
const MAX_SIGNATURES: usize = 1024;

/// Hashes of the signatures of earlier calls.
pub(crate) struct SignatureCache([Cell<u64>; MAX_SIGNATURES]);

impl SignatureCache {
    pub(crate) fn new() -> Self {
        Self(array::from_fn(|_| Cell::new(0)))
    }

    /// Adds the signature of a call. Returns whether it was cached already.
    pub(crate) fn insert(&self, call: &Call) -> bool {
        let hash = call.hash();
        let slot = &self.0[(hash >> 32) as usize % MAX_SIGNATURES];
        slot.replace(hash) == hash
    }

    pub(crate) fn clear(&self) {
        for slot in &self.0 {
            slot.set(0);
        }
    }
}
