//! Sequence numbers of point-to-point calls.

use std::sync::atomic::Ordering;

use ddp_doctor_proto::Op;

use crate::blackbox::map::Map;

/// Sequence numbers of point-to-point calls per peer and direction: for each peer sends, then
/// receives. Memory of unused counters is never touched.
#[derive(Debug)]
pub(super) struct Peers {
    issued: Option<Map>,
}

impl Peers {
    pub(super) fn new(members: usize) -> Self {
        Self {
            // Without memory, these calls have no sequence numbers.
            issued: Map::private(2 * members).ok(),
        }
    }

    /// Sequence number of the next call to or from this peer; 0: there is no such peer.
    pub(super) fn next(&self, op: Op, peer: i32) -> u64 {
        let counter = usize::try_from(peer)
            .ok()
            .and_then(|peer| 2_usize.checked_mul(peer)?.checked_add(usize::from(op != Op::Send)))
            .and_then(|at| self.issued.as_ref()?.words().get(at));
        counter.map_or(0, |counter| counter.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
