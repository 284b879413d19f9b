//! Cache of the signatures of recorded calls.

use std::array;
use std::cell::Cell;

use ddp_doctor_proto::blackbox::Call;

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
        let hash = hash(call);
        let slot = &self.0[(hash >> 32) as usize % MAX_SIGNATURES];
        slot.replace(hash) == hash
    }

    pub(crate) fn clear(&self) {
        for slot in &self.0 {
            slot.set(0);
        }
    }
}

fn hash(call: &Call) -> u64 {
    let head = u64::from_le_bytes([
        call.op,
        call.dtype,
        call.reduce_op,
        call.ndim,
        call.flags.to_le_bytes()[0],
        call.flags.to_le_bytes()[1],
        call.tensors.to_le_bytes()[0],
        call.tensors.to_le_bytes()[1],
    ]);
    let place =
        u64::from(call.root_or_peer.cast_unsigned()) << 32 | u64::from(call.tag.cast_unsigned());
    let mix =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let shape = call.dims.iter().take(call.ndim.into());
    let hash = mix(mix(mix(1, head), place), call.numel);
    shape.fold(hash, |hash, &dim| mix(hash, dim.into())) | 1
}
