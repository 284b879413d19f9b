//! GPUs and network ports.

use std::time::Instant;

use ddp_doctor_proto::v1::event::Kind;

use super::Follower;
use crate::follow::rank::Rank;

impl Follower {
    /// Reports what the samplers of devices have observed.
    pub(super) fn poll_devices(&mut self, now: Instant) {
        for fault in self.gpus.poll(now, &mut self.out) {
            self.report(Kind::GpuFault(fault));
        }
        if self.ports.is_active() {
            let is_urgent = self.ranks.iter().any(Rank::may_wait);
            self.ports.poll(is_urgent, now, &mut self.out);
        }
    }
}
